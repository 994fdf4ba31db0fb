package algorithm

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// An Algorithm is a step and the properties that other packages need. It never changes. Make one
// with Define.
//
// Other packages call the methods below, and never test which algorithm they have.
type Algorithm struct {
	name, title, lua string
	prepare          func(Limit) (Params, error)
	newStates        func() States
	isCustom         bool  // Define made the algorithm
	mistake          error // in the arguments of Define, or nil

	// Properties of the state.
	isCollection bool
	maxNumbers   int
	isAdditive   bool

	// Properties of requests.
	needsHolder, ownsRefunds, canBook, canRefund bool
	countsDenied                                 bool
	receiptNumber                                int // see exactRefunds; 0: without the option
	capacityParam                                int // see exchanged; 0: without the option
	isWindowed, isAcross, lendsShares            bool
	inner                                        *Algorithm // of Across and ShareAcross; nil for others
	retryAfterGrant                              func(p *Params, cost, remaining, reset int64) int64

	// Properties of a limit.
	burstUse   BurstUse
	windowName string
	paramsAt   func(p Params, now int64) Params

	// Properties of what a limit admits.
	hasSteadyRefill, hasDifferentWindows bool
	describeBound                        func(l Limit, rate string) string
	decay                                Decay
	windowLength                         func(l Limit) int64
	possibleShares                       func(l Limit, n int64) []Limit
	possibleParts                        func(l Limit, n, i int64) []Limit
}

// An Option sets a property of an algorithm that differs from the default.
type Option func(*Algorithm)

// Define makes an algorithm of a step, its Lua twin, and the function that converts limits to its
// parameters.
//
// The name is part of the key of stored state, and it is the name of the Lua function. The name is
// a lower-case identifier, unique among the algorithms in use. S is an integer or a struct of at
// most six integers. lua is a chunk that defines a local function with that name; see
// docs/adding-an-algorithm.md. If lua is "", only memstore can use the algorithm. prepare checks a
// limit and computes its parameters. The errors of prepare use the words that the author of a limit
// knows.
//
// Prepare, and so penstock.Limit.Compile, returns an error if the name, the title, S or lua break
// these rules.
func Define[S any](name, lua string, step Step[S], prepare func(Limit) (Params, error), options ...Option) *Algorithm {
	a := define(name, lua, step, prepare, options...)
	a.isCustom = true
	a.mistake = a.checkDefinition(reflect.TypeFor[S]())
	return a
}

// define is Define for the algorithms of this package, which the tests check.
func define[S any](name, lua string, step Step[S], prepare func(Limit) (Params, error), options ...Option) *Algorithm {
	return defineStates(name, lua, func() States {
		return &stateArray[S]{step: func(s S, p *Params, r *Request, now int64, out *Outcome) (next S) {
			*out, next = step(s, *p, *r, now)
			return next
		}}
	}, prepare, options...)
}

func defineStates(name, lua string, newStates func() States, prepare func(Limit) (Params, error), options ...Option) *Algorithm {
	a := &Algorithm{name: name, title: name, lua: lua, prepare: prepare, maxNumbers: 6, newStates: newStates}
	for _, option := range options {
		option(a)
	}
	return a
}

// All returns the algorithms that have no settings, in the order of the documentation.
// SubWindow and CalendarWindow have settings. Add a new algorithm here.
func All() []*Algorithm {
	return []*Algorithm{TokenBucket, LeakyBucket, FixedWindow, AnchoredWindow, SlidingWindow, SlidingLog, Concurrency}
}

// Title gives the algorithm another name in configurations, metrics and messages, such as
// "anchored-window". Default: its name.
func Title(title string) Option { return func(a *Algorithm) { a.title = title } }

// numbers sets the maximum count of numbers in the Lua twin's state: 1 to 120. Default: 6. Six or
// fewer are faster. Each number is at most Max, and the third at most MaxPeriod: stores keep seven
// bytes of each number, and six of the third.
func numbers(n int) Option { return func(a *Algorithm) { a.maxNumbers = n } }

// collection says that the Lua twin itself reads and writes its state, a sorted set. Without
// collection, the state consists of numbers, and the generated script loads and saves them.
func collection() Option { return func(a *Algorithm) { a.isCollection = true } }

