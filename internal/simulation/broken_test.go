package simulation

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// A breakage is what is wrong with the guards of a run, on purpose.
type breakage struct {
	replays   bool          // a client sends again what had no answer
	undivided bool          // the instances do not know of each other
	staysOpen bool          // a breaker that has opened pauses for an hour
	timeout   time.Duration // a decision may take so long
	denyFor   time.Duration // a denial is remembered so long
	answers   func([]penstock.Charge, *penstock.Status)
}

// falsify is what a guard is told instead of the store's answer.
func (b *breakage) falsify(charges []penstock.Charge, d penstock.Decision) penstock.Decision {
	if b.answers == nil {
		return d
	}
	statuses := make([]penstock.Status, d.Len())
	for i := range statuses {
		statuses[i] = d.Status(i)
		b.answers(charges, &statuses[i])
	}
	if len(statuses) == 1 {
		return penstock.Single(statuses[0])
	}
	return penstock.NewDecision(statuses)
}

// later is a denial that says to come back later than the store has said.
func later(by time.Duration) func([]penstock.Charge, *penstock.Status) {
	return func(_ []penstock.Charge, s *penstock.Status) {
		if s.RetryAfter > 0 && s.RetryAfter != penstock.Never {
			s.RetryAfter += by
		}
	}
}

func TestBrokenGuardsAreFoundOut(t *testing.T) {
	t.Parallel()
	const most = 200
	for _, row := range []struct {
		name, judge string
		broken      breakage
		planOf      func(seed uint64) *plan // default: newPlan
	}{
		{"a client replays what was lost", "once", breakage{replays: true}, nil},
		{"a fallback that is not divided", "bound", breakage{undivided: true}, nil},
		{"a breaker that stays open", "recovery", breakage{staysOpen: true}, nil},
		{"a timeout of 2 s", "deadline", breakage{timeout: 2 * time.Second}, nil},
		{"a denial that counts from the reply", "denial", breakage{answers: later(6 * time.Millisecond)}, nil},
		{"a denial that never ends", "liveness", breakage{denyFor: 100 * time.Hour, answers: later(50 * time.Hour)}, nil},
		{"a lease of a window that does not end with it", "bound", breakage{answers: func(charges []penstock.Charge, s *penstock.Status) {
			if charges[0].Mode == penstock.Draw {
				s.ResetAfter += time.Hour
			}
		}}, leasedWindowPlan},
		{"a lease that spends more than it drew", "leases", breakage{answers: func(charges []penstock.Charge, s *penstock.Status) {
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
			for seed := range uint64(most) {
				found := false
				synctest.Test(t, func(t *testing.T) {
					for _, problem := range simulate(t, row.planOf(seed), row.broken).problems {
						found = found || strings.HasPrefix(problem, row.judge)
					}
				})
				if found {
					t.Logf("found by seed %d", seed)
					t.Logf("counted: 1 broken guards found out by simulation")
					return
				}
			}
			t.Errorf("in %d seeds, the judge of %q has found nothing", most, row.judge)
		})
	}
}

// leasedWindowPlan is a plan of one leased window that is used up about every second time, and in
// which nothing fails: a window is not full where the one before has left something.
func leasedWindowPlan(seed uint64) *plan {
	p := newPlan(seed)
	limit, err := penstock.Limit{Name: "l0", Group: "g", Algorithm: penstock.FixedWindow, Count: 300, Period: time.Second}.Ready()
	if err != nil {
		panic(err)
	}
	p.instances, p.floor, p.nodes, p.keys, p.faults, p.early = 2, 2, 1, 1, nil, false
	p.policies = []policy{{limit: limit, settings: guard.Settings{OnFailure: guard.Local, Lease: 50}}}
	p.phases = []phase{{after: time.Second, asks: 3000, gap: limit.Period / time.Duration(limit.Count), pattern: steady}}
	return p
}
