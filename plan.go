package penstock

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// A Plan is a compiled Limit. It never changes, and many goroutines may use it at the same time.
// Compile a limit once and use its Plan for every charge.
type Plan struct {
	limit    Limit
	params   algorithm.Params
	capacity int64     // units
	tag      uint32    // see Tag
	id       [2]uint64 // see ID
}

// Compile checks the limit and returns its Plan. The error wraps ErrInvalid.
func (l Limit) Compile() (*Plan, error) {
	l.Algorithm, l.Group = cmp.Or(l.Algorithm, TokenBucket), cmp.Or(l.Group, l.Name)
	if l.Name == "" {
		return nil, fmt.Errorf("%w: the limit has no name; set Name, or use Per, PerMinute, ParseRate or WithName", ErrInvalid)
	}
	if err := checkName("name", l.Name); err != nil {
		return nil, fmt.Errorf("%w: limit %q: %w", ErrInvalid, l.Name, err)
	}
	if err := checkName("group", l.Group); err != nil {
		return nil, fmt.Errorf("%w: limit %q: %w", ErrInvalid, l.Name, err)
	}
	if l.Period%time.Microsecond != 0 {
		return nil, fmt.Errorf("%w: limit %q: the period %v is not a whole number of microseconds", ErrInvalid, l.Name, l.Period)
	}
	params, err := l.Algorithm.Prepare(l.numbers())
	if err != nil {
		return nil, fmt.Errorf("%w: limit %q: %w", ErrInvalid, l.Name, err)
	}
	if l.ShouldCountDenied && !l.Algorithm.CountsDenied() {
		return nil, fmt.Errorf("%w: limit %q: %s cannot count denied requests; use another algorithm, such as token-bucket or sub-window",
			ErrInvalid, l.Name, l.Algorithm.Title())
	}
	tagHash := sha256.Sum256([]byte(l.Name + "\n" + l.Algorithm.Name()))
	idHash := sha256.Sum256([]byte(l.Group + "\n" + l.Name + "\n" + l.Algorithm.Name()))
	plan := &Plan{
		limit:  l,
		params: params,
		tag:    binary.LittleEndian.Uint32(tagHash[:]) &^ (1<<freeTagBits - 1),
		id:     [2]uint64{binary.LittleEndian.Uint64(idHash[:]), binary.LittleEndian.Uint64(idHash[8:])},
	}
	plan.capacity = plan.remainingWhenNew()
	return plan, nil
}

// MustCompile is Compile for limits that are constants of the program. It panics if the limit is
// invalid.
func (l Limit) MustCompile() *Plan {
	plan, err := l.Compile()
	if err != nil {
		panic(err)
	}
	return plan
}

// remainingWhenNew returns how much remains of the limit while nothing is used.
func (p *Plan) remainingWhenNew() int64 {
	var out algorithm.Outcome
	now := time.Now().UnixMicro() // parameters may depend on the time, but what remains does not
	states := p.limit.Algorithm.NewStates()
	newState := states.Add()
	const commit = false
	states.Step(newState, p.Params(now), &algorithm.Request{Mode: Peek}, now, commit, &out)
	return out.Remaining
}

// Limit returns the limit with its defaults filled in.
func (p *Plan) Limit() Limit { return p.limit }

// Name returns the limit's Name.
func (p *Plan) Name() string { return p.limit.Name }

// Group returns the limit's Group.
func (p *Plan) Group() string { return p.limit.Group }

// Algorithm returns the limit's Algorithm.
func (p *Plan) Algorithm() *algorithm.Algorithm { return p.limit.Algorithm }

// String writes the limit as Limit.String does.
func (p *Plan) String() string { return p.limit.String() }

// CountsDenied returns the limit's ShouldCountDenied.
func (p *Plan) CountsDenied() bool { return p.limit.ShouldCountDenied }

// Capacity returns the largest cost that the limit can grant: how many units it has while none
// is used.
func (p *Plan) Capacity() int64 { return p.capacity }

