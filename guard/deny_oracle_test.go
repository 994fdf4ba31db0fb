package guard_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A trace is a random sequence of calls to a guarded store, reproducible by its seed.
type trace struct {
	t        *testing.T
	seed     uint64
	rand     *rand.Rand
	limits   []*penstock.Plan
	cache    *guard.DenyCache // around store
	store    *memstore.Store
	uncached *memstore.Store // gets the same charges, at the same times, without a cache
	step     int
	timeStep time.Duration // pauses are multiples of it; with 1 µs, both stores round all times alike
	log      []string

	// Counts of denials by the cache.
	cached  int // all
	exact   int // of one charge, with the RetryAfter of the store
	early   int // of one charge, with a shorter RetryAfter
	patient int // of a first charge with Patience
	batches int // of several charges
}

func newTrace(t *testing.T, seed uint64, timeStep time.Duration, o guard.DenySetup) *trace {
	r := rand.New(rand.NewPCG(seed, 1))
	tr := &trace{t: t, seed: seed, timeStep: timeStep, rand: r, store: memstore.New(memstore.Options{}), uncached: memstore.New(memstore.Options{})}
	tr.cache = guard.NewDenyCache(tr.store, o)
	algorithms := []*algorithm.Algorithm{
		penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow,
		penstock.SlidingLog, penstock.SubWindow(1 + r.IntN(6)), penstock.CalendarWindow(algorithm.Day, time.UTC), penstock.Concurrency,
	}
	for i := range 3 {
		limit := penstock.Limit{
			Name:      fmt.Sprintf("limit-%d", i),
			Algorithm: algorithms[r.IntN(len(algorithms))],
			Count:     1 + r.Int64N(12),
			Period:    []time.Duration{700 * time.Microsecond, 37 * time.Millisecond, time.Second, 10 * time.Second, time.Hour}[r.IntN(5)],
		}
		if limit.Algorithm.CanBook() && r.IntN(2) == 0 || limit.Algorithm.NeedsHolder() {
			limit.Burst = 1 + r.Int64N(15)
		}
		limit.ShouldCountDenied = limit.Algorithm.CountsDenied() && r.IntN(4) == 0
		if limit.Algorithm.NeedsHolder() {
			limit.Period = max(limit.Period, 37*time.Millisecond)
		}
		if limit.Algorithm == penstock.LeakyBucket {
			limit.Burst = r.Int64N(8)
		}
		tr.limits = append(tr.limits, limit.MustCompile())
	}
	return tr
}

// pause lets some time pass, often about as much as the limits need. In one of six cases, it lets
// none pass.
func (tr *trace) pause() {
	switch tr.rand.IntN(6) {
	case 0:
		tr.sleep(20 * time.Millisecond)
	case 1:
		tr.sleep(tr.limits[tr.rand.IntN(len(tr.limits))].Limit().Period / 4)
	case 2:
		tr.sleep(time.Millisecond)
	case 3, 4:
		tr.sleep(3 * time.Microsecond)
	}
}

// sleep waits for a random time of at most below.
func (tr *trace) sleep(below time.Duration) {
	time.Sleep(time.Duration(tr.rand.Int64N(int64(below)) + 1).Truncate(tr.timeStep))
}

// charges returns a random batch with this mode. If the mode is Spend, some charges peek or draw
// instead.
func (tr *trace) charges(mode penstock.Mode) []penstock.Charge {
	var charges []penstock.Charge
	first := tr.rand.IntN(len(tr.limits))
	size := 1
	if tr.rand.IntN(3) == 0 {
		size += tr.rand.IntN(len(tr.limits))
	}
	key := fmt.Sprint("key-", tr.rand.IntN(2))
	for i := range size {
		limit := tr.limits[(first+i)%len(tr.limits)]
		c := penstock.Charge{Key: key, Plan: limit, Cost: 1, Mode: mode}
		switch tr.rand.IntN(4) {
		case 0:
			c.Cost = tr.rand.Int64N(limit.Limit().Count + 3)
		case 1:
			c.Cost = 1 + tr.rand.Int64N(3)
		}
		if mode == penstock.Spend {
			c.Mode = []penstock.Mode{penstock.Spend, penstock.Spend, penstock.Spend, penstock.Draw, penstock.Peek}[tr.rand.IntN(5)]
		}
		if tr.rand.IntN(3) == 0 {
			c.Patience = min(time.Duration(tr.rand.Int64N(int64(limit.Limit().Period)))/2, time.Hour)
		}
		if limit.Algorithm().NeedsHolder() || tr.rand.IntN(4) == 0 {
			c.Holder = fmt.Sprint("holder-", tr.rand.IntN(6))
		}
		charges = append(charges, c)
	}
	return charges
}

