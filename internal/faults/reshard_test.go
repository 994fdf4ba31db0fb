package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// The slots of a Cluster move, or nobody keeps them.
var reshards = []row{
	{
		id: "F8", name: "slots move to and fro", on: []kind{cluster}, cycles: inSoak,
		deadline: patient,
		begin:    nothing, lasts: moveSlots(ownPrimaries), end: nothing,
		answered: byStore,
		also:     withoutError,
	},
	{
		id: "F12", name: "slots move to a server that knows no script", on: []kind{cluster}, cycles: 1, rounds: inSoak,
		deadline: patient,
		begin:    nothing, lasts: moveSlots(newPrimary), end: nothing,
		answered: byStore,
		also:     withoutError,
	},
	{
		id: "F9", name: "a shard is dead, and the Cluster goes on without", on: []kind{cluster}, cycles: inSoak,
		deadline: patient,
		prepare:  func(l *lab) { l.onAll("CONFIG SET cluster-require-full-coverage no"); alone(l) },
		begin:    killAlone, lasts: othersDecide, end: restartAlone,
		answered: byAnybody, may: inBetween,
		forgets: 1,
		also:    onlyItsShard,
	},
	{
		id: "F9", name: "a shard is dead, and the Cluster is down", on: []kind{cluster}, cycles: inSoak,
		prepare: alone,
		begin:   killAlone, end: restartAlone,
		partial: true, sees: inBetween,
		forgets: 1,
	},
	{
		id: "F24", name: "all connections to a Cluster closed, again and again", on: []kind{cluster}, cycles: inSoak,
		begin: nothing, lasts: stormOnAll, end: nothing,
		answered: byAnybody,
	},
	{
		id: "F25", name: "a herd after an outage of the only primary", on: groups, cycles: inSoak,
		callers: 8,
		prepare: alone,
		begin:   killAlone, lasts: asks(2000),
		end:     func(l *lab) { l.mark = l.reaches(); restartAlone(l) },
		partial: true, may: inBetween,
		forgets: 1,
		also:    victimAskedNothingOld,
	},
	{
		id: "F29", name: "a Cluster full of clients", on: []kind{cluster}, cycles: inSoak,
		begin: fillAll, end: undo,
		partial: true, may: inBetween,
	},
}

// moveSlots moves the slots of keys that are asked for, one after the other, and has questions come
// while each is on its way.
func moveSlots(to func(l *lab, slot int) *redistest.Server) func(*lab) {
	return func(l *lab) {
		moves := 8
		if soaking {
			moves = 40
		}
		halves := 0
		for range moves {
			slot := l.slotOf(l.current(l.rng))
			target := to(l, slot)
			l.check(l.to.cluster.Move(slot, slot, target, func(int) {
				halves++
				l.asksFor(40)
			}))
		}
		l.asksFor(100)
		l.Logf("counted: %d slots moved under load (%d stops on the way)", moves, halves)
	}
}

// ownPrimaries picks a primary that does not keep the slot.
func ownPrimaries(l *lab, slot int) *redistest.Server {
	owner, all := l.to.cluster.Owner(slot), l.to.cluster.Primaries()
	for {
		if s := all[l.rng.IntN(len(all))]; s != owner {
			return s
		}
	}
}

// newPrimary is a server that has joined the Cluster during the fault.
func newPrimary(l *lab, _ int) *redistest.Server {
	if l.group.heir == nil {
		s, err := l.to.cluster.Grow()
		l.check(err)
		l.group.heir = s
	}
	return l.group.heir
}

// alone has the victim without a replica.
func alone(l *lab) {
	g := l.choose()
	g.heir.Kill()
	g.openings = []string{g.victim.Addr}
}

func killAlone(l *lab) {
	for _, in := range l.load.instances {
		in.shards.Clear() // while an instance does not know the shards yet, they share a breaker
	}
	l.group.victim.Kill()
}

// restartAlone has the victim serve again: what it knew is forgotten.
func restartAlone(l *lab) {
	l.check(l.group.victim.Restart())
	if l.to.cluster == nil {
		return
	}
	l.check(l.to.wholeWithout(l.group.heir))
}

// othersDecide asks for keys of every shard: those of the dead one are answered without the store,
// the others by the store.
func othersDecide(l *lab) {
	l.await("the shard's breakers are open", func() bool {
		return l.every(func(i, _ int) bool { _, open := l.load.instances[i].shards.Load(l.group.victim.Addr); return open })
	})
	right, dead := 0, 0
	const asked = 300
	for i := range asked {
		charge := penstock.Charge{Key: fmt.Sprint("of any shard ", i), Limit: policies[closedPolicy].limit, Cost: 1}
		in := l.load.instances[i%instances]
		isDead := in.spy.Node([]penstock.Charge{charge}) == l.group.victim.Addr
		d, err := in.store.Decide(context.Background(), []penstock.Charge{charge})
		l.check(err)
		if isDead {
			dead++
		}
		if isDead == (d.Source == penstock.FromClosed) {
			right++
		}
	}
	if dead < asked/6 || dead > asked/2 || right < asked*9/10 {
		l.Errorf("of %d keys, %d of the dead shard, %d were answered by whom they should", asked, dead, right)
	}
	l.Logf("counted: %d keys of all shards asked for while one is dead (%d its own, %d answered by whom they should)", asked, dead, right)
}

