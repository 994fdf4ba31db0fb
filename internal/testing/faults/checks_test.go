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
	for _, violation := range e.load.violations {
		e.Error(violation)
	}
	e.checkSources()
	e.checkErrors()
	if e.fault.finally != nil {
		e.fault.finally(e)
	}
	e.checkBounds()
	e.checkWaiting()
	if e.fault.hasUnseenCharges && e.unseenCharges == 0 {
		e.Error("no call without a reply was charged; want at least one, because the fault must lose replies of calls that were charged")
	}
	e.Log(e.errors())
	e.Logf("%v seed %d", e.load, e.seed)
	e.Logf("the store decided for all instances %v after the end of the fault", e.recoveryTimes)
	e.Logf("counted: %d faults survived", e.cycles)
	e.Logf("counted: %d decisions in faults (%d reached the store)", len(e.load.latencies[during]), e.reached)
	e.Logf("counted: %d charges without a reply, none twice", e.unseenCharges)
}

// checkSources checks that the store made no decision during a fault that stops it.
func (e *experiment) checkSources() {
	stored := e.load.answers[during][penstock.FromStore]
	if e.fault.decidedBy == byFallbacks && !e.isPartial() && stored > 0 {
		e.Errorf("the store made %d of %d decisions during the fault; want none", stored, len(e.load.latencies[during]))
	}
}

// checkBounds compares the admitted units of each key with two bounds. The store may admit the
// limit once, and once more after each loss of its data. An instance may admit the bound of its
// fallback.
//
// If the store has kept its data, its state must also agree with the decisions. The used units are
// then the admitted units, and at most one more for each call without a reply. If a limit has
// leases, units that were leased and not spent are used too.
func (e *experiment) checkBounds() {
	direct, err := redisstore.Open(e.target.direct, redisstore.Options{})
	if err != nil {
		e.Fatal(err)
	}
	defer direct.Close()
	unknown := e.unknownCharges()
	var largest [len(guardedLimits)]int // the largest use of a key, for each limit
	keys, lost := 0, 0
	for k, g := range e.load.grants {
		limit := &guardedLimits[k.limit]
		faults := g.begunBefore - g.endedBefore // during the use of this key
		stored, byFallback := 0, 0
		for i := range instances {
			stored += g.store[i]
			byFallback += g.byFallback[i]
			bound := limit.fallbackBound + limit.leaseReturns()*faults
			if limit.fallbackBound != unbounded && g.byFallback[i] > bound {
				e.Errorf("limit %q: instance %d admitted %d units of %q without the store; want at most %d", limit.name, i, g.byFallback[i], k.key, bound)
			}
		}
		dataLosses := e.fault.dataLosses * faults
		if bound := limit.units() * (1 + dataLosses); stored > bound {
			e.Errorf("limit %q: the store admitted %d units of %q; want at most %d", limit.name, stored, k.key, bound)
		}
		largest[k.limit] = max(largest[k.limit], stored+byFallback)
		used := e.used(direct, k)
		hasTooMany := used > stored+unknown[k] && limit.settings.Lease == 0
		hasTooFew := used < stored && e.fault.dataLosses == 0
		if hasTooMany || hasTooFew {
			e.Errorf("limit %q: the store has %d used units of %q; want the %d that it admitted, and at most %d more for lost replies",
				limit.name, used, k.key, stored, unknown[k])
		}
		keys++
		if limit.settings.Lease == 0 {
			e.unseenCharges += max(used-stored, 0)
		}
		lost += unknown[k]
	}
	e.Logf("counted: %d keys within their bounds (largest use of a key: %v; %d replies lost, %d of them charged)",
		keys, describeUse(largest), lost, e.unseenCharges)
}

// used returns how many units of a key are used, by the state of the store.
func (e *experiment) used(direct *redisstore.Store, k limitKey) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d, err := direct.Decide(ctx, []penstock.Charge{{Key: k.key, Plan: guardedLimits[k.limit].plan, Mode: penstock.Peek}})
	if err != nil {
		e.Fatalf("peek at key %q: %v; want no error", k.key, err)
	}
	return guardedLimits[k.limit].units() - int(d.Status(0).Remaining)
}

