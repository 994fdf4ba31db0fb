package migrate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"
)

// startRedis returns a new server, and a client of it.
func startRedis(t *testing.T) (*redistest.Server, *redis.Client) {
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
	server, c := startRedis(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	for name, row := range map[string]struct {
		before, after func() (http.Handler, error)
		want          int // admitted requests
	}{
		"ulule/limiter": {
			before: func() (http.Handler, error) { return ululeBefore(c, api) },
			after:  func() (http.Handler, error) { return ululeAfter(store, api) },
			want:   10,
		},
		"throttled": {
			before: func() (http.Handler, error) { return throttledBefore(c, api) },
			after:  func() (http.Handler, error) { return throttledAfter(store, api) },
			want:   5,
		},
	} {
		before, err := row.before()
		if err != nil {
			t.Fatal(err)
		}
		after, err := row.after()
		if err != nil {
			t.Fatal(err)
		}
		if b, a := countAdmitted(t, before), countAdmitted(t, after); b != row.want || a != row.want {
			t.Errorf("%s: %d of %d requests pass before the migration, and %d after; want %d both times", name, b, requests, a, row.want)
		}
	}
}

func TestRedisRateAdmitsTheSame(t *testing.T) {
	t.Parallel()
	_, c := startRedis(t)
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
			} else if retry <= 0 || retry > 6*time.Second { // a unit comes every 6 s
				t.Errorf("%s: the time to retry after is %v; want more than 0 and at most 6s", name, retry)
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
		t.Errorf("%d requests pass before the migration, and %d after; want 10 both times", b, a)
	}
}
