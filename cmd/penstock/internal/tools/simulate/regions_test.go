package simulate

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/effort"
)

// A story is what happens to several regions.
type story struct {
	rate     string
	plan     *penstock.Plan
	arrivals string
	regions  Regions
	seed     uint64
}

func (s story) String() string {
	return fmt.Sprintf("%s (%s), %s, %+v", s.rate, s.plan.Algorithm().Title(), s.arrivals, s.regions)
}

// across compiles a rate as a limit across regions.
func across(t testing.TB, rate string, a *algorithm.Algorithm) *penstock.Plan {
	t.Helper()
	limit, err := penstock.ParseRate(rate)
	if err != nil {
		t.Fatal(err)
	}
	return limit.With(algorithm.Across(a)).MustCompile()
}

// divided is a limit across regions that divide it.
func divided(p *penstock.Plan) *penstock.Plan {
	limit := p.Limit()
	return limit.With(algorithm.ShareAcross(limit.Algorithm, 1)).MustCompile()
}

// randomStory draws limits, demand, and what happens to the links and the regions.
func randomStory(t testing.TB, seed uint64) story {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := story{seed: seed, regions: Regions{Count: 2 + rng.IntN(4), Delay: time.Duration(rng.IntN(150)) * time.Millisecond}}
	perSecond, end, mostBurst := []int{10, 30, 100}[rng.IntN(3)], 40, 5 // end in s
	if rng.IntN(3) == 0 {
		perSecond, end, mostBurst = 1+rng.IntN(4), 400, 200 // a slow limit with a large burst
	}
	a := []*algorithm.Algorithm{penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket, penstock.FixedWindow, penstock.SubWindow(5)}[rng.IntN(5)]
	if a == penstock.TokenBucket {
		s.rate = fmt.Sprintf("%d/s, burst %d", perSecond, 5+rng.IntN(mostBurst*perSecond))
	} else {
		period := []int{8, 30}[rng.IntN(2)]
		s.rate = fmt.Sprintf("%d/%ds", period*perSecond, period)
	}
	s.plan = across(t, s.rate, a)
	var items []string
	add := func(region, load, from, length int) {
		if load > 0 {
			items = append(items, fmt.Sprintf("%d/s poisson from %ds for %ds in %d", load, from, length, region))
		}
	}
	switch n := s.regions.Count; rng.IntN(5) {
	case 0: // balanced
		for i := range n {
			add(i+1, (1+rng.IntN(3*perSecond))/n+1, 0, end)
		}
	case 1: // skewed
		for i := range n {
			add(i+1, []int{perSecond * (1 + rng.IntN(3)), perSecond / 10}[min(i, 1)], 0, end)
		}
	case 2: // moves
		for at := 0; at < end; at += end / 5 {
			add(1+rng.IntN(n), perSecond*(1+rng.IntN(5)), at, end/5)
		}
	case 3: // bursts
		for range 12 {
			items = append(items, fmt.Sprintf("%d at %dms in %d", 1+rng.IntN(10*perSecond), rng.IntN(end*1000), 1+rng.IntN(n)))
		}
	case 4: // much more than the limit, everywhere
		for i := range n {
			add(i+1, 3*perSecond, 0, end)
		}
	}
	s.arrivals = strings.Join(items, "; ")
	for range rng.IntN(4) {
		from := rng.IntN(end * 1000)
		length := []int{200, 3000, 6000, end * 750}[rng.IntN(4)]
		cut := Cut{
			Region: 1 + rng.IntN(s.regions.Count), From: time.Duration(from) * time.Millisecond,
			To: time.Duration(from+1+rng.IntN(length)) * time.Millisecond, isOneWay: rng.IntN(3) == 0,
		}
		if rng.IntN(4) == 0 {
			s.regions.hung = append(s.regions.hung, cut)
		} else {
			s.regions.Cuts = append(s.regions.Cuts, cut)
		}
	}
	if rng.IntN(6) == 0 { // a link that fails again and again
		for at := time.Second; at < time.Duration(end)*time.Second; at += 8 * time.Second {
			s.regions.Cuts = append(s.regions.Cuts, Cut{Region: 1, From: at, To: at + time.Duration(rng.IntN(7999)+1)*time.Millisecond})
		}
	}
	if rng.IntN(6) == 0 {
		s.regions.wiped = []Cut{{Region: 1 + rng.IntN(s.regions.Count), From: time.Duration(rng.IntN(end)) * time.Second}}
	}
	if rng.IntN(4) == 0 {
		s.regions.loss = rng.Float64() / 2
	}
	if a != penstock.FixedWindow && rng.IntN(4) == 0 { // clocks differ by up to an hour
		for range s.regions.Count {
			s.regions.ahead = append(s.regions.ahead, time.Duration(rng.Int64N(int64(time.Hour))))
		}
	}
	if rng.IntN(2) == 0 {
		s.plan = divided(s.plan)
	}
	return s
}

