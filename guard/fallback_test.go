package guard_test

import (
	"context"
	"errors"
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
	"github.com/penstock/penstock/storetest"
)

// alwaysDown is a fault that fails each request. A caller that is canceled gets its own error.
func alwaysDown(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
	if err := ctx.Err(); err != nil {
		return penstock.Decision{}, err
	}
	return penstock.Decision{}, errDown
}

func TestFallbackObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store {
		return guard.Fallback(guard.FallbackOptions{Instances: func() int { return 3 }})(memstore.New(memstore.Options{}))
	})
}

func TestFallbackOfOneInstanceObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store {
		return guard.Fallback(guard.FallbackOptions{})(penstock.StoreFunc(alwaysDown))
	})
}

// settings returns a function that finds the settings of a limit by its name.
func settings(byName map[string]guard.Settings) func(*penstock.Plan) guard.Settings {
	return func(l *penstock.Plan) guard.Settings { return byName[l.Name()] }
}

// failureSettings returns settings with a different OnFailure for each of three limits. The
// arguments are the names of the limits.
func failureSettings(open, closed, local string) func(*penstock.Plan) guard.Settings {
	return settings(map[string]guard.Settings{
		open: {OnFailure: guard.FailOpen}, closed: {OnFailure: guard.FailClosed}, local: {OnFailure: guard.FailLocal},
	})
}

func TestEachLimitFailsInItsOwnWay(t *testing.T) {
	const year = 365 * 24 * time.Hour
	charge := func(name string) penstock.Charge {
		return penstock.Charge{Key: "k", Cost: 1, Plan: compiled(t, penstock.Limit{Name: name, Count: 2, Period: year})}
	}
	open, closed, local, other := charge("open"), charge("closed"), charge("local"), charge("other")
	tried := 0
	for _, row := range []struct {
		name    string
		batch   []penstock.Charge
		earlier int // how many equal calls are made before
		allowed bool
		source  penstock.Source
		retry   []time.Duration // RetryAfter of each charge; -1: more than an hour
		left    []int64         // Remaining of each charge
	}{
		{name: "open", batch: []penstock.Charge{open}, earlier: 9,
			allowed: true, source: penstock.FromOpen, retry: []time.Duration{0}, left: []int64{2}},
		{name: "closed", batch: []penstock.Charge{closed},
			allowed: false, source: penstock.FromClosed, retry: []time.Duration{time.Second}, left: []int64{0}},
		{name: "local", batch: []penstock.Charge{local}, earlier: 1,
			allowed: true, source: penstock.FromFallback, retry: []time.Duration{0}, left: []int64{0}},
		{name: "local, exhausted", batch: []penstock.Charge{local}, earlier: 2,
			allowed: false, source: penstock.FromFallback, retry: []time.Duration{-1}, left: []int64{0}},
		{name: "by default", batch: []penstock.Charge{other}, earlier: 1,
			allowed: true, source: penstock.FromFallback, retry: []time.Duration{0}, left: []int64{0}},
		{name: "local and open", batch: []penstock.Charge{local, open}, earlier: 1,
			allowed: true, source: penstock.FromFallback, retry: []time.Duration{0, 0}, left: []int64{0, 2}},
		{name: "local and open, exhausted", batch: []penstock.Charge{open, local, other}, earlier: 2,
			allowed: false, source: penstock.FromFallback, retry: []time.Duration{0, -1, -1}, left: []int64{2, 0, 0}},
		{name: "closed and open", batch: []penstock.Charge{open, closed},
			allowed: false, source: penstock.FromClosed, retry: []time.Duration{0, time.Second}, left: []int64{2, 0}},
		{name: "closed, open and local", batch: []penstock.Charge{local, closed, open}, earlier: 3,
			allowed: false, source: penstock.FromClosed, retry: []time.Duration{0, time.Second, 0}, left: []int64{2, 0, 2}},
	} {
		t.Run(row.name, func(t *testing.T) {
			store := guard.Fallback(guard.FallbackOptions{Limits: failureSettings("open", "closed", "local")})(penstock.StoreFunc(alwaysDown))
			for range row.earlier {
				decide(t, store, row.batch...)
			}
			d := decide(t, store, row.batch...)
			if d.Allowed != row.allowed || d.Source != row.source {
				t.Fatalf("allowed %v by %v; want allowed %v by %v", d.Allowed, d.Source, row.allowed, row.source)
			}
			for i := range row.batch {
				s, granted := d.Status(i), int64(0)
				if row.allowed {
					granted = 1
				}
				hasRetry := s.RetryAfter == row.retry[i]
				if row.retry[i] < 0 {
					hasRetry = s.RetryAfter > time.Hour && s.RetryAfter < penstock.Never
				}
				if !hasRetry || s.Remaining != row.left[i] || s.Granted != granted {
					t.Errorf("charge %d: %+v; want %d granted, %d left, and a RetryAfter of %v (-1ns: more than an hour)", i, s, granted, row.left[i], row.retry[i])
				}
			}
		})
		tried++
	}
	t.Logf("counted: %d mixtures of failure modes", tried)
}

