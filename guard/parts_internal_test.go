package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/memstore"
)

// Clocks may differ by 0.1 %, and each is read in whole µs.
func TestTimeForWhichADenialCertainlyHolds(t *testing.T) {
	for retryAfter, want := range map[time.Duration]time.Duration{time.Second: 998_998 * time.Microsecond, 2 * time.Microsecond: -2, time.Hour: time.Hour - 3600*time.Millisecond - 2*time.Microsecond} {
		if got := safeFor(retryAfter); got != want {
			t.Errorf("a denial with the RetryAfter %v holds for %v; want %v", retryAfter, got, want)
		}
	}
	for _, c := range []struct {
		own, all, want time.Duration
	}{{0, time.Second, time.Second}, {time.Minute, time.Second, time.Minute}, {-1, time.Second, -1}, {1<<61 + 1, time.Second, 1 << 61}} {
		if got := (&denyCache{maxAge: c.all}).maxAgeOf(Settings{DenyCacheTTL: c.own}); got != c.want {
			t.Errorf("with the settings %v and %v, denials are cached for %v; want %v", c.own, c.all, got, c.want)
		}
	}
}

func TestRoutesOfBatches(t *testing.T) {
	bucket, queue := penstock.PerSecond(9).MustCompile(), penstock.PerSecond(9).With(penstock.LeakyBucket).WithBurst(9).MustCompile()
	slots := penstock.InFlight(3, time.Minute).MustCompile()
	charge := func(plan *penstock.Plan, mode penstock.Mode, patience time.Duration) penstock.Charge {
		return penstock.Charge{Key: "k", Plan: plan, Mode: mode, Cost: 1, Patience: patience}
	}
	spend := charge(bucket, penstock.Spend, 0)
	many := func(n int) (all []penstock.Charge) {
		for range n {
			all = append(all, spend)
		}
		return all
	}
	for name, c := range map[string]struct {
		charges []penstock.Charge
		want    route
	}{
		"a spend": {many(1), cacheable}, "eight spends": {many(8), cacheable}, "nine spends": {many(9), passThrough}, "a peek": {[]penstock.Charge{charge(bucket, penstock.Peek, 0)}, cacheable},
		"a draw":                   {[]penstock.Charge{charge(bucket, penstock.Draw, 0)}, cacheable},
		"a patient spend":          {[]penstock.Charge{charge(queue, penstock.Spend, time.Second)}, cacheable},
		"a patient draw":           {[]penstock.Charge{charge(queue, penstock.Draw, time.Second)}, passThrough},
		"a draw without patience":  {[]penstock.Charge{charge(queue, penstock.Draw, 0)}, cacheable},
		"a refund":                 {[]penstock.Charge{spend, charge(bucket, penstock.Refund, 0)}, changing},
		"a reset of nine":          {append(many(8), charge(bucket, penstock.Reset, 0)), changing},
		"a force":                  {[]penstock.Charge{charge(bucket, penstock.Force, 0)}, changing},
		"a refund of slots":        {[]penstock.Charge{charge(slots, penstock.Refund, 0)}, passThrough},
		"slots and then a refund":  {[]penstock.Charge{charge(slots, penstock.Refund, 0), charge(bucket, penstock.Refund, 0)}, changing},
		"a mode that is not known": {[]penstock.Charge{charge(bucket, penstock.Mode(99), 0)}, passThrough},
	} {
		if got := routeOf(c.charges); got != c.want {
			t.Errorf("%s has the route %d; want %d", name, got, c.want)
		}
	}
	for _, c := range []struct {
		charge penstock.Charge
		want   time.Duration
	}{
		{charge(queue, penstock.Spend, 1999), time.Microsecond}, {charge(queue, penstock.Spend, 999), 0}, {charge(queue, penstock.Spend, 0), 0},
		{charge(penstock.PerSecond(9).With(penstock.FixedWindow).MustCompile(), penstock.Spend, time.Second), 0},
	} {
		if got := patienceOf(&c.charge); got != c.want {
			t.Errorf("a patience of %v of %s counts as %v; want %v", c.charge.Patience, c.charge.Plan.Algorithm().Title(), got, c.want)
		}
	}
	for reset, want := range map[time.Duration]int64{0: 0, 1: 1, time.Second: 9, time.Second + 1: 10, 111111111: 1, 111111112: 2, 1 << 62: 41505174166} {
		if got := usedUntilReset(bucket, reset); got != want {
			t.Errorf("units that are back after %v are %d; want %d", reset, got, want)
		}
	}
}

