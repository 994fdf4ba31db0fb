package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A discardResponse keeps the header of a response, and discards its status and body.
type discardResponse http.Header

func (w discardResponse) Header() http.Header         { return http.Header(w) }
func (w discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (w discardResponse) WriteHeader(int)             {}

func BenchmarkMiddleware(b *testing.B) {
	gate := gateOn(b, memoryController(b, `
rules:
  - {name: api, match: {path: /api/**}, per: {first_of: [{key: header X-API-Key}, ip]}, limits: [{rate: 1M/s}]}
  - {name: three, match: {path: /three}, per: {key: header X-API-Key}, limits: [{rate: 1M/s}, {rate: 10M/min}, {rate: 100M/h}]}
  - {name: denied, match: {path: /denied}, per: {key: header X-API-Key}, limits: [{rate: 1/h}]}
`))
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for _, path := range []string{"/unlisted", "/api/things/1", "/three", "/denied"} {
		b.Run(path[1:], func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRequest("GET", path, nil)
			r.Header.Set("X-API-Key", "a")
			w := make(discardResponse)
			for b.Loop() {
				clear(w)
				h.ServeHTTP(w, r)
			}
		})
	}
}
