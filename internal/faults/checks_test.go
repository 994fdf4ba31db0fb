package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore"
)

// check checks the results of the run.
func (e *experiment) check() {
	for _, w := range e.load.violations {
		e.Error(w)
	}
	e.checkSources()
	e.checkErrors()
	if e.fault.finally != nil {
		e.fault.finally(e)
	}
	e.checkBounds()
	e.checkWaiting()
	if e.fault.hasLateCharges && e.charged == 0 {
		e.Error("no call without a reply was charged, so the fault did not lose replies")
	}
	e.Log(e.errors())
	e.Logf("%v seed %d", e.load, e.seed)
	e.Logf("the store decided for all instances %v after the end of the fault", e.recoveryTimes)
	e.Logf("counted: %d faults survived", e.cycles)
	e.Logf("counted: %d decisions in faults (%d reached the store)", len(e.load.latencies[during]), e.reached)
	e.Logf("counted: %d charges without a reply, none twice", e.charged)
}

// checkSources checks that the store made no decision during a fault that stops it.
func (e *experiment) checkSources() {
	stored := e.load.answers[during][penstock.FromStore]
	if e.fault.decidedBy == byPolicies && !e.isPartial() && stored > 0 {
		e.Errorf("the store made %d of %d decisions during the fault", stored, len(e.load.latencies[during]))
	}
}

// checkBounds compares the admitted units of each key with two bounds. The store may admit the
// limit once, and once more for each time that it lost its data. An instance may admit the bound of
// its fallback. If the store has kept its data, its state must agree with the decisions: a call
// without a reply may have been charged once, and leased units may be charged in addition.
func (e *experiment) checkBounds() {
	direct, err := redisstore.Open(e.target.direct, redisstore.Options{})
	if err != nil {
		e.Fatal(err)
	}
	defer direct.Close()
	unknown, most := e.unknown(), [len(policies)]int{}
	accounts, lost := 0, 0
	for a, g := range e.load.grants {
		p := &policies[a.policy]
		stored, byFallback := 0, 0
		for i := range instances {
			stored += g.store[i]
			byFallback += g.byFallback[i]
			if bound := p.fallbackBound + p.leaseReturns()*(g.last-g.first); p.fallbackBound != unbounded && g.byFallback[i] > bound {
				e.Errorf("policy %s: instance %d admitted %d units of %s without the store; its bound is %d", p.name, i, g.byFallback[i], a.key, bound)
			}
		}
		dataLosses := e.fault.dataLosses * (g.last - g.first)
		if bound := p.units() * (1 + dataLosses); stored > bound {
			e.Errorf("policy %s: the store admitted %d units of %s; its bound is %d", p.name, stored, a.key, bound)
		}
		most[a.policy] = max(most[a.policy], stored+byFallback)
		used := e.used(direct, a)
		if used > stored+unknown[a] && p.settings.Lease == 0 || used < stored && e.fault.dataLosses == 0 {
			e.Errorf("policy %s: %d units of %s are used; %d were admitted, and %d replies were lost", p.name, used, a.key, stored, unknown[a])
		}
		accounts++
		if p.settings.Lease == 0 {
			e.charged += max(used-stored, 0)
		}
		lost += unknown[a]
	}
	e.Logf("counted: %d keys within their bounds (largest use of a key: %v; %d replies lost, %d of them charged)",
		accounts, describeUse(most), lost, e.charged)
}

// used returns how many units of a key are used, by the state of the store.
func (e *experiment) used(direct *redisstore.Store, a limitKey) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := direct.Decide(ctx, []penstock.Charge{{Key: a.key, Plan: policies[a.policy].limit, Mode: penstock.Peek}})
	if err != nil {
		e.Fatalf("peek at %s: %v", a.key, err)
	}
	return policies[a.policy].units() - int(d.Status(0).Remaining)
}

// unknown returns how many calls without a reply may have been charged, by key.
func (e *experiment) unknown() map[limitKey]int {
	all := map[limitKey]int{}
	for _, i := range e.load.instances {
		i.spy.mu.Lock()
		for a, n := range i.spy.unknown {
			all[a] += n
		}
		i.spy.mu.Unlock()
	}
	return all
}

