package main

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit/outbound"
	"github.com/penstock/penstock/memstore"
)

func TestRequestsThatMayWaitAreSentAtTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "provider", penstock.PerSecond(10).WithBurst(20))
		if err != nil {
			t.Fatal(err)
		}
		immediate := &http.Client{Transport: &outbound.Transport{Base: accepting{}, Limiter: limiter, MaxWait: -1}}
		if sent, unsent, _ := send(immediate, "http://provider", 25); sent != 20 || unsent != 5 {
			t.Errorf("without waiting: %d sent, %d unsent; want 20 and 5", sent, unsent)
		}
		start := time.Now()
		queued := &http.Client{Transport: &outbound.Transport{Base: accepting{}, Limiter: limiter}}
		if sent, unsent, err := send(queued, "http://provider", 5); sent != 5 || unsent != 0 || err != nil {
			t.Errorf("with waiting: %d sent, %d unsent, %v; want 5 and 0", sent, unsent, err)
		}
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("5 requests at 10 per second took %v; want 500ms", took)
		}
	})
}

// accepting is a provider that accepts every request.
type accepting struct{}

func (accepting) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody, Request: r}, nil
}
