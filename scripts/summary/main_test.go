package main

import (
	"strings"
	"testing"
)

// summarize returns what is printed for some lines of "go test -json".
func summarize(t *testing.T, lines ...string) (text string, failed bool) {
	t.Helper()
	var out strings.Builder
	s := newSummary(&out)
	if err := s.read(strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	s.print()
	return out.String(), s.failed
}

func TestCountsAreAddedUpByWhatIsCounted(t *testing.T) {
	text, failed := summarize(t,
		`{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:1: counted: 20 twins (seed 7)\n"}`,
		`{"Action":"output","Package":"b","Test":"TestY","Output":"    y_test.go:1: counted: 3 twins\n"}`,
		`{"Action":"output","Package":"b","Test":"TestY","Output":"    y_test.go:1: counted: 5 broken algorithms\n"}`,
		`{"Action":"output","Package":"b","Test":"TestY","Output":"    y_test.go:1: discounted: 5 broken algorithms\n"}`,
		`{"Action":"pass","Package":"b","Test":"TestY"}`,
	)
	for _, want := range []string{"          23      2  twins\n", "           5      1  broken algorithms\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if failed {
		t.Error("a passing run was called a failure")
	}
}

func TestOnlyWhatFailedIsShown(t *testing.T) {
	text, failed := summarize(t,
		`{"Action":"output","Package":"a","Test":"TestGood","Output":"noise\n"}`,
		`{"Action":"output","Package":"a","Test":"TestBad","Output":"the reason\n"}`,
		`{"Action":"pass","Package":"a","Test":"TestGood"}`,
		`{"Action":"fail","Package":"a","Test":"TestBad"}`,
		`{"Action":"fail","Package":"a","Elapsed":1.5}`,
	)
	if !failed || !strings.Contains(text, "the reason") || strings.Contains(text, "noise") {
		t.Errorf("failed %v:\n%s", failed, text)
	}
}

func TestWhatDoesNotCompileFails(t *testing.T) {
	text, failed := summarize(t,
		`{"ImportPath":"a","Action":"build-output","Output":"a.go:1: no\n"}`,
		`{"ImportPath":"a","Action":"build-fail"}`,
		`go: something that is not JSON`,
	)
	if !failed || !strings.Contains(text, "a.go:1: no") || !strings.Contains(text, "not JSON") {
		t.Errorf("failed %v:\n%s", failed, text)
	}
}
