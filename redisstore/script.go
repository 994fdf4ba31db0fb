package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/algorithm"
)

var (
	//go:embed prelude.lua
	preludeLua string
	//go:embed row.lua
	rowLua string
	//go:embed rows.lua
	rowsLua string
	//go:embed cells.lua
	cellsLua string
	//go:embed many.lua
	manyLua string
)

const (
	maxNumbers = 6 // of state that row.lua can carry
	maxRow     = 4 // charges that row.lua is written out for
)

// A script is composed, once, of a harness and the fragments of some algorithms: for row.lua and rows.lua of one per charge in their
// order, for many.lua of a set.
type script struct {
	algorithms []*algorithm.Algorithm
	kind       kind
	text       string
	digest     string
}

// A kind is a script's harness.
type kind uint8

const (
	many kind = iota // any batches
	row              // one batch
	rows             // batches of several callers, of one row
)

// index is an algorithm's number in a script of many.lua. Collections have numbers from 128 on.
func (s *script) index(a *algorithm.Algorithm) byte {
	i := slices.IndexFunc(s.algorithms, a.Is)
	if a.Collection {
		i += 128
	}
	return byte(i)
}

// explain names the right that the script's user lacks: Redis 7.0 says only in which line it is needed.
func explain(script string, err error) error {
	if reply, ok := errors.AsType[ReplyError](err); !ok || !strings.Contains(string(reply), "can't run this command") {
		return err
	}
	where := scriptLine.FindStringSubmatch(err.Error())
	if where == nil {
		return err
	}
	n, _ := strconv.Atoi(where[1])
	for line := range strings.Lines(script) {
		if n--; n > 0 {
			continue
		}
		if command := commands.FindStringSubmatch(line); command != nil {
			err = fmt.Errorf("%w; the user needs the right +%s", err, strings.ToLower(command[1]))
		}
		break
	}
	return err
}

var (
	scriptLine = regexp.MustCompile(`on @user_script:(\d+)`)
)

// A library holds the scripts composed so far.
type library struct {
	mu      sync.Mutex
	scripts atomic.Pointer[[]*script]
}

