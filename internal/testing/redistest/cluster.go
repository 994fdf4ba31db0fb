package redistest

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"
)

const primaries = 3 // each with one replica

// A Cluster is three primaries, each with a replica. The primaries share the slots.
type Cluster struct {
	Nodes []*Server // primaries first, until a failover

	proxies    []*Proxy // one for each node; nil if the cluster is not proxied
	busProxies []*Proxy // one for the cluster bus of each node; nil if the cluster is not proxied
}

// LaunchCluster starts a Cluster. It returns when every node sees all slots served and every
// replica is in sync. A failover is then possible.
func LaunchCluster() (*Cluster, error) {
	c := new(Cluster)
	for range 2 * primaries {
		s, err := launch(clusterNode)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.Nodes = append(c.Nodes, s)
	}
	return c.form()
}

// LaunchProxiedCluster is LaunchCluster with a [Proxy] for each node, in the order of Nodes. Nodes
// announce the port of their proxy, so clients that follow CLUSTER SLOTS or MOVED use the proxies.
// Replication uses the proxies too. So a fault of a proxy also affects replication, unless
// [Proxy.Only] excludes it. Close closes the proxies.
//
// Each node connects to the others from its own source address, [Server.Source], so that
// [Cluster.Partition] can cut it off.
func LaunchProxiedCluster() (*Cluster, []*Proxy, error) {
	c := new(Cluster)
	for range 2 * primaries {
		if err := c.addProxied(); err != nil {
			c.Close()
			return nil, nil, err
		}
	}
	c, err := c.form()
	if err != nil {
		return nil, nil, err
	}
	return c, c.proxies, nil
}

// StartCluster starts a Cluster for a test. Its nodes tolerate a minute of silence, because a
// failover on a busy machine would lose grants. A test of failovers uses StartClusterForFailover.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c, err := launchTolerant()
	return mustStart(t, c, err)
}

// StartClusterForFailover is LaunchCluster for a test: a node that is silent for a second counts as
// down.
func StartClusterForFailover(t testing.TB) *Cluster {
	t.Helper()
	c, err := LaunchCluster()
	return mustStart(t, c, err)
}

// launchTolerant is LaunchCluster with nodes that tolerate a minute of silence.
func launchTolerant() (*Cluster, error) {
	c, err := LaunchCluster()
	if err == nil {
		if err = c.Tolerate(time.Minute); err != nil {
			c.Close()
		}
	}
	return c, err
}

// Tolerate sets cluster-node-timeout in all nodes. A node that is silent for longer counts as down.
func (c *Cluster) Tolerate(silence time.Duration) error {
	for _, n := range c.Nodes {
		if _, err := n.Do("CONFIG", "SET", "cluster-node-timeout", fmt.Sprint(silence.Milliseconds())); err != nil {
			return err
		}
	}
	return nil
}

// StartProxiedCluster is LaunchProxiedCluster for a test.
func StartProxiedCluster(t testing.TB) (*Cluster, []*Proxy) {
	t.Helper()
	c, proxies, err := LaunchProxiedCluster()
	return mustStart(t, c, err), proxies
}

// Addrs returns the addresses for clients: of the proxies if the cluster is proxied, or of the
// nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, p := range c.proxies {
		addrs = append(addrs, p.Addr())
	}
	if addrs != nil {
		return addrs
	}
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

// Primaries returns the nodes that are primaries now.
func (c *Cluster) Primaries() []*Server {
	var found []*Server
	for _, n := range c.Nodes {
		reply, _ := n.Do("ROLE") // a node that is down is not a primary
		if role, ok := reply.([]any); ok && role[0] == "master" {
			found = append(found, n)
		}
	}
	return found
}

// Close ends all nodes and proxies.
func (c *Cluster) Close() {
	for _, p := range append(c.proxies, c.busProxies...) {
		p.Close()
	}
	for _, n := range c.Nodes {
		n.Close()
	}
}

// addProxied adds a node and its proxies. The proxies start first, since the node announces their
// ports.
func (c *Cluster) addProxied() error {
	p, err := NewProxy("tcp", "")
	if err != nil {
		return err
	}
	c.proxies = append(c.proxies, p)
	bus, err := NewProxy("tcp", "")
	if err != nil {
		return err
	}
	c.busProxies = append(c.busProxies, bus)
	source := sourceOf(len(c.Nodes))
	s, err := launch(func(dir string, port int) ([]string, error) {
		args, err := clusterNode(dir, port)
		return append(args, "--bind-source-addr", source, "--cluster-announce-ip", "127.0.0.1",
			"--cluster-announce-port", portOf(p.Addr()), "--cluster-announce-bus-port", portOf(bus.Addr())), err
	})
	if err != nil {
		return err
	}
	s.Source = source
	p.redirect("tcp", s.Addr)
	bus.redirect("tcp", net.JoinHostPort("127.0.0.1", option(s.args, "--cluster-port")))
	c.Nodes = append(c.Nodes, s)
	return nil
}

