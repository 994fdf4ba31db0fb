package penstock

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// The algorithms. Package algorithm documents their bounds, state and cost.
var (
	TokenBucket    = algorithm.TokenBucket    // refills steadily, allows bursts; the default. GCRA is the same limiter
	LeakyBucket    = algorithm.LeakyBucket    // a queue that lets units leave one by one
	FixedWindow    = algorithm.FixedWindow    // windows aligned to the Unix epoch
	AnchoredWindow = algorithm.AnchoredWindow // windows that begin at a key's first charge
	SlidingWindow  = algorithm.SlidingWindow  // estimates from two windows; small state; admits less than twice the count at worst
	SlidingLog     = algorithm.SlidingLog     // stores every grant; exact; the largest state
	Concurrency    = algorithm.Concurrency    // slots that are held, renewed and released
)

// CalendarWindow returns the algorithm whose windows are the days, weeks or months of a time zone.
func CalendarWindow(unit algorithm.CalendarUnit, zone *time.Location) *algorithm.Algorithm {
	return algorithm.CalendarWindow(unit, zone)
}

// SubWindow returns the algorithm of a sliding window that has n parts (1 to 60). It admits at most
// Count units in any interval that is one Period long.
func SubWindow(n int) *algorithm.Algorithm { return algorithm.SubWindow(n) }

// A Limit says how often something may happen. Make one with Per, PerSecond, PerMinute and so on,
// with ParseRate, or as a literal that has a Name.
type Limit struct {
	// Name is the limit's name in the store, in metrics and in RateLimit headers: 1 to 64 of a-z, 0-9,
	// '_', '.' and '-'. Limits that are charged together under one Key and Group need different names.
	Name string

	// Group is the common name of the limits for one kind of request, such as "search". It consists of
	// the same characters as Name. Limits of one Group and Key are stored together. Default: the
	// Limiter's name. Without a Limiter, the default is the Name.
	Group string

	// Algorithm enforces the limit. Default: TokenBucket.
	Algorithm *algorithm.Algorithm

	// Count units are admitted per Period. The Period is a whole number of microseconds.
	Count  int64
	Period time.Duration

	// Burst depends on the algorithm. TokenBucket: how many units may be spent without a pause
	// (default: Count). LeakyBucket: how many units may wait in the queue (default: none).
	// Concurrency: how many slots there are (default: Count). Windows do not use Burst.
	Burst int64

	// ShouldCountDenied makes denied requests count. By default, a denied request charges nothing.
	// With ShouldCountDenied, a Spend of a denied batch charges its cost to this limit, whichever
	// limit denied it. So a client that does not wait stays out until it sends less than the limit
	// admits. At most twice the units of the limit are counted as used. So all units are free again
	// after at most twice the usual time.
	//
	// The attempts of Limiter.Wait count too, once for each denial. A Wait that is alone is granted at
	// its second attempt. A denied Draw, such as that of AllowAtMost, does not count. LeakyBucket and
	// Concurrency cannot count denied requests. Guards neither lease nor split such a limit, and they
	// do not cache its denials.
	ShouldCountDenied bool
}

// Per admits n units per period. The limit's Name depends on the period, as ParseRate says. For 15
// minutes it is "every-15m".
func Per(n int64, period time.Duration) Limit {
	return Limit{Name: periodName(period), Count: n, Period: period}
}

// PerSecond admits n units per second.
func PerSecond(n int64) Limit { return Per(n, time.Second) }

// PerMinute admits n units per minute.
func PerMinute(n int64) Limit { return Per(n, time.Minute) }

// PerHour admits n units per hour.
func PerHour(n int64) Limit { return Per(n, time.Hour) }

// PerDay admits n units per 24 hours.
func PerDay(n int64) Limit { return Per(n, day) }

// Every admits one unit per interval.
func Every(interval time.Duration) Limit { return Per(1, interval) }

// InFlight admits n requests at the same time: each holds a slot. A hold that is not renewed ends
// after ttl.
func InFlight(n int64, ttl time.Duration) Limit {
	return Limit{Name: "in-flight", Algorithm: Concurrency, Count: n, Burst: n, Period: ttl}
}

// WithName returns the limit under another name.
func (l Limit) WithName(name string) Limit { l.Name = name; return l }

// WithBurst returns the limit with another burst.
func (l Limit) WithBurst(n int64) Limit { l.Burst = n; return l }

// With returns the limit enforced by another algorithm.
func (l Limit) With(a *algorithm.Algorithm) Limit { l.Algorithm = a; return l }

// String writes the limit as people read it: "second: 10 per 1s, burst 20 (token-bucket)".
func (l Limit) String() string {
	var s strings.Builder
	a := cmp.Or(l.Algorithm, TokenBucket)
	fmt.Fprintf(&s, "%s: %s", l.Name, a.Rate(l.numbers()))
	if l.Burst > 0 {
		fmt.Fprintf(&s, ", burst %d", l.Burst)
	}
	if l.ShouldCountDenied {
		s.WriteString(", denied requests count")
	}
	fmt.Fprintf(&s, " (%s)", a.Title())
	return s.String()
}

// numbers returns the limit in the form that its algorithm takes.
func (l Limit) numbers() algorithm.Limit {
	return algorithm.Limit{Count: l.Count, Period: l.Period.Microseconds(), Burst: l.Burst}
}

// Validate returns an error that wraps ErrInvalid if the limit is invalid.
func (l Limit) Validate() error {
	_, err := l.Compile()
	return err
}

const maxNameLength = 64 // characters of a name

// checkName checks a name of a limit or a limiter. kind is the word for the name in the error, such
// as "group".
func checkName(kind, name string) error {
	position := 0
	for _, c := range name {
		if position++; !isNameCharacter(c) {
			return fmt.Errorf("the %s has %q at position %d; allowed are a-z, 0-9, '_', '.' and '-'", kind, c, position)
		}
	}
	if name == "" || len(name) > maxNameLength {
		return fmt.Errorf("the %s has %d characters; it must have 1 to %d", kind, len(name), maxNameLength)
	}
	return nil
}

func isNameCharacter(c rune) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.ContainsRune("_.-", c)
}
