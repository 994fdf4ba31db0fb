package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const beforeAuth = `
tokens: {secret: "` + secretOfTests + `", audience: api, issuer: i}
deny: {claim sub: mallory}
rules:
  - {name: flood, before_auth: true, match: {path: /a/**}, per: address, limits: [{rate: 5/h}]}
  - {name: api, per: {first: [{user: claim sub}, address]}, limits: [{rate: 10/s}]}
  - {name: open, match: {path: /open}, per: address, limits: [{rate: 10/s}]}
`

func bearer(sub string) string {
	return "Bearer " + signed("HS256", []byte(secretOfTests), `{"alg":"HS256"}`, fmt.Sprintf(`{"aud":"api","iss":"i","sub":%q,"exp":%d}`, sub, time.Now().Add(time.Hour).Unix()))
}

func TestRulesBeforeAuthAreDecidedBeforeASignatureIsChecked(t *testing.T) {
	rules := rulesOf(t, beforeAuth)
	var v Verdict
	first := func(what string, a asked, whole bool, charges ...string) {
		t.Helper()
		want(t, what+": is that all", rules.AssessFirst(a, &v), whole)
		want(t, what, chargesOf(&v), charges)
	}
	known := func(a asked) bool {
		token, _ := strings.CutPrefix(a.header["Authorization"][0], "Bearer ")
		return rules.verifier.knows(token)
	}
	anna := asked{path: "/a"}.with("Authorization", bearer("anna"))
	first("without a token", asked{path: "/a"}, true, "flood.hour ip:192.0.2.1 1", "api.second ip:192.0.2.1 1")
	first("with a new one", anna, false, "flood.hour ip:192.0.2.1 1")
	want(t, "its signature is checked", known(anna), false)
	rules.AssessRest(anna, &v)
	want(t, "the rest", chargesOf(&v), []string{"api.second user:anna 1"})
	want(t, "its signature is checked", known(anna), true)
	first("the second time", anna, true, "flood.hour ip:192.0.2.1 1", "api.second user:anna 1")

	forged := asked{path: "/a"}.with("Authorization", strings.Replace(bearer("anna"), ".eyJ", ".eyK", 1))
	first("with a forged one", forged, false, "flood.hour ip:192.0.2.1 1")
	rules.AssessRest(forged, &v)
	want(t, "the rest", chargesOf(&v), []string{"api.second ip:192.0.2.1 1"})
	want(t, "why", v.TokenError.Reason, "signature")
	first("the second time", forged, true, "flood.hour ip:192.0.2.1 1", "api.second ip:192.0.2.1 1")
	want(t, "why", v.TokenError.Reason, "signature")

	first("where the rule does not match", asked{path: "/b"}.with("Authorization", bearer("bert")), true, "api.second user:bert 1")
	mallory := asked{path: "/a"}.with("Authorization", bearer("mallory"))
	first("who is refused", mallory, false, "flood.hour ip:192.0.2.1 1")
	rules.AssessRest(mallory, &v)
	want(t, "who is refused", v.Listed, Refused)
	first("twice", asked{path: "/a"}.with("Authorization", "Bearer x", "Authorization", "Bearer y"), true)
	want(t, "twice is malformed", v.Unclear != "", true)
}

// Nothing is charged for a malformed request, nor for a preflight, so no signature is checked for
// them.
func TestNoSignatureIsCheckedForWhatIsNotCharged(t *testing.T) {
	rules := rulesOf(t, `
tokens: {secret: "`+secretOfTests+`", audience: api, issuer: i}
deny: {claim sub: mallory}
rules:
  - {name: flood, before_auth: true, per: {first: [{key: header X-API-Key}, address]}, limits: [{rate: 5/h}]}
  - {name: api, per: {first: [{user: claim sub}, address]}, limits: [{rate: 10/s}]}
`)
	preflight := asked{method: "OPTIONS"}.with("Origin", "https://a.example", "Access-Control-Request-Method", "GET")
	for _, row := range []struct {
		what    string
		a       asked
		whole   bool
		unclear bool
		charges []string
	}{
		{"who pays is unclear", asked{}.with("X-API-Key", "a", "X-API-Key", "b"), true, true, nil},
		{"a preflight with a token", preflight, false, false, []string{"flood.hour ip:192.0.2.1 1"}},
	} {
		var v Verdict
		authorization := bearer("anna" + row.what)
		a := row.a.with("Authorization", authorization)
		want(t, row.what+": is that all", rules.AssessFirst(a, &v), row.whole)
		want(t, row.what+": is it malformed", v.Unclear != "", row.unclear)
		want(t, row.what, chargesOf(&v), row.charges)
		want(t, row.what+": its signature is checked", rules.verifier.knows(strings.TrimPrefix(authorization, "Bearer ")), false)
	}
	var v Verdict
	rules.AssessFirst(preflight, &v)
	want(t, "a preflight without", chargesOf(&v), nil)
}

