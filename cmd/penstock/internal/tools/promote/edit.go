package promote

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// change edits a mapping: it removes fields, and sets those of set, which may be nil. set is the
// value of a field that is removed, and new fields come to its place.
func (e *editor) change(mapping *yaml.Node, remove []string, set *yaml.Node) error {
	if mapping.Kind != yaml.MappingNode {
		return errByHand
	}
	var added []string
	for i := 0; set != nil && i+1 < len(set.Content); i += 2 {
		key := set.Content[i].Value
		value, err := e.inline(set.Content[i+1])
		if err != nil {
			return err
		}
		old := slices.IndexFunc(mapping.Content, func(n *yaml.Node) bool { return n.Value == key && n.Kind == yaml.ScalarNode })
		if old < 0 || old%2 == 1 {
			added = append(added, key+": "+value)
			continue
		}
		_, from, err := e.span(mapping.Content[old])
		if err != nil {
			return err
		}
		_, to, err := e.span(mapping.Content[old+1])
		if err != nil {
			return err
		}
		e.edits = append(e.edits, edit{from, to, ": " + value})
	}
	isRemoved := func(i int) bool { return slices.Contains(remove, mapping.Content[i].Value) }
	for i := 0; i < len(mapping.Content); i += 2 {
		if !isRemoved(i) {
			continue
		}
		end := i + 2 // of a run of fields that are removed
		for end < len(mapping.Content) && isRemoved(end) {
			end += 2
		}
		var more []string
		if slices.ContainsFunc(mapping.Content[i:end], func(n *yaml.Node) bool { return n == set }) {
			more = added
		}
		if err := e.cut(mapping, i, end, more); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// cut removes the fields of a mapping from one index to another, and puts others in their place.
func (e *editor) cut(mapping *yaml.Node, first, end int, added []string) error {
	from, _, err := e.span(mapping.Content[first])
	if err != nil {
		return err
	}
	_, to, err := e.span(mapping.Content[end-1])
	if err != nil {
		return err
	}
	isFlow := mapping.Style&yaml.FlowStyle != 0
	lineStart := bytes.LastIndexByte(e.text[:from], '\n') + 1
	indent := string(e.text[lineStart:from])
	switch isLineStart := strings.TrimSpace(indent) == ""; {
	case len(added) > 0 && isFlow:
		e.edits = append(e.edits, edit{from, to, strings.Join(added, ", ")})
		return nil
	case len(added) > 0:
		lineEnd := "\n" + strings.Repeat(" ", mapping.Content[first].Column-1)
		e.edits = append(e.edits, edit{from, to, strings.Join(added, lineEnd)})
		return nil
	case !isFlow && isLineStart: // with the comment behind them
		from = lineStart
		if n := bytes.IndexByte(e.text[to:], '\n'); n >= 0 {
			to += n + 1
		} else {
			to = len(e.text)
		}
	case end < len(mapping.Content): // to the next field
		if to, _, err = e.span(mapping.Content[end]); err != nil {
			return err
		}
	case isFlow && first > 0: // from the end of the field before
		if _, from, err = e.span(mapping.Content[first-1]); err != nil {
			return err
		}
	default:
		return errByHand
	}
	e.edits = append(e.edits, edit{from, to, ""})
	return nil
}

func (e *editor) inline(n *yaml.Node) (string, error) {
	from, to, err := e.span(n)
	if err != nil || n.Kind == yaml.ScalarNode || n.Style&yaml.FlowStyle != 0 {
		return string(e.text[from:to]), err
	}
	var fields []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		value, err := e.inline(n.Content[i+1])
		if err != nil {
			return "", err
		}
		if strings.ContainsAny(value, ",[]{}") && n.Content[i+1].Style == 0 {
			value = strconv.Quote(value) // in a line of several fields, it would end early
		}
		fields = append(fields, n.Content[i].Value+": "+value)
	}
	return "{" + strings.Join(fields, ", ") + "}", nil
}

// span returns where a value begins and ends in the text.
func (e *editor) span(n *yaml.Node) (from, to int, err error) {
	from = e.offset(n.Line, n.Column)
	if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 || n.Kind == yaml.AliasNode {
		return 0, 0, errByHand // other values may refer to an anchor
	}
	isFlow := n.Style&yaml.FlowStyle != 0
	switch {
	case n.Kind == yaml.ScalarNode:
		return e.spanOfScalar(n, from)
	case len(n.Content) > 0:
		if _, to, err = e.span(n.Content[len(n.Content)-1]); err != nil || !isFlow {
			return from, to, err
		}
	case isFlow:
		to = from + 1
	default:
		return 0, 0, errByHand
	}
	for ; to < len(e.text); to++ { // to the bracket that closes it
		switch c := e.text[to]; c {
		case '}', ']':
			return from, to + 1, nil
		case '#':
			to += bytes.IndexByte(append(e.text[to:len(e.text):len(e.text)], '\n'), '\n')
		}
	}
	return 0, 0, errByHand
}

// spanOfScalar returns where a text begins and ends. It knows texts on one line.
func (e *editor) spanOfScalar(n *yaml.Node, from int) (int, int, error) {
	line, _, _ := bytes.Cut(e.text[from:], []byte("\n"))
	raw := n.Value
	if len(line) == 0 {
		return 0, 0, errByHand
	}
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		raw = ""
		for i := 1; i < len(line); i++ {
			if line[i] == '\\' && line[0] == '"' {
				i++
			} else if line[i] == line[0] && i+1 < len(line) && line[i+1] == line[0] && line[0] == '\'' {
				i++
			} else if line[i] == line[0] {
				raw = string(line[:i+1])
				break
			}
		}
	}
	if raw == "" || !bytes.HasPrefix(line, []byte(raw)) {
		return 0, 0, errByHand
	}
	return from, from + len(raw), nil
}

// offset returns where a line and a column are in the text. Both begin with 1, and a column is a
// character.
func (e *editor) offset(line, column int) int {
	at := 0
	for range line - 1 {
		at += bytes.IndexByte(e.text[at:], '\n') + 1
	}
	rest := string(e.text[at:])
	for i := range rest {
		if column--; column == 0 {
			return at + i
		}
	}
	return len(e.text)
}

func (e *editor) apply() []byte {
	slices.SortFunc(e.edits, func(a, b edit) int { return a.from - b.from })
	var text []byte
	at := 0
	for _, one := range e.edits {
		text = append(append(text, e.text[at:max(at, one.from)]...), one.text...)
		at = max(at, one.to)
	}
	return append(text, e.text[at:]...)
}

// Diff returns the lines that differ between two texts, with three lines around them.
func Diff(name string, before, after []byte) string {
	const around = 3
	a, b := slices.Collect(strings.Lines(string(before))), slices.Collect(strings.Lines(string(after)))
	first := 0
	for first < min(len(a), len(b)) && a[first] == b[first] {
		first++
	}
	same := 0 // lines at the end
	for same < min(len(a), len(b))-first && a[len(a)-1-same] == b[len(b)-1-same] {
		same++
	}
	from, tail := max(first-around, 0), max(same-around, 0)
	var diff strings.Builder
	fmt.Fprintf(&diff, "--- %s\n+++ %s\n@@ -%d,%d +%d,%d @@\n", name, name, from+1, len(a)-tail-from, from+1, len(b)-tail-from)
	write := func(mark string, lines []string) {
		for _, line := range lines {
			diff.WriteString(mark + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	write(" ", a[from:first])
	write("-", a[first:len(a)-same])
	write("+", b[first:len(b)-same])
	write(" ", a[len(a)-same:len(a)-tail])
	return diff.String()
}
