package redisstore_test

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
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

// variousLimits are of two groups: one can be in a row, the other cannot.
func variousLimits() []penstock.Limit {
	limits := []penstock.Limit{
		slow("bucket", 1000), slow("window", 1000).With(penstock.FixedWindow), slow("sliding", 1000).With(penstock.SlidingWindow),
		slow("leaky", 1000), penstock.InFlight(1000, time.Hour), slow("log", 1000).With(penstock.SlidingLog),
	}
	for i := range limits {
		limits[i].Group = "one"
		if i > 2 {
			limits[i].Group = "two"
		}
	}
	return limits
}

// decideVarious decides the batches that the limits allow: each alone, those of a group, some of
// them, all, and many at once.
func decideVarious(t *testing.T, s *redisstore.Store, limits []penstock.Limit) {
	t.Helper()
	var all sync.WaitGroup
	decide := func(keys []string, of ...penstock.Limit) {
		var batch []penstock.Charge
		for i, limit := range of {
			batch = append(batch, penstock.Charge{Key: keys[i%len(keys)], Limit: limit, Cost: 1, Holder: "h"})
		}
		all.Go(func() {
			if d, err := s.Decide(t.Context(), batch); err != nil || !d.Allowed {
				t.Errorf("%d charges: %v, %v", len(of), d, err)
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

func wantLoadedOnly(t *testing.T, s *redisstore.Store) {
	t.Helper()
	if got := s.Scripts(); got.Missing != 0 || got.Evals != 0 || got.Loaded == 0 {
		t.Errorf("after Load, %+v; want nothing but what it loaded", got)
	}
}

func TestLoadedLimitsNeedNoOtherScript(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, m := range bothClients(server) {
		t.Run(m.name, func(t *testing.T) {
			must(t, server, "SCRIPT", "FLUSH")
			s := over(t, m.client(t), redisstore.Options{Prefix: aPrefix()})
			if err := s.Load(t.Context(), variousLimits()...); err != nil {
				t.Fatal(err)
			}
			decideVarious(t, s, variousLimits())
			wantLoadedOnly(t, s)
		})
	}
}

func TestLoadReachesEveryServerOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for _, m := range []maker{{"url", dial("redis+cluster://" + strings.Join(cluster.Addrs(), ","))}, {"go-redis", func(t testing.TB) redisstore.Client {
		return goRedisClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}))
	}}} {
		t.Run(m.name, func(t *testing.T) {
			var servers []*redistest.Server
			for _, primary := range cluster.Primaries() {
				servers = append(servers, primary, cluster.Replica(primary))
			}
			for _, server := range servers {
				must(t, server, "SCRIPT", "FLUSH")
			}
			client := &counting{Client: m.client(t)}
			s := over(t, client, redisstore.Options{Prefix: aPrefix()})
			if err := s.Load(t.Context(), variousLimits()...); err != nil {
				t.Fatal(err)
			}
			for _, server := range servers {
				wantScripts(t, server, client.scripts)
			}
			decideVarious(t, s, variousLimits())
			wantLoadedOnly(t, s)

			// One server alone loses them.
			must(t, servers[0], "SCRIPT", "FLUSH")
			decideVarious(t, s, variousLimits())
			if got := s.Scripts(); got.Missing == 0 || got.Evals != 0 {
				t.Errorf("after SCRIPT FLUSH on one server, %+v; want that scripts were missing, and none sent by EVAL", got)
			}
		})
	}
}

func wantScripts(t *testing.T, server *redistest.Server, scripts []redisstore.Script) {
	t.Helper()
	for _, script := range scripts {
		if known := must(t, server, "SCRIPT", "EXISTS", script.Digest).([]any); known[0] != int64(1) {
			t.Errorf("%s does not know %s", server.Addr, script.Digest)
		}
	}
}

func TestLoadReachesReplicasThatMayBePromoted(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	client := &counting{Client: dial("redis+sentinel://" + strings.Join(sentinel.Addrs(), ",") + "/" + redistest.MasterName)(t)}
	s := over(t, client, redisstore.Options{Prefix: aPrefix()})
	if err := s.Load(t.Context(), variousLimits()...); err != nil {
		t.Fatal(err)
	}
	wantScripts(t, sentinel.Primary, client.scripts)
	wantScripts(t, sentinel.Replica, client.scripts)

	promoted := sentinel.Replica
	if err := sentinel.Failover(); err != nil {
		t.Fatal(err)
	}
	await(t, "the promoted replica to decide", func() bool {
		_, err := s.Decide(t.Context(), []penstock.Charge{spend("k", slow("l", 10), 1)})
		info := must(t, promoted, "INFO", "replication").(string)
		return err == nil && strings.Contains(info, "role:master")
	})
	wantLoadedOnly(t, s)
}

// A counting client counts what is sent, and holds back what has a server learn a script until it
// may go on.
type counting struct {
	redisstore.Client
	missing, loads, evals atomic.Int64
	scripts               []redisstore.Script // that every server was to know
	proceed               chan struct{}       // closed; nil: at once
}

func (c *counting) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	reply, err := c.Client.EvalSha(ctx, digest, keys, args)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		c.missing.Add(1)
	}
	return reply, err
}