func TestClosedLimitsReturnTheErrorOfModesThatCannotBeDenied(t *testing.T) {
	store := guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailClosed})(penstock.StoreFunc(alwaysDown))
	c := one(penstock.PerSecond(1).MustCompile(), "k")
	for mode := range penstock.Reset + 1 {
		c[0].Mode = mode
		d, err := store.Decide(t.Context(), c)
		isDeniable := mode == penstock.Spend || mode == penstock.Draw || mode == penstock.Peek
		isDenied, isStoreError := err == nil && !d.Allowed, err == errDown
		if isDenied != isDeniable || isStoreError == isDeniable {
			t.Errorf("mode %v: %v, error %v; want a denial if the mode can be denied, else the store's error", mode, d, err)
		}
	}
}

func TestModesOfAnOpenLimit(t *testing.T) {
	store := guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailOpen})(penstock.StoreFunc(alwaysDown))
	c := penstock.Charge{Key: "k", Plan: penstock.PerSecond(3).MustCompile(), Cost: 2}
	for _, row := range []struct {
		mode    penstock.Mode
		granted int64
	}{
		{mode: penstock.Spend, granted: 2},
		{mode: penstock.Draw, granted: 2},
		{mode: penstock.Peek, granted: 0},
		{mode: penstock.Force, granted: 2},
		{mode: penstock.Refund, granted: 2},
		{mode: penstock.Reset, granted: 0},
	} {
		c.Mode = row.mode
		if d := decide(t, store, c); !d.Allowed || d.Source != penstock.FromOpen || d.Status(0).Granted != row.granted {
			t.Errorf("mode %v: allowed %v by %v, %+v; want it allowed by %v, and %d granted", row.mode, d.Allowed, d.Source, d.Status(0), penstock.FromOpen, row.granted)
		}
	}
}

func TestCeilingBoundsAnOpenLimit(t *testing.T) {
	limit := compiled(t, penstock.PerHour(1))
	store := guard.Fallback(guard.FallbackOptions{Instances: func() int { return 10 }, Limits: settings(map[string]guard.Settings{
		"hour": {OnFailure: guard.FailOpen, Ceiling: penstock.PerHour(100)},
	})})(penstock.StoreFunc(alwaysDown))
	for i, key := range []string{"a", "b", "b"} { // each key in each group has the whole ceiling
		limit := limit.Limit().WithName("hour")
		limit.Group = fmt.Sprint("group", i)
		granted := 0
		for range 300 {
			if d := decide(t, store, one(limit.MustCompile(), key)...); d.Source != penstock.FromFallback {
				t.Fatalf("the decision is from %v; want the fallback", d.Source)
			} else if d.Allowed {
				granted++
			}
		}
		if granted != 100 {
			t.Fatalf("%d units were granted; want the ceiling of 100, undivided", granted)
		}
	}
	invalid := guard.Fallback(guard.FallbackOptions{Limits: settings(map[string]guard.Settings{
		"hour": {OnFailure: guard.FailOpen, Ceiling: penstock.Limit{Count: -1}},
	})})(penstock.StoreFunc(alwaysDown))
	if d := decide(t, invalid, one(limit, "k")...); d.Allowed || d.Source != penstock.FromClosed {
		t.Fatalf("with a Ceiling that is not valid: %v by %v; want a denial by %v", d, d.Source, penstock.FromClosed)
	}
}

