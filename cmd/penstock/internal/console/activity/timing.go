package activity

import (
	"math/bits"
	"strconv"
	"sync/atomic"
	"time"
)

// A Timing counts how long calls took, and how many failed, by the second and by the minute.
// Observe and Fail may be called by many goroutines at the same time. Each costs one atomic
// addition.
//
// Memory: at most 8 KB for each of its counters that is not 0, and 1 KB.
type Timing struct {
	counters [failures + 1]atomic.Uint64
	history  *History
}

// The counters of a Timing count calls by their duration in microseconds. Below 16 µs each
// microsecond has a counter. Above, each octave from 2^n to 2^(n+1) µs has four counters, up to
// 67 s. So the upper end of a counter is at most a quarter larger than its lower end. The last
// counter counts failures.
const (
	exactBelow = 16                     // below this number of µs, each µs has a counter
	octaves    = 22                     // from 2^4 to 2^26 µs
	failures   = exactBelow + 4*octaves // index of the counter of failures
)

// Observe counts a call and how long it took.
func (t *Timing) Observe(took time.Duration) { t.counters[counterOf(took)].Add(1) }

// Fail counts a call that failed. Call Observe too if the duration of the call is to be counted.
func (t *Timing) Fail() { t.counters[failures].Add(1) }

func counterOf(took time.Duration) int {
	us := uint64(max(took.Microseconds(), 0))
	if us < exactBelow {
		return int(us)
	}
	octave := bits.Len64(us) - 1           // at least 4
	quarter := int(us >> (octave - 2) & 3) // the two bits after the first one
	return min(exactBelow+4*(octave-4)+quarter, failures-1)
}

// endOf returns the upper end of a counter: its durations are below it.
func endOf(counter int) time.Duration {
	if counter < exactBelow {
		return time.Duration(counter+1) * time.Microsecond
	}
	octave, quarter := 4+(counter-exactBelow)/4, (counter-exactBelow)%4
	// The counter begins at 4+quarter quarters of 2^octave µs, and ends a quarter above that.
	return time.Duration(5+quarter) << (octave - 2) * time.Microsecond
}

var timingNames = func() (names [failures + 1]string) {
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return names
}()

func (t *Timing) tick(at time.Duration) {
	t.history.Sample(at, func(add func(Series, uint64)) {
		for i := range t.counters {
			if n := t.counters[i].Load(); n > 0 {
				add(Series{Name: timingNames[i]}, n)
			}
		}
	})
}

// Times are the durations of the calls in a span of time. A quantile is the upper end of a counter.
// The true value is smaller, by at most a fifth or 1 µs, unless it is 67 s or more. Without calls,
// all are 0.
type Times struct {
	Calls, Failed uint64
	P50, P95, P99 time.Duration
}

// Since returns the times of the last n seconds.
func (t *Timing) Since(n int) Times {
	var counts [failures + 1]uint64
	for s, grown := range t.history.Since(n) {
		i, _ := strconv.Atoi(s.Name)
		counts[i] = grown
	}
	return timesOf(&counts)
}

// Second returns the second of the latest sample, since the start.
func (t *Timing) Second() int64 { return t.history.Second() }

// BySecond returns the times of each of the last n seconds, the oldest first. n is at most Seconds.
func (t *Timing) BySecond(n int) []Times { return timesOfEach(t.history.BySecond(n, nil), n) }

// ByMinute does what BySecond does, for minutes. n is at most Minutes.
func (t *Timing) ByMinute(n int) []Times { return timesOfEach(t.history.ByMinute(n, nil), n) }

func timesOfEach(lines []Line, n int) []Times {
	all := make([]Times, n)
	for at := range all {
		var counts [failures + 1]uint64
		for _, line := range lines {
			i, _ := strconv.Atoi(line.Name)
			counts[i] = uint64(line.Counts[at])
		}
		all[at] = timesOf(&counts)
	}
	return all
}

func timesOf(counts *[failures + 1]uint64) Times {
	t := Times{Failed: counts[failures]}
	for _, n := range counts[:failures] {
		t.Calls += n
	}
	quantiles := []struct {
		percent uint64
		result  *time.Duration
	}{{50, &t.P50}, {95, &t.P95}, {99, &t.P99}}
	var sum uint64
	for i, n := range counts[:failures] {
		sum += n
		for len(quantiles) > 0 && n > 0 && sum*100 >= quantiles[0].percent*t.Calls {
			*quantiles[0].result = endOf(i)
			quantiles = quantiles[1:]
		}
	}
	return t
}
