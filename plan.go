package penstock

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// A Plan is a compiled Limit. It never changes, and many goroutines may use it at once. Compile a
// limit once and use its Plan for every charge.
type Plan struct {
	limit    Limit
	params   algorithm.Params
	capacity int64
	tag      uint32
	id       [2]uint64
}

// Compile checks the limit and returns its Plan. The error wraps ErrInvalid.
func (l Limit) Compile() (*Plan, error) {
	if l.Algorithm == nil {
		l.Algorithm = TokenBucket
	}
	if l.Group == "" {
		l.Group = l.Name
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
	tagHash := sha256.Sum256([]byte(l.Name + "\n" + l.Algorithm.Name()))
	idHash := sha256.Sum256([]byte(l.Group + "\n" + l.Name + "\n" + l.Algorithm.Name()))
	plan := &Plan{
		limit:  l,
		params: params,
		tag:    binary.LittleEndian.Uint32(tagHash[:]) &^ (1<<7 - 1), // see Tag
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
	states.Step(states.Add(), p.Params(now), &algorithm.Request{Mode: Peek}, now, false, &out)
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

// Capacity is how many units the limit grants at once while nothing is used. A larger cost never
// fits.
func (p *Plan) Capacity() int64 { return p.capacity }

// MaxPatience is the longest Patience that a charge of the limit may have: how far ahead the limit
// can be booked, and at most a day.
func (p *Plan) MaxPatience() time.Duration {
	if !p.limit.Algorithm.CanBook() {
		return 24 * time.Hour // the algorithm ignores it
	}
	// A bucket counts parts of a unit. It has at most Max of them, and half of these may be booked.
	partsPerMicrosecond := p.params[0]
	return min(time.Duration(algorithm.Max/2/partsPerMicrosecond)*time.Microsecond, 24*time.Hour)
}

// Bound says in words how much the limit admits.
func (p *Plan) Bound() string { return p.limit.Algorithm.Bound(p.limit.numbers(), p.capacity) }

// Share returns the part of the limit that each of n instances enforces, or nil if there is no
// valid one.
func (p *Plan) Share(n int) *Plan {
	if n == 1 {
		return p
	}
	return p.compiledWith(p.limit.Algorithm.Share(p.limit.numbers(), int64(n)))
}

// Part returns part i of the limit split into n parts, or nil if that is not possible.
func (p *Plan) Part(n, i int) *Plan {
	return p.compiledWith(p.limit.Algorithm.Part(p.limit.numbers(), int64(n), int64(i)))
}

// compiledWith returns the Plan of the limit with other numbers. It returns nil if isPossible is
// false, or if the numbers are invalid.
func (p *Plan) compiledWith(numbers algorithm.Limit, isPossible bool) *Plan {
	if !isPossible {
		return nil
	}
	plan, err := p.limit.withNumbers(numbers).Compile()
	if err != nil {
		return nil
	}
	return plan
}

// Window is the length of the limit's window, or of a part of it if the algorithm divides windows.
// It is 0 if the algorithm has no windows or is not leasable.
func (p *Plan) Window() time.Duration {
	return time.Duration(p.limit.Algorithm.Window(p.limit.numbers())) * time.Microsecond
}

// Tag identifies the limit's state among those of its Group. It depends on the limit's name and its
// algorithm. It has 25 bits of a hash; the low 7 bits are 0, and a store may use them. It is for
// authors of a Store.
func (p *Plan) Tag() uint32 { return p.tag }

// ID identifies the limit's state among those of all limits. It is for authors of a Store.
func (p *Plan) ID() [2]uint64 { return p.id }

// Params returns the limit's parameters at the time now, in µs since the epoch. It is for authors
// of a Store, who must not change them.
func (p *Plan) Params(now int64) *algorithm.Params {
	if p.limit.Algorithm.IsCalendar() {
		params := p.limit.Algorithm.ParamsAt(p.params, now)
		return &params
	}
	return &p.params
}
