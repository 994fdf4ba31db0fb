// Package luagen generates the Lua scripts of redisstore. A script is made of four parts:
//
//   - prelude.lua: short names of Redis functions, and helpers for the other parts
//   - the fragment of each of its algorithms (algorithm.Algorithm.Lua)
//   - a harness, which is the main program: single.lua, uniform.lua or mixed.lua
//   - storage.lua: the code that reads and writes stored strings, for single.lua and uniform.lua
//
// Harnesses are templates (see template.go). Functions are inlined (see inline.go), because a
// script defines its functions again in every call. Defining a function costs as much as running
// it.
package luagen

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/penstock/penstock/algorithm"
)

var (
	//go:embed prelude.lua
	preludeLua string
	//go:embed storage.lua
	storageLua string
	//go:embed single.lua
	singleLua string
	//go:embed uniform.lua
	uniformLua string
	//go:embed mixed.lua
	mixedLua string
)

const (
	MaxCharges = 4 // of one batch in Single and Uniform
	MaxNumbers = 6 // of the state of one limit in these scripts

	// MaxString is the longest string that scripts read, in bytes. A longer one is malformed. It
	// bounds the time of a script. 64 limits with the largest states have 29,700 bytes.
	MaxString = 64 << 10

	// Mixed numbers its algorithms from 0, in their order. FirstCollection is added to the number of
	// each algorithm whose state is a collection, such as a sorted set.
	FirstCollection = 128

	// ExtendedMode is added to the mode of a charge that has an extension: a fourth parameter, a
	// patience, a holder or a receipt.
	ExtendedMode = 128

	// DryRunMode is added to the mode of each charge in a batch that must charge nothing.
	DryRunMode = 64

	// CountedMode is added to the mode of each charge that counts if its batch is denied, or if its
	// batch is a dry run. Only Mixed knows it.
	CountedMode = 32
)

// The reply of a uniform script is a list of numbers. For each batch, in order, it has one of these
// kinds and then the numbers that the comment of the kind names. A batch whose first number is not
// negative has no kind: remaining and reset of each charge follow each other. Then the whole cost
// was granted without a wait.
const (
	ReplyFull    = -1 // a status of each charge
	ReplyCorrupt = -2 // no numbers: the stored string is malformed

	// Run-length encoding: the number of further batches with results like that of the last one. Then,
	// for each charge: by how much Remaining decreases and ResetAfter increases from batch to batch.
	ReplyRepeat = -3

	ReplyReceipts = -4 // remaining, reset and receipt of each charge; otherwise like a batch without a kind
	ReplyDenied   = -5 // remaining, retry and reset of each charge: nothing was granted
)

const (
	// slackTTL, in ms, is added to TTLs. So state outlives a jump of the clock of up to
	// algorithm.MaxStall, which is in µs.
	slackTTL = algorithm.MaxStall / 1000

	// virtualTTL, an hour in ms, is added to TTLs if the caller gives the time, because TTLs run by
	// the server's clock.
	virtualTTL = 3_600_000

	// Each key lives at least minSlack µs longer than its state needs. minSlack is 2 ms less than
	// slackTTL, because TTLs are whole ms.
	minSlack = slackTTL*1000 - 2000
)

// Single generates a script that decides one batch. The batch has one charge for each of these
// algorithms, in this order. The state of all charges is in one string. Or there is one algorithm,
// which keeps its state in a set.
func Single(algorithms []*algorithm.Algorithm) string {
	if algorithms[0].IsCollection() {
		return unroll(harnesses().set, algorithms)
	}
	return unroll(harnesses().single, algorithms)
}

// Uniform generates a script that decides several batches, each like the batch of Single. The
// batches may use several strings.
func Uniform(algorithms []*algorithm.Algorithm) string {
	return unroll(harnesses().uniform, algorithms)
}

