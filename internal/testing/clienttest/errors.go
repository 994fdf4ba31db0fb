package clienttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

// serverCannotDecide makes servers unable to decide, in various ways. Charges of every mode must
// fail, also those that would be denied. Without its first line (#!lua), a script on a replica
// would reply with an outdated denial.
func serverCannotDecide(t *testing.T, suite Suite) {
	for _, fault := range []struct {
		name   string
		reason penstock.Reason
		begin  func(t *testing.T, s *redistest.Server)
		end    func(t *testing.T, s *redistest.Server)
	}{
		{name: "replica", reason: penstock.ReasonNotReady, begin: Do("REPLICAOF 127.0.0.1 1"), end: Do("REPLICAOF NO ONE")},
		{name: "replica without its primary's data", reason: penstock.ReasonNotReady, begin: Do("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"), end: Do("REPLICAOF NO ONE")},
		{name: "too few replicas", reason: penstock.ReasonNotReady, begin: Do("CONFIG SET min-replicas-to-write 1"), end: Do("CONFIG SET min-replicas-to-write 0")},
		{name: "out of memory", reason: penstock.ReasonOutOfMemory, begin: Do("CONFIG SET maxmemory 1"), end: Do("CONFIG SET maxmemory 0")},
		{name: "no right to run scripts", reason: penstock.ReasonPermissionDenied, begin: Do("ACL SETUSER default -eval -evalsha"), end: Do("ACL SETUSER default +@all")},
		{name: "no right inside the script", reason: penstock.ReasonPermissionDenied, begin: Do("ACL SETUSER default -time"), end: Do("ACL SETUSER default +@all")},
		{name: "no right to the keys", reason: penstock.ReasonPermissionDenied, begin: Do("ACL SETUSER default resetkeys ~other:*"), end: Do("ACL SETUSER default ~*")},
		{name: "busy with another script", reason: penstock.ReasonBusy, begin: makeBusy, end: Do("SCRIPT KILL")},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			store := NewStore(t, suite.One(t, s.Addr, Options{NoRetries: true}), redisstore.Options{})
			some, full := SlowRefill("some", 10), SlowRefill("full", 2)
			held := penstock.InFlight(2, time.Hour).WithName("held").MustCompile()
			setUp := []penstock.Charge{Spend("k", some, 1), Spend("k", full, 2), Spend("k", held, 2)}
			setUp[2].Holder = "first"
			if d, err := store.Decide(t.Context(), setUp); err != nil || !d.Allowed {
				t.Fatalf("set up: allowed %v, %v; want allowed", d.Allowed, err)
			}
			denied := Spend("k", held, 1)
			denied.Holder = "second"
			fault.begin(t, s)
			for _, batch := range [][]penstock.Charge{
				{Spend("k", some, 1)}, {Spend("k", full, 1)}, {denied},
				{{Key: "k", Plan: some, Mode: penstock.Peek}},
				{{Key: "k", Plan: some, Mode: penstock.Force, Cost: 1}},
				{{Key: "k", Plan: some, Mode: penstock.Refund, Cost: 1}},
				{{Key: "k", Plan: some, Mode: penstock.Reset}},
				{Spend("k", some, 1), Spend("k", SlowRefill("new", 5), 1)}, {Spend("k", some, 1), Spend("k", full, 1)},
			} {
				d, err := store.Decide(Within(t, time.Minute), batch)
				WantReason(t, fmt.Sprint(batch[0].Mode, " of ", batch[0].Plan.Name()), err, fault.reason)
				if d.Allowed {
					t.Errorf("%v of %s: allowed, with the error %v; want not allowed", batch[0].Mode, batch[0].Plan.Name(), err)
				}
			}
			fault.end(t, s)
			eventually.NoError(t, func() error { return store.Ping(t.Context()) })
			for limit, want := range map[*penstock.Plan]int64{some: 9, full: 0, held: 0, SlowRefill("new", 5): 5} {
				if got := Remaining(t, store, "k", limit); got != want {
					t.Errorf("after the fault, the limit %q has %d units left; want %d", limit.Name(), got, want)
				}
			}
		})
	}
}