// The first caller after a denial has ended sends its request. The others wait for its answer.
func TestOneCallerClaimsADenial(t *testing.T) {
	var e denial
	first, isFirst := e.claim()
	again, isFirstAgain := e.claim()
	if !isFirst || isFirstAgain || first != again {
		t.Errorf("two claims are first: %t and %t; want the first only, with the same channel", isFirst, isFirstAgain)
	}
	plan := penstock.PerSecond(9).MustCompile()
	charges := []penstock.Charge{{Key: "k", Plan: plan, Cost: 3}, {Key: "k", Plan: plan, Cost: 3}}
	denied := deniedCharge{plan: plan, cost: 3, answersAllCosts: true, status: penstock.Status{RetryAfter: 300 * time.Millisecond, ResetAfter: time.Second}}
	for n, made := range map[int]*denial{1: {charges: []deniedCharge{denied}}, 2: {charges: []deniedCharge{denied, denied}}} {
		for _, c := range []struct {
			cost int64
			now  time.Duration
			ok   bool
			want time.Duration // RetryAfter
		}{{3, 0, true, 300 * time.Millisecond}, {3, 100 * time.Millisecond, true, 200 * time.Millisecond}, {3, 400 * time.Millisecond, true, time.Microsecond}, {10, 0, true, penstock.Never}} {
			for i := range charges {
				charges[i].Cost = c.cost
			}
			var d penstock.Decision
			ok := made.answer(int64(c.now), charges[:n], &d)
			if ok != c.ok || d.Source != penstock.FromDenyCache || d.Len() != n || d.Status(n-1).RetryAfter != c.want {
				t.Errorf("%d charges of %d units after %v: %+v, %t; want the RetryAfter %v from the cache", n, c.cost, c.now, d, ok, c.want)
			}
		}
		for i := range charges {
			charges[i].Cost = 0
		}
		made.charges[n-1].status.Remaining = 1 // so a charge of no units would be granted
		if made.answer(0, charges[:n], new(penstock.Decision)) {
			t.Errorf("%d charges that would be granted are answered; want no answer", n)
		}
	}
	if hasGranted(new(penstock.Decision)) {
		t.Error("an empty decision has granted units; want none")
	}
	d := penstock.NewDecision([]penstock.Status{{}, {Granted: 1}})
	if !hasGranted(&d) {
		t.Error("a decision that granted a unit has granted none; want one")
	}
}

// What the store granted is charged to the memory of the fallback.
func TestModesThatAreMirrored(t *testing.T) {
	d := penstock.NewDecision([]penstock.Status{{Granted: 2}, {}})
	for _, c := range []struct {
		mode penstock.Mode
		i    int
		want penstock.Mode
		cost int64
	}{
		{penstock.Spend, 0, penstock.Force, 5}, {penstock.Force, 1, penstock.Force, 5}, {penstock.Draw, 0, penstock.Force, 2}, {penstock.Draw, 1, penstock.Peek, 0},
		{penstock.Refund, 0, penstock.Refund, 2}, {penstock.Refund, 1, penstock.Peek, 0}, {penstock.Reset, 0, penstock.Reset, 0}, {penstock.Peek, 0, penstock.Peek, 0},
	} {
		if mode, cost := mirrorMode(&penstock.Charge{Mode: c.mode, Cost: 5}, &d, c.i); mode != c.want || cost != c.cost {
			t.Errorf("mode %d, charge %d: mirrored as mode %d with the cost %d; want %d and %d", c.mode, c.i, mode, cost, c.want, c.cost)
		}
	}
	for receipt, want := range map[int64]int64{5: 1, 1 << 59: 1, 1<<60 | 7: 7, 1<<60 | 1<<59: 1 << 59} {
		if got := ofLocal(receipt); got != want {
			t.Errorf("the receipt %#x is %#x for the local memory; want %#x", receipt, got, want)
		}
	}
	b := failedBatch{charges: []penstock.Charge{{Mode: penstock.Force}, {Mode: penstock.Spend}}}
	for _, c := range []struct {
		modes [2]FailureMode
		want  bool
	}{{[2]FailureMode{FailClosed, FailLocal}, false}, {[2]FailureMode{FailLocal, FailClosed}, true}, {[2]FailureMode{FailOpen, FailOpen}, false}} {
		b.modes[0], b.modes[1] = c.modes[0], c.modes[1]
		if got := b.isDeniable(); got != c.want {
			t.Errorf("a Force and a Spend with the modes %v can be denied: %t; want %t", c.modes, got, c.want)
		}
	}
	for _, c := range []struct{ counted, want int }{{0, 1}, {3, 3}, {-1, 1}} {
		f := fallback{options: FallbackOptions{Instances: func() int { return c.counted }}}
		if got := f.instances(); got != c.want {
			t.Errorf("%d counted instances are %d; want %d", c.counted, got, c.want)
		}
	}
	if got := (&fallback{}).instances(); got != 1 {
		t.Errorf("without a count, there are %d instances; want 1", got)
	}
}