func (tr *trace) decide(s penstock.Store, charges []penstock.Charge) penstock.Decision {
	d, err := s.Decide(tr.t.Context(), charges)
	if err != nil {
		tr.fatal("the error is %v; want a decision", err)
	}
	return d
}

func (tr *trace) fatal(format string, args ...any) {
	tr.t.Helper()
	tr.t.Fatalf("seed %d, step %d, limits %v: %s\nthe last steps:\n%v", tr.seed, tr.step, tr.limits, fmt.Sprintf(format, args...), tr.log)
}

// note adds a decision to the log, which keeps the last logLength decisions.
func (tr *trace) note(d penstock.Decision, charges []penstock.Charge) {
	line := fmt.Sprintf("%v by %v:", time.Now().Format("15:04:05.000000000"), d.Source)
	for i, c := range charges {
		line += fmt.Sprintf(" %v %s %s cost %d patience %v: %+v;", c.Mode, c.Key, c.Plan.Name(), c.Cost, c.Patience, d.Status(i))
	}
	tr.log = append(tr.log, line+"\n")
	if len(tr.log) > logLength {
		tr.log = tr.log[1:]
	}
}

const logLength = 12

// anyMode returns a random mode, mostly Spend.
func (tr *trace) anyMode() penstock.Mode {
	switch tr.rand.IntN(40) {
	case 0:
		return penstock.Reset
	case 1, 2:
		return penstock.Refund
	case 3:
		return penstock.Force
	}
	return penstock.Spend
}

// spendingMode returns Spend, or sometimes Force. These modes free no units.
func (tr *trace) spendingMode() penstock.Mode {
	if tr.rand.IntN(40) == 0 {
		return penstock.Force
	}
	return penstock.Spend
}

// Every decision through the cache is compared with that of a store without a cache, which gets the
// same calls. All refunds go through the cache, so no denial may be false.
func TestCachedDenialsAreThoseOfTheStore(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	const steps = 400
	seeds := max(seeds(1000), 200) // as many in make quick: fewer may find no patient denial
	var all trace
	for i := range uint64(seeds) {
		seed := effort.Seed() + i
		synctest.Test(t, func(t *testing.T) {
			maxAge := []time.Duration{0, 50 * time.Millisecond, time.Hour}[seed%3] // 0: the default of 1 s
			tr := newTrace(t, seed, time.Microsecond, guard.DenySetup{MaxAge: maxAge, MaxEntries: 8 << (seed % 5), Grants: seed%2 == 1})
			for tr.step = range steps {
				tr.pause()
				charges := tr.charges(tr.anyMode())
				d, want := tr.decide(tr.cache, charges), tr.decide(tr.uncached, charges)
				tr.note(d, charges)
				tr.compare(charges, d, want)
			}
			all.add(tr)
		})
	}
	// With 200 seeds there are about 3,300 cached denials, of which 97 % are exact, 100 are of batches
	// and 11 are patient. So none is patient with a chance of e^-11, or 2·10^-5.
	if all.cached < seeds || all.exact < all.cached/20 || all.patient == 0 || all.batches == 0 {
		t.Errorf("the cached denials are %d: %d exact, %d early, %d patient and %d of batches; want at least %d, a twentieth of them exact, and some patient ones and batches",
			all.cached, all.exact, all.early, all.patient, all.batches, seeds)
	}
	t.Logf("counted: %d cached denials equal to the store's (0 false; %d batches, %d patient; %d with a RetryAfter that is too short, "+
		"%d to the microsecond)", all.cached, all.batches, all.patient, all.early, all.exact)
}