// MaxPatience returns the longest Patience that a charge of the limit may have: how far ahead the
// limit can be booked. It is at most a day.
func (p *Plan) MaxPatience() time.Duration {
	if !p.limit.Algorithm.CanBook() {
		return maxPatience // the algorithm ignores the Patience of a charge
	}
	// A bucket counts parts of a unit. It holds at most Max parts, of which half may be booked.
	partsPerMicrosecond := max(p.params[0], 1)
	return min(time.Duration(algorithm.Max/2/partsPerMicrosecond)*time.Microsecond, maxPatience)
}

// maxPatience is the longest Patience of any limit.
const maxPatience = 24 * time.Hour

// Bound returns a text that says how much the limit admits.
func (p *Plan) Bound() string { return p.limit.Algorithm.Bound(p.limit.numbers(), p.capacity) }

// Share returns the part of the limit that each of n instances enforces, or nil if the limit has no
// valid part for n instances. n below 1 has none.
func (p *Plan) Share(n int) *Plan {
	if n < 1 {
		return nil
	}
	numbers, isPossible := p.limit.Algorithm.Share(p.limit.numbers(), int64(n))
	if numbers == p.limit.numbers() {
		return p
	}
	return p.compileWith(numbers, isPossible)
}

// Part splits the limit into n parts and returns part i, from 0 to n-1. It returns nil if the limit
// cannot be split in this way.
func (p *Plan) Part(n, i int) *Plan {
	if i < 0 || i >= n {
		return nil
	}
	return p.compileWith(p.limit.Algorithm.Part(p.limit.numbers(), int64(n), int64(i)))
}

// compileWith returns the Plan of the limit with other numbers. It returns nil if isPossible is
// false, or if the numbers are invalid.
func (p *Plan) compileWith(numbers algorithm.Limit, isPossible bool) *Plan {
	if !isPossible {
		return nil
	}
	limit := p.limit
	limit.Count, limit.Period, limit.Burst = numbers.Count, time.Duration(numbers.Period)*time.Microsecond, numbers.Burst
	plan, err := limit.Compile()
	if err != nil {
		return nil
	}
	return plan
}

// Window returns the length of the limit's window, or of a sub-window if the algorithm has those.
// It returns 0 if the algorithm has no windows or cannot be leased.
func (p *Plan) Window() time.Duration {
	return time.Duration(p.limit.Algorithm.Window(p.limit.numbers())) * time.Microsecond
}

// Tag identifies the limit's state among those of its Group. Its upper 25 bits are a hash of the
// names of the limit and its algorithm. Its lower 7 bits are 0, and a store may use them. Tag is
// for authors of a Store.
func (p *Plan) Tag() uint32 { return p.tag }

const freeTagBits = 7 // the bits of a Tag that a store may use

// ID identifies the limit's state among those of all limits, by a hash of 128 bits. ID is for
// authors of a Store.
func (p *Plan) ID() [2]uint64 { return p.id }

// Equal reports whether two Plans make the same decisions, whatever their Names and Groups are.
// Plans of calendar windows are equal only if they have the same Algorithm.
func (p *Plan) Equal(other *Plan) bool { return p == other || p.hasNumbersOf(other) }

func (p *Plan) hasNumbersOf(other *Plan) bool {
	a, b := p.limit.Algorithm, other.limit.Algorithm
	if a.IsCalendar() || b.IsCalendar() { // their windows are not in params
		return a == b && p.limit.Count == other.limit.Count && p.limit.ShouldCountDenied == other.limit.ShouldCountDenied
	}
	return a.Name() == b.Name() && p.params == other.params && p.limit.ShouldCountDenied == other.limit.ShouldCountDenied
}

// Params returns the limit's parameters at the time now, in µs since the epoch. Params is for
// authors of a Store, who must not change the parameters.
func (p *Plan) Params(now int64) *algorithm.Params {
	if p.limit.Algorithm.IsCalendar() {
		params := p.limit.Algorithm.ParamsAt(p.params, now)
		return &params
	}
	return &p.params
}
