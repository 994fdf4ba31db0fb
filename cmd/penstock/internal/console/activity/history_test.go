package activity

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
)

// model records every growth with its second.
type model map[Series]map[int64]uint64

func (m model) add(s Series, second int64, n uint64) {
	if m[s] == nil {
		m[s] = make(map[int64]uint64)
	}
	m[s][second] += n
}

// counts returns the growth in each of the last n units of time. now and unit are in seconds.
func (m model) counts(s Series, now, unit int64, n int) []uint32 {
	counts := make([]uint32, n)
	for second, grown := range m[s] {
		if i := now/unit - second/unit; i < int64(n) {
			counts[int64(n)-1-i] += uint32(grown)
		}
	}
	return counts
}

// The pauses between samples are like those of a busy, an idle and a suspended process.
func TestHistoryAgreesWithAModel(t *testing.T) {
	seed := effort.Seed()
	t.Logf("PENSTOCK_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	checks := 0
	for range effort.Of(20, 500) {
		h, m := NewHistory(), make(model)
		counters := make(map[Series]uint64)
		at := time.Duration(r.Int64N(int64(time.Hour)))
		for range 300 {
			switch r.IntN(40) {
			case 0:
				at += time.Duration(r.Int64N(int64(30 * time.Hour)))
			case 1:
				at += time.Duration(r.Int64N(int64(20 * time.Minute)))
			case 2:
				at -= time.Duration(r.Int64N(int64(3 * time.Second))) // a time that goes back, which no monotonic clock has
			default:
				at += time.Duration(r.Int64N(int64(2500 * time.Millisecond)))
			}
			at = max(at, 0)
			second := max(h.second, int64(at/time.Second))
			for i := range 3 {
				s := Series{"r", fmt.Sprint(i), "allowed"}
				switch r.IntN(10) {
				case 0: // restarted
					if n := uint64(r.IntN(3)); n < counters[s] {
						counters[s] = n
						m.add(s, second, n)
					}
				case 1, 2, 3:
					grown := uint64(r.IntN(1000))
					counters[s] += grown
					m.add(s, second, grown)
				}
			}
			h.Sample(at, func(add func(Series, uint64)) {
				for s, n := range counters {
					add(s, n)
				}
			})
			if r.IntN(5) > 0 {
				continue
			}
			n := 1 + r.IntN(Seconds)
			for _, line := range h.BySecond(n, nil) {
				if want := m.counts(line.Series, second, 1, n); !slices.Equal(line.Counts, want) {
					t.Fatalf("in second %d, the growth of %v by second is\n%v; want\n%v", second, line.Series, line.Counts, want)
				}
				checks++
			}
			n = 1 + r.IntN(Minutes)
			for _, line := range h.ByMinute(n, nil) {
				if want := m.counts(line.Series, second, 60, n); !slices.Equal(line.Counts, want) {
					t.Fatalf("in second %d, the growth of %v by minute is\n%v; want\n%v", second, line.Series, line.Counts, want)
				}
			}
		}
	}
	t.Logf("counted: %d rings compared with the model", checks)
}

// Late and irregular samples lose no growth and count none twice.
func TestHistoryCountsEveryGrowthOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, start := NewHistory(), time.Now()
		var counter uint64
		sample := func() {
			h.Sample(time.Since(start), func(add func(Series, uint64)) { add(Series{Name: "x"}, counter) })
		}
		sum := func(lines []Line) (n uint64) {
			for _, line := range lines {
				for _, c := range line.Counts {
					n += uint64(c)
				}
			}
			return n
		}
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for range 300 {
			counter += 2
			<-tick.C
			sample()
		}
		if n := sum(h.BySecond(Seconds, nil)); n != 600 {
			t.Errorf("after 300 s, the growth of the last 10 minutes is %d; want 600", n)
		}
		if n := h.Since(60)[Series{Name: "x"}]; n != 120 {
			t.Errorf("after 300 s, the growth of the last minute is %d; want 120", n)
		}
		time.Sleep(9 * time.Minute) // suspended: a ticker drops what was missed
		counter++
		<-tick.C
		sample()
		if n := sum(h.BySecond(Seconds, nil)); n == 0 || n > 130 {
			t.Errorf("after a pause of 9 minutes, the growth of the last 10 minutes is %d; want 1 to 130, because one minute of them was busy", n)
		}
		if n := sum(h.ByMinute(Minutes, nil)); n != 601 {
			t.Errorf("after a pause of 9 minutes, the growth of the last day is %d; want 601", n)
		}
		if n := h.Since(60)[Series{Name: "x"}]; n != 1 {
			t.Errorf("after a pause of 9 minutes, the growth of the last minute is %d; want 1", n)
		}
		time.Sleep(25 * time.Hour)
		sample()
		if n := sum(h.ByMinute(Minutes, nil)) + sum(h.BySecond(Seconds, nil)); n != 0 {
			t.Errorf("after an idle day, the growth of the last day and 10 minutes is %d; want 0", n)
		}
	})
}

// The counters of limits that differ only by their algorithm have one Series. Their sum is sampled:
// otherwise each would look like a restart of the other, and an idle instance would seem busy.
func TestCountersOfOneSeriesAreAddedUp(t *testing.T) {
	h, s := NewHistory(), Series{"penstock", "stated", "allowed"}
	for second, values := range [][]uint64{{20, 3}, {20, 3}, {3, 20}, {25, 3}, {25, 3}} {
		h.Sample(time.Duration(second)*time.Second, func(add func(Series, uint64)) {
			for _, v := range values {
				add(s, v)
			}
		})
	}
	if got := h.Since(60)[s]; got != 28 {
		t.Errorf("the growth of two counters that are 25 and 3 is %d; want 28", got)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := NewHistory()
	sample := func(second int, value uint64) {
		h.Sample(time.Duration(second)*time.Second, func(add func(Series, uint64)) {
			for i := range 2 * MaxSeries {
				add(Series{"r", fmt.Sprint(i), "allowed"}, value)
			}
			add(Series{"r", "never", "allowed"}, 0)
		})
	}
	total := func(n int) (sum uint64) {
		for _, grown := range h.Since(n) {
			sum += grown
		}
		return sum
	}
	sample(1, 3)
	sample(2, 4)
	if n := len(h.rings); n != MaxSeries+1 {
		t.Errorf("there are %d rings; want %d and one for all others", n, MaxSeries)
	}
	if n := total(1); n != 2*MaxSeries {
		t.Errorf("%d events were counted in a second; want %d", n, 2*MaxSeries)
	}
	if n := total(Seconds); n != 4*2*MaxSeries {
		t.Errorf("%d events were counted; want %d", n, 4*2*MaxSeries)
	}
	// After a day without growth, other counters get the rings. The last counter grows from 4 to 9.
	h.Sample(25*time.Hour, func(add func(Series, uint64)) { add(Series{"r", fmt.Sprint(2*MaxSeries - 1), "allowed"}, 9) })
	want := map[Series]uint64{{"r", fmt.Sprint(2*MaxSeries - 1), "allowed"}: 5}
	if got := h.Since(1); !maps.Equal(got, want) {
		t.Errorf("after a day, the growth is %v; want %v", got, want)
	}
}
