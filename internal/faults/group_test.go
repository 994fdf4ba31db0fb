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

// What rows on Sentinel and Cluster have in common.
var groups = []kind{sentinel, cluster}

// inSoak is how often a fault comes in a soak from which a group of servers needs seconds to
// recover. Where one server has taken another's place, each fault has a new group: sentinels may
// take a second failover soon after the first for a reason for a third.
const inSoak = 8

// A group is what rows remember of their Sentinel's group or Cluster.
type group struct {
	victim, heir *redistest.Server // the primary that the fault befalls, and the replica that takes its place
	acked        map[account]int   // units granted by the store when the replica stopped to hear of them
	losable      map[account]int   // units that may be lost
	lost         int               // units that were
	openings     []string          // shards whose breakers may open
	way          *way0             // of the first instance to Sentinels
}

// choose finds who is the victim now: the primary of the first slot of a Cluster.
func (l *lab) choose() *group {
	l.Helper()
	g := &l.group
	if l.to.sentinel != nil {
		g.victim, g.heir = l.to.sentinel.Primary, l.to.sentinel.Replica
		return g
	}
	g.victim = l.to.cluster.Owner(0)
	if g.victim == nil {
		l.Fatal("nobody keeps slot 0")
	}
	g.heir = l.to.cluster.Replica(g.victim)
	return g
}

