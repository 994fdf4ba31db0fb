package admission_test

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/policy"
)

// A limit with IsMinimum keeps what it has charged, even if the true cost is lower.
func TestCorrectionsRefundNoMinimum(t *testing.T) {
	for _, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.FixedWindow, penstock.SlidingWindow, penstock.SlidingLog} {
		for _, isMinimum := range []bool{false, true} {
			grant := admission.Grant{
				Charge: penstock.Charge{Key: "a", Plan: penstock.PerHour(9).With(a).MustCompile(), Cost: 3, Receipt: 1},
				Limit:  &policy.Limit{Adjustable: true, IsMinimum: isMinimum},
			}
			for cost, want := range map[int64]penstock.Charge{1: {Mode: penstock.Refund, Cost: 2}, 3: {}, 5: {Mode: penstock.Force, Cost: 2}} {
				if isMinimum && want.Mode == penstock.Refund {
					want = penstock.Charge{}
				}
				var got penstock.Charge
				for _, got = range admission.Corrections([]admission.Grant{grant}, 0, &cost) {
				}
				if got.Mode != want.Mode || got.Cost != want.Cost {
					t.Errorf("%s, IsMinimum %v: a true cost of %d in place of 3 is corrected by %d units of mode %v; want %d of mode %v",
						a.Title(), isMinimum, cost, got.Cost, got.Mode, want.Cost, want.Mode)
				}
			}
		}
	}
}