// Mixed generates a script that decides batches of any form, whose algorithms are among these.
func Mixed(algorithms []*algorithm.Algorithm) string {
	var fragments, steps, saves, receipts strings.Builder
	for i, a := range algorithms {
		// The first six elements of a cell and of a result are the outcome; see mixed.lua.
		receipt := ""
		if a.HasExactRefunds() {
			receipt = "receipt, "
		}
		number, lastArguments := i, "holder, "+receipt+"sixof(cell)"
		if a.Numbers() > MaxNumbers {
			lastArguments = "holder, " + receipt + "unpack(cell, 7)"
		}
		if a.IsCollection() {
			number, lastArguments = FirstCollection+i, "KEYS[key], ARGV[holder] or '', receipt"
			fmt.Fprintf(&saves, "    if algorithm == %d then %s_save(KEYS[key], unpack(result, 9)) end\n", number, a.Name())
		}
		fmt.Fprintf(&steps, "  if algorithm == %d then return { %s(p1, p2, p3, p4, mode, cost, patience, now, %s) } end\n",
			number, a.Name(), lastArguments)
		if a.HasExactRefunds() {
			fmt.Fprintf(&receipts, "  if algorithm == %d then return result[%d] end\n", number, 6+a.ReceiptNumber())
		}
		fragments.WriteString(a.Lua() + "\n")
	}
	harness := keepBlocks(harnesses().mixed, "sets", saves.Len() > 0)
	harness = strings.NewReplacer("  STEP\n", steps.String(), "    SAVE\n", saves.String(), "  RECEIPTOF\n", receipts.String()).Replace(harness)
	// The harness checks all rights at once, so the fragments need not.
	functions := replaceRights(removeComments(fragments.String()), func([]string) string { return "" })
	return finish(inline(replaceNames(functions, constants), preludeOf().functions) + harness)
}

// unroll expands a harness for a sequence of algorithms.
func unroll(text string, algorithms []*algorithm.Algorithm) string {
	n := len(algorithms)
	hasOther := slices.ContainsFunc(algorithms, func(a *algorithm.Algorithm) bool { return a != algorithm.TokenBucket })
	text = keepBlocks(text, "buckets", !hasOther)
	text = replaceBlocks(text, "one", func(block string) string { return repeat(block, "", max(2-n, 0)) })
	text = keepBlocks(text, "several", n > 1)
	text = replaceBlocks(text, "each", func(block string) string { return repeat(block, "", n) })
	text = expandLists(text, n)
	isAdditive := !slices.ContainsFunc(algorithms, func(a *algorithm.Algorithm) bool { return !a.IsAdditive() })
	replacements := []string{"COUNT", strconv.Itoa(n), "ADDITIVE", strconv.FormatBool(isAdditive)}
	var fragments strings.Builder
	for i, a := range algorithms {
		receipt, newReceipt := "", "0"
		if a.HasExactRefunds() {
			receipt, newReceipt = fmt.Sprintf("receipt%d, ", i+1), fmt.Sprintf("t%d%d", i+1, a.ReceiptNumber())
		}
		replacements = append(replacements, fmt.Sprintf("ALGORITHM%d(", i+1), a.Name()+"(", fmt.Sprintf("SAVE%d(", i+1), a.Name()+"_save(",
			fmt.Sprintf("NEWRECEIPT%d", i+1), newReceipt, fmt.Sprintf("RECEIPT%d", i+1), receipt)
		isRepeated := slices.ContainsFunc(algorithms[:i], func(earlier *algorithm.Algorithm) bool { return earlier.Name() == a.Name() })
		if !isRepeated {
			fragments.WriteString(a.Lua() + "\n")
		}
	}
	text = strings.NewReplacer(replacements...).Replace(text)
	prelude := preludeOf()
	functions := functionsOf(replaceNames(removeComments(fragments.String()), constants), prelude.functions)
	text = inline(text, functions)
	if slices.ContainsFunc(functions, prelude.isCalledIn) {
		text = inline(text, prelude.functions)
	}
	return finish(text)
}

// finish adds the check of rights, and the definitions of the prelude that the script uses.
func finish(body string) string {
	// With the line #!lua, Redis rejects the whole script on a replica, when memory is full, and when
	// too few replicas are connected. Without it Redis would reject only writes, so a script that
	// denies would still answer.
	body = CheckRights(body)
	text := "#!lua\n"
	for _, line := range preludeOf().names {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "local "), " = "); ok && hasName(body, name) {
			text += line + "\n"
		}
	}
	return text + body
}

