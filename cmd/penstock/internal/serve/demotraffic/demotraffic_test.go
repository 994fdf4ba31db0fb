package demotraffic

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

func TestTrafficHasAnOffenderAndEnds(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	keys := make(map[string]int)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys[r.Header.Get("X-API-Key")]++
		if len(keys) > 3 && keys[Offender] > 1 {
			stop()
		}
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, server.URL)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		mu.Lock() // requests still come
		t.Errorf("the requests have the keys %v; want more than 3 keys, and the offender twice, within a minute", keys)
		mu.Unlock()
	}
	server.Close() // waits for requests
	if keys[""] > 0 {
		t.Errorf("%d requests have no key; want none", keys[""])
	}
}

func TestTrafficStaysWithinABound(t *testing.T) {
	for at := range 180 {
		sum := 0.0
		for _, s := range sources(time.Duration(at) * time.Second) {
			if s.rate < 0 {
				t.Errorf("after %d s, a rate is %f; want none below 0", at, s.rate)
			}
			sum += s.rate
		}
		if sum < 10 || sum > 80 {
			t.Errorf("after %d s, the rate is %f requests a second; want 10 to 80", at, sum)
		}
	}
	if len(clients)+1 >= 20 {
		t.Errorf("there are %d clients; want fewer than 20, because new_identities of the sample rules denies more", len(clients)+1)
	}
}
