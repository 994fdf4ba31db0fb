package guard_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

var seedOfBound = flag.Int64("bound.seed", -1, "run the tests of Fallback's bound with this seed only; below 0: with all seeds")

const tolerance = 1e-6 // units; for the rounding of floating-point numbers

// A fleet is several instances that share a store.
type fleet struct {
	*faulty
	instances []penstock.Store
	charge    penstock.Charge
	admitted  []admitted
	next      int   // index of the instance that decideBalanced calls next
	decisions int64 // number of charges that were sent
}

type admitted struct {
	at    time.Time
	units int64
}

// newFleet returns n instances. In an outage, the share of each is the limit divided by counted.
func newFleet(n, counted int, limit *penstock.Plan) *fleet {
	f := &fleet{faulty: newFaulty(), charge: penstock.Charge{Key: "k", Plan: limit, Cost: 1}}
	for range n {
		f.instances = append(f.instances, guard.Fallback(guard.FallbackOptions{Instances: func() int { return counted }})(f.faulty))
	}
	return f
}

// decideCost sends a charge of this cost to one instance.
func (f *fleet) decideCost(t *testing.T, instance int, cost int64) (isAllowed bool) {
	c := f.charge
	c.Cost = cost
	f.decisions++
	d, err := f.instances[instance].Decide(t.Context(), []penstock.Charge{c})
	if err != nil {
		t.Fatal(err)
	}
	if d.Allowed {
		f.admitted = append(f.admitted, admitted{at: time.Now(), units: cost})
	}
	return d.Allowed
}

// decideBalanced sends charges of one unit to the instances in turn, so that each admits as much as
// the others.
func (f *fleet) decideBalanced(t *testing.T) {
	if f.decideCost(t, f.next, 1) {
		f.next = (f.next + 1) % len(f.instances)
	}
}

// maxBeyondRate returns the most units beyond a rate that were admitted in any interval since
// start. This number is the highest level of a bucket that leaks at the rate.
func (f *fleet) maxBeyondRate(start time.Time, perSecond float64) (most float64) {
	level, last := 0.0, start
	for _, a := range f.admitted {
		if a.at.Before(start) {
			continue
		}
		level = max(0, level-perSecond*a.at.Sub(last).Seconds()) + float64(a.units)
		most, last = max(most, level), a.at
	}
	return most
}

// maxInWindow returns the most units that were admitted in any window of this length. If isAligned
// is true, windows begin at multiples of the length. If it is false, they begin at any time.
func (f *fleet) maxInWindow(length time.Duration, isAligned bool) (most int64) {
	sum, first := int64(0), 0
	for _, a := range f.admitted {
		for ; first < len(f.admitted); first++ {
			b := f.admitted[first]
			isInWindow := a.at.Sub(b.at) < length
			if isAligned {
				isInWindow = b.at.Truncate(length).Equal(a.at.Truncate(length))
			}
			if isInWindow {
				break
			}
			sum -= b.units
		}
		sum += a.units
		most = max(most, sum)
	}
	return most
}

// A load makes requests arrive at random times.
type load struct {
	*rand.Rand
	gap time.Duration // between two arrivals on average
}

// arriveFor calls arrive for each request that arrives within the duration d.
func (l load) arriveFor(d time.Duration, arrive func()) {
	for end := time.Now().Add(d); ; {
		time.Sleep(time.Duration(l.ExpFloat64() * float64(l.gap)))
		if time.Now().After(end) {
			return
		}
		together := 1 + l.IntN(3)*l.IntN(4) // 2.5 on average
		for range together {
			arrive()
		}
	}
}