// An account is the most that was admitted beyond the limit, and its bound.
type account struct{ over, bound float64 }

// tell simulates a story. It compares each interval with the bound, not only those of one period.
func tell(t testing.TB, s story) (account, *Result, error) {
	return tellEach(t, s, func(Decision) {})
}

// tellEach is tell, and passes each decision to observe.
func tellEach(t testing.TB, s story, observe func(Decision)) (account, *Result, error) {
	arrivals, err := Parse(s.arrivals, s.plan, s.regions.Count)
	if err != nil {
		t.Fatal(err)
	}
	limit := s.plan.Limit()
	var over, level float64
	var last time.Duration
	w := &window{}
	result, r, err := runRegions(Options{
		Limit: s.plan, Arrivals: arrivals, Cost: 1, OnDenied: Drop, Seed: s.seed, Regions: s.regions,
		Observe: func(d Decision) {
			observe(d)
			if !d.IsAllowed {
				return
			}
			at := time.Duration(d.At)
			switch a := limit.Algorithm; {
			case a.RefillsSteadily(): // the level of one bucket that takes all
				level = max(level-float64(at-last)*float64(limit.Count)/float64(limit.Period), 0) + 1
				over, last = max(over, level-float64(s.plan.Capacity())), at
			case a.WindowsDiffer(): // one window for all
				if at/limit.Period != last/limit.Period {
					level = 0
				}
				level, last = level+1, at
				over = max(over, level-float64(limit.Count))
			default:
				over = max(over, float64(w.add(at, 1, limit.Period)-limit.Count))
			}
		},
	})
	if err != nil {
		return account{}, nil, err
	}
	bound := float64(r.beyond(0))
	bound += float64(len(s.regions.wiped)) * float64(regions.Within(s.plan, r.regions[0].lag))
	return account{over, bound + 1e-6}, result, nil // the level is rounded
}

func runRegions(o Options) (*Result, *run, error) {
	r := newRun(o)
	result, err := r.run(context.Background())
	return result, r, err
}

