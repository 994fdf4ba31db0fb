package main

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"
)

// A report prints tables as they come, and the goals at the end.
type report struct {
	table [][]string
	goal  []goal
}

// A goal is a ratio or a number that was measured and has a bound.
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

func (r *report) title(format string, args ...any) {
	r.flush()
	fmt.Printf("\n"+format+"\n", args...)
}

func (r *report) row(cells ...string) { r.table = append(r.table, cells) }

// flush prints the table: the first column to the left, numbers to the right.
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
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString(cell + gap)
			} else {
				line.WriteString("  " + gap + cell)
			}
		}
		fmt.Fprintln(os.Stdout, strings.TrimRight(line.String(), " "))
	}
	r.table = nil
}

func (r *report) atMost(name string, measured, bound float64) {
	r.goal = append(r.goal, goal{name, measured, bound, false})
}

func (r *report) atLeast(name string, measured, bound float64) {
	r.goal = append(r.goal, goal{name, measured, bound, true})
}

// printGoals prints the goals and tells whether all were met.
func (r *report) printGoals() bool {
	r.title("Goals")
	all := true
	for _, g := range r.goal {
		word, sign := "ok", "≤"
		if g.isLowerBound {
			sign = "≥"
		}
		if !g.isMet() {
			word, all = "MISSED", false
		}
		r.row(g.name, number(g.measured), sign, number(g.bound), word)
	}
	r.flush()
	return all
}
