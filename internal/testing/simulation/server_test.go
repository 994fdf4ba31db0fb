package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

// A health is the state of a node.
type health uint8

const (
	healthy health = iota
	refusing
	hanging
)

// A server is the store: nodes that share the keys, and one clock that may be set. A batch is
// decided atomically, even if its keys are on several nodes. (A real Cluster does not; the tests of
// redisstore cover that.)
type server struct {
	history *history

	mu         sync.Mutex
	clockAhead time.Duration // how far the clock is ahead of true time
	nodes      []*node
	live       map[string]time.Time // by instance: when its heartbeat expires

	waiting []func() // requests that arrived while a node was hanging
}

type node struct {
	health health
	store  *memstore.Store
	now    time.Time // the present by the clock of the store
	log    []entry   // decided batches, for a failover to a replica that lags
}

// An entry is a decided batch in the log of a node.
type entry struct {
	at        time.Time // by the true clock
	clock     time.Time // by the server's clock
	charges   []penstock.Charge
	isGranted bool // denied batches are logged too: they may repair a state
}

func newServer(nodes int, clockAhead time.Duration, h *history) *server {
	s := &server{history: h, clockAhead: clockAhead, live: make(map[string]time.Time)}
	for range nodes {
		s.nodes = append(s.nodes, newNode())
	}
	return s
}

func newNode() *node {
	n := new(node)
	n.store = memstore.New(memstore.Options{Now: func() time.Time { return n.now }, Locks: 1})
	return n
}

// nodeOf returns the number of the node that has a key.
func (s *server) nodeOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % uint32(len(s.nodes)))
}

// nodeName names the node of a batch: that of its first key.
func (s *server) nodeName(charges []penstock.Charge) string {
	if len(charges) == 0 {
		return ""
	}
	return fmt.Sprint(s.nodeOf(charges[0].Key))
}

// healthOf returns the worst health of the nodes of a batch.
func (s *server) healthOf(charges []penstock.Charge) health {
	s.mu.Lock()
	defer s.mu.Unlock()
	worst := healthy
	for i := range charges {
		worst = max(worst, s.nodes[s.nodeOf(charges[i].Key)].health)
	}
	return worst
}

// decide handles a request. The request is part of the call c, or c is nil.
func (s *server) decide(c *call, charges []penstock.Charge) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.decideLocked(charges)
	if err != nil {
		return d, err
	}
	s.history.recordCharge(c, charges, &d, s.clockLocked())
	at, clock := time.Now(), s.clockLocked()
	for i, n := range s.nodes {
		var own []penstock.Charge // charges of this node that may change its state
		for _, charge := range charges {
			if charge.Mode != penstock.Peek && s.nodeOf(charge.Key) == i {
				own = append(own, charge)
			}
		}
		// If another node denied the batch, a replay of this node's charges alone would grant them.
		isComplete := len(own) == len(charges)
		if len(own) > 0 && (d.Allowed || isComplete) {
			n.log = append(n.log, entry{at: at, clock: clock, charges: own, isGranted: d.Allowed})
		}
	}
	return d, nil
}

func (s *server) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clockLocked()
}

func (s *server) clockLocked() time.Time { return time.Now().Add(s.clockAhead) }

// decideLocked decides a batch. If its keys are on several nodes, it first peeks whether all nodes
// would grant their charges.
func (s *server) decideLocked(charges []penstock.Charge) (penstock.Decision, error) {
	first := s.nodeOf(charges[0].Key)
	isSingleNode := !slices.ContainsFunc(charges, func(c penstock.Charge) bool { return s.nodeOf(c.Key) != first })
	if isSingleNode {
		return s.nodes[first].decide(s.clockLocked(), charges)
	}
	peeks := slices.Clone(charges)
	for i := range peeks {
		switch c := &peeks[i]; c.Mode {
		case penstock.Draw:
			c.Mode, c.Cost = penstock.Peek, min(c.Cost, 1)
		case penstock.Spend:
			c.Mode = penstock.Peek
		case penstock.Force, penstock.Refund, penstock.Reset:
			c.Mode, c.Cost = penstock.Peek, 0
		}
	}
	d, err := s.decideEachLocked(peeks)
	if err != nil || !d.Allowed {
		return d, err
	}
	return s.decideEachLocked(charges)
}

