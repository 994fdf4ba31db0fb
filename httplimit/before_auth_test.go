package httplimit_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A limit with before_auth bounds how many signatures of forged tokens are checked for one address.
func TestLimitBeforeAuthBoundsSignatureChecks(t *testing.T) {
	rules := rulesOf(t, `
tokens: {secret: 0123456789abcdef0123456789abcdef, audience: api}
rules:
  - {name: flood, before_auth: true, per: ip, limits: [{rate: 20/h}]}
  - {name: api, per: {first_of: [{user: claim sub}, global]}, limits: [{rate: 100k/h}]}
`)
	checked := 0
	gate := gateOn(t, controllerOf(t, memstore.New(memstore.Options{}), rules, admission.Options{
		TokenRejected: func(e *policy.TokenError) {
			checked++
			if e.Reason != "signature" {
				t.Errorf("a forged token is rejected with the reason %q: %v; want the reason \"signature\"", e.Reason, e)
			}
		}}))
	handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	b64 := base64.RawURLEncoding.EncodeToString
	const forgedSignature = "AAAA"
	statuses := make(map[int]int)
	var last *httptest.ResponseRecorder
	for i := range 1000 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+b64([]byte(`{"alg":"HS256"}`))+"."+b64(fmt.Appendf(nil, `{"sub":"%d"}`, i))+"."+forgedSignature)
		last = httptest.NewRecorder()
		handler.ServeHTTP(last, r)
		statuses[last.Code]++
	}
	if checked != 20 || statuses[200] != 20 || statuses[429] != 980 {
		t.Errorf("%d signatures were checked, and the counts by status are %v; want 20 checks, 20 times 200 and 980 times 429", checked, statuses)
	}
	if last.Header().Get("Retry-After") == "" || last.Header().Get("RateLimit") == "" {
		t.Errorf("a denial has the headers %v; want Retry-After and RateLimit", last.Header())
	}
}