// A heartbeat comes each 5 s, lasts for 15 s and may take 5 s. Only the second one comes after 2 s.
// The largest count is kept for a minute.
func TestDefaultsOfTheInstanceCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var calls []string
		var count atomic.Int64
		count.Store(7)
		first := make(chan struct{}) // the first heartbeat waits for it
		c := newInstanceCounter(instanceCounterOptions{Heartbeat: func(ctx context.Context, name string, life time.Duration) (int, error) {
			deadline, _ := ctx.Deadline()
			calls = append(calls, fmt.Sprint(time.Since(began), " ", life, " ", time.Until(deadline), " ", len(name) > 20))
			<-first
			return int(count.Load()), nil
		}})
		if n := c.Instances(); n != 1 {
			t.Errorf("before the first heartbeat, there are %d instances; want 1", n)
		}
		close(first)
		synctest.Wait()
		count.Store(2)
		for _, step := range []struct {
			after time.Duration
			want  int
		}{{0, 7}, {60 * time.Second, 7}, {2 * time.Second, 2}} {
			time.Sleep(step.after)
			synctest.Wait()
			if n := c.Instances(); n != step.want {
				t.Errorf("%v after the start, there are %d instances; want %d", time.Since(began), n, step.want)
			}
		}
		if len(calls) != 14 || calls[0] != "0s 15s 5s true" || calls[1] != "2s 15s 5s true" || calls[2] != "7s 15s 5s true" || calls[13] != "1m2s 15s 5s true" {
			t.Errorf("the heartbeats are %v; want them after 0 s, 2 s, and then one each 5 s", calls)
		}
		c.Close()
		if last := calls[len(calls)-1]; len(calls) != 15 || last != "1m2s 0s 1s true" {
			t.Errorf("Close sends %s; want the end of the registration within a second", last)
		}
	})
}

// The count of instances does not age while no heartbeat is answered.
func TestCountsDoNotAgeInAnOutage(t *testing.T) {
	now := time.Unix(1000, 0)
	c := &instanceCounter{options: instanceCounterOptions{Every: 5 * time.Second, KeepFor: time.Minute, MinInstances: 1}}
	count := func(after time.Duration, n, want int) {
		t.Helper()
		now = now.Add(after)
		if c.count(now, n); c.Instances() != want {
			t.Errorf("%v later, a count of %d gives %d instances; want %d", after, n, c.Instances(), want)
		}
	}
	count(0, 9, 9)
	count(time.Hour, 3, 9)      // an outage, of which 5 s count
	count(5*time.Second, 4, 9)  // 4 replaces 3
	count(5*time.Second, 4, 9)  // the newer 4 replaces the older
	count(45*time.Second, 2, 9) // 5 s count: 20 s in all
	for range 8 {
		count(5*time.Second, 2, 9) // 60 s in all
	}
	count(5*time.Second, 2, 4)
	if len(c.counts) != 2 {
		t.Errorf("%d counts are remembered; want 4 and 2", len(c.counts))
	}
	for range 5 {
		count(time.Second, 1, 4) // faster than Every
	}
	if len(c.counts) != 3 {
		t.Errorf("%d counts are remembered; want 4, 2 and 1", len(c.counts))
	}
}

func TestDefaultsOfTimeouts(t *testing.T) {
	if store := newTimeout(nil, TimeoutOptions{}, nil); store.maxInFlight != 4096 || !strings.Contains(store.errShed.Error(), "4096 decisions are in flight") {
		t.Errorf("the defaults are %d and %v; want 4096 decisions in flight", store.maxInFlight, store.errShed)
	}
	if store := newTimeout(nil, TimeoutOptions{InFlight: 1}, nil); store.maxInFlight != 1 {
		t.Errorf("the option InFlight is %d; want 1", store.maxInFlight)
	}
	if one, none := (TimeoutOptions{After: time.Second}).after(), (TimeoutOptions{}).after(); one != time.Second || none != 250*time.Millisecond {
		t.Errorf("the option After is %v, and its default %v; want 1 s and 250 ms", one, none)
	}
	cause := penstock.NewStoreError(penstock.ReasonTimeout, errors.New("cause"))
	wrapped := fmt.Errorf("outer: %w", cause)
	for _, err := range []error{cause, wrapped} {
		got := penstock.AsStoreError(withoutFault(err))
		if got == nil || got.IsStoreFault || got.Reason != penstock.ReasonTimeout || err == wrapped && !strings.Contains(got.Error(), "outer") || !cause.IsStoreFault {
			t.Errorf("%v without fault is %+v; want the same reason without fault, and the error itself unchanged", err, got)
		}
	}
	other := errors.New("other")
	if withoutFault(other) != other {
		t.Error("another error without fault is another; want the same")
	}
}

