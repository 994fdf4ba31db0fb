package clienttest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// VariousLimits returns three limits of group "one", which can have a compact script (isCompact),
// and three limits of group "two", which cannot.
func VariousLimits() []*penstock.Plan {
	limits := []penstock.Limit{
		SlowRefill("bucket", 1000).Limit(), SlowRefill("window", 1000).Limit().With(penstock.FixedWindow), SlowRefill("sliding", 1000).Limit().With(penstock.SlidingWindow),
		SlowRefill("leaky", 1000).Limit(), penstock.InFlight(1000, time.Hour), SlowRefill("log", 1000).Limit().With(penstock.SlidingLog),
	}
	var plans []*penstock.Plan
	for i, limit := range limits {
		limit.Group = "one"
		if i >= 3 {
			limit.Group = "two"
		}
		plans = append(plans, limit.MustCompile())
	}
	return plans
}

// DecideVarious decides many batches concurrently: of one limit, of a whole group, of a part of a
// group, and of all limits. limits are those of VariousLimits. All batches must be granted.
func DecideVarious(t *testing.T, s *redisstore.Store, limits []*penstock.Plan) {
	t.Helper()
	var all sync.WaitGroup
	decide := func(keys []string, limits ...*penstock.Plan) {
		var batch []penstock.Charge
		for i, limit := range limits {
			batch = append(batch, penstock.Charge{Key: keys[i%len(keys)], Plan: limit, Cost: 1, Holder: "h"})
		}
		all.Go(func() {
			if d, err := s.Decide(t.Context(), batch); err != nil || !d.Allowed {
				t.Errorf("a batch of %d charges: %v, %v; want a grant", len(limits), d, err)
			}
		})
	}
	for range 20 {
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			for _, limit := range limits {
				decide([]string{key}, limit)
			}
			decide([]string{key}, limits[:3]...)
			decide([]string{key}, limits[:2]...)
			decide([]string{key}, limits[1:3]...)
			decide([]string{key}, limits[0], limits[2])
			decide([]string{key}, limits[3:]...)
			decide([]string{key}, limits...)
			decide([]string{key, key + "2"}, limits...)
		}
	}
	all.Wait()
}

// WantLoadedOnly fails the test if the store has sent anything except EVALSHA and the commands of
// Load.
func WantLoadedOnly(t *testing.T, s *redisstore.Store) {
	t.Helper()
	if missing, loaded, evals := s.Scripts(); missing != 0 || evals != 0 || loaded == 0 {
		t.Errorf("after Load, the store has counted %d missing, %d loaded and %d by EVAL; want only calls of loaded scripts", missing, loaded, evals)
	}
}

// loadedLimits decides with limits whose scripts were loaded before.
func loadedLimits(t *testing.T, suite Suite) {
	server := redistest.Start(t)
	s := NewStore(t, suite.One(t, server.Addr, Options{NoRetries: true, ReplyTimeout: longReplyTimeout}), redisstore.Options{})
	if err := s.Load(t.Context(), VariousLimits()...); err != nil {
		t.Fatal(err)
	}
	DecideVarious(t, s, VariousLimits())
	WantLoadedOnly(t, s)
}

// loadOnACluster loads scripts into every node of a Cluster.
func loadOnACluster(t *testing.T, suite Suite, cluster *redistest.Cluster) {
	var servers []*redistest.Server
	for _, primary := range cluster.Primaries() {
		servers = append(servers, primary, cluster.Replica(primary))
	}
	for _, server := range servers {
		Must(t, server, "SCRIPT", "FLUSH")
	}
	client := &CountingClient{Client: suite.Cluster(t, cluster.Addrs(), Options{ReplyTimeout: longReplyTimeout})}
	s := NewStore(t, client, redisstore.Options{Prefix: NewPrefix()})
	if err := s.Load(t.Context(), VariousLimits()...); err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		WantScripts(t, server, client.Scripts)
	}
	DecideVarious(t, s, VariousLimits())
	WantLoadedOnly(t, s)

	// Only one server loses its scripts.
	Must(t, servers[0], "SCRIPT", "FLUSH")
	DecideVarious(t, s, VariousLimits())
	if missing, _, evals := s.Scripts(); missing == 0 || evals != 0 {
		t.Errorf("after SCRIPT FLUSH on one server, %d scripts were missing, and %d sent by EVAL; want some and none", missing, evals)
	}
}

// WantScripts fails the test if the server does not know all scripts.
func WantScripts(t *testing.T, server *redistest.Server, scripts []string) {
	t.Helper()
	for _, script := range scripts {
		if known := Must(t, server, "SCRIPT", "EXISTS", luagen.Digest(script)).([]any); known[0] != int64(1) {
			t.Errorf("%s does not know the script %s; want all scripts loaded", server.Addr, luagen.Digest(script))
		}
	}
}

// A CountingClient counts the commands that make a script known to a server: EVAL and those of
// Load. Each of these commands waits until Proceed is closed.
type CountingClient struct {
	redisstore.Client
	Loads, Evals atomic.Int64
	Scripts      []string      // of the last Load into every server
	Proceed      chan struct{} // nil: no command waits
}

