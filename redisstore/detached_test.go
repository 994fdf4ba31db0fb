package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A slowClient takes an hour for a script, even if the context ends. Once it is healed, it replies
// LOADING immediately.
type slowClient struct {
	redisstore.Client
	isHealed     atomic.Bool
	running, max atomic.Int64                    // calls that run now; the most that have run at the same time
	given        atomic.Pointer[context.Context] // the context of the last call
}

func (c *slowClient) Sharded(context.Context) (bool, error) { return false, nil }

func (c *slowClient) EvalSha(ctx context.Context, _ string, _, _ []string) (string, error) {
	if c.isHealed.Load() {
		return "", redisstore.ReplyError("LOADING")
	}
	c.given.Store(&ctx)
	n := c.running.Add(1)
	defer c.running.Add(-1)
	for most := c.max.Load(); n > most && !c.max.CompareAndSwap(most, n); most = c.max.Load() {
	}
	time.Sleep(time.Hour)
	return "", errors.New("it took an hour")
}

func (c *slowClient) Close() error { return nil }

// Whatever a client does, callers return at their deadlines, and the number of calls that they
// leave running is bounded.
func TestCallersReturnAtTheirDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := new(slowClient)
		store := redisstore.DisableCoalescing(newStore(t, client, redisstore.Options{}))
		charges := []penstock.Charge{spend("k", penstock.PerHour(10).MustCompile(), 1)}
		decide := func() (time.Duration, penstock.Reason) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := store.Decide(ctx, charges)
			failure, ok := errors.AsType[*penstock.StoreError](err)
			if !ok {
				t.Fatalf("Decide returned %v; want a StoreError", err)
			}
			return time.Since(began), failure.Reason
		}
		const (
			callers      = 2000
			maxAbandoned = 1024 // as in package redisclient
		)
		timedOut, rejected := 0, 0
		for range callers {
			switch took, reason := decide(); {
			case reason == penstock.ReasonTimeout && took == 20*time.Millisecond:
				timedOut++
			case reason == penstock.ReasonUnreachable && took == 0:
				rejected++
			default:
				t.Fatalf("a decision ended after %v with reason %v; want a timeout after 20ms or \"unreachable\" after 0s", took, reason)
			}
		}
		if timedOut != maxAbandoned || rejected != callers-maxAbandoned || client.max.Load() != maxAbandoned {
			t.Errorf("%d callers waited for the deadline, %d got an error immediately, and %d calls ran at the same time; want %d, %d and %d",
				timedOut, rejected, client.max.Load(), maxAbandoned, callers-maxAbandoned, maxAbandoned)
		}
		client.isHealed.Store(true)
		time.Sleep(time.Hour)
		if _, reason := decide(); reason != penstock.ReasonNotReady {
			t.Errorf("after all calls have ended, a decision fails with the reason %v; want %v, the reason of LOADING", reason, penstock.ReasonNotReady)
		}
	})
}

// The context that a client gets outlasts the caller by 5 s. If the store is closed earlier, the
// context ends then. Err of the context returns an error as soon as the caller has left.
func TestContextOfACallOutlastsItsCaller(t *testing.T) {
	for _, row := range []struct {
		name     string
		isClosed bool          // the store is closed after lasts
		lasts    time.Duration // how long the context must last after the caller has left
	}{
		{name: "the caller leaves", lasts: 5 * time.Second},
		{name: "the store is closed", isClosed: true, lasts: time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := new(slowClient)
				store := newStore(t, client, redisstore.Options{})
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				go store.Decide(ctx, []penstock.Charge{spend("k", penstock.PerHour(10).MustCompile(), 1)})
				synctest.Wait()
				given := *client.given.Load()
				// The client may wait for a reply 1 s longer than the caller (overtime of package redisclient).
				if at, ok := given.Deadline(); given.Err() != nil || !ok || time.Until(at) != 20*time.Millisecond+time.Second {
					t.Errorf("while the caller waits, Err is %v and the deadline in %v; want nil and 1.02s", given.Err(), time.Until(at))
				}
				time.Sleep(20 * time.Millisecond)
				synctest.Wait()
				left := time.Now()
				if given.Err() == nil {
					t.Error("after the caller has left, the context's Err is nil; want an error")
				}
				if row.isClosed {
					time.AfterFunc(row.lasts, func() { _ = store.Close() })
				}
				<-given.Done()
				if took := time.Since(left); took != row.lasts {
					t.Errorf("the context ended after %v; want %v", took, row.lasts)
				}
				time.Sleep(time.Hour) // the call ends
			})
		})
	}
}

// Close ends the waits of all callers, also without a deadline. Scripts that were sent may have
// charged.
func TestCloseEndsTheWaitsOfCallers(t *testing.T) {
	for _, isCoalescing := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore(t, new(slowClient), redisstore.Options{})
			if !isCoalescing {
				redisstore.DisableCoalescing(store)
			}
			ended := make(chan error, 10)
			for range cap(ended) {
				go func() {
					_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", penstock.PerHour(10).MustCompile(), 1)})
					ended <- err
				}()
			}
			time.Sleep(time.Minute)
			if len(ended) > 0 {
				t.Fatalf("before the store was closed, a caller returned %v; want it to wait", <-ended)
			}
			closed := time.Now()
			_ = store.Close()
			for range cap(ended) {
				err := <-ended
				failure, ok := errors.AsType[*penstock.StoreError](err)
				if !ok || !failure.MayBeCharged && failure.Reason != penstock.ReasonUnreachable {
					t.Errorf("Decide returned %v; want a StoreError with MayBeCharged, or with the reason unreachable", err)
				}
			}
			if took := time.Since(closed); took > time.Second {
				t.Errorf("after Close, the callers waited for %v; want at most 1s", took)
			}
			time.Sleep(time.Hour) // the calls end
		})
	}
}

