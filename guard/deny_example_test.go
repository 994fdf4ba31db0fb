package guard_test

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

func ExampleDeny() {
	store := penstock.Wrap(memstore.New(memstore.Options{}), guard.Deny(guard.DenyOptions{MaxAge: time.Minute}))
	limiter, err := penstock.NewLimiter(store, "login", penstock.PerHour(2))
	if err != nil {
		panic(err)
	}
	for range 4 {
		d, err := limiter.Allow(context.Background(), "user-17")
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Allowed, d.Source)
	}
	// Output:
	// true store
	// true store
	// false store
	// false deny_cache
}