// NeedsHolder says that every request except Peek and Reset needs a Holder. Only a Refund with the
// same Holder returns what a Spend took.
func NeedsHolder() Option { return func(a *Algorithm) { a.needsHolder, a.ownsRefunds = true, true } }

// ownsRefunds says that a Refund returns only what its Holder has taken.
func ownsRefunds() Option { return func(a *Algorithm) { a.ownsRefunds = true } }

// CanRefund says that a Refund returns units at any time and for every Holder.
func CanRefund() Option { return func(a *Algorithm) { a.canRefund = true } }

// countsDenied says that the step has the mode Attempt, so that a limit may count denied requests.
func countsDenied() Option { return func(a *Algorithm) { a.countsDenied = true } }

// exactRefunds says that a Refund with a Receipt is exact; see Request.Receipt. In Lua, the receipt
// of a request is the number with this index, from 1, of the twin's new state.
func exactRefunds(index int) Option { return func(a *Algorithm) { a.receiptNumber = index } }

// CanBook says that a request with patience can book units that become free later. If the first of
// the Params is above 1, it must be the rate: how many parts of a unit become free in a µs. The
// longest patience is Max/2 divided by this rate, in µs, and at most a day.
func CanBook() Option { return func(a *Algorithm) { a.canBook = true } }

// additive says that Spends without patience add up. If Step grants one Spend of k times a cost, it
// also grants k Spends of this cost, one after another at the same moment. The state and the last
// outcome are the same in both cases. With each Spend, Remaining falls by the cost, and
// ResetAfter grows by a k-th of the total growth, rounded down or up. So stores may decide the
// Spends of many callers together.
func additive() Option { return func(a *Algorithm) { a.isAdditive = true } }

// retryAfterGrant sets the function that computes, from a grant or a denial, the RetryAfter of the
// next request. The next request is a Spend of cost units at the same moment, without patience.
// remaining and reset are the Remaining and ResetAfter of the answer, and p is the result of
// Prepare. The function may return 1 µs less than that RetryAfter. It returns 0 if the request
// would be granted immediately, if it can never be granted, or if the answer is not known.
func retryAfterGrant(f func(p *Params, cost, remaining, reset int64) int64) Option {
	return func(a *Algorithm) { a.retryAfterGrant = f }
}

// A BurstUse says what an algorithm uses a limit's Burst for.
type BurstUse uint8

const (
	BurstUnused     BurstUse = iota // nothing
	BurstIsCapacity                 // units or slots that may be used at the same time; default: the Count
	BurstIsQueue                    // units that may wait; default: none
	BurstIsSpecial                  // something that only this algorithm has
)

// Burst says what the algorithm uses a limit's Burst for. Default: BurstUnused.
func Burst(use BurstUse) Option { return func(a *Algorithm) { a.burstUse = use } }

// refillsSteadily says that used units become free one by one at the limit's rate, rather than at
// the end of a window.
func refillsSteadily() Option { return func(a *Algorithm) { a.hasSteadyRefill = true } }

// windowsDiffer says that two stores may begin their windows at different moments.
func windowsDiffer() Option { return func(a *Algorithm) { a.hasDifferentWindows = true } }

// Bounded sets the function that says in words how much a limit admits. rate is the limit's rate in
// words.
func Bounded(f func(l Limit, rate string) string) Option {
	return func(a *Algorithm) { a.describeBound = f }
}

// A Decay says when charged units become free again. The Decay decides whether quota can be leased
// in blocks.
type Decay uint8

const (
	DecayUnknown     Decay = iota // leases do not support the algorithm: its limits are not leased
	DecayContinuous               // unit by unit, in the order of the charges
	DecayAtReset                  // all together, when the window ends
	DecayAfterPeriod              // within a Period after the end of the window or sub-window in which they were charged
)

// Leasable says that quota can be leased in blocks, and how it decays. window returns the length of
// a window or sub-window in µs. Units that are drawn in one must be spent in it. window is nil for
// a continuous decay, which has no windows.
func Leasable(decay Decay, window func(Limit) int64) Option {
	return func(a *Algorithm) { a.decay, a.windowLength = decay, window }
}

