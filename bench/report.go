package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/testing/loadaverage"
)

// A report prints each table when it is complete, and the goals at the end.
type report struct {
	goals   []goal
	section string                  // the section that runs
	heading string                  // of the current table
	table   [][]string              // rows of the current table
	saved   map[string][]savedTable // the printed tables, by section
}

// A savedTable is a table in a file. The first row has the names of the columns.
type savedTable struct {
	Title string
	Rows  [][]string
}

// A savedSection is a section in a file, with the circumstances of its run.
type savedSection struct {
	Machine string
	loadaverage.Record
	Tables []savedTable
}

// A goal is a bound for a measured ratio or number.
type goal struct {
	name            string
	measured, bound float64
	isLowerBound    bool
}

func (g goal) isMet() bool {
	if g.isLowerBound {
		return g.measured >= g.bound
	}
	return g.measured <= g.bound
}

// beginTable prints the current table, and begins another one.
func (r *report) beginTable(format string, args ...any) {
	r.flush()
	r.heading = fmt.Sprintf(format, args...)
	fmt.Printf("\n%s\n", r.heading)
}

func (r *report) addRow(cells ...string) { r.table = append(r.table, cells) }

// flush prints the current table. The first column is aligned to the left, and the others to the
// right.
func (r *report) flush() {
	var widths []int
	for _, row := range r.table {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range r.table {
		var line strings.Builder
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString(cell + padding)
			} else {
				line.WriteString("  " + padding + cell)
			}
		}
		fmt.Fprintln(os.Stdout, strings.TrimRight(line.String(), " "))
	}
	if r.section != "" && len(r.table) > 0 {
		r.saved[r.section] = append(r.saved[r.section], savedTable{r.heading, r.table})
	}
	r.table = nil
}

// save writes the tables of the sections that ran. The file's other sections stay as they are.
func (r *report) save(file string, loads loadaverage.Record) error {
	all := make(map[string]savedSection)
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", file, err)
	}
	for section, tables := range r.saved {
		all[section] = savedSection{machine(), loads, tables}
	}
	if text, err = json.MarshalIndent(all, "", " "); err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// machine returns the number and model of the cores, and the Go version. Results depend on them.
func machine() string {
	model := runtime.GOARCH
	info, _ := os.ReadFile("/proc/cpuinfo") // Linux only
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d cores, %s, %s", runtime.NumCPU(), model, runtime.Version())
}

// atMost adds a goal: measured must be at most bound.
func (r *report) atMost(name string, measured, bound float64) {
	r.goals = append(r.goals, goal{name: name, measured: measured, bound: bound})
}

// atLeast adds a goal: measured must be at least bound.
func (r *report) atLeast(name string, measured, bound float64) {
	r.goals = append(r.goals, goal{name: name, measured: measured, bound: bound, isLowerBound: true})
}

// printGoals prints the goals. It returns true if all were met.
func (r *report) printGoals() bool {
	r.beginTable("Goals")
	areAllMet := true
	for _, g := range r.goals {
		result, sign := "ok", "≤"
		if g.isLowerBound {
			sign = "≥"
		}
		if !g.isMet() {
			result, areAllMet = "MISSED", false
		}
		r.addRow(g.name, number(g.measured), sign, number(g.bound), result)
	}
	r.flush()
	return areAllMet
}
