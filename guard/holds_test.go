package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
)

// ttl is longer than all tests, so that no hold ends by itself.
const ttl = time.Hour

var tenAtATime = penstock.InFlight(10, ttl).WithName("pool").MustCompile()

// holdTest is a guarded store whose holds are tested, in a synctest bubble.
type holdTest struct {
	*testing.T
	*faulty
	*guard.Guarded
	late     lateCharges
	reported atomic.Int64 // holds that OnLateReturns has reported
}

// testHolds runs a test in a bubble. In the end, the guards must have no goroutine left.
func testHolds(t *testing.T, onFailure guard.FailureMode, test func(h *holdTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &holdTest{T: t, faulty: newFaulty()}
		h.Guarded = standard(t, h.faulty, guard.Options{OnFailure: onFailure, OnLateReturns: func(n int) { h.reported.Add(int64(n)) }})
		test(h)
		h.Guarded.Close()
		if reported, counted := h.reported.Load(), h.Stats().HoldsReturnedLate; reported != counted {
			t.Errorf("%d holds were reported as returned late; want %d, as Stats counts", reported, counted)
		}
	})
}

func (h *holdTest) decide(mode penstock.Mode, holder string) penstock.Decision {
	h.Helper()
	d, err := h.Guarded.Decide(h.Context(), []penstock.Charge{{Key: "k", Plan: tenAtATime, Cost: 1, Mode: mode, Holder: holder}})
	if err != nil {
		h.Fatalf("%v of holder %s ended with error %v", mode, holder, err)
	}
	return d
}

// wantUsed checks how many slots the store has lent.
func (h *holdTest) wantUsed(want int64, when string) {
	h.Helper()
	if used := h.used(); used != want {
		h.Errorf("%s, %d slots are used in the store; want %d", when, used, want)
	}
}

func (h *holdTest) used() int64 {
	d, err := h.faulty.store.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: tenAtATime, Cost: 1, Mode: penstock.Peek}})
	if err != nil {
		h.Fatal(err)
	}
	return 10 - d.Remaining()
}

func (h *holdTest) wantUnreturned(want int64, when string) {
	h.Helper()
	if got := h.Stats().HoldsUnreturned; got != want {
		h.Errorf("%s, %d holds are unreturned; want %d", when, got, want)
	}
}

// lateCharges is a fault that receives charges, gives no answer, and makes the charges later.
type lateCharges struct {
	mu      sync.Mutex
	batches [][]penstock.Charge
}

func (l *lateCharges) receive(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches = append(l.batches, append([]penstock.Charge(nil), charges...))
	return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, errors.New("no answer"))
}

// makeAll makes the charges of a mode, and drops the others.
func (l *lateCharges) makeAll(store penstock.Store, mode penstock.Mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, charges := range l.batches {
		if charges[0].Mode == mode {
			_, _ = store.Decide(context.Background(), charges)
		}
	}
	l.batches = nil
}

// awaitRecovery waits until the breaker is closed and unreturned holds were tried again.
func awaitRecovery() { time.Sleep(5 * time.Second) }

func TestHoldWhoseRefundFailsIsReturnedLater(t *testing.T) {
	for _, onFailure := range []guard.FailureMode{guard.FailLocal, guard.FailOpen} {
		testHolds(t, onFailure, func(h *holdTest) {
			h.decide(penstock.Spend, "a")
			h.decide(penstock.Spend, "b")
			h.setFault(failWith(errDown))
			h.decide(penstock.Refund, "a")
			h.wantUnreturned(1, "after a refund that failed")
			time.Sleep(time.Minute)
			h.wantUsed(2, "during the outage")
			h.setFault(nil)
			awaitRecovery()
			h.wantUsed(1, "after the outage")
			h.wantUnreturned(0, "after the outage")
			if n, reported := h.Stats().HoldsReturnedLate, h.reported.Load(); n != 1 || reported != 1 {
				h.Errorf("%d holds were returned late, and %d were reported; want 1", n, reported)
			}
		})
	}
}