// TestRegionsAddNothingAfterSilence has stories in which only one rule keeps the regions within the
// limit and what arrives within the lag, which is little.
func TestRegionsAddNothingAfterSilence(t *testing.T) {
	const slow, fast = "1/s, burst 1000", "10/s, burst 6"
	cut := Cut{Region: 2, From: 0, To: 1000 * time.Second}
	for name, c := range map[string]struct {
		story
		most float64 // units beyond the limit
	}{
		"a share that rises brings no burst":             {story{rate: slow, arrivals: "1/20s for 900s in 1; 1/20s for 900s in 2; 5/s from 900s for 300s in 1; 5/s from 900s for 100s in 2", regions: Regions{Cuts: []Cut{cut}}}, 21},
		"a region that does not ask is not in contact":   {story{rate: slow, arrivals: "5/s from 500s for 200s in 1; 5/s from 700s for 200s in 2", regions: Regions{hung: []Cut{cut}}}, 21},
		"what was granted without contact is not lost":   {story{rate: slow, arrivals: "5/s from 900s for 200s in 1; 5/s from 900s for 200s in 2", regions: Regions{Cuts: []Cut{cut}}}, 21},
		"a link that fails again and again adds nothing": {story{rate: fast, arrivals: "50/s for 500s in 1; 50/s for 500s in 2", regions: Regions{Cuts: failing(500*time.Second, 6500*time.Millisecond)}}, 48},
		"and if it works for longer, neither":            {story{rate: fast, arrivals: "50/s for 500s in 1; 50/s for 500s in 2", regions: Regions{Cuts: failing(500*time.Second, 5*time.Second)}}, 48},
		"a region without data knows the others":         {story{rate: slow, arrivals: "5/s from 700s for 200s in 1; 5/s from 901s for 100s in 2", regions: Regions{wiped: []Cut{{Region: 2, From: 900 * time.Second}}}}, 1026},
	} {
		s := c.story
		s.plan, s.seed = across(t, s.rate, penstock.TokenBucket), 1
		s.regions.Count, s.regions.Delay = 2, 80*time.Millisecond
		a, result, err := tell(t, s)
		if err != nil || a.over > c.most {
			t.Errorf("%s: %.1f units beyond the limit; want at most %.0f; %v; %+v", name, a.over, c.most, err, result)
		}
		t.Logf("%s: %.1f units beyond the limit, at most %.0f", name, a.over, c.most)
	}
}

// TestTheBoundIsNearlyReached: regions that all use what they cannot know of each other reach more
// than half of the bound.
func TestTheBoundIsNearlyReached(t *testing.T) {
	for name, s := range map[string]story{
		"a burst at once":         {rate: "1/s, burst 100", arrivals: "100 at 10s in 1; 100 at 10s in 2; 100 at 10s in 3"},
		"as the links fail":       {rate: "100/s, burst 300", arrivals: "300/s from 20s for 20s in 1; 300/s from 20s for 20s in 2; 300/s from 20s for 20s in 3", regions: Regions{Cuts: []Cut{{1, 20 * time.Second, time.Minute, false}, {2, 20 * time.Second, time.Minute, false}}}},
		"its own share, slowly":   {rate: "1/s, burst 300", arrivals: "10/s for 40s in 1; 10/s from 45s for 40s in 2"},
		"a window in all at once": {rate: "100/30s", arrivals: "100 at 31s in 1; 100 at 31s in 2; 100 at 31s in 3"},
	} {
		a := penstock.TokenBucket
		if !strings.Contains(s.rate, "burst") {
			a = penstock.FixedWindow
		}
		s.plan, s.seed = across(t, s.rate, a), 1
		s.regions.Count, s.regions.Delay = 3, 80*time.Millisecond
		got, result, err := tell(t, s)
		if err != nil || got.over > got.bound || got.over < got.bound/2 {
			t.Errorf("%s: %.1f units beyond the limit, the bound is %.1f; %v; %+v", name, got.over, got.bound, err, result)
		}
		t.Logf("%s: %.0f %% of the bound of %.1f", name, 100*got.over/got.bound, got.bound)
	}
}

// failing are cuts of a link that fails for a time once in 8 s.
func failing(end, length time.Duration) (cuts []Cut) {
	for at := time.Duration(0); at < end; at += 8 * time.Second {
		cuts = append(cuts, Cut{Region: 1, From: at, To: at + length})
	}
	return cuts
}