// find returns the script of a kind that decides charges, composing it if need be.
func (l *library) find(kind kind, charges []charge) *script {
	if found := l.known(kind, charges); found != nil {
		return found
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.known(kind, charges); found != nil {
		return found
	}
	made := &script{kind: kind}
	for i := range charges {
		if a := charges[i].plan.Limit.Algorithm; kind != many || !slices.ContainsFunc(made.algorithms, a.Is) {
			made.algorithms = append(made.algorithms, a)
		}
	}
	if kind == many {
		made.text = composeMany(made.algorithms)
	} else {
		made.text = composeRow(made.algorithms, kind == rows)
	}
	sum := sha1.Sum([]byte(made.text))
	made.digest = hex.EncodeToString(sum[:])
	scripts := []*script{made}
	if known := l.scripts.Load(); known != nil {
		scripts = append(scripts, *known...)
	}
	l.scripts.Store(&scripts)
	return made
}

func (l *library) known(kind kind, charges []charge) *script {
	if scripts := l.scripts.Load(); scripts != nil {
		for _, s := range *scripts {
			if s.kind == kind && s.fits(charges) {
				return s
			}
		}
	}
	return nil
}

// fits tells whether the script was composed for just these charges' algorithms.
func (s *script) fits(charges []charge) bool {
	if s.kind != many {
		if len(charges) != len(s.algorithms) {
			return false
		}
		for i, a := range s.algorithms {
			if !charges[i].plan.Limit.Algorithm.Is(a) {
				return false
			}
		}
		return true
	}
	for i := range charges {
		if !slices.ContainsFunc(s.algorithms, charges[i].plan.Limit.Algorithm.Is) {
			return false
		}
	}
	for _, a := range s.algorithms {
		if !slices.ContainsFunc(charges, func(c charge) bool { return c.plan.Limit.Algorithm.Is(a) }) {
			return false
		}
	}
	return true
}

// isRow tells whether a batch is of few charges on the numbers of one string.
func isRow(charges []charge) bool {
	if len(charges) > maxRow {
		return false
	}
	for i := range charges {
		limit := &charges[i].plan.Limit
		if limit.Algorithm.Collection || limit.Algorithm.Numbers > maxNumbers || limit.Group != charges[0].plan.Limit.Group ||
			charges[i].Key != charges[0].Key {
			return false
		}
	}
	return true
}

// constants are written into scripts where their names stand: a local in Lua costs time at every call.
var constants = map[string]int64{
	"SPEND": int64(algorithm.Spend), "DRAW": int64(algorithm.Draw), "PEEK": int64(algorithm.Peek),
	"FORCE": int64(algorithm.Force), "REFUND": int64(algorithm.Refund), "RESET": int64(algorithm.Reset),
	"MAX": algorithm.Max, "MAXSTALL": algorithm.MaxStall, "NEVER": algorithm.Never, "UNCHANGED": algorithm.Unchanged,
	"SLACK": slackTTL, "LIVES": slackTTL*1000 - 2000, "VIRTUALTTL": virtualTTL,
}

const (
	// slackTTL is how many ms keys live at least beyond their need: their state outlives a step of the clock up to
	// algorithm.MaxStall.
	slackTTL = algorithm.MaxStall / 1000

	// virtualTTL is added while the time is given and not read: TTLs run in real time.
	virtualTTL = 3_600_000
)

var capitals = regexp.MustCompile(`\b[A-Z]{3,}\b`)

// composeMany writes the script of many.lua for a set of algorithms.
func composeMany(algorithms []*algorithm.Algorithm) string {
	var asks, saves strings.Builder
	for i, a := range algorithms {
		number, rest := i, "who, unpack(cell, 7)"
		if a.Collection {
			number, rest = 128+i, "KEYS[key], ARGV[who] or ''"
			fmt.Fprintf(&saves, "\n    if algorithm == %d then %s_save(KEYS[key], unpack(result, 6)) end", number, a.Name)
		}
		fmt.Fprintf(&asks, "\n  if algorithm == %d then return { %s(p1, p2, p3, p4, mode, cost, patience, now, %s) } end",
			number, a.Name, rest)
	}
	harness := strings.NewReplacer("\n  ASK\n", asks.String()+"\n", "\n    SAVE\n", saves.String()+"\n").Replace(include(manyLua))
	var fragments strings.Builder
	for _, a := range algorithms {
		fragments.WriteString(a.Lua + "\n")
	}
	return finish(fragments.String() + harness)
}

// composeRow writes the script of row.lua or, for batches that go together, of rows.lua for a sequence of algorithms.
func composeRow(algorithms []*algorithm.Algorithm, together bool) string {
	text, get, poison := rowLua, "call('GET', key)", "return redis.error_reply('POISONED the state is malformed')"
	if together {
		text, get, poison = rowsLua, "get('GET', key)", "poisoned = true"
	}
	text = strings.NewReplacer("GET\n", get+"\n", "POISON\n", poison+"\n").Replace(uncomment(include(text)))
	if len(algorithms) == 1 {
		text = several.ReplaceAllString(text, "")
	} else {
		text = several.ReplaceAllString(text, "$1")
	}
	text = each.ReplaceAllStringFunc(text, func(block string) string {
		return repeat(each.FindStringSubmatch(block)[1], "", len(algorithms))
	})
	text = strings.ReplaceAll(text, "COUNT", strconv.Itoa(len(algorithms)))
	additive := !slices.ContainsFunc(algorithms, func(a *algorithm.Algorithm) bool { return !a.Additive })
	text = strings.ReplaceAll(text, "ADDITIVE", strconv.FormatBool(additive))
	text = lists.ReplaceAllStringFunc(text, func(list string) string {
		m := lists.FindStringSubmatch(list)
		return repeat(m[2], map[string]string{"list": ", ", "text": "", "all": " and ", "cat": " .. "}[m[1]], len(algorithms))
	})
	var fragments strings.Builder
	for i, a := range algorithms {
		text = strings.ReplaceAll(text, fmt.Sprintf("ALGORITHM%d(", i+1), a.Name+"(")
		if i == slices.IndexFunc(algorithms, a.Is) {
			fragments.WriteString(a.Lua + "\n")
		}
	}
	functions := functionsOf(uncomment(fragments.String()))
	return finish(inline(text, functions))
}

var (
	cells   = regexp.MustCompile(`(?ms)^@(clock|load|decide|save)\n(.*?)^@end(?:clock|load|decide|save)\n`)
	each    = regexp.MustCompile(`(?ms)^@each\n(.*?)^@endeach\n`)
	several = regexp.MustCompile(`(?ms)^@several\n(.*?)^@endseveral\n`)
	lists   = regexp.MustCompile(`@(list|text|all|cat)\{([^}]*)\}`)
)

// include writes the parts of cells.lua where a harness names them.
func include(harness string) string {
	for _, m := range cells.FindAllStringSubmatch(cellsLua, -1) {
		harness = strings.Replace(harness, "@"+m[1]+"\n", m[2], 1)
	}
	return harness
}

// repeat writes a template once per charge, with the charge's number for $.
func repeat(template, separator string, n int) string {
	var all []string
	for i := range n {
		all = append(all, strings.ReplaceAll(template, "$", strconv.Itoa(i+1)))
	}
	return strings.Join(all, separator)
}

// commands finds those that a script runs.
var commands = regexp.MustCompile(`\b(?:call|get)\('([A-Z]+)'`)

// withRights writes, where RIGHTS stands in a script, statements that end it if its user may not run one of its commands. A script that writes
// more than once needs them before it does: Redis would refuse the second write and keep the first. The error names the right, which Redis 7.0
// does not.
func withRights(text string) string {
	before, after, found := strings.Cut(text, "RIGHTS\n")
	if !found {
		return text
	}
	var checks strings.Builder
	checked := make(map[string]bool)
	for _, m := range commands.FindAllStringSubmatch(text, -1) {
		if arguments, ok := examples[m[1]]; ok && !checked[m[1]] {
			checked[m[1]] = true
			fmt.Fprintf(&checks, "not may('%s', %s) and '%s' or ", m[1], arguments, strings.ToLower(m[1]))
		}
	}
	return before + "local may = redis.acl_check_cmd\nlocal missing = " + checks.String() + "nil\n" +
		"if missing then return redis.error_reply('NOPERM the user needs the right +' .. missing) end\n" + after
}

// examples are arguments of the commands that scripts run, for asking whether the user may. They must be as many as the command takes: Redis 7.0
// crashes where its key is missing. A command that is not here is not asked for.
var examples = map[string]string{
	"GET": "KEYS[1]", "SET": "KEYS[1], ''", "SETRANGE": "KEYS[1], '0', ''", "DEL": "KEYS[1]", "PEXPIRE": "KEYS[1], '1'",
	"ZADD": "KEYS[1], '1', ''", "ZCARD": "KEYS[1]", "ZCOUNT": "KEYS[1], '1', '1'", "ZRANGE": "KEYS[1], '1', '1'",
	"ZRANGEBYSCORE": "KEYS[1], '1', '1'", "ZREM": "KEYS[1], ''", "ZREMRANGEBYRANK": "KEYS[1], '1', '1'",
	"ZREMRANGEBYSCORE": "KEYS[1], '1', '1'", "ZSCORE": "KEYS[1], ''", "INFO": "'memory'",
}

// finish puts the prelude's functions in line and its names in front, and numbers for constants.
func finish(body string) string {
	header, definitions, _ := strings.Cut(uncomment(preludeLua), "\nlocal function ")
	functions := functionsOf("local function " + definitions)
	body = inline(uncomment(body), functions)
	body = withRights(body)
	var used strings.Builder
	for _, line := range strings.Split(header, "\n") {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "local "), " = "); ok && mentions(body, name) {
			used.WriteString(line + "\n")
		}
	}
	body = capitals.ReplaceAllStringFunc(body, func(name string) string {
		if n, ok := constants[name]; ok {
			return strconv.FormatInt(n, 10)
		}
		return name
	})
	// The first line makes Redis refuse the whole script on a replica, without memory or without quorum, rather than
	// let a denial through because it writes nothing.
	return "#!lua\n" + used.String() + body
}
