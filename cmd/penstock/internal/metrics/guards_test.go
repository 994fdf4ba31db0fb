package metrics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// someGuards are guards with different numbers everywhere.
var someGuards = Guards{
	Stats: func() guard.Stats {
		return guard.Stats{
			Deny:     guard.DenyStats{Entries: 12},
			Lease:    guard.LeaseStats{Drawn: 100, Spent: 60, Returned: 20, Expired: 10, Lost: 5, Live: 5},
			Breakers: map[string]guard.State{"": guard.StateClosed, "10.0.0.1:6379": guard.StateOpen, "10.0.0.2:6379": guard.StateHalfOpen},
		}
	},
	Instances:  func() int { return 4 },
	ClockSteps: func() (back, forward int64) { return 2, 1 },
	Scripts:    func() (missing, loaded, evals int64) { return 3, 4, 5 },
}

func pageOf(m *Metrics) string {
	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	return recorder.Body.String()
}

func TestGuardsHaveMetrics(t *testing.T) {
	m := New("")
	for range 7 {
		m.Decided(penstock.FromFallback)
	}
	m.Decided(penstock.FromClosed)
	m.BreakerChanged(guard.StateOpen)
	if page := pageOf(m); strings.Contains(page, "rate_limiter_breaker") || strings.Contains(page, "rate_limiter_lease") {
		t.Error("there are series of guards without guards")
	}
	m.Guards(someGuards)
	page := pageOf(m)
	lines := []string{
		`rate_limiter_decisions_total{source="store"} 0`,
		`rate_limiter_decisions_total{source="fallback"} 7`,
		`rate_limiter_decisions_total{source="open"} 0`,
		`rate_limiter_decisions_total{source="closed"} 1`,
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
		`rate_limiter_instances 4`,
		`rate_limiter_clock_steps_total{direction="back"} 2`,
		`rate_limiter_clock_steps_total{direction="forward"} 1`,
		`rate_limiter_scripts_total{event="noscript"} 3`,
		`rate_limiter_scripts_total{event="load"} 4`,
		`rate_limiter_scripts_total{event="eval"} 5`,
	}
	for _, line := range lines {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("the page lacks %s", line)
		}
	}
	t.Logf("counted: %d series of guards", len(lines))
}

func TestErrorsWithUnknownOutcomeAreCountedSeparately(t *testing.T) {
	m := New("")
	want := 0
	for i, reason := range reasons {
		for range i + 1 {
			m.Error(reason, i%3 == 0)
		}
		if i%3 == 0 {
			want += i + 1
		}
	}
	if got, _ := sums(t, m); got["rate_limiter_decisions_unknown_outcome_total"] != float64(want) {
		t.Errorf("counted %v; want %d", got["rate_limiter_decisions_unknown_outcome_total"], want)
	}
}

func TestManyNodesMakeFewSeries(t *testing.T) {
	breakers := map[string]guard.State{"": guard.StateClosed}
	for i := range 1000 {
		breakers[fmt.Sprintf("10.0.0.%04d:6379", i)] = guard.StateClosed
	}
	breakers["10.0.0.0700:6379"], breakers["10.0.0.0900:6379"] = guard.StateOpen, guard.StateHalfOpen
	all := shown(breakers)
	if len(all) != maxNodes+1 || all["other"] != guard.StateOpen || all["default"] != guard.StateClosed {
		t.Errorf("%d nodes have %d series; the label other is %v", len(breakers), len(all), all["other"])
	}
}
