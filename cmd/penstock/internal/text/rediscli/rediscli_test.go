package rediscli

import (
	"os/exec"
	"testing"
)

func TestShellWordsAreReadBack(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"+set", "+script|load", "~ps1*", "~it's a*", ">s;$(id)`id`\"\\", "", "::1"} {
		out, err := exec.Command("sh", "-c", "printf %s "+Word(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("a shell reads %s as %q, %v; want %q", Word(word), out, err, word)
		}
	}
}
