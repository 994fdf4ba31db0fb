// Package algorithm is the arithmetic of rate limiting: pure steps from a state and an ask to an
// outcome and the next state. It knows no clock, no store and no network, and it works in integers
// only.
//
// Each algorithm stands in two files that are read side by side: a Go step (tokenbucket.go) and its
// Lua twin (tokenbucket.lua), with the same names in the same order. The tests of package
// redisstore hold the two equal.
//
// # The numbers contract
//
// Redis' Lua has doubles only, so every quantity is an integer from 0 up to [Max], times are
// microseconds, and a division is [math.fmod]-exact there and int64 division here. Rates are
// rationals that are never rounded: 3 per second is 3 units a second and not one per 333,333 µs.
package algorithm

import (
	"errors"
	"fmt"
	"math/bits"
	"time"
)

const (
	// Max bounds every quantity in a state, a parameter or an ask, so that sums of two stay below
	// 2^53.
	Max = 1 << 52

	// MaxStall is how far a clock may step back, in µs, before a state written by the later clock is
	// mended. Up to here the state is believed and time stands still for it; beyond, its time becomes
	// the present one.
	MaxStall = 5_000_000

	// MaxTime is the latest moment that a step can compute with, in µs since the epoch: in September
	// 2112.
	MaxTime = Max

	// Never as RetryAfter says that the cost cannot fit at any time.
	Never = -1

	// Unchanged as Keep says that the stored state stays as it is.
	Unchanged = -1
)

// A Mode says what an ask does with its cost.
type Mode uint8

const (
	Spend  Mode = iota // all of the cost, or nothing
	Draw               // as much of the cost as fits, at least one unit
	Peek               // nothing: answers what Spend would
	Force              // all of the cost, even what does not fit
	Refund             // gives units back, never more than are used
	Reset              // forgets everything
)