// simulateSeeds runs a simulation for each seed, and prints the command that replays a failed one.
// name is the name of the test.
func simulateSeeds(t *testing.T, seeds int, name string, simulate func(t *testing.T, random *rand.Rand)) {
	tried := 0
	for seed := range uint64(seeds) {
		if *seedOfBound >= 0 && seed != uint64(*seedOfBound) {
			continue
		}
		tried++
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("replay: go test ./guard -run %s -bound.seed=%d", name, seed)
				}
			}()
			random := rand.New(rand.NewPCG(seed, 1))
			time.Sleep(time.Duration(random.Int64N(int64(time.Hour)))) // at any phase of a window
			simulate(t, random)
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("counted: %d seeds of %s", tried, name)
}

// randomBucket returns a random limit, with its burst and its rate.
func randomBucket(random *rand.Rand) (limit penstock.Limit, burst, perSecond float64) {
	limit = penstock.Limit{Name: "l", Count: 1 + random.Int64N(100), Period: time.Duration(1+random.IntN(3)) * time.Second}
	limit.Burst = 1 + random.Int64N(2*limit.Count)
	return limit, float64(limit.Burst), float64(limit.Count) / limit.Period.Seconds()
}

// load returns a load with a random rate: 0.4 to 4 times perSecond, because 2.5 requests arrive
// after each gap.
func (f *fleet) load(random *rand.Rand, perSecond float64) load {
	return load{random, time.Duration(float64(2*time.Second) / perSecond / (0.3 + 3*random.Float64()))}
}

// boundOf returns the Over of Bounds for a limit that n instances share, in the situation when.
func boundOf(t *testing.T, n int, limit penstock.Limit, when string) float64 {
	for _, b := range (guard.Options{Instances: n}).Bounds(limit.MustCompile()) {
		if b.When == when {
			return float64(b.MaxExcess)
		}
	}
	t.Fatalf("Bounds has no bound for %q; want one", when)
	return 0
}

// Let n instances each have a share of 1/counted in an outage. In any interval they admit at most
// n/counted of the limit's burst and of its rate. Rounding adds at most n units, for any load.
func TestOutageAdmitsNoMoreThanTheShares(t *testing.T) {
	effort.SkipUnderRace(t)
	tightest := 0.0 // the largest fraction of the bound that a seed reached
	simulateSeeds(t, 300, "TestOutageAdmitsNoMoreThanTheShares", func(t *testing.T, random *rand.Rand) {
		limit, burst, perSecond := randomBucket(random)
		n := 1 + random.IntN(12)
		counted := max(1, n+random.IntN(5)-2)
		f := newFleet(n, counted, compiled(t, limit))
		load := f.load(random, perSecond*float64(n)/float64(counted))
		maxCost := 1 + random.Int64N(3)
		decideAnywhere := func() { f.decideCost(t, random.IntN(n), 1+random.Int64N(maxCost)) }
		load.arriveFor(2*time.Second, decideAnywhere)
		f.setFault(alwaysDown)
		start := time.Now()
		load.arriveFor(time.Duration(1+random.IntN(20))*time.Second, decideAnywhere)
		factor := float64(n) / float64(counted)
		got, bound := f.maxBeyondRate(start, factor*perSecond), factor*burst+float64(n)
		if got > bound+tolerance {
			t.Errorf("%d instances with shares for %d, limit %v: %.3f units beyond the rate; the bound is %.3f", n, counted, limit, got, bound)
		}
		tightest = max(tightest, got/bound)
		if calls := f.calls.Load(); calls != f.decisions {
			t.Errorf("the store was called %d times for %d decisions; want once for each", calls, f.decisions)
		}
	})
	t.Logf("the tightest seed reached %.0f %% of the bound", 100*tightest)
	if *seedOfBound < 0 && tightest < 0.9 {
		t.Errorf("the tightest seed reached %.0f %% of the bound; want at least 90 %%", 100*tightest)
	}
}