// shared sets the function for the part of a limit that each of n instances enforces. f returns
// several limits, the best first. The first valid one is used. Each must admit at least an n-th
// of the limit. Default: Count and Burst are divided and rounded up.
func shared(f func(l Limit, n int64) []Limit) Option {
	return func(a *Algorithm) { a.possibleShares = f }
}

// divisible sets the function for part i of a limit that is split into n parts. f returns several
// forms of that part, the best first. The first valid one is used. All parts together must admit
// exactly what the whole limit admits. Default: a limit cannot be split.
func divisible(f func(l Limit, n, i int64) []Limit) Option {
	return func(a *Algorithm) { a.possibleParts = f }
}

// calendar says that windows have no fixed length. windowName is their name. paramsAt adapts
// parameters to a time.
func calendar(windowName string, paramsAt func(p Params, now int64) Params) Option {
	return func(a *Algorithm) { a.windowName, a.paramsAt = windowName, paramsAt }
}

// Name is the name in the key of stored state and of the Lua function. Algorithms with the same
// name share a step and stored state. The settings of these algorithms may differ.
func (a *Algorithm) Name() string { return a.name }

// Title is the name in configurations, metrics and messages.
func (a *Algorithm) Title() string { return a.title }

// IsCustom reports whether Define made the algorithm, so that people know it only by its own texts.
// Those of this package are not custom.
func (a *Algorithm) IsCustom() bool { return a.isCustom }

// Lua is the source of the step's twin in Lua.
func (a *Algorithm) Lua() string { return a.lua }

// Prepare checks a limit and computes its parameters. It returns an error if the arguments of
// Define break its rules.
func (a *Algorithm) Prepare(l Limit) (Params, error) {
	if a.mistake != nil {
		return Params{}, fmt.Errorf("algorithm.Define(%q): %w", a.name, a.mistake)
	}
	return a.prepare(l)
}

// ParamsAt adapts parameters of Prepare to the time now, if they depend on it.
func (a *Algorithm) ParamsAt(p Params, now int64) Params {
	if a.paramsAt == nil {
		return p
	}
	return a.paramsAt(p, now)
}

// IsCalendar reports whether windows follow the calendar: they have no fixed length, and parameters
// depend on the time.
func (a *Algorithm) IsCalendar() bool { return a.paramsAt != nil }

// NewStates returns an empty set of states.
func (a *Algorithm) NewStates() States { return a.newStates() }

// IsCollection reports whether the Lua twin keeps its state in a sorted set (see collection).
func (a *Algorithm) IsCollection() bool { return a.isCollection }

// Numbers is the largest count of numbers in a state. The option numbers sets it.
func (a *Algorithm) Numbers() int { return a.maxNumbers }

// IsAdditive reports whether the option additive is set.
func (a *Algorithm) IsAdditive() bool { return a.isAdditive }

// NeedsHolder reports whether the option NeedsHolder is set.
func (a *Algorithm) NeedsHolder() bool { return a.needsHolder }

// OwnsRefunds reports whether the option NeedsHolder or ownsRefunds is set.
func (a *Algorithm) OwnsRefunds() bool { return a.ownsRefunds }

// CanRefund reports whether the option CanRefund is set.
func (a *Algorithm) CanRefund() bool { return a.canRefund }

// CountsDenied reports whether the option countsDenied is set.
func (a *Algorithm) CountsDenied() bool { return a.countsDenied }

// HasExactRefunds reports whether the option exactRefunds is set.
func (a *Algorithm) HasExactRefunds() bool { return a.receiptNumber > 0 }

// ReceiptNumber is the index that the option exactRefunds sets, or 0.
func (a *Algorithm) ReceiptNumber() int { return a.receiptNumber }

// CanBook reports whether the option CanBook is set.
func (a *Algorithm) CanBook() bool { return a.canBook }

// BurstUse is what the option Burst sets.
func (a *Algorithm) BurstUse() BurstUse { return a.burstUse }

// RefillsSteadily reports whether the option refillsSteadily is set.
func (a *Algorithm) RefillsSteadily() bool { return a.hasSteadyRefill }

// WindowsDiffer reports whether the option windowsDiffer is set.
func (a *Algorithm) WindowsDiffer() bool { return a.hasDifferentWindows }

