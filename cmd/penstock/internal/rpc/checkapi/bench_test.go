package checkapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A body can be read again after Seek.
type body struct{ *strings.Reader }

func (body) Close() error { return nil }

// A discard is a ResponseWriter that drops the response.
type discard struct {
	http.ResponseWriter
	header http.Header
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// The API has little to collect as garbage for each check.
func TestCheckAllocatesLittle(t *testing.T) {
	effort.SkipUnderRace(t)
	s := newAmpleService(t)
	text := body{strings.NewReader(`{"rule":"search","key":"user:42"}`)}
	r := httptest.NewRequest("POST", "/v1/check", text)
	r.Header["Content-Type"] = []string{"application/json"}
	r.Header["Authorization"] = []string{"Bearer " + callerToken}
	w := &discard{header: make(http.Header)}
	const most = 27
	if n := testing.AllocsPerRun(100, func() {
		_, _ = text.Seek(0, io.SeekStart)
		s.ServeHTTP(w, r)
	}); n > most {
		t.Errorf("a check makes %.0f allocations; want at most %d", n, most)
	}
}

// BenchmarkCheck measures a decision in JSON with counters in memory. BenchmarkBareHandler is the
// lower bound of that time: it reads the same body and writes a response of the same length.
func BenchmarkCheck(b *testing.B) { bench(b, newAmpleService(b)) }

// newAmpleService makes a service that admits all requests of the rule search.
func newAmpleService(t testing.TB) *Service {
	compiled := rulesOf(t, "rules: [{name: search, per: {user: header X-User}, limits: [{name: second, rate: 1000000/s}]}]")
	store := memstore.New(memstore.Options{})
	controller, err := admission.New(store, compiled, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(store, controller, Options{CallerToken: []byte(callerToken)})
	if err != nil {
		t.Fatal(err)
	}
	return s
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
