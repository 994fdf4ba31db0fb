package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Promote makes a replica the primary of its slots while both are up. It returns when both have
// their new roles.
func (c *Cluster) Promote(replica *Server) error {
	me, err := replica.readMembership()
	if err != nil {
		return err
	}
	if _, err := replica.Do("CLUSTER", "FAILOVER"); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if n.id() != me.primaryID {
			continue
		}
		if err := replica.awaitRole("master"); err != nil {
			return err
		}
		return n.awaitRole("slave")
	}
	return fmt.Errorf("redistest: no node is the primary of %s", replica.Addr)
}

// AwaitPromotion returns when the node has become a primary.
func (s *Server) AwaitPromotion() error { return s.awaitRole("master") }

// awaitRole returns when the server has this role: "master" or "slave".
func (s *Server) awaitRole(role string) error {
	err := await(readyTimeout, func() error {
		reply, err := s.Do("ROLE")
		if list, ok := reply.([]any); ok && list[0] != role {
			err = fmt.Errorf("the role is %v; want %s", list[0], role)
		}
		return err
	})
	if err != nil {
		return s.explain(err)
	}
	return nil
}

// CatchUp returns when this replica has received all writes that the primary has made so far.
func (s *Server) CatchUp(primary *Server) error {
	target, err := primary.offset("master_repl_offset")
	if err != nil {
		return err
	}
	err = await(readyTimeout, func() error {
		replicated, err := s.offset("slave_repl_offset")
		if err == nil && replicated < target {
			err = fmt.Errorf("the replica is at offset %d; want at least %d, where its primary was", replicated, target)
		}
		return err
	})
	if err != nil {
		return s.explain(err)
	}
	return nil
}

// offset returns a field of INFO replication that is a number.
func (s *Server) offset(name string) (int64, error) {
	fields, err := s.info("replication")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(fields[name], 10, 64)
}

// Failover makes the Sentinels promote the replica while both are up. It returns when all Sentinels
// name the new primary. Primary and Replica are then swapped. From then on, the Sentinels tolerate
// a server that is silent for a minute: on a busy machine, they would swap the servers again.
func (s *SentinelGroup) Failover() error {
	if err := s.Tolerate(time.Minute); err != nil {
		return err
	}
	err := await(readyTimeout, func() error {
		_, err := s.Sentinels[0].Do("SENTINEL", "FAILOVER", MasterName)
		if err == nil || strings.HasPrefix(err.Error(), "NOGOODSLAVE") { // the Sentinel does not know the replica yet
			return err
		}
		return permanentError{err}
	})
	if err != nil {
		return err
	}
	return s.AwaitFailover()
}

// AwaitFailover waits until the replica is the primary and all Sentinels report it. Primary and
// Replica are then swapped.
func (s *SentinelGroup) AwaitFailover() error {
	if err := s.Replica.AwaitPromotion(); err != nil {
		return err
	}
	for _, sentinel := range s.Sentinels {
		err := await(readyTimeout, func() error { return sentinel.checkPrimaryAddr(s.addrOf(s.Replica)) })
		if err != nil {
			return sentinel.explain(err)
		}
	}
	s.Primary, s.Replica = s.Replica, s.Primary
	return nil
}

// checkPrimaryAddr returns nil if this Sentinel reports addr as the primary's address. It compares
// only the ports.
func (s *Server) checkPrimaryAddr(addr string) error {
	reply, err := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
	if err != nil {
		return err
	}
	if list, ok := reply.([]any); !ok || fmt.Sprint(list[1]) != portOf(addr) { // host, port
		return fmt.Errorf("the Sentinel reports the primary %v; want %s", reply, addr)
	}
	return nil
}