// RetryAfterGrant calls the function of the option retryAfterGrant. Without the option, it returns
// 0.
func (a *Algorithm) RetryAfterGrant(p *Params, cost, remaining, reset int64) int64 {
	if a.retryAfterGrant == nil {
		return 0
	}
	return a.retryAfterGrant(p, cost, remaining, reset)
}

// Decay is what the option Leasable sets.
func (a *Algorithm) Decay() Decay { return a.decay }

// Window is the length of the limit's window or sub-window in µs. The option Leasable sets it. 0
// means that the algorithm has no windows.
func (a *Algorithm) Window(l Limit) int64 {
	if a.windowLength == nil {
		return 0
	}
	return a.windowLength(l)
}

// Rate is the limit's rate in words: "10 per 1s", "1000 per calendar month".
func (a *Algorithm) Rate(l Limit) string {
	return fmt.Sprintf("%d per %s", l.Count, cmp.Or(a.windowName, PeriodText(time.Duration(l.Period)*time.Microsecond)))
}

// PeriodText is a duration without the zeros that its String ends with: 24h, not 24h0m0s.
func PeriodText(period time.Duration) string {
	text := period.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Bound describes in words how much a limit admits. The argument capacity is the largest cost that
// the limit can grant.
func (a *Algorithm) Bound(l Limit, capacity int64) string {
	if a.describeBound == nil {
		return fmt.Sprintf("%d at once, and what its algorithm %q admits over time", capacity, a.name)
	}
	return a.describeBound(l.withBurst(a), a.Rate(l))
}

// withBurst returns the limit with its default Burst, the Count, if the algorithm uses the Burst as
// a capacity.
func (l Limit) withBurst(a *Algorithm) Limit {
	if l.Burst == 0 && a.burstUse == BurstIsCapacity {
		l.Burst = l.Count
	}
	return l
}

// Share returns the part of a limit that each of n instances enforces, or false if there is no
// valid one. The parts of n instances together exceed the limit by at most n-1 units.
// Of an algorithm of ShareAcross, it is part of what a region never lends.
func (a *Algorithm) Share(l Limit, n int64) (Limit, bool) {
	if n == 1 && !a.lendsShares {
		return l, true
	}
	if a.possibleShares == nil {
		return a.firstValid([]Limit{{Count: cdiv(l.Count, n), Period: l.Period, Burst: cdiv(l.Burst, n)}})
	}
	return a.firstValid(a.possibleShares(l.withBurst(a), n))
}

// Part returns part i of a limit that is split into n parts, or false if that is not possible.
func (a *Algorithm) Part(l Limit, n, i int64) (Limit, bool) {
	if a.possibleParts == nil {
		return Limit{}, false
	}
	return a.firstValid(a.possibleParts(l.withBurst(a), n, i))
}

func (a *Algorithm) firstValid(limits []Limit) (Limit, bool) {
	for _, l := range limits {
		if _, err := a.prepare(l); err == nil {
			return l, true
		}
	}
	return Limit{}, false
}

// slower returns limits with an n-th of the rate of l. The caller uses the first valid limit. The
// first limit is exact. The next one is rounded up, for an exact limit that is too fine to compute
// with. Limits with lower bursts follow, for a burst that is too large for the new rate.
func slower(l Limit, n int64) []Limit {
	var limits []Limit
	if l.Period <= MaxPeriod/n {
		limits = append(limits, Limit{l.Count, l.Period * n, l.Burst})
	}
	l.Count = cdiv(l.Count, n)
	limits = append(limits, l)
	for l.Burst > 1 {
		l.Burst /= 2
		limits = append(limits, l)
	}
	return limits
}

// piece is part i of a whole number that is split into n parts. The parts differ by at most 1, and
// the larger ones come first.
func piece(whole, n, i int64) int64 {
	p := whole / n
	if i < whole%n {
		p++
	}
	return p
}

// splitCount returns part i of a limit of an algorithm with windows. All parts have its Period.
func splitCount(l Limit, n, i int64) []Limit {
	return []Limit{{Count: piece(l.Count, n, i), Period: l.Period, Burst: piece(l.Burst, n, i)}}
}
