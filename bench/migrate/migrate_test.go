package migrate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"
)

func client(t *testing.T) (*redistest.Server, *redis.Client) {
	server := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket})
	t.Cleanup(func() { _ = c.Close() })
	return server, c
}

const requests = 15 // more than any limit of this package admits at once

// countAdmitted sends requests to a handler, and returns how many got 200. All others must get 429.
func countAdmitted(t *testing.T, handler http.Handler) (n int) {
	t.Helper()
	for range requests {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-API-Key", "a")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK:
			n++
		case http.StatusTooManyRequests:
		default:
			t.Errorf("the status is %d; want 200 or 429", w.Code)
		}
	}
	return n
}

var api = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func TestMiddlewareAdmitsTheSame(t *testing.T) {
	t.Parallel()
	server, c := client(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	for name, open := range map[string]struct {
		before, after func() (http.Handler, error)
		want          int // admitted requests
	}{
		"ulule/limiter": {func() (http.Handler, error) { return ululeBefore(c, api) }, func() (http.Handler, error) { return ululeAfter(store, api) }, 10},
		"throttled":     {func() (http.Handler, error) { return throttledBefore(c, api) }, func() (http.Handler, error) { return throttledAfter(store, api) }, 5},
	} {
		before, err := open.before()
		if err != nil {
			t.Fatal(err)
		}
		after, err := open.after()
		if err != nil {
			t.Fatal(err)
		}
		if b, a := countAdmitted(t, before), countAdmitted(t, after); b != open.want || a != open.want {
			t.Errorf("%s: %d of %d requests pass before the migration, and %d after; want %d", name, b, requests, a, open.want)
		}
	}
}

func TestRedisRateAdmitsTheSame(t *testing.T) {
	t.Parallel()
	_, c := client(t)
	after, err := redisRateAfter(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, allow := range map[string]func(context.Context, string) (bool, time.Duration, error){"before": redisRateBefore(c), "after": after} {
		n := 0
		for range requests {
			allowed, retry, err := allow(context.Background(), "user:42")
			if err != nil {
				t.Fatal(err)
			}
			if allowed {
				n++
			} else if retry <= 0 || retry > 6*time.Second {
				t.Errorf("%s: retry after %v; want more than 0 and at most 6s", name, retry)
			}
		}
		if n != 10 {
			t.Errorf("%s: %d of %d requests pass; want 10", name, n, requests)
		}
	}
}

func TestXTimeRateAdmitsTheSame(t *testing.T) {
	t.Parallel()
	before := &perUser{limiters: make(map[string]*rate.Limiter)}
	after, err := newPerUser(memstore.New(memstore.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	b, a := 0, 0
	for range requests {
		if before.allow("user:42") {
			b++
		}
		allowed, err := allow(context.Background(), after, "user:42")
		if err != nil {
			t.Fatal(err)
		}
		if allowed {
			a++
		}
	}
	if b != 10 || a != 10 {
		t.Errorf("%d requests pass before the migration, and %d after; want 10", b, a)
	}
}
