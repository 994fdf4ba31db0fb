package guard_test

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// Standard puts all guards around a store, usually Redis. While the store does not answer, each
// instance enforces its share of the limits.
func ExampleStandard() {
	redis := newFaulty() // redisstore.Open makes a real one
	store, err := guard.Standard(redis, guard.Options{
		Instances: 4, // with a redisstore.Store, set Server instead, which counts them
		Limits: func(l *penstock.Plan) guard.Settings {
			if l.Name() == "login" {
				return guard.Settings{OnFailure: guard.FailClosed}
			}
			return guard.Settings{}
		},
		Lease:        guard.LeaseOptions{Life: 500 * time.Millisecond, MaxKeys: 20_000}, // of limits whose Settings have a Lease
		OnStoreError: func(e guard.Event) { fmt.Println("no answer:", e.Reason) },
	})
	if err != nil {
		panic(err)
	}
	defer store.Close()

	ctx := context.Background()
	search, err := penstock.NewLimiter(store, "search", penstock.PerMinute(100).WithName("search"))
	if err != nil {
		panic(err)
	}
	login, err := penstock.NewLimiter(store, "login", penstock.PerMinute(5).WithName("login"))
	if err != nil {
		panic(err)
	}
	call := func(l *penstock.Limiter) {
		d, err := l.Allow(ctx, "user-17")
		fmt.Println(d.Allowed, d.Source, d.Remaining(), err)
	}
	call(search)
	redis.setFault(failWith(errDown))
	call(search) // one unit of this instance's share of 25 is already spent
	call(login)
	// Output:
	// true store 99 <nil>
	// no answer: unknown
	// true fallback 23 <nil>
	// no answer: unknown
	// false closed 0 <nil>
}

// Guards can be used one by one. The first one is outside: the Fallback decides while the Breaker
// calls no store.
func ExampleBreaker() {
	redis := newFaulty() // redisstore.Open makes a real one
	store := penstock.Wrap(redis,
		guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailOpen, MaxCounters: 10_000}),
		guard.Breaker(guard.BreakerOptions{
			Failures: 2, // in a row
			Pause:    time.Second, MaxPause: time.Minute,
			Changed: func(_ string, from, to guard.State) { fmt.Println("the breaker was", from, "and is", to) },
		}),
	)
	limiter, err := penstock.NewLimiter(store, "search", penstock.PerMinute(100))
	if err != nil {
		panic(err)
	}
	redis.setFault(failWith(errDown))
	for range 3 {
		d, err := limiter.Allow(context.Background(), "user-17")
		fmt.Println(d.Allowed, d.Source, err)
	}
	// Output:
	// true open <nil>
	// the breaker was closed and is open
	// true open <nil>
	// true open <nil>
}
