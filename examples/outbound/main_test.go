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
		impatient := &http.Client{Transport: &outbound.Transport{Base: accepting{}, Limiter: limiter, MaxWait: -1}}
		if sent, held, _ := send(impatient, "http://provider", 25); sent != 20 || held != 5 {
			t.Errorf("without waiting: %d sent, %d not", sent, held)
		}
		start := time.Now()
		patient := &http.Client{Transport: &outbound.Transport{Base: accepting{}, Limiter: limiter}}
		if sent, held, err := send(patient, "http://provider", 5); sent != 5 || held != 0 || err != nil {
			t.Errorf("with waiting: %d sent, %d not, %v", sent, held, err)
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
