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
	timeout        time.Duration                             // of a decision; 0: the default
	denyCacheTTL   time.Duration                             // 0: that of the scenario
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
		name       string
		check      string // the check that must find a problem
		seed       uint64 // the first seed; almost all before it find nothing
		broken     breakage
		scenarioOf func(seed uint64) *scenario // default: newScenario
	}{
		{name: "a client that repeats lost requests", check: "once", broken: breakage{shouldReplay: true}},
		{name: "a fallback without shares", check: "bound", seed: 10, broken: breakage{isUndivided: true}},
		{name: "a breaker that stays open", check: "recovery", broken: breakage{isBreakerStuck: true}},
		{name: "a timeout of 2 s", check: "deadline", broken: breakage{timeout: 2 * time.Second}},
		{name: "a denial whose RetryAfter counts from the reply", check: "denial", seed: 30, broken: breakage{falsify: delayRetry(6 * time.Millisecond)}},
		{name: "a denial that never ends", check: "liveness", broken: breakage{denyCacheTTL: 100 * time.Hour, falsify: delayRetry(50 * time.Hour)}},
		{name: "a lease that outlives its window", check: "bound", scenarioOf: leasedWindowScenario, broken: breakage{
			falsify: func(charges []penstock.Charge, s *penstock.Status) {
				if charges[0].Mode == penstock.Draw {
					s.ResetAfter += time.Hour
				}
			}}},
		{name: "a lease that spends more than it drew", check: "leases", seed: 40, broken: breakage{
			falsify: func(charges []penstock.Charge, s *penstock.Status) {
				if charges[0].Mode == penstock.Draw && s.Granted > 0 {
					s.Granted++
				}
			}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if row.scenarioOf == nil {
				row.scenarioOf = newScenario
			}
			for seed := row.seed; seed < row.seed+maxSeeds; seed++ {
				isFound := false
				synctest.Test(t, func(t *testing.T) {
					for _, problem := range simulate(t, row.scenarioOf(seed), row.broken).problems {
						isFound = isFound || strings.HasPrefix(problem, row.check)
					}
				})
				if isFound {
					t.Logf("found by seed %d", seed)
					t.Logf("counted: 1 broken guard found by simulation")
					return
				}
			}
			t.Errorf("the check %q found no problem in %d seeds from %d on; want one, because the guards are broken", row.check, maxSeeds, row.seed)
		})
	}
}

// leasedWindowScenario makes a scenario without faults, with one leased limit by fixed windows. The
// load is close to the limit, so that about half of the windows are used up. The check finds a
// lease that outlives its window only if the lease has units left and the next window is used up.
func leasedWindowScenario(seed uint64) *scenario {
	sc := newScenario(seed)
	limit, err := penstock.Limit{Name: "l0", Group: "g", Algorithm: penstock.FixedWindow, Count: 300, Period: time.Second}.Compile()
	if err != nil {
		panic(err)
	}
	sc.instances, sc.configured, sc.nodes, sc.keys, sc.faults, sc.isLoadEarly = 2, 2, 1, 1, nil, false
	sc.guardedLimits = []guardedLimit{{limit: limit, settings: guard.Settings{OnFailure: guard.FailLocal, Lease: 50}}}
	sc.phases = []phase{{after: time.Second, requests: 3000, gap: limit.Limit().Period / time.Duration(limit.Limit().Count), pattern: steady}}
	return sc
}
