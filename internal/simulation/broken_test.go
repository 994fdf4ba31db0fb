package simulation

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// A breakage describes how the guards are broken on purpose in a run. The zero value breaks
// nothing.
type breakage struct {
	shouldReplay   bool                                      // a client repeats requests without a reply
	isUndivided    bool                                      // each instance counts only itself, so its share is the whole limit
	isBreakerStuck bool                                      // an open breaker pauses for an hour
	timeout        time.Duration                             // of a decision
	denyCacheTTL   time.Duration                             // of the deny cache
	falsify        func([]penstock.Charge, *penstock.Status) // changes each status that the store returns
}

// falsifyDecision changes a decision of the store before a guard gets it.
func (b *breakage) falsifyDecision(charges []penstock.Charge, d penstock.Decision) penstock.Decision {
	if b.falsify == nil {
		return d
	}
	statuses := make([]penstock.Status, d.Len())
	for i := range statuses {
		statuses[i] = d.Status(i)
		b.falsify(charges, &statuses[i])
	}
	if len(statuses) == 1 {
		return penstock.Single(statuses[0])
	}
	return penstock.NewDecision(statuses)
}

// delayRetry increases the RetryAfter of denials.
func delayRetry(by time.Duration) func([]penstock.Charge, *penstock.Status) {
	return func(_ []penstock.Charge, s *penstock.Status) {
		if s.RetryAfter > 0 && s.RetryAfter != penstock.Never {
			s.RetryAfter += by
		}
	}
}

func TestBrokenGuardsAreFound(t *testing.T) {
	t.Parallel()
	const maxSeeds = 200
	for _, row := range []struct {
		name   string
		check  string // that must find a problem
		broken breakage
		planOf func(seed uint64) *plan // default: newPlan
	}{
		{"a client that repeats lost requests", "once", breakage{shouldReplay: true}, nil},
		{"a fallback without shares", "bound", breakage{isUndivided: true}, nil},
		{"a breaker that stays open", "recovery", breakage{isBreakerStuck: true}, nil},
		{"a timeout of 2 s", "deadline", breakage{timeout: 2 * time.Second}, nil},
		{"a denial whose RetryAfter counts from the reply", "denial", breakage{falsify: delayRetry(6 * time.Millisecond)}, nil},
		{"a denial that never ends", "liveness", breakage{denyCacheTTL: 100 * time.Hour, falsify: delayRetry(50 * time.Hour)}, nil},
		{"a lease that outlives its window", "bound", breakage{falsify: func(charges []penstock.Charge, s *penstock.Status) {
			if charges[0].Mode == penstock.Draw {
				s.ResetAfter += time.Hour
			}
		}}, leasedWindowPlan},
		{"a lease that spends more than it drew", "leases", breakage{falsify: func(charges []penstock.Charge, s *penstock.Status) {
			if charges[0].Mode == penstock.Draw && s.Granted > 0 {
				s.Granted++
			}
		}}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if row.planOf == nil {
				row.planOf = newPlan
			}
			for seed := range uint64(maxSeeds) {
				isFound := false
				synctest.Test(t, func(t *testing.T) {
					for _, problem := range simulate(t, row.planOf(seed), row.broken).problems {
						isFound = isFound || strings.HasPrefix(problem, row.check)
					}
				})
				if isFound {
					t.Logf("found by seed %d", seed)
					t.Logf("counted: 1 broken guard found by simulation")
					return
				}
			}
			t.Errorf("the check %q found nothing in %d seeds", row.check, maxSeeds)
		})
	}
}

// leasedWindowPlan makes a plan without faults, with one leased limit by fixed windows. The load is
// close to the limit, so that about half of the windows are used up. The check finds a lease that
// outlives its window only if the lease has units left and the next window is used up.
func leasedWindowPlan(seed uint64) *plan {
	p := newPlan(seed)
	limit, err := penstock.Limit{Name: "l0", Group: "g", Algorithm: penstock.FixedWindow, Count: 300, Period: time.Second}.Compile()
	if err != nil {
		panic(err)
	}
	p.instances, p.configured, p.nodes, p.keys, p.faults, p.isLoadEarly = 2, 2, 1, 1, nil, false
	p.policies = []policy{{limit: limit, settings: guard.Settings{OnFailure: guard.FailLocal, Lease: 50}}}
	p.phases = []phase{{after: time.Second, requests: 3000, gap: limit.Limit().Period / time.Duration(limit.Limit().Count), pattern: steady}}
	return p
}
