package httplimit_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A limit before authentication bounds how many forged tokens per address have their signature
// checked.
func TestLimitBeforeAuthBoundsSignatureChecks(t *testing.T) {
	rules := rulesOf(t, `
tokens: {secret: 0123456789abcdef0123456789abcdef, audience: api}
rules:
  - {name: flood, before_auth: true, per: ip, limits: [{rate: 20/h}]}
  - {name: api, per: {first_of: [{user: claim sub}, global]}, limits: [{rate: 100k/h}]}
`)
	checked := 0
	gate, err := httplimit.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, httplimit.Options{
		TokenRejected: func(e *policy.TokenError) {
			if checked++; e.Reason != "signature" {
				t.Errorf("a forged token is rejected for %s: %v; want the reason signature", e.Reason, e)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	b64 := base64.RawURLEncoding.EncodeToString
	statuses := make(map[int]int)
	var last *httptest.ResponseRecorder
	for i := range 1000 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+b64([]byte(`{"alg":"HS256"}`))+"."+b64(fmt.Appendf(nil, `{"sub":"%d"}`, i))+".AAAA")
		last = httptest.NewRecorder()
		handler.ServeHTTP(last, r)
		statuses[last.Code]++
	}
	if checked != 20 || statuses[200] != 20 || statuses[429] != 980 {
		t.Errorf("%d signatures were checked, and the statuses are %v; want as many as the limit admits, then 429", checked, statuses)
	}
	if last.Header().Get("Retry-After") == "" || last.Header().Get("RateLimit") == "" {
		t.Errorf("a denial has the headers %v; want Retry-After and RateLimit", last.Header())
	}
}
