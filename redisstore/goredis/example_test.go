package goredis_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
)

// The program's own client is used unchanged, with all its options.
func ExampleNew() {
	server, err := redistest.Launch()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket})
	defer client.Close()

	store, err := redisstore.New(goredis.New(client), redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := penstock.NewLimiter(store, "search", penstock.PerHour(2))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		decision, err := limiter.Allow(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(decision.Allowed)
	}
	// Output:
	// true
	// true
	// false
}
