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
func (l *experiment) check() {
	for _, w := range l.load.violations {
		l.Error(w)
	}
	l.checkSources()
	l.checkErrors()
	if l.fault.finally != nil {
		l.fault.finally(l)
	}
	l.checkBounds()
	l.checkWaiting()
	if l.fault.charges && l.charged == 0 {
		l.Error("no call without a reply was charged, so the fault did not lose replies")
	}
	l.Log(l.errors())
	l.Logf("%v seed %d", l.load, l.seed)
	l.Logf("the store decided for all instances %v after the end of the fault", l.recoveryTimes)
	l.Logf("counted: %d faults survived", l.cycles)
	l.Logf("counted: %d decisions in faults (%d reached the store)", len(l.load.latencies[during]), l.reached)
	l.Logf("counted: %d charges without a reply, none twice", l.charged)
}

// checkSources checks that the store made no decision during a fault that stops it.
func (l *experiment) checkSources() {
	stored := l.load.answers[during][penstock.FromStore]
	if l.fault.answeredBy == byPolicies && !l.isPartial() && stored > 0 {
		l.Errorf("the store made %d of %d decisions during the fault", stored, len(l.load.latencies[during]))
	}
}

// checkBounds compares the admitted units of each key with its bounds: one limit of the store for
// each time that it started without its data, and the fallback's bound for each instance. If the
// store has kept its data, its state must also agree with the decisions. A call without a reply may
// have been charged once. Otherwise only leased units may be charged in addition.
func (l *experiment) checkBounds() {
	direct, err := redisstore.Open(l.target.direct, redisstore.Options{})
	if err != nil {
		l.Fatal(err)
	}
	defer direct.Close()
	unknown, most := l.unknown(), [len(policies)]int{}
	accounts, lost := 0, 0
	for a, g := range l.load.grants {
		p := &policies[a.policy]
		stored, byFallback := 0, 0
		for i := range instances {
			stored += g.store[i]
			byFallback += g.byFallback[i]
			if bound := p.fallbackBound + p.leaseReturns()*(g.last-g.first); p.fallbackBound != unbounded && g.byFallback[i] > bound {
				l.Errorf("policy %s: instance %d admitted %d units of %s without the store; its bound is %d", p.name, i, g.byFallback[i], a.key, bound)
			}
		}
		dataLosses := l.fault.dataLosses * (g.last - g.first)
		if bound := p.units() * (1 + dataLosses); stored > bound {
			l.Errorf("policy %s: the store admitted %d units of %s; its bound is %d", p.name, stored, a.key, bound)
		}
		most[a.policy] = max(most[a.policy], stored+byFallback)
		used := l.used(direct, a)
		if used > stored+unknown[a] && p.settings.Lease == 0 || used < stored && l.fault.dataLosses == 0 {
			l.Errorf("policy %s: %d units of %s are used; %d were admitted, and %d replies were lost", p.name, used, a.key, stored, unknown[a])
		}
		accounts++
		if p.settings.Lease == 0 {
			l.charged += max(used-stored, 0)
		}
		lost += unknown[a]
	}
	l.Logf("counted: %d keys within their bounds (largest use of a key: %v; %d replies lost, %d of them charged)",
		accounts, named(most), lost, l.charged)
}

// used is how many units of a key are used, by the state of the store.
func (l *experiment) used(direct *redisstore.Store, a limitKey) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := direct.Decide(ctx, []penstock.Charge{{Key: a.key, Plan: policies[a.policy].limit, Mode: penstock.Peek}})
	if err != nil {
		l.Fatalf("peek at %s: %v", a.key, err)
	}
	return policies[a.policy].units() - int(d.Status(0).Remaining)
}

// unknown is how many calls may have been charged without a reply, by key.
func (l *experiment) unknown() map[limitKey]int {
	all := map[limitKey]int{}
	for _, i := range l.load.instances {
		i.spy.mu.Lock()
		for a, n := range i.spy.unknown {
			all[a] += n
		}
		i.spy.mu.Unlock()
	}
	return all
}