// An open breaker sends no refunds. The store then gets those of the holds that it has granted, and
// no others.
func TestHoldsThatEndWhileTheBreakerIsOpenAreReturnedLater(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		for i := range 8 {
			h.decide(penstock.Spend, fmt.Sprint("early ", i))
		}
		down := penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("connection refused"))
		h.setFault(failWith(down))
		for i := range 8 {
			h.decide(penstock.Refund, fmt.Sprint("early ", i))
		}
		if state := h.Stats().Breakers[""]; state == guard.StateClosed {
			h.Fatal("the breaker is closed; want it open, after 8 refunds that failed")
		}
		for i := range 100 { // the fallback lends and takes back these
			h.decide(penstock.Spend, fmt.Sprint("outage ", i))
			h.decide(penstock.Refund, fmt.Sprint("outage ", i))
		}
		h.wantUnreturned(8, "in the outage")
		h.setFault(nil)
		awaitRecovery()
		h.wantUsed(0, "after the outage")
		h.wantUnreturned(0, "after the outage")
	})
}

// A charge that timed out is denied by the fallback, and the store makes it after the first return.
func TestHoldThatIsGrantedLateIsReturned(t *testing.T) {
	testHolds(t, guard.FailClosed, func(h *holdTest) {
		h.setFault(h.late.receive)
		if d := h.decide(penstock.Spend, "a"); d.Allowed {
			h.Fatalf("the decision without a store is %v; want a denial", d)
		}
		time.Sleep(2 * time.Second)
		h.late.mu.Lock()
		spend := h.late.batches[:1] // the others are returns
		h.late.batches = append([][]penstock.Charge(nil), spend...)
		h.late.mu.Unlock()
		h.setFault(nil)
		time.Sleep(time.Second) // a return overtakes the charge
		h.wantUsed(0, "before the late charge")
		h.wantUnreturned(1, "before the late charge")
		h.late.makeAll(h.store, penstock.Spend)
		h.wantUsed(1, "right after the late charge")
		awaitRecovery()
		h.wantUsed(0, "after the late charge was returned")
		h.wantUnreturned(0, "after the late charge was returned")
	})
}

func TestHoldOfACanceledCallerIsReturned(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		ctx, cancel := context.WithCancel(h.Context())
		h.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Mode == penstock.Spend {
				_, _ = h.store.Decide(context.Background(), charges)
				cancel()
				return penstock.Decision{}, ctx.Err()
			}
			return h.store.Decide(ctx, charges)
		})
		_, err := h.Guarded.Decide(ctx, []penstock.Charge{{Key: "k", Plan: tenAtATime, Cost: 1, Holder: "a"}})
		if !errors.Is(err, context.Canceled) {
			h.Fatalf("the error is %v; want that of the canceled context", err)
		}
		awaitRecovery()
		h.wantUsed(0, "after the caller was canceled")
	})
}

// While a request runs that the fallback has admitted, the slot that the store granted it late is
// its own.
func TestHoldThatIsGrantedLateIsKeptForARequestThatRuns(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		h.setFault(h.late.receive)
		if d := h.decide(penstock.Spend, "a"); !d.Allowed || d.Source != penstock.FromFallback {
			h.Fatalf("the decision without a store is %v; want it allowed by the fallback", d)
		}
		h.setFault(nil)
		h.late.makeAll(h.store, penstock.Spend)
		awaitRecovery()
		h.wantUsed(1, "while the request runs")
		h.decide(penstock.Refund, "a")
		h.wantUsed(0, "after the request has ended")
		time.Sleep(time.Minute)
		h.wantUnreturned(0, "a minute later")
	})
}

// The store has granted the hold before, so its holder still works, whatever a renewal gets.
func TestHoldIsKeptWhenItsRenewalFails(t *testing.T) {
	testHolds(t, guard.FailClosed, func(h *holdTest) {
		h.decide(penstock.Spend, "a")
		h.setFault(h.late.receive)
		if d := h.decide(penstock.Spend, "a"); d.Allowed {
			h.Fatalf("the decision without a store is %v; want a denial", d)
		}
		h.setFault(nil)
		awaitRecovery()
		h.wantUsed(1, "while the request runs")
		h.decide(penstock.Refund, "a")
		h.wantUsed(0, "after the refund")
		h.late.makeAll(h.store, penstock.Spend)
		h.wantUsed(1, "after the late renewal")
		time.Sleep(time.Minute)
		h.wantUsed(0, "a minute later")
		h.wantUnreturned(0, "a minute later")
	})
}

