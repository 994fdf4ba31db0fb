package clienttest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// DeadlinesWhileConnecting makes calls while connections are being made for other calls with longer
// deadlines. No call may wait for longer than its own context allows.
func DeadlinesWhileConnecting(t *testing.T, library Library) {
	target := OneBehindProxy(t)
	p := target.Proxies[0]
	store := NewStore(t, library.One(t, p.Addr(), Options{}), redisstore.Options{})
	charges := []penstock.Charge{Spend("k", penstock.PerDay(1_000_000).MustCompile(), 1)}
	call := func(patience time.Duration) error {
		_, err := store.Decide(Within(t, patience), charges)
		return err
	}
	eventually.NoError(t, func() error { return call(time.Second) })

	CutAll(t, p, func() { _ = call(time.Second) })
	p.DropReplies(true) // loses the replies to HELLO too, so connecting takes long
	patient, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var waiting atomic.Int64
	for range 8 { // so many that the client dials all its connections
		waiting.Add(1)
		go func() {
			defer waiting.Add(-1)
			_, _ = store.Heartbeat(patient, "i", time.Minute)
		}()
	}
	lost := p.Losses()
	eventually.True(t, "an answer to HELLO is lost", func() bool { return p.Losses() > lost })
	for i := range 10 {
		if err := call(10 * time.Millisecond); !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("call %d with a deadline of 10 ms: %v; want an ErrUnavailable", i, err)
		}
	}
	if waiting.Load() == 0 {
		t.Error("all calls without a deadline ended before those with a deadline of 10 ms; want that they still wait")
	}
}

// CutAll closes all connections of a store behind a proxy. call calls the store: each call uses a
// connection, which the proxy then closes.
func CutAll(t testing.TB, p *redistest.Proxy, call func()) {
	t.Helper()
	p.CutOnReply(true)
	for range 10 { // more calls than a client has connections
		call()
	}
	p.CutOnReply(false)
}