// Under balanced load, the beginning of an outage adds no units. An interval with this beginning
// admits the burst, the rate and n units of rounding. An interval with the end of the outage may
// admit one more burst.
func TestOutageAddsNothingUnderBalancedLoad(t *testing.T) {
	effort.SkipUnderRace(t)
	tightest := 0.0 // the largest fraction of the bound that a seed reached
	simulateSeeds(t, 300, "TestOutageAddsNothingUnderBalancedLoad", func(t *testing.T, random *rand.Rand) {
		limit, burst, perSecond := randomBucket(random)
		n := 1 + random.IntN(12)
		f := newFleet(n, n, compiled(t, limit))
		load := f.load(random, perSecond)
		start := time.Now()
		decideBalanced := func() { f.decideBalanced(t) }
		load.arriveFor(time.Duration(random.Int64N(int64(5*time.Second))), decideBalanced)
		f.setFault(alwaysDown)
		load.arriveFor(time.Duration(random.Int64N(int64(5*time.Second))), decideBalanced)
		got, bound := f.maxBeyondRate(start, perSecond), burst+float64(n)
		if got > bound+tolerance {
			t.Errorf("%d instances, limit %v: %.3f units beyond the rate around the beginning of the outage; the bound is %.3f", n, limit, got, bound)
		}
		tightest = max(tightest, got/bound)
		f.setFault(nil)
		calls := f.calls.Load()
		before := f.decisions
		load.arriveFor(5*time.Second, decideBalanced)
		if got, bound := f.maxBeyondRate(start, perSecond), burst+float64(n)+boundOf(t, n, limit, "store returns"); got > bound+tolerance {
			t.Errorf("%d instances, limit %v: %.3f units beyond the rate around the end of the outage; the bound is %.3f", n, limit, got, bound)
		}
		if f.calls.Load()-calls != f.decisions-before {
			t.Errorf("after the outage the store was called %d times for %d decisions; want once for each", f.calls.Load()-calls, f.decisions-before)
		}
	})
	t.Logf("the tightest seed reached %.0f %% of the bound", 100*tightest)
	if *seedOfBound < 0 && tightest < 0.9 {
		t.Errorf("the tightest seed reached %.0f %% of the bound; want at least 90 %%", 100*tightest)
	}
}

// If one instance had all of the load, the other instances may also admit their shares: (n-1)/n of
// the burst.
func TestOutageUnderFullSkewAddsTheOthersShares(t *testing.T) {
	effort.SkipUnderRace(t)
	tightest := 0.0 // the largest fraction of the bound that a seed reached
	simulateSeeds(t, 200, "TestOutageUnderFullSkewAddsTheOthersShares", func(t *testing.T, random *rand.Rand) {
		limit, burst, perSecond := randomBucket(random)
		n := 2 + random.IntN(8)
		f := newFleet(n, n, compiled(t, limit))
		start := time.Now()
		for f.decideCost(t, 0, 1) {
		}
		f.setFault(alwaysDown)
		if f.decideCost(t, 0, 1) {
			t.Errorf("the instance that had all of the load admits another unit; want a denial")
		}
		f.load(random, perSecond).arriveFor(3*time.Second, func() { f.decideCost(t, random.IntN(n), 1) })
		got, bound := f.maxBeyondRate(start, perSecond), burst+boundOf(t, n, limit, "store fails")
		if got > bound+tolerance {
			t.Errorf("%d instances, limit %v: %.3f units beyond the rate; the bound is %.3f", n, limit, got, bound)
		}
		tightest = max(tightest, got/bound)
	})
	t.Logf("the tightest seed reached %.0f %% of the bound", 100*tightest)
	if *seedOfBound < 0 && tightest < 0.9 {
		t.Errorf("the tightest seed reached %.0f %% of the bound; want at least 90 %%", 100*tightest)
	}
}

