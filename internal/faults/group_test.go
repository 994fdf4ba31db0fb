package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// groups are the targets with several servers.
var groups = []kind{sentinel, cluster}

// inSoak is how many times a soak repeats a fault from which a group of servers needs seconds to
// recover. After a failover, each fault has a new group: Sentinels may answer a second failover
// soon after the first with a third.
const inSoak = 8

// A group is the state of faults on a Sentinel group or a Cluster.
type group struct {
	victim, successor *redistest.Server // the primary that has the fault, and the replica that replaces it
	acked             map[limitKey]int  // units that the store had granted when replication stopped
	mayBeLost         map[limitKey]int  // units that may be lost
	lost              int               // units that were lost
	openings          []string          // nodes whose breakers may open
	route             *sentinelRoute    // of the first instance to Sentinels
}

// chooseVictim finds the primary that will have the fault. On a Cluster it is the primary of slot
// 0.
func (l *experiment) chooseVictim() *group {
	l.Helper()
	g := &l.group
	if l.target.sentinel != nil {
		g.victim, g.successor = l.target.sentinel.Primary, l.target.sentinel.Replica
		return g
	}
	g.victim = l.target.cluster.Owner(0)
	if g.victim == nil {
		l.Fatal("no node has slot 0")
	}
	g.successor = l.target.cluster.Replica(g.victim)
	return g
}

// must ends the test if a step of a fault fails.
func (l *experiment) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// awaitSuccessor waits until the replica is primary and, with Sentinel, all Sentinels name it.
func awaitSuccessor(l *experiment) {
	l.Helper()
	began := time.Now()
	if l.target.sentinel != nil {
		l.must(l.target.sentinel.AwaitFailover())
	} else {
		l.must(l.group.successor.AwaitPromotion())
		l.must(l.target.awaitSlotsWithout(l.group.victim))
	}
	l.Logf("the replica took over after %v", time.Since(began).Round(time.Millisecond))
}

// awaitSlotsWithout waits until all nodes but one see every slot served.
func (t *target) awaitSlotsWithout(n *redistest.Server) error {
	rest := redistest.Cluster{Nodes: slices.DeleteFunc(slices.Clone(t.cluster.Nodes), func(s *redistest.Server) bool { return s == n })}
	return rest.AwaitAllSlots()
}

// granted returns the units that the store has granted so far.
func (l *experiment) granted() map[limitKey]int {
	l.load.mu.Lock()
	defer l.load.mu.Unlock()
	all := map[limitKey]int{}
	for a, g := range l.load.grants {
		for _, n := range g.store {
			all[a] += n
		}
	}
	return all
}

// startUnreplicated records what the replica has: later grants of the store may be lost.
func (l *experiment) startUnreplicated() *group {
	l.Helper()
	g := l.chooseVictim()
	g.acked = l.granted()
	l.must(g.successor.CatchUp(g.victim))
	return g
}

// pauseReplication stops the replication to the replica.
func pauseReplication(l *experiment) {
	l.Helper()
	g := l.startUnreplicated()
	if l.target.sentinel != nil {
		l.target.sentinel.Proxy(g.victim).Block(g.successor.Source)
		return
	}
	l.target.proxies[slices.Index(l.target.cluster.Nodes, g.victim)].Block(g.successor.Source)
}

// resumeReplication removes that block. Held data does not arrive, as the replica follows no
// primary by then.
func resumeReplication(l *experiment) {
	if l.target.sentinel != nil {
		l.target.sentinel.Proxy(l.group.victim).Block()
		return
	}
	l.target.proxies[slices.Index(l.target.cluster.Nodes, l.group.victim)].Block()
}

// noteUnreplicated records that all grants since the replication stopped may be lost.
func (l *experiment) noteUnreplicated() {
	g := &l.group
	if g.mayBeLost == nil {
		g.mayBeLost = map[limitKey]int{}
	}
	for a, n := range l.granted() {
		g.mayBeLost[a] += n - g.acked[a]
	}
}