var modeNames = [...]string{"spend", "draw", "peek", "force", "refund", "reset"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// An Ask is one question to one state.
type Ask struct {
	Mode     Mode
	Cost     int64  // units; 0 asks without spending
	Patience int64  // µs that the caller would wait to be let in
	Holder   string // who asks: the holder of a slot, the owner of a place in a queue
}

// need is the least cost that makes the ask worth granting.
func (a Ask) need() int64 {
	if a.Mode == Draw {
		return min(a.Cost, 1)
	}
	return a.Cost
}

// An Outcome answers an Ask. All times are µs from now.
type Outcome struct {
	Granted    int64 // units taken, or whole units given back by Refund, which may give back a fraction more
	Remaining  int64 // units that Spend would find now
	RetryAfter int64 // 0: granted. Otherwise the first moment at which the same ask is granted, if nobody else asks; or Never
	ResetAfter int64 // until the state equals a fresh one
	Wait       int64 // until the caller may go ahead; above 0 only within the ask's patience
	Keep       int64 // how long the new state must be kept; 0: it equals a fresh one; Unchanged: there is no new state
}

// OK tells whether the ask was granted.
func (o Outcome) OK() bool { return o.RetryAfter == 0 }

// A Limit is what an algorithm is asked to enforce.
type Limit struct {
	Count  int64 // units
	Period int64 // µs
	Burst  int64 // units at once, where the algorithm has such a notion; 0 takes its default
}

// Params are the four numbers that a step computes with. Their meaning is the algorithm's own; the
// names of the Lua twin's first four arguments tell it.
type Params [4]int64

// A Step decides one ask. It is pure: the same arguments give the same results, and s is never
// written to.
//
// A denial returns s itself with Keep = Unchanged. The exception is a state that had to be mended,
// because the clock stepped back by more than MaxStall or the limit changed in a way that only a
// new state can remember: it is returned with Keep set, and stores save it although nothing was
// granted.
type Step[S any] func(s S, p Params, a Ask, now int64) (Outcome, S)

// A stepper is a Step that writes its outcome where it is wanted and takes pointers, since to pass
// large values costs more than to compute with them.
type stepper[S any] func(s S, p *Params, a *Ask, now int64, out *Outcome) S

// Cells holds many states of one algorithm densely, addressed by small numbers.
type Cells interface {
	Add() uint32
	Remove(i uint32) // makes i free for Add; forgets its state
	// Step decides a on state i and writes the outcome. The new state is kept if commit is set, or if
	// the denial mended it. What the pointers point to is not kept; they are pointers because large
	// values are slow to pass.
	Step(i uint32, p *Params, a *Ask, now int64, commit bool, out *Outcome)
}

// An Algorithm is a step with everything that a store must know of it. Make one with Define.
type Algorithm struct {
	// Name tags stored state and names the Lua function: a lower-case identifier, unique among the
	// algorithms in use.
	Name string

	// Title is its name in configurations, metrics and messages, such as "anchored-window".
	// Algorithms that share a step can have different Titles. Default: Name.
	Title string

	// Windows names windows that have no fixed length, such as "calendar month". It is empty for
	// all others.
	Windows string

	// Lua is the step's twin: a chunk that defines a local function called Name. See
	// docs/adding-an-algorithm.md.
	Lua string

	// Collection says that the twin keeps its state in a sorted set by itself, rather than in numbers
	// that the script's harness loads and saves.
	Collection bool

	// Numbers is the most numbers that the twin's state has: 1 to 120. Six or fewer take a faster
	// path. All are up to Max, the third is up to MaxPeriod.
	Numbers int

	// Holds says that asks need a Holder.
	Holds bool

	// Owned says that a Refund gives back only what its Holder has taken.
	Owned bool

	// Additive says that Spends add up: where one of k times a cost is granted, with no patience, k of
	// the cost by itself at the same moment are granted too, and leave the same state and the same
	// last outcome. Each of these has the cost less remaining than the one before, and a reset that is
	// later by the quotient of the whole, rounded down or up. Stores then may decide many callers at
	// once.
	Additive bool

	// Prepare checks a limit and computes its parameters. A mistake is reported in the words of the
	// limit's author.
	Prepare func(Limit) (Params, error)

	// At adapts parameters to the present, where they depend on it (calendars); nil elsewhere.
	At func(p Params, now int64) Params

	// Bookable says that patience can book the future.
	Bookable bool

	// Again tells, by what is left after a grant and until its reset, when the cost would be granted
	// to an ask at the same moment, without patience: its RetryAfter, or 1 µs less. 0: at once, or
	// never, or that is not known. p are those of Prepare, so it does not go with At. It is nil where
	// an Outcome does not tell.
	Again func(p *Params, cost, remaining, reset int64) int64

	NewCells func() Cells
}

// Is tells whether two algorithms are the same one, perhaps with other settings: whether they share
// a step and stored state.
func (a *Algorithm) Is(other *Algorithm) bool { return a == other || a.Name == other.Name }

// Define makes an algorithm of a step, its Lua twin and the function that turns limits into its
// parameters. Its state has one to six numbers, unless Numbers is set afterwards.
func Define[S any](name, lua string, step Step[S], prepare func(Limit) (Params, error)) *Algorithm {
	return define(name, lua, func(s S, p *Params, a *Ask, now int64, out *Outcome) (next S) {
		*out, next = step(s, *p, *a, now)
		return next
	}, prepare)
}

func define[S any](name, lua string, step stepper[S], prepare func(Limit) (Params, error)) *Algorithm {
	return &Algorithm{
		Name: name, Title: name, Lua: lua, Prepare: prepare, Numbers: 6,
		NewCells: func() Cells { return &cells[S]{step: step} },
	}
}

func titled(title string, a *Algorithm) *Algorithm {
	a.Title = title
	return a
}

func additive(a *Algorithm) *Algorithm {
	a.Additive = true
	return a
}

type cells[S any] struct {
	step   stepper[S]
	states []S
	free   []uint32
}

func (c *cells[S]) Add() uint32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		return i
	}
	var fresh S
	c.states = append(c.states, fresh)
	return uint32(len(c.states) - 1)
}

