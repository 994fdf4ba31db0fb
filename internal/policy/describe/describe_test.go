package describe

import (
	"strings"
	"testing"
)

func TestLongLinesAreWrapped(t *testing.T) {
	var p printer
	long := strings.Repeat("x", 150)
	p.line("label", long, long+" "+long, strings.Repeat("word ", 40)+"end")
	wantWords := "label" + long + long + long + strings.Repeat("word", 40) + "end"
	words := strings.Join(strings.Fields(p.String()), "")
	const wantLines = 6
	if lines := strings.Count(p.String(), "\n"); lines != wantLines || !strings.HasSuffix(p.String(), "\n") || words != wantWords {
		t.Errorf("the printer wrote %d lines; want %d lines with the words %q:\n%s", lines, wantLines, wantWords, p.String())
	}
}
