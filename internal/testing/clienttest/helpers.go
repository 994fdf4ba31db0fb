package clienttest

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// NewPrefix returns a prefix that no other test uses.
func NewPrefix() string { return strings.ToLower(rand.Text()[:10]) }

// OpenStore makes a Store of a URL. The Store is closed when the test ends.
func OpenStore(t testing.TB, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// NewStore makes a Store of a client. The Store is closed when the test ends, but not the client.
func NewStore(t testing.TB, client redisstore.Client, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Must runs a command, and ends the test if the command fails.
func Must(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("command %v: %v; want no error", args, err)
	}
	return reply
}

// SlowRefill returns a limit of n units, which are refilled over 8 years: none of them during a
// test.
func SlowRefill(name string, n int64) *penstock.Plan {
	return penstock.Limit{Name: name, Count: n, Period: 8 * 365 * 24 * time.Hour}.MustCompile()
}

// Spend makes a charge of mode Spend.
func Spend(key string, limit *penstock.Plan, cost int64) penstock.Charge {
	return penstock.Charge{Key: key, Plan: limit, Cost: cost}
}

// Remaining returns how many units a limit has left for a key.
func Remaining(t testing.TB, store penstock.Store, key string, limit *penstock.Plan) int64 {
	t.Helper()
	d, err := store.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: limit, Mode: penstock.Peek}})
	if err != nil {
		t.Fatal(err)
	}
	return d.Status(0).Remaining
}

// WantReason fails the test unless err is a StoreError with this reason and a cause, and wraps
// ErrUnavailable.
func WantReason(t testing.TB, what string, err error, reason penstock.Reason) {
	t.Helper()
	var e *penstock.StoreError
	if !errors.As(err, &e) || e.Reason != reason || !errors.Is(err, penstock.ErrUnavailable) || e.Err == nil {
		t.Errorf("%s: %v; want an unavailable StoreError with the reason %v and a cause", what, err, reason)
	}
}

// Within returns a context that ends after the timeout, or when the test ends.
func Within(t testing.TB, timeout time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return ctx
}
