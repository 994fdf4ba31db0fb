package redisstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// server starts a real server for an example. In a program, its URL would be
// redis://localhost:6379.
func server() (url string, stop func()) {
	s, err := redistest.Launch()
	if err != nil {
		log.Fatal(err)
	}
	return s.URL(), s.Close
}

// Two stores, as in two processes, share a limit.
func ExampleOpen() {
	url, stop := server()
	defer stop()
	ctx := context.Background()
	for _, process := range []string{"first", "second"} {
		store, err := redisstore.Open(url, redisstore.Options{})
		if err != nil {
			log.Fatal(err)
		}
		defer store.Close()
		limiter, err := penstock.NewLimiter(store, "search", penstock.PerHour(3))
		if err != nil {
			log.Fatal(err)
		}
		// Optional: it makes the first call as fast as the others, and returns an error if the store is
		// down.
		if err := store.Load(ctx, limiter.Plans()...); err != nil {
			log.Fatal(err)
		}
		for range 2 {
			decision, err := limiter.Allow(ctx, "user:42")
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(process, decision.Allowed)
		}
	}
	// Output:
	// first true
	// first true
	// second true
	// second false
}

// With a Secret, neither the keys in Redis nor a dump of them show who was limited.
func ExampleOptions() {
	url, stop := server()
	defer stop()
	store, err := redisstore.Open(url, redisstore.Options{Prefix: "shop", Secret: []byte("from a secret store")})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := penstock.NewLimiter(store, "checkout", penstock.PerMinute(10))
	if err != nil {
		log.Fatal(err)
	}
	decision, err := limiter.Allow(context.Background(), "alice@example.org")
	fmt.Println(decision.Allowed, err)
	// Output:
	// true <nil>
}

// The reason of an error shows whether the charges may have been made.
func ExampleError() {
	store, err := redisstore.Open("unix:///nowhere/redis.sock", redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := penstock.NewLimiter(store, "search", penstock.PerHour(3))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = limiter.Allow(ctx, "user:42")
	if failure := penstock.AsStoreError(err); failure != nil {
		fmt.Println(failure.Reason)
	}
	// Output:
	// unreachable
}
