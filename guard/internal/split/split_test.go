package split

import (
	"testing"

	"github.com/penstock/penstock"
)

// The memory of a batch is used again. What was left under the limits of the batch before is not
// known of the next one.
func TestReusedBatchKnowsNothingOfTheOneBefore(t *testing.T) {
	charges := []penstock.Charge{{Key: "k", Plan: penstock.PerDay(100).MustCompile(), Cost: 1}}
	parts := PartsOf(charges[0].Plan.Limit(), 4)
	s, b := new(store), new(splitBatch)
	b.begin(s, charges, 0, parts)
	p := &b.states[0]
	for shard := range parts.N() {
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
