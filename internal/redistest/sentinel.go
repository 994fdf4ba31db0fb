package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// MasterName is the name under which the sentinels watch the primary.
const MasterName = "gate"

// A Sentinel is a primary and its replica, watched by three sentinels of which
// two must agree before the replica takes over.
type Sentinel struct {
	Primary, Replica *Server
	Sentinels        []*Server
}

// LaunchSentinel returns when all sentinels know each other and a replica fit
// to take over, so that a failover may follow at once.
func LaunchSentinel() (*Sentinel, error) {
	s := new(Sentinel)
	if err := s.launch(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// StartSentinel is LaunchSentinel for a test.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s, err := LaunchSentinel()
	return started(t, s, err)
}

// Addrs are the addresses of the sentinels.
func (s *Sentinel) Addrs() []string {
	var addrs []string
	for _, w := range s.Sentinels {
		addrs = append(addrs, w.Addr)
	}
	return addrs
}

// Close ends the sentinels first, so that none starts a failover.
func (s *Sentinel) Close() {
	for _, server := range append(s.Sentinels[:len(s.Sentinels):len(s.Sentinels)], s.Replica, s.Primary) {
		if server != nil {
			server.Close()
		}
	}
}

func (s *Sentinel) launch() (err error) {
	if s.Primary, err = Launch(); err != nil {
		return err
	}
	primaryPort := portOf(s.Primary.Addr)
	if s.Replica, err = Launch("--replicaof", "127.0.0.1", primaryPort); err != nil {
		return err
	}
	// Sentinels ask the primary for its replicas at once, then only every 10 s.
	if err := await(readyLimit, s.Replica.inSync); err != nil {
		return s.Replica.explain(err)
	}
	for range 3 {
		watcher, err := launch(sentinelOf(primaryPort))
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, watcher)
	}
	for _, watcher := range s.Sentinels {
		if err := await(readyLimit, watcher.watches); err != nil {
			return watcher.explain(err)
		}
	}
	return nil
}

// watches is nil once a sentinel could take part in a failover.
func (s *Server) watches() error {
	reply, err := s.Do("SENTINEL", "MASTER", MasterName)
	if err != nil {
		return err
	}
	m := pairsOf(reply)
	if m["num-other-sentinels"] != "2" || m["num-slaves"] != "1" || m["flags"] != "master" {
		return fmt.Errorf("sentinel knows %s other sentinels and %s replicas of a %s",
			m["num-other-sentinels"], m["num-slaves"], m["flags"])
	}
	reply, err = s.Do("SENTINEL", "REPLICAS", MasterName)
	if err != nil {
		return err
	}
	for _, replica := range reply.([]any) {
		if r := pairsOf(replica); r["flags"] != "slave" || r["master-link-status"] != "ok" {
			return fmt.Errorf("sentinel sees a %s, link %s", r["flags"], r["master-link-status"])
		}
	}
	return nil
}

func sentinelOf(primaryPort string) recipe {
	return func(dir string, port int) ([]string, error) {
		conf := filepath.Join(dir, "sentinel.conf") // a sentinel keeps its state in it
		text := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]s 2\n"+
			"sentinel down-after-milliseconds %[1]s 500\n"+
			"sentinel failover-timeout %[1]s 3000\n", MasterName, primaryPort)
		return []string{conf, "--sentinel", "--dir", dir, "--bind", "127.0.0.1",
			"--port", strconv.Itoa(port), "--unixsocket", filepath.Join(dir, "redis.sock"),
		}, os.WriteFile(conf, []byte(text), 0o600)
	}
}
