package describe

import (
	"strings"
	"testing"
)

func TestLongLinesAreWrapped(t *testing.T) {
	var p printer
	long := strings.Repeat("x", 150)
	p.line("label", long, long+" "+long, strings.Repeat("word ", 40)+"end")
	wrapped := strings.Split(p.String(), "\n")
	if len(wrapped) != 7 || wrapped[6] != "" || strings.Join(strings.Fields(p.String()), "") != "label"+long+long+long+strings.Repeat("word", 40)+"end" {
		t.Errorf("words are missing, or there are too many lines:\n%s", p.String())
	}
}
