package redisstore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

// A call that finds a connection being made waits for it no longer than its own context says, also when it is made for another call that has
// more patience.
func TestCallsDoNotWaitForOthersConnections(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(t testing.TB, addr string) redisstore.Client{
		"url": func(t testing.TB, addr string) redisstore.Client { return dial("redis://" + addr)(t) },
		"rueidis": func(t testing.TB, addr string) redisstore.Client {
			option, err := redisstore.ParseURL("redis://" + addr)
			if err != nil {
				t.Fatal(err)
			}
			return rueidisClient(t, option)
		},
		"go-redis": func(t testing.TB, addr string) redisstore.Client {
			return goRedisClient(t, redis.NewClient(&redis.Options{Addr: addr}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := oneBehindProxy(t)
			p := to.proxies[0]
			store := over(t, client(t, p.Addr()), redisstore.Options{})
			charges := []penstock.Charge{spend("k", penstock.PerDay(1_000_000), 1)}
			ask := func(patience time.Duration) error {
				_, err := store.Decide(within(t, patience), charges)
				return err
			}
			eventually(t, 10*time.Second, func() error { return ask(time.Second) })

			cutAll(t, p, func() { _ = ask(time.Second) })
			p.Lose(true) // also the answers to greetings
			patient, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			var waiting atomic.Int64
			for range 8 { // so that all connections are being made
				waiting.Add(1)
				go func() {
					defer waiting.Add(-1)
					_, _ = store.Live(patient, "i", time.Minute)
				}()
			}
			lost := p.Lost()
			await(t, "a greeting to be lost", func() bool { return p.Lost() > lost })
			for i := range 10 {
				if err := ask(10 * time.Millisecond); !errors.Is(err, penstock.ErrUnavailable) {
					t.Fatalf("call %d: %v", i, err)
				}
			}
			if waiting.Load() == 0 {
				t.Error("the calls have waited for as long as those with more patience")
			}
		})
	}
}

// A connection that takes longer to make than a call may wait is made for those who come later.
func TestSlowConnectionIsMadeForThoseWhoComeLater(t *testing.T) {
	t.Parallel()
	to := oneBehindProxy(t)
	p := to.proxies[0]
	store := over(t, dial("redis://"+p.Addr())(t), redisstore.Options{})
	charges := []penstock.Charge{spend("k", penstock.PerDay(1_000_000), 1)}
	ask := func() error {
		_, err := store.Decide(within(t, 30*time.Millisecond), charges)
		return err
	}
	eventually(t, 10*time.Second, ask)
	cutAll(t, p, func() { _ = ask() })
	p.Delay(100 * time.Millisecond) // each new connection
	eventually(t, 10*time.Second, ask)
}

// cutAll ends all connections of a store behind a proxy.
func cutAll(t *testing.T, p *redistest.Proxy, ask func()) {
	t.Helper()
	p.Cut(true)
	for range 10 {
		ask()
	}
	p.Cut(false)
}
