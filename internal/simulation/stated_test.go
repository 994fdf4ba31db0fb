package simulation

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// found is how long after an outage the last instance has found the store again.
const found = time.Second

// outagePlan is a plan in which the store fails all instances at once, one time after another, and
// their number is known.
func outagePlan(seed uint64) *plan {
	p := newPlan(seed)
	p.nodes, p.floor, p.early, p.patient = 1, p.instances, false, true
	p.oneWay = min(p.oneWay, time.Millisecond) // a decision that lacks the time for what it asks would be an outage of its own
	rng := rand.New(rand.NewPCG(seed, 3))
	kinds := []faultKind{refuses, hangs, killed, cutAll, refuses, killed, forgets, failsOver, clockSteps}
	slices.SortFunc(p.faults, func(x, y fault) int { return cmp.Compare(x.at, y.at) })
	for i := range p.faults {
		f := &p.faults[i]
		if f.node = 0; i+1 < len(p.faults) {
			f.long = min(f.long, p.faults[i+1].at-f.at-1)
		}
		f.kind = kinds[rng.IntN(len(kinds))]
		if f.kind == clockSteps {
			f.size = 0.5 + f.size/2 // forward: what a step back does to windows is the algorithms' affair
		}
	}
	for i := range p.policies {
		s := &p.policies[i].settings
		if s.OnFailure == guard.Open {
			s.OnFailure = guard.Local
		}
	}
	return p
}

// stated holds all that was admitted, whoever answered, against what guard.Options.Bounds says.
func (b *book) stated(p *plan) {
	o := guard.Options{
		Limits: p.settingsOf, Instances: p.instances, DenyFor: p.denyFor, Lease: guard.LeaseOptions{Exact: p.exact},
	}
	clear(b.judged)
	type name struct {
		policy *policy
		key    string
	}
	all := make(map[name][]admission)
	for _, a := range b.admitted {
		if !a.policy.limit.Algorithm.Holds && a.key != "wild" {
			all[name{a.policy, a.key}] = append(all[name{a.policy, a.key}], a)
		}
	}
	for n, admitted := range all {
		slices.SortStableFunc(admitted, func(x, y admission) int { return cmp.Compare(x.at, y.at) })
		over := make(map[string]int64)
		for _, bound := range o.Bounds(n.policy.limit) {
			over[bound.When] = bound.Over
		}
		l := n.policy.limit
		slack := over["leased"] + int64(p.instances) // a unit each, since shares are rounded up
		if b.last() >= 0 {
			slack = max(slack, p.excess(n.policy, p.instances, true)+int64(p.instances))
		}
		var pardons []pardon
		for i, s := range b.situations {
			booked := int64(0)
			if s.when == "store returns" { // an instance that was idle finds it when it is asked again
				next := time.Duration(1<<62 - 1)
				if k := slices.IndexFunc(b.situations[i:], func(s situation) bool { return s.when == "store fails" }); k >= 0 {
					next = b.situations[i+k].at
				}
				for j := range admitted {
					switch a := &admitted[j]; {
					case a.source != penstock.FromFallback || a.charged >= next || a.at <= s.at:
					case a.charged < a.at:
						booked += a.units // by who had not found it yet, for later
						fallthrough
					default:
						s.until = max(s.until, a.at+1)
					}
				}
			}
			units := over[s.when] + booked
			pardons = append(pardons, pardon{at: s.at, units: max(units, 1), until: s.until})
		}
		slices.SortStableFunc(pardons, func(x, y pardon) int { return cmp.Compare(x.until, y.until) })
		if l.Algorithm.Is(penstock.FixedWindow) || l.Algorithm.Is(penstock.SlidingWindow) {
			// The store's windows and those of the instances begin at different times: what counts is how
			// many an interval touches.
			l.Algorithm, slack = penstock.AnchoredWindow, 3*slack
		}
		v := check(l, admitted, pardons, slack)
		b.judged[l.Algorithm.Name] = max(b.judged[l.Algorithm.Name], v.reached/v.bound)
		if v.reached > v.bound {
			b.problem("stated", "%.3f units of %v under %q at %v; the bound is %.3f with %v\n%s", v.reached, n.policy, n.key, v.at, v.bound, over,
				b.trace(n.policy, n.key, v.at, 60))
		}
	}
}

// A situation is one that guard.Options.Bounds knows, at a time. Until then, what it adds may be in
// any interval.
type situation struct {
	when      string
	at, until time.Duration
}

func (b *book) situation(when string, long time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.situations = append(b.situations, situation{when, b.now(), b.now() + long})
}

// What is stated of a limit holds for all that the fleet admits together, over the beginnings and
// the ends of outages.
func TestFleetAdmitsWhatIsStated(t *testing.T) {
	t.Parallel()
	simulateSeeds(t, statedSeeds, outagePlan, (*book).stated)
}
