package policyfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/jwttest"
	"github.com/penstock/penstock/policy"
)

const beforeAuthPolicy = `
tokens: {secret: "` + jwttest.Secret + `", audience: api, issuer: i}
deny: {claim sub: mallory}
rules:
  - {name: flood, before_auth: true, match: {path: /a/**}, per: ip, limits: [{rate: 5/h}]}
  - {name: api, per: {first_of: [{user: claim sub}, ip]}, limits: [{rate: 10/s}]}
  - {name: open, match: {path: /open}, per: ip, limits: [{rate: 10/s}]}
`

// bearer returns the Authorization header of a client with a valid token.
func bearer(sub string) string {
	return "Bearer " + jwttest.Sign("HS256", []byte(jwttest.Secret), `{"alg":"HS256"}`, fmt.Sprintf(`{"aud":"api","iss":"i","sub":%q,"exp":%d}`, sub, time.Now().Add(time.Hour).Unix()))
}

func TestRulesBeforeAuthAreDecidedBeforeASignatureIsChecked(t *testing.T) {
	rules := rulesOf(t, beforeAuthPolicy)
	var v policy.Evaluation
	wantFirst := func(what string, a testRequest, isComplete bool, charges ...string) {
		t.Helper()
		want(t, what+": EvaluateBeforeAuth returns", rules.EvaluateBeforeAuth(a, &v), isComplete)
		want(t, what+": the charges", chargesOf(&v), charges)
	}
	// isKnown reports whether the signature of a request's token was checked before.
	isKnown := func(a testRequest) bool {
		token, _ := strings.CutPrefix(a.header["Authorization"][0], "Bearer ")
		return rules.Spec().Tokens.Verifier.IsKnown(token)
	}
	anna := testRequest{path: "/a"}.with("Authorization", bearer("anna"))
	wantFirst("without a token", testRequest{path: "/a"}, true, "flood.hour ip:192.0.2.1 1", "api.second ip:192.0.2.1 1")
	wantFirst("with a new token", anna, false, "flood.hour ip:192.0.2.1 1")
	want(t, "the signature of anna's token is checked", isKnown(anna), false)
	rules.EvaluateAfterAuth(anna, &v)
	want(t, "the charges of EvaluateAfterAuth", chargesOf(&v), []string{"api.second user:anna 1"})
	want(t, "the signature of anna's token is checked", isKnown(anna), true)
	wantFirst("with a known token", anna, true, "flood.hour ip:192.0.2.1 1", "api.second user:anna 1")

	forged := testRequest{path: "/a"}.with("Authorization", strings.Replace(bearer("anna"), ".eyJ", ".eyK", 1))
	wantFirst("with a forged token", forged, false, "flood.hour ip:192.0.2.1 1")
	rules.EvaluateAfterAuth(forged, &v)
	want(t, "the charges of EvaluateAfterAuth", chargesOf(&v), []string{"api.second ip:192.0.2.1 1"})
	want(t, "the reason of the token error", v.TokenError.Reason, "signature")
	wantFirst("with a forged token, the second time", forged, true, "flood.hour ip:192.0.2.1 1", "api.second ip:192.0.2.1 1")
	want(t, "the reason of the token error", v.TokenError.Reason, "signature")

	wantFirst("where the rule does not match", testRequest{path: "/b"}.with("Authorization", bearer("bert")), true, "api.second user:bert 1")
	mallory := testRequest{path: "/a"}.with("Authorization", bearer("mallory"))
	wantFirst("a client on the deny list", mallory, false, "flood.hour ip:192.0.2.1 1")
	rules.EvaluateAfterAuth(mallory, &v)
	want(t, "a client on the deny list", v.ListMatch, policy.DenyListed)
	wantFirst("with the header twice", testRequest{path: "/a"}.with("Authorization", "Bearer x", "Authorization", "Bearer y"), true)
	want(t, "with the header twice: is malformed", v.Ambiguous != "", true)
}

// EvaluateBeforeAuth checks no signature for a malformed request, nor for an OPTIONS request with a
// token. The latter is not a preflight, because browsers send preflights without a token.
func TestNoSignatureIsCheckedForUnchargedRequests(t *testing.T) {
	rules := rulesOf(t, `
tokens: {secret: "`+jwttest.Secret+`", audience: api, issuer: i}
deny: {claim sub: mallory}
rules:
  - {name: flood, before_auth: true, per: {first_of: [{key: header X-API-Key}, ip]}, limits: [{rate: 5/h}]}
  - {name: api, per: {first_of: [{user: claim sub}, ip]}, limits: [{rate: 10/s}]}
`)
	preflight := testRequest{method: "OPTIONS"}.with("Origin", "https://a.example", "Access-Control-Request-Method", "GET")
	for _, row := range []struct {
		what        string
		request     testRequest
		isComplete  bool
		isAmbiguous bool
		charges     []string
	}{
		{what: "the key is ambiguous", request: testRequest{}.with("X-API-Key", "a", "X-API-Key", "b"), isComplete: true, isAmbiguous: true},
		{what: "OPTIONS with a token", request: preflight, charges: []string{"flood.hour ip:192.0.2.1 1"}},
	} {
		var v policy.Evaluation
		authorization := bearer("anna" + row.what)
		a := row.request.with("Authorization", authorization)
		want(t, row.what+": EvaluateBeforeAuth returns", rules.EvaluateBeforeAuth(a, &v), row.isComplete)
		want(t, row.what+": is malformed", v.Ambiguous != "", row.isAmbiguous)
		want(t, row.what+": the charges", chargesOf(&v), row.charges)
		want(t, row.what+": the signature is checked", rules.Spec().Tokens.Verifier.IsKnown(strings.TrimPrefix(authorization, "Bearer ")), false)
	}
	var v policy.Evaluation
	rules.EvaluateBeforeAuth(preflight, &v)
	want(t, "a preflight without a token", chargesOf(&v), nil)
}

// chargesOf returns the charges of an evaluation, as "rule.limit key cost".
func chargesOf(v *policy.Evaluation) (texts []string) {
	for i, c := range v.Charges {
		texts = append(texts, fmt.Sprintf("%s %s %d", v.Limits[i].FullName, c.Key, c.Cost))
	}
	return texts
}

func TestIgnoredValuesNameRejectedIdentities(t *testing.T) {
	rules := rulesOf(t, `
tokens: {secret: "`+jwttest.Secret+`", audience: api, issuer: i}
tiers: {partner: [{header X-Partner: [acme, globex]}], other: default}
rules:
  - {name: a, per: {first_of: [{user: claim sub}, {key: {header X-API-Key: [k-1, k-2]}}, {sid: cookie sid}, ip]}, limits: [{rate: {partner: 9/s, other: 1/s}}]}
`)
	for _, row := range []struct {
		request testRequest
		doubts  []string
	}{
		{testRequest{}, nil},
		{testRequest{}.with("X-Api-Key", "k-1", "X-Partner", "acme", "Authorization", bearer("anna")), nil},
		{testRequest{}.with("Authorization", strings.Replace(bearer("anna"), ".eyJ", ".eyK", 1)), []string{"the token is rejected: no trusted key has signed it"}},
		{testRequest{}.with("X-Api-Key", "k-3"), []string{"header X-API-Key is not accepted: its value is not one of the 2 in the policy"}},
		{testRequest{}.with("X-Partner", "umbrella"), []string{"header X-Partner has a value that no tier lists, so the tier is other"}},
	} {
		var v policy.Evaluation
		rules.Evaluate(row.request, &v)
		want(t, row.request, v.IgnoredValues(), row.doubts)
	}
}
