package penstock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

func countingDenied(l penstock.Limit) penstock.Limit { l.ShouldCountDenied = true; return l }

func TestSomeAlgorithmsCannotCountDenied(t *testing.T) {
	for _, l := range []penstock.Limit{penstock.PerSecond(5).With(penstock.LeakyBucket), penstock.InFlight(5, time.Minute)} {
		_, err := countingDenied(l).Compile()
		if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), l.Algorithm.Title()+" cannot count denied requests; use ") {
			t.Errorf("%v: the error is %v; want one that says that it cannot count denied requests", l, err)
		}
	}
}

func TestPartsAndSharesCountDenied(t *testing.T) {
	plan := countingDenied(penstock.PerSecond(10)).MustCompile()
	if share, part := plan.Share(2), plan.Part(2, 1); !share.CountsDenied() || !part.CountsDenied() {
		t.Errorf("a share counts denied requests: %v, and a part: %v; want both", share.CountsDenied(), part.CountsDenied())
	}
	if text := plan.String(); text != "second: 10 per 1s, denied requests count (token-bucket)" {
		t.Errorf("the limit is written as %q; want that denied requests count", text)
	}
}

func TestAttemptIsNoModeOfACharge(t *testing.T) {
	charge := penstock.Charge{Key: "k", Plan: countingDenied(penstock.PerSecond(10)).MustCompile(), Cost: 1, Mode: algorithm.Attempt}
	if err := penstock.Check([]penstock.Charge{charge}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("Check of a charge with the mode %v: %v; want ErrInvalid", charge.Mode, err)
	}
}

// A charge with IsFreeIfDenied is not counted, whichever charge denies its batch.
func TestFreeDenialsDoNotCount(t *testing.T) {
	store := memstore.New(memstore.Options{})
	counting, full := countingDenied(penstock.PerDay(10)).MustCompile(), penstock.PerDay(1).WithName("full").MustCompile()
	for _, isFree := range []bool{true, false} {
		charges := []penstock.Charge{{Key: "k", Plan: counting, Cost: 3, IsFreeIfDenied: isFree}, {Key: "k", Plan: full, Cost: 2}}
		d, err := store.Decide(t.Context(), charges)
		want := int64(7)
		if isFree {
			want = 10
		}
		if err != nil || d.Allowed || d.Status(0).Remaining != want {
			t.Errorf("with IsFreeIfDenied %v: %+v, %v; want a denial, and %d units left", isFree, d.Status(0), err, want)
		}
	}
}

// A Wait that is alone is granted at the RetryAfter of its first denial, although this denial
// counts in all its limits.
func TestWaitEndsAlthoughItsAttemptsCount(t *testing.T) {
	seed := effort.Seed()
	random := rand.New(rand.NewPCG(seed, 0))
	algorithms := []*algorithm.Algorithm{
		penstock.TokenBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(4), penstock.SlidingLog,
	}
	for range effort.Of(1000, 20_000) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			memory := memstore.New(memstore.Options{})
			store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if calls++; calls > 100 { // it would never end
					return penstock.Decision{}, errors.New("too many calls")
				}
				return memory.Decide(ctx, charges)
			})
			var limits []penstock.Limit
			for _, name := range []string{"a", "b", "c"}[:1+random.IntN(3)] {
				limits = append(limits, penstock.Limit{
					Name: name, Algorithm: algorithms[random.IntN(len(algorithms))], Count: 2 + random.Int64N(9),
					Period: time.Duration(1+random.IntN(100)) * time.Second, ShouldCountDenied: true,
				})
			}
			limiter, err := penstock.NewLimiter(store, "l", limits...)
			if err != nil {
				t.Fatal(err)
			}
			for range random.IntN(30) { // many are denied
				if _, err := limiter.AllowN(t.Context(), "k", 1+random.Int64N(2)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(random.IntN(5)) * time.Second)
			}
			calls = 0
			if err := limiter.WaitN(t.Context(), "k", 1+random.Int64N(2)); err != nil {
				t.Errorf("PENSTOCK_SEED=%d: a Wait for %v: %v; want a grant", seed, limits, err)
			}
			if calls > 2 {
				t.Errorf("PENSTOCK_SEED=%d: a Wait for %v made %d calls; want at most 2", seed, limits, calls)
			}
		})
	}
}
