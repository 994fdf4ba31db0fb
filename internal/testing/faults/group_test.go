package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// groups are the targets with several servers.
var groups = []kind{sentinel, cluster}

// inSoak is how often a soak repeats a fault from which a group of servers needs seconds to
// recover. Each failover gets a new group, because a second failover soon after the first may make
// the Sentinels start a third.
const inSoak = 8

// A group is the state of faults on a Sentinel group or a Cluster.
type group struct {
	victim, successor *redistest.Server // the primary that has the fault, and the replica that replaces it
	replicated        map[limitKey]int  // units that the store had granted when replication stopped
	mayBeLost         map[limitKey]int  // units that may be lost
	lost              int               // units that were lost
	openings          []string          // names of the nodes whose breakers may open
	route             *sentinelRoute    // from the first instance to the Sentinels
}

// chooseVictim finds the primary that will have the fault. On a Cluster it is the primary of slot
// 0.
func (e *experiment) chooseVictim() *group {
	e.Helper()
	g := &e.group
	if e.target.sentinel != nil {
		g.victim, g.successor = e.target.sentinel.Primary, e.target.sentinel.Replica
		return g
	}
	g.victim = e.target.cluster.Owner(0)
	if g.victim == nil {
		e.Fatal("no node has slot 0")
	}
	g.successor = e.target.cluster.Replica(g.victim)
	return g
}

// must ends the test if a step of a fault fails.
func (e *experiment) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// awaitSuccessor waits until the replica is the primary, and all Sentinels or nodes know it.
func awaitSuccessor(e *experiment) {
	e.Helper()
	began := time.Now()
	if e.target.sentinel != nil {
		e.must(e.target.sentinel.AwaitFailover())
	} else {
		e.must(e.group.successor.AwaitPromotion())
		e.must(e.target.awaitSlotsWithout(e.group.victim))
	}
	e.Logf("the replica took over after %v", time.Since(began).Round(time.Millisecond))
}

// awaitSlotsWithout waits until all nodes except the excluded one report that every slot is served.
func (t *target) awaitSlotsWithout(excluded *redistest.Server) error {
	rest := redistest.Cluster{Nodes: slices.DeleteFunc(slices.Clone(t.cluster.Nodes), func(s *redistest.Server) bool { return s == excluded })}
	return rest.AwaitAllSlots()
}

// granted returns the units that the store has granted so far.
func (e *experiment) granted() map[limitKey]int {
	e.load.mu.Lock()
	defer e.load.mu.Unlock()
	all := map[limitKey]int{}
	for k, g := range e.load.grants {
		for _, n := range g.store {
			all[k] += n
		}
	}
	return all
}

// recordReplicated records the granted units that the victim's replica has received. Units that the
// store grants later may be lost. chooseVictim must have been called before.
func (e *experiment) recordReplicated() {
	e.Helper()
	g := &e.group
	g.replicated = e.granted()
	e.must(g.successor.CatchUp(g.victim))
}

// pauseReplication stops the replication to the replica.
func pauseReplication(e *experiment) {
	e.Helper()
	g := e.chooseVictim()
	e.recordReplicated()
	if e.target.sentinel != nil {
		e.target.sentinel.Proxy(g.victim).Block(g.successor.Source)
		return
	}
	e.target.proxies[slices.Index(e.target.cluster.Nodes, g.victim)].Block(g.successor.Source)
}

// resumeReplication removes the block of pauseReplication. The data that the block held does not
// arrive, since the replica no longer follows a primary.
func resumeReplication(e *experiment) {
	if e.target.sentinel != nil {
		e.target.sentinel.Proxy(e.group.victim).Block()
		return
	}
	e.target.proxies[slices.Index(e.target.cluster.Nodes, e.group.victim)].Block()
}

// recordUnreplicated records that all grants since recordReplicated may be lost.
func (e *experiment) recordUnreplicated() {
	g := &e.group
	if g.mayBeLost == nil {
		g.mayBeLost = map[limitKey]int{}
	}
	for k, n := range e.granted() {
		g.mayBeLost[k] += n - g.replicated[k]
	}
}

