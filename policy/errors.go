package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock"
)

// An Error is one mistake in a policy: what is wrong, and behind a semicolon how to mend it. Line and Column count from 1; they are 0 where the policy
// was not read from a file.
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

// Errors are all mistakes of a policy, in the order of the file. They wrap penstock.ErrInvalid.
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

// sorted is a copy in the order of the file, in which nothing stands twice.
func (e Errors) sorted() Errors {
	e = slices.Clone(e)
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(e, func(a, b *Error) bool { return *a == *b })
}

// suggest says which name was probably meant, or which there are.
func suggest[T any](name string, known map[string]T) string {
	return suggestOf(name, slices.Sorted(maps.Keys(known)))
}

func suggestOf(name string, known []string) string {
	best, least := "", min(max(1, len(name)/3), 3)+1
	var longer []string
	for _, k := range known {
		if d := distance(name, k); d < least && d < len(k) {
			best, least = k, d
		}
		if len(name) >= 3 && strings.HasPrefix(k, name) {
			longer = append(longer, k)
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean %s?", best)
	case len(longer) == 1:
		return fmt.Sprintf("did you mean %s?", longer[0])
	case len(known) == 0:
		return "there are none"
	case len(known) == 1:
		return "there is " + known[0]
	case len(known) > 20:
		return fmt.Sprintf("there are %d, such as %s", len(known), strings.Join(known[:3], ", "))
	}
	return "there are " + list(known, "and")
}

// list writes names as people do.
func list(names []string, and string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + and + " " + names[last]
}

// distance is how many letters must be changed, added or removed to get from a to b, up to about 3.
func distance(a, b string) int {
	if len(a) > len(b)+3 || len(b) > len(a)+3 || len(a) > 64 {
		return 4
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
