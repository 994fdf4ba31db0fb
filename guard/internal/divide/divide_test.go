package divide

import (
	"testing"

	"github.com/penstock/penstock"
)

func TestCachedSharesAreBounded(t *testing.T) {
	const tried = 3 * maxEntries
	var shares Cache[*penstock.Plan]
	computed := 0
	for i := range tried {
		limit := penstock.PerSecond(int64(i + 1)).With(penstock.TokenBucket)
		for range 2 {
			third := shares.Get(limit, 3, func(l penstock.Limit, n int) *penstock.Plan {
				computed++
				return l.MustCompile().Share(n)
			})
			if burst := (limit.Count + 2) / 3; third == nil || third.Limit().Burst != burst {
				t.Fatalf("a third of %v is %v; want a Burst of %d", limit, third, burst)
			}
		}
		if computed != i+1 {
			t.Fatalf("%d shares of %d limits were computed; want each once", computed, i+1)
		}
		if len(shares.entries) > maxEntries {
			t.Fatalf("%d shares are cached; want %d at most", len(shares.entries), maxEntries)
		}
	}
	t.Logf("counted: %d shares, of which at most %d are cached", tried, maxEntries)
}