// losesOnlyUnreplicated compares the used units of every key, by the store in the end, with the
// granted ones.
func losesOnlyUnreplicated(l *experiment) {
	direct, err := redisstore.Open(l.target.direct, redisstore.Options{})
	l.must(err)
	defer direct.Close()
	g := &l.group
	keys := 0
	for a, n := range l.granted() {
		lost, p := n-l.used(direct, a), &policies[a.policy]
		// Units that were leased during that time may be granted later.
		if most := g.mayBeLost[a] + l.cycles*instances*int(p.settings.Lease); lost > most {
			l.Errorf("%d units of %s, policy %s, are lost; only %d of %d were granted without replication", lost, a.key, p.name, most, n)
		}
		g.lost += max(lost, 0)
		keys++
	}
	l.Logf("counted: %d keys have lost only grants without replication (%d units)", keys, g.lost)
}

// losesSome also checks that something was lost: otherwise the test proves nothing.
func losesSome(l *experiment) {
	losesOnlyUnreplicated(l)
	if l.group.lost == 0 {
		l.Error("nothing was lost, so the fault had no effect")
	}
}

// losesOnlyInFlight allows the loss of decisions of the last turn of the primary's event loop,
// which it may not have replicated.
func losesOnlyInFlight(l *experiment) {
	direct, err := redisstore.Open(l.target.direct, redisstore.Options{})
	l.must(err)
	defer direct.Close()
	lost := 0
	for a, n := range l.granted() {
		if policies[a.policy].settings.Lease == 0 {
			lost += max(n-l.used(direct, a), 0)
		}
	}
	if most := l.cycles * instances * l.callers; lost > most {
		l.Errorf("%d units are lost; at most %d were in flight", lost, most)
	}
	l.Logf("counted: %d failovers (%d units lost, at most %d were in flight)", l.cycles, lost, l.cycles*instances*l.callers)
}

// breakersFollowSuccessor checks that breakers have the names of the nodes after the failover: the
// store updates them within 10 s.
func breakersFollowSuccessor(l *experiment) {
	if l.target.cluster == nil || !isSoak {
		return
	}
	l.group.victim.Resume() // a stopped server would block the queries below
	for a := range l.load.grants {
		if l.target.cluster.Owner(l.slotOf(a)) != l.group.successor {
			continue
		}
		charges := []penstock.Charge{{Key: a.key, Plan: policies[a.policy].limit}}
		l.await("every instance to know the new primary", func() bool {
			for _, in := range l.load.instances {
				if in.spy.Node(charges) != l.group.successor.Addr {
					return false
				}
			}
			return true
		})
		return
	}
	l.Error("the new primary has no key")
}

// awaitFallback waits until every instance has decided without the store. On a Cluster not each
// policy need have: it depends on the node of its keys.
func awaitFallback(l *experiment) {
	l.await("the fallback of every instance", func() bool {
		return l.every(func(i, p int) bool { return p != closedPolicy || l.load.since(i, p, penstock.FromClosed) >= 3 })
	})
}

// onlyNamedBreakersOpened checks that only breakers of the listed nodes have opened.
func onlyNamedBreakersOpened(l *experiment) {
	for i, in := range l.load.instances {
		in.shards.Range(func(name, _ any) bool {
			if !slices.Contains(l.group.openings, name.(string)) {
				l.Errorf("instance %d: the breaker of node %q opened; only %q have a fault", i, name, l.group.openings)
			}
			return true
		})
	}
}

// slotOf is the slot of a key in the Cluster.
func (l *experiment) slotOf(a limitKey) int {
	l.Helper()
	key, err := redisstore.KeyOf(penstock.Charge{Key: a.key, Plan: policies[a.policy].limit, Cost: 1}, redisstore.Options{})
	l.must(err)
	slot, err := l.target.cluster.Slot(key)
	l.must(err)
	return slot
}

// current returns a key that is in use now.
func (l *experiment) current(rng *rand.Rand) limitKey {
	l.load.mu.Lock()
	defer l.load.mu.Unlock()
	policy := rng.IntN(len(policies))
	p := &policies[policy]
	return limitKey{policy, fmt.Sprint("k", l.load.picked[policy]/int64(overload*p.units())+rng.Int64N(max(p.keys-1, 1)))}
}
