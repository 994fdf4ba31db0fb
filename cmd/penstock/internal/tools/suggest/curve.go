package suggest

import "time"

// A rate is a number of units per period.
type rate struct {
	count  int64
	period time.Duration
}

// rates are those for which the burst is computed, the slowest first.
var rates = []rate{
	{1, time.Hour}, {10, time.Hour}, {30, time.Hour},
	{1, time.Minute}, {2, time.Minute}, {5, time.Minute}, {10, time.Minute}, {20, time.Minute}, {30, time.Minute},
	{1, time.Second}, {2, time.Second}, {5, time.Second}, {10, time.Second}, {20, time.Second}, {50, time.Second}, {100, time.Second},
}

// windows are those for which the largest count is computed.
var windows = []time.Duration{time.Minute, time.Hour, 24 * time.Hour}

// A curve has, for each rate, the smallest burst with which a token bucket denies nothing to one
// identity. That is the maximum, over all intervals, of the requests in it minus what the rate
// refills in it (Le Boudec and Thiran, Network Calculus: the arrival curve of a leaky bucket). One
// pass finds it: the level of an unbounded bucket falls at the rate and rises by each request.
type curve struct {
	level, most []int64 // for each rate; a request is as many parts as its period has microseconds
	last        int64   // in µs since 1970
	requests    int64
	inWindow    []windowCount // for each window
	peak        peak          // nil for a token bucket. Otherwise there are no levels
}

// A windowCount counts the requests of fixed windows.
type windowCount struct {
	index       int64 // windows since 1970
	count, most int64
}

func (w *windowCount) add(index int64) {
	if index != w.index {
		w.index, w.count = index, 0
	}
	w.count++
	w.most = max(w.most, w.count)
}

func newCurve(p peak) *curve {
	c := &curve{inWindow: make([]windowCount, len(windows)), peak: p}
	if p == nil {
		both := make([]int64, 2*len(rates))
		c.level, c.most = both[:len(rates)], both[len(rates):]
	}
	return c
}

// add adds a request. Requests are added in the order of their times, fewer than a billion. held
// counts what all peaks keep.
func (c *curve) add(at time.Time, duration time.Duration, held *int) {
	now := at.UnixMicro()
	elapsed := now - c.last
	for i := range c.level {
		r := rates[i]
		level := int64(0)
		if c.requests > 0 && elapsed < c.level[i]/r.count {
			level = c.level[i] - elapsed*r.count
		}
		c.level[i] = level + r.period.Microseconds()
		c.most[i] = max(c.most[i], c.level[i])
	}
	for i, length := range windows {
		c.inWindow[i].add(now / length.Microseconds())
	}
	if c.peak != nil {
		c.peak.add(now, at.Add(duration).UnixMicro(), held)
	}
	c.last = now
	c.requests++
}

// size returns by how much an identity is compared with others: its largest count for the limit, or
// in a minute for a token bucket.
func (c *curve) size() int64 {
	if c.peak != nil {
		return c.peak.most()
	}
	return c.inWindow[0].most
}

// burst returns the smallest burst for rate i with which nothing is denied.
func (c *curve) burst(i int) int64 {
	parts := rates[i].period.Microseconds()
	return (c.most[i] + parts - 1) / parts
}
