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

func TestASingleServerIsNoShard(t *testing.T) {
	t.Parallel()
	s := open(t, redistest.Start(t).URL(), redisstore.Options{})
	charges := []penstock.Charge{{Key: "a", Plan: penstock.PerHour(10).MustCompile(), Cost: 1}}
	if _, err := s.Decide(context.Background(), charges); err != nil {
		t.Fatal(err)
	}
	if name := s.Node(charges); name != "" {
		t.Errorf("the shard is %q", name)
	}
}

func TestInstancesAreCountedWhileTheyLive(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := context.Background()
	prefix := aPrefix()
	live := func(instance string, life time.Duration) int {
		t.Helper()
		n, err := open(t, server.URL(), redisstore.Options{Prefix: prefix}).Heartbeat(ctx, instance, life)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range 5 {
		if n := live(fmt.Sprint("i", i), time.Hour); n != i+1 {
			t.Errorf("%d instances; want %d", n, i+1)
		}
	}
	if n := live("i0", time.Hour); n != 5 {
		t.Errorf("who is noted twice makes %d", n)
	}
	if n := live("i1", 0); n != 4 {
		t.Errorf("who leaves makes %d", n)
	}
	live("short", time.Millisecond)
	await(t, "the short-lived to end", func() bool { return live("i0", time.Hour) == 4 })
	if ttl, err := server.Do("PTTL", prefix+"1{%@}instances"); err != nil || ttl.(int64) < 3_500_000 || ttl.(int64) > 3_600_000 {
		t.Errorf("the TTL is %v, %v", ttl, err)
	}
	for _, bad := range []string{"", strings.Repeat("i", 129)} {
		if _, err := open(t, server.URL(), redisstore.Options{}).Heartbeat(ctx, bad, time.Hour); err == nil || !strings.Contains(err.Error(), "1 to 128") {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
}

// A quizzed client is one of several servers that decides nothing, and notes how often it is asked
// for the layout.
type quizzed struct {
	redisstore.Client
	answer         func(ctx context.Context) error
	asked, at, max atomic.Int64 // at once
}

func (q *quizzed) Sharded(context.Context) (bool, error) { return true, nil }

func (q *quizzed) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", errors.New("the connection broke")
}

func (q *quizzed) Eval(ctx context.Context, _ string, _, _ []string) (string, error) {
	q.max.Store(max(q.max.Load(), q.at.Add(1)))
	defer q.at.Add(-1)
	if q.asked.Add(1) > 10_000 {
		<-ctx.Done() // a busy loop would not let the bubble's time pass
	}
	return "", q.answer(ctx)
}

func (q *quizzed) Close() error { return nil }

// However many calls want the layout, and however fast the answer fails, it is asked for a few
// times a second, and by one goroutine at a time, besides those that have been given up.
func TestTheLayoutIsAskedForNowAndThen(t *testing.T) {
	effort.WithoutRace(t)
	reply := func(text string) func(context.Context) error {
		return func(context.Context) error { return redisstore.ReplyError(text) }
	}
	for _, row := range []struct {
		name         string
		answer       func(context.Context) error
		least, most  int64 // questions in 30 s
		laterAtLeast int64 // in a minute more
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
				client := &quizzed{answer: row.answer}
				store := over(t, client, redisstore.Options{})
				defer store.Close()
				clienttest.Use(store, 30*time.Second)
				asked := client.asked.Load()
				if asked < row.least || asked > row.most {
					t.Errorf("asked %d times in 30 s; want %d to %d", asked, row.least, row.most)
				}
				clienttest.Use(store, 65*time.Second)
				if more := client.asked.Load() - asked; more < row.laterAtLeast {
					t.Errorf("asked %d times in a minute more; want %d at least", more, row.laterAtLeast)
				}
				most := int64(1)
				if row.name == "all servers hang" {
					most = 4 // questions that were given up
				}
				if client.max.Load() > most {
					t.Errorf("%d asked at once", client.max.Load())
				}
				t.Logf("counted: %d questions for the layout", client.asked.Load())
			})
		})
	}
}

// Close returns after the goroutine that asks for the layout, and there is none afterwards.
func TestCloseEndsTheQuestionForTheLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &quizzed{answer: func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Millisecond)
			return ctx.Err()
		}}
		store := over(t, client, redisstore.Options{})
		clienttest.Use(store, 10*time.Millisecond)
		if client.at.Load() != 1 {
			t.Fatal("nobody asks")
		}
		closed := time.Now()
		if err := store.Close(); err != nil || client.at.Load() != 0 {
			t.Errorf("closed (%v), and %d still ask", err, client.at.Load())
		}
		if took := time.Since(closed); took != time.Millisecond { // of the bubble's time
			t.Errorf("the question went on for %v", took)
		}
		clienttest.Use(store, 5*time.Second)
		if asked := client.asked.Load(); asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}