func (c *cells[S]) Remove(i uint32) {
	var fresh S
	c.states[i] = fresh
	c.free = append(c.free, i)
}

func (c *cells[S]) Step(i uint32, p *Params, a *Ask, now int64, commit bool, out *Outcome) {
	next := c.step(c.states[i], p, a, now, out)
	if out.Keep != Unchanged && (commit || !out.OK()) {
		c.states[i] = next
	}
}

// CheckTime returns an error unless steps can compute with now, in µs since the epoch: it must be
// above 0 and at most MaxTime.
func CheckTime(now int64) error {
	if now <= 0 || now > MaxTime {
		return fmt.Errorf("the time is %v; it must be from 1970-01-01 to %v", time.UnixMicro(now).UTC().Format(time.DateTime),
			time.UnixMicro(MaxTime).UTC().Format(time.DateOnly))
	}
	return nil
}

// HolderID is the number by which the steps over numbers know a holder: 0 for none, 52 bits of
// FNV-1a otherwise. Two holders with one number may take each other's place when they refund, never
// more.
func HolderID(holder string) int64 {
	if holder == "" {
		return 0
	}
	h := uint64(14695981039346656037)
	for i := 0; i < len(holder); i++ {
		h = (h ^ uint64(holder[i])) * 1099511628211
	}
	return int64(h>>12) | 1
}

// take answers an ask on a counter that has used units of count: what is granted, what is used
// afterwards, and whether the ask fits.
func take(a Ask, used, count int64) (granted, after int64, fits bool) {
	switch a.Mode {
	case Spend:
		if a.Cost == 0 || a.Cost <= count-used {
			return a.Cost, used + a.Cost, true
		}
		return 0, used, false
	case Draw:
		granted = min(a.Cost, max(count-used, 0))
		return granted, used + granted, granted > 0 || a.Cost == 0
	case Peek:
		return 0, used, a.Cost == 0 || a.Cost <= count-used
	case Force:
		granted = min(a.Cost, max(Max-used, 0))
		return granted, used + granted, true
	case Refund:
		granted = min(a.Cost, used)
		return granted, used - granted, true
	default: // Reset
		return 0, 0, true
	}
}

// never tells whether the ask cannot fit even a fresh state of count units.
func never(a Ask, count int64) bool {
	return (a.Mode == Spend || a.Mode == Peek) && a.Cost > count
}

// cdiv is a/b rounded up, for a and b up to Max. Most rates reduce to one unit per microsecond, and
// a division is slow.
func cdiv(a, b int64) int64 {
	if b == 1 {
		return a
	}
	return (a + b - 1) / b
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// product is a·b, or false if it is above limit.
func product(a, b, limit int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > uint64(limit) {
		return 0, false
	}
	return int64(lo), true
}

// check is what every algorithm demands of a limit.
func (l Limit) check() error {
	switch {
	case l.Count <= 0:
		return fmt.Errorf("count is %d; it must be at least 1 (to forbid everything, deny before asking)", l.Count)
	case l.Count > Max/2:
		return fmt.Errorf("count is %d; the largest is %d (2^51)", l.Count, int64(Max/2))
	case l.Period <= 0:
		return errors.New("the period must be at least 1µs")
	case l.Period > MaxPeriod:
		return fmt.Errorf("the period is %d µs; the longest is %d µs (8 years)", l.Period, int64(MaxPeriod))
	case l.Burst < 0:
		return fmt.Errorf("burst is %d; it must not be negative (0 takes the default)", l.Burst)
	case l.Burst > Max/2:
		return fmt.Errorf("burst is %d; the largest is %d (2^51)", l.Burst, int64(Max/2))
	}
	return nil
}

// MaxPeriod is the longest period of a limit in µs: eight years of 365 days.
const MaxPeriod = 8 * 365 * 24 * 3600 * 1_000_000