// compare fails the test if the results differ, or if the RetryAfter of a cached denial is too
// long. Decisions of the store must be equal in every field.
func (tr *trace) compare(charges []penstock.Charge, d, want penstock.Decision) {
	if d.Allowed != want.Allowed || d.Len() != want.Len() {
		tr.fatal("allowed %v by %v; want %v, as by the store alone", d.Allowed, d.Source, want.Allowed)
	}
	for i := range charges {
		got, truth := d.Status(i), want.Status(i)
		if d.Source == penstock.FromStore {
			if got != truth {
				tr.fatal("charge %d: %+v from the guarded store; want %+v, as from the store alone", i, got, truth)
			}
			continue
		}
		if got.Granted != 0 || got.Wait != 0 || got.RetryAfter > truth.RetryAfter {
			tr.fatal("charge %d: the cache returns %+v, and the store %+v; want no Granted, no Wait, and at most the store's RetryAfter", i, got, truth)
		}
		if len(charges) == 1 && !isExact(charges[i], got, truth) {
			tr.fatal("charge %d: the cache returns %+v, and the store %+v; want the same", i, got, truth)
		}
	}
	if d.Source == penstock.FromDenyCache {
		tr.cached++
		switch {
		case len(charges) > 1:
			tr.batches++
		case d.RetryAfter() < want.RetryAfter():
			tr.early++
		default:
			tr.exact++
		}
		if charges[0].Patience > 0 && charges[0].Plan.Algorithm().CanBook() {
			tr.patient++
		}
	}
}

func (tr *trace) add(other *trace) {
	tr.cached += other.cached
	tr.exact += other.exact
	tr.early += other.early
	tr.patient += other.patient
	tr.batches += other.batches
}

// A refund by another instance is noticed when the denial is MaxAge old, or earlier.
func TestRefundsElsewhereAreNoticedWithinMaxAge(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	const steps = 400
	seeds := seeds(1000)
	cached, wrong, latest := 0, 0, time.Duration(0)
	for i := range uint64(seeds) {
		seed := effort.Seed() + i
		synctest.Test(t, func(t *testing.T) {
			maxAge := []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, time.Second}[seed%3]
			tr := newTrace(t, seed, time.Nanosecond, guard.DenySetup{MaxAge: maxAge})
			freed := time.Now().Add(-time.Hour) // when units last came back
			for tr.step = range steps {
				tr.pause()
				if mode := tr.anyMode(); mode == penstock.Refund || mode == penstock.Reset {
					tr.decide(tr.store, tr.charges(mode)) // not through the cache
					freed = time.Now()
					continue
				}
				charges := tr.charges(tr.spendingMode())
				var peeks []penstock.Charge
				for _, c := range charges {
					peeks = append(peeks, asPeek(c))
				}
				truth := tr.decide(tr.store, peeks)
				d := tr.decide(tr.cache, charges)
				tr.note(d, charges)
				if d.Source != penstock.FromDenyCache {
					continue
				}
				cached++
				if truth.Allowed {
					wrong++
					late := time.Since(freed)
					latest = max(latest, late)
					if late >= maxAge {
						tr.fatal("a cached denial is used %v after units came back; want less than MaxAge, %v", late, maxAge)
					}
				}
			}
		})
	}
	// With 125 seeds there are about 4,400 denials, and 480 of them are false.
	if wrong == 0 || cached < seeds {
		t.Errorf("the cache denied %d times, %d of them falsely; want at least %d denials, and some false", cached, wrong, seeds)
	}
	t.Logf("counted: %d cached denials while others refund units (%d false, the latest %v after the refund)", cached, wrong, latest)
}

// asPeek returns a Peek that is allowed exactly if c would be.
func asPeek(c penstock.Charge) penstock.Charge {
	if c.Mode == penstock.Draw {
		c.Cost = min(c.Cost, 1)
	}
	c.Mode = penstock.Peek
	return c
}

// seeds returns how many seeds a run tries: a third of n, because each run has new seeds, and 20
// times n in a soak.
func seeds(n int) int { return effort.Of((n+7)/8, 20*n) }

