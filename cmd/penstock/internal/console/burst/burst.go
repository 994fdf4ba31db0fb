// Package burst finds, for each of some rates, the smallest burst with which a token bucket denies
// nothing to a client.
package burst

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/internal/wording"
)

type Rate struct {
	Count  int64
	Period time.Duration
}

// String writes the rate as policies do: 10/s.
func (r Rate) String() string {
	unit, ok := map[time.Duration]string{time.Second: "s", time.Minute: "min", time.Hour: "h", 24 * time.Hour: "d"}[r.Period]
	if !ok {
		unit = wording.Period(r.Period)
	}
	return fmt.Sprintf("%d/%s", r.Count, unit)
}

// In returns how many units the rate has in a time.
func (r Rate) In(d time.Duration) float64 { return float64(r.Count) * d.Seconds() / r.Period.Seconds() }

const rateCount = 16

// Bursts have a burst for each of Rates.
type Bursts [rateCount]int64

// In returns a count that no interval of this length, at most a week, exceeds.
func (b *Bursts) In(d time.Duration) int64 {
	least := int64(math.MaxInt64)
	for i, r := range Rates {
		least = min(least, b[i]+r.Count*int64(d)/int64(r.Period))
	}
	return least
}

// Rates are the rates for which a burst is computed. The slowest is first.
var Rates = [rateCount]Rate{
	{1, time.Hour}, {10, time.Hour}, {30, time.Hour},
	{1, time.Minute}, {2, time.Minute}, {5, time.Minute}, {10, time.Minute}, {20, time.Minute}, {30, time.Minute},
	{1, time.Second}, {2, time.Second}, {5, time.Second}, {10, time.Second}, {20, time.Second}, {50, time.Second}, {100, time.Second},
}

// A Curve has the smallest burst of one client for each of Rates. That is the maximum, over all
// intervals, of the units in it minus what the rate refills in it (Le Boudec and Thiran, Network
// Calculus: the arrival curve of a leaky bucket). One pass finds it: the level of an unbounded
// bucket falls at the rate and rises by each request. The zero value is a client without requests.
type Curve struct {
	// In parts of a unit: a unit has as many parts as the rate's period has microseconds. So a bucket
	// refills by Count parts each microsecond.
	level, most [rateCount]int64

	last int64 // time of the last request, in µs
}

const (
	maxCost  = 1 << 30 // units of one request
	maxParts = 1 << 62 // plus maxCost times the parts of an hour, it is below 2^63
)

// Add adds a request. Requests are added in the order of their times, in µs. A cost above 2^30
// counts as 2^30.
func (c *Curve) Add(now, cost int64) {
	elapsed := now - c.last
	for i := range c.level {
		r := &Rates[i]
		level := int64(0)
		if elapsed >= 0 && elapsed < c.level[i]/r.Count {
			level = c.level[i] - elapsed*r.Count
		}
		c.level[i] = min(level, maxParts) + min(cost, maxCost)*r.Period.Microseconds()
		c.most[i] = max(c.most[i], c.level[i])
	}
	c.last = now
}

// Burst returns the smallest burst for rate i with which nothing is denied.
func (c *Curve) Burst(i int) int64 {
	parts := Rates[i].Period.Microseconds()
	return (c.most[i] + parts - 1) / parts
}

type Suggestion struct {
	Rate    Rate
	Burst   int64
	At      int  // index in Rates of the measured rate
	IsShort bool // the burst takes longer to refill than the time in which it was measured
}

// String returns the limit as policy files write it.
func (s *Suggestion) String() string { return fmt.Sprintf("rate: %s, burst: %d", s.Rate, s.Burst) }

// Suggest chooses the rate with whose burst a client may send least in a minute. Bursts that refill
// within length, the time in which they were measured, come first. headroom multiplies rate and
// burst.
func Suggest(bursts *Bursts, length time.Duration, headroom float64) Suggestion {
	isShort := func(i int) bool { return float64(bursts[i]) > Rates[i].In(length) }
	// admits returns what a client may send in a minute that begins with a full bucket. A much
	// shorter time would compare only the bursts, and a much longer one only the rates.
	admits := func(i int) float64 { return Rates[i].In(time.Minute) + float64(bursts[i]) }
	at := 0
	for i := range Rates {
		if isShort(at) && !isShort(i) || isShort(at) == isShort(i) && admits(i) < admits(at) {
			at = i
		}
	}
	rate := Rate{RoundUp(float64(Rates[at].Count) * headroom), Rates[at].Period}
	return Suggestion{rate, max(RoundUp(float64(bursts[at])*headroom), 1), at, isShort(at)}
}

// RoundUp returns the next number that people like: 1, 2, 3, 5 or 8 times a power of ten.
func RoundUp(x float64) int64 {
	for unit := int64(1); ; unit *= 10 {
		for _, n := range []int64{1, 2, 3, 5, 8} {
			if float64(n*unit) >= x || n*unit > math.MaxInt64/100 {
				return n * unit
			}
		}
	}
}
