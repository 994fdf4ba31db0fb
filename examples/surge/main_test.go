package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
)

// The surge in a time that passes only while all wait: the same riders, service and limits, without
// sockets.
func TestLimitsKeepTheServiceFastInASurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := &url.URL{Scheme: "http", Host: "rides.example.com"}
		service := newBackend()
		alone := surge.run(direct{service}, at, service)

		service = newBackend()
		front, err := proxy("surge.yaml", at, direct{service})
		if err != nil {
			t.Fatal(err)
		}
		limited := surge.run(direct{front}, at, service)
		t.Logf("counted: %d requests of a surge", alone.allowed.TotalCount()+alone.failures+
			limited.allowed.TotalCount()+limited.denied.TotalCount()+limited.failures)
		t.Log("\n" + table(alone, limited))
		for _, wrong := range check(alone, limited) {
			t.Error(wrong)
		}
		if most := 110 + 10/surge.last.Seconds(); limited.backend > most {
			t.Errorf("%.1f requests/s reached the service; its limit admits %.1f", limited.backend, most)
		}
		if least := 0.95 * 110; limited.backend < least {
			t.Errorf("%.1f requests/s reached the service, while more than its limit of 110 were asked", limited.backend)
		}
	})
}

func TestALimiterThatDoesNotHelpIsFoundOut(t *testing.T) {
	alone, limited := newResult(), newResult()
	alone.note(http.StatusOK, 10*time.Second)
	limited.note(http.StatusOK, 2*time.Second)
	limited.note(http.StatusServiceUnavailable, time.Second)
	limited.note(http.StatusTooManyRequests, 3*time.Millisecond)
	if wrong := check(alone, limited); len(wrong) != 3 {
		t.Errorf("of three faults were found: %q", wrong)
	}
}

// direct brings requests to a handler without a network.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	return w.Result(), nil
}