func TestOnlyUnavailableStoresHaveAFallback(t *testing.T) {
	inner := newFaulty()
	store := guard.Fallback(guard.FallbackOptions{})(inner)
	limit := compiled(t, penstock.PerHour(1))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	other := errors.New("other")
	for _, row := range []struct {
		ctx  context.Context
		err  error
		want error
	}{
		{ctx: t.Context(), err: penstock.ErrInvalid, want: penstock.ErrInvalid},
		{ctx: t.Context(), err: context.DeadlineExceeded, want: context.DeadlineExceeded},
		{ctx: t.Context(), err: other, want: other},
		{ctx: canceled, err: context.Canceled, want: context.Canceled},
		{ctx: canceled, err: errDown, want: context.Canceled},
	} {
		inner.setFault(failWith(row.err))
		if d, err := store.Decide(row.ctx, one(limit, "k")); err != row.want {
			t.Errorf("the store returned %v, and the fallback %v, error %v; want the error %v", row.err, d, err, row.want)
		}
	}
	inner.setFault(failWith(errDown))
	// The store fails before it checks the charges, so the fallback must check them.
	for _, mode := range []guard.FailureMode{guard.FailOpen, guard.FailClosed, guard.FailLocal} {
		store := guard.Fallback(guard.FallbackOptions{OnFailure: mode})(inner)
		for _, wrong := range [][]penstock.Charge{nil, {{Plan: limit, Cost: -1}}, {{Cost: 1}}, append(one(limit, "k"), one(limit, "k")...)} {
			if _, err := store.Decide(t.Context(), wrong); !errors.Is(err, penstock.ErrInvalid) {
				t.Errorf("FailureMode %v: the batch %+v gets %v; want ErrInvalid", mode, wrong, err)
			}
		}
	}
}

func TestCallerWhoseDeadlinePassesDuringTheCallGetsAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := guard.Fallback(guard.FallbackOptions{})(guard.Timeout(guard.TimeoutOptions{})(penstock.StoreFunc(
			func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				<-ctx.Done()
				return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrUnavailable, ctx.Err())
			})))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if d, err := store.Decide(ctx, one(penstock.PerHour(1).MustCompile(), "k")); err != nil || !d.Allowed || d.Source != penstock.FromFallback {
			t.Fatalf("a caller whose deadline passes during the call gets %v by %v, error %v; want it allowed by the fallback", d, d.Source, err)
		}
		if d, err := store.Decide(ctx, one(penstock.PerHour(1).MustCompile(), "other")); err != context.DeadlineExceeded {
			t.Fatalf("a caller whose deadline passed before the call gets %v, error %v; want context.DeadlineExceeded", d, err)
		}
	})
}

func TestCanceledCallerGetsNoFallback(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := guard.Fallback(guard.FallbackOptions{})(penstock.StoreFunc(
		func(context.Context, []penstock.Charge) (penstock.Decision, error) {
			cancel()
			return penstock.Decision{}, errDown
		}))
	if d, err := store.Decide(ctx, one(penstock.PerHour(1).MustCompile(), "k")); err != context.Canceled {
		t.Fatalf("a caller that is canceled during the call gets %v, error %v; want context.Canceled", d, err)
	}
}

