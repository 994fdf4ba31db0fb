package outbound_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit/outbound"
	"github.com/penstock/penstock/memstore"
)

// A client that sends at most 100 requests a minute to each host, waits while a server demands a
// pause, and tries again twice.
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
	client := http.Client{Transport: &outbound.Transport{
		Limiter: limiter,
		MaxWait: 10 * time.Second,
		Retries: 2,
	}}
	for range 2 {
		response, err := client.Get(api.URL)
		var notSent *outbound.NotSentError
		switch {
		case errors.As(err, &notSent):
			fmt.Println("not sent; try again in", notSent.RetryAfter.Round(time.Second))
		case err != nil:
			log.Fatal(err)
		default:
			response.Body.Close()
			fmt.Println(response.Status)
		}
	}
	// Output:
	// 200 OK
	// not sent; try again in 1m0s
}
