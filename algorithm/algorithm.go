// Package algorithm is the arithmetic of rate limiting. A step is a pure function: it takes a state
// and a request, and returns an outcome and the next state. It has no clock, no store and no
// network. It computes with integers only.
//
// Each algorithm has two files: a Go step (tokenbucket.go) and its Lua twin (tokenbucket.lua). Both
// use the same names in the same order, so that they can be read side by side. The tests of package
// redisstore check that both give the same results.
//
// # The numbers contract
//
// The Lua of Redis has doubles only. So every quantity is an integer from 0 to [Max], and times are
// in microseconds. Lua divides exactly with fmod, as Go does with int64. A rate is a fraction that
// is never rounded: 3 per second is 3 units per second, and not one unit per 333,333 µs.
package algorithm

import (
	"errors"
	"fmt"
	"math/bits"
	"time"
)

const (
	// Max bounds every quantity in a state, a parameter or a request, so that the sum of two is at
	// most 2^53.
	Max = 1 << 52

	// MaxStall is the largest step back of the clock, in µs, that leaves a state as it is. Then no
	// time passes for the state until the clock reaches the time in it again. A larger step repairs
	// the state: the time in it is set to now.
	MaxStall = 5_000_000

	// maxTime is the latest time that a step can compute with, in µs since the epoch. It is in
	// September 2112.
	maxTime = Max

	// Never is the RetryAfter of a cost that can never fit.
	Never = -1

	// Unchanged is the Keep of an outcome that leaves the stored state as it is.
	Unchanged = -1
)

// A Mode says what a request does with its cost.
type Mode uint8

const (
	Spend  Mode = iota // spends all of the cost, or nothing
	Draw               // spends as much of the cost as fits, at least one unit
	Peek               // spends nothing; reports whether and when a Spend would be granted
	Force              // spends all of the cost, even what does not fit; at most Max is counted
	Refund             // returns units, never more than are used
	Reset              // clears the state

	// Attempt charges a denied request, in algorithms with the option countsDenied. It spends as much
	// of the cost as fits until twice the limit's units are used. Of a cost that can never fit, it
	// spends nothing. It is never denied, and nothing refunds it. Only stores use it.
	Attempt
)