func chargesOf(v *Verdict) (texts []string) {
	for i, c := range v.Charges {
		texts = append(texts, fmt.Sprintf("%s %s %d", v.Limits[i].Policy, c.Key, c.Cost))
	}
	return texts
}

// Each reason has a name of its own, and what a signature check has found is remembered.
func TestTokensThatAreNotBelievedSayWhy(t *testing.T) {
	issuer := newIssuer(t, "ES256", func(tokens *Tokens) { tokens.Algorithms = nil })
	good := `"aud":"rides","iss":"https://issuer.example/"`
	at := func(d time.Duration) string { return fmt.Sprint(tokenNow.Add(d).Unix()) }
	seen := make(map[string]bool)
	for _, row := range []struct{ token, reason, text string }{
		{issuer.token("", `{`+good+`,"exp":`+at(-time.Hour)+`}`), "expired", "it expired at " + tokenNow.Add(-time.Hour).UTC().Format(time.RFC3339)},
		{issuer.token("", `{`+good+`,"exp":`+at(time.Hour)+`,"nbf":`+at(time.Minute)+`}`), "not_yet_valid", "it is not valid yet: nbf "},
		{issuer.token("", `{"aud":"rides","iss":"other","exp":`+at(time.Hour)+`}`), "issuer", "its iss is not tokens.issuer"},
		{issuer.token("", `{"aud":"other","iss":"https://issuer.example/","exp":`+at(time.Hour)+`}`), "audience", "its aud has not tokens.audience"},
		{issuer.token("", `{`+good+`}`), "claims", "exp"},
		{strings.Replace(issuer.token("", `{`+good+`,"exp":`+at(time.Hour)+`}`), ".eyJ", ".eyK", 1), "signature", "no trusted key has signed it"},
		{newIssuer(t, "RS256", nil).token(`,"kid":"new"`, `{`+good+`,"exp":`+at(time.Hour)+`}`), "unknown_key", "RS256"},
		{"opaque", "malformed", ""},
		{"aaaa.bbbb.cccc", "malformed", ""},
	} {
		for range 2 {
			_, err := issuer.v.verify(row.token)
			if err == nil || err.Reason != row.reason || !strings.Contains(err.Error(), row.text) {
				t.Errorf("%s: %v; want %s: %s", row.token, err, row.reason, row.text)
			}
		}
		seen[row.reason] = true
		if checked := row.reason != "malformed" && row.reason != "unknown_key"; issuer.v.knows(row.token) != checked {
			t.Errorf("%s: a signature is checked once, and remembered: %v", row.reason, !checked)
		}
	}
	for _, reason := range TokenReasons() {
		if !seen[reason] {
			t.Errorf("there is no token with the reason %s", reason)
		}
	}
}

func TestForgedTokensAreRememberedInBoundedMemory(t *testing.T) {
	issuer := newIssuer(t, "HS256", nil)
	keys := issuer.v.keys.Load()
	for i := range 10_000 {
		issuer.v.verify(b64(`{"alg":"HS256"}`) + "." + b64(fmt.Sprintf(`{"sub":"%d","x":"%s"}`, i, strings.Repeat("x", 4000))) + ".AAAA")
	}
	if n := len(keys.forged.young) + len(keys.forged.old); n < 500 || n > 2*seenSizeMax/4000 {
		t.Errorf("%d forged tokens are remembered", n)
	}
	if len(keys.seen.young) > 0 {
		t.Error("they take the place of others")
	}
}

func TestDoubtsSayWhyTheClientIsNotWhoItSays(t *testing.T) {
	rules := rulesOf(t, `
tokens: {secret: "`+secretOfTests+`", audience: api, issuer: i}
tiers: {partner: [{header X-Partner: [acme, globex]}], other: otherwise}
rules:
  - {name: a, per: {first: [{user: claim sub}, {key: {header X-API-Key: [k-1, k-2]}}, {sid: cookie sid}, address]}, limits: [{rate: {partner: 9/s, other: 1/s}}]}
`)
	for _, row := range []struct {
		a    asked
		says []string
	}{
		{asked{}, nil},
		{asked{}.with("X-Api-Key", "k-1", "X-Partner", "acme", "Authorization", bearer("anna")), nil},
		{asked{}.with("Authorization", strings.Replace(bearer("anna"), ".eyJ", ".eyK", 1)), []string{"the token is rejected: no trusted key has signed it"}},
		{asked{}.with("X-Api-Key", "k-3"), []string{"header X-Api-Key is not accepted: its value is not one of the 2 in the policy"}},
		{asked{}.with("X-Partner", "umbrella"), []string{"header X-Partner is not accepted: its value is not one of the 2 in the policy"}},
	} {
		var v Verdict
		rules.Assess(row.a, &v)
		want(t, row.a, v.Doubts(), row.says)
	}
}
