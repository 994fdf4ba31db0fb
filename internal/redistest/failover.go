package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Promote makes a replica the primary of its slots while both are well, and
// returns when both say so.
func (c *Cluster) Promote(replica *Server) error {
	me, err := replica.myself()
	if err != nil {
		return err
	}
	if _, err := replica.Do("CLUSTER", "FAILOVER"); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if n.id() != me.follows {
			continue
		}
		if err := replica.await("master"); err != nil {
			return err
		}
		return n.await("slave")
	}
	return fmt.Errorf("redistest: the primary of %s is none of the nodes", replica.Addr)
}

// Promoted returns when the node has become a primary.
func (s *Server) Promoted() error { return s.await("master") }

// await returns when the server has this role.
func (s *Server) await(role string) error {
	err := await(readyLimit, func() error {
		reply, err := s.Do("ROLE")
		if list, ok := reply.([]any); ok && list[0] != role {
			err = fmt.Errorf("the role is %v", list[0])
		}
		return err
	})
	if err != nil {
		return s.explain(err)
	}
	return nil
}

// CatchUp returns when the replica has heard all that the primary has done
// until now.
func (s *Server) CatchUp(primary *Server) error {
	now, err := primary.offset("master_repl_offset")
	if err != nil {
		return err
	}
	err = await(readyLimit, func() error {
		heard, err := s.offset("slave_repl_offset")
		if err == nil && heard < now {
			err = fmt.Errorf("the replica is at %d, its primary was at %d", heard, now)
		}
		return err
	})
	if err != nil {
		return s.explain(err)
	}
	return nil
}

func (s *Server) offset(name string) (int64, error) {
	fields, err := s.info("replication")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(fields[name], 10, 64)
}

// Failover has the sentinels make the replica primary while both are well. It
// returns when they all name the new one; Primary and Replica are then
// exchanged.
func (s *Sentinel) Failover() error {
	err := await(readyLimit, func() error {
		_, err := s.Sentinels[0].Do("SENTINEL", "FAILOVER", MasterName)
		if err != nil && strings.HasPrefix(err.Error(), "NOGOODSLAVE") || err == nil {
			return err
		}
		return giveUp{err}
	})
	if err != nil {
		return err
	}
	return s.Follow()
}

// Follow returns when all sentinels name the replica as primary and it has
// become one, whatever made it so. Primary and Replica are then exchanged.
func (s *Sentinel) Follow() error {
	if err := s.Replica.Promoted(); err != nil {
		return err
	}
	for _, watcher := range s.Sentinels {
		err := await(readyLimit, func() error { return watcher.names(s.addrOf(s.Replica)) })
		if err != nil {
			return watcher.explain(err)
		}
	}
	s.Primary, s.Replica = s.Replica, s.Primary
	return nil
}

// names is nil once a sentinel answers with this address for the primary's.
func (s *Server) names(addr string) error {
	reply, err := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
	if err != nil {
		return err
	}
	if list, ok := reply.([]any); !ok || fmt.Sprint(list[1]) != portOf(addr) {
		return fmt.Errorf("the sentinel names %v, not %s", reply, addr)
	}
	return nil
}

// Announce has all sentinels watch the primary at another address, as after a
// move of its endpoint: no failover is told of.
func (s *Sentinel) Announce(addr string) error {
	for _, watcher := range s.Sentinels {
		_, err1 := watcher.Do("SENTINEL", "REMOVE", MasterName)
		_, err2 := watcher.Do("SENTINEL", "MONITOR", MasterName, "127.0.0.1", portOf(addr), "2")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		for _, set := range [][2]string{{"down-after-milliseconds", downAfter}, {"failover-timeout", failoverTimeout}} {
			if _, err := watcher.Do("SENTINEL", "SET", MasterName, set[0], set[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tolerate has all sentinels take the primary for dead only after so long a
// silence. One whose writes are paused is silent to them: what they publish
// waits, and their pings behind it.
func (s *Sentinel) Tolerate(silence time.Duration) error {
	for _, watcher := range s.Sentinels {
		if _, err := watcher.Do("SENTINEL", "SET", MasterName, "down-after-milliseconds", fmt.Sprint(silence.Milliseconds())); err != nil {
			return err
		}
	}
	return nil
}

// Rejoin has the old primary follow the new one, started again if it is down,
// and returns when the sentinels see both well.
func (s *Sentinel) Rejoin() error {
	if err := s.Replica.revive(); err != nil {
		return err
	}
	if _, err := s.Replica.Do("REPLICAOF", "127.0.0.1", portOf(s.addrOf(s.Primary))); err != nil {
		return err
	}
	if err := await(readyLimit, s.Replica.inSync); err != nil {
		return s.Replica.explain(err)
	}
	for _, watcher := range s.Sentinels {
		if err := await(readyLimit, watcher.watches); err != nil {
			return watcher.explain(err)
		}
	}
	return nil
}

// Demote exchanges Primary and Replica behind the sentinels' backs and tells
// them afterwards where the primary is. Clients of the old one stay connected.
func (s *Sentinel) Demote() error {
	if _, err := s.Replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
		return err
	}
	if _, err := s.Primary.Do("REPLICAOF", "127.0.0.1", portOf(s.addrOf(s.Replica))); err != nil {
		return err
	}
	s.Primary, s.Replica = s.Replica, s.Primary
	return s.Announce(s.addrOf(s.Primary))
}

// Whole returns when all nodes see all slots served.
func (c *Cluster) Whole() error {
	for _, n := range c.Nodes {
		err := await(readyLimit, func() error {
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

// revive restarts a server that is down.
func (s *Server) revive() error {
	if _, done := s.process(); !isClosed(done) {
		return nil
	}
	return s.Restart()
}

// Readdress has the primary answer at another address and no longer at the one
// before, and tells the sentinels: no failover is announced. The group must be
// proxied.
func (s *Sentinel) Readdress() error {
	p, err := NewProxy("tcp", s.Primary.Addr)
	if err != nil {
		return err
	}
	before := s.proxies[s.Primary]
	s.proxies[s.Primary] = p
	if err := s.Announce(p.Addr()); err != nil {
		return err
	}
	before.Close()
	_, err = s.Replica.Do("REPLICAOF", "127.0.0.1", portOf(p.Addr()))
	return err
}

// Readdress has a node answer at another address and no longer at the one
// before, once all others know. The cluster must be proxied.
func (c *Cluster) Readdress(n *Server) error {
	p, err := NewProxy("tcp", n.Addr)
	if err != nil {
		return err
	}
	i := slices.Index(c.Nodes, n)
	before := c.proxies[i]
	c.proxies[i] = p
	if _, err := n.Do("CONFIG", "SET", "cluster-announce-port", portOf(p.Addr())); err != nil {
		return err
	}
	for _, other := range c.Nodes {
		err := await(readyLimit, func() error {
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
	before.Close()
	return nil
}
