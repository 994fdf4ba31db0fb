package jwt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/jwttest"
	"github.com/penstock/penstock/policy"
)

// Each reason has a name, and the result of a signature check is cached.
func TestRejectedTokensHaveAReason(t *testing.T) {
	issuer := newIssuer(t, "ES256", func(tokens *Config) { tokens.Algorithms = nil })
	good := `"aud":"rides","iss":"https://issuer.example/"`
	at := func(d time.Duration) string { return fmt.Sprint(tokenNow.Add(d).Unix()) }
	seen := make(map[string]bool)
	for _, row := range []struct{ token, reason, text string }{
		{token: issuer.token("", `{`+good+`,"exp":`+at(-time.Hour)+`}`), reason: "expired", text: "it expired at " + tokenNow.Add(-time.Hour).UTC().Format(time.RFC3339)},
		{token: issuer.token("", `{`+good+`,"exp":`+at(time.Hour)+`,"nbf":`+at(time.Minute)+`}`), reason: "not_yet_valid", text: "it is not valid yet: nbf "},
		{token: issuer.token("", `{"aud":"rides","iss":"other","exp":`+at(time.Hour)+`}`), reason: "issuer", text: "its iss is not tokens.issuer"},
		{token: issuer.token("", `{"aud":"other","iss":"https://issuer.example/","exp":`+at(time.Hour)+`}`), reason: "audience", text: "its aud does not contain tokens.audience"},
		{token: issuer.token("", `{`+good+`}`), reason: "claims", text: "exp"},
		{token: strings.Replace(issuer.token("", `{`+good+`,"exp":`+at(time.Hour)+`}`), ".eyJ", ".eyK", 1), reason: "signature", text: "no trusted key has signed it"},
		{token: newIssuer(t, "RS256", nil).token(`,"kid":"new"`, `{`+good+`,"exp":`+at(time.Hour)+`}`), reason: "unknown_key", text: "RS256"},
		{token: "opaque", reason: "malformed"},
		{token: "aaaa.bbbb.cccc", reason: "malformed"},
	} {
		for range 2 { // the second result may come from the cache
			_, err := issuer.verifier.Claims(row.token)
			if err == nil || err.Reason != row.reason || !strings.Contains(err.Error(), row.text) {
				t.Errorf("%s: the error is %+v; want the reason %s and a text with %q", row.token, err, row.reason, row.text)
			}
		}
		seen[row.reason] = true
		if isChecked := row.reason != "malformed" && row.reason != "unknown_key"; issuer.verifier.IsKnown(row.token) != isChecked {
			t.Errorf("the reason %s: the signature check is in the cache: %t; want %t", row.reason, !isChecked, isChecked)
		}
	}
	for _, reason := range policy.TokenReasons() {
		if !seen[reason] {
			t.Errorf("there is no token with the reason %s", reason)
		}
	}
}

func TestCacheOfForgedTokensIsBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	issuer := newIssuer(t, "HS256", nil)
	keys := issuer.verifier.keys.Load()
	const size = 4000 // of a token, at least, in bytes
	for i := range 4_000 {
		issuer.verifier.Claims(jwttest.Base64(`{"alg":"HS256"}`) + "." + jwttest.Base64(fmt.Sprintf(`{"sub":"%d","x":"%s"}`, i, strings.Repeat("x", size))) + ".AAAA")
	}
	if n := len(keys.forged.young) + len(keys.forged.old); n < 500 || n > 2*maxGenerationBytes/size {
		t.Errorf("%d forged tokens are cached; want 500 to %d", n, 2*maxGenerationBytes/size)
	}
	if len(keys.genuine.young) > 0 {
		t.Errorf("the cache of genuine tokens has %d forged ones; want none", len(keys.genuine.young))
	}
}

// A token without a key ID is checked with few keys, and only those of its algorithm.
func TestTokensWithoutAKeyIDAreTriedWithFewKeys(t *testing.T) {
	t.Parallel()
	pairs := jwttest.Pairs()
	genuine := jwttest.Sign("ES384", pairs["ES384"][0], `{"alg":"ES384"}`, `{"sub":"x",`+validClaims+`}`)
	forged := jwttest.Sign("ES384", pairs["ES384"][1], `{"alg":"ES384"}`, `{"sub":"x",`+validClaims+`}`)
	good, other := jwttest.JWK(pairs["ES384"][0], ""), jwttest.JWK(pairs["ES256"][0], "")
	set := func(keys, others int) *Verifier {
		var all []string
		for range keys {
			all = append(all, good)
		}
		for range others {
			all = append(all, other)
		}
		return fromSet(t, Config{}, jwttest.JWKS(all...))
	}
	if v := set(MaxKeysTried, MaxKeys-MaxKeysTried); !accepts(v, genuine) || accepts(v, forged) {
		t.Errorf("with %d keys of its algorithm, a genuine token is rejected, or a forged token is accepted", MaxKeysTried)
	}
	_, err := set(MaxKeysTried+1, 0).Claims(genuine)
	if err == nil || !strings.Contains(err.Error(), "any of 9 ES384 keys, and at most 8 are tried") {
		t.Errorf("with %d keys of its algorithm, the error is %v; want an error with the number of keys", MaxKeysTried+1, err)
	}
}
