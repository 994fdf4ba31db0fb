package bearer

import (
	"strings"
	"testing"
)

func TestTokensAreReadAndCompared(t *testing.T) {
	secret := NewSecret([]byte("right"))
	for _, c := range []struct {
		values  []string // of the Authorization header
		hasForm bool     // the header has the form "Bearer TOKEN"
		isRight bool     // its token is that of secret
	}{
		{nil, false, false}, {[]string{""}, false, false}, {[]string{"Bearer"}, false, false}, {[]string{"Bearer "}, false, false},
		{[]string{"Basic right"}, false, false}, {[]string{"right"}, false, false}, {[]string{"Bearer right", "Bearer right"}, false, false},
		{[]string{"Bearer right"}, true, true}, {[]string{"bearer right"}, true, true}, {[]string{"Bearer right "}, true, false},
		{[]string{"Bearer  right"}, true, false}, {[]string{"Bearer wrong"}, true, false}, {[]string{"Bearer righ"}, true, false},
		{[]string{"Bearer " + strings.Repeat("a", 4096)}, true, false}, {[]string{"Bearer " + strings.Repeat("a", 4097)}, false, false},
	} {
		token, ok := Token(c.values)
		if ok != c.hasForm || secret.Matches(token) != c.isRight {
			t.Errorf("%.40q: has the form %v, matches the secret %v; want %v, %v", c.values, ok, secret.Matches(token), c.hasForm, c.isRight)
		}
	}
	if none := NewSecret(nil); none.IsSet() || none.Matches("") || (Secret{}).Matches("") || !secret.IsSet() {
		t.Error("an unset secret is set or matches the empty token, or a set secret is not set")
	}
}
