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
	wantWords := "label" + long + long + long + strings.Repeat("word", 40) + "end"
	words := strings.Join(strings.Fields(p.String()), "")
	if len(wrapped) != 7 || wrapped[6] != "" || words != wantWords {
		t.Errorf("%d lines; want 6 lines with the words %q:\n%s", len(wrapped)-1, wantWords, p.String())
	}
}