// modeNames ends with the modes of Across.
var modeNames = [...]string{"spend", "draw", "peek", "force", "refund", "reset", "attempt", "report", "merge", "rejoin"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// A Request is one request to a limit, decided by a Step.
type Request struct {
	Mode     Mode
	Cost     int64  // units; 0 spends nothing
	Patience int64  // µs that the caller is ready to wait
	Holder   string // the holder of a slot, or the owner of a place in a queue

	// IsRefundable says that a later Refund may return what this request spends. Then the outcome has
	// a Receipt, if the algorithm has the option exactRefunds.
	IsRefundable bool

	// Receipt is that of the outcome whose units a Refund returns. The Refund is then exact: the
	// state becomes what it would be if these units had never been spent. Without a Receipt, a Refund
	// lowers what is used now, no matter which caller has used it.
	Receipt int64

	// Serial orders the requests of one Holder to Concurrency: 1 to Max, or 0 for none. See
	// Concurrency.
	Serial int64
}

// leastCost is the fewest units that must fit for the request to be granted.
func (r Request) leastCost() int64 {
	if r.Mode == Draw {
		return min(r.Cost, 1)
	}
	return r.Cost
}

// An Outcome answers a Request. All times are µs from now.
type Outcome struct {
	Granted   int64 // units taken. For a Refund: units returned, rounded down
	Remaining int64 // units that a Spend could take now
	// RetryAfter is 0 if the request is granted. If it is denied, RetryAfter is the time until the
	// same request would be granted if no other came first, or Never.
	RetryAfter int64
	ResetAfter int64 // until the state equals a fresh one
	Wait       int64 // until the caller may go ahead; never above the request's patience
	// Keep is how long the store must keep the new state. 0 means that the new state equals a fresh
	// one. Unchanged means that there is no new state.
	Keep int64
	// Receipt says where the units that a request with IsRefundable has spent are in the state. 0: the
	// request has spent nothing, or the algorithm has no exact refunds.
	Receipt int64
}

// OK reports whether the request was granted.
func (o Outcome) OK() bool { return o.RetryAfter == 0 }

// A Limit is what an algorithm enforces.
type Limit struct {
	Count  int64 // units
	Period int64 // µs
	Burst  int64 // units; BurstUse says what they mean. 0: the default of the algorithm
}

// Params are the four numbers that a step computes with. Each algorithm gives them its own meaning:
// see the names of the first four arguments of its Lua twin.
type Params [4]int64

// A Step decides one request. It is pure: the same arguments give the same results, and it never
// writes to s.
//
// A denial returns s itself with Keep = Unchanged. The exception is a state that had to be
// repaired. A state is repaired when the clock has stepped back by more than MaxStall, or when the
// state has windows of another length than the limit. A step that repairs the state sets Keep. The
// store then saves the repaired state although nothing was granted. Otherwise each request would
// repair the state to its own time, and the RetryAfter of the denial would never end. So a denied
// Peek saves the repaired state too. A granted Peek has no RetryAfter, and saves nothing.
type Step[S any] func(s S, p Params, r Request, now int64) (Outcome, S)

// A stepper is a Step that takes pointers, and writes its outcome to out. Passing large values
// would cost more than the computation.
type stepper[S any] func(s S, p *Params, r *Request, now int64, out *Outcome) S

// States is an array of states of one algorithm. Its methods identify a state by its index.
type States interface {
	Add() uint32     // adds a fresh state and returns its index
	Remove(i uint32) // clears state i; Add may return i again
	// Step decides request r on state i, and writes the outcome to out. Step saves the new state if
	// commit is true, or if a denial repaired the state. It does not keep the pointers. The parameters
	// are pointers because large values are slow to pass.
	Step(i uint32, p *Params, r *Request, now int64, commit bool, out *Outcome)
}

// A stateArray is the States of an algorithm.
type stateArray[S any] struct {
	step   stepper[S]
	states []S
	free   []uint32 // the indexes of removed states
}

func (a *stateArray[S]) Add() uint32 {
	if n := len(a.free); n > 0 {
		i := a.free[n-1]
		a.free = a.free[:n-1]
		return i
	}
	var fresh S
	a.states = append(a.states, fresh)
	return uint32(len(a.states) - 1)
}

func (a *stateArray[S]) Remove(i uint32) {
	var fresh S
	a.states[i] = fresh
	a.free = append(a.free, i)
}

func (a *stateArray[S]) Step(i uint32, p *Params, r *Request, now int64, commit bool, out *Outcome) {
	next := a.step(a.states[i], p, r, now, out)
	if out.Keep != Unchanged && (commit || !out.OK()) {
		a.states[i] = next
	}
}

// CheckTime returns an error unless steps can compute with now, in µs since the epoch: it must be
// above 0 and at most maxTime.
func CheckTime(now int64) error {
	if now <= 0 || now > maxTime {
		return fmt.Errorf("the time is %v; it must be after 1970-01-01 00:00:00 and at most %v", time.UnixMicro(now).UTC().Format(time.DateTime),
			time.UnixMicro(maxTime).UTC().Format(time.DateOnly))
	}
	return nil
}

// HolderID is the number of a holder in states that consist of numbers: 0 for no holder, or else 52
// bits of FNV-1a. If two holders have the same number, each can refund the place of the other
// holder, and nothing else happens.
func HolderID(holder string) int64 {
	if holder == "" {
		return 0
	}
	h := uint64(14695981039346656037) // the offset basis and the prime of FNV-1a with 64 bits
	for i := 0; i < len(holder); i++ {
		h = (h ^ uint64(holder[i])) * 1099511628211
	}
	const notZero = 1 // 0 means no holder
	return int64(h>>12) | notZero
}

// take decides a request to a counter with a capacity of count units, of which used are in use. It
// returns the units granted, the units in use after the grant, and whether the request fits.
func take(r Request, used, count int64) (granted, after int64, fits bool) {
	switch r.Mode {
	case Spend:
		if r.Cost == 0 || r.Cost <= count-used {
			return r.Cost, used + r.Cost, true
		}
		return 0, used, false
	case Draw:
		granted = min(r.Cost, max(count-used, 0))
		return granted, used + granted, granted > 0 || r.Cost == 0
	case Peek:
		return 0, used, r.Cost == 0 || r.Cost <= count-used
	case Force:
		granted = min(r.Cost, max(Max-used, 0))
		return granted, used + granted, true
	case Refund:
		granted = min(r.Cost, used)
		return granted, used - granted, true
	case Attempt:
		if r.Cost <= count {
			granted = min(r.Cost, max(min(2*count, Max/2)-used, 0))
		}
		return granted, used + granted, true
	default: // Reset
		return 0, 0, true
	}
}

// never reports whether the cost is too large even for a fresh state of count units.
func never(r Request, count int64) bool {
	return (r.Mode == Spend || r.Mode == Peek) && r.Cost > count
}

// cdiv is a/b rounded up, for a and b up to Max. A division is slow, and b is often 1, because most
// rates reduce to one part of a token per µs. So cdiv does not divide by 1.
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

// product is a·b and true, or false if a·b is above largest.
func product(a, b, largest int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > uint64(largest) {
		return 0, false
	}
	return int64(lo), true
}

// check checks what every algorithm requires of a limit.
func (l Limit) check() error {
	switch {
	case l.Count <= 0:
		return fmt.Errorf("count is %d; it must be at least 1 (to forbid everything, deny before the charge)", l.Count)
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
