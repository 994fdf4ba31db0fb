package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// newIdentitiesPolicy admits 20 new identities a minute from each address.
const newIdentitiesPolicy = `
identities: {client: {first_of: [{key: header X-API-Key}, ip]}}
rules:
  - name: api
    per: client
    new_identities: 20/min
    limits: [{rate: 5/h}]
`

// A flood of made-up keys fills neither the store nor the limits of others.
func TestInventedIdentitiesAreBoundedByAddress(t *testing.T) {
	effort.SkipUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		gate, seen := gateWith(t, store, newIdentitiesPolicy)
		handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		send := func(address, key string) *httptest.ResponseRecorder {
			r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
			r.RemoteAddr = address + ":1"
			if key != "" {
				r.Header.Set("X-API-Key", key)
			}
			handler.ServeHTTP(w, r)
			return w
		}
		send("192.0.2.1", "known") // the first of 20 new identities
		passed := 0
		var last *httptest.ResponseRecorder
		for i := range 10_000 {
			if last = send("192.0.2.1", fmt.Sprint("made up ", i)); last.Code == 200 {
				passed++
			}
		}
		if passed != 19 || store.Len() != 20 {
			t.Errorf("%d of 10,000 made-up keys passed, and the store has %d counters; want 19 and 20", passed, store.Len())
		}
		if body := last.Body.String(); last.Code != 429 || last.Header().Get("Retry-After") != "3" || !strings.Contains(body, "Too many new identities from this address. Retry after 3s.") ||
			!strings.Contains(body, `"violated-policies":["api.new-identities"]`) {
			t.Errorf("the last response is %d, %v, %s; want a denial of new identities for 3s", last.Code, last.Header(), body)
		}
		if n := seen.count(admission.DeniedNewIdentity); n != 9981 {
			t.Errorf("%d requests are observed as new identities that were denied; want 9981", n)
		}
		if w := send("192.0.2.1", "known"); w.Code != 200 {
			t.Errorf("a known key from the same address: status %d; want 200", w.Code)
		}
		if w := send("192.0.2.1", ""); w.Code != 200 {
			t.Errorf("a request without a key: status %d; want 200", w.Code)
		}
		if w := send("192.0.2.2", "made up 9999"); w.Code != 200 {
			t.Errorf("another address: status %d; want 200", w.Code)
		}
		time.Sleep(3 * time.Second)
		first, second := send("192.0.2.1", "later 1").Code, send("192.0.2.1", "later 2").Code
		if first != 200 || second != 429 {
			t.Errorf("after Retry-After: statuses %d, then %d; want 200, then 429", first, second)
		}
	})
}

// new_identities does not count identities that the policy lists.
func TestOnlyInventedIdentitiesAreNew(t *testing.T) {
	gate, _ := memoryGate(t, `
identities: {client: {first_of: [{user: {header X-User: [a, b]}}, {key: header X-API-Key}, ip]}}
rules:
  - name: api
    per: client
    new_identities: 1/h
    limits: [{rate: 5/h}]
`)
	handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	send := func(name, value string) int {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set(name, value)
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for _, row := range []struct {
		name, value string // of the header
		want        int    // the status
	}{
		{name: "X-User", value: "a", want: 200},
		{name: "X-User", value: "b", want: 200},
		{name: "X-User", value: "c", want: 200},
		{name: "X-API-Key", value: "a", want: 200},
		{name: "X-API-Key", value: "b", want: 429},
		{name: "X-API-Key", value: "a", want: 200},
		{name: "X-User", value: "a", want: 200},
	} {
		if got := send(row.name, row.value); got != row.want {
			t.Errorf("%s: %s: status %d; want %d", row.name, row.value, got, row.want)
		}
	}
}
