package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestSingleServerHasNoNodeName(t *testing.T) {
	t.Parallel()
	s := open(t, redistest.Start(t).URL(), redisstore.Options{})
	charges := []penstock.Charge{{Key: "a", Plan: penstock.PerHour(10).MustCompile(), Cost: 1}}
	if _, err := s.Decide(context.Background(), charges); err != nil {
		t.Fatal(err)
	}
	if name := s.Node(charges); name != "" {
		t.Errorf("the node is %q; want \"\"", name)
	}
}

func TestInstancesAreCountedWhileTheyLive(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := context.Background()
	prefix := newPrefix()
	heartbeat := func(instance string, life time.Duration) int {
		t.Helper()
		n, err := open(t, server.URL(), redisstore.Options{Prefix: prefix}).Heartbeat(ctx, instance, life)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range 5 {
		if n := heartbeat(fmt.Sprint("i", i), time.Hour); n != i+1 {
			t.Errorf("%d instances are counted; want %d", n, i+1)
		}
	}
	if n := heartbeat("i0", time.Hour); n != 5 {
		t.Errorf("after two heartbeats of one instance, %d instances are counted; want 5", n)
	}
	if n := heartbeat("i1", 0); n != 4 {
		t.Errorf("after an instance has left, %d instances are counted; want 4", n)
	}
	heartbeat("short", time.Millisecond)
	eventually.True(t, "the registration with a short life ends", func() bool { return heartbeat("i0", time.Hour) == 4 })
	if ttl, err := server.Do("PTTL", prefix+"1{%@}instances"); err != nil || ttl.(int64) < 3_500_000 || ttl.(int64) > 3_600_000 {
		t.Errorf("the TTL is %v ms, %v; want 3500000 to 3600000", ttl, err)
	}
	for _, bad := range []string{"", strings.Repeat("i", 129)} {
		if _, err := open(t, server.URL(), redisstore.Options{}).Heartbeat(ctx, bad, time.Hour); err == nil || !strings.Contains(err.Error(), "1 to 128") {
			t.Errorf("the instance %.10q: %v; want an error with the permitted length", bad, err)
		}
	}
}

// A layoutClient is a client of several servers on which every decision fails. The client counts
// the queries of the layout.
type layoutClient struct {
	redisstore.Client
	answer        func(ctx context.Context) error
	queries       atomic.Int64
	inFlight, max atomic.Int64 // queries in flight now; the most that were in flight at the same time
}

func (c *layoutClient) Sharded(context.Context) (bool, error) { return true, nil }

func (c *layoutClient) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", errors.New("the connection broke")
}

func (c *layoutClient) Eval(ctx context.Context, _ string, _, _ []string) (string, error) {
	c.max.Store(max(c.max.Load(), c.inFlight.Add(1)))
	defer c.inFlight.Add(-1)
	if c.queries.Add(1) > 10_000 {
		<-ctx.Done() // in a busy loop, the time of synctest would not pass
	}
	return "", c.answer(ctx)
}

func (c *layoutClient) Close() error { return nil }