// closedPolicy is the number of the policy that denies without the store.
var closedPolicy = slices.IndexFunc(policies[:], func(p policy) bool { return p.name == "closed" })

// stormOnAll closes all connections to all nodes, waits until instances are back, and so on.
func stormOnAll(l *lab) {
	kills := 5
	if soaking {
		kills = 50
	}
	received := func() (n int64) {
		for _, s := range l.to.servers {
			n += l.receivedBy(s)
		}
		return n
	}
	before := received()
	for range kills {
		l.onAll("CLIENT KILL TYPE normal")
		l.asksFor(60)
	}
	made := received() - before - int64(len(l.to.servers)*(kills+1)) // those of this function
	if most := int64((kills + 1) * instances * len(l.to.servers) * 2); made > most {
		l.Errorf("%d connections were made after all had been closed %d times; bound %d", made, kills, most)
	}
	l.Logf("counted: %d times all connections to a Cluster closed (%d dialled)", kills, made)
}

// victimAskedNothingOld checks that the server, when it came back, ran no script that was asked for
// earlier.
func victimAskedNothingOld(l *lab) {
	ran, _, err := l.group.victim.CommandStats("evalsha")
	l.check(err)
	if asked := l.reaches() - l.mark; ran > asked {
		l.Errorf("%d scripts ran since the server came back, and %d questions were asked", ran, asked)
	}
}

// fillAll has no node of a Cluster accept another client.
func fillAll(l *lab) {
	var all []func()
	for _, s := range l.to.servers {
		all = append(all, fillServer(l, s))
	}
	l.undo = func() {
		for _, empty := range all {
			empty()
		}
	}
}

// A batch of two limits of one key is two keys in Redis. While one has moved and the other not, no
// server can decide: it says so, and nothing is charged. Whatever else happens, both are charged or
// none, and once.
func TestLimitsOfAKeyAreChargedTogetherWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	store, err := redisstore.Open("redis+cluster://"+strings.Join(c.Addrs(), ","), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	const keys, plenty = 4, 1_000_000
	limits := []penstock.Limit{perDay(plenty, "one").With(penstock.FixedWindow), perDay(plenty, "two").With(penstock.FixedWindow)} // nothing comes back meanwhile
	batch := func(k int) (all []penstock.Charge) {
		for _, limit := range limits {
			all = append(all, penstock.Charge{Key: fmt.Sprint("k", k), Limit: limit, Cost: 1})
		}
		return all
	}
	var admitted, unready, unknown [keys]atomic.Int64
	var stopping atomic.Bool
	var all sync.WaitGroup
	ask := func(k int) {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		d, err := store.Decide(ctx, batch(k))
		e, failed := errors.AsType[*penstock.StoreError](err)
		switch {
		case err == nil && d.Allowed:
			admitted[k].Add(1)
		case failed && e.Reason == penstock.ReasonNotReady && strings.Contains(err.Error(), "TRYAGAIN"):
			unready[k].Add(1)
		case failed && e.MayBeCharged:
			unknown[k].Add(1)
		default:
			t.Errorf("key %d: %v, %v", k, d, err)
		}
	}
	for who := range 8 {
		all.Go(func() {
			for n := who; !stopping.Load(); n++ {
				ask(n % keys)
			}
		})
	}
	moves := 3
	if soaking {
		moves = 30
	}
	for m := range moves * keys {
		key, err := redisstore.KeyOf(batch(m % keys)[0], redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		slot, err := c.Slot(key)
		if err != nil {
			t.Fatal(err)
		}
		to := c.Nodes[(slices.Index(c.Nodes, c.Owner(slot))+1)%3]
		if err := c.Move(slot, slot, to, func(int) {
			for range 10 {
				ask(m % keys)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	stopping.Store(true)
	all.Wait()
	var asked, again int64
	for k := range keys {
		d, err := store.Decide(context.Background(), slices.Collect(func(yield func(penstock.Charge) bool) {
			for _, c := range batch(k) {
				c.Mode, c.Cost = penstock.Peek, 0
				yield(c)
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		one, two := plenty-d.Status(0).Remaining, plenty-d.Status(1).Remaining
		if sure := admitted[k].Load(); one != two || one < sure || one > sure+unknown[k].Load() {
			t.Errorf("key %d is charged %d times and %d times; %d calls were admitted, and of %d nobody knows", k, one, two, sure, unknown[k].Load())
		}
		asked += admitted[k].Load()
		again += unready[k].Load()
	}
	if again == 0 {
		t.Error("no call came while its keys were apart")
	}
	t.Logf("counted: %d batches decided while their slots moved %d times (%d came while their keys were apart)", asked, moves*keys, again)
}
