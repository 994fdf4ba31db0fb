package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/internal/clienttest"
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
			t.Errorf("%d instances; want %d", n, i+1)
		}
	}
	if n := heartbeat("i0", time.Hour); n != 5 {
		t.Errorf("after two heartbeats of one instance, %d instances are counted; want 5", n)
	}
	if n := heartbeat("i1", 0); n != 4 {
		t.Errorf("after an instance has left, %d instances are counted; want 4", n)
	}
	heartbeat("short", time.Millisecond)
	await(t, "the registration with a short life to end", func() bool { return heartbeat("i0", time.Hour) == 4 })
	if ttl, err := server.Do("PTTL", prefix+"1{%@}instances"); err != nil || ttl.(int64) < 3_500_000 || ttl.(int64) > 3_600_000 {
		t.Errorf("the TTL is %v ms, %v; want 3500 to 3600 s", ttl, err)
	}
	for _, bad := range []string{"", strings.Repeat("i", 129)} {
		if _, err := open(t, server.URL(), redisstore.Options{}).Heartbeat(ctx, bad, time.Hour); err == nil || !strings.Contains(err.Error(), "1 to 128") {
			t.Errorf("%.10q: %v; want an error with the permitted length", bad, err)
		}
	}
}

// A layoutClient is a client of several servers that decides nothing. It counts the queries
// of the layout.
type layoutClient struct {
	redisstore.Client
	answer        func(ctx context.Context) error
	queries       atomic.Int64
	inFlight, max atomic.Int64 // queries in flight now, and the most at once
}

func (c *layoutClient) Sharded(context.Context) (bool, error) { return true, nil }

func (c *layoutClient) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", errors.New("the connection broke")
}

func (c *layoutClient) Eval(ctx context.Context, _ string, _, _ []string) (string, error) {
	c.max.Store(max(c.max.Load(), c.inFlight.Add(1)))
	defer c.inFlight.Add(-1)
	if c.queries.Add(1) > 10_000 {
		<-ctx.Done() // a busy loop would not let the bubble's time pass
	}
	return "", c.answer(ctx)
}

func (c *layoutClient) Close() error { return nil }

// However many calls need the layout, and however fast a query fails, there are only a few queries
// per second. They run one at a time, except for those that were abandoned.
func TestQueriesOfTheLayoutAreBounded(t *testing.T) {
	effort.WithoutRace(t)
	reply := func(text string) func(context.Context) error {
		return func(context.Context) error { return redisstore.ReplyError(text) }
	}
	for _, row := range []struct {
		name         string
		answer       func(context.Context) error
		least, most  int64 // queries in 30 s
		laterAtLeast int64 // in the 65 s after that, which are longer than retryAfterRejection
	}{
		{"all servers are dead", func(context.Context) error { return errors.New("refused") }, 60, 120, 100},
		{"all servers hang", func(context.Context) error { time.Sleep(time.Second); return errors.New("timeout") }, 30, 120, 60},
		{"the Cluster is down", reply("CLUSTERDOWN the cluster is down"), 30, 60, 60},
		{"no Cluster", reply("ERR This instance has cluster support disabled script: f"), 1, 1, 1},
		{"no such command", reply("ERR Unknown Redis command called from script"), 1, 1, 1},
		{"no right", reply("NOPERM this user has no permissions to run the 'cluster|slots' command"), 1, 1, 1},
		{"no right in a script", reply("ERR The user executing the script can't run this command or subcommand"), 1, 1, 1},
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
				most := int64(1)
				if row.name == "all servers hang" {
					most = 4 // abandoned queries
				}
				if client.max.Load() > most {
					t.Errorf("%d queries at once; want at most %d", client.max.Load(), most)
				}
				t.Logf("counted: %d queries of the layout", client.queries.Load())
			})
		})
	}
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
		if took := time.Since(closed); took != time.Millisecond { // of the bubble's time
			t.Errorf("Close took %v; want 1ms, the time that the query takes to end", took)
		}
		clienttest.Use(store, 5*time.Second)
		if queries := client.queries.Load(); queries != 1 {
			t.Errorf("%d queries; want 1", queries)
		}
	})
}
