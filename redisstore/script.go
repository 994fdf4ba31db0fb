package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/algorithm"
)

var (
	//go:embed prelude.lua
	preludeLua string
	//go:embed one.lua
	oneLua string
	//go:embed many.lua
	manyLua string
)

// maxNumbers is how many numbers of state one.lua can carry.
const maxNumbers = 5

// A script is composed of the fragments of some algorithms and a harness, once.
type script struct {
	algorithms []*algorithm.Algorithm // of different names; their order is that of their numbers in many.lua
	one        bool
	text       string
	digest     string
}

// index is an algorithm's number in the script. Collections have numbers from 128 on.
func (s *script) index(a *algorithm.Algorithm) byte {
	for i, own := range s.algorithms {
		if own.Name == a.Name {
			if a.Collection {
				return byte(128 + i)
			}
			return byte(i)
		}
	}
	panic("unreachable: the script was chosen by its algorithms")
}

func (s *script) has(a *algorithm.Algorithm) bool {
	for _, own := range s.algorithms {
		if own == a || own.Name == a.Name {
			return true
		}
	}
	return false
}

// A library holds the scripts composed so far: one per set of algorithms in use.
type library struct {
	mu      sync.Mutex
	scripts atomic.Pointer[[]*script]
}

// find returns the script that decides the plans of a call, composing it if need be.
func (l *library) find(charges []charge, one bool) *script {
	if scripts := l.scripts.Load(); scripts != nil {
		for _, s := range *scripts {
			if s.fits(charges, one) {
				return s
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var scripts []*script
	if known := l.scripts.Load(); known != nil {
		scripts = *known
	}
	for _, s := range scripts {
		if s.fits(charges, one) {
			return s
		}
	}
	made := &script{one: one}
	for i := range charges {
		if a := charges[i].plan.Limit.Algorithm; !made.has(a) {
			made.algorithms = append(made.algorithms, a)
		}
	}
	made.text = compose(made.algorithms, one)
	sum := sha1.Sum([]byte(made.text))
	made.digest = hex.EncodeToString(sum[:])
	scripts = append(scripts[:len(scripts):len(scripts)], made)
	l.scripts.Store(&scripts)
	return made
}

// fits tells whether the script has the algorithms of the charges and no others.
func (s *script) fits(charges []charge, one bool) bool {
	if s.one != one {
		return false
	}
	for i := range charges {
		if !s.has(charges[i].plan.Limit.Algorithm) {
			return false
		}
	}
	if one {
		return true
	}
	for _, a := range s.algorithms {
		used := false
		for i := range charges {
			used = used || charges[i].plan.Limit.Algorithm.Name == a.Name
		}
		if !used {
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
	"VIRTUALTTL": virtualTTL,
}

// virtualTTL is how many ms longer keys are kept while the time is given and not read: their TTL runs in real time.
const virtualTTL = 3_600_000

var (
	capitals = regexp.MustCompile(`\b[A-Z]{3,}\b`)
	comments = regexp.MustCompile(`(?m)\s*--.*$`)
	declares = regexp.MustCompile(`^local (?:function )?(\w+)`)
)

// compose writes a script: what is needed of the prelude, the algorithms' fragments, the harness.
func compose(algorithms []*algorithm.Algorithm, one bool) string {
	var fragments strings.Builder
	for _, a := range algorithms {
		fragments.WriteString(a.Lua)
		fragments.WriteString("\n")
	}
	harness := strings.ReplaceAll(oneLua, "ALGORITHM", algorithms[0].Name)
	if !one {
		harness = strings.NewReplacer("\n  ASK\n", asks(algorithms), "\n    SAVE\n", saves(algorithms)).Replace(manyLua)
	}
	body := comments.ReplaceAllString(fragments.String()+harness, "")
	parts := strings.Split(comments.ReplaceAllString(preludeLua, ""), "\nlocal ")
	for i := len(parts) - 1; i > 0; i-- {
		part := "local " + strings.TrimSpace(parts[i]) + "\n"
		name := declares.FindStringSubmatch(part)[1]
		if regexp.MustCompile(`\b` + name + `\b`).MatchString(body) {
			body = part + body
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
	return "#!lua\n" + body
}

// asks is the part of many.lua that calls the algorithm of a number.
func asks(algorithms []*algorithm.Algorithm) string {
	var s strings.Builder
	for i, a := range algorithms {
		number, rest := i, "who, unpack(cell, 7)"
		if a.Collection {
			number, rest = 128+i, "KEYS[key], ARGV[who] or ''"
		}
		fmt.Fprintf(&s, "\n  if algorithm == %d then return { %s(p1, p2, p3, p4, mode, cost, patience, now, %s) } end",
			number, a.Name, rest)
	}
	return s.String() + "\n"
}

// saves is the part of many.lua that saves a collection. The last results of a step are passed on, nil or not.
func saves(algorithms []*algorithm.Algorithm) string {
	var s strings.Builder
	for i, a := range algorithms {
		if a.Collection {
			fmt.Fprintf(&s, "\n    if algorithm == %d then %s_save(KEYS[key], unpack(result, 6)) end", 128+i, a.Name)
		}
	}
	return s.String() + "\n"
}
