package redact

import (
	"fmt"
	"testing"
)

func TestQuotedTextIsRemoved(t *testing.T) {
	for text, want := range map[string]string{
		"dial tcp 127.0.0.1:1: connect: connection refused":                 "dial tcp 127.0.0.1:1: connect: connection refused",
		fmt.Sprintf("malformed HTTP response %q", `a "secret" \`):           `malformed HTTP response "…"`,
		fmt.Sprintf("starting with %q; err=%v", "secret\r\n", "<nil>"):      `starting with "…"; err=<nil>`,
		fmt.Sprintf("got %q and %q", []string{"secret", "\"secret"}, "x\\"): `got ["…" "…"] and "…"`,
		`cut off: "secr`: `cut off: "…"`,
	} {
		if got := Quoted(text); got != want {
			t.Errorf("Quoted changes %s to %s; want %s", text, got, want)
		}
	}
}
