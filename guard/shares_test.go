package guard

import (
	"testing"

	"github.com/penstock/penstock"
)

func TestRememberedSharesAreBounded(t *testing.T) {
	const tried = 3 * maxShares
	var s shares
	for i := range tried {
		limit := penstock.PerSecond(int64(i + 1))
		for range 2 {
			if share, ok := s.of(&limit, 3); !ok || share.Burst != (limit.Count+2)/3 {
				t.Fatalf("a third of %v is %v", limit, share)
			}
		}
		if len(s.known) > maxShares {
			t.Fatalf("%d are remembered; want %d at most", len(s.known), maxShares)
		}
	}
	t.Logf("counted: %d shares of which %d are remembered at most", tried, maxShares)
}
