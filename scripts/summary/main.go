// Command summary reads the output of "go test -json" and prints what a reader wants of it: a line
// per package, the output of what failed, and the sums of what the tests counted.
//
// A test counts by logging a line "counted: 123456 twins (seed 7)": a whole number, what it counts,
// and optionally details in parentheses. Lines that name the same thing are added up over all tests
// and packages; details are left out.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An event is one line of "go test -json".
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

func main() {
	s := newSummary(os.Stdout)
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	s.print()
	if s.failed {
		os.Exit(1)
	}
}

type summary struct {
	out    io.Writer
	output map[string]*strings.Builder // by package and test, until it passes
	counts map[string]*total
	failed bool
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, output: make(map[string]*strings.Builder), counts: make(map[string]*total)}
}

type total struct {
	n     int64
	lines int
}

func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "build-output", Output: string(line)} // go itself wrote it
			}
			s.take(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(e event) {
	id := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "build-fail":
		s.failed = true
	case "output":
		s.count(e.Output)
		if s.output[id] == nil {
			s.output[id] = new(strings.Builder)
		}
		s.output[id].WriteString(e.Output)
	case "pass", "skip", "fail":
		if e.Action == "fail" {
			s.failed = true
			if text := s.output[id]; text != nil {
				fmt.Fprint(s.out, text)
			}
		}
		delete(s.output, id)
		if e.Test == "" && e.Action != "skip" {
			fmt.Fprintf(s.out, "%-5s %-60s %6.1fs\n", e.Action, e.Package, e.Elapsed)
		}
	}
}

var counted = regexp.MustCompile(`(?:^|\s)counted: (\d+) ([^(\n]*[^(\s])`)

func (s *summary) count(line string) {
	m := counted.FindStringSubmatch(line)
	if m == nil {
		return
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return // the number is larger than an int64
	}
	if s.counts[m[2]] == nil {
		s.counts[m[2]] = new(total)
	}
	s.counts[m[2]].n += n
	s.counts[m[2]].lines++
}

func (s *summary) print() {
	if len(s.counts) == 0 {
		return
	}
	fmt.Fprintf(s.out, "\n%12s  %5s  %s\n", "counted", "tests", "what")
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		fmt.Fprintf(s.out, "%12d  %5d  %s\n", s.counts[name].n, s.counts[name].lines, name)
	}
}