// divisibleAlgorithms has an algorithm of each kind whose limits can be divided into shares.
var divisibleAlgorithms = map[string]*algorithm.Algorithm{
	"token": penstock.TokenBucket, "leaky": penstock.LeakyBucket, "fixed": penstock.FixedWindow, "anchored": penstock.AnchoredWindow,
	"sliding": penstock.SlidingWindow, "log": penstock.SlidingLog, "sub": penstock.SubWindow(6), "slots": penstock.Concurrency,
	"calendar": penstock.CalendarWindow(algorithm.Month, time.UTC),
}

// capacity returns how many units of a limit an unused key has.
func capacity(t *testing.T, store penstock.Store, limit *penstock.Plan) int64 {
	t.Helper()
	c := penstock.Charge{Plan: limit, Cost: penstock.MaxCost, Mode: penstock.Draw, Holder: "h"}
	if limit.Algorithm() == penstock.LeakyBucket {
		c.Mode, c.Cost = penstock.Peek, 0
	}
	d := decide(t, store, c)
	return d.Status(0).Granted + d.Status(0).Remaining
}

func TestSharesExceedTheLimitByLessThanOneUnitEach(t *testing.T) {
	effort.SkipUnderRace(t)
	tries := effort.Of(1000, 50_000)
	random := rand.New(rand.NewPCG(4, 0))
	tried := 0
	for range tries {
		n := 1 + random.IntN(40)
		// Random shifts make small and large numbers equally frequent.
		limit := penstock.Limit{Name: "l", Period: time.Duration(1+random.Int64N(algorithm.MaxPeriod>>random.IntN(45))) * time.Microsecond}
		limit.Count = 1 + random.Int64N(1<<(1+random.IntN(50)))
		if random.IntN(2) == 0 {
			limit.Burst = random.Int64N(1 << (1 + random.IntN(50)))
		}
		for name, a := range divisibleAlgorithms {
			limit.Algorithm = a
			if limit.Validate() != nil {
				continue
			}
			store := guard.Fallback(guard.FallbackOptions{Instances: fixed(n)})(penstock.StoreFunc(alwaysDown))
			whole := capacity(t, memstore.New(memstore.Options{Locks: 1}), limit.MustCompile())
			part := capacity(t, store, limit.MustCompile())
			over := part*int64(n) - whole
			isLowered := over < 0 && part > 0 && (name == "token" || name == "leaky") // its burst cannot be counted exactly at the new rate
			if part < 1 || over > int64(n)-1 || over < 0 && !isLowered {
				t.Fatalf("%s %+v: %d shares of %d units are %d units more than the whole of %d; want shares of at least 1 unit, which are 0 to %d units more", name, limit, n, part, over, whole, n-1)
			}
			tried++
		}
	}
	t.Logf("counted: %d limits divided", tried)
}

func TestShareOfARateIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The share of one of 3 instances is 10/3 units a second: 600 units in 3 minutes.
		limit := compiled(t, penstock.Limit{Name: "l", Count: 10, Period: time.Second, Burst: 1})
		store := guard.Fallback(guard.FallbackOptions{Instances: fixed(3)})(penstock.StoreFunc(alwaysDown))
		granted := 0
		for start := time.Now(); time.Since(start) < 3*time.Minute; {
			d := decide(t, store, one(limit, "k")...)
			if d.Allowed {
				granted++
			}
			time.Sleep(max(d.RetryAfter(), 0) + time.Microsecond)
		}
		if granted < 600 || granted > 601 {
			t.Fatalf("%d units were granted in 3 minutes; want 600 or 601", granted)
		}
	})
}

