package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
)

// The surge is that of main, with the same riders, service and limits, but without sockets.
func TestLimitsKeepTheServiceFastInASurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &url.URL{Scheme: "http", Host: "rides.example.com"}
		service := newBackend(surge.poolTimeout)
		alone := surge.run(direct{service}, target, service)

		service = newBackend(surge.poolTimeout)
		front, err := proxy("surge.yaml", target, direct{service})
		if err != nil {
			t.Fatal(err)
		}
		limited := surge.run(direct{front}, target, service)
		t.Logf("counted: %d requests of a surge", alone.allowed.TotalCount()+alone.failures+
			limited.allowed.TotalCount()+limited.denied.TotalCount()+limited.failures)
		t.Log("\n" + table(alone, limited))
		for _, failure := range check(alone, limited) {
			t.Error(failure)
		}
		// The rule backend of surge.yaml admits 110/s, with bursts of 10.
		if most := 110 + 10/surge.duration.Seconds(); limited.backend > most {
			t.Errorf("%.1f requests/s reached the service; want at most %.1f", limited.backend, most)
		}
		if least := 0.95 * 110; limited.backend < least {
			t.Errorf("%.1f requests/s reached the service; want at least %.1f, because the load exceeds the limit", limited.backend, least)
		}
	})
}

func TestCheckFindsALimiterThatDoesNotHelp(t *testing.T) {
	alone, limited := newResult(), newResult()
	alone.record(http.StatusOK, 10*time.Second)
	limited.record(http.StatusOK, 2*time.Second)
	limited.record(http.StatusServiceUnavailable, time.Second)
	limited.record(http.StatusTooManyRequests, 3*time.Millisecond)
	if failures := check(alone, limited); len(failures) != 3 {
		t.Errorf("check found %q; want three failures", failures)
	}
}

// direct calls a handler without a network.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	return w.Result(), nil
}
