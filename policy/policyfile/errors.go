package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
)

// An Error is one mistake in a policy: what is wrong, and after a semicolon how to fix it. Line and
// Column count from 1. Both are 0 if the policy was not read from a file.
type Error struct {
	File         string
	Line, Column int
	Message      string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Errors are all mistakes of a policy, in the order of the file. Errors wrap penstock.ErrInvalid.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// Is makes Errors wrap penstock.ErrInvalid.
func (e Errors) Is(target error) bool { return target == penstock.ErrInvalid }

// sorted returns a copy in the order of the file, without duplicates.
func (e Errors) sorted() Errors {
	e = slices.Clone(e)
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(e, func(a, b *Error) bool { return *a == *b })
}

// maxRepeats is how many errors with the same message merged returns one by one.
const maxRepeats = 5

// merged returns the errors. If more than maxRepeats of them have the same message, it returns only
// the first of these, with the number of places.
func (e Errors) merged() (list Errors) {
	places := make(map[string]int)
	for _, err := range e {
		places[err.Message]++
	}
	for _, err := range e {
		switch n := places[err.Message]; {
		case n > maxRepeats:
			places[err.Message] = 0
			first := *err
			first.Message += fmt.Sprintf("; this occurs in %d places", n)
			list = append(list, &first)
		case n > 0:
			list = append(list, err)
		}
	}
	return list
}

// maxErrors is how many errors, warnings or hints are reported.
const maxErrors = 100

// bounded returns the errors if there are at most maxErrors. If there are more, it returns the
// first maxErrors. In place of the last of them is a message with the number of errors that are
// left out.
func (e Errors) bounded() Errors {
	if len(e) <= maxErrors {
		return e
	}
	last := *e[maxErrors-1]
	last.Message = fmt.Sprintf("%d more messages are left out, from this position on; correct the others first", len(e)-maxErrors+1)
	return append(slices.Clone(e[:maxErrors-1]), &last)
}

// suggest returns which name was probably meant, or the known names.
func suggest[T any](name string, known map[string]T) string {
	return suggestOf(name, slices.Sorted(maps.Keys(known)))
}

// intendedWords maps words that people often try to the right words.
var intendedWords = map[string]string{
	"address": "ip", "ip_address": "ip", "addr": "ip", "client_ip": "ip", "remote_addr": "ip", "source_ip": "ip",
	"any_of": "first_of", "one_of": "first_of", "everybody": "global", "anyone": "global", "any": "global",
	"concurrency": "in_flight", "max_in_flight": "in_flight", "parallel": "in_flight", "concurrent": "in_flight",
	"else": "default", "blacklist": "deny", "blocklist": "deny", "whitelist": "allow", "allowlist": "allow",
	"key": "per", "by": "per", "url": "path", "uri": "path", "endpoint": "path", "domain": "host", "verb": "method",
	"allow": "open", "pass": "open", "fail_open": "open", "deny": "closed", "block": "closed", "fail_closed": "closed",
	"request": "send", "tz": "timezone", "dry_run": "shadow", "log_only": "shadow",
}

// suggestOf returns the end of an error message for an unknown word: the word that was probably
// meant, or all known ones.
func suggestOf(name string, known []string) string {
	if word := intendedWords[strings.ToLower(name)]; word != "" && slices.Contains(known, word) {
		return fmt.Sprintf("did you mean %s?", word)
	}
	return wording.Suggest(name, known)
}