func (c *counting) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	c.evals.Add(1)
	c.wait()
	return c.Client.Eval(ctx, script, keys, args)
}

func (c *counting) Load(ctx context.Context, key string, scripts []redisstore.Script) error {
	c.loads.Add(1)
	if key == "" {
		c.scripts = slices.Clone(scripts)
	}
	c.wait()
	return c.Client.Load(ctx, key, scripts)
}

func (c *counting) wait() {
	if c.proceed != nil {
		<-c.proceed
	}
}

const callers = 32

// callAtOnce has callers decide, each in a script of its own, all of whom learn that the server
// does not know it before anybody has it learn. It returns how many were allowed.
func (c *counting) callAtOnce(t *testing.T, s *redisstore.Store, limit penstock.Limit) (allowed int64) {
	t.Helper()
	c.proceed = make(chan struct{})
	before := c.missing.Load()
	var all sync.WaitGroup
	var granted atomic.Int64
	for range callers {
		all.Go(func() {
			d, err := s.Decide(t.Context(), []penstock.Charge{spend("k", limit, 1)})
			if err != nil {
				t.Error(err)
			} else if d.Allowed {
				granted.Add(1)
			}
		})
	}
	await(t, "all callers to miss the script", func() bool { return c.missing.Load() >= before+callers })
	close(c.proceed)
	all.Wait()
	return granted.Load()
}

func TestOneCallerLoadsAndTheOthersWait(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, m := range bothClients(server) {
		t.Run(m.name, func(t *testing.T) {
			must(t, server, "SCRIPT", "FLUSH")
			client := &counting{Client: m.client(t)}
			s := over(t, client, redisstore.Options{Prefix: aPrefix(), Apart: true})
			for round := range int64(2) { // a new store, and a server that has lost its scripts
				if got := client.callAtOnce(t, s, slow("l", 1000)); got != callers {
					t.Errorf("%d of %d callers were allowed", got, callers)
				}
				if loads, evals := client.loads.Load(), client.evals.Load(); loads != round+1 || evals != 0 {
					t.Errorf("round %d: %d loads and %d EVALs; want %d and 0", round, loads, evals, round+1)
				}
				must(t, server, "SCRIPT", "FLUSH")
			}
			if got, want := s.Scripts(), (redisstore.ScriptStats{Missing: 2 * callers, Loaded: 2}); got != want {
				t.Errorf("counted %+v, want %+v", got, want)
			}
			if left := remaining(t, s, "k", slow("l", 1000)); left != 1000-2*callers {
				t.Errorf("%d units are left, want %d", left, 1000-2*callers)
			}
		})
	}
}

