package memstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

func ExampleStore() {
	store := memstore.New(memstore.Options{})
	login, err := penstock.NewLimiter(store, "login", penstock.PerMinute(5).With(penstock.SlidingLog))
	if err != nil {
		log.Fatal(err)
	}
	decision, err := login.Allow(context.Background(), "192.0.2.7")
	fmt.Println(decision.Allowed, err, store.Len())
	// Output:
	// true <nil> 1
}

// With a clock of its own, a test gets exact times, and a program can replay past requests.
func ExampleOptions() {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	limiter, err := penstock.NewLimiter(store, "search", penstock.PerSecond(2).WithBurst(1))
	if err != nil {
		log.Fatal(err)
	}
	for _, milliseconds := range []int{0, 100, 400, 250, 250} {
		now = now.Add(time.Duration(milliseconds) * time.Millisecond)
		decision, err := limiter.Allow(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(now.Format("05.000"), decision.Allowed, decision.RetryAfter())
	}
	// Output:
	// 00.000 true 0s
	// 00.100 false 400ms
	// 00.500 true 0s
	// 00.750 false 250ms
	// 01.000 true 0s
}
