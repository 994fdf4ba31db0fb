package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// MasterName is the name under which the Sentinels watch the primary.
const MasterName = "gate"

const (
	sentinels             = 3
	quorum                = "2"    // Sentinels that must agree that the primary is down
	downAfterMillis       = "500"  // ms without a reply
	failoverTimeoutMillis = "3000" // ms
)

// A SentinelGroup is a primary with a replica, watched by three Sentinels. Two of them must agree
// before the replica takes over.
type SentinelGroup struct {
	Primary, Replica *Server
	Sentinels        []*Server

	proxies map[*Server]*Proxy // of the primary and the replica; nil if the group is not proxied
	tls     *TLS               // nil if the group does not use TLS
}

// LaunchSentinel starts a group. It returns when a failover is possible: all Sentinels know each
// other and a replica that can take over.
func LaunchSentinel() (*SentinelGroup, error) {
	s := new(SentinelGroup)
	if err := s.launch(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// LaunchProxiedSentinel is LaunchSentinel with a [Proxy] for the primary and one for the replica.
// Sentinels report only the addresses of the proxies, so servers and Sentinels connect through them
// too. Each server and each Sentinel has its own source address, [Server.Source], so that
// [Proxy.Block] can cut it off.
func LaunchProxiedSentinel() (*SentinelGroup, error) {
	s := &SentinelGroup{proxies: make(map[*Server]*Proxy)}
	if err := s.launch(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// StartProxiedSentinel is LaunchProxiedSentinel for a test.
func StartProxiedSentinel(t testing.TB) *SentinelGroup {
	t.Helper()
	s, err := LaunchProxiedSentinel()
	return mustStart(t, s, err)
}

// StartSentinel is LaunchSentinel for a test.
func StartSentinel(t testing.TB) *SentinelGroup {
	t.Helper()
	s, err := LaunchSentinel()
	return mustStart(t, s, err)
}

// Addrs returns the addresses of the Sentinels.
func (s *SentinelGroup) Addrs() []string {
	var addrs []string
	for _, sentinel := range s.Sentinels {
		addrs = append(addrs, sentinel.Addr)
	}
	return addrs
}

// Proxy returns the proxy of the primary or the replica, or nil if the group has no proxies.
func (s *SentinelGroup) Proxy(of *Server) *Proxy { return s.proxies[of] }

// Close ends all servers and proxies: the Sentinels first, so that none starts a failover.
func (s *SentinelGroup) Close() {
	for _, server := range append(s.Sentinels[:len(s.Sentinels):len(s.Sentinels)], s.Replica, s.Primary) {
		if server != nil {
			server.Close()
		}
	}
	for _, p := range s.proxies {
		p.Close()
	}
}

func (s *SentinelGroup) launch() (err error) {
	if s.Primary, err = s.launchServer(0); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(s.addrOf(s.Primary))
	if s.tls != nil {
		host = s.tls.name(0)
	}
	if s.Replica, err = s.launchServer(1, "--replicaof", host, port); err != nil {
		return err
	}
	// Sentinels start last: at their start they query the primary for its replicas, and then only
	// every 10 s.
	if err := await(readyTimeout, s.Replica.checkInSync); err != nil {
		return s.Replica.explain(err)
	}
	for i := range sentinels {
		sentinel, err := s.launchSentinel(2+i, host, port)
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	for _, sentinel := range s.Sentinels {
		if err := await(readyTimeout, sentinel.checkSentinelReady); err != nil {
			return sentinel.explain(err)
		}
	}
	return nil
}

// launchServer starts the primary or the replica, with a proxy if the group has proxies. number
// determines its addresses: 0 for the primary, 1 for the replica, and higher numbers for Sentinels.
func (s *SentinelGroup) launchServer(number int, args ...string) (*Server, error) {
	if s.tls != nil {
		name := s.tls.name(number)
		args = append(args, "--replica-announce-ip", name)
		return launch(s.tls.secure(plain, s.tls.host(number), []string{name}, args...))
	}
	if s.proxies == nil {
		return Launch(args...)
	}
	p, err := NewProxy("tcp", "")
	if err != nil {
		return nil, err
	}
	source := sourceOf(number)
	server, err := Launch(append(args, "--bind-source-addr", source,
		"--replica-announce-ip", "127.0.0.1", "--replica-announce-port", portOf(p.Addr()))...)
	if err != nil {
		p.Close()
		return nil, err
	}
	server.Source = source
	p.redirect("tcp", server.Addr)
	s.proxies[server] = p
	return server, nil
}

// addrOf returns the address at which the others reach the primary or the replica.
func (s *SentinelGroup) addrOf(server *Server) string {
	if p := s.proxies[server]; p != nil {
		return p.Addr()
	}
	return server.Addr
}

// checkSentinelReady returns nil when a Sentinel can take part in a failover.
func (s *Server) checkSentinelReady() error {
	reply, err := s.Do("SENTINEL", "MASTER", MasterName)
	if err != nil {
		return err
	}
	primary := pairsOf(reply)
	others, replicas, flags := primary["num-other-sentinels"], primary["num-slaves"], primary["flags"]
	if others != strconv.Itoa(sentinels-1) || replicas != "1" || flags != "master" {
		return fmt.Errorf("the Sentinel knows %s other Sentinels and %s replicas, and the primary has the flags %s; want %d, 1 and master",
			others, replicas, flags, sentinels-1)
	}
	reply, err = s.Do("SENTINEL", "REPLICAS", MasterName)
	if err != nil {
		return err
	}
	for _, replica := range reply.([]any) {
		if r := pairsOf(replica); r["flags"] != "slave" || r["master-link-status"] != "ok" {
			return fmt.Errorf("the Sentinel reports a replica with flags %s and link status %s; want slave and ok", r["flags"], r["master-link-status"])
		}
	}
	return nil
}

// launchSentinel starts the Sentinel with this number, which watches the primary at host and port.
func (s *SentinelGroup) launchSentinel(number int, host, port string) (*Server, error) {
	if s.tls != nil {
		// Clients connect to the address of a Sentinel, even if the Sentinel reports the servers by
		// host names. So the certificate has the address.
		own := s.tls.host(number)
		return launch(s.tls.secure(sentinelRecipe(host, port, own, ""), own, []string{own}))
	}
	source := ""
	if s.proxies != nil {
		source = sourceOf(number)
	}
	sentinel, err := launch(sentinelRecipe(host, port, "127.0.0.1", source))
	if err == nil {
		sentinel.Source = source
	}
	return sentinel, err
}

// sentinelRecipe returns the recipe of a Sentinel with the address own. The Sentinel watches the
// primary at host and primaryPort. If source is not empty, the Sentinel connects from that address.
func sentinelRecipe(host, primaryPort, own, source string) recipe {
	return func(dir string, port int) ([]string, error) {
		conf := filepath.Join(dir, "sentinel.conf") // a Sentinel also writes its state to it
		text := ""
		if net.ParseIP(host) == nil {
			text = "sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n"
		}
		text += fmt.Sprintf("sentinel monitor %s %s %s %s\n", MasterName, host, primaryPort, quorum) +
			fmt.Sprintf("sentinel down-after-milliseconds %s %s\n", MasterName, downAfterMillis) +
			fmt.Sprintf("sentinel failover-timeout %s %s\n", MasterName, failoverTimeoutMillis) +
			fmt.Sprintf("sentinel announce-ip %s\n", own)
		args := []string{conf, "--sentinel", "--dir", dir, "--bind", own,
			"--port", strconv.Itoa(port), "--unixsocket", filepath.Join(dir, "redis.sock"),
		}
		if source != "" {
			args = append(args, "--bind-source-addr", source)
		}
		return args, os.WriteFile(conf, []byte(text), 0o600)
	}
}