// Windows have the same bound: in one window, n instances admit at most n units more than the
// limit.
func TestWindowsOverTheBeginningOfAnOutage(t *testing.T) {
	effort.SkipUnderRace(t)
	simulateSeeds(t, 300, "TestWindowsOverTheBeginningOfAnOutage", func(t *testing.T, random *rand.Rand) {
		kinds := []string{"fixed", "log", "sub", "slots"}
		kind := kinds[random.IntN(len(kinds))]
		limit := penstock.Limit{Name: "l", Algorithm: divisibleAlgorithms[kind], Count: 1 + random.Int64N(60), Period: time.Duration(1+random.IntN(3)) * time.Second}
		n := 1 + random.IntN(12)
		f := newFleet(n, n, compiled(t, limit))
		load := f.load(random, float64(limit.Count)/limit.Period.Seconds())
		decideBalanced := func() {
			f.charge.Holder = fmt.Sprint(f.decisions) // a new holder each time, which never renews
			f.decideBalanced(t)
		}
		load.arriveFor(time.Duration(random.Int64N(int64(6*time.Second))), decideBalanced)
		f.setFault(alwaysDown)
		load.arriveFor(6*time.Second, decideBalanced)
		if got, most := f.maxInWindow(limit.Period, kind == "fixed"), limit.Count+int64(n); got > most {
			t.Errorf("%d instances, limit %v: %d units in one window; the bound is %d", n, limit, got, most)
		}
	})
}

// In an outage, a single instance makes the decisions that the store would make.
func TestOneInstanceAnswersAsTheStoreWould(t *testing.T) {
	effort.SkipUnderRace(t)
	names := []string{}
	for name := range divisibleAlgorithms {
		names = append(names, name)
	}
	slices.Sort(names)
	simulateSeeds(t, 300, "TestOneInstanceAnswersAsTheStoreWould", func(t *testing.T, random *rand.Rand) {
		f, reference := newFaulty(), memstore.New(memstore.Options{})
		store := guard.Fallback(guard.FallbackOptions{})(f)
		var limits []*penstock.Plan
		for range 3 {
			name := names[random.IntN(len(names))]
			limits = append(limits, compiled(t, penstock.Limit{Name: fmt.Sprintf("l%d", len(limits)), Group: "g", Algorithm: divisibleAlgorithms[name],
				Count: 1 + random.Int64N(20), Burst: 1 + random.Int64N(20), Period: time.Second}))
		}
		for step := range 200 {
			if step == 100 { // the outage begins, and lasts until the end
				f.setFault(alwaysDown)
			}
			time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))).Truncate(time.Microsecond))
			var batch []penstock.Charge
			for _, i := range random.Perm(3)[:1+random.IntN(3)] {
				c := penstock.Charge{Key: "k", Plan: limits[i], Cost: random.Int64N(6), Holder: fmt.Sprint(random.IntN(4))}
				canReset := random.IntN(4) == 0
				c.Mode = penstock.Mode(random.IntN(int(penstock.Reset) + 1)) // any mode
				switch {
				case c.Mode == penstock.Reset && !canReset,
					c.Mode == penstock.Draw && limits[i].Algorithm().NeedsHolder(), // the local memory does not record a renewal by Draw
					c.Mode == penstock.Refund && limits[i].Algorithm().CanBook():   // the store may refund a fraction of a unit more, which the local memory does not
					c.Mode = penstock.Spend
				}
				if c.Mode == penstock.Spend {
					c.Patience = time.Duration(random.IntN(2)*random.IntN(500)) * time.Millisecond
				}
				batch = append(batch, c)
			}
			got, errStore := store.Decide(t.Context(), batch)
			want, errReference := reference.Decide(context.Background(), batch)
			if err := cmp.Or(errStore, errReference); err != nil {
				t.Fatal(err)
			}
			for i := range batch {
				if got.Allowed != want.Allowed || got.Status(i) != want.Status(i) {
					t.Fatalf("step %d, charge %d: %v of %d units of limit %v: allowed %v, %+v; want allowed %v, %+v, as by the store", step, i, batch[i].Mode,
						batch[i].Cost, batch[i].Plan, got.Allowed, got.Status(i), want.Allowed, want.Status(i))
				}
			}
		}
	})
}