// Announce makes all Sentinels watch the primary at another address, as if the primary had moved.
// The Sentinels publish no failover event for this.
func (s *SentinelGroup) Announce(addr string) error {
	for _, sentinel := range s.Sentinels {
		for _, command := range [][]string{
			{"SENTINEL", "REMOVE", MasterName},
			{"SENTINEL", "MONITOR", MasterName, "127.0.0.1", portOf(addr), quorum},
			{"SENTINEL", "SET", MasterName, "down-after-milliseconds", downAfterMillis},
			{"SENTINEL", "SET", MasterName, "failover-timeout", failoverTimeoutMillis},
		} {
			if _, err := sentinel.Do(command...); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tolerate sets down-after-milliseconds in all Sentinels. Use it before CLIENT PAUSE WRITE. CLIENT
// PAUSE WRITE delays the PUBLISH of the Sentinels and the PINGs after the PUBLISH, so the Sentinels
// would report the primary as down.
func (s *SentinelGroup) Tolerate(silence time.Duration) error {
	for _, sentinel := range s.Sentinels {
		if _, err := sentinel.Do("SENTINEL", "SET", MasterName, "down-after-milliseconds", fmt.Sprint(silence.Milliseconds())); err != nil {
			return err
		}
	}
	return nil
}

// Rejoin makes the old primary a replica of the new one, and restarts the old primary if it is
// down. Rejoin returns when the Sentinels report both as healthy.
func (s *SentinelGroup) Rejoin() error {
	if err := s.Replica.revive(); err != nil {
		return err
	}
	if _, err := s.Replica.Do("REPLICAOF", "127.0.0.1", portOf(s.addrOf(s.Primary))); err != nil {
		return err
	}
	if err := await(readyTimeout, s.Replica.checkInSync); err != nil {
		return s.Replica.explain(err)
	}
	for _, sentinel := range s.Sentinels {
		if err := await(readyTimeout, sentinel.checkSentinelReady); err != nil {
			return sentinel.explain(err)
		}
	}
	return nil
}

// Demote swaps Primary and Replica without a failover by the Sentinels. Then it sets the address of
// the new primary in the Sentinels. Clients of the old primary stay connected.
func (s *SentinelGroup) Demote() error {
	if _, err := s.Replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
		return err
	}
	if _, err := s.Primary.Do("REPLICAOF", "127.0.0.1", portOf(s.addrOf(s.Replica))); err != nil {
		return err
	}
	s.Primary, s.Replica = s.Replica, s.Primary
	return s.Announce(s.addrOf(s.Primary))
}

// AwaitAllSlots returns when all nodes see all slots served.
func (c *Cluster) AwaitAllSlots() error {
	for _, n := range c.Nodes {
		err := await(readyTimeout, func() error {
			state, err := n.Do("CLUSTER", "INFO")
			if err == nil && fieldsOf(state)["cluster_state"] != "ok" {
				err = errors.New("a node does not see all slots served")
			}
			return err
		})
		if err != nil {
			return n.explain(err)
		}
	}
	return nil
}

// revive restarts a server if it is down.
func (s *Server) revive() error {
	if _, done := s.process(); !isClosed(done) {
		return nil
	}
	return s.Restart()
}

// Readdress moves the primary to another address, and sets that address in the Sentinels. The
// Sentinels publish no failover event for this change. The group must be proxied: the primary gets
// a new proxy.
func (s *SentinelGroup) Readdress() error {
	p, err := NewProxy("tcp", s.Primary.Addr)
	if err != nil {
		return err
	}
	old := s.proxies[s.Primary]
	s.proxies[s.Primary] = p
	if err := s.Announce(p.Addr()); err != nil {
		return err
	}
	old.Close()
	_, err = s.Replica.Do("REPLICAOF", "127.0.0.1", portOf(p.Addr()))
	return err
}

// Readdress moves a node to another address. It returns when all other nodes know the new address.
// The cluster must be proxied: the node gets a new proxy.
func (c *Cluster) Readdress(n *Server) error {
	p, err := NewProxy("tcp", n.Addr)
	if err != nil {
		return err
	}
	i := slices.Index(c.Nodes, n)
	old := c.proxies[i]
	c.proxies[i] = p
	if _, err := n.Do("CONFIG", "SET", "cluster-announce-port", portOf(p.Addr())); err != nil {
		return err
	}
	for _, other := range c.Nodes {
		err := await(readyTimeout, func() error {
			known, err := other.Do("CLUSTER", "NODES")
			if err == nil && !strings.Contains(fmt.Sprint(known), ":"+portOf(p.Addr())+"@") {
				err = errors.New("a node does not know the new address")
			}
			return err
		})
		if err != nil {
			return other.explain(err)
		}
	}
	old.Close()
	return nil
}
