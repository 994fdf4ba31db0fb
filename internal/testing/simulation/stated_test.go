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

// outageScenario makes a scenario in which the store fails for all instances together, several
// times, and the number of instances is known.
func outageScenario(seed uint64) *scenario {
	sc := newScenario(seed)
	sc.nodes, sc.configured, sc.isLoadEarly, sc.hasPatientCallers = 1, sc.instances, false, true
	sc.oneWay = min(sc.oneWay, time.Millisecond) // with more, a decision with many calls would reach its deadline without a fault
	rng := rand.New(rand.NewPCG(seed, 3))
	kinds := []faultKind{nodeRefuses, nodeHangs, nodeKilled, allCut, nodeRefuses, nodeKilled, nodeLosesData, nodeFailsOver, clockJumps}
	slices.SortFunc(sc.faults, func(x, y fault) int { return cmp.Compare(x.at, y.at) })
	for i := range sc.faults {
		f := &sc.faults[i]
		f.node = 0
		if i+1 < len(sc.faults) {
			f.duration = min(f.duration, sc.faults[i+1].at-f.at-1) // faults do not overlap
		}
		f.kind = kinds[rng.IntN(len(kinds))]
		if f.kind == clockJumps {
			f.size = 0.5 + f.size/2 // forward; the tests of the algorithms cover steps back
		}
	}
	for i := range sc.guardedLimits {
		s := &sc.guardedLimits[i].settings
		if s.OnFailure == guard.FailOpen {
			s.OnFailure = guard.FailLocal
		}
	}
	return sc
}

// checkStatedBounds checks everything that was admitted, from all sources, against
// guard.Options.Bounds.
func (h *history) checkStatedBounds(sc *scenario) {
	o := guard.Options{
		Limits: sc.settingsOf, Instances: sc.instances, DenyCacheTTL: sc.denyCacheTTL,
	}
	clear(h.utilization)
	type name struct {
		guarded *guardedLimit
		key     string
	}
	all := make(map[name][]admission)
	for _, a := range h.admitted {
		if !a.guarded.limit.Algorithm().NeedsHolder() && a.key != wildKey {
			all[name{a.guarded, a.key}] = append(all[name{a.guarded, a.key}], a)
		}
	}
	for n, admitted := range all {
		slices.SortStableFunc(admitted, func(x, y admission) int { return cmp.Compare(x.at, y.at) })
		over := make(map[string]int64) // extra units, by case
		for _, bound := range o.Bounds(n.guarded.limit) {
			over[bound.When] = bound.MaxExcess
		}
		l := n.guarded.limit.Limit()
		slack := over["leased"] + int64(sc.instances) // one unit for each instance, because shares are rounded up
		if h.lastCredit() >= 0 {
			slack = max(slack, sc.leaseExcess(n.guarded, sc.instances, true)+int64(sc.instances))
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
			h.addProblem("stated", "%.3f units of %v were admitted for key %q at %v; the bound is %.3f with the extra units %v\n%s", worst.reached, n.guarded, n.key,
				worst.at, worst.bound, over, h.trace(n.guarded, n.key, worst.at, traced))
		}
	}
}

// situationCredits returns a credit for each situation of the run. over has the extra units of each
// case of guard.Options.Bounds. After the store returns, an instance may use its fallback until its
// next request. The units that it admits then count for the situation "store returns".
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

// A situation is a case of guard.Options.Bounds (Bound.When) in a run. The extra units of the
// situation may be admitted from the time at to the time until.
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
	simulateSeeds(t, statedSeeds, known, outageScenario, (*history).checkStatedBounds)
}