// check ends the test on an error of what makes a fault.
func (l *lab) check(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// takenOver waits until the replica is primary and, with Sentinel, named by all sentinels.
func takenOver(l *lab) {
	l.Helper()
	began := time.Now()
	if l.to.sentinel != nil {
		l.check(l.to.sentinel.Follow())
	} else {
		l.check(l.group.heir.Promoted())
		l.check(l.to.wholeWithout(l.group.victim))
	}
	l.Logf("the replica has taken over %v later", time.Since(began).Round(time.Millisecond))
}

// wholeWithout waits until all nodes but one see all slots served.
func (to *target) wholeWithout(n *redistest.Server) error {
	rest := redistest.Cluster{Nodes: slices.DeleteFunc(slices.Clone(to.cluster.Nodes), func(s *redistest.Server) bool { return s == n })}
	return rest.Whole()
}

// granted are the units that the store has granted until now.
func (l *lab) granted() map[account]int {
	l.load.mu.Lock()
	defer l.load.mu.Unlock()
	all := map[account]int{}
	for a, g := range l.load.grants {
		for _, n := range g.store {
			all[a] += n
		}
	}
	return all
}

// fork notes what the replica knows: what the store grants from now on may be lost.
func (l *lab) fork() *group {
	l.Helper()
	g := l.choose()
	g.acked = l.granted()
	l.check(g.heir.CatchUp(g.victim))
	return g
}

// deaf has the replica hear nothing of its primary any more.
func deaf(l *lab) {
	l.Helper()
	g := l.fork()
	if l.to.sentinel != nil {
		l.to.sentinel.Proxy(g.victim).Part(g.heir.Source)
		return
	}
	l.to.proxies[slices.Index(l.to.cluster.Nodes, g.victim)].Part(g.heir.Source)
}

// hearing ends that. Nothing arrives of what was held, as the replica follows nobody by then.
func hearing(l *lab) {
	if l.to.sentinel != nil {
		l.to.sentinel.Proxy(l.group.victim).Part()
		return
	}
	l.to.proxies[slices.Index(l.to.cluster.Nodes, l.group.victim)].Part()
}

// mayLose notes that all that the store has granted since the replica became deaf may be lost.
func (l *lab) mayLose() {
	g := &l.group
	if g.losable == nil {
		g.losable = map[account]int{}
	}
	for a, n := range l.granted() {
		g.losable[a] += n - g.acked[a]
	}
}

// losesNoMoreThanMayBe compares what every key has used, as its store says in the end, with what
// was granted of it.
func losesNoMoreThanMayBe(l *lab) {
	direct, err := redisstore.Open(l.to.direct, redisstore.Options{})
	l.check(err)
	defer direct.Close()
	g := &l.group
	keys := 0
	for a, n := range l.granted() {
		lost, p := n-l.used(direct, a), &policies[a.policy]
		// What was drawn in advance while it could be lost may be granted later.
		if most := g.losable[a] + l.cycles*instances*int(p.settings.Lease); lost > most {
			l.Errorf("%d units of %s, policy %s, are lost; only %d of %d were granted while they could be", lost, a.key, p.name, most, n)
		}
		g.lost += max(lost, 0)
		keys++
	}
	l.Logf("counted: %d keys have lost no more than their replica had not heard of (%d units)", keys, g.lost)
}

// losesSome also checks that there was something to lose: otherwise nothing is proved.
func losesSome(l *lab) {
	losesNoMoreThanMayBe(l)
	if l.group.lost == 0 {
		l.Error("nothing was lost, so the fault was none")
	}
}

// losesWhatWasUnderWay allows the loss of what was answered in the last turn of the primary's loop,
// which it may not have told its replica.
func losesWhatWasUnderWay(l *lab) {
	direct, err := redisstore.Open(l.to.direct, redisstore.Options{})
	l.check(err)
	defer direct.Close()
	lost := 0
	for a, n := range l.granted() {
		if policies[a.policy].settings.Lease == 0 {
			lost += max(n-l.used(direct, a), 0)
		}
	}
	if most := l.cycles * instances * l.callers; lost > most {
		l.Errorf("%d units are lost; at most %d were under way", lost, most)
	}
	l.Logf("counted: %d failovers (%d units lost, at most %d were under way)", l.cycles, lost, l.cycles*instances*l.callers)
}

// shardsFollow checks that breakers go by the server that took over: their names of shards are
// asked for again within 10 s.
func shardsFollow(l *lab) {
	if l.to.cluster == nil || !soaking {
		return
	}
	l.group.victim.Resume() // if it is stopped, whom this asks would wait for it
	for a := range l.load.grants {
		if l.to.cluster.Owner(l.slotOf(a)) != l.group.heir {
			continue
		}
		charges := []penstock.Charge{{Key: a.key, Limit: policies[a.policy].limit}}
		l.await("every instance knows who took over", func() bool {
			for _, in := range l.load.instances {
				if in.spy.Node(charges) != l.group.heir.Addr {
					return false
				}
			}
			return true
		})
		return
	}
	l.Error("no key is kept by the server that took over")
}

// fallenBack waits until every instance has answered without the store. With a Cluster, not each
// policy need have: it goes by the key.
func fallenBack(l *lab) {
	l.await("every instance has fallen back", func() bool {
		return l.every(func(i, p int) bool { return p != closedPolicy || l.load.since(i, p, penstock.FromClosed) >= 3 })
	})
}

// onlyItsShard checks that no breaker has opened but those of the shards that are named.
func onlyItsShard(l *lab) {
	for i, in := range l.load.instances {
		in.shards.Range(func(name, _ any) bool {
			if !slices.Contains(l.group.openings, name.(string)) {
				l.Errorf("instance %d: the breaker of shard %q opened; only %q are out of order", i, name, l.group.openings)
			}
			return true
		})
	}
}

// slotOf is the slot of an account, as the Cluster has it.
func (l *lab) slotOf(a account) int {
	l.Helper()
	key, err := redisstore.KeyOf(penstock.Charge{Key: a.key, Limit: policies[a.policy].limit, Cost: 1}, redisstore.Options{})
	l.check(err)
	slot, err := l.to.cluster.Slot(key)
	l.check(err)
	return slot
}

// current is an account that is asked for now.
func (l *lab) current(rng *rand.Rand) account {
	l.load.mu.Lock()
	defer l.load.mu.Unlock()
	policy := rng.IntN(len(policies))
	p := &policies[policy]
	return account{policy, fmt.Sprint("k", l.load.picked[policy]/int64(thirst*p.units())+rng.Int64N(max(p.keys-1, 1)))}
}
