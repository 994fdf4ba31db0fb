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
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// The slots of a Cluster move, or no node has them.
var reshards = []fault{
	{
		id: "F8", name: "slots move back and forth", on: []kind{cluster}, cycles: inSoak,
		deadline: patient,
		begin:    noop, meanwhile: moveSlots(otherPrimary), end: noop,
		decidedBy: byStore,
		finally:   checkNoError,
	},
	{
		id: "F12", name: "slots move to a server without scripts", on: []kind{cluster}, cycles: 1, rounds: inSoak,
		deadline: patient,
		begin:    noop, meanwhile: moveSlots(newPrimary), end: noop,
		decidedBy: byStore,
		finally:   checkNoError,
	},
	{
		id: "F9", name: "a shard is down, and the Cluster continues without it", on: []kind{cluster}, cycles: inSoak,
		deadline: patient,
		prepare:  func(e *experiment) { e.onAll("CONFIG SET cluster-require-full-coverage no"); removeReplica(e) },
		begin:    killVictim, meanwhile: othersDecide, end: restartVictim,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
		dataLosses: 1,
		finally:    checkOpenedBreakers,
	},
	{
		id: "F9", name: "a shard is down, and so is the Cluster", on: []kind{cluster}, cycles: inSoak,
		prepare: removeReplica,
		begin:   killVictim, end: restartVictim,
		isPartial: true, wantErrors: duringTakeover,
		dataLosses: 1,
	},
	{
		id: "F24", name: "all connections to a Cluster closed, again and again", on: []kind{cluster}, cycles: inSoak,
		begin: noop, meanwhile: closeConnectionsToAll, end: noop,
		decidedBy: byAnySource,
	},
	{
		id: "F25", name: "many callers after an outage of the only primary", on: groups, cycles: inSoak,
		callers: 8,
		prepare: removeReplica,
		begin:   killVictim, meanwhile: forRequests(2000),
		end:       func(e *experiment) { e.oldCalls = e.storeCalls(); restartVictim(e) },
		isPartial: true, mayHaveErrors: duringTakeover,
		dataLosses: 1,
		finally:    checkVictimRanNothingOld,
	},
	{
		id: "F29", name: "maxclients reached on a Cluster", on: []kind{cluster}, cycles: inSoak,
		begin: fillAll, end: undo,
		isPartial: true, mayHaveErrors: duringTakeover,
	},
}

// moveSlots moves the slots of keys in use, one after another, and waits for requests during each
// move.
func moveSlots(to func(e *experiment, slot int) *redistest.Server) func(*experiment) {
	return func(e *experiment) {
		moves := 8
		if isSoak {
			moves = 40
		}
		pauses := 0
		for range moves {
			slot := e.slotOf(e.currentKey(e.rng))
			target := to(e, slot)
			e.must(e.target.cluster.Move(slot, slot, target, func(int) { // while the slot has keys on two nodes
				pauses++
				e.awaitRequests(40)
			}))
		}
		e.awaitRequests(100)
		e.Logf("counted: %d slots moved under load (%d pauses during moves)", moves, pauses)
	}
}

// otherPrimary picks a primary that does not have the slot.
func otherPrimary(e *experiment, slot int) *redistest.Server {
	owner, all := e.target.cluster.Owner(slot), e.target.cluster.Primaries()
	for {
		if s := all[e.rng.IntN(len(all))]; s != owner {
			return s
		}
	}
}

// newPrimary returns a server that joins the Cluster during the fault.
func newPrimary(e *experiment, _ int) *redistest.Server {
	if e.group.successor == nil {
		s, err := e.target.cluster.Grow()
		e.must(err)
		e.group.successor = s
	}
	return e.group.successor
}

// removeReplica removes the victim's replica.
func removeReplica(e *experiment) {
	g := e.chooseVictim()
	g.successor.Kill()
	g.openings = []string{g.victim.Addr}
}

func killVictim(e *experiment) {
	for _, in := range e.load.instances {
		in.nodes.Clear() // at the start, all nodes share one breaker, whose openings do not count
	}
	e.group.victim.Kill()
}

// restartVictim restarts the victim without its data.
func restartVictim(e *experiment) {
	e.must(e.group.victim.Restart())
	if e.target.cluster == nil {
		return
	}
	e.must(e.target.awaitSlotsWithout(e.group.successor))
}

// othersDecide sends requests for keys of every shard. Fallbacks must decide the requests for the
// dead shard, and the store the others.
func othersDecide(e *experiment) {
	e.await("the breakers of the shard to open", func() bool {
		return e.every(func(i, _ int) bool {
			_, hasOpened := e.load.instances[i].nodes.Load(e.group.victim.Addr)
			return hasOpened
		})
	})
	byRightSource, dead := 0, 0 // requests with the source that they should have; requests for the dead shard
	const calls = 300
	for i := range calls {
		charge := penstock.Charge{Key: fmt.Sprint("of any shard ", i), Plan: guardedLimits[closedLimit].plan, Cost: 1}
		in := e.load.instances[i%instances]
		isDead := in.spy.Node([]penstock.Charge{charge}) == e.group.victim.Addr
		d, err := in.store.Decide(context.Background(), []penstock.Charge{charge})
		e.must(err)
		if isDead {
			dead++
		}
		if isDead == (d.Source == penstock.FromClosed) {
			byRightSource++
		}
	}
	if dead < calls/6 || dead > calls/2 || byRightSource < calls*9/10 { // the dead shard should have a third of the keys
		e.Errorf("of %d keys, %d are on the dead shard, and %d had the right source; want %d to %d, and at least %d",
			calls, dead, byRightSource, calls/6, calls/2, calls*9/10)
	}
	e.Logf("counted: %d keys of all shards used while one is dead (%d on the dead shard, %d with the right source)", calls, dead, byRightSource)
}

