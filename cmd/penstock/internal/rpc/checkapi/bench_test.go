package checkapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

// BenchmarkCheck measures a decision in JSON with counters in memory. BenchmarkBareHandler is the
// lower bound of that time: it reads the same body and writes a response of the same length.
func BenchmarkCheck(b *testing.B) {
	compiled := rulesOf(b, "rules: [{name: search, per: {user: header X-User}, limits: [{name: second, rate: 1000000/s}]}]")
	store := memstore.New(memstore.Options{})
	controller, err := admission.New(store, compiled, admission.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(store, controller, Options{CallerToken: []byte(callerToken)})
	if err != nil {
		b.Fatal(err)
	}
	bench(b, s)
}

func BenchmarkBareHandler(b *testing.B) {
	const length = 240 // bytes of a response in BenchmarkCheck
	text := []byte(strings.Repeat("a", length))
	bench(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, err := readBody(w, r, nil); err != nil {
			b.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(text)
	}))
}

func bench(b *testing.B, h http.Handler) {
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/v1/check", strings.NewReader(`{"rule":"search","key":"user:42"}`))
		r.Header["Content-Type"] = []string{"application/json"}
		r.Header["Authorization"] = []string{"Bearer " + callerToken}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 200 {
			b.Fatalf("the response is %d %s; want 200", w.Code, w.Body)
		}
	}
}
