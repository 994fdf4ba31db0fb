package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
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

// A script is composed, once, of a harness and the fragments of some algorithms: for row.lua and
// rows.lua of one per charge in their order, for many.lua of a set.
type script struct {
	Script
	algorithms []*algorithm.Algorithm
	kind       kind
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

// explain names the right that the script's user lacks: Redis 7.0 says only in which line it is
// needed.
func explain(script string, err error) error {
	reply, ok := errors.AsType[ReplyError](err)
	if !ok || !strings.Contains(string(reply), "can't run this command") {
		return err
	}
	_, where, _ := strings.Cut(string(reply), "on @user_script:")
	digits := len(where) - len(strings.TrimLeft(where, "0123456789"))
	n, _ := strconv.Atoi(where[:digits])
	for line := range strings.Lines(script) {
		if n--; n != 0 {
			continue
		}
		for command := range commandsIn(line) {
			return &missingRight{err, strings.ToLower(command)}
		}
	}
	return err
}

// commandsIn goes through the commands that a script runs: call('GET', …), or get('GET', …).
func commandsIn(script string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			before, rest, found := strings.Cut(script, "('")
			if !found {
				return
			}
			command, after, _ := strings.Cut(rest, "'")
			script = rest
			if !strings.HasSuffix(before, "call") && !strings.HasSuffix(before, "get") {
				continue
			}
			if strings.Trim(command, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" && !yield(command) {
				return
			}
			script = after
		}
	}
}

// A library holds the scripts composed so far.
type library struct {
	mu      sync.Mutex // held while scripts are added
	shelves [rows + 1][maxRow + 1]shelf
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
	var algorithms []*algorithm.Algorithm
	for i := range charges {
		if a := charges[i].plan.Limit.Algorithm; kind != many {
			algorithms = append(algorithms, a)
		} else {
			algorithms = add(algorithms, a)
		}
	}
	return l.makeLocked(kind, algorithms)
}

// known is the script of a kind that decides charges; of several, that of the fewest algorithms. It
// is nil if there is none.
func (l *library) known(kind kind, charges []charge) (best *script) {
	for _, s := range l.shelf(kind, len(charges)).all() {
		if !s.fits(charges) {
			continue
		}
		if kind != many {
			return s
		}
		if best == nil || len(s.algorithms) < len(best.algorithms) {
			best = s
		}
	}
	return best
}

// makeLocked returns the script of a kind for just these algorithms, composing it if need be.
func (l *library) makeLocked(kind kind, algorithms []*algorithm.Algorithm) *script {
	shelf := l.shelf(kind, len(algorithms))
	for _, s := range shelf.all() {
		if slices.EqualFunc(s.algorithms, algorithms, (*algorithm.Algorithm).Is) {
			return s
		}
	}
	made := &script{kind: kind, algorithms: algorithms}
	if kind == many {
		made.Text = composeMany(algorithms)
	} else {
		made.Text = composeRow(algorithms, kind == rows)
	}
	sum := sha1.Sum([]byte(made.Text))
	made.Digest = hex.EncodeToString(sum[:])
	shelf.add(made)
	return made
}

// A shelf holds scripts of one kind; for rows, those for one number of charges.
type shelf struct{ scripts atomic.Pointer[[]*script] }

func (l *library) shelf(kind kind, charges int) *shelf {
	if kind == many {
		charges = 0
	}
	return &l.shelves[kind][charges]
}

func (s *shelf) all() []*script {
	if scripts := s.scripts.Load(); scripts != nil {
		return *scripts
	}
	return nil
}

func (s *shelf) add(made *script) {
	scripts := append(slices.Clone(s.all()), made)
	s.scripts.Store(&scripts)
}

