package redisguard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisguard"
	"github.com/penstock/penstock/redisstore"
)

// patientOptions have a timeout that is long enough for a busy machine.
var patientOptions = redisguard.Options{Guard: guard.Options{Timeout: guard.TimeoutOptions{After: 10 * time.Second}}}

func open(t *testing.T, url string) *redisguard.Store {
	t.Helper()
	s, err := redisguard.Open(url, patientOptions)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func limiter(t *testing.T, store penstock.Store) *penstock.Limiter {
	t.Helper()
	l, err := penstock.NewLimiter(store, "api", penstock.PerHour(3))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestStoresShareLimitsAndOutliveTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first, second := open(t, server.URL()), open(t, server.URL())
	if err := first.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b := limiter(t, first), limiter(t, second)
	if err := first.Load(t.Context(), a.Plans()...); err != nil {
		t.Fatal(err)
	}
	decide := func(l *penstock.Limiter) penstock.Decision {
		t.Helper()
		d, err := l.Allow(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	decide(a)
	decide(b)
	if d := decide(a); !d.Allowed || d.Remaining() != 0 || d.Source != penstock.FromStore {
		t.Errorf("after 3 requests: %v of %v, %d left; want a grant of the store that leaves none", d.Allowed, d.Source, d.Remaining())
	}
	if d := decide(b); d.Allowed {
		t.Errorf("the fourth request of two stores is %v; want denied by the limit of 3", d)
	}

	server.Close()
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	d, err := a.Allow(t.Context(), "another")
	if err != nil || !d.Allowed || d.Source != penstock.FromFallback {
		t.Errorf("without a server: %v of %v, %v; want a grant of the fallback", d.Allowed, d.Source, err)
	}
	if err := first.Ping(t.Context()); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("Ping without a server: %v; want an ErrUnavailable", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for what, open := range map[string]func() (*redisguard.Store, error){
		"a bad URL": func() (*redisguard.Store, error) { return redisguard.Open("http://localhost", redisguard.Options{}) },
		"no client": func() (*redisguard.Store, error) { return redisguard.New(nil, redisguard.Options{}) },
		"a bad prefix": func() (*redisguard.Store, error) {
			return redisguard.Open("redis://localhost", redisguard.Options{Redis: redisstore.Options{Prefix: "a b"}})
		},
		"a server": func() (*redisguard.Store, error) {
			return redisguard.Open("redis://localhost", redisguard.Options{Guard: guard.Options{Server: server{}}})
		},
	} {
		if s, err := open(); !errors.Is(err, penstock.ErrInvalid) || s != nil {
			t.Errorf("%s: %v, %v; want ErrInvalid and no store", what, s, err)
		}
	}
}

// A server is a guard.Server that another package made.
type server struct{}

func (server) Node([]penstock.Charge) string { return "" }

func (server) Heartbeat(context.Context, string, time.Duration) (int, error) { return 1, nil }
