package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A lateClient returns, for each script, the reply of the script before.
type lateClient struct {
	redisstore.Client
	mu    sync.Mutex
	reply string
}

func (c *lateClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	reply, err := c.Client.EvalSha(ctx, digest, keys, args)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	reply, c.reply = c.reply, reply
	return reply, nil
}

// Every kind of script shows that its reply is that of another call. Nothing else does, because the
// replies of one kind have the same size.
func TestReplyOfAnotherCallIsUnknown(t *testing.T) {
	t.Parallel()
	client := dial(redistest.Shared(t).URL())(t)
	limit := penstock.PerDay(1000).With(penstock.FixedWindow)
	for name, plan := range map[string]*penstock.Plan{"single": limit.MustCompile(), "mixed": limit.With(penstock.SlidingLog).MustCompile()} {
		store := redisstore.DisableCoalescing(newStore(t, &lateClient{Client: client}, redisstore.Options{Prefix: newPrefix()}))
		for i := range 3 {
			_, err := store.Decide(t.Context(), []penstock.Charge{spend(fmt.Sprint("k", i), plan, 1)})
			wantUnknown(t, fmt.Sprint(name, " ", i), err)
		}
	}
	for name, plan := range map[string]*penstock.Plan{"uniform": limit.MustCompile(), "mixed, coalesced": limit.With(penstock.SlidingLog).MustCompile()} {
		store := newStore(t, &lateClient{Client: client}, redisstore.Options{Prefix: newPrefix()})
		for i := range 3 {
			list := []*batches.Batch{{Charges: []penstock.Charge{spend("k", plan, 1)}}, {Charges: []penstock.Charge{spend("l", plan, 1)}}}
			batches.Of(store)(t.Context(), list)
			for _, b := range list {
				wantUnknown(t, fmt.Sprint(name, " ", i), b.Err)
			}
		}
	}
}

// After a lost reply, a connection ends even if no more calls are made.
func TestConnectionThatLostAReplyEnds(t *testing.T) {
	t.Parallel()
	for name, losesAll := range map[string]bool{"one reply": false, "all replies": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := clienttest.OneBehindProxy(t)
			proxy := target.Proxies[0]
			option, err := redisclient.ParseURL("redis://" + proxy.Addr())
			if err != nil {
				t.Fatal(err)
			}
			option.PipelineMultiplex = -1 // one connection
			store := redisstore.DisableCoalescing(newStore(t, clienttest.Dial(option), redisstore.Options{}))
			plan := slowRefill("d", 1000)
			remaining(t, store, "k", plan) // the server knows the script
			before := connectionsOf(t, target.Servers[0])
			var replies atomic.Int64
			proxy.Only("EVALSHA")
			proxy.MangleReplies(func(text []byte) []byte {
				if n := replies.Add(1); n == 20 || n > 20 && losesAll {
					return nil
				}
				return text
			})
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for replies.Load() < 20 {
						_, _ = store.Decide(within(t, 200*time.Millisecond), []penstock.Charge{spend("k", plan, 1)})
					}
				})
			}
			all.Wait()
			eventually.True(t, "a connection ends", func() bool {
				now := connectionsOf(t, target.Servers[0])
				return slices.ContainsFunc(before, func(id string) bool { return !slices.Contains(now, id) })
			})
		})
	}
}

// connectionsOf returns the numbers of the connections that stores have to a server.
func connectionsOf(t *testing.T, server *redistest.Server) (ids []string) {
	t.Helper()
	for line := range strings.Lines(must(t, server, "CLIENT", "LIST").(string)) {
		if strings.Contains(line, " name=penstock ") {
			id, _, _ := strings.Cut(line, " ")
			ids = append(ids, id)
		}
	}
	return ids
}

func wantUnknown(t *testing.T, what string, err error) {
	t.Helper()
	wantReason(t, what, err, penstock.ReasonUnknown)
	if e, ok := err.(*penstock.StoreError); ok && !e.MayBeCharged {
		t.Errorf("%s: %v says that nothing was charged; want that it may be charged", what, err)
	}
}
