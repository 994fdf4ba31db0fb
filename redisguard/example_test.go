package redisguard_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/redisguard"
)

// The instances of a service share a limit of 100 requests a minute for each user. While Redis does
// not answer, each instance enforces its share of the limit.
func ExampleOpen() {
	store, err := redisguard.Open("redis://localhost:6379", redisguard.Options{Guard: guard.Options{
		OnStoreError: func(e guard.Event) { log.Print("Redis did not decide: ", e.Err) }, // once per decision
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	gate, err := httplimit.PerKey(store, "api", penstock.PerMinute(100), func(r *http.Request) string {
		return r.Header.Get("X-User-Id") // an earlier handler must check the user
	})
	if err != nil {
		log.Fatal(err)
	}
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe(":8080", gate.Middleware(api)))
}