func TestHolderThatIsChargedAgainKeepsItsHold(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		h.decide(penstock.Spend, "a")
		h.setFault(failWith(errDown))
		h.decide(penstock.Refund, "a")
		h.wantUnreturned(1, "after a refund that failed")
		h.setFault(nil)
		if d := h.decide(penstock.Spend, "a"); !d.Allowed || d.Source != penstock.FromStore {
			h.Fatalf("the decision is %v; want it allowed by the store", d)
		}
		h.wantUnreturned(0, "after the holder was charged again")
		time.Sleep(time.Minute)
		h.wantUsed(1, "a minute later")
		h.decide(penstock.Refund, "a")
		h.wantUsed(0, "after the last refund")
	})
}

// A return is in flight while its holder is charged again. The charge waits for the end of the
// return. Otherwise the store might make the return after the charge.
func TestChargeWaitsForTheReturnOfItsHold(t *testing.T) {
	t.Run("right away", func(t *testing.T) { testChargeDuringReturn(t, false) })
	t.Run("after another refund", func(t *testing.T) { testChargeDuringReturn(t, true) })
}

func testChargeDuringReturn(t *testing.T, refundsBefore bool) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		h.decide(penstock.Spend, "a")
		h.setFault(failWith(errDown))
		h.decide(penstock.Refund, "a")
		isReturned, canReturn := make(chan struct{}), make(chan struct{})
		var returns atomic.Int64
		h.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Mode == penstock.Refund && returns.Add(1) == 1 {
				close(isReturned)
				<-canReturn
			}
			return h.store.Decide(ctx, charges)
		})
		<-isReturned
		if refundsBefore {
			h.decide(penstock.Refund, "a")
		}
		charged := make(chan penstock.Decision)
		go func() { charged <- h.decide(penstock.Spend, "a") }()
		synctest.Wait()
		select {
		case d := <-charged:
			h.Errorf("the charge has the decision %v before the return has ended; want that it waits", d)
			close(canReturn)
		default:
			close(canReturn)
			if d := <-charged; !d.Allowed || d.Source != penstock.FromStore {
				h.Errorf("the decision is %v; want it allowed by the store", d)
			}
		}
		time.Sleep(time.Minute)
		h.wantUsed(1, "a minute after the charge")
	})
}

// A return is due while its holder is charged again.
func TestHoldIsNotReturnedWhileItsHolderIsCharged(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		h.decide(penstock.Spend, "a")
		h.setFault(failWith(errDown))
		h.decide(penstock.Refund, "a")
		synctest.Wait() // a return has failed, and the next one comes in half a second
		time.Sleep(450 * time.Millisecond)
		var refunds atomic.Int64
		h.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Mode == penstock.Refund {
				refunds.Add(1)
			}
			d, err := h.store.Decide(ctx, charges)
			time.Sleep(200 * time.Millisecond)
			return d, err
		})
		h.decide(penstock.Spend, "a")
		time.Sleep(time.Minute)
		h.wantUsed(1, "a minute after the charge")
		if n := refunds.Load(); n != 0 {
			h.Errorf("the store got %d refunds; want none", n)
		}
	})
}

// A hold that has expired in the store needs no return.
func TestHoldsExpireUnreturned(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		h.decide(penstock.Spend, "a")
		h.setFault(failWith(errDown))
		h.decide(penstock.Refund, "a")
		time.Sleep(ttl)
		h.wantUnreturned(1, "just before the hold expires")
		time.Sleep(time.Minute)
		h.wantUnreturned(0, "after the hold has expired")
	})
}

// The store has never had these holds, so it returns nothing. The local memory has them.
func TestHoldsOfTheFallbackAreReturnedToItAfterTheOutage(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		for outage := range 2 {
			h.setFault(failWith(errDown))
			for i := range 10 {
				if d := h.decide(penstock.Spend, fmt.Sprint(outage, i)); !d.Allowed || d.Source != penstock.FromFallback {
					h.Fatalf("in outage %d, the decision of hold %d is %v; want it allowed by the fallback", outage, i, d)
				}
			}
			h.setFault(nil)
			awaitRecovery()
			for i := range 10 {
				h.decide(penstock.Refund, fmt.Sprint(outage, i))
			}
		}
	})
}