func TestWithoutTheRightToLoadOneCallerSendsTheText(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	must(t, server, "ACL", "SETUSER", "default", "-script|load")
	for _, m := range bothClients(server) {
		t.Run(m.name, func(t *testing.T) {
			must(t, server, "SCRIPT", "FLUSH")
			client := &counting{Client: m.client(t)}
			s := over(t, client, redisstore.Options{Prefix: aPrefix(), Apart: true})
			limit := slow("l", 1000)
			err := s.Load(t.Context(), limit)
			var failure *penstock.StoreError
			if !errors.As(err, &failure) || failure.Reason != penstock.ReasonPermissionDenied || !failure.IsPermanent || failure.Hint != "+script|load" {
				t.Fatalf("Load without the right to: %v, want one that is refused and hints at +script|load", err)
			}
			if got := client.callAtOnce(t, s, limit); got != callers {
				t.Errorf("%d of %d callers were allowed", got, callers)
			}
			if loads, evals := client.loads.Load(), client.evals.Load(); loads != 1 || evals != 1 {
				t.Errorf("%d loads and %d EVALs; want one of each", loads, evals)
			}
			if left := remaining(t, s, "k", limit); left != 1000-callers {
				t.Errorf("%d units are left, want %d", left, 1000-callers)
			}
		})
	}
}

// A caller that leaves while a script is loaded has charged nothing, and knows. Others find the
// script there.
func TestCallerLeavesWhileItsScriptIsLoaded(t *testing.T) {
	t.Parallel()
	client := &counting{Client: dial(redistest.Start(t).URL())(t), proceed: make(chan struct{})}
	s := over(t, client, redisstore.Options{Prefix: aPrefix()})
	ctx, leave := context.WithDeadline(t.Context(), time.Now().Add(time.Second))
	defer leave()
	_, err := s.Decide(ctx, []penstock.Charge{spend("k", slow("l", 10), 1)})
	var failure *penstock.StoreError
	if !errors.As(err, &failure) || failure.Reason != penstock.ReasonLate {
		t.Errorf("a caller whose deadline passed: %v, want that it was too late to send it", err)
	}
	close(client.proceed)
	await(t, "the script to be loaded", func() bool { return s.Scripts().Loaded == 1 })
	if left := remaining(t, s, "k", slow("l", 10)); left != 10 {
		t.Errorf("%d of 10 units are left; nothing was to be charged", left)
	}
	if loads, evals := client.loads.Load(), client.evals.Load(); loads != 1 || evals != 0 {
		t.Errorf("%d loads and %d EVALs; want 1 and 0", loads, evals)
	}
}

// A forgetful client's server forgets each script at once.
type forgetful struct{ redisstore.Client }

func (forgetful) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", redisstore.ReplyError("NOSCRIPT No matching script.")
}

func TestServerThatForgetsIsSentTheText(t *testing.T) {
	t.Parallel()
	s := over(t, forgetful{dial(redistest.Start(t).URL())(t)}, redisstore.Options{Prefix: aPrefix()})
	if d, err := s.Decide(t.Context(), []penstock.Charge{spend("k", slow("l", 10), 1)}); err != nil || !d.Allowed {
		t.Errorf("%v, %v", d, err)
	}
	if got := s.Scripts(); got.Evals != 1 {
		t.Errorf("%+v; want one EVAL", got)
	}
}

func TestAnotherDigestIsAnError(t *testing.T) {
	t.Parallel()
	for _, m := range bothClients(redistest.Start(t)) {
		err := m.client(t).Load(t.Context(), "", []redisstore.Script{{Text: "return 1", Digest: strings.Repeat("0", 40)}})
		if err == nil || !strings.Contains(err.Error(), "SHA-1") {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

func TestLoadRefusesWhatIsNoLimit(t *testing.T) {
	t.Parallel()
	s := over(t, &counting{Client: answering{}}, redisstore.Options{})
	if err := s.Load(t.Context(), penstock.Limit{Name: "l"}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a limit without a rate: %v", err)
	}
	if err := s.Load(t.Context()); err != nil {
		t.Errorf("no limits: %v", err)
	}
}
