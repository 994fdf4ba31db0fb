package penstockprom

import (
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"

	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/observe"
)

// someGuards has functions that return fixed numbers.
var someGuards = observe.Guards{
	Stats: func() guard.Stats {
		return guard.Stats{
			DenyCacheEntries: 12,
			Lease:            guard.LeaseStats{Drawn: 100, Spent: 60, Returned: 20, Expired: 10, Lost: 5, Live: 5},
			HoldsUnreturned:  8, HoldsReturnedLate: 9,
			Breakers: map[string]guard.State{"": guard.StateClosed, "10.0.0.1:6379": guard.StateOpen, "10.0.0.2:6379": guard.StateHalfOpen},
		}
	},
	Instances:  func() int { return 4 },
	ClockSteps: func() (back, forward int64) { return 2, 1 },
	Losses:     func() int64 { return 8 },
	Scripts:    func() (missing, loaded, evals int64) { return 3, 4, 5 },

	ScriptsInFlight: func() (inFlight, queued int) { return 6, 7 },
}

// page returns a scrape as text.
func (s scrapedMetrics) page(t *testing.T) string {
	t.Helper()
	var page strings.Builder
	for _, family := range s.gather(t) {
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			t.Fatal(err)
		}
	}
	return page.String()
}

func TestGuardsHaveMetrics(t *testing.T) {
	s := newScrapedMetrics(Options{})
	s.BreakerChanged("", guard.StateClosed, guard.StateOpen)
	if page := s.page(t); strings.Contains(page, "rate_limiter_breaker") || strings.Contains(page, "rate_limiter_lease") {
		t.Errorf("before SetGuards was called, the page is\n%s\nwant no series of guards", page)
	}
	s.SetGuards(someGuards)
	page := s.page(t)
	lines := []string{
		`rate_limiter_breaker_state{node="default"} 0`,
		`rate_limiter_breaker_state{node="10.0.0.1:6379"} 2`,
		`rate_limiter_breaker_state{node="10.0.0.2:6379"} 1`,
		`rate_limiter_breaker_changes_total{to="open"} 1`,
		`rate_limiter_breaker_changes_total{to="half_open"} 0`,
		`rate_limiter_breaker_changes_total{to="closed"} 0`,
		`rate_limiter_deny_cache_entries 12`,
		`rate_limiter_lease_units_total{fate="drawn"} 100`,
		`rate_limiter_lease_units_total{fate="spent"} 60`,
		`rate_limiter_lease_units_total{fate="returned"} 20`,
		`rate_limiter_lease_units_total{fate="expired"} 10`,
		`rate_limiter_lease_units_total{fate="lost"} 5`,
		`rate_limiter_holds_unreturned 8`,
		`rate_limiter_holds_returned_late_total 9`,
		`rate_limiter_instances 4`,
		`rate_limiter_clock_steps_total{direction="back"} 2`,
		`rate_limiter_clock_steps_total{direction="forward"} 1`,
		`rate_limiter_store_losses_total 8`,
		`rate_limiter_scripts_total{event="noscript"} 3`,
		`rate_limiter_scripts_total{event="load"} 4`,
		`rate_limiter_scripts_total{event="eval"} 5`,
		`rate_limiter_scripts_in_flight 6`,
		`rate_limiter_scripts_queued 7`,
	}
	for _, line := range lines {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("the page is\n%s\nwant the line %s", page, line)
		}
	}
	s.SetGuards(observe.Guards{})
	if page := s.page(t); strings.Contains(page, "rate_limiter_instances") || strings.Contains(page, "rate_limiter_scripts") {
		t.Errorf("the page is\n%s\nwant no series of functions that are not set", page)
	}
	t.Logf("counted: %d series of guards", len(lines))
}