// minute is a limit whose holds end within the outages of the tests.
var minute = penstock.InFlight(10, time.Minute).WithName("minute").MustCompile()

// decideOn decides a charge of minute through a guarded store.
func decideOn(t *testing.T, g *guard.Guarded, mode penstock.Mode, holder string) penstock.Decision {
	t.Helper()
	d, err := g.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: minute, Cost: 1, Mode: mode, Holder: holder}})
	if err != nil {
		t.Fatalf("%v of holder %s ended with error %v", mode, holder, err)
	}
	return d
}

// isFree reports whether the store has a free slot of minute.
func isFree(t *testing.T, f *faulty) bool {
	t.Helper()
	d, err := f.store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: minute, Cost: 1, Mode: penstock.Peek}})
	if err != nil {
		t.Fatal(err)
	}
	return d.Allowed
}

// The store forgets the holds in the outage, and gets them back before their next renewal.
func TestHoldsThatEndInAnOutageAreRetaken(t *testing.T) {
	for _, onFailure := range []guard.FailureMode{guard.FailLocal, guard.FailOpen, guard.FailClosed} {
		testHolds(t, onFailure, func(h *holdTest) {
			for i := range 10 {
				decideOn(h.T, h.Guarded, penstock.Spend, fmt.Sprint(i))
			}
			h.setFault(failWith(penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("connection refused"))))
			for range 15 {
				time.Sleep(20 * time.Second)
				for i := range 10 {
					decideOn(h.T, h.Guarded, penstock.Spend, fmt.Sprint(i))
				}
			}
			if !isFree(h.T, h.faulty) {
				h.Error("the store has the holds at the end of the outage; want that it has forgotten them")
			}
			h.setFault(nil)
			time.Sleep(2 * time.Second)
			if isFree(h.T, h.faulty) {
				h.Errorf("on_failure %v: 2 s after the outage, the store lends a slot that is in use", onFailure)
			}
			for i := range 10 {
				decideOn(h.T, h.Guarded, penstock.Refund, fmt.Sprint(i))
			}
			h.wantUnreturned(0, "in the end")
			if d, err := h.store.Decide(h.Context(), []penstock.Charge{{Key: "k", Plan: minute, Cost: 10, Mode: penstock.Peek}}); err != nil || !d.Allowed {
				h.Errorf("after all holders have gone, the decision on 10 slots is %v, %v; want it allowed", d, err)
			}
		})
	}
}

// Another instance lends the slots before they are retaken. Then the store lends no slot before the
// use is below the limit.
func TestRetakenHoldsCountBeyondTheLimit(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		other := standard(h.T, h.faulty.store, guard.Options{})
		defer other.Close()
		h.setFault(failWith(errDown))
		for i := range 10 {
			decideOn(h.T, h.Guarded, penstock.Spend, fmt.Sprint(i))
			if d := decideOn(h.T, other, penstock.Spend, fmt.Sprint("other ", i)); !d.Allowed {
				h.Fatalf("the decision of the other instance is %v; want it allowed", d)
			}
		}
		h.setFault(nil)
		time.Sleep(2 * time.Second)
		for i := range 10 {
			if isFree(h.T, h.faulty) {
				h.Errorf("when %d of 20 slots are in use, the store lends another one", 20-i)
			}
			if d := decideOn(h.T, h.Guarded, penstock.Spend, fmt.Sprint(i)); !d.Allowed || d.Source != penstock.FromStore {
				h.Errorf("the renewal of a retaken hold is %v; want it allowed by the store", d)
			}
			decideOn(h.T, other, penstock.Refund, fmt.Sprint("other ", i))
		}
		decideOn(h.T, h.Guarded, penstock.Refund, "0")
		if !isFree(h.T, h.faulty) {
			h.Error("when 9 slots are in use, the store lends none")
		}
	})
}

