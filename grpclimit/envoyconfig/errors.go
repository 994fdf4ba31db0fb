package envoyconfig

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid is wrapped by the errors of Load.
var ErrInvalid = errors.New("the configuration of Envoy's rate limits is invalid")

// An Error is one error in a file.
type Error struct {
	File   string
	Line   int    // 0: unknown
	What   string // what is wrong
	Remedy string // how to fix it
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s; %s", place(e.File, e.Line), e.What, e.Remedy)
}

// Errors are all errors that Load has found.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) Unwrap() error { return ErrInvalid }

// A Warning is about a probable error in a file that envoyproxy/ratelimit accepts.
type Warning struct {
	File string
	Line int
	Text string
}

func (w Warning) String() string { return place(w.File, w.Line) + ": " + w.Text }

func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}