// However many calls need the layout, and however fast a query fails, there are only a few queries
// per second. Queries run one at a time, except for those that were abandoned.
func TestQueriesOfTheLayoutAreBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	reply := func(text string) func(context.Context) error {
		return func(context.Context) error { return redisstore.ReplyError(text) }
	}
	for _, row := range []struct {
		name         string
		answer       func(context.Context) error
		least, most  int64 // queries in 30 s
		laterAtLeast int64 // in the 65 s after that, which are longer than retryAfterRejection
	}{
		{name: "all servers are dead", answer: func(context.Context) error { return errors.New("refused") }, least: 60, most: 120, laterAtLeast: 100},
		{name: "all servers hang", answer: func(context.Context) error { time.Sleep(time.Second); return errors.New("timeout") }, least: 30, most: 120, laterAtLeast: 60},
		{name: "the Cluster is down", answer: reply("CLUSTERDOWN the cluster is down"), least: 30, most: 60, laterAtLeast: 60},
		{name: "no Cluster", answer: reply("ERR This instance has cluster support disabled script: f"), least: 1, most: 1, laterAtLeast: 1},
		{name: "no such command", answer: reply("ERR Unknown Redis command called from script"), least: 1, most: 1, laterAtLeast: 1},
		{name: "no right", answer: reply("NOPERM this user has no permissions to run the 'cluster|slots' command"), least: 1, most: 1, laterAtLeast: 1},
		{name: "no right in a script", answer: reply("ERR The user executing the script can't run this command or subcommand"), least: 1, most: 1, laterAtLeast: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &layoutClient{answer: row.answer}
				store := newStore(t, client, redisstore.Options{})
				defer store.Close()
				clienttest.Use(store, 30*time.Second)
				queries := client.queries.Load()
				if queries < row.least || queries > row.most {
					t.Errorf("%d queries in 30 s; want %d to %d", queries, row.least, row.most)
				}
				clienttest.Use(store, 65*time.Second)
				if more := client.queries.Load() - queries; more < row.laterAtLeast {
					t.Errorf("%d queries in the next 65 s; want at least %d", more, row.laterAtLeast)
				}
				mostInFlight := int64(1)
				if row.name == "all servers hang" {
					mostInFlight = 4 // a query takes a second, and is abandoned after attemptTimeout, a quarter of that
				}
				if client.max.Load() > mostInFlight {
					t.Errorf("%d queries were in flight at the same time; want at most %d", client.max.Load(), mostInFlight)
				}
				t.Logf("counted: %d queries of the layout", client.queries.Load())
			})
		})
	}
}

// Callers at the same moment start one refresh, also if it ends while they ask for it.
func TestCallersAtOnceStartOneRefresh(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16)) // more threads than cores: they stop anywhere
	synctest.Test(t, func(t *testing.T) {
		client := &layoutClient{answer: func(context.Context) error { return redisstore.ReplyError("CLUSTERDOWN") }}
		store := newStore(t, client, redisstore.Options{})
		defer store.Close()
		charges := []penstock.Charge{{Key: "k", Plan: penstock.PerHour(10).MustCompile(), Cost: 1}}
		_, _ = store.Decide(t.Context(), charges) // learns that there are several servers
		synctest.Wait()
		time.Sleep(time.Second / 2)
		client.queries.Store(0)
		moments := int64(effort.Of(1500, 20_000)) // half a second apart, as refreshes may be
		for range moments {
			var callers sync.WaitGroup
			for range 4 {
				callers.Go(func() {
					for range 40 {
						store.Node(charges)
					}
				})
			}
			callers.Wait()
			time.Sleep(time.Second / 2)
		}
		if queries := client.queries.Load(); queries != moments {
			t.Errorf("%d queries of the layout at %d moments; want one at each", queries, moments)
		}
	})
}

// Close waits for the goroutine that queries the layout, and none is started afterwards.
func TestCloseEndsTheQueryOfTheLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &layoutClient{answer: func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Millisecond)
			return ctx.Err()
		}}
		store := newStore(t, client, redisstore.Options{})
		clienttest.Use(store, 10*time.Millisecond)
		if client.inFlight.Load() != 1 {
			t.Fatalf("%d queries are in flight; want 1", client.inFlight.Load())
		}
		closed := time.Now()
		if err := store.Close(); err != nil || client.inFlight.Load() != 0 {
			t.Errorf("Close returned %v, and %d queries still run; want no error and none", err, client.inFlight.Load())
		}
		if took := time.Since(closed); took != time.Millisecond { // of the time of synctest
			t.Errorf("Close took %v; want 1ms, the time that the query takes to end", took)
		}
		clienttest.Use(store, 5*time.Second)
		if queries := client.queries.Load(); queries != 1 {
			t.Errorf("%d queries after Close; want only the one before", queries)
		}
	})
}