// A request that ends in the outage, and a holder that stops renewing, get no slot afterwards.
func TestHoldsThatHaveEndedAreNotRetaken(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		h.setFault(failWith(errDown))
		decideOn(h.T, h.Guarded, penstock.Spend, "stops")
		decideOn(h.T, h.Guarded, penstock.Spend, "ends")
		time.Sleep(50 * time.Second)
		decideOn(h.T, h.Guarded, penstock.Spend, "ends")
		decideOn(h.T, h.Guarded, penstock.Refund, "ends")
		time.Sleep(11 * time.Second)
		h.setFault(nil)
		time.Sleep(2 * time.Second)
		if d, err := h.store.Decide(h.Context(), []penstock.Charge{{Key: "k", Plan: minute, Cost: 10, Mode: penstock.Peek}}); err != nil || !d.Allowed {
			h.Errorf("the decision on 10 slots is %v, %v; want it allowed", d, err)
		}
	})
}

// A retake is in flight while its hold is refunded. The store may make it after the Refund.
func TestHoldIsReturnedAfterARetakeInFlight(t *testing.T) {
	for _, isRetakeMade := range []bool{true, false} {
		testHolds(t, guard.FailLocal, func(h *holdTest) {
			h.setFault(failWith(errDown))
			h.decide(penstock.Spend, "a")
			isRetaken, canRetake := make(chan struct{}), make(chan struct{})
			h.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if charges[0].Mode != penstock.Force {
					return h.store.Decide(ctx, charges)
				}
				close(isRetaken)
				<-canRetake
				h.setFault(nil)
				if isRetakeMade {
					return h.store.Decide(context.Background(), charges)
				}
				return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonOutOfMemory, errors.New("no memory"))
			})
			<-isRetaken
			h.decide(penstock.Refund, "a")
			close(canRetake)
			time.Sleep(time.Minute)
			h.wantUsed(0, "a minute after the refund")
			h.wantUnreturned(0, "a minute after the refund")
		})
	}
}

// Many holds are retaken at a bounded rate, the latest 65,536 of them.
func TestRetakesAreBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		const most = 65_536
		plan := penstock.InFlight(1, ttl).WithName("each").MustCompile()
		h.setFault(failWith(penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("connection refused"))))
		for i := range most + 1000 {
			if _, err := h.Guarded.Decide(h.Context(), []penstock.Charge{{Key: fmt.Sprint(i), Plan: plan, Cost: 1, Holder: "a"}}); err != nil {
				h.Fatal(err)
			}
		}
		var retakes atomic.Int64
		perPass := map[time.Time]int64{}
		var mu sync.Mutex
		h.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Mode == penstock.Force {
				retakes.Add(1)
				mu.Lock()
				perPass[time.Now().Truncate(10*time.Millisecond)]++
				mu.Unlock()
			}
			return h.store.Decide(ctx, charges)
		})
		time.Sleep(15 * time.Second)
		if n := retakes.Load(); n != most {
			h.Errorf("the store got %d retakes; want %d", n, most)
		}
		mu.Lock()
		defer mu.Unlock()
		for at, n := range perPass {
			if n > 2*64 { // two passes may fall into one period
				h.Errorf("at %v the store got %d retakes in 10 ms; want at most 64 per pass", at, n)
			}
		}
	})
}

// An acquire times out at one instance, is denied there, and is repeated with the same holder at
// another one. The first instance returns only what it has taken itself, in whatever order the
// store gets the charges.
func TestLateReturnLeavesTheHoldOfAnotherInstance(t *testing.T) {
	for _, order := range []string{"spend a, spend b, return a", "spend b, spend a, return a", "spend b, return a, spend a, return a"} {
		testHolds(t, guard.FailClosed, func(h *holdTest) {
			other := standard(h.T, h.faulty.store, guard.Options{})
			defer other.Close()
			acquire := func(g *guard.Guarded) penstock.Decision {
				d, err := g.Decide(h.Context(), []penstock.Charge{{Key: "k", Plan: tenAtATime, Cost: 1, Holder: "a", Serial: time.Now().UnixMicro()}})
				if err != nil {
					h.Fatal(err)
				}
				return d
			}
			h.setFault(h.late.receive)
			if d := acquire(h.Guarded); d.Allowed {
				h.Fatalf("the decision without a store is %v; want a denial", d)
			}
			if order[:7] == "spend a" {
				h.late.makeAll(h.store, penstock.Spend)
			}
			time.Sleep(time.Millisecond)
			if d := acquire(other); !d.Allowed {
				h.Fatalf("the decision of the other instance is %v; want it allowed", d)
			}
			if order[9:16] == "spend a" {
				h.late.makeAll(h.store, penstock.Spend)
			}
			h.late.mu.Lock()
			late := h.late.batches
			h.late.mu.Unlock()
			h.setFault(nil)
			awaitRecovery()
			for _, charges := range late {
				_, _ = h.store.Decide(h.Context(), charges)
			}
			time.Sleep(time.Minute)
			h.wantUsed(1, order)
			h.wantUnreturned(0, order)
			if _, err := other.Decide(h.Context(), []penstock.Charge{{Key: "k", Plan: tenAtATime, Cost: 1, Mode: penstock.Refund, Holder: "a"}}); err != nil {
				h.Fatal(err)
			}
			h.wantUsed(0, order+", and the release")
		})
	}
}