// fits tells whether the script can decide these charges: one for rows if it has exactly their
// algorithms, in order; one for any batches if it has all of them.
func (s *script) fits(charges []charge) bool {
	if s.kind != many && len(charges) != len(s.algorithms) {
		return false
	}
	for i := range charges {
		a := charges[i].plan.Limit.Algorithm
		if s.kind != many && !a.Is(s.algorithms[i]) || s.kind == many && !slices.ContainsFunc(s.algorithms, a.Is) {
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
		plan := charges[i].plan
		if !fitsRow(plan) || plan.Limit.Group != charges[0].plan.Limit.Group || charges[i].Key != charges[0].Key {
			return false
		}
	}
	return true
}

// fitsRow tells whether a limit's state is few numbers.
func fitsRow(plan *penstock.Plan) bool {
	return !plan.Limit.Algorithm.Collection && plan.Limit.Algorithm.Numbers <= maxNumbers
}

// constants are written into scripts where their names stand: a local in Lua costs time at every
// call.
var constants = texts(map[string]int64{
	"SPEND": int64(algorithm.Spend), "DRAW": int64(algorithm.Draw), "PEEK": int64(algorithm.Peek),
	"FORCE": int64(algorithm.Force), "REFUND": int64(algorithm.Refund), "RESET": int64(algorithm.Reset),
	"MAX": algorithm.Max, "MAXSTALL": algorithm.MaxStall, "NEVER": algorithm.Never, "UNCHANGED": algorithm.Unchanged,
	"MAXPERIOD": algorithm.MaxPeriod, "SLACK": slackTTL, "LIVES": slackTTL*1000 - 2000, "VIRTUALTTL": virtualTTL,
})

func texts(numbers map[string]int64) map[string]string {
	all := make(map[string]string, len(numbers))
	for name, n := range numbers {
		all[name] = strconv.FormatInt(n, 10)
	}
	return all
}

const (
	// slackTTL is how many ms keys live at least beyond their need: their state outlives a step of the
	// clock up to algorithm.MaxStall.
	slackTTL = algorithm.MaxStall / 1000

	// virtualTTL is added while the time is given and not read: TTLs run in real time.
	virtualTTL = 3_600_000
)

// harnesses are the templates without comments, with the parts of cells.lua that they name filled
// in.
var harnesses = sync.OnceValue(func() (h struct{ row, rows, many string }) {
	cells := uncomment(cellsLua)
	include := func(harness string) string {
		harness = uncomment(harness)
		for _, part := range [...]string{"clock", "load", "decide", "save"} {
			_, text, _, _ := cutBlock(cells, part)
			harness = strings.Replace(harness, "@"+part+"\n", text, 1)
		}
		return replaceNames(replaceAllCalls(harness, preludeOf().functions), constants)
	}
	h.row = strings.NewReplacer("GET\n", "call('GET', key)\n",
		"POISON\n", "return redis.error_reply('POISONED the state is malformed')\n").Replace(include(rowLua))
	h.rows = strings.NewReplacer("GET\n", "get('GET', key)\n", "POISON\n", "poisoned = true\n").Replace(include(rowsLua))
	h.many = include(manyLua)
	return h
})

// A prelude is what prelude.lua defines.
type prelude struct {
	names     []string // lines, "local name = …"
	functions []function
}

var preludeOf = sync.OnceValue(func() prelude {
	header, definitions, _ := strings.Cut(uncomment(preludeLua), "\nlocal function ")
	definitions = replaceNames("local function "+definitions, constants)
	return prelude{strings.Split(header, "\n"), functionsOf(definitions, nil)}
})

// composeMany writes the script of many.lua for a set of algorithms.
func composeMany(algorithms []*algorithm.Algorithm) string {
	var fragments, asks, saves strings.Builder
	for i, a := range algorithms {
		number, rest := i, "who, unpack(cell, 7)"
		if a.Collection {
			number, rest = 128+i, "KEYS[key], ARGV[who] or ''"
			fmt.Fprintf(&saves, "    if algorithm == %d then %s_save(KEYS[key], unpack(result, 6)) end\n", number, a.Name)
		}
		fmt.Fprintf(&asks, "  if algorithm == %d then return { %s(p1, p2, p3, p4, mode, cost, patience, now, %s) } end\n",
			number, a.Name, rest)
		fragments.WriteString(a.Lua + "\n")
	}
	harness := strings.NewReplacer("  ASK\n", asks.String(), "    SAVE\n", saves.String()).Replace(harnesses().many)
	return finish(inline(replaceNames(uncomment(fragments.String()), constants), preludeOf().functions) + harness)
}

// composeRow writes the script of row.lua or, for batches that go together, of rows.lua for a
// sequence of algorithms.
func composeRow(algorithms []*algorithm.Algorithm, together bool) string {
	text, n := harnesses().row, len(algorithms)
	if together {
		text = harnesses().rows
	}
	text = replaceBlocks(text, "each", func(block string) string { return repeat(block, "", n) })
	text = expandLists(text, n)
	additive := !slices.ContainsFunc(algorithms, func(a *algorithm.Algorithm) bool { return !a.Additive })
	names := []string{"COUNT", strconv.Itoa(n), "ADDITIVE", strconv.FormatBool(additive)}
	var fragments strings.Builder
	for i, a := range algorithms {
		names = append(names, fmt.Sprintf("ALGORITHM%d(", i+1), a.Name+"(")
		if i == slices.IndexFunc(algorithms, a.Is) {
			fragments.WriteString(a.Lua + "\n")
		}
	}
	text = strings.NewReplacer(names...).Replace(text)
	prelude := preludeOf()
	functions := functionsOf(replaceNames(uncomment(fragments.String()), constants), prelude.functions)
	text = inline(text, functions)
	if slices.ContainsFunc(functions, prelude.calledIn) {
		text = inline(text, prelude.functions)
	}
	return finish(text)
}

// withRights replaces RIGHTS in a script by statements that end the script if its user may not run
// one of its commands. A script that writes more than once needs them before its first write:
// otherwise Redis would refuse the second write and keep the first. The error names the right,
// which Redis 7.0 does not.
func withRights(text string) string {
	before, after, found := strings.Cut(text, "RIGHTS\n")
	if !found {
		return text
	}
	var checks strings.Builder
	checked := make(map[string]bool)
	for command := range commandsIn(text) {
		if arguments, ok := examples[command]; ok && !checked[command] {
			checked[command] = true
			fmt.Fprintf(&checks, "not may('%s', %s) and '%s' or ", command, arguments, strings.ToLower(command))
		}
	}
	return before + "local may = redis.acl_check_cmd\nlocal missing = " + checks.String() + "nil\n" +
		"if missing then return redis.error_reply('NOPERM the user needs the right +' .. missing) end\n" + after
}

// examples are arguments for the commands that scripts run, to ask whether the user may run them.
// They must be as many as the command takes: Redis 7.0 crashes if the key is missing. Commands that
// are not here are not checked.
var examples = map[string]string{
	"GET": "KEYS[1]", "SET": "KEYS[1], ''", "SETRANGE": "KEYS[1], '0', ''", "DEL": "KEYS[1]", "PEXPIRE": "KEYS[1], '1'",
	"ZADD": "KEYS[1], '1', ''", "ZCARD": "KEYS[1]", "ZCOUNT": "KEYS[1], '1', '1'", "ZRANGE": "KEYS[1], '1', '1'",
	"ZRANGEBYSCORE": "KEYS[1], '1', '1'", "ZREM": "KEYS[1], ''", "ZREMRANGEBYRANK": "KEYS[1], '1', '1'",
	"ZREMRANGEBYSCORE": "KEYS[1], '1', '1'", "ZSCORE": "KEYS[1], ''", "INFO": "'memory'",
}

// finish puts the prelude's names in front.
func finish(body string) string {
	// The first line makes Redis refuse the whole script on a replica, without memory or without
	// quorum, rather than let a denial through because it writes nothing.
	body = withRights(body)
	text := "#!lua\n"
	for _, line := range preludeOf().names {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "local "), " = "); ok && mentions(body, name) {
			text += line + "\n"
		}
	}
	return text + body
}

