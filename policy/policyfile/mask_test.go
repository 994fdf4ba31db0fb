package policyfile

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

// A value that contains another is hidden as a whole, and always by the same variable.
func TestLongerValuesAreHiddenWhole(t *testing.T) {
	for _, c := range []struct{ message, want string }{
		{`"correct-horse-battery-staple" is not a rate`, `"${LONG}" is not a rate`},
		{`"correct-horse" is not a rate`, `"${SHORT}" is not a rate`},
		{`"CORRECT-Horse-Battery-staple" is not a rate`, `"${LONG}" is not a rate`},
		{`"Bearer correct-horse-batt..." is not a rate`, `"Bearer ${LONG}..." is not a rate`},
		{`"correct-horse-battery-staple-of-the-hay" is not a rate`, `"${LONG}${AFTER}" is not a rate`},
		{`"correct" is not a rate`, `"correct" is not a rate`},
		{`"with\x00nothing \"seen\"" is not a rate`, `"${ODD}" is not a rate`},
	} {
		for range 20 {
			var m mask
			m.hide("SHORT", "correct-horse")
			m.hide("LONG", "correct-horse-battery-staple")
			m.hide("AFTER", "staple-of-the-hay")
			m.hide("ODD", "with\x00nothing \"seen\"")
			m.hide("TINY", "is not")
			if got := m.apply(c.message); got != c.want {
				t.Fatalf("the message %s is shown as %s; want %s", c.message, got, c.want)
			}
		}
	}
}

// No message contains a whole secret of 8 to 12 bytes, or 12 successive bytes of a longer secret.
// This is true even if values overlap, and if messages clip and quote them.
func TestNoMessageHasASecret(t *testing.T) {
	effort.SkipUnderRace(t)
	templates := []string{ // %q is the place of the secret
		"rules: [{name: %q, per: global, limits: [{rate: 1/s}]}]",
		"rules: [{name: a, per: %q, limits: [{rate: 1/s}]}]",
		"rules: [{name: a, per: {a: %q}, limits: [{rate: 1/s}]}]",
		"rules: [{name: a, per: global, limits: [{rate: %q}]}]",
		"rules: [{name: a, per: global, limits: [{rate: 1/s, algorithm: %q}]}]",
		"rules: [{name: a, per: global, limits: [{rate: 1/s, in_flight: %q, ttl: %[1]q}]}]",
		"rules: [{name: a, match: {path: %q}, per: global, limits: [{rate: 1/s}]}]",
		"rules: [{name: a, match: {host: %q, method: %[1]q}, per: global, limits: [{rate: 1/s}]}]",
		"server: {store: %q, upstream: %[1]q, key_hash_secret: %[1]q}",
		"tokens: {secret: %q, algorithms: [%[1]q], jwks_url: %[1]q, key_file: %[1]q}",
		"allow: [{ip: %q}, {header %[1]q: {file: %[1]q}}]",
		"trusted_proxies: [%q]",
	}
	checked := 0
	for try := range effort.Of(800, 200_000) {
		seed := effort.Seed() + uint64(try)
		rng := rand.New(rand.NewPCG(seed, 5))
		alphabets := []string{"ab", "Ab/", "xyz%:.", "e\"\\", "é\x01\u202e", "0123456789", "éb /?#"}
		letters := []rune(alphabets[rng.IntN(len(alphabets))])
		randomText := func(maxLength int) string {
			text := make([]rune, 1+rng.IntN(maxLength))
			for i := range text {
				text[i] = letters[rng.IntN(len(letters))]
			}
			return string(text)
		}
		base, values := randomText(90), map[string]string{}
		for i := range 1 + rng.IntN(4) { // the values overlap, because all are parts of base
			from := rng.IntN(len(base))
			values[fmt.Sprint("N_", i)] = base[from:from+rng.IntN(len(base)-from)+1] + strings.Repeat(randomText(30), rng.IntN(2))
		}
		env := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
		text := strings.Repeat("#", rng.IntN(2)*rng.IntN(70))
		for name := range values {
			text += "${" + name + "}"
		}
		err := mistakesOf("policy.yaml", fmt.Sprintf(templates[rng.IntN(len(templates))], text), env)
		if err == nil {
			continue
		}
		message := err.Error()
		for name := range values {
			message = strings.ReplaceAll(message, "${"+name+"}", "\n")
		}
		for name, value := range values {
			quoted := strconv.Quote(value)
			for _, form := range []string{value, quoted[1 : len(quoted)-1], url.PathEscape(value), (&url.URL{Path: value}).EscapedPath()} {
				if len(value) < 8 {
					continue
				}
				checked++
				length := min(len(form), 12)
				for i := range len(form) - length + 1 {
					piece := form[i : i+length]
					if strings.Contains(toLowerASCII(message), toLowerASCII(piece)) {
						t.Fatalf("PENSTOCK_SEED=%d: %q of %s=%q is visible in\n%s\nwant it hidden", seed, piece, name, value, err)
					}
				}
			}
		}
	}
	t.Logf("counted: %d forms of secrets searched for in messages", checked)
	// With 2,000 tries there are about 14,400. A try has at most 16, so the deviation is below 400.
	if checked < 1000 {
		t.Errorf("%d forms of secrets were searched for in messages; want at least 1000", checked)
	}
}