func TestRefundOfAPartIsNotRepeated(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		charge := penstock.Charge{Key: "k", Plan: tenAtATime, Cost: 5, Holder: "a"}
		decide := func(mode penstock.Mode, cost int64) {
			charge.Mode, charge.Cost = mode, cost
			if _, err := h.Guarded.Decide(h.Context(), []penstock.Charge{charge}); err != nil {
				h.Fatal(err)
			}
		}
		decide(penstock.Spend, 5)
		decide(penstock.Refund, 1)
		h.setFault(failWith(errDown))
		decide(penstock.Refund, 1)
		h.setFault(nil)
		awaitRecovery()
		h.wantUsed(4, "after a part was refunded")
		h.setFault(failWith(errDown))
		decide(penstock.Refund, 4)
		h.setFault(nil)
		awaitRecovery()
		h.wantUsed(0, "after the rest was refunded")
	})
}

// Close returns what is left, at once, and does not wait for a store that hangs.
func TestCloseReturnsHolds(t *testing.T) {
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		for i := range 4 {
			h.decide(penstock.Spend, fmt.Sprint(i))
		}
		h.setFault(failWith(errDown))
		h.decide(penstock.Refund, "0")
		h.decide(penstock.Refund, "1")
		h.setFault(nil)
		h.Guarded.Close()
		h.wantUsed(2, "after Close")
	})
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		h.decide(penstock.Spend, "a")
		h.setFault(hang)
		h.decide(penstock.Refund, "a")
		begin := time.Now()
		h.Guarded.Close()
		if took := time.Since(begin); took > time.Second {
			h.Errorf("Close took %v; want at most 1s", took)
		}
	})
}

func TestUnreturnedHoldsAreBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	testHolds(t, guard.FailLocal, func(h *holdTest) {
		const most = 65_536
		plan := penstock.InFlight(1, ttl).WithName("each").MustCompile()
		decide := func(mode penstock.Mode, i int) {
			charge := penstock.Charge{Key: fmt.Sprint(i), Plan: plan, Cost: 1, Mode: mode, Holder: "a"}
			if _, err := h.Guarded.Decide(h.Context(), []penstock.Charge{charge}); err != nil {
				h.Fatal(err)
			}
		}
		for i := range most + 1000 {
			decide(penstock.Spend, i)
		}
		h.setFault(failWith(errDown))
		for i := range most + 1000 {
			decide(penstock.Refund, i)
		}
		h.wantUnreturned(most, "after more refunds that failed")
		h.setFault(nil)
		time.Sleep(time.Minute)
		h.wantUnreturned(0, "a minute after the outage")
		if n := h.Stats().HoldsReturnedLate; n != most {
			h.Errorf("%d holds were returned late; want %d", n, most)
		}
	})
}

// An unreliableStore loses calls before and after it decides them, and decides some of them late.
type unreliableStore struct {
	penstock.Store
	mu        sync.Mutex
	rng       *rand.Rand
	isFailing bool
	late      []func() // decides a batch whose caller has left
}

func (s *unreliableStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unknown := penstock.NewStoreError(penstock.ReasonTimeout, errors.New("no answer"))
	switch fate := s.rng.IntN(10); {
	case !s.isFailing || fate < 4:
		return s.Store.Decide(ctx, charges)
	case fate < 6:
		return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonOutOfMemory, errors.New("no memory"))
	case fate < 8:
		_, _ = s.Store.Decide(ctx, charges)
		return penstock.Decision{}, unknown
	}
	if charges[0].Mode == penstock.Refund {
		return penstock.Decision{}, unknown // a refund is not made late, because it could end a later hold of the same holder
	}
	charges = append([]penstock.Charge(nil), charges...)
	s.late = append(s.late, func() { _, _ = s.Store.Decide(context.Background(), charges) })
	return penstock.Decision{}, unknown
}

