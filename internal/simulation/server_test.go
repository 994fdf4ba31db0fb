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

// A health says how a node of the store is.
type health uint8

const (
	well health = iota
	refusing
	hanging
)

// A server is the store: nodes that share the keys, and one clock that may be set. A batch that
// concerns several nodes is decided in one moment here; how a cluster does it is tested elsewhere.
type server struct {
	book *book

	mu    sync.Mutex
	ahead time.Duration // of the clock, before true time
	nodes []*node
	live  map[string]time.Time

	waiting []func() // requests that arrived while a node hung
}

type node struct {
	health health
	store  *memstore.Store
	now    time.Time // by which the store decides
	log    []entry   // what was asked, for a replica that lags
}

type entry struct {
	at      time.Time // true
	clock   time.Time // the server's
	charges []penstock.Charge
	granted bool // a denial may mend a state
}

func newServer(nodes int, ahead time.Duration, b *book) *server {
	s := &server{book: b, ahead: ahead, live: make(map[string]time.Time)}
	for range nodes {
		s.nodes = append(s.nodes, newNode())
	}
	return s
}

func newNode() *node {
	n := new(node)
	n.store = memstore.New(memstore.Options{Now: func() time.Time { return n.now }, Shards: 1})
	return n
}

// nodeOf is the number of the node that keeps a key.
func (s *server) nodeOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % uint32(len(s.nodes)))
}

// shard names the node of a batch; of one that concerns several, the first one's.
func (s *server) shard(charges []penstock.Charge) string {
	if len(charges) == 0 {
		return ""
	}
	return fmt.Sprint(s.nodeOf(charges[0].Key))
}

// healthOf is the worst health of the nodes of a batch.
func (s *server) healthOf(charges []penstock.Charge) health {
	s.mu.Lock()
	defer s.mu.Unlock()
	worst := well
	for i := range charges {
		worst = max(worst, s.nodes[s.nodeOf(charges[i].Key)].health)
	}
	return worst
}

// decide is what happens when a request arrives. The call is the one that the request is part of,
// or nil.
func (s *server) decide(c *call, charges []penstock.Charge) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.decideLocked(charges)
	if err != nil {
		return d, err
	}
	s.book.charged(c, charges, &d, s.clockLocked())
	at, clock := time.Now(), s.clockLocked()
	for i, n := range s.nodes {
		mine := slices.DeleteFunc(slices.Clone(charges), func(c penstock.Charge) bool { return c.Mode == penstock.Peek || s.nodeOf(c.Key) != i })
		if len(mine) > 0 && (d.Allowed || len(mine) == len(charges)) { // what others denied would be granted when this is played again
			n.log = append(n.log, entry{at, clock, mine, d.Allowed})
		}
	}
	return d, nil
}

func (s *server) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clockLocked()
}

func (s *server) clockLocked() time.Time { return time.Now().Add(s.ahead) }

func (s *server) decideLocked(charges []penstock.Charge) (penstock.Decision, error) {
	first := s.nodeOf(charges[0].Key)
	alone := !slices.ContainsFunc(charges, func(c penstock.Charge) bool { return s.nodeOf(c.Key) != first })
	if alone {
		return s.nodes[first].decide(s.clockLocked(), charges)
	}
	asked := slices.Clone(charges)
	for i := range asked {
		switch c := &asked[i]; c.Mode {
		case penstock.Draw:
			c.Mode, c.Cost = penstock.Peek, min(c.Cost, 1)
		case penstock.Spend:
			c.Mode = penstock.Peek
		case penstock.Force, penstock.Refund, penstock.Reset:
			c.Mode, c.Cost = penstock.Peek, 0
		}
	}
	d, err := s.eachLocked(asked)
	if err != nil || !d.Allowed {
		return d, err
	}
	return s.eachLocked(charges)
}

// eachLocked decides charges one by one.
func (s *server) eachLocked(charges []penstock.Charge) (penstock.Decision, error) {
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

// would tells what the store would decide now, health aside.
func (s *server) would(charges []penstock.Charge) penstock.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := slices.Clone(charges)
	for i := range asked {
		if asked[i].Mode == penstock.Draw {
			asked[i].Cost = min(asked[i].Cost, 1)
		}
		asked[i].Mode = penstock.Peek
	}
	d, err := s.eachLocked(asked)
	if err != nil {
		panic(err)
	}
	return d
}

// note counts the instances that are there, as Live of redisstore does.
func (s *server) note(instance string, life time.Duration) int {
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

// set changes a node's health. What waits for a node that hung is done; what waits for a process
// that was killed is lost.
func (s *server) set(n int, h health) {
	s.mu.Lock()
	killed := s.nodes[n].health == hanging && h == refusing
	s.nodes[n].health = h
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	if !killed {
		for _, do := range waiting {
			do()
		}
	}
}

// step sets the clock.
func (s *server) step(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += by
	s.book.stepped(by)
}

// forget has a node lose all of its state.
func (s *server) forget(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := newNode()
	fresh.health = s.nodes[n].health
	s.nodes[n] = fresh
	if n == 0 {
		clear(s.live)
	}
	s.book.forgave(func(key string) bool { return s.nodeOf(key) == n })
}

// failOver has a node go back to the state that it had so long ago.
func (s *server) failOver(n int, lag time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, fresh := s.nodes[n], newNode()
	fresh.health = old.health
	since := time.Now().Add(-lag)
	for _, e := range old.log {
		if e.at.After(since) {
			if e.granted {
				s.book.undid(e.charges)
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

// base is the key that a shard's key was made of.
func base(key string) string {
	key, _, _ = strings.Cut(key, "~")
	return key
}

// arrive does what a request asks for, and tells whether it is answered: a server that hangs does
// it when it goes on.
func (s *server) arrive(charges []penstock.Charge, do func() error) (answered bool, err error) {
	switch s.healthOf(charges) {
	case refusing:
		return true, errRefused
	case hanging:
		s.mu.Lock()
		s.waiting = append(s.waiting, func() { s.arrive(charges, do) })
		s.mu.Unlock()
		return false, nil
	}
	return true, do()
}

// keyOf is a key that a node keeps.
func (s *server) keyOf(n int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("node", i); s.nodeOf(key) == n {
			return key
		}
	}
}