// checkOnlyUnreplicatedLost compares the granted units of every key with those that the store
// reports as used in the end. Only units that were granted without replication may be missing.
func checkOnlyUnreplicatedLost(e *experiment) {
	direct, err := redisstore.Open(e.target.direct, redisstore.Options{})
	e.must(err)
	defer direct.Close()
	g := &e.group
	keys := 0
	for k, n := range e.granted() {
		lost, limit := n-e.used(direct, k), &guardedLimits[k.limit]
		// Units that were leased without replication may be granted later.
		if most := g.mayBeLost[k] + e.cycles*instances*int(limit.settings.Lease); lost > most {
			e.Errorf("limit %q: %d of %d units of %q are lost; want at most %d, which were granted without replication", limit.name, lost, n, k.key, most)
		}
		g.lost += max(lost, 0)
		keys++
	}
	e.Logf("counted: %d keys have lost only grants without replication (%d units)", keys, g.lost)
}

// checkSomeLost is checkOnlyUnreplicatedLost, and also checks that some units were lost. If none
// were, the test would prove nothing.
func checkSomeLost(e *experiment) {
	checkOnlyUnreplicatedLost(e)
	if e.group.lost == 0 {
		e.Error("no unit was lost; want some, because otherwise the fault had no effect")
	}
}

// checkOnlyInFlightLost checks that no more units are lost than were in flight. The primary
// replicates a decision in the same iteration of its event loop in which it replies. So only the
// decisions of the last iteration may be lost.
func checkOnlyInFlightLost(e *experiment) {
	direct, err := redisstore.Open(e.target.direct, redisstore.Options{})
	e.must(err)
	defer direct.Close()
	lost := 0
	for k, n := range e.granted() {
		if guardedLimits[k.limit].settings.Lease == 0 {
			lost += max(n-e.used(direct, k), 0)
		}
	}
	if most := e.cycles * instances * e.callers; lost > most {
		e.Errorf("%d units are lost; want at most %d, which were in flight", lost, most)
	}
	e.Logf("counted: %d failovers (%d units lost, at most %d were in flight)", e.cycles, lost, e.cycles*instances*e.callers)
}

// checkBreakersFollow checks that breakers have the names of the nodes after the failover. The
// store updates the names within 10 s.
func checkBreakersFollow(e *experiment) {
	if e.target.cluster == nil || !isSoak {
		return
	}
	e.group.victim.Resume() // a stopped server would block the queries below
	for k := range e.load.grants {
		if e.target.cluster.Owner(e.slotOf(k)) != e.group.successor {
			continue
		}
		charges := []penstock.Charge{{Key: k.key, Plan: guardedLimits[k.limit].plan}}
		e.await("every instance to use the new primary", func() bool {
			for _, in := range e.load.instances {
				if in.spy.Node(charges) != e.group.successor.Addr {
					return false
				}
			}
			return true
		})
		return
	}
	e.Error("no key of the load belongs to the new primary; want at least one")
}

// awaitFallback waits until every instance has decided without the store. It looks only at the
// closed limit: on a Cluster, another limit may have no key on the node with the fault.
func awaitFallback(e *experiment) {
	e.await("the fallback of every instance", func() bool {
		return e.every(func(i, limit int) bool {
			return limit != closedLimit || e.load.decisionsInPhase(i, limit, penstock.FromClosed) >= 3
		})
	})
}

// checkOpenedBreakers checks that only breakers of the nodes in group.openings have opened.
func checkOpenedBreakers(e *experiment) {
	for i, in := range e.load.instances {
		in.nodes.Range(func(name, _ any) bool {
			if !slices.Contains(e.group.openings, name.(string)) {
				e.Errorf("instance %d: the breaker of node %q opened; want only those of %q, which have a fault", i, name, e.group.openings)
			}
			return true
		})
	}
}

// slotOf returns the slot of a key in the Cluster.
func (e *experiment) slotOf(k limitKey) int {
	e.Helper()
	key, err := redisstore.KeyOf(penstock.Charge{Key: k.key, Plan: guardedLimits[k.limit].plan, Cost: 1}, redisstore.Options{})
	e.must(err)
	slot, err := e.target.cluster.Slot(key)
	e.must(err)
	return slot
}

// currentKey returns a random key that is in use now.
func (e *experiment) currentKey(rng *rand.Rand) limitKey {
	e.load.mu.Lock()
	defer e.load.mu.Unlock()
	limit := rng.IntN(len(guardedLimits))
	n := e.load.firstKeyLocked(limit) + rng.Int64N(max(guardedLimits[limit].keys-1, 1))
	return limitKey{limit: limit, key: fmt.Sprint("k", n)}
}
