package envoyconfig

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid is wrapped by the errors of Load.
var ErrInvalid = errors.New("the configuration of Envoy's rate limits is invalid")

type Error struct {
	File   string
	Line   int    // 0: unknown
	What   string // what is wrong
	Remedy string // how to fix it
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s; %s", place(e.File, e.Line), e.What, e.Remedy)
}

type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) Unwrap() error { return ErrInvalid }

// A Warning names something in a file that is probably wrong, although envoyproxy/ratelimit accepts
// it.
type Warning struct {
	File string
	Line int
	Text string
}

func (w Warning) String() string { return place(w.File, w.Line) + ": " + w.Text }

// place returns file:line, or the file alone if the line is 0, which means unknown.
func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}