// checkErrors compares the errors that instances saw with those that the fault lists.
func (e *experiment) checkErrors() {
	seen := e.reasons()
	for _, c := range e.fault.wantErrors {
		if seen[c.String()] == 0 {
			e.Errorf("no instance saw an error with reason %v; they saw %v", c, seen)
		}
	}
	expected := slices.Concat([]penstock.Reason{penstock.ReasonUnknown, penstock.ReasonUnreachable}, e.fault.wantErrors, e.fault.mayHaveErrors)
	for reason := range seen {
		if !slices.ContainsFunc(expected, func(c penstock.Reason) bool { return c.String() == reason }) {
			e.Errorf("an instance saw errors with reason %s: %s", reason, e.texts(reason))
		}
	}
}

func (e *experiment) reasons() map[string]int {
	all := map[string]int{}
	for _, i := range e.load.instances {
		i.spy.mu.Lock()
		for c, n := range i.spy.reasons {
			all[c] += n
		}
		i.spy.mu.Unlock()
	}
	return all
}

// texts returns the texts of a few errors with a reason.
func (e *experiment) texts(reason string) (all []string) {
	for _, i := range e.load.instances {
		i.spy.mu.Lock()
		all = append(all, i.spy.texts[reason]...)
		i.spy.mu.Unlock()
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (e *experiment) errors() string {
	text := ""
	seen := e.reasons()
	for _, reason := range slices.Sorted(maps.Keys(seen)) {
		text += fmt.Sprintf("%d errors with reason %s, such as\n\t%s\n", seen[reason], reason, strings.Join(e.texts(reason), "\n\t"))
	}
	return text
}

// checkWaiting checks that every call had a deadline and has ended. It also checks that breakers
// let few calls pass during the fault: those that open a breaker, and one probe in 50 ms.
func (e *experiment) checkWaiting() {
	var latest time.Duration
	for i, in := range e.load.instances {
		if n := in.spy.withoutDeadline.Load(); n > 0 {
			e.Errorf("instance %d: %d calls without a deadline", i, n)
		}
		e.await(fmt.Sprintf("the end of the calls of instance %d", i), func() bool { return in.spy.inFlight.Load() == 0 }) // leases still call the store
		latest = max(latest, time.Duration(in.spy.latest.Load()))
	}
	e.Logf("the latest call ended %v after its deadline of %v; errors: %v", latest.Round(time.Millisecond), e.deadline, e.reasons())
	const failures, probeEvery = 5, 50 * time.Millisecond
	pass := int64(e.cycles*(failures+e.callers) + e.cycles + int(e.faultTime/probeEvery))
	if most := pass * instances * int64(e.target.shards); e.fault.decidedBy == byPolicies && !e.fault.isStoreCalled && !e.isPartial() && e.reached > most {
		e.Errorf("%d calls reached the store in %v of its fault; breakers let %d pass", e.reached, e.faultTime, most)
	}
	if isSoak {
		e.checkLatency()
	}
}

// slack allows for a busy machine.
const slack = 200 * time.Millisecond

// recoverySlack is how long a group of servers may take after a fault until it decides for all
// instances. Its clients must find the new primary, breakers probe every second, and the machine
// may be busy.
const recoverySlack = 10 * time.Second

// checkLatency checks times. Only soaks call it: they have most of the machine for themselves.
func (e *experiment) checkLatency() {
	if took := slices.Max(e.recoveryTimes); e.target.kind != single && took > recoverySlack {
		e.Errorf("the store decided for all instances only %v after the end of the fault", took)
	}
	for p := range phases {
		if took := p99(e.load.latencies[p]); took > e.deadline+slack {
			e.Errorf("%s the fault, 1 %% of the decisions took longer than %v; the deadline is %v", phaseNames[p], took, e.deadline)
		}
	}
}

func describeUse(counts [len(policies)]int) string {
	text := ""
	for p, n := range counts {
		text += fmt.Sprintf("%s %d of %d, ", policies[p].name, n, policies[p].units())
	}
	return text[:len(text)-2]
}
