package httplimit_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisstore"
)

// A gate over Redis, with all guards: limits hold while Redis does not answer, each as the policy
// says.
func ExampleNew() {
	rules, err := policy.Load("rules.yaml")
	if err != nil {
		log.Fatal(err)
	}
	store, err := redisstore.Open("redis://localhost:6379", redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	// Of a policy.Watcher w: func(l *penstock.Limit) guard.Settings { return w.Rules().Settings(l) }
	guarded, err := guard.Standard(store, guard.Options{Server: store, Limits: rules.Settings})
	if err != nil {
		log.Fatal(err)
	}
	defer guarded.Close()
	gate, err := httplimit.New(httplimit.Options{Store: guarded, Rules: func() *policy.Rules { return rules }})
	if err != nil {
		log.Fatal(err)
	}
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe(":8080", gate.Middleware(api)))
}

// A client that sends at most 100 requests a minute to each host, waits where a server asks it to,
// and tries again twice.
func ExampleTransport() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("RateLimit", `"api";r=0;t=60`) // nothing is left for a minute
	}))
	defer api.Close()

	store := memstore.New(memstore.Options{}) // over Redis, all processes share the limit
	limiter, err := penstock.NewLimiter(store, "outbound", penstock.PerMinute(100))
	if err != nil {
		log.Fatal(err)
	}
	client := http.Client{Transport: &httplimit.Transport{
		Limiter: limiter,
		MaxWait: 10 * time.Second,
		Retries: 2,
	}}
	for range 2 {
		answer, err := client.Get(api.URL)
		var not *httplimit.NotSentError
		switch {
		case errors.As(err, &not):
			fmt.Println("not sent; ask again in", not.RetryAfter.Round(time.Second))
		case err != nil:
			log.Fatal(err)
		default:
			answer.Body.Close()
			fmt.Println(answer.Status)
		}
	}
	// Output:
	// 200 OK
	// not sent; ask again in 1m0s
}
