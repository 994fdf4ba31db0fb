package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/regions"
)

func TestRegionsHaveMetrics(t *testing.T) {
	m := New("", nil, 80)
	m.AddRegions(func() []regions.Status {
		return []regions.Status{{Region: "us", IsInContact: true, Contact: time.Second, Took: 2 * time.Second, Changed: 3, HasDropped: true}, {Region: "ap", Contact: -1}}
	})
	page := pageOf(m)
	for _, want := range []string{
		`in_contact{region="us"} 1`, `lag_seconds{region="us"} 1`, `exchange_seconds{region="us"} 2`, `pending_counters{region="us"} 3`, `has_dropped{region="us"} 1`,
		`in_contact{region="ap"} 0`, `pending_counters{region="ap"} 0`, `has_dropped{region="ap"} 0`,
	} {
		if !strings.Contains(page, "\nrate_limiter_region_"+want+"\n") {
			t.Errorf("the page lacks rate_limiter_region_%s", want)
		}
	}
	if strings.Contains(page, `lag_seconds{region="ap"}`) {
		t.Error("a region that was never in contact has a lag; want none")
	}
}
