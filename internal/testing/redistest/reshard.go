package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Slot returns the slot of a key, as the first node that is up computes it.
func (c *Cluster) Slot(key string) (int, error) {
	err := errors.New("redistest: no node answers")
	for _, n := range c.Nodes {
		var slot any
		if slot, err = n.Do("CLUSTER", "KEYSLOT", key); err == nil {
			return int(slot.(int64)), nil
		}
	}
	return 0, err
}

// Owner returns the primary that claims the slot, or nil if none does.
func (c *Cluster) Owner(slot int) *Server {
	for _, p := range c.Primaries() {
		if me, err := p.readMembership(); err == nil && me.hasSlot(slot) {
			return p
		}
	}
	return nil
}

// Replica returns a node that follows the primary, or nil if none does. The primary may be down.
func (c *Cluster) Replica(of *Server) *Server {
	id := of.id()
	for _, n := range c.Nodes {
		if me, err := n.readMembership(); err == nil && me.primaryID == id {
			return n
		}
	}
	return nil
}

// Grow adds a primary that has no slots, no replica and no scripts. It returns when all nodes know
// the new primary, and the new primary sees all slots served.
func (c *Cluster) Grow() (*Server, error) {
	if c.proxies != nil {
		if err := c.addProxied(); err != nil {
			return nil, err
		}
	} else {
		s, err := launch(clusterNode)
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, s)
	}
	last := len(c.Nodes) - 1
	added, addrs := c.Nodes[last], c.Addrs()
	if _, err := added.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(len(c.Nodes))); err != nil {
		return nil, err
	}
	for i := range last {
		if _, err := added.Do("CLUSTER", "MEET", "127.0.0.1", portOf(addrs[i]), c.busPort(i)); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes {
		err := await(readyTimeout, func() error {
			known, err := n.Do("CLUSTER", "NODES")
			text := fmt.Sprint(known)
			if err == nil && (!strings.Contains(text, added.id()) || strings.Contains(text, "handshake")) {
				err = errors.New("a node does not know the new node yet")
			}
			return err
		})
		if err != nil {
			return nil, n.explain(err)
		}
	}
	return added, await(readyTimeout, func() error {
		state, err := added.Do("CLUSTER", "INFO")
		if err == nil && fieldsOf(state)["cluster_state"] != "ok" {
			err = errors.New("the new node does not see all slots served yet")
		}
		return err
	})
}

// Move moves the slots from first to last, with their keys, to another primary. Clients may
// continue during the move. If duringMove is not nil, Move calls it during the move of each slot:
// once before the first key moves, and once after each key.
func (c *Cluster) Move(first, last int, to *Server, duringMove func(slot int)) error {
	if duringMove == nil {
		duringMove = func(int) {}
	}
	for slot := first; slot <= last; slot++ {
		if from := c.Owner(slot); from == nil {
			return fmt.Errorf("redistest: no node has slot %d", slot)
		} else if from != to {
			if err := c.move(slot, from, to, duringMove); err != nil {
				return fmt.Errorf("redistest: move slot %d: %w", slot, err)
			}
		}
	}
	return nil
}

func (c *Cluster) move(slot int, from, to *Server, duringMove func(int)) error {
	number := strconv.Itoa(slot)
	if _, err := to.Do("CLUSTER", "SETSLOT", number, "IMPORTING", from.id()); err != nil {
		return err
	}
	if _, err := from.Do("CLUSTER", "SETSLOT", number, "MIGRATING", to.id()); err != nil {
		return err
	}
	duringMove(slot)
	for {
		reply, err := from.Do("CLUSTER", "GETKEYSINSLOT", number, "1")
		if err != nil {
			return err
		}
		keys, _ := reply.([]any)
		if len(keys) == 0 {
			break
		}
		const database, timeout = "0", "5000" // timeout in ms
		if _, err := from.Do("MIGRATE", "127.0.0.1", portOf(to.Addr), keys[0].(string), database, timeout); err != nil {
			return err
		}
		duringMove(slot)
	}
	others := slices.DeleteFunc(c.Primaries(), func(n *Server) bool { return n == to || n == from })
	for _, n := range append([]*Server{to, from}, others...) { // the new owner first, so that the slot always has an owner
		if _, err := n.Do("CLUSTER", "SETSLOT", number, "NODE", to.id()); err != nil {
			return err
		}
	}
	return nil
}

// id returns the node's ID in its cluster. It is cached, because a node that is down cannot report
// it.
func (s *Server) id() string {
	s.mu.Lock()
	known := s.clusterID
	s.mu.Unlock()
	if known != "" {
		return known
	}
	reply, _ := s.Do("CLUSTER", "MYID")
	known, _ = reply.(string)
	s.mu.Lock()
	s.clusterID = known
	s.mu.Unlock()
	return known
}

// A membership is the place of a node in its cluster, as the node reports it.
type membership struct {
	primaryID string   // of a replica: the ID of its primary; "" for a primary
	ranges    [][2]int // the slots of a primary: first and last of each range
}

// readMembership reads the node's own line of CLUSTER NODES. The words of this line are: ID,
// address, flags, primary's ID or "-", four more, and then the ranges of slots.
func (s *Server) readMembership() (membership, error) {
	reply, err := s.Do("CLUSTER", "NODES")
	if err != nil {
		return membership{}, err
	}
	for line := range strings.Lines(fmt.Sprint(reply)) {
		words := strings.Fields(line)
		if len(words) < 8 || !strings.Contains(words[2], "myself") {
			continue
		}
		var me membership
		if words[3] != "-" {
			me.primaryID = words[3]
		}
		for _, r := range words[8:] {
			first, last, found := strings.Cut(r, "-")
			if strings.HasPrefix(r, "[") {
				continue // a slot that is moving
			}
			if !found {
				last = first
			}
			from, err1 := strconv.Atoi(first)
			to, err2 := strconv.Atoi(last)
			if err := errors.Join(err1, err2); err != nil {
				return me, err
			}
			me.ranges = append(me.ranges, [2]int{from, to})
		}
		return me, nil
	}
	return membership{}, fmt.Errorf("redistest: CLUSTER NODES does not contain the node itself: %v", reply)
}

func (m membership) hasSlot(slot int) bool {
	return slices.ContainsFunc(m.ranges, func(r [2]int) bool { return r[0] <= slot && slot <= r[1] })
}