// Do returns a function that runs commands. Each command is written as in redis-cli.
func Do(commands ...string) func(*testing.T, *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) {
		t.Helper()
		for _, c := range commands {
			Must(t, s, strings.Fields(c)...)
		}
	}
}

// makeBusy starts a script that runs until it is killed. The goroutine that waits for its reply
// ends at the latest when Server.Do times out.
func makeBusy(t *testing.T, s *redistest.Server) {
	t.Helper()
	Must(t, s, "CONFIG", "SET", "busy-reply-threshold", "10")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = s.Do("EVAL", "while true do end", "0")
	}()
	t.Cleanup(func() { <-ended })
	eventually.NoError(t, func() error {
		if _, err := s.Do("PING"); err == nil || !strings.HasPrefix(err.Error(), "BUSY") {
			return fmt.Errorf("not busy yet: %v", err)
		}
		return nil
	})
}

// serverIsLoading restarts a server that takes long to load its data.
func serverIsLoading(t *testing.T, suite Suite) {
	// With 300 µs for each of 4000 keys, the server loads for more than a second. While it loads, it
	// serves clients.
	s := redistest.Start(t, "--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024")
	Must(t, s, "EVAL", "for i = 1, 4000 do redis.call('SET', 'k' .. i, i) end", "0")
	Must(t, s, "SAVE")
	var stores []*redisstore.Store
	for range 2 { // the second one connects while the server loads
		stores = append(stores, NewStore(t, suite.One(t, s.Addr, Options{NoRetries: true}), redisstore.Options{}))
	}
	if _, err := stores[0].Decide(t.Context(), []penstock.Charge{Spend("k", SlowRefill("d", 9), 1)}); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	restarted := make(chan error, 1)
	go func() { restarted <- s.Restart() }()
	for i, store := range stores {
		eventually.NoError(t, func() error {
			_, err := store.Decide(Within(t, time.Second), []penstock.Charge{Spend("k", SlowRefill("d", 9), 1)})
			if err == nil {
				t.Fatalf("store %d: the server decided; want LOADING, but it had loaded its data before the call", i)
			}
			var e *penstock.StoreError
			if !errors.As(err, &e) || e.Reason != penstock.ReasonNotReady || !strings.Contains(err.Error(), "LOADING") {
				return err
			}
			return nil
		})
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	for _, store := range stores {
		eventually.NoError(t, func() error {
			_, err := store.Decide(t.Context(), []penstock.Charge{Spend("k", SlowRefill("d", 9), 1)})
			return err
		})
	}
}

// wrongLogin logs in with wrong names and passwords.
func wrongLogin(t *testing.T, suite Suite) {
	s := redistest.Start(t, "--requirepass", "right")
	for _, login := range []struct {
		name           string
		user, password string
	}{
		{name: "no password"},
		{name: "wrong password", password: "wr0ng-secret"},
		{name: "unknown user", user: "eve", password: "wr0ng-secret"},
	} {
		t.Run(login.name, func(t *testing.T) {
			t.Parallel()
			client := suite.One(t, s.Addr, Options{User: login.user, Password: login.password})
			store := NewStore(t, client, redisstore.Options{})
			_, err := store.Decide(Within(t, time.Minute), []penstock.Charge{Spend("k", SlowRefill("d", 9), 1)})
			WantReason(t, "decide", err, penstock.ReasonPermissionDenied)
			WantReason(t, "ping", store.Ping(Within(t, time.Minute)), penstock.ReasonPermissionDenied)
			if strings.Contains(fmt.Sprint(err), "wr0ng-secret") {
				t.Errorf("%v; want an error that does not show the password", err)
			}
		})
	}
}

// clusterDown kills all replicas and two of three primaries of a Cluster.
func clusterDown(t *testing.T, suite Suite, c *redistest.Cluster) {
	replicas, killedPrimaries := c.Nodes[3:6], c.Nodes[1:3] // the first three nodes are primaries
	for _, node := range slices.Concat(replicas, killedPrimaries) {
		node.Kill()
	}
	eventually.NoError(t, func() error {
		if info := Must(t, c.Nodes[0], "CLUSTER", "INFO").(string); !strings.Contains(info, "cluster_state:fail") {
			return errors.New("the living node does not report cluster_state:fail yet")
		}
		return nil
	})
	store := NewStore(t, suite.Cluster(t, []string{c.Nodes[0].Addr}, Options{NoRetries: true}), redisstore.Options{})
	found := make(map[penstock.Reason]int)
	for i := range 15 { // a third of the keys belong to the living node, the others to dead ones
		_, err := store.Decide(Within(t, time.Minute), []penstock.Charge{Spend(fmt.Sprint("k", i), SlowRefill("d", 9), 1)})
		var e *penstock.StoreError
		if !errors.As(err, &e) {
			t.Fatalf("key %d: %v; want a StoreError", i, err)
		}
		found[e.Reason]++
		if e.Reason != penstock.ReasonNotReady && e.Reason != penstock.ReasonUnreachable && e.Reason != penstock.ReasonLate {
			t.Errorf("key %d: %v; want the reason not_ready, unreachable or late", i, err)
		}
	}
	t.Logf("errors by reason: %v", found)
	if found[penstock.ReasonNotReady] == 0 {
		t.Errorf("the reasons are %v; want not_ready too, for CLUSTERDOWN from the living node", found)
	}
}

// RulesOf returns the ACL rules of the user of a store. The rules allow only what the store needs,
// with keys that begin with "limiter".
func RulesOf(o redisrights.Options) string {
	return redisrights.Rules("limiter", redisrights.Of(o))
}

// allowUser makes the user "limiter", who has no rights except these rules.
func allowUser(t testing.TB, s *redistest.Server, rules string) {
	t.Helper()
	Must(t, s, strings.Fields("ACL SETUSER limiter reset on >secret "+rules)...)
}

// rightsOnOneServer runs the conformance suite as a user who has only the rights of
// redisrights.Of.
func rightsOnOneServer(t *testing.T, suite Suite) {
	s := redistest.Start(t)
	allowUser(t, s, RulesOf(redisrights.Options{}))
	store := NewStore(t, suite.One(t, s.Addr, limiterLogin), redisstore.Options{Prefix: "limiter"})
	storetest.Run(t, func(*testing.T) penstock.Store { return store })
	useTheRest(t, store)
}

// limiterLogin is the login of the user of allowUser.
var limiterLogin = Options{User: "limiter", Password: "secret"}

// useTheRest calls the methods of a store that storetest.Run does not call.
func useTheRest(t *testing.T, store *redisstore.Store) {
	t.Helper()
	if _, err := store.Heartbeat(t.Context(), "an instance", time.Minute); err != nil {
		t.Errorf("Heartbeat: %v; want no error", err)
	}
	read := func(_, _ string) error { return nil }
	if err := store.EvalOnEach(t.Context(), "return redis.call('GET', KEYS[1]) or ''", "unused", nil, read); err != nil {
		t.Errorf("EvalOnEach: %v; want no error", err)
	}
	if err := store.Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v; want no error", err)
	}
}

// rightsOnACluster is rightsOnOneServer on a Cluster, with the rights that the library needs there.
func rightsOnACluster(t *testing.T, suite Suite, c *redistest.Cluster) {
	for _, n := range c.Nodes {
		allowUser(t, n, suite.ClusterRights)
	}
	store := NewStore(t, suite.Cluster(t, c.Addrs(), limiterLogin), redisstore.Options{Prefix: "limiter"})
	storetest.Run(t, func(*testing.T) penstock.Store { return store })
	useTheRest(t, store)
	charge := []penstock.Charge{Spend("k", SlowRefill("d", 9), 1)}
	eventually.NoError(t, func() error { // the layout is queried in the background
		if store.Node(charge) == "" {
			return errors.New("the store does not know the layout of the Cluster")
		}
		return nil
	})
}
