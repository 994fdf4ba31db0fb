package penstock

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// The algorithms. Their bounds, state and cost stand at their definitions in package algorithm.
var (
	TokenBucket    = algorithm.TokenBucket    // refills steadily, allows bursts; the default. GCRA is the same limiter
	GCRA           = algorithm.TokenBucket    // a synonym of TokenBucket
	LeakyBucket    = algorithm.LeakyBucket    // a queue that lets units leave one by one
	FixedWindow    = algorithm.FixedWindow    // windows aligned to the Unix epoch
	AnchoredWindow = algorithm.AnchoredWindow // windows that begin at a key's first charge
	SlidingWindow  = algorithm.SlidingWindow  // two windows, weighted; cheap, and up to twice the count in the worst case
	SlidingLog     = algorithm.SlidingLog     // every grant remembered; exact, and the largest state
	Concurrency    = algorithm.Concurrency    // slots that are held, renewed and released
)

// CalendarWindow is a window of a day, a week or a month in a time zone.
func CalendarWindow(unit algorithm.CalendarUnit, zone *time.Location) *algorithm.Algorithm {
	return algorithm.CalendarWindow(unit, zone)
}

// SubWindow is a sliding window of n parts (1 to 60) that never holds more than the count.
func SubWindow(n int) *algorithm.Algorithm { return algorithm.SubWindow(n) }

// A Limit says how much of something may happen. Make one with PerSecond and its kin, ParseRate, or
// as a literal.
type Limit struct {
	// Name names the counter, the metric and the policy in headers: 1 to 64 of a-z, 0-9, '_', '.' and
	// '-'. Limits that are charged together under one Key and Group need different names.
	Name string

	// Group names what the limits of one kind of request have in common. Limits of one Group and Key
	// are stored together. Default: the Name; a Limiter sets its own name. The same characters as for
	// Name.
	Group string

	// Algorithm enforces the limit. Default: TokenBucket.
	Algorithm *algorithm.Algorithm

	// Count units are admitted per Period, which is counted in whole microseconds.
	Count  int64
	Period time.Duration

	// Burst is how many units may be spent at once (TokenBucket; default: Count), how many may wait
	// (LeakyBucket; default: none), or how many slots there are (Concurrency; default: Count). The
	// windows do not use it.
	Burst int64

	plan *Plan
}

// PerSecond admits n units per second.
func PerSecond(n int64) Limit { return Limit{Name: "second", Count: n, Period: time.Second} }

// PerMinute admits n units per minute.
func PerMinute(n int64) Limit { return Limit{Name: "minute", Count: n, Period: time.Minute} }

// PerHour admits n units per hour.
func PerHour(n int64) Limit { return Limit{Name: "hour", Count: n, Period: time.Hour} }

// PerDay admits n units per 24 hours.
func PerDay(n int64) Limit { return Limit{Name: "day", Count: n, Period: 24 * time.Hour} }

// Every admits one unit per interval.
func Every(interval time.Duration) Limit {
	return Limit{Name: periodName(interval), Count: 1, Period: interval}
}

// InFlight lends n slots; a hold that is not renewed ends after ttl.
func InFlight(n int64, ttl time.Duration) Limit {
	return Limit{Name: "in-flight", Algorithm: Concurrency, Count: n, Burst: n, Period: ttl}
}

// WithName returns the limit under another name.
func (l Limit) WithName(name string) Limit { l.Name, l.plan = name, nil; return l }

// WithBurst returns the limit with another burst.
func (l Limit) WithBurst(n int64) Limit { l.Burst, l.plan = n, nil; return l }

// With returns the limit enforced by another algorithm.
func (l Limit) With(a *algorithm.Algorithm) Limit { l.Algorithm, l.plan = a, nil; return l }

