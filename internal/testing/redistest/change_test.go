package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// doFollowing runs a command like a client that follows redirections.
func doFollowing(t *testing.T, addr string, args ...string) string {
	t.Helper()
	out, err := exec.Command(CLI(), append([]string{"-c", "-p", portOf(addr)}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("command %v: %s, %v; want no error", args, out, err)
	}
	return strings.TrimSpace(string(out))
}

func awaitCatchUp(t *testing.T, replica, primary *Server) {
	t.Helper()
	if err := replica.CatchUp(primary); err != nil {
		t.Fatal(err)
	}
}

func TestSlotsMoveWithTheirKeysUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) { t.Parallel(); moveSlots(t, StartCluster(t)) })
	t.Run("proxied", func(t *testing.T) { t.Parallel(); c, _ := StartProxiedCluster(t); moveSlots(t, c) })
}

func moveSlots(t *testing.T, c *Cluster) {
	key := setOwnKey(t, c.Nodes[0])
	slot, err := c.Slot(key)
	if err != nil {
		t.Fatal(err)
	}
	if c.Owner(slot) != c.Nodes[0] {
		t.Fatalf("the owner of slot %d is %v; want %v", slot, c.Owner(slot), c.Nodes[0])
	}
	added, err := c.Grow()
	if err != nil {
		t.Fatal(err)
	}
	wantReply(t, c.Nodes[0], int64(2), "INCR", key)
	calls := 0 // of duringMove, for this slot
	value := 2 // of the key
	err = c.Move(slot, slot+1, added, func(moving int) {
		if moving != slot {
			return
		}
		calls++
		value++
		if got := doFollowing(t, c.Addrs()[1], "INCR", key); got != fmt.Sprint(value) {
			t.Errorf("INCR during the move, call %d: %s; want %d", calls, got, value)
		}
	})
	if err != nil || calls != 2 {
		t.Errorf("duringMove was called %d times for slot %d, %v; want 2 calls: before and after its only key moves", calls, slot, err)
	}
	if c.Owner(slot) != added || c.Owner(slot+1) != added || c.Owner(slot+2) == added {
		t.Errorf("slots %d to %d belong to %v, %v and %v; want only the first two with %v",
			slot, slot+2, c.Owner(slot), c.Owner(slot+1), c.Owner(slot+2), added)
	}
	wantReply(t, added, fmt.Sprint(value), "GET", key)
	if _, err := c.Nodes[0].Do("GET", key); err == nil || !strings.HasPrefix(err.Error(), "MOVED") {
		t.Errorf("GET from the old owner: %v; want MOVED", err)
	}
}

func TestReplicaIsPromotedManuallyAndByFailover(t *testing.T) {
	t.Parallel()
	c := StartClusterForFailover(t)
	old := c.Nodes[0]
	key := setOwnKey(t, old)
	slot, _ := c.Slot(key)
	replica := c.Replica(old)
	if replica != c.Nodes[primaries] {
		t.Fatalf("the replica is %v; want %v", replica, c.Nodes[primaries])
	}
	if err := c.Promote(replica); err != nil {
		t.Fatal(err)
	}
	wantReply(t, replica, "1", "GET", key)
	if c.Owner(slot) != replica || c.Replica(replica) != old {
		t.Errorf("slot %d belongs to %v, and the replica of %[4]v is %[3]v; want that %[4]v and %[5]v have swapped their roles",
			slot, c.Owner(slot), c.Replica(replica), replica, old)
	}
	if err := await(readyTimeout, old.checkInSync); err != nil {
		t.Fatal(err)
	}
	replica.Kill()
	if err := old.AwaitPromotion(); err != nil {
		t.Fatal(err)
	}
	wantReply(t, old, "1", "GET", key)
	restart(t, replica)
	if err := replica.awaitRole("slave"); err != nil {
		t.Error(err)
	}
}

