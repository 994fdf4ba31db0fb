package faults

import (
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/rs/zerolog"
)

// A kind is a kind of target.
type kind string

const (
	single   kind = "single"
	sentinel kind = "sentinel"
	cluster  kind = "cluster"
)

// A route is the connection between the instances and a single server.
type route int

const (
	direct route = iota
	toxic        // a toxiproxy, which delays, holds and cuts connections
	lossy        // a redistest.Proxy, which forwards commands and loses the replies
)

// A target is the servers that store the counters.
type target struct {
	kind    kind
	servers []*redistest.Server // with counters; primaries first, until a failover
	url     string              // for the instances
	direct  string              // for the checks, without a proxy
	shards  int                 // number of nodes that have a breaker each

	toxics   *toxiproxy.Proxy         // of route toxic
	lossy    *redistest.Proxy         // of route lossy
	clock    *redistest.Clock         // of a server with hasClock
	sentinel *redistest.SentinelGroup // of kind sentinel
	cluster  *redistest.Cluster       // of kind cluster
	proxies  []*redistest.Proxy       // in front of the nodes of a Cluster whose network can be cut
}

// start starts the target of a fault.
func start(t *testing.T, k kind, f *fault) *target {
	t.Helper()
	switch k {
	case sentinel:
		begin := redistest.StartSentinel
		if f.canPartition {
			begin = redistest.StartProxiedSentinel
		}
		s := begin(t)
		url := "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
		return &target{kind: k, servers: []*redistest.Server{s.Primary, s.Replica}, url: url, direct: url, shards: 1, sentinel: s}
	case cluster:
		to := &target{kind: k, shards: 3}
		if f.canPartition {
			to.cluster, to.proxies = redistest.StartProxiedCluster(t)
		} else {
			to.cluster = redistest.StartClusterForFailover(t)
		}
		to.servers, to.url = to.cluster.Nodes, "redis+cluster://"+strings.Join(to.cluster.Addrs(), ",")
		to.direct = to.url
		return to
	}
	to := &target{kind: k, shards: 1}
	var s *redistest.Server
	if f.hasClock {
		s, to.clock = redistest.StartClocked(t, f.args...)
	} else {
		s = redistest.Start(t, f.args...)
	}
	to.servers, to.url, to.direct = []*redistest.Server{s}, "redis://"+s.Addr, s.URL()
	switch f.route {
	case toxic:
		to.toxics = startToxics(t, s.Addr)
		to.url = "redis://" + to.toxics.Listen
	case lossy:
		p, err := redistest.NewProxy("unix", s.Socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		to.lossy = p
		to.url = "redis://" + p.Addr()
	}
	return to
}

// primary returns the server that has the fault.
func (t *target) primary() *redistest.Server { return t.servers[0] }

func startToxics(t *testing.T, upstream string) *toxiproxy.Proxy {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, "redis", "127.0.0.1:0", upstream)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}