func TestFallbackKnowsWhatThisInstanceHasAdmitted(t *testing.T) {
	for name, a := range divisibleAlgorithms {
		t.Run(name, func(t *testing.T) {
			inner := newFaulty()
			store := guard.Fallback(guard.FallbackOptions{Instances: fixed(2)})(inner)
			limit := compiled(t, penstock.Limit{Name: "l", Algorithm: a, Count: 20, Period: 8 * 365 * 24 * time.Hour, Burst: 20})
			wantLeft := func(want int64) {
				t.Helper()
				inner.setFault(alwaysDown)
				d := decide(t, store, penstock.Charge{Plan: limit, Mode: penstock.Peek, Holder: "peek"})
				if got := d.Status(0).Remaining; got != want {
					t.Fatalf("%d units of the share are left; want %d", got, want)
				}
				inner.setFault(nil)
			}
			charge := func(mode penstock.Mode, cost int64, holder string) {
				t.Helper()
				c := penstock.Charge{Plan: limit, Mode: mode, Cost: cost, Holder: holder}
				if a == penstock.LeakyBucket {
					c.Patience = 24 * time.Hour
				}
				decide(t, store, c)
			}
			share := int64(10)
			if a == penstock.LeakyBucket {
				share = 11 // half of 21, rounded up: 20 may wait, and one is admitted
			}
			wantLeft(share)
			charge(penstock.Peek, 5, "a")
			charge(penstock.Spend, 0, "a")
			charge(penstock.Spend, 100, "a") // denied
			wantLeft(share)
			charge(penstock.Spend, 3, "a")
			wantLeft(share - 3)
			if a.NeedsHolder() {
				charge(penstock.Spend, 3, "a") // renewed
				wantLeft(share - 3)
			}
			charge(penstock.Force, 2, "b")
			wantLeft(share - 5)
			charge(penstock.Refund, 1, "b")
			wantLeft(share - 4)
			charge(penstock.Refund, 1, "nobody")
			if a.NeedsHolder() || a == penstock.LeakyBucket {
				wantLeft(share - 4)
			} else {
				wantLeft(share - 3)
			}
			charge(penstock.Reset, 0, "")
			wantLeft(share)
			charge(penstock.Force, 18, "c")
			if a == penstock.LeakyBucket {
				charge(penstock.Draw, 3, "d")
				wantLeft(0)
				return
			}
			charge(penstock.Draw, 100, "d") // takes the last 2 units of the store
			wantLeft(0)
			charge(penstock.Refund, 18, "c")
			wantLeft(share - 2)
		})
	}
	t.Logf("counted: %d algorithms mirrored", len(divisibleAlgorithms))
}

// Without a bound, an instance that had most of the load would deny for long in an outage. A single
// instance answers as the store would.
func TestFallbackOfABucketRemembersAtMostTwiceItsShare(t *testing.T) {
	const hour = time.Hour
	for _, c := range []struct {
		instances  int
		retryAfter time.Duration // for one unit, after 60 units were used
	}{
		{instances: 1, retryAfter: 41 * hour}, // 60 used, the Burst of 20, and 1 unit an hour
		{instances: 2, retryAfter: 22 * hour}, // 20 used, the Burst of 10, and half a unit an hour
		{instances: 4, retryAfter: 24 * hour}, // 10 used, the Burst of 5, and a quarter of a unit an hour
	} {
		inner := newFaulty()
		store := guard.Fallback(guard.FallbackOptions{Instances: func() int { return c.instances }})(inner)
		limit := compiled(t, penstock.Limit{Name: "l", Algorithm: penstock.TokenBucket, Count: 20, Period: 20 * hour, Burst: 20})
		decide(t, store, penstock.Charge{Plan: limit, Mode: penstock.Force, Cost: 60})
		inner.setFault(alwaysDown)
		d := decide(t, store, penstock.Charge{Plan: limit, Cost: 1})
		if got := d.RetryAfter().Round(time.Minute); got != c.retryAfter {
			t.Errorf("%d instances: RetryAfter in the outage is %v; want %v", c.instances, got, c.retryAfter)
		}
	}
}