// String writes the limit as people read it: "second: 10 per 1s, burst 20 (token-bucket)", "1000
// per calendar month".
func (l Limit) String() string {
	var s strings.Builder
	a := cmp.Or(l.Algorithm, TokenBucket)
	fmt.Fprintf(&s, "%s: %d per %s", l.Name, l.Count, cmp.Or(a.Windows, periodText(l.Period)))
	if l.Burst > 0 {
		fmt.Fprintf(&s, ", burst %d", l.Burst)
	}
	fmt.Fprintf(&s, " (%s)", a.Title)
	return s.String()
}

// Validate tells what is wrong with the limit, as an error that wraps ErrInvalid.
func (l Limit) Validate() error {
	_, err := l.Plan()
	return err
}

// A Plan is a limit made ready to compute with. Stores use it; applications do not need it.
type Plan struct {
	Limit Limit // with its defaults filled in

	// Tag tells the limit's state apart from that of other limits of its Group, and from that of
	// another algorithm under its name: 25 bits, shifted left by 7.
	Tag uint32

	// ID does so among all limits.
	ID [2]uint64

	// Capacity is how many units the limit grants at once when none is used. A larger cost is never
	// granted.
	Capacity int64

	params algorithm.Params
}

// Params are the limit's parameters at a moment, given in µs since the epoch. Do not modify them.
func (p *Plan) Params(now int64) *algorithm.Params {
	if p.Limit.Algorithm.At != nil {
		params := p.Limit.Algorithm.At(p.params, now)
		return &params
	}
	return &p.params
}

// MaxPatience is the longest patience that the limit understands: as far as the future can be
// booked, at most a day.
func (p *Plan) MaxPatience() time.Duration {
	if !p.Limit.Algorithm.Bookable {
		return 24 * time.Hour // it is not used
	}
	return min(time.Duration(algorithm.Max/2/p.params[0])*time.Microsecond, 24*time.Hour)
}

// Plan checks the limit and makes it ready. A limit that has been through Ready costs nothing here.
func (l Limit) Plan() (*Plan, error) {
	if l.plan != nil {
		return l.plan, nil
	}
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
	period := l.Period.Microseconds()
	if time.Duration(period)*time.Microsecond != l.Period {
		return nil, fmt.Errorf("%w: limit %q: the period %v is not a whole number of microseconds", ErrInvalid, l.Name, l.Period)
	}
	params, err := l.Algorithm.Prepare(algorithm.Limit{Count: l.Count, Period: period, Burst: l.Burst})
	if err != nil {
		return nil, fmt.Errorf("%w: limit %q: %w", ErrInvalid, l.Name, err)
	}
	state := sha256.Sum256([]byte(l.Name + "\n" + l.Algorithm.Name))
	whole := sha256.Sum256([]byte(l.Group + "\n" + l.Name + "\n" + l.Algorithm.Name))
	plan := &Plan{
		Limit:  l,
		Tag:    binary.LittleEndian.Uint32(state[:]) &^ 127,
		ID:     [2]uint64{binary.LittleEndian.Uint64(whole[:]), binary.LittleEndian.Uint64(whole[8:])},
		params: params,
	}
	plan.Capacity = plan.fresh()
	return plan, nil
}

// fresh is what remains of the limit when nothing is used.
func (p *Plan) fresh() int64 {
	var out algorithm.Outcome
	now := time.Now().UnixMicro() // where parameters depend on it, what remains does not
	cells := p.Limit.Algorithm.NewCells()
	cells.Step(cells.Add(), p.Params(now), &algorithm.Ask{Mode: Peek}, now, false, &out)
	return out.Remaining
}

// Ready returns the limit with its defaults filled in and its Plan kept, so that charges of it cost
// no preparation. Its fields must not be changed afterwards; the With methods may be used.
func (l Limit) Ready() (Limit, error) {
	plan, err := l.Plan()
	if err != nil {
		return Limit{}, err
	}
	l = plan.Limit
	l.plan = plan
	return l, nil
}

const maxName = 64

func checkName(what, name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the %s has %d characters; it must have 1 to %d", what, len(name), maxName)
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return fmt.Errorf("the %s has %q at position %d; allowed are a-z, 0-9, '_', '.' and '-'", what, c, i+1)
		}
	}
	return nil
}
