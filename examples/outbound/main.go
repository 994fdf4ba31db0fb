// Command outbound sends notifications through a provider that accepts 10 per second, and bursts of
// 20. The command paces the notifications, so that the provider rejects none.
package main

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit/outbound"
	"github.com/penstock/penstock/memstore"
)

func main() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	defer provider.Close()
	// With redisstore, all processes share the provider's quota.
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "provider", penstock.PerSecond(10).WithBurst(20))
	if err != nil {
		log.Fatal(err)
	}

	// For messages that are useless later: send them now, or not at all.
	immediate := &http.Client{Transport: &outbound.Transport{Limiter: limiter, MaxWait: -1}}
	sent, unsent, err := send(immediate, provider.URL, 25)
	fmt.Printf("without waiting: %d sent, %d not\n", sent, unsent)
	if err != nil {
		fmt.Println("last error:", err)
	}

	// For messages that may wait. If the provider responds with 429 anyway, the request is sent
	// again after the time in its Retry-After.
	queued := &http.Client{Transport: &outbound.Transport{Limiter: limiter, MaxWait: 10 * time.Second, Retries: 2}}
	start := time.Now()
	if sent, unsent, err = send(queued, provider.URL, 5); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("with waiting: %d sent, %d not, in %v\n", sent, unsent, time.Since(start).Round(10*time.Millisecond))
}

// send sends n notifications, one after another. It returns how many were sent and how many were
// not, and the last error.
func send(client *http.Client, url string, n int) (sent, unsent int, last error) {
	for range n {
		response, err := client.Post(url, "text/plain", strings.NewReader("your car is here"))
		var notSent *outbound.NotSentError
		switch {
		case errors.As(err, &notSent):
			unsent++
			last = notSent
		case err != nil:
			return sent, unsent, err
		default:
			response.Body.Close()
			sent++
		}
	}
	return sent, unsent, last
}