// closedLimit is the index of the limit that denies without the store.
var closedLimit = slices.IndexFunc(guardedLimits[:], func(l guardedLimit) bool { return l.name == "closed" })

// closeConnectionsToAll closes all connections to all nodes repeatedly, each time after the
// instances have reconnected.
func closeConnectionsToAll(e *experiment) {
	kills := 5
	if isSoak {
		kills = 50
	}
	countAccepted := func() (n int64) {
		for _, s := range e.target.servers {
			n += e.countAcceptedBy(s)
		}
		return n
	}
	before := countAccepted()
	for range kills {
		e.onAll("CLIENT KILL TYPE normal")
		e.awaitRequests(60)
	}
	dialed := countAccepted() - before - int64(len(e.target.servers)*(kills+1)) // without the connections of this function itself
	const perNode = 2                                                           // connections from an instance to a node
	if most := int64((kills + 1) * instances * len(e.target.servers) * perNode); dialed > most {
		e.Errorf("%d connections were dialed after all had been closed %d times; want at most %d", dialed, kills, most)
	}
	e.Logf("counted: %d times all connections closed (to a Cluster; %d dialed)", kills, dialed)
}

// checkVictimRanNothingOld checks that the victim ran no script of calls from before its restart.
func checkVictimRanNothingOld(e *experiment) {
	ran, _, err := e.group.victim.CommandStats("evalsha")
	e.must(err)
	if calls := e.storeCalls() - e.oldCalls; ran > calls {
		e.Errorf("%d scripts ran since the server restarted, for %d calls; want no more scripts than calls", ran, calls)
	}
}

// fillAll makes every node of a Cluster reject further clients.
func fillAll(e *experiment) {
	var all []func()
	for _, s := range e.target.servers {
		all = append(all, fillServer(e, s))
	}
	e.undo = func() {
		for _, release := range all {
			release()
		}
	}
}

// A batch with two limits of one key has two keys in Redis. While only one of these has moved, no
// server can decide the batch. Then the batch fails, and nothing is charged. In all other cases,
// both limits are charged once, or none is charged.
func TestLimitsOfAKeyAreChargedTogetherWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	store, err := redisstore.Open("redis+cluster://"+strings.Join(c.Addrs(), ","), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	const keys, plenty = 4, 1_000_000
	limits := []penstock.Limit{perDay(plenty, "one").Limit().With(penstock.FixedWindow), perDay(plenty, "two").Limit().With(penstock.FixedWindow)} // nothing refills during the test
	batch := func(k int) (all []penstock.Charge) {
		for _, limit := range limits {
			all = append(all, penstock.Charge{Key: fmt.Sprint("k", k), Plan: limit.MustCompile(), Cost: 1})
		}
		return all
	}
	var admitted, refused, unknown [keys]atomic.Int64 // calls by key; refused: with the reply TRYAGAIN
	var isStopping atomic.Bool
	var callers sync.WaitGroup
	decide := func(k int) {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		d, err := store.Decide(ctx, batch(k))
		e, failed := errors.AsType[*penstock.StoreError](err)
		switch {
		case err == nil && d.Allowed:
			admitted[k].Add(1)
		case failed && e.Reason == penstock.ReasonNotReady && strings.Contains(err.Error(), "TRYAGAIN"):
			refused[k].Add(1)
		case failed && e.MayBeCharged:
			unknown[k].Add(1)
		default:
			t.Errorf("key %d: %v, %v; want an admission, TRYAGAIN or an unknown outcome", k, d, err)
		}
	}
	const concurrent = 8 // callers
	for caller := range concurrent {
		callers.Go(func() {
			for n := caller; !isStopping.Load(); n++ {
				decide(n % keys)
			}
		})
	}
	moves := 3
	if isSoak {
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
		const primaries = 3 // the first nodes of the Cluster
		to := c.Nodes[(slices.Index(c.Nodes, c.Owner(slot))+1)%primaries]
		if err := c.Move(slot, slot, to, func(int) {
			for range 10 {
				decide(m % keys)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	isStopping.Store(true)
	callers.Wait()
	var calls, tryAgains int64 // tryAgains: number of replies TRYAGAIN
	for k := range keys {
		peeks := batch(k)
		for i := range peeks {
			peeks[i].Mode, peeks[i].Cost = penstock.Peek, 0
		}
		d, err := store.Decide(context.Background(), peeks)
		if err != nil {
			t.Fatal(err)
		}
		one, two := plenty-d.Status(0).Remaining, plenty-d.Status(1).Remaining
		if known := admitted[k].Load(); one != two || one < known || one > known+unknown[k].Load() {
			t.Errorf("the limits of key %d are charged %d and %d times; want the same number for both: %d for admitted calls, and at most %d more for calls of unknown outcome",
				k, one, two, known, unknown[k].Load())
		}
		calls += admitted[k].Load()
		tryAgains += refused[k].Load()
	}
	if tryAgains == 0 {
		t.Error("no call arrived while its keys were on different nodes; want some, because otherwise the test proves nothing")
	}
	t.Logf("counted: %d batches decided while their slots moved %d times (%d arrived while their keys were on different nodes)", calls, moves*keys, tryAgains)
}
