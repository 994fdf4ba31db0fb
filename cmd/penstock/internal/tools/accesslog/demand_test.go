package accesslog

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestDemandLosesNoRequest: the intervals follow each other without gaps, and each request is in
// that of its time.
func TestDemandLosesNoRequest(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var d Demand
		var times []time.Time
		denied := int64(0)
		at := time.Date(2026, 3, 4, 5, 6, 7, 8, time.FixedZone("", 3600))
		mean := []time.Duration{time.Millisecond, time.Second, time.Hour, 100 * 24 * time.Hour}[rng.IntN(4)]
		for range 1 + rng.IntN(300) {
			at = at.Add(time.Duration(rng.ExpFloat64() * float64(mean)))
			isDenied := rng.IntN(3) == 0
			d.Add(at, isDenied)
			times = append(times, at)
			if isDenied {
				denied++
			}
		}
		for i, s := range d.Spans {
			if i > 0 && !s.From.Equal(d.Spans[i-1].From.Add(d.Step)) {
				t.Fatalf("seed %d: the interval after %v begins at %v; want a step of %v", seed, d.Spans[i-1].From, s.From, d.Step)
			}
			requests := int64(0)
			for _, at := range times {
				if !at.Before(s.From) && at.Before(s.From.Add(d.Step)) {
					requests++
				}
			}
			if requests != s.Requests {
				t.Errorf("seed %d: the interval from %v has %d requests; want %d", seed, s.From, s.Requests, requests)
			}
			denied -= s.Denied
		}
		if len(d.Spans) > maxSpans+1 || denied != 0 {
			t.Errorf("seed %d: there are %d intervals, and %d denials are missing; want at most %d, and 0", seed, len(d.Spans), denied, maxSpans+1)
		}
	}
}