// checkErrors compares the errors that instances saw with those that the fault lists.
func (l *experiment) checkErrors() {
	seen := l.reasons()
	for _, c := range l.fault.wantErrors {
		if seen[c.String()] == 0 {
			l.Errorf("no instance saw an error with reason %v; they saw %v", c, seen)
		}
	}
	expected := slices.Concat([]penstock.Reason{penstock.ReasonUnknown, penstock.ReasonUnreachable}, l.fault.wantErrors, l.fault.mayHaveErrors)
	for class := range seen {
		if !slices.ContainsFunc(expected, func(c penstock.Reason) bool { return c.String() == class }) {
			l.Errorf("an instance saw errors with reason %s: %s", class, l.texts(class))
		}
	}
}

func (l *experiment) reasons() map[string]int {
	all := map[string]int{}
	for _, i := range l.load.instances {
		i.spy.mu.Lock()
		for c, n := range i.spy.reasons {
			all[c] += n
		}
		i.spy.mu.Unlock()
	}
	return all
}

// texts returns a few errors with a reason.
func (l *experiment) texts(class string) (all []string) {
	for _, i := range l.load.instances {
		i.spy.mu.Lock()
		all = append(all, i.spy.texts[class]...)
		i.spy.mu.Unlock()
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (l *experiment) errors() string {
	text := ""
	seen := l.reasons()
	for _, class := range slices.Sorted(maps.Keys(seen)) {
		text += fmt.Sprintf("%d errors with reason %s, such as\n\t%s\n", seen[class], class, strings.Join(l.texts(class), "\n\t"))
	}
	return text
}

// checkWaiting checks that no call waited too long. Every call had a deadline and has ended. During
// the fault there were only as many calls as breakers let pass: those that open them, and one in 50
// ms.
func (l *experiment) checkWaiting() {
	var latest time.Duration
	for i, in := range l.load.instances {
		if n := in.spy.withoutDeadline.Load(); n > 0 {
			l.Errorf("instance %d: %d calls without a deadline", i, n)
		}
		l.await(fmt.Sprintf("the calls of instance %d to end", i), func() bool { return in.spy.inFlight.Load() == 0 }) // leases still call the store
		latest = max(latest, time.Duration(in.spy.latest.Load()))
	}
	l.Logf("the latest call ended %v after its deadline of %v; errors: %v", latest.Round(time.Millisecond), l.deadline, l.reasons())
	const failures, probeEvery = 5, 50 * time.Millisecond
	pass := int64(l.cycles*(failures+l.callers) + l.cycles + int(l.faultTime/probeEvery))
	if most := pass * instances * int64(l.target.shards); l.fault.answeredBy == byPolicies && !l.fault.storeIsCalled && !l.isPartial() && l.reached > most {
		l.Errorf("%d calls reached the store in %v of its fault; breakers let %d pass", l.reached, l.faultTime, most)
	}
	if isSoak {
		l.checkLatency()
	}
}

// slack allows for a busy machine.
const slack = 200 * time.Millisecond

// recoverySlack is how long a group of servers may take after a fault until it decides for all
// instances. Its clients must find the new primary, breakers probe every second, and the machine
// may be busy.
const recoverySlack = 10 * time.Second

// checkLatency is for soaks, which have most of the machine for themselves.
func (l *experiment) checkLatency() {
	if took := slices.Max(l.recoveryTimes); l.target.kind != single && took > recoverySlack {
		l.Errorf("the store decided for all instances only %v after the end of the fault", took)
	}
	for p := range phases {
		if took := p99(l.load.latencies[p]); took > l.deadline+slack {
			l.Errorf("%s the fault, 1 %% of the decisions took longer than %v; the deadline is %v", phaseNames[p], took, l.deadline)
		}
	}
}

func named(counts [len(policies)]int) string {
	text := ""
	for p, n := range counts {
		text += fmt.Sprintf("%s %d of %d, ", policies[p].name, n, policies[p].units())
	}
	return text[:len(text)-2]
}
