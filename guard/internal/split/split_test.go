package split

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// The memory of a batch is used again. The next batch must not see what was left under the limits
// of the batch before.
func TestReusedBatchKnowsNothingOfTheOneBefore(t *testing.T) {
	charges := []penstock.Charge{{Key: "k", Plan: penstock.PerDay(100).MustCompile(), Cost: 1}}
	parts := PartsOf(charges[0].Plan.Limit(), 4)
	s, b := new(store), new(splitBatch)
	b.begin(s, charges, 0, parts)
	p := &b.states[0]
	for shard := range parts.Len() {
		p.addStatus(penstock.Status{Remaining: 25}, shard)
	}
	if left := p.sumRemaining(); left != 100 {
		t.Fatalf("in 4 shards of 25 units, %d are left; want 100", left)
	}
	b.end()
	if b.begin(s, charges, 0, parts); p.sumRemaining() != 0 {
		t.Errorf("before its first answer, a batch knows of %d units that are left; want 0", p.sumRemaining())
	}
}

// A Refund of a hold that is in several shards asks each for the rest only.
func TestRefundOfAHoldAsksForTheRest(t *testing.T) {
	var asked []int64
	s := New(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		asked = append(asked, charges[0].Cost)
		return penstock.Single(penstock.Status{Granted: min(charges[0].Cost, 2)}), nil
	}), func(*penstock.Plan) int { return 4 })
	limit := penstock.Limit{Name: "l", Algorithm: penstock.Concurrency, Count: 40, Period: time.Minute}.MustCompile()
	d, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: limit, Mode: penstock.Refund, Cost: 5, Holder: "h"}})
	if want := []int64{5, 3, 1}; err != nil || !slices.Equal(asked, want) || d.Status(0).Granted != 5 {
		t.Errorf("the shards were asked for %v units, and the decision is %+v, %v; want %v, and 5 returned", asked, d.Status(0), err, want)
	}
}