func TestRegionsAdmitAtMostTheBound(t *testing.T) {
	stories := effort.Of(50, 100_000)
	const reserve = 5 * time.Minute // for the other tests of a soak on a slow machine
	deadline, hasDeadline := t.Deadline()
	var next, told atomic.Int64
	var mu sync.Mutex
	most := 0.0
	t.Run("stories", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := next.Add(1) - 1; i < int64(stories); i = next.Add(1) - 1 {
					if effort.IsSoak && hasDeadline && time.Until(deadline) < reserve {
						return
					}
					s := randomStory(t, effort.Seed()+uint64(i))
					a, _, err := tell(t, s)
					if err != nil || a.over > a.bound {
						t.Errorf("PENSTOCK_SEED=%d: %.1f units beyond the limit, the bound is %.1f; %v: %v", s.seed, a.over, a.bound, err, s)
					}
					told.Add(1)
					mu.Lock()
					if a.bound > 1 {
						most = max(most, a.over/a.bound)
					}
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("counted: %d stories of regions; at most %.0f %% of the bound was used", told.Load(), 100*most)
}

// TestEachRegionHasItsShare: under lasting overload, each region gets what a bucket of its own with
// an equal part of the limit admits, also after a cut. Without a cut, the whole limit is used.
func TestEachRegionHasItsShare(t *testing.T) {
	stories, least := effort.Of(15, 1000), math.Inf(1)
	for i := range uint64(stories) {
		rng := rand.New(rand.NewPCG(effort.Seed()+i, 2))
		n, perSecond := 2+rng.IntN(4), 60+rng.IntN(60)
		s := story{seed: effort.Seed() + i, rate: fmt.Sprintf("%d/s, burst %d", perSecond, n+rng.IntN(3*perSecond)), regions: Regions{Count: n, Delay: time.Duration(rng.IntN(150)) * time.Millisecond}}
		s.plan = across(t, s.rate, penstock.TokenBucket)
		demands, sum := make([]float64, n), 0.0
		for sum < 1.3*float64(perSecond) { // overload
			sum = 0
			for j := range demands {
				demands[j] = float64(1+rng.IntN(20)) / 10 * float64(perSecond)
				if rng.IntN(3) == 0 {
					demands[j] /= 2 * float64(n) // less than its share
				}
				sum += demands[j]
			}
		}
		from, to := 20*time.Second, 80*time.Second
		if rng.IntN(2) == 0 {
			s.regions.Cuts = []Cut{{Region: 1 + rng.IntN(n), From: 10 * time.Second, To: 30 * time.Second, isOneWay: rng.IntN(3) == 0}}
			from = 45 * time.Second
		}
		var items []string
		for j, d := range demands {
			items = append(items, fmt.Sprintf("%d/s poisson for 80s in %d", int(d)+1, j+1))
		}
		s.arrivals = strings.Join(items, "; ")
		burst := s.plan.Capacity()
		last, level := make([]time.Duration, n), make([]float64, n) // of a bucket with an equal part of the limit
		want, got, all := make([]float64, n), make([]float64, n), 0.0
		if _, _, err := tellEach(t, s, func(d Decision) {
			at, j := time.Duration(d.At), d.Region-1
			isMeasured := at >= from && at < to
			level[j] = max(level[j]-(at-last[j]).Seconds()*float64(perSecond)/float64(n), 0)
			last[j] = at
			if level[j]+1 <= float64(burst)/float64(n) {
				level[j]++
				if isMeasured {
					want[j]++
				}
			}
			if d.IsAllowed {
				all++
			}
			if d.IsAllowed && isMeasured {
				got[j]++
			}
		}); err != nil {
			t.Fatal(err)
		}
		limit := float64(burst) + float64(perSecond)*to.Seconds()
		if len(s.regions.Cuts) == 0 && all < 0.98*limit { // after a cut, debts are paid first
			t.Errorf("PENSTOCK_SEED=%d: %.0f units are admitted of a limit of %.0f: %v", s.seed, all, limit, s)
		}
		for j := range n {
			part := got[j] / want[j]
			if least = min(least, part); part < 0.9 {
				t.Errorf("PENSTOCK_SEED=%d: region %d gets %.0f units, %.0f %% of what a bucket of its own admits: %v", s.seed, j+1, got[j], 100*part, s)
			}
		}
	}
	t.Logf("counted: %d stories of overload; a region gets at least %.0f %% of what a bucket of its own admits", stories, 100*least)
}
