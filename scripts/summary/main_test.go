package main

import (
	"strings"
	"testing"
)

// summarize returns the summary of some lines of "go test -json".
func summarize(t *testing.T, lines ...string) (text string, hasFailed bool) {
	t.Helper()
	var out strings.Builder
	s := newSummary(&out)
	if err := s.read(strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	s.print()
	return out.String(), s.hasFailed
}

func TestCountsAreAddedUpByName(t *testing.T) {
	text, failed := summarize(t,
		`{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:1: counted: 20 twins (seed 7)\n"}`,
		`{"Action":"output","Package":"b","Test":"TestY","Output":"    y_test.go:1: counted: 3 twins\n"}`,
		`{"Action":"output","Package":"b","Test":"TestY","Output":"    y_test.go:1: counted: 5 broken algorithms\n"}`,
		`{"Action":"output","Package":"b","Test":"TestY","Output":"    y_test.go:1: discounted: 5 broken algorithms\n"}`,
		`{"Action":"pass","Package":"b","Test":"TestY"}`,
	)
	for _, want := range []string{"          23      2  twins\n", "           5      1  broken algorithms\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the summary does not contain %q:\n%s", want, text)
		}
	}
	if failed {
		t.Error("the summary of tests that pass reports a failure; want none")
	}
}

func TestOnlyOutputOfFailedTestsIsShown(t *testing.T) {
	text, failed := summarize(t,
		`{"Action":"output","Package":"a","Test":"TestGood","Output":"noise\n"}`,
		`{"Action":"output","Package":"a","Test":"TestBad","Output":"the reason\n"}`,
		`{"Action":"pass","Package":"a","Test":"TestGood"}`,
		`{"Action":"fail","Package":"a","Test":"TestBad"}`,
		`{"Action":"fail","Package":"a","Elapsed":1.5}`,
	)
	if !failed || !strings.Contains(text, "the reason") || strings.Contains(text, "noise") {
		t.Errorf("the summary reports a failure: %v; want true, and only the output of TestBad in:\n%s", failed, text)
	}
}

func TestFailedBuildIsAFailure(t *testing.T) {
	text, failed := summarize(t,
		`{"ImportPath":"a","Action":"build-output","Output":"a.go:1: no\n"}`,
		`{"ImportPath":"a","Action":"build-fail"}`,
		`go: something that is not JSON`,
	)
	if !failed || !strings.Contains(text, "a.go:1: no") || !strings.Contains(text, "not JSON") {
		t.Errorf("the summary reports a failure: %v; want true, and both messages in:\n%s", failed, text)
	}
}

// "make test" runs some packages twice at the same time: with the race detector and without it.
func TestRunsOfOnePackageAreKeptApart(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out)
	for _, lines := range []string{
		`{"Action":"output","Package":"a","Test":"TestX","Output":"noise of another run\n"}`,
		`{"Action":"fail","Package":"a","Test":"TestX"}`,
	} {
		if err := s.read(strings.NewReader(lines)); err != nil {
			t.Fatal(err)
		}
	}
	if !s.hasFailed || strings.Contains(out.String(), "noise") {
		t.Errorf("the summary reports a failure: %v; want true, and no output of the other run in:\n%s", s.hasFailed, &out)
	}
}

func TestAllCommandsAreRun(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out)
	command := `echo '{"Action":"output","Package":"a","Test":"TestX","Output":"counted: 5 twins\n"}'`
	if err := s.runOrRead([]string{command, command, command}); err != nil {
		t.Fatal(err)
	}
	s.print()
	if want := "          15      3  twins\n"; !strings.Contains(out.String(), want) {
		t.Errorf("the summary does not contain %q:\n%s", want, &out)
	}
	if s.hasFailed {
		t.Error("the summary of commands that succeed reports a failure; want none")
	}
	if err := s.runOrRead([]string{"true", "exit 1"}); err != nil || !s.hasFailed {
		t.Errorf("for a command that fails without an event, the summary reports a failure: %v (error %v); want true", s.hasFailed, err)
	}
}