func (s *unreliableStore) setFailing(isFailing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isFailing = isFailing
}

// decideLate decides the late batches, in any order.
func (s *unreliableStore) decideLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.rng.Perm(len(s.late)) {
		s.late[i]()
	}
	s.late = nil
}

// Holders come, renew and go, while the store fails in all ways. Soon after the store works again,
// it has exactly the holds of the holders that are still there.
func TestStoreHasTheRightHoldsAfterAnyOutage(t *testing.T) {
	holders := 0
	for i := range uint64(seeds(100)) {
		seed := effort.Seed() + i
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			unreliable := &unreliableStore{Store: newFaulty().store, rng: rand.New(rand.NewPCG(seed, 8))}
			mode := []guard.FailureMode{guard.FailLocal, guard.FailOpen, guard.FailClosed}[rng.IntN(3)]
			g := standard(t, unreliable, guard.Options{OnFailure: mode})
			defer g.Close()
			plan := penstock.InFlight(1000, ttl).MustCompile()
			working := map[string]bool{}
			decide := func(mode penstock.Mode, holder string) penstock.Decision {
				d, err := g.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Cost: 1, Mode: mode, Holder: holder}})
				if err != nil && mode == penstock.Spend {
					t.Fatalf("seed %d: %v", seed, err)
				}
				return d
			}
			wantUsed := func(want int64, when string) {
				d, err := unreliable.Store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Cost: 1, Mode: penstock.Peek}})
				if used := 1000 - d.Remaining(); err != nil || used != want {
					t.Errorf("seed %d, on_failure %v: %s, %d slots are used (error %v); want %d", seed, mode, when, used, err, want)
				}
			}
			for step := range 400 {
				time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
				unreliable.setFailing(step/50%2 == 1)
				if step%50 == 5 { // soon after an outage, or in it
					unreliable.decideLate()
				}
				holder := fmt.Sprint(rng.IntN(30))
				switch {
				case !working[holder]:
					if decide(penstock.Spend, holder).Allowed {
						working[holder] = true
					}
					holders++
				case rng.IntN(3) == 0:
					decide(penstock.Spend, holder)
				default:
					decide(penstock.Refund, holder)
					delete(working, holder)
				}
			}
			unreliable.setFailing(false)
			time.Sleep(500 * time.Millisecond)
			unreliable.decideLate()
			time.Sleep(5 * time.Second)
			time.Sleep(10 * time.Minute)
			wantUsed(int64(len(working)), "long after the outage")
			for holder := range working {
				decide(penstock.Refund, holder)
			}
			wantUsed(0, "after all holders have gone")
			time.Sleep(10 * time.Minute)
			if n := g.Stats().HoldsUnreturned; n != 0 {
				t.Errorf("seed %d: %d holds are unreturned; want none", seed, n)
			}
		})
	}
	t.Logf("counted: %d holders", holders)
}

// Charges that take no hold cost the guards nothing more.
func BenchmarkHolds(b *testing.B) {
	store := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Single(penstock.Status{Granted: 1, Remaining: 1}), nil
	})
	o := guard.Options{Instances: 1, OnFailure: guard.FailOpen, DenyCacheTTL: -1}
	g, err := guard.Standard(store, o)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	b.Run("charge without a hold", func(b *testing.B) {
		benchmark(b, g, one(compiled(b, penstock.PerSecond(1_000_000)), "k"))
	})
	b.Run("hold and refund", func(b *testing.B) {
		hold := []penstock.Charge{{Key: "k", Plan: tenAtATime, Cost: 1, Holder: "holder"}}
		refund := []penstock.Charge{{Key: "k", Plan: tenAtATime, Cost: 1, Holder: "holder", Mode: penstock.Refund}}
		b.ReportAllocs()
		for b.Loop() {
			_, _ = g.Decide(b.Context(), hold)
			_, _ = g.Decide(b.Context(), refund)
		}
	})
}
