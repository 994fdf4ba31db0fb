package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// If a connection takes longer than a call waits, later calls use it.
func TestSlowConnectionIsUsedByLaterCalls(t *testing.T) {
	t.Parallel()
	target := clienttest.OneBehindProxy(t)
	p := target.Proxies[0]
	store := newStore(t, dial("redis://"+p.Addr())(t), redisstore.Options{})
	charges := []penstock.Charge{spend("k", penstock.PerDay(1_000_000).MustCompile(), 1)}
	call := func() error {
		_, err := store.Decide(within(t, 30*time.Millisecond), charges)
		return err
	}
	eventually.NoError(t, call)
	clienttest.CutAll(t, p, func() { _ = call() })
	p.Delay(100 * time.Millisecond) // each new connection
	eventually.NoError(t, call)
}

// A full server sends its error before any command. If the context of a call ends while rueidis
// dials, rueidis sends no command. When the error of a full server then arrives, rueidis panics,
// which would end the program. Our clients must prevent that.
func TestErrorBeforeAnyCommandDoesNotPanic(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("-ERR max number of clients reached\r\n"))
			_ = conn.Close()
		}
	}()
	var isFull atomic.Bool
	option, err := redisclient.ParseURL("redis://" + server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if !isFull.Load() {
			return dialer.DialContext(ctx, "tcp", address)
		}
		conn, err := dialer.DialContext(ctx, "tcp", l.Addr().String())
		<-ctx.Done()
		return conn, err
	}
	client := clienttest.Dial(option)
	defer client.Close()
	store := redisstore.DisableCoalescing(newStore(t, client, redisstore.Options{}))
	charges := []penstock.Charge{spend("k", penstock.PerDay(1_000_000).MustCompile(), 1)}
	eventually.NoError(t, func() error { _, err := store.Decide(within(t, time.Second), charges); return err })
	isFull.Store(true)
	if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	const calls = 1000
	for i := range calls {
		if _, err := store.Decide(within(t, time.Millisecond), charges); !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("call %d: %v; want an ErrUnavailable", i, err)
		}
	}
	t.Logf("counted: %d calls to a full server that sends its error first", calls)
}

// Close ends connections that are being opened, by a call or in the background, and waits for the
// goroutines that open them.
func TestCloseEndsConnectionsThatAreBeingOpened(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"redis://%s", "redis+cluster://%s", "redis+sentinel://%s/master"} {
		for _, row := range []struct {
			name        string
			isConnected bool // a connection was open before
			isSilent    bool // the server accepts connections, and never answers
		}{
			{name: "the first"},
			{name: "the first, without an answer", isSilent: true},
			{name: "another", isConnected: true},
			{name: "another, without an answer", isConnected: true, isSilent: true},
		} {
			if row.isConnected && format != "redis://%s" {
				continue
			}
			t.Run(fmt.Sprintf(format, "server")+"/"+row.name, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				silentServer, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts connections, and no server answers
				if err != nil {
					t.Fatal(err)
				}
				defer silentServer.Close()
				option, err := redisclient.ParseURL(fmt.Sprintf(format, server.Addr))
				if err != nil {
					t.Fatal(err)
				}
				var isDown atomic.Bool
				isDown.Store(!row.isConnected)
				var dialing, open atomic.Int64
				option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
					if !isDown.Load() {
						return dialer.DialContext(ctx, "tcp", address)
					}
					dialing.Add(1)
					defer dialing.Add(-1)
					if !row.isSilent {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					conn, err := dialer.DialContext(ctx, "tcp", silentServer.Addr().String())
					if err != nil {
						return nil, err
					}
					open.Add(1)
					return &closeRecorder{Conn: conn, closed: sync.OnceFunc(func() { open.Add(-1) })}, nil
				}
				store := newStore(t, clienttest.Dial(option), redisstore.Options{})
				charges := []penstock.Charge{spend("k", penstock.PerDay(1_000_000).MustCompile(), 1)}
				call := func() error {
					_, err := store.Decide(within(t, 20*time.Millisecond), charges)
					return err
				}
				if row.isConnected {
					eventually.NoError(t, call)
					isDown.Store(true)
					if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
						t.Fatal(err)
					}
				}
				eventually.True(t, "a connection is made", func() bool { _ = call(); return dialing.Load()+open.Load() > 0 })
				if err := store.Close(); err != nil {
					t.Errorf("Close: %v; want no error", err)
				}
				if dialing.Load() != 0 || open.Load() != 0 {
					t.Errorf("after Close, %d connections are being dialed and %d are open; want none", dialing.Load(), open.Load())
				}
			})
		}
	}
}

// A closeRecorder is a connection that records when it is closed.
type closeRecorder struct {
	net.Conn
	closed func()
}

func (c *closeRecorder) Close() error {
	c.closed()
	return c.Conn.Close()
}
