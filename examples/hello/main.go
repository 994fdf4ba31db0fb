// Command hello sends 25 requests for a user who may send 20 a minute.
//
// The counter is in memory. With REDIS_URL set, all copies of the program share it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

func main() {
	store := openStore()
	limiter, err := penstock.NewLimiter(store, "hello", penstock.PerMinute(20))
	if err != nil {
		log.Fatal(err)
	}
	for i := range 25 {
		decision, err := limiter.Allow(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err)
		}
		if decision.Allowed {
			fmt.Printf("%2d  allowed, %d left\n", i+1, decision.Status(0).Remaining)
		} else {
			fmt.Printf("%2d  denied, try again in %v\n", i+1, decision.RetryAfter())
		}
	}
}

func openStore() penstock.Store {
	url := os.Getenv("REDIS_URL")
	if url == "" {
		return memstore.New(memstore.Options{})
	}
	store, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return store
}
