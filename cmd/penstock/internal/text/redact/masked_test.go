package redact

import (
	"strings"
	"testing"
)

func TestMaskedKeysAreRecognized(t *testing.T) {
	name := func(key string) string { return key }
	identities := Identities{Show: ShowMasked, Secret: []byte("secret"), Name: name, Key: func(name string) (string, bool) { return name, true }}
	const isOperator = false
	for _, key := range []string{"key:customer-4711", "key:abc", "ip:192.0.2.1", "ip:2001:db8::/64", "org:7,ip:192.0.2.1", "unknown", "rides|api_key=customer"} {
		if IsMasked(key) {
			t.Errorf("IsMasked(%q) is true; want false, because it is a key", key)
		}
		for _, masked := range []string{identities.Of(isOperator, key), Mask(key)} {
			if isNetwork := !strings.Contains(masked, "…") && !strings.Contains(masked, "#"); !isNetwork && !IsMasked(masked) {
				t.Errorf("IsMasked(%q) is false; want true for the mask of %s", masked, key)
			}
		}
	}
	for _, key := range []string{"", "global", "key:a#498afa0a", "key:a…", "key:…b#498afa0", "ip:192.0.2.0/24", "key:customer…customer"} {
		if IsMasked(key) {
			t.Errorf("IsMasked(%q) is true; want false, because no mask has this form", key)
		}
	}
}

// The key of all clients together names nobody.
func TestTheKeyOfAllClientsIsNotMasked(t *testing.T) {
	if got := Mask("global"); got != "global" {
		t.Errorf("Mask of global is %s; want global", got)
	}
	hash := func(key string) string { return "%" + key }
	for _, show := range []string{ShowOff, ShowMasked, ShowFull} {
		want := "global"
		if show == ShowOff {
			want = ""
		}
		for _, isOperator := range []bool{false, true} {
			readable := Identities{Show: show, Secret: []byte("secret"), Name: func(key string) string { return key }, Key: func(name string) (string, bool) { return name, true }}
			hashed := Identities{Show: show, Secret: []byte("secret"), Name: hash, Key: func(string) (string, bool) { return "", false }}
			if got := readable.Of(isOperator, "global"); got != want {
				t.Errorf("with %s, an operator (%t) sees %q; want %q", show, isOperator, got, want)
			}
			if got := hashed.Of(isOperator, hash("global")); got != want {
				t.Errorf("with %s and a hash in the store, an operator (%t) sees %q; want %q", show, isOperator, got, want)
			}
		}
	}
}