// Calls that follow each other use one goroutine.
func TestCallsShareTheirGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := new(goroutineCounter)
		store := redisstore.DisableCoalescing(newStore(t, client, redisstore.Options{}))
		for range 100 {
			_, _ = store.Decide(t.Context(), []penstock.Charge{spend("k", penstock.PerHour(10).MustCompile(), 1)})
		}
		if n := len(client.seen); n != 1 {
			t.Errorf("100 calls used %d goroutines; want 1", n)
		}
	})
}

// A goroutineCounter is a client that records which goroutines call it.
type goroutineCounter struct {
	slowClient
	seen map[string]bool
}

func (c *goroutineCounter) EvalSha(context.Context, string, []string, []string) (string, error) {
	text := make([]byte, 64)
	// The text begins with the number of the goroutine: "goroutine 7 [running]".
	name, _, _ := strings.Cut(string(text[:runtime.Stack(text, false)]), " [")
	if c.seen == nil {
		c.seen = make(map[string]bool)
	}
	c.seen[name] = true
	return "", redisstore.ReplyError("LOADING")
}

// A panickingClient panics in each call.
type panickingClient struct{ slowClient }

func (*panickingClient) EvalSha(context.Context, string, []string, []string) (string, error) {
	panic("a bug")
}

func TestPanicOfAClientIsAnError(t *testing.T) {
	store := newStore(t, new(panickingClient), redisstore.Options{})
	_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", penstock.PerHour(10).MustCompile(), 1)})
	if failure, ok := errors.AsType[*penstock.StoreError](err); !ok || !failure.MayBeCharged {
		t.Errorf("Decide returned %v; want a StoreError with MayBeCharged", err)
	}
}

// A stuckConn blocks in Close until release is closed.
type stuckConn struct {
	net.Conn
	closing *atomic.Int64
	release chan struct{}
}

func (s *stuckConn) Close() error {
	s.closing.Add(1)
	<-s.release
	return s.Conn.Close()
}

// No caller dials or closes a connection: each returns at its deadline, although dialing and
// closing never end.
func TestNoCallerDialsOrCloses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	option, err := redisclient.ParseURL("redis://" + server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var isDialStuck atomic.Bool
	var dialing, closing atomic.Int64
	release := make(chan struct{})
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if isDialStuck.Load() {
			dialing.Add(1)
			<-release
		}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return &stuckConn{Conn: conn, closing: &closing, release: release}, nil
	}
	store := redisstore.DisableCoalescing(newStore(t, clienttest.Dial(option), redisstore.Options{}))
	charges := []penstock.Charge{spend("k", penstock.PerDay(1_000_000).MustCompile(), 1)}
	call := func() error {
		_, err := store.Decide(within(t, 20*time.Millisecond), charges)
		return err
	}
	eventually.NoError(t, call)
	isDialStuck.Store(true)
	server.Pause() // then a call is abandoned, and its connection is closed
	eventually.True(t, "a connection is closed", func() bool { _ = call(); return closing.Load() > 0 })
	server.Resume()
	if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "a connection is dialed", func() bool { _ = call(); return dialing.Load() > 0 })
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if err := call(); !errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("without a connection: %v; want an ErrUnavailable", err)
			}
		})
	}
	all.Wait() // it would never end if a caller dialed
	close(release)
	eventually.NoError(t, call)
}

// No caller dials a connection to a Cluster or behind Sentinels either. When all connections are
// lost and none can be made, each caller returns at its deadline. Once connections can be made
// again, the store decides again.
func TestNoCallerDialsOnSeveralServers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (url string, nodes []*redistest.Server){
		"cluster": func(t *testing.T) (string, []*redistest.Server) {
			c := redistest.StartCluster(t)
			return "redis+cluster://" + strings.Join(c.Addrs(), ","), c.Nodes
		},
		"sentinel": func(t *testing.T) (string, []*redistest.Server) {
			s := redistest.StartSentinel(t)
			return "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName, []*redistest.Server{s.Primary}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, nodes := start(t)
			option, err := redisclient.ParseURL(url)
			if err != nil {
				t.Fatal(err)
			}
			var isDialStuck atomic.Bool
			var dialing atomic.Int64
			release := make(chan struct{})
			option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
				if isDialStuck.Load() {
					dialing.Add(1)
					<-release
				}
				return dialer.DialContext(ctx, "tcp", address)
			}
			store := newStore(t, clienttest.Dial(option), redisstore.Options{})
			call := func(i int, patience time.Duration) error {
				_, err := store.Decide(within(t, patience), []penstock.Charge{spend(fmt.Sprint("k", i), penstock.PerDay(1_000_000).MustCompile(), 1)})
				return err
			}
			for i := range 30 { // enough keys for all servers
				eventually.NoError(t, func() error { return call(i, time.Second) })
			}
			isDialStuck.Store(true)
			for _, n := range nodes {
				if _, err := n.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
					t.Fatal(err)
				}
			}
			eventually.True(t, "a connection is dialed", func() bool { _ = call(0, 20*time.Millisecond); return dialing.Load() > 0 })
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					if err := call(i%30, 20*time.Millisecond); !errors.Is(err, penstock.ErrUnavailable) {
						t.Errorf("without a connection: %v; want an ErrUnavailable", err)
					}
				})
			}
			all.Wait() // it would never end if a caller dialed
			close(release)
			for i := range 30 {
				eventually.NoError(t, func() error { return call(i, time.Second) })
			}
		})
	}
}