func TestFallbackRefundsOnlyWhatTheStoreRefunded(t *testing.T) {
	inner := newFaulty()
	options := guard.FallbackOptions{Instances: fixed(2)}
	a, b := guard.Fallback(options)(inner), guard.Fallback(options)(inner)
	charge := penstock.Charge{Plan: penstock.PerDay(10).With(penstock.SlidingLog).MustCompile(), Cost: 3}
	decide(t, a, charge)
	charge.Mode = penstock.Refund
	decide(t, b, charge)
	decide(t, a, charge) // b has refunded it already
	inner.setFault(alwaysDown)
	charge.Mode = penstock.Peek
	if d := decide(t, a, charge); d.Remaining() != 2 {
		t.Fatalf("%d units of a share of 5 are left; want 2, because the store refunded nothing to this instance", d.Remaining())
	}
}

func TestPatienceBeyondWhatTheShareCanBookIsCut(t *testing.T) {
	const years = 8 * 365 * 24 * time.Hour
	limit := penstock.Limit{Name: "l", Count: 1000 * int64(years/time.Second), Period: years, Burst: 100}.MustCompile()
	store := guard.Fallback(guard.FallbackOptions{Instances: fixed(7)})(penstock.StoreFunc(alwaysDown))
	d := decide(t, store, penstock.Charge{Plan: limit, Cost: 1, Patience: 24 * time.Hour}) // the share allows 125 ms at most
	if !d.Allowed {
		t.Fatalf("a Spend with a Patience of a day is %v; want it allowed, with the longest Patience of the share", d)
	}
}

func TestHoldsOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newFaulty()
		store := guard.Fallback(guard.FallbackOptions{Instances: fixed(2)})(inner)
		l, err := penstock.NewLimiter(store, "jobs", penstock.InFlight(4, time.Minute)) // a share of 2
		if err != nil {
			t.Fatal(err)
		}
		acquire := func(isAllowed bool) *penstock.Hold {
			t.Helper()
			h, err := l.Acquire(t.Context(), "k")
			if (err == nil) != isAllowed {
				t.Fatalf("Acquire returned %v; want success: %v", err, isAllowed)
			}
			return h
		}
		wantNoError := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		a, b, extra := acquire(wantAllowed), acquire(wantAllowed), acquire(wantAllowed) // more than the share: the load was not balanced
		inner.setFault(alwaysDown)
		for range 6 { // five minutes of an outage
			acquire(wantDenied)
			time.Sleep(25 * time.Second)
			wantNoError(a.Renew(t.Context()))
			wantNoError(b.Renew(t.Context()))
			wantNoError(extra.Renew(t.Context()))
			time.Sleep(25 * time.Second)
		}
		wantNoError(extra.Release(t.Context()))
		acquire(wantDenied)
		wantNoError(a.Release(t.Context()))
		local := acquire(wantAllowed)
		inner.setFault(nil)
		wantNoError(local.Renew(t.Context())) // the store learns of the hold
		wantNoError(b.Renew(t.Context()))
		d, err := l.Peek(t.Context(), "k")
		if err != nil || d.Remaining() != 2 {
			t.Fatalf("a Peek after the outage: %v, error %v; want 2 slots left in the store", d, err)
		}
	})
}

func TestCostAboveTheShareHasARetryAfter(t *testing.T) {
	store := guard.Fallback(guard.FallbackOptions{Instances: fixed(4)})(penstock.StoreFunc(alwaysDown))
	limit := compiled(t, penstock.PerHour(8))
	for cost, want := range map[int64]time.Duration{2: 0, 3: time.Second, 8: time.Second, 9: penstock.Never} {
		d := decide(t, store, penstock.Charge{Key: fmt.Sprint(cost), Plan: limit, Cost: cost})
		if d.RetryAfter() != want {
			t.Errorf("cost %d, with a share of 2 of a limit of 8: RetryAfter is %v; want %v", cost, d.RetryAfter(), want)
		}
	}
}

