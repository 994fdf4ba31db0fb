package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

func TestRejectedRequestsAreLogged(t *testing.T) {
	var text bytes.Buffer
	gate, err := newGate(slog.New(slog.NewTextHandler(&text, nil)), penstock.PerHour(10))
	if err != nil {
		t.Fatal(err)
	}
	api := gate.Middleware(http.NotFoundHandler())
	for range 100 {
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/search", nil))
	}
	if n := strings.Count(text.String(), "\n"); n != 10 {
		t.Errorf("98 rejected requests wrote %d lines; want 10:\n%s", n, &text)
	}
	for _, want := range []string{`msg="request rejected" rule=search limit=`, " outcome=denied source=store retry_after="} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the lines lack %q:\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), "192.0.2.1") {
		t.Errorf("a line contains the client's address, which is the key:\n%s", &text)
	}
}
