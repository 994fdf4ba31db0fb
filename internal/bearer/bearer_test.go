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
		{values: nil},
		{values: []string{""}},
		{values: []string{"Bearer"}},
		{values: []string{"Bearer "}},
		{values: []string{"Basic right"}},
		{values: []string{"right"}},
		{values: []string{"Bearer right", "Bearer right"}},
		{values: []string{"Bearer right"}, hasForm: true, isRight: true},
		{values: []string{"bearer right"}, hasForm: true, isRight: true},
		{values: []string{"Bearer right "}, hasForm: true},
		{values: []string{"Bearer  right"}, hasForm: true},
		{values: []string{"Bearer wrong"}, hasForm: true},
		{values: []string{"Bearer righ"}, hasForm: true},
		{values: []string{"Bearer " + strings.Repeat("a", 4096)}, hasForm: true},
		{values: []string{"Bearer " + strings.Repeat("a", 4097)}},
	} {
		token, ok := Token(c.values)
		if ok != c.hasForm || secret.Matches(token) != c.isRight {
			t.Errorf("Authorization %.40q: has the form %v, matches the secret %v; want %v and %v", c.values, ok, secret.Matches(token), c.hasForm, c.isRight)
		}
	}
	if none := NewSecret(nil); none.IsSet() || none.Matches("") || (Secret{}).Matches("") || !secret.IsSet() {
		t.Error("a Secret without a token is set or matches the empty token, or a Secret of a token is not set; want none of these")
	}
}