// unknownCharges returns how many calls without a reply may have been charged, by key.
func (e *experiment) unknownCharges() map[limitKey]int {
	all := map[limitKey]int{}
	for _, i := range e.load.instances {
		i.spy.mu.Lock()
		for k, n := range i.spy.unknown {
			all[k] += n
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
			e.Errorf("no instance saw an error with reason %v, which the fault must cause; they saw %v", c, seen)
		}
	}
	expected := slices.Concat([]penstock.Reason{penstock.ReasonUnknown, penstock.ReasonUnreachable}, e.fault.wantErrors, e.fault.mayHaveErrors)
	for reason := range seen {
		if !slices.ContainsFunc(expected, func(c penstock.Reason) bool { return c.String() == reason }) {
			e.Errorf("an instance saw errors with reason %s, which the fault must not cause: %s", reason, e.texts(reason))
		}
	}
}

// reasons returns the number of errors that all instances saw, by reason.
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

// errors describes the errors that all instances saw.
func (e *experiment) errors() string {
	text := ""
	seen := e.reasons()
	for _, reason := range slices.Sorted(maps.Keys(seen)) {
		text += fmt.Sprintf("%d errors with reason %s, such as\n\t%s\n", seen[reason], reason, strings.Join(e.texts(reason), "\n\t"))
	}
	return text
}

// checkWaiting checks that every call had a deadline and has ended. It also checks that only few
// calls reached the store during the fault. These are the calls that open the breaker, and then one
// probe every 50 ms.
func (e *experiment) checkWaiting() {
	var latest time.Duration
	for i, in := range e.load.instances {
		if n := in.spy.withoutDeadline.Load(); n > 0 {
			e.Errorf("instance %d made %d calls without a deadline; want none", i, n)
		}
		e.await(fmt.Sprintf("the end of the calls of instance %d", i), func() bool { return in.spy.inFlight.Load() == 0 }) // leases still call the store
		latest = max(latest, time.Duration(in.spy.latest.Load()))
	}
	e.Logf("the latest call ended %v after its deadline of %v; errors: %v", latest.Round(time.Millisecond), e.deadline, e.reasons())
	const (
		failures   = 5 // they open a breaker
		probeEvery = 50 * time.Millisecond
	)
	perBreaker := int64(e.cycles*(failures+e.callers) + e.cycles + int(e.faultTime/probeEvery))
	most := perBreaker * instances * int64(e.target.shards)
	areBreakersOpen := e.fault.decidedBy == byFallbacks && !e.fault.isStoreCalled && !e.isPartial()
	if areBreakersOpen && e.reached > most {
		e.Errorf("%d calls reached the store in %v of its fault; want at most %d, since breakers block the others", e.reached, e.faultTime, most)
	}
	if isSoak {
		e.checkLatency()
	}
}

// slack is how much later than its deadline a decision may end on a busy machine.
const slack = 200 * time.Millisecond

// recoverySlack is how long a group of servers may take after a fault until it decides for all
// instances. The clients must find the new primary, breakers pause for up to 8 s, and the machine
// may be busy.
const recoverySlack = 10 * time.Second

// checkLatency checks times. Only soaks call it: they have most of the machine for themselves.
func (e *experiment) checkLatency() {
	if took := slices.Max(e.recoveryTimes); e.target.kind != single && took > recoverySlack {
		e.Errorf("the store decided for all instances %v after the end of the fault; want at most %v", took, recoverySlack)
	}
	for p := range phases {
		if took := p99(e.load.latencies[p]); took > e.deadline+slack {
			e.Errorf("%s the fault, 1 %% of the decisions took longer than %v; want at most the deadline of %v and %v more",
				phaseNames[p], took, e.deadline, slack)
		}
	}
}

// describeUse describes the largest use of a key, for each limit.
func describeUse(counts [len(guardedLimits)]int) string {
	text := ""
	for i, n := range counts {
		text += fmt.Sprintf("%s %d of %d, ", guardedLimits[i].name, n, guardedLimits[i].units())
	}
	return text[:len(text)-2]
}