// oneCallerLoads lets several callers decide concurrently on a server without scripts. Exactly one
// of them must load the script.
func oneCallerLoads(t *testing.T, suite Suite) {
	callers := suite.MaxInFlight
	server := redistest.Start(t)
	client := &CountingClient{Client: suite.One(t, server.Addr, Options{NoRetries: true, ReplyTimeout: longReplyTimeout})}
	s := suite.Open(t, client)
	for round := range int64(2) { // first with a new store, then with a server that has lost its scripts
		if got := client.callConcurrently(t, s, callers, SlowRefill("l", 1000)); got != callers {
			t.Errorf("round %d: %d of %d callers were allowed; want all", round, got, callers)
		}
		if loads, evals := client.Loads.Load(), client.Evals.Load(); loads != round+1 || evals != 0 {
			t.Errorf("round %d: %d loads and %d EVALs; want %d and 0", round, loads, evals, round+1)
		}
		Must(t, server, "SCRIPT", "FLUSH")
	}
	if missing, loaded, evals := s.Scripts(); missing != 2*callers || loaded != 2 || evals != 0 {
		t.Errorf("the store has counted %d missing, %d loaded and %d by EVAL; want %d, 2 and 0", missing, loaded, evals, 2*callers)
	}
	if left := Remaining(t, s, "k", SlowRefill("l", 1000)); left != 1000-2*callers {
		t.Errorf("%d units are left, want %d", left, 1000-2*callers)
	}
}

// oneCallerSendsTheText is oneCallerLoads without the right to load scripts. Exactly one caller
// must send the script by EVAL.
func oneCallerSendsTheText(t *testing.T, suite Suite) {
	callers := suite.MaxInFlight
	server := redistest.Start(t)
	Must(t, server, "ACL", "SETUSER", "default", "-script|load")
	client := &CountingClient{Client: suite.One(t, server.Addr, Options{NoRetries: true, ReplyTimeout: longReplyTimeout})}
	s := suite.Open(t, client)
	limit := SlowRefill("l", 1000)
	err := s.Load(t.Context(), limit)
	var failure *penstock.StoreError
	if !errors.As(err, &failure) || failure.Reason != penstock.ReasonPermissionDenied || !failure.IsPermanent || failure.Hint != "+script|load" {
		t.Fatalf("Load without the right: %v, want an error with the hint +script|load", err)
	}
	if got := client.callConcurrently(t, s, callers, limit); got != callers {
		t.Errorf("%d of %d callers were allowed; want all", got, callers)
	}
	if loads, evals := client.Loads.Load(), client.Evals.Load(); loads != 1 || evals != 1 {
		t.Errorf("%d loads and %d EVALs; want one of each", loads, evals)
	}
	if left := Remaining(t, s, "k", limit); left != 1000-callers {
		t.Errorf("%d units are left, want %d", left, 1000-callers)
	}
}

// wrongDigest loads a script, and gets the digest of another one.
func wrongDigest(t *testing.T, suite Suite) {
	proxy := OneBehindProxy(t).Proxies[0]
	client := suite.One(t, proxy.Addr(), Options{ReplyTimeout: longReplyTimeout})
	if err := client.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Only("SCRIPT")
	proxy.MangleReplies(func([]byte) []byte { return []byte("$40\r\n" + strings.Repeat("0", 40) + "\r\n") })
	err := client.Load(t.Context(), "", []string{"return 1"})
	if err == nil || !strings.Contains(err.Error(), "SHA-1") {
		t.Errorf("a script with a wrong digest: %v; want an error about its SHA-1", err)
	}
}

func (c *CountingClient) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	c.Evals.Add(1)
	c.wait()
	return c.Client.Eval(ctx, script, keys, args)
}

func (c *CountingClient) Load(ctx context.Context, key string, scripts []string) error {
	c.Loads.Add(1)
	if key == "" {
		c.Scripts = slices.Clone(scripts)
	}
	c.wait()
	return c.Client.Load(ctx, key, scripts)
}

func (c *CountingClient) wait() {
	if c.Proceed != nil {
		<-c.Proceed
	}
}

// callConcurrently lets callers decide concurrently, each in a script of its own. All get the reply
// NOSCRIPT before one loads the script. callConcurrently returns how many calls were allowed.
func (c *CountingClient) callConcurrently(t *testing.T, s *redisstore.Store, callers int64, limit *penstock.Plan) (allowed int64) {
	t.Helper()
	c.Proceed = make(chan struct{})
	missingBefore, _, _ := s.Scripts()
	var all sync.WaitGroup
	var granted atomic.Int64
	for range callers {
		all.Go(func() {
			d, err := s.Decide(t.Context(), []penstock.Charge{Spend("k", limit, 1)})
			if err != nil {
				t.Errorf("decide: %v; want no error", err)
			} else if d.Allowed {
				granted.Add(1)
			}
		})
	}
	eventually.True(t, "all callers miss the script", func() bool {
		missing, _, _ := s.Scripts()
		return missing >= missingBefore+callers
	})
	close(c.Proceed)
	all.Wait()
	return granted.Load()
}
