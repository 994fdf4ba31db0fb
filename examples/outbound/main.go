// Command outbound sends notifications through a provider that accepts 20 at once and 10 per
// second. None is rejected.
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
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
)

func main() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	defer provider.Close()
	// Over redisstore, all processes that send share the provider's quota.
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "provider", penstock.PerSecond(10).WithBurst(20))
	if err != nil {
		log.Fatal(err)
	}

	// For what is worth nothing later: it is sent at once, or not at all.
	now := &http.Client{Transport: &httplimit.Transport{Limiter: limiter, MaxWait: -1}}
	sent, held, err := send(now, provider.URL, 25)
	fmt.Printf("at once: %d sent, %d not\n", sent, held)
	if err != nil {
		fmt.Println("the last:", err)
	}

	// For what may wait. If the provider still says 429, it is heeded, and the request is sent again
	// when the provider wants it.
	queued := &http.Client{Transport: &httplimit.Transport{Limiter: limiter, MaxWait: 10 * time.Second, Retries: 2}}
	start := time.Now()
	if sent, held, err = send(queued, provider.URL, 5); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("in their turn: %d sent, %d not, in %v\n", sent, held, time.Since(start).Round(10*time.Millisecond))
}

// send sends some notifications, one after the other. It counts those that were sent and those that
// were held back; the error is the last.
func send(client *http.Client, url string, n int) (sent, held int, last error) {
	for range n {
		answer, err := client.Post(url, "text/plain", strings.NewReader("your car is here"))
		var notSent *httplimit.NotSentError
		switch {
		case errors.As(err, &notSent):
			held++
			last = notSent
		case err != nil:
			return sent, held, err
		default:
			answer.Body.Close()
			sent++
		}
	}
	return sent, held, last
}