// Acknowledged writes are lost if the primary ends before they reach the replica.
func TestPartitionedReplicaLosesAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	c, proxies := StartProxiedCluster(t)
	old := c.Nodes[0]
	key := setOwnKey(t, old)
	replica := c.Replica(old)
	awaitCatchUp(t, replica, old)
	proxies[0].Block(replica.Source)
	wantReply(t, old, int64(2), "INCR", key)
	old.Kill()
	if err := replica.AwaitPromotion(); err != nil {
		t.Fatal(err)
	}
	proxies[0].Block()
	wantReply(t, replica, "1", "GET", key)
}

func TestMinorityKeepsServingUntilItNotices(t *testing.T) {
	t.Parallel()
	c, proxies := StartProxiedCluster(t)
	old := c.Nodes[0]
	key := setOwnKey(t, old)
	replica := c.Replica(old)
	awaitCatchUp(t, replica, old)
	const ownClients, otherClients = "127.0.9.1", "127.0.0.1" // this test connects from 127.0.0.1
	c.Partition([]*Server{old}, []string{ownClients}, []string{otherClients})
	wantReply(t, old, int64(2), "INCR", key)
	if _, err := call("tcp", proxies[0].Addr(), 50*time.Millisecond, "PING"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("PING from the other side: %v; want a timeout", err)
	}
	wantThrough(t, proxies[1], "PONG", "PING")
	if err := replica.AwaitPromotion(); err != nil {
		t.Fatal(err)
	}
	wantReply(t, replica, int64(2), "INCR", key)
	err := await(readyTimeout, func() error {
		if _, err := old.Do("INCR", key); err == nil || !strings.HasPrefix(err.Error(), "CLUSTERDOWN") {
			return fmt.Errorf("the minority replies %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	c.Heal()
	if err := old.awaitRole("slave"); err != nil {
		t.Error(err)
	}
	wantReply(t, replica, "2", "GET", key)
}

func TestSentinelsSwapPrimaryAndReplica(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		start  func(testing.TB) *SentinelGroup
		change func(*SentinelGroup) error
	}{
		{"manual failover", StartProxiedSentinel, (*SentinelGroup).Failover},
		{"primary killed", StartSentinel, func(s *SentinelGroup) error { s.Primary.Kill(); return s.AwaitFailover() }},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := row.start(t)
			first := s.Primary
			wantReply(t, first, "OK", "SET", "k", "v")
			awaitCatchUp(t, s.Replica, first)
			if err := row.change(s); err != nil {
				t.Fatal(err)
			}
			if s.Replica != first || s.Primary == first {
				t.Fatalf("the primary is %s, and the replica %s; want that %s is the replica", s.Primary.Addr, s.Replica.Addr, first.Addr)
			}
			wantReply(t, s.Primary, "v", "GET", "k")
		})
	}
}

func TestPartitionedPrimaryIsReplacedAndStillServes(t *testing.T) {
	t.Parallel()
	s := StartProxiedSentinel(t)
	old := s.Primary
	wantReply(t, old, int64(1), "INCR", "n")
	awaitCatchUp(t, s.Replica, old)
	cut := []string{s.Replica.Source}
	for _, sentinel := range s.Sentinels {
		cut = append(cut, sentinel.Source)
	}
	s.Proxy(old).Block(cut...)
	if err := s.AwaitFailover(); err != nil {
		t.Fatal(err)
	}
	wantThrough(t, s.Proxy(old), int64(2), "INCR", "n")
	wantThrough(t, s.Proxy(s.Primary), int64(2), "INCR", "n")
}

func TestSentinelsNameAnotherAddress(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	p, err := NewProxy("tcp", s.Primary.Addr)
	mustStart(t, p, err)
	if err := s.Announce(p.Addr()); err != nil {
		t.Fatal(err)
	}
	for _, sentinel := range s.Sentinels {
		if err := sentinel.checkPrimaryAddr(p.Addr()); err != nil {
			t.Error(err)
		}
	}
}
