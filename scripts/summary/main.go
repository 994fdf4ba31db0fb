// Command summary reads the output of "go test -json", and prints a short form: a line per package,
// the output of failed tests, and the sums of the numbers that tests counted. Each argument is a
// command of bash that prints such output. All commands run at the same time. Without arguments,
// summary reads its standard input.
//
// To count, a test logs a line such as "counted: 123456 twins (seed 7)": a whole number, the name
// of the things that it counts, and optionally details in parentheses. summary ignores the details,
// and adds up the numbers with the same name over all tests and packages.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// An event is one line of "go test -json".
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // seconds
}

func main() {
	s := newSummary(os.Stdout)
	if err := s.runOrRead(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	s.print()
	if s.hasFailed {
		os.Exit(1)
	}
}

// A summary collects the events of all commands.
type summary struct {
	mu        sync.Mutex // guards the fields below
	out       io.Writer
	counts    map[string]*total // by the name of the counted things
	hasFailed bool
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, counts: make(map[string]*total)}
}

// A total is the sum of the numbers with one name.
type total struct {
	sum   int64
	lines int // how many numbers were added
}

// runOrRead runs all commands at the same time, or reads the standard input if there are none.
func (s *summary) runOrRead(commands []string) error {
	if len(commands) == 0 {
		return s.read(os.Stdin)
	}
	errs := make([]error, len(commands))
	var running sync.WaitGroup
	for i, command := range commands {
		running.Go(func() { errs[i] = s.run(command) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// run reads the output of a command. If the command fails, the summary fails too, even if no event
// reports a failure.
func (s *summary) run(command string) error {
	tests := exec.Command("bash", "-c", command)
	tests.Stderr = os.Stderr
	output, err := tests.StdoutPipe()
	if err != nil {
		return err
	}
	if err := tests.Start(); err != nil {
		return err
	}
	err = s.read(output)
	if exitErr := tests.Wait(); exitErr != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hasFailed = true
	}
	return err
}

// outputs has the output of each running test, by package and test. Each command has outputs of its
// own, because another command may run the same package at the same time.
type outputs map[string]*strings.Builder

// read handles all events of one command.
func (s *summary) read(r io.Reader) error {
	output := make(outputs)
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "build-output", Output: string(line)} // a message of the go command
			}
			s.handle(e, output)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// handle prints or keeps the output of an event. It adds the count in the output, and records a
// failure.
func (s *summary) handle(e event, output outputs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "build-fail":
		s.hasFailed = true
	case "output":
		s.count(e.Output)
		if output[id] == nil {
			output[id] = new(strings.Builder)
		}
		output[id].WriteString(e.Output)
	case "pass", "skip", "fail":
		if e.Action == "fail" {
			s.hasFailed = true
			if text := output[id]; text != nil {
				fmt.Fprint(s.out, text)
			}
		}
		delete(output, id)
		if e.Test == "" && e.Action != "skip" {
			fmt.Fprintf(s.out, "%-5s %-60s %6.1fs\n", e.Action, e.Package, e.Elapsed)
		}
	}
}

var counted = regexp.MustCompile(`(?:^|\s)counted: (\d+) ([^(\n]*[^(\s])`)

// count adds the number in a line to its total, if the line has the form of a count.
func (s *summary) count(line string) {
	m := counted.FindStringSubmatch(line)
	if m == nil {
		return
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return // the number is larger than an int64
	}
	name := m[2]
	if s.counts[name] == nil {
		s.counts[name] = new(total)
	}
	s.counts[name].sum += n
	s.counts[name].lines++
}

// print prints the totals.
func (s *summary) print() {
	if len(s.counts) == 0 {
		return
	}
	fmt.Fprintf(s.out, "\n%12s  %5s  %s\n", "counted", "tests", "what")
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		fmt.Fprintf(s.out, "%12d  %5d  %s\n", s.counts[name].sum, s.counts[name].lines, name)
	}
}