// busPort returns the port at which other nodes reach the cluster bus of node i.
func (c *Cluster) busPort(i int) string {
	if c.busProxies != nil {
		return portOf(c.busProxies[i].Addr())
	}
	return option(c.Nodes[i].args, "--cluster-port")
}

// form makes a cluster of the nodes. If that fails, it closes the nodes.
func (c *Cluster) form() (*Cluster, error) {
	for _, step := range []func() error{c.assignSlots, c.meet, c.addReplicas, c.awaitReady} {
		if err := step(); err != nil {
			c.Close()
			return nil, fmt.Errorf("redistest: form a cluster: %w", err)
		}
	}
	return c, nil
}

// assignSlots assigns the slots to the primaries. It also gives each node its own config epoch,
// because nodes with the same epoch would first have to resolve that conflict.
func (c *Cluster) assignSlots() error {
	const slots = 16384 // of every Cluster
	for i, n := range c.Nodes {
		if _, err := n.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if i >= primaries {
			continue
		}
		from, to := slots*i/primaries, slots*(i+1)/primaries-1
		if _, err := n.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(from), strconv.Itoa(to)); err != nil {
			return err
		}
	}
	return nil
}

// meet introduces every pair of nodes. Without this, they would find each other by gossip, which
// takes seconds.
func (c *Cluster) meet() error {
	addrs := c.Addrs()
	for i, n := range c.Nodes {
		for j := range i {
			host, port, _ := net.SplitHostPort(addrs[j])
			if _, err := n.Do("CLUSTER", "MEET", host, port, c.busPort(j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// addReplicas gives each primary its replica, as soon as the replica knows the primary.
func (c *Cluster) addReplicas() error {
	for i, primary := range c.Nodes[:primaries] {
		id, err := primary.Do("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		replica := c.Nodes[primaries+i]
		err = await(readyTimeout, func() error {
			_, err := replica.Do("CLUSTER", "REPLICATE", fmt.Sprint(id))
			return err
		})
		if err != nil {
			return replica.explain(err)
		}
	}
	return nil
}

func (c *Cluster) awaitReady() error {
	for i, n := range c.Nodes {
		if err := await(readyTimeout, func() error { return n.checkClusterReady(i >= primaries) }); err != nil {
			return n.explain(err)
		}
	}
	return nil
}

// checkClusterReady returns nil when the node knows the owner of each slot. A replica must also
// follow its primary.
func (s *Server) checkClusterReady(isReplica bool) error {
	state, err := s.Do("CLUSTER", "INFO")
	if err != nil {
		return err
	}
	if got := fieldsOf(state)["cluster_state"]; got != "ok" {
		return fmt.Errorf("cluster_state is %q; want ok", got)
	}
	reply, err := s.Do("CLUSTER", "SLOTS")
	if err != nil {
		return err
	}
	ranges, _ := reply.([]any)
	for _, r := range ranges { // the first slot, the last slot, and the nodes
		if nodes := len(r.([]any)) - 2; nodes != 2 {
			return fmt.Errorf("CLUSTER SLOTS names %d nodes for a range; want a primary and a replica", nodes)
		}
	}
	if len(ranges) != primaries {
		return fmt.Errorf("CLUSTER SLOTS names %d ranges; want %d", len(ranges), primaries)
	}
	if isReplica {
		return s.checkInSync()
	}
	return nil
}

// checkInSync returns nil when a replica receives its primary's writes.
func (s *Server) checkInSync() error {
	fields, err := s.info("replication")
	if err != nil {
		return err
	}
	if got := fields["master_link_status"]; got != "up" {
		return fmt.Errorf("master_link_status is %q; want up", got)
	}
	return nil
}

// clusterNode is the recipe of a node. The node counts as down after 1000 ms without a reply.
func clusterNode(dir string, port int) ([]string, error) {
	bus, err := freePort() // the default, port+10000, may be taken
	if err != nil {
		return nil, err
	}
	return append(defaults(dir, port),
		"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
		"--cluster-port", strconv.Itoa(bus),
		// CLUSTER SLOTS omits a replica until its primary has sent it a byte: the first ping, by
		// default after 10 s.
		"--repl-ping-replica-period", "1"), nil
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}