// Impossible is the RetryAfter of a state that no store writes. It is larger than any number of a
// state, so readers of replies take the state as corrupt.
const Impossible = 1 << 54

// constants has the numbers that replace names in scripts. A local variable would cost time in
// every call.
var constants = decimals(map[string]int64{
	"SPEND": int64(algorithm.Spend), "DRAW": int64(algorithm.Draw), "PEEK": int64(algorithm.Peek),
	"FORCE": int64(algorithm.Force), "REFUND": int64(algorithm.Refund), "RESET": int64(algorithm.Reset),
	"ATTEMPT": int64(algorithm.Attempt),
	"MAX":     algorithm.Max, "MAXSTALL": algorithm.MaxStall, "NEVER": algorithm.Never, "UNCHANGED": algorithm.Unchanged,
	"IMPOSSIBLE": Impossible, "MAXPARTS": algorithm.MaxParts, "MAXSTRING": MaxString, "MAXPERIOD": algorithm.MaxPeriod, "SLACK": slackTTL, "MINSLACK": minSlack, "VIRTUALTTL": virtualTTL,
	"FIRSTCOLLECTION": FirstCollection, "EXTENDED": ExtendedMode, "DRYRUN": DryRunMode, "COUNTED": CountedMode,
	"REPLYDENIED": ReplyDenied, "REPLYFULL": ReplyFull, "REPLYCORRUPT": ReplyCorrupt, "REPLYREPEAT": ReplyRepeat,
	"REPLYRECEIPTS": ReplyReceipts,
})

func decimals(numbers map[string]int64) map[string]string {
	all := make(map[string]string, len(numbers))
	for name, n := range numbers {
		all[name] = strconv.FormatInt(n, 10)
	}
	return all
}

// harnesses returns the templates of scripts. Comments are removed, and the blocks of storage.lua
// that a template names are inserted.
var harnesses = sync.OnceValue(func() (h struct{ single, set, uniform, mixed string }) {
	storage := removeComments(storageLua)
	include := func(harness string) string {
		harness = removeComments(harness)
		before, allow, after, _ := cutBlock(harness, "allow")
		before, deny, after, _ := cutBlock(before+after, "deny")
		harness = before + after
		for _, part := range [...]string{"clock", "short", "load", "decide", "save", "decideset", "saveset"} {
			_, text, _, _ := cutBlock(storage, part)
			harness = strings.Replace(harness, "@"+part+"\n", text, 1)
		}
		harness = strings.NewReplacer("ALLOW\n", allow, "DENY\n", deny).Replace(harness)
		return replaceNames(replaceAllCalls(harness, preludeOf().functions), constants)
	}
	h.single = strings.NewReplacer("GET\n", "call('GET', key)\n",
		"FAIL\n", "return redis.error_reply('CORRUPT the state of this key is malformed')\n").Replace(include(singleLua))
	// A set is not loaded as a string, and has blocks of its own.
	h.set = include(strings.NewReplacer("local stored = GET\n", "", "@short\n", "", "@load\n", "", "@decide\n", "@decideset\n", "@save\n", "@saveset\n").Replace(singleLua))
	// In uniform.lua, save has the outcome of the last step that was accepted.
	_, save, _, _ := cutBlock(storage, "save")
	save = replaceNames(save, map[string]string{"keep": "keepLast", "reset": "resetLast", "t": "s"})
	h.uniform = strings.NewReplacer("GET\n", "loaded[index] or get('GET', key)\n", "FAIL\n", "isCorrupt = true\n").Replace(include(strings.Replace(uniformLua, "@save\n", save, 1)))
	h.mixed = include(mixedLua)
	return h
})

type prelude struct {
	names     []string // lines such as "local call = redis.call"
	functions []function
}

var preludeOf = sync.OnceValue(func() prelude {
	header, definitions, _ := strings.Cut(removeComments(preludeLua), "\nlocal function ")
	definitions = replaceNames("local function "+definitions, constants)
	return prelude{strings.Split(header, "\n"), functionsOf(definitions, nil)}
})

func (p prelude) isCalledIn(f function) bool {
	return slices.ContainsFunc(p.functions, func(own function) bool { return f.names[own.name] })
}
