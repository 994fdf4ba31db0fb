package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/penstock/penstock/memstore"
)

// 20 responses of 100 tokens use up 2,000 tokens. An overdrawn limit recovers by 2,000 tokens per
// hour.
func TestRequestsAreChargedTheirTrueCost(t *testing.T) {
	now := time.Now()
	gate, err := newGate(memstore.New(memstore.Options{Now: func() time.Time { return now }}))
	if err != nil {
		t.Fatal(err)
	}
	handler := service(gate)
	call := func(key string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/v1/completions", nil)
		r.Header.Set("X-API-Key", key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	for i := range 25 {
		want := http.StatusOK
		if i >= 20 {
			want = http.StatusTooManyRequests
		}
		if got := call("a"); got.Code != want {
			t.Fatalf("request %d: status %d; want %d", i+1, got.Code, want)
		}
	}
	if got := call("b"); got.Code != http.StatusOK {
		t.Errorf("another client: status %d; want 200", got.Code)
	}
	now = now.Add(1800 * time.Millisecond) // one token
	if got := call("a"); got.Code != http.StatusOK {
		t.Errorf("with a token left: status %d; want 200", got.Code)
	}
	if got := call("a"); got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") != "180" {
		t.Errorf("with 99 tokens overdrawn: status %d, Retry-After %q; want 429 and 180", got.Code, got.Header().Get("Retry-After"))
	}
}
