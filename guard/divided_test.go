package guard

import (
	"testing"

	"github.com/penstock/penstock"
)

func TestRememberedPartsAreBounded(t *testing.T) {
	const tried = 3 * maxDivided
	var shares divided[share]
	for i := range tried {
		limit := penstock.PerSecond(int64(i + 1))
		for range 2 {
			if s := shares.by(3, &limit, makeShare); !s.ok || s.limit.Burst != (limit.Count+2)/3 {
				t.Fatalf("a third of %v is %v", limit, s.limit)
			}
		}
		if len(shares.known) > maxDivided {
			t.Fatalf("%d are remembered; want %d at most", len(shares.known), maxDivided)
		}
	}
	t.Logf("counted: %d shares of which %d are remembered at most", tried, maxDivided)
}