// The debt of a bucket is cut to twice the share.
func TestDebtOfAShareIsCut(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	f := &fallback{local: memstore.New(memstore.Options{Now: func() time.Time { return now }})}
	share := penstock.PerHour(10).MustCompile()
	for _, c := range []struct{ forced, want int64 }{{19, 19}, {20, 20}, {25, 20}, {100, 20}} {
		key := fmt.Sprint(c.forced)
		force := []penstock.Charge{{Key: key, Plan: share, Mode: penstock.Force, Cost: c.forced}}
		d, err := f.local.Decide(t.Context(), force)
		if err != nil {
			t.Fatal(err)
		}
		f.capDebt(&force[0], d.Status(0))
		d, err = f.local.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: share, Mode: penstock.Peek}})
		if used := int64(d.Status(0).ResetAfter / (6 * time.Minute)); err != nil || used != c.want {
			t.Errorf("of %d forced units, %d stay, %v; want %d", c.forced, used, err, c.want)
		}
	}
}

// The smallest value of an option is not its default.
func TestSmallestOptionsAreUsed(t *testing.T) {
	for age, want := range map[time.Duration]time.Duration{-1: time.Second, 0: time.Second, 1: 1} {
		if got := newDenyCache(&downStore{}, denyOptions{MaxAge: age}).maxAge; got != want {
			t.Errorf("the MaxAge %v is %v; want %v", age, got, want)
		}
	}
	all := len(newDenyCache(&downStore{}, denyOptions{}).table.sets)
	for n, isDefault := range map[int]bool{-1: true, 0: true, 1: false} {
		if got := len(newDenyCache(&downStore{}, denyOptions{MaxEntries: n}).table.sets); (got == all) != isDefault {
			t.Errorf("with MaxEntries %d, the cache has %d of %d sets; want all of them: %t", n, got, all, isDefault)
		}
	}
	for n, want := range map[time.Duration]time.Duration{-1: 0, 0: 0, 1: 1} {
		o := newBreaker(nil, BreakerOptions{Pause: n, MaxPause: n}).options
		if want == 0 && (o.Pause != 250*time.Millisecond || o.MaxPause != 8*time.Second) || want == 1 && (o.Pause != 1 || o.MaxPause != 1) {
			t.Errorf("the pauses %v are %v and %v; want the defaults unless they are 1 ns", n, o.Pause, o.MaxPause)
		}
	}
	for n, want := range map[int]int{-1: 5, 0: 5, 1: 1} {
		if got := newBreaker(nil, BreakerOptions{Failures: n}).options.Failures; got != want {
			t.Errorf("the Failures %d are %d; want %d", n, got, want)
		}
	}
	for n, want := range map[FailureMode]FailureMode{FailDefault: FailLocal, FailOpen: FailOpen, FailClosed: FailClosed} {
		if got := newFallback(nil, FallbackOptions{OnFailure: n}, nil).options.OnFailure; got != want {
			t.Errorf("the mode %v is %v; want %v", n, got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := newInstanceCounter(instanceCounterOptions{Every: 1, KeepFor: 1, Heartbeat: func(ctx context.Context, _ string, _ time.Duration) (int, error) {
			<-ctx.Done() // otherwise there would be a heartbeat each nanosecond
			return 0, ctx.Err()
		}})
		defer c.Close()
		if c.options.Every != 1 || c.options.KeepFor != 1 {
			t.Errorf("the options are %v and %v; want a nanosecond for both", c.options.Every, c.options.KeepFor)
		}
	})
}

// The deadline of a decision begins outside the leases and all other guards that wait, with and
// without the cache of denials.
func TestDeadlineBeginsOutsideTheLeases(t *testing.T) {
	for _, ttl := range []time.Duration{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			g := &Guarded{}
			below := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if at, ok := ctx.Deadline(); deadline.From(ctx) == nil || !ok || time.Until(at) != defaultAfter {
					t.Errorf("with DenyCacheTTL %v, the deadline of mode %v is in %v, %t; want %v", ttl, charges[0].Mode, time.Until(at), ok, defaultAfter)
				}
				return penstock.Decision{Allowed: true}, nil
			})
			store := g.withDenyCache(denyOptions{MaxAge: ttl}, &deadline.Set{After: defaultAfter})(below)
			plan := penstock.PerHour(1).MustCompile()
			time.Sleep(time.Second)
			for _, mode := range []penstock.Mode{penstock.Spend, penstock.Refund} { // for a Refund, the cache does not read the clock
				if _, err := store.Decide(t.Context(), []penstock.Charge{{Key: "a", Plan: plan, Cost: 1, Mode: mode}}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