func TestLimitsThatAreNotLocalTakeNoMemory(t *testing.T) {
	inner := newFaulty()
	store := guard.Fallback(guard.FallbackOptions{MaxCounters: 2, Limits: failureSettings("open", "closed", "local")})(inner)
	charge := func(name, key string) penstock.Charge {
		return one(penstock.PerHour(4).WithName(name).MustCompile(), key)[0]
	}
	for i := range 100 {
		decide(t, store, charge("open", fmt.Sprint(i)), charge("closed", fmt.Sprint(i)))
	}
	decide(t, store, charge("local", "a"))
	inner.setFault(alwaysDown)
	for i, want := range []penstock.Source{penstock.FromFallback, penstock.FromFallback, penstock.FromClosed, penstock.FromClosed} {
		if d := decide(t, store, charge("local", string(rune('a'+i)))); d.Source != want || d.Allowed != (want == penstock.FromFallback) {
			t.Fatalf("key %d: %v by %v; want a decision by %v, because the memory has room for two counters", i, d, d.Source, want)
		}
	}
	if d := decide(t, store, charge("local", "a"), charge("open", "z")); d.Source != penstock.FromFallback || !d.Allowed {
		t.Fatalf("a key with a counter gets %v by %v; want it allowed by its share", d, d.Source)
	}
	force := charge("local", "new")
	force.Mode = penstock.Force
	if _, err := store.Decide(t.Context(), []penstock.Charge{force}); !errors.Is(err, penstock.ErrUnavailable) {
		t.Fatalf("a Force of a new key, with a full memory: error %v; want the store's error", err)
	}
}

func TestChangedNumberOfInstancesKeepsWhatWasUsed(t *testing.T) {
	n := 2
	store := guard.Fallback(guard.FallbackOptions{Instances: func() int { return n }})(penstock.StoreFunc(alwaysDown))
	limit := compiled(t, penstock.Limit{Name: "l", Count: 16, Period: 8 * 365 * 24 * time.Hour})
	granted := 0
	for _, row := range []struct{ instances, total int }{ // total units granted so far; fewer than 1 instance count as 1
		{instances: 2, total: 8}, {instances: 4, total: 8}, {instances: 8, total: 8},
		{instances: 0, total: 16}, {instances: -1, total: 16}, {instances: 2, total: 16},
	} {
		n = row.instances
		for range 20 {
			if d := decide(t, store, one(limit, "k")...); d.Allowed {
				granted++
			}
		}
		if granted != row.total {
			t.Fatalf("%d instances: %d units were granted so far; want %d", row.instances, granted, row.total)
		}
	}
}

func BenchmarkFallbackMirror(b *testing.B) {
	benchmark(b, guard.Fallback(guard.FallbackOptions{Instances: fixed(3)})(immediate), one(compiled(b, penstock.PerSecond(1_000_000)), "k"))
}

func BenchmarkFallbackMirrorOfThree(b *testing.B) {
	limits := []penstock.Limit{penstock.PerSecond(1_000_000), penstock.PerMinute(60_000_000), penstock.PerDay(1e9)}
	var charges []penstock.Charge
	for _, l := range limits {
		charges = append(charges, one(compiled(b, l), "k")...)
	}
	statuses := make([]penstock.Status, 3)
	granted := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.NewDecision(statuses), nil
	})
	benchmark(b, guard.Fallback(guard.FallbackOptions{Instances: fixed(3)})(granted), charges)
}

func BenchmarkFallbackWithoutLocal(b *testing.B) {
	benchmark(b, guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailOpen})(immediate), one(compiled(b, penstock.PerSecond(100)), "k"))
}

func BenchmarkFallbackLocal(b *testing.B) {
	benchmark(b, guard.Fallback(guard.FallbackOptions{Instances: fixed(3)})(penstock.StoreFunc(failWith(errDown))),
		one(compiled(b, penstock.PerSecond(1_000_000_000)), "k"))
}

func BenchmarkFallbackOpen(b *testing.B) {
	benchmark(b, guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailOpen})(penstock.StoreFunc(failWith(errDown))),
		one(compiled(b, penstock.PerSecond(100)), "k"))
}

// fixed returns a number of instances that stays the same.
func fixed(n int) func() int { return func() int { return n } }
