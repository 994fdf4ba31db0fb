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

// judge says whether the run was as it must be.
func (l *lab) judge() {
	for _, w := range l.load.wrong {
		l.Error(w)
	}
	l.judgeSources()
	l.judgeErrors()
	if l.row.also != nil {
		l.row.also(l)
	}
	l.judgeBounds()
	l.judgeWaiting()
	if l.row.charges && l.charged == 0 {
		l.Error("no question without an answer was charged: it was not the answers that were lost")
	}
	l.Log(l.errors())
	l.Logf("%v seed %d", l.load, l.seed)
	l.Logf("the store decided for everybody %v after the end of the fault", l.back)
	l.Logf("counted: %d faults survived", l.cycles)
	l.Logf("counted: %d decisions in faults (%d reached the store)", len(l.load.latencies[during]), l.reached)
	l.Logf("counted: %d charges without an answer, none twice", l.charged)
}

// judgeSources checks that nothing that was asked during a fault was answered as if there were
// none.
func (l *lab) judgeSources() {
	stored := l.load.answers[during][penstock.FromStore]
	if l.row.answered == byPolicies && !l.partial() && stored > 0 {
		l.Errorf("%d questions of %d were answered by the store during the fault", stored, len(l.load.latencies[during]))
	}
}

// judgeBounds compares what was admitted of each key with its bound: units by the store for each
// time that it began anew, and what each instance may mint. Where the store kept its memory, that
// must also agree with the answers: an answer that was lost may have been charged, once, and
// nothing else may, but what is held in advance.
func (l *lab) judgeBounds() {
	direct, err := redisstore.Open(l.to.direct, redisstore.Options{})
	if err != nil {
		l.Fatal(err)
	}
	defer direct.Close()
	unknown, most := l.unknown(), [len(policies)]int{}
	accounts, lost := 0, 0
	for a, g := range l.load.grants {
		p := &policies[a.policy]
		stored, minted := 0, 0
		for i := range instances {
			stored += g.store[i]
			minted += g.minted[i]
			if bound := p.mints + p.returns()*(g.last-g.first); p.mints != unbounded && g.minted[i] > bound {
				l.Errorf("policy %s: instance %d admitted %d of %s without the store; its bound is %d", p.name, i, g.minted[i], a.key, bound)
			}
		}
		forgets := l.row.forgets * (g.last - g.first)
		if bound := p.units() * (1 + forgets); stored > bound {
			l.Errorf("policy %s: the store admitted %d of %s; its bound is %d", p.name, stored, a.key, bound)
		}
		most[a.policy] = max(most[a.policy], stored+minted)
		used := l.used(direct, a)
		if used > stored+unknown[a] && p.settings.Lease == 0 || used < stored && l.row.forgets == 0 {
			l.Errorf("policy %s: %d units of %s are used; %d were admitted, and %d answers were lost", p.name, used, a.key, stored, unknown[a])
		}
		accounts++
		if p.settings.Lease == 0 {
			l.charged += max(used-stored, 0)
		}
		lost += unknown[a]
	}
	l.Logf("counted: %d keys within their bounds (the most of a key: %v; %d answers lost, %d of them charged)",
		accounts, named(most), lost, l.charged)
}

// used is how much of a key is used, by the store itself.
func (l *lab) used(direct *redisstore.Store, a account) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := direct.Decide(ctx, []penstock.Charge{{Key: a.key, Limit: policies[a.policy].limit, Mode: penstock.Peek}})
	if err != nil {
		l.Fatalf("how much of %s is used: %v", a.key, err)
	}
	return policies[a.policy].units() - int(d.Status(0).Remaining)
}

// unknown is how many questions may have been charged without an answer, by account.
func (l *lab) unknown() map[account]int {
	all := map[account]int{}
	for _, i := range l.load.instances {
		i.spy.mu.Lock()
		for a, n := range i.spy.unknown {
			all[a] += n
		}
		i.spy.mu.Unlock()
	}
	return all
}

// judgeErrors compares the errors that instances saw with what the row says.
func (l *lab) judgeErrors() {
	seen := l.classes()
	for _, c := range l.row.sees {
		if seen[c.String()] == 0 {
			l.Errorf("no instance saw an error of class %v, but %v", c, seen)
		}
	}
	expected := slices.Concat([]penstock.Reason{penstock.ReasonUnknown, penstock.ReasonUnreachable}, l.row.sees, l.row.may)
	for class := range seen {
		if !slices.ContainsFunc(expected, func(c penstock.Reason) bool { return c.String() == class }) {
			l.Errorf("an instance saw errors of class %s: %s", class, l.texts(class))
		}
	}
}

func (l *lab) classes() map[string]int {
	all := map[string]int{}
	for _, i := range l.load.instances {
		i.spy.mu.Lock()
		for c, n := range i.spy.classes {
			all[c] += n
		}
		i.spy.mu.Unlock()
	}
	return all
}

// texts are a few errors of a class.
func (l *lab) texts(class string) (all []string) {
	for _, i := range l.load.instances {
		i.spy.mu.Lock()
		all = append(all, i.spy.texts[class]...)
		i.spy.mu.Unlock()
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (l *lab) errors() string {
	text := ""
	seen := l.classes()
	for _, class := range slices.Sorted(maps.Keys(seen)) {
		text += fmt.Sprintf("%d errors of class %s, as\n\t%s\n", seen[class], class, strings.Join(l.texts(class), "\n\t"))
	}
	return text
}

// judgeWaiting checks that nobody waited for the store without need: every question had a deadline
// and has ended, and during the fault few were asked, as breakers let pass: those that make it
// open, and one in 50 ms.
func (l *lab) judgeWaiting() {
	var latest time.Duration
	for i, in := range l.load.instances {
		if n := in.spy.unbounded.Load(); n > 0 {
			l.Errorf("instance %d: %d questions without a deadline", i, n)
		}
		l.await(fmt.Sprintf("the questions of instance %d have ended", i), func() bool { return in.spy.underWay.Load() == 0 }) // leases ask on
		latest = max(latest, time.Duration(in.spy.latest.Load()))
	}
	l.Logf("no question ended later than %v after its deadline of %v; errors: %v", latest.Round(time.Millisecond), l.deadline, l.classes())
	const failures, probeEvery = 5, 50 * time.Millisecond
	pass := int64(l.cycles*(failures+l.callers) + l.cycles + int(l.faulty/probeEvery))
	if most := pass * instances * int64(l.to.shards); l.row.answered == byPolicies && !l.row.asked && !l.partial() && l.reached > most {
		l.Errorf("%d questions reached the store in %v of its fault; breakers let %d pass", l.reached, l.faulty, most)
	}
	if soaking {
		l.judgeLatency()
	}
}

// slack is for a busy machine.
const slack = 200 * time.Millisecond

// backSlack is how long the store may take to decide again for everybody after the end of a fault:
// of a group of servers, whose clients have to learn who serves, and breakers that ask every
// second, on a busy machine.
const backSlack = 10 * time.Second

// judgeLatency is for runs that have the machine for themselves, more or less.
func (l *lab) judgeLatency() {
	if took := slices.Max(l.back); l.to.kind != single && took > backSlack {
		l.Errorf("the store decided for everybody only %v after the end of the fault", took)
	}
	for p := range phases {
		if took := p99(l.load.latencies[p]); took > l.deadline+slack {
			l.Errorf("%s the fault, 1 %% of the answers took longer than %v; the deadline is %v", phaseNames[p], took, l.deadline)
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