// decideEachLocked decides each charge separately.
func (s *server) decideEachLocked(charges []penstock.Charge) (penstock.Decision, error) {
	statuses := make([]penstock.Status, len(charges))
	for i, c := range charges {
		d, err := s.nodes[s.nodeOf(c.Key)].decide(s.clockLocked(), []penstock.Charge{c})
		if err != nil {
			return d, err
		}
		statuses[i] = d.Status(0)
	}
	return penstock.NewDecision(statuses), nil
}

func (n *node) decide(now time.Time, charges []penstock.Charge) (penstock.Decision, error) {
	n.now = now
	return n.store.Decide(context.Background(), charges)
}

// peek returns the decision that the store would make now if all nodes were healthy.
func (s *server) peek(charges []penstock.Charge) penstock.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	peeks := slices.Clone(charges)
	for i := range peeks {
		if peeks[i].Mode == penstock.Draw {
			peeks[i].Cost = min(peeks[i].Cost, 1)
		}
		peeks[i].Mode = penstock.Peek
	}
	d, err := s.decideEachLocked(peeks)
	if err != nil {
		panic(err)
	}
	return d
}

// heartbeat counts the live instances, like Heartbeat of redisstore.
func (s *server) heartbeat(instance string, life time.Duration) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clockLocked()
	if life > 0 {
		s.live[instance] = now.Add(life)
	} else {
		delete(s.live, instance)
	}
	for other, until := range s.live {
		if until.Before(now) {
			delete(s.live, other)
		}
	}
	return len(s.live)
}

// setHealth changes a node's health. Then it handles the requests that waited for a hanging node.
// If the hanging node was killed, these requests are lost.
func (s *server) setHealth(n int, h health) {
	s.mu.Lock()
	wasKilled := s.nodes[n].health == hanging && h == refusing
	s.nodes[n].health = h
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	if !wasKilled {
		for _, do := range waiting {
			do()
		}
	}
}

// stepClock moves the clock.
func (s *server) stepClock(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clockAhead += by
	s.history.recordClockStep(by)
}

// loseData makes a node lose all its data.
func (s *server) loseData(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := newNode()
	fresh.health = s.nodes[n].health
	s.nodes[n] = fresh
	if n == 0 {
		clear(s.live)
	}
	s.history.creditAll(func(key string) bool { return s.nodeOf(key) == n })
}

// failOver makes a node return to its state of some time ago, like a replica with this lag.
func (s *server) failOver(n int, lag time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, fresh := s.nodes[n], newNode()
	fresh.health = old.health
	since := time.Now().Add(-lag)
	for _, e := range old.log {
		if e.at.After(since) {
			if e.isGranted {
				s.history.creditUndone(e.charges)
			}
			continue
		}
		if _, err := fresh.decide(e.clock, e.charges); err != nil {
			panic(err)
		}
		fresh.log = append(fresh.log, e)
	}
	s.nodes[n] = fresh
}

// baseKey returns the key from which guard.Split has made the key of a shard.
func baseKey(key string) string {
	key, _, _ = strings.Cut(key, "~")
	return key
}

// handle runs a request. hasReply is true if the request gets a reply. A hanging server runs the
// request when it continues.
func (s *server) handle(charges []penstock.Charge, do func() error) (hasReply bool, err error) {
	switch s.healthOf(charges) {
	case refusing:
		return true, errRefused
	case hanging:
		s.mu.Lock()
		s.waiting = append(s.waiting, func() { s.handle(charges, do) })
		s.mu.Unlock()
		return false, nil
	}
	return true, do()
}

// keyOf returns a key that a node has.
func (s *server) keyOf(n int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("node", i); s.nodeOf(key) == n {
			return key
		}
	}
}
