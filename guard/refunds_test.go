package guard_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// A refundStore decides charges of one key and limit.
type refundStore struct {
	*testing.T
	store penstock.Store
	plan  *penstock.Plan
}

func (s *refundStore) decide(c penstock.Charge) penstock.Decision {
	s.Helper()
	c.Key, c.Plan = "k", s.plan
	d, err := s.store.Decide(s.Context(), []penstock.Charge{c})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// reserve spends a cost, and returns its refund.
func (s *refundStore) reserve(cost int64) penstock.Charge {
	s.Helper()
	d := s.decide(penstock.Charge{Cost: cost, IsRefundable: true})
	if !d.Allowed || d.Status(0).Receipt == 0 {
		s.Fatalf("a spend of %d units: %v, receipt %d; want a grant with a receipt", cost, d, d.Status(0).Receipt)
	}
	return penstock.Charge{Mode: penstock.Refund, Cost: cost, Receipt: d.Status(0).Receipt}
}

func (s *refundStore) left() int64 {
	s.Helper()
	return s.decide(penstock.Charge{Mode: penstock.Peek}).Remaining()
}

// A refund has an effect only where its charge was made: in the store, or in the memory of the
// fallback.
func TestFallbackRefundsOnlyItsOwnCharges(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	memory := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	isDown := false
	flaky := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if isDown {
			return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonUnknown, nil)
		}
		return memory.Decide(ctx, charges)
	})
	s := &refundStore{t, guard.Fallback(guard.FallbackOptions{})(flaky), penstock.PerDay(100).MustCompile()}
	inStore := s.reserve(10)
	isDown = true
	local := s.reserve(20)
	if granted := s.decide(inStore).Granted(); granted != 0 {
		t.Errorf("the fallback returned %d units that the store has charged; want 0", granted)
	}
	isDown = false
	if granted := s.decide(local).Granted(); granted != 0 || s.left() != 90 {
		t.Errorf("the store returned %d units that the fallback has charged, %d are left; want 0, and 90", granted, s.left())
	}
	if granted := s.decide(inStore).Granted(); granted != 10 || s.left() != 100 {
		t.Errorf("the store returned %d of its 10 units, %d are left; want 10, and 100", granted, s.left())
	}
	isDown = true
	if granted := s.decide(local).Granted(); granted < 19 { // a part of a unit was refilled since
		t.Errorf("the fallback returned %d of its 20 units; want them back", granted)
	}
}

// Units of a split limit return to the shards that have granted them.
func TestSplitRefundsToTheShardsOfTheCharge(t *testing.T) {
	for name, limit := range map[string]penstock.Limit{
		"token bucket": penstock.PerDay(100), "fixed window": penstock.PerDay(100).With(penstock.FixedWindow),
		"sliding log": penstock.PerDay(100).With(penstock.SlidingLog),
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_700_000_000, 0)
			split := guard.Split(func(*penstock.Plan) guard.Settings { return guard.Settings{SplitInto: 4} })
			s := &refundStore{t, split(memstore.New(memstore.Options{Now: func() time.Time { return now }})), limit.MustCompile()}
			var open []penstock.Charge
			for range 12 {
				open = append(open, s.reserve(6))
			}
			for i, refund := range open {
				if granted := s.decide(refund).Granted(); granted != 6 {
					t.Errorf("refund %d returned %d of 6 units; want all", i, granted)
				}
			}
			if left := s.left(); left != 100 {
				t.Errorf("%d units are left after all were refunded; want 100", left)
			}
			large := s.reserve(60) // more than a shard has
			if granted := s.decide(large).Granted(); granted != 60 || s.left() != 100 {
				t.Errorf("a refund returned %d of 60 units, %d are left; want all, and 100", granted, s.left())
			}
			unsplit := penstock.Charge{Mode: penstock.Refund, Cost: 6, Receipt: now.UnixMicro()}
			s.reserve(60)
			if granted := s.decide(unsplit).Granted(); granted != 0 {
				t.Errorf("a refund with a receipt that no shard has made returned %d units; want 0", granted)
			}
		})
	}
}

// Refunds need to know when the store has charged units, and leased units are charged earlier.
func TestRefundableChargesAreNotLeased(t *testing.T) {
	leases := guard.NewLease(memstore.New(memstore.Options{}), guard.LeaseSetup{
		Limits: func(*penstock.Plan) guard.Settings { return guard.Settings{Lease: 1000} },
	})
	defer leases.Close(context.Background())
	s := &refundStore{t, leases, penstock.PerSecond(1_000_000).MustCompile()}
	for range 1000 {
		if d := s.decide(penstock.Charge{Cost: 1, IsRefundable: true}); d.Source != penstock.FromStore {
			t.Fatalf("a charge that may be refunded was decided by %v; want the store", d.Source)
		}
	}
	if stats := leases.Stats(); stats.Keys != 0 || stats.Draws != 0 {
		t.Errorf("the stats are %+v; want no key and no draw", stats)
	}
}
