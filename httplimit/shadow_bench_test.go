package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// BenchmarkCandidate measures how much a candidate slows requests on Redis, with 1 caller and with
// 64, each with its own key.
func BenchmarkCandidate(b *testing.B) {
	server := redistest.Start(b)
	for _, form := range []struct{ name, candidate string }{
		{"none", ""},
		{"same algorithm", ", candidate: {rate: 2M/s}"},
		{"denied", ", candidate: {rate: 1/h}"},
		{"other algorithm", ", candidate: {rate: 2M/s, algorithm: sliding-window}"},
	} {
		text := "rules: [{name: a, per: {key: header X-API-Key}, limits: [{rate: 1M/s" + form.candidate + "}]}]"
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d callers", form.name, callers), func(b *testing.B) {
				store, err := redisstore.Open(server.URL(), redisstore.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer store.Close()
				guarded, err := guard.Standard(store, guard.Options{Server: store, Limits: rulesOf(b, text).Settings})
				if err != nil {
					b.Fatal(err)
				}
				defer guarded.Close()
				gate := gateOn(b, controllerOf(b, guarded, rulesOf(b, text), admission.Options{}))
				h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				b.ResetTimer()
				var all sync.WaitGroup
				for caller := range callers {
					all.Go(func() {
						r := httptest.NewRequest("GET", "/", nil)
						r.Header.Set("X-API-Key", fmt.Sprint(caller))
						w := make(discardResponse)
						for range (b.N + callers - 1) / callers {
							clear(w)
							h.ServeHTTP(w, r)
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}
