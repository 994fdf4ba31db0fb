package clienttest

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// NewPrefix returns a prefix that no other test uses.
func NewPrefix() string { return strings.ToLower(rand.Text()[:10]) }

// OpenStore makes a Store of a URL. It is closed when the test ends.
func OpenStore(t testing.TB, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// NewStore makes a Store of a client, which its owner closes.
func NewStore(t testing.TB, client redisstore.Client, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Must runs a command that cannot fail.
func Must(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("command %v: %v; want no error", args, err)
	}
	return reply
}

// SlowRefill returns a limit whose units are refilled in years.
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

// WantReason checks an error of Decide.
func WantReason(t testing.TB, what string, err error, reason penstock.Reason) {
	t.Helper()
	var e *penstock.StoreError
	if !errors.As(err, &e) || e.Reason != reason || !errors.Is(err, penstock.ErrUnavailable) || e.Err == nil {
		t.Errorf("%s: %v; want an error of reason %v", what, err, reason)
	}
}

// Within returns a context that ends with the test, or after the limit.
func Within(t testing.TB, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// Eventually polls ok until it returns nil. The error of ok names what is missing.
func Eventually(t testing.TB, limit time.Duration, ok func() error) {
	t.Helper()
	start := time.Now()
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("after %v still: %v", limit, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Await polls ready for 20 s at most.
func Await(t testing.TB, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}
