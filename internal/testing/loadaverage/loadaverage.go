// Package loadaverage tells how busy the machine is while a program measures. Figures for docs are
// taken on an idle machine only.
package loadaverage

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// Most is the largest load average of the last minute at which a measurement for docs may begin.
	Most = 1.0

	patience = 5 * time.Minute // how long Begin waits for a smaller load average
	interval = 5 * time.Second // between two looks at it
)

// A Run is a run of a measuring program.
type Run struct {
	out    io.Writer
	read   func() ([]byte, error) // returns the text of /proc/loadavg
	before *float64               // nil: unknown
}

// A Record is the part of a saved file that says when and at which load its figures were taken.
type Record struct {
	Date                  string   `json:",omitempty"` // such as 2026-11-23
	LoadBefore, LoadAfter *float64 `json:",omitempty"` // load average of the last minute; nil: unknown
}

// Begin prints the load average. file is where the program will save its figures, or "" if it does
// not save them. To save them, the load average must be at most [Most]. Begin waits some minutes
// for that, because building the program is load too. Then it returns an error. On a system without
// /proc/loadavg, Begin says so, and returns no error.
func Begin(out io.Writer, file string) (*Run, error) {
	return begin(out, file, func() ([]byte, error) { return os.ReadFile("/proc/loadavg") })
}

func begin(out io.Writer, file string, read func() ([]byte, error)) (*Run, error) {
	r := &Run{out: out, read: read}
	if r.before = r.print("before"); r.before == nil || file == "" || *r.before <= Most {
		return r, nil
	}
	fmt.Fprintf(out, "%s needs figures of an idle machine. Waiting up to %v for a load average of at most %g.\n", file, patience, Most)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		time.Sleep(interval)
		load, err := r.load()
		if err != nil || load > Most {
			continue
		}
		r.before = r.print("before")
		return r, nil
	}
	return nil, fmt.Errorf("%s cannot be written, because the load average stays above %g: other programs would make the figures wrong. "+
		"End these programs and start again, or measure without -save", file, Most)
}

// End prints the load average again, and returns what a saved file says about the run.
func (r *Run) End() Record {
	return Record{Date: time.Now().UTC().Format(time.DateOnly), LoadBefore: r.before, LoadAfter: r.print("after")}
}

// print prints the load average, and returns it, or nil if it is unknown.
func (r *Run) print(when string) *float64 {
	load, err := r.load()
	if err != nil {
		fmt.Fprintf(r.out, "The load average %s the run is unknown: %v\n", when, err)
		return nil
	}
	fmt.Fprintf(r.out, "Load average %s the run: %.2f\n", when, load)
	return &load
}

// load returns the load average of the last minute: the first number of /proc/loadavg.
func (r *Run) load() (float64, error) {
	text, err := r.read()
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/loadavg begins with %q; want a number", first)
	}
	return load, nil
}

// String describes the load as a sentence.
func (r Record) String() string {
	if r.LoadBefore == nil || r.LoadAfter == nil {
		return "The load average is unknown."
	}
	return fmt.Sprintf("The load average was %.2f before the run, and %.2f after it.", *r.LoadBefore, *r.LoadAfter)
}
