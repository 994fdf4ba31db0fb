// Command backoff limits logins by an algorithm of its own: each attempt doubles the pause before
// the next. With arguments it runs penstock with this algorithm, which policy files may name:
//
//	go run ./examples/backoff validate -v examples/backoff/login.yaml
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/command"
	"github.com/penstock/penstock/memstore"
)

func main() {
	if len(os.Args) > 1 {
		command.Main(Backoff)
	}
	now := time.Now()
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	limit := penstock.Limit{Name: "attempts", Algorithm: Backoff, Count: 1, Period: time.Second, Burst: 10}
	limiter, err := penstock.NewLimiter(store, "login", limit)
	if err != nil {
		log.Fatal(err)
	}
	for range 6 {
		if _, err := limiter.Allow(context.Background(), "user:42"); err != nil {
			log.Fatal(err)
		}
		next, err := limiter.Peek(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("the next attempt must wait", next.RetryAfter())
		now = now.Add(next.RetryAfter())
	}
}