// calledIn tells whether a function calls one of the prelude's.
func (p prelude) calledIn(f function) bool {
	return slices.ContainsFunc(p.functions, func(of function) bool { return f.names[of.name] })
}

// cutBlock cuts a text into what is before, inside and after the lines "@name" and "@endname".
func cutBlock(text, name string) (before, inside, after string, found bool) {
	before, rest, found := strings.Cut(text, "@"+name+"\n")
	inside, after, _ = strings.Cut(rest, "@end"+name+"\n")
	return before, inside, after, found
}

// replaceBlocks replaces each block by what other returns for it.
func replaceBlocks(text, name string, other func(block string) string) string {
	var out strings.Builder
	out.Grow(4 * len(text))
	for {
		before, block, after, found := cutBlock(text, name)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString(other(block))
		text = after
	}
}

// separators stand between what a list in one line is written out to.
var separators = map[string]string{"list": ", ", "text": "", "all": " and ", "cat": " .. "}

// expandLists expands each "@list{…}", and the others in separators.
func expandLists(text string, n int) string {
	var out strings.Builder
	out.Grow(2 * len(text))
	for {
		before, rest, found := strings.Cut(text, "@")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, rest, _ := strings.Cut(rest, "{")
		template, rest, _ := strings.Cut(rest, "}")
		out.WriteString(repeat(template, separators[name], n))
		text = rest
	}
}

// repeat writes a template once per charge, with the charge's number for $.
func repeat(template, separator string, n int) string {
	parts := strings.Split(template, "$")
	var out strings.Builder
	for i := range n {
		if i > 0 {
			out.WriteString(separator)
		}
		out.WriteString(strings.Join(parts, strconv.Itoa(i+1)))
	}
	return out.String()
}
