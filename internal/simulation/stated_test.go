package simulation

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// maxRecovery is the longest time after an outage until all instances use the store again.
const maxRecovery = time.Second

// outagePlan makes a plan in which the store fails for all instances at once, several times, and
// the number of instances is known.
func outagePlan(seed uint64) *plan {
	p := newPlan(seed)
	p.nodes, p.configured, p.isLoadEarly, p.hasPatientCallers = 1, p.instances, false, true
	p.oneWay = min(p.oneWay, time.Millisecond) // with more, a decision with many calls would reach its deadline without a fault
	rng := rand.New(rand.NewPCG(seed, 3))
	kinds := []faultKind{nodeRefuses, nodeHangs, nodeKilled, allCut, nodeRefuses, nodeKilled, nodeLosesData, nodeFailsOver, clockJumps}
	slices.SortFunc(p.faults, func(x, y fault) int { return cmp.Compare(x.at, y.at) })
	for i := range p.faults {
		f := &p.faults[i]
		f.node = 0
		if i+1 < len(p.faults) {
			f.duration = min(f.duration, p.faults[i+1].at-f.at-1)
		}
		f.kind = kinds[rng.IntN(len(kinds))]
		if f.kind == clockJumps {
			f.size = 0.5 + f.size/2 // forward; the tests of the algorithms cover steps back
		}
	}
	for i := range p.policies {
		s := &p.policies[i].settings
		if s.OnFailure == guard.FailOpen {
			s.OnFailure = guard.FailLocal
		}
	}
	return p
}

// checkStatedBounds checks everything that was admitted, from all sources, against
// guard.Options.Bounds.
func (h *history) checkStatedBounds(p *plan) {
	o := guard.Options{
		Limits: p.settingsOf, Instances: p.instances, DenyCacheTTL: p.denyCacheTTL,
	}
	clear(h.utilization)
	type name struct {
		policy *policy
		key    string
	}
	all := make(map[name][]admission)
	for _, a := range h.admitted {
		if !a.policy.limit.Algorithm().NeedsHolder() && a.key != wildKey {
			all[name{a.policy, a.key}] = append(all[name{a.policy, a.key}], a)
		}
	}
	for n, admitted := range all {
		slices.SortStableFunc(admitted, func(x, y admission) int { return cmp.Compare(x.at, y.at) })
		over := make(map[string]int64) // extra units, by case
		for _, bound := range o.Bounds(n.policy.limit) {
			over[bound.When] = bound.Over
		}
		l := n.policy.limit.Limit()
		slack := over["leased"] + int64(p.instances) // one unit for each instance, because shares are rounded up
		if h.lastCredit() >= 0 {
			slack = max(slack, p.leaseExcess(n.policy, p.instances, true)+int64(p.instances))
		}
		credits := h.situationCredits(admitted, over)
		if l.Algorithm.WindowsDiffer() {
			// The windows of the store and of the instances begin at different times. An interval
			// touches at most three windows, and each of them may have the slack.
			l.Algorithm, slack = penstock.AnchoredWindow, 3*slack
		}
		worst := checkBound(l, admitted, credits, slack)
		h.utilization[l.Algorithm.Name()] = max(h.utilization[l.Algorithm.Name()], worst.reached/worst.bound)
		if worst.reached > worst.bound {
			const traced = 60 // admissions
			h.addProblem("stated", "%.3f units of %v for key %q at %v; the bound is %.3f with the extra units %v\n%s", worst.reached, n.policy, n.key,
				worst.at, worst.bound, over, h.trace(n.policy, n.key, worst.at, traced))
		}
	}
}

// situationCredits returns a credit for each situation of the run. over has the extra units of each
// case of guard.Options.Bounds. An instance may go on with its fallback after the store returns,
// until its next request; the units that it admits then count for the situation "store returns".
func (h *history) situationCredits(admitted []admission, over map[string]int64) (credits []credit) {
	for i, s := range h.situations {
		booked := int64(0) // units of bookings by instances that did not use the store again yet
		if s.when == "store returns" {
			nextOutage := time.Duration(math.MaxInt64)
			if k := slices.IndexFunc(h.situations[i:], func(s situation) bool { return s.when == "store fails" }); k >= 0 {
				nextOutage = h.situations[i+k].at
			}
			for j := range admitted {
				a := &admitted[j]
				if a.source != penstock.FromFallback || a.charged >= nextOutage || a.at <= s.at {
					continue
				}
				if a.charged < a.at {
					booked += a.units
				}
				s.until = max(s.until, a.at+1)
			}
		}
		credits = append(credits, credit{at: s.at, units: max(over[s.when]+booked, 1), until: s.until})
	}
	slices.SortStableFunc(credits, func(x, y credit) int { return cmp.Compare(x.until, y.until) })
	return credits
}

// A situation is a case of guard.Options.Bounds (Bound.When) in a run. Its extra units may be
// admitted from at to until.
type situation struct {
	when      string
	at, until time.Duration
}

func (h *history) addSituation(when string, duration time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.situations = append(h.situations, situation{when, h.now(), h.now() + duration})
}

// The stated bounds of a limit hold for everything that the fleet admits, including the beginning
// and the end of outages.
func TestFleetStaysWithinTheStatedBounds(t *testing.T) {
	t.Parallel()
	known := []uint64{ // seeds that once failed
		3369732818, // fixed windows around a jump of the store's clock
	}
	simulateSeeds(t, statedSeeds, known, outagePlan, (*history).checkStatedBounds)
}
