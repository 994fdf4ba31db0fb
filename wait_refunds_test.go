package penstock_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

func newReservation(t *testing.T, l *penstock.Limiter, n int64) *penstock.Reservation {
	t.Helper()
	r, err := l.ReserveN(context.Background(), "k", n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func spendN(t *testing.T, l *penstock.Limiter, n int64) {
	t.Helper()
	if d, err := l.AllowN(context.Background(), "k", n); err != nil || !d.Allowed {
		t.Fatalf("a spend of %d units: %v, %v; want a grant", n, d, err)
	}
}

func settle(t *testing.T, r *penstock.Reservation, actual int64) {
	t.Helper()
	if err := r.Settle(context.Background(), actual); err != nil {
		t.Fatal(err)
	}
}

func remaining(t *testing.T, l *penstock.Limiter) int64 {
	t.Helper()
	d, err := l.Peek(context.Background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining()
}

// 95 of the 100 reserved tokens are refilled when others spend them. Then only 5 are left to
// refund.
func TestCancelReturnsNoRefilledTokens(t *testing.T) {
	clock := newManualClock()
	l := newLimiter(t, clock.store(), "l", penstock.PerSecond(50).WithBurst(100))
	r := newReservation(t, l, 100)
	clock.pass(1900 * time.Millisecond)
	spendN(t, l, 95)
	settle(t, r, 0)
	if left := remaining(t, l); left != 5 {
		t.Errorf("%d tokens are left after the Cancel; want 5, so that at most 100 pass in this moment", left)
	}
}

// Others spend all tokens as they are refilled. So the surplus of a reservation is still charged
// when it is settled, after any time.
func TestSettleReturnsTheSurplusOfABusyBucket(t *testing.T) {
	for _, row := range []struct {
		name   string
		isBusy bool
		want   int64 // tokens that the Settle returns
	}{
		{"others keep it nearly empty", true, 15_900},
		{"it was full since", false, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := newManualClock()
			l := newLimiter(t, clock.store(), "l", penstock.PerMinute(100_000))
			spendN(t, l, 80_000)
			r := newReservation(t, l, 16_000)
			for range 60 {
				clock.pass(time.Second)
				if row.isBusy {
					spendN(t, l, 1666)
				}
			}
			before := remaining(t, l)
			settle(t, r, 100)
			if returned := remaining(t, l) - before; returned != row.want {
				t.Errorf("Settle returned %d tokens; want %d", returned, row.want)
			}
		})
	}
}

// Reservations that begin at once, when nothing is used, all return their surplus.
func TestConcurrentReservationsReturnTheirSurplus(t *testing.T) {
	clock := newManualClock()
	l := newLimiter(t, clock.store(), "l", penstock.PerMinute(100_000))
	var open []*penstock.Reservation
	for range 20 {
		clock.pass(time.Microsecond)
		open = append(open, newReservation(t, l, 5000))
	}
	for i := range open {
		settle(t, open[(i*7)%len(open)], 100)
	}
	if left := remaining(t, l); left != 98_000 {
		t.Errorf("%d tokens are left; want 98000, since 20 reservations have used 100 each", left)
	}
}

// A reservation is canceled when its window has ended or its units have expired, and others have
// spent all units since. Nothing comes back.
func TestCancelReturnsNoUnitsOfLaterCharges(t *testing.T) {
	for name, limit := range map[string]penstock.Limit{
		"token bucket":    {},
		"fixed window":    {Algorithm: penstock.FixedWindow},
		"anchored window": {Algorithm: penstock.AnchoredWindow},
		"sliding window":  {Algorithm: penstock.SlidingWindow},
		"sub-window":      {Algorithm: penstock.SubWindow(4)},
		"sliding log":     {Algorithm: penstock.SlidingLog},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newManualClock()
			limit.Name, limit.Count, limit.Period = "l", 100, 2*time.Second
			l := newLimiter(t, clock.store(), "l", limit)
			var open []*penstock.Reservation
			for range 3 {
				open = append(open, newReservation(t, l, 100))
				clock.pass(4100 * time.Millisecond)
			}
			spendN(t, l, 100)
			for _, r := range open {
				settle(t, r, 0)
			}
			if left := remaining(t, l); left != 0 {
				t.Errorf("%d units are left after 100 of 100 were spent; want 0", left)
			}
		})
	}
}

// A Cancel takes the units from where they were charged, not from what is newest.
func TestCancelReturnsUnitsOfTheirOwnTime(t *testing.T) {
	for name, row := range map[string]struct {
		limit penstock.Limit
		want  int64 // units that are free again when the canceled units would have expired
	}{
		"sliding log": {penstock.Limit{Algorithm: penstock.SlidingLog}, 60},
		"sub-window":  {penstock.Limit{Algorithm: penstock.SubWindow(10)}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newManualClock()
			row.limit.Name, row.limit.Count, row.limit.Period = "l", 100, 10*time.Second
			l := newLimiter(t, clock.store(), "l", row.limit)
			r := newReservation(t, l, 60)
			clock.pass(5 * time.Second)
			spendN(t, l, 40)
			settle(t, r, 0)
			if left := remaining(t, l); left != 60 {
				t.Errorf("%d units are left after the Cancel; want 60", left)
			}
			clock.pass(6500 * time.Millisecond) // the canceled units would have expired
			if left := remaining(t, l); left != row.want {
				t.Errorf("%d units are left; want %d, because the 40 that others spent still count", left, row.want)
			}
		})
	}
}

// A Reset returns what a reservation has charged, so a Cancel returns nothing more.
func TestCancelAfterResetReturnsNothing(t *testing.T) {
	clock := newManualClock()
	l := newLimiter(t, memstore.New(memstore.Options{Now: clock.Now}), "l", penstock.PerMinute(100))
	r := newReservation(t, l, 100)
	if _, err := l.Reset(context.Background(), "k"); err != nil {
		t.Fatal(err)
	}
	clock.pass(time.Microsecond)
	spendN(t, l, 100)
	settle(t, r, 0)
	if left := remaining(t, l); left != 0 {
		t.Errorf("%d tokens are left; want 0", left)
	}
}