// isExact reports whether a cached status equals that of the store, to the microsecond. A
// RetryAfter may be 1 µs too short, and a unit of a bucket may be counted 1 µs late. Units of a
// sliding window or log that have come back, but are too few for the request, are not counted.
func isExact(c penstock.Charge, got, want penstock.Status) bool {
	if want.RetryAfter != penstock.Never && got.RetryAfter == want.RetryAfter-time.Microsecond {
		got.RetryAfter = want.RetryAfter
	}
	limit := c.Plan.Limit()
	switch a := limit.Algorithm; {
	case a.RefillsSteadily():
		unitAt := time.Duration(c.Plan.Capacity()-want.Remaining) * limit.Period / time.Duration(limit.Count) // before ResetAfter is 0
		if got.Remaining == want.Remaining-1 && (want.ResetAfter-unitAt).Abs() <= time.Microsecond {
			got.Remaining = want.Remaining
		}
	case a.Decay() != algorithm.DecayAtReset:
		got.Remaining = max(got.Remaining, want.Remaining)
	}
	return got == want
}

// Three instances deny requests of different costs to busy keys from their caches. Each cached
// denial has the numbers that the store would return at that moment.
func TestCachedDenialsOfMixedCostsAreExact(t *testing.T) {
	t.Parallel()
	const runs, callsOfRun = 13, 2_000
	cached := 0
	for run := range uint64(runs) {
		seed := effort.Seed() + run
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			store := memstore.New(memstore.Options{})
			var instances [3]*guard.DenyCache
			for i := range instances {
				instances[i] = guard.NewDenyCache(store, guard.DenySetup{Grants: true})
			}
			algorithms := []*algorithm.Algorithm{
				penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow,
				penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SlidingLog, penstock.SubWindow(4),
			}
			limit := penstock.Limit{Name: "busy", Algorithm: algorithms[random.IntN(len(algorithms))], Count: 5 + random.Int64N(200), Period: time.Second}
			if limit.Algorithm == penstock.LeakyBucket {
				limit.Burst = 9
			}
			plan := limit.MustCompile()
			for call := range callsOfRun {
				time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
				c := penstock.Charge{Key: fmt.Sprint(random.IntN(4)), Plan: plan, Cost: 1 + random.Int64N(10)}
				switch random.IntN(8) {
				case 0:
					c.Mode = penstock.Draw
				case 1:
					c.Mode = penstock.Peek
				}
				want := decide(t, store, asPeek(c)).Status(0)
				d := decide(t, instances[random.IntN(len(instances))], c)
				if d.Source != penstock.FromDenyCache {
					continue
				}
				cached++
				if got := d.Status(0); !isExact(c, got, want) {
					t.Errorf("seed %d, call %d, %v, %v of cost %d: the cache returns %+v, and the store %+v; want the same", seed, call, plan, c.Mode, c.Cost, got, want)
				}
			}
		})
	}
	if cached < runs*callsOfRun/20 {
		t.Errorf("%d of %d calls were answered by a cache; want at least a twentieth", cached, runs*callsOfRun)
	}
	t.Logf("counted: %d calls at three instances, %d answered by a cache, all exact", runs*callsOfRun, cached)
}

// Requests of one cost are denied by the cache until they fit, although some units are left.
func TestEqualCostsOverTheLimitCostTheStoreLittle(t *testing.T) {
	for _, cost := range []int64{1, 7} {
		synctest.Test(t, func(t *testing.T) {
			store := newCountingStore()
			cache := guard.NewDenyCache(store, guard.DenySetup{Grants: true})
			plan := penstock.PerSecond(20).MustCompile()
			granted := 0
			for range 10_000 {
				time.Sleep(time.Millisecond)
				if decide(t, cache, spend("k", plan, cost)).Allowed {
					granted++
				}
			}
			const unknown = 64 // requests until the cache knows the smallest cost
			if calls := int(store.calls.Load()); calls > granted*11/10+unknown {
				t.Errorf("with cost %d, 10000 requests took %d calls of the store, for %d grants; want hardly more calls than grants", cost, calls, granted)
			}
		})
	}
}
