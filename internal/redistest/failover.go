package redistest

import (
	"errors"
	"fmt"
	"strings"
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
