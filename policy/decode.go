package policy

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// What a file may be at most.
const (
	MaxFile  = 1 << 20 // bytes
	maxDepth = 32      // levels of nesting
	maxNodes = 100_000 // values, those that aliases repeat counted each time
)

// Parse reads a policy. The name is the file's, for messages. In scalars, ${NAME} and ${NAME:-default} stand for what env knows of NAME (nil: nothing
// is replaced), and $$ for a dollar sign. The error is Errors: every mistake of form, with its position.
func Parse(name string, text []byte, env func(string) (string, bool)) (*Config, error) {
	d := &decoder{source: &source{file: name, at: make(map[any]position)}, env: env}
	c := &Config{source: d.source}
	if root := d.parse(text); root != nil {
		d.value(root, c)
	}
	return c, d.err()
}

// A source is where a Config was written, so that its mistakes can be shown there.
type source struct {
	file string
	at   map[any]position // by pointer to what was written
	errs Errors
}

type position struct{ line, column int }

// fail notes a mistake at what p points to.
func (s *source) fail(p any, format string, args ...any) {
	at := s.at[p]
	s.errs = append(s.errs, &Error{File: s.file, Line: at.line, Column: at.column, Message: fmt.Sprintf(format, args...)})
}

func (s *source) written(p any) bool {
	_, ok := s.at[p]
	return ok
}

func (s *source) err() error {
	if len(s.errs) == 0 {
		return nil
	}
	return s.errs.sorted()
}

// A decoder fills Go values from YAML. It goes on after a mistake, so that all are found at once.
type decoder struct {
	*source
	env   func(string) (string, bool)
	depth int
	nodes int
}

func (d *decoder) note(p any, n *yaml.Node) { d.at[p] = position{n.Line, n.Column} }

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.errs = append(d.errs, &Error{File: d.file, Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...)})
}

func (d *decoder) parse(text []byte) *yaml.Node {
	start := &yaml.Node{Line: 1, Column: 1}
	if len(text) > MaxFile {
		d.fail(start, "the file has %d bytes; the largest has %d. Put long lists into files of their own: {file: NAME}", len(text), MaxFile)
		return nil
	}
	if at := invalidUTF8(text); at >= 0 {
		line, column := place(text, at)
		d.fail(&yaml.Node{Line: line, Column: column}, "the file is not UTF-8; save it as UTF-8")
		return nil
	}
	if blank(text) {
		d.fail(start, "the file has no policy; begin with rules:")
		return nil
	}
	var document yaml.Node
	if err := yaml.Load(text, &document); err != nil {
		d.syntax(err)
		return nil
	}
	if len(document.Content) == 0 {
		d.fail(start, "the file has no policy; begin with rules:")
		return nil
	}
	return document.Content[0]
}

// syntax turns what the YAML library says into a mistake with a position.
func (d *decoder) syntax(err error) {
	var one *yaml.LoadError
	if !errors.As(err, &one) {
		d.fail(&yaml.Node{Line: 1, Column: 1}, "the file is not YAML: %v", err)
		return
	}
	if strings.Contains(one.Message, "multiple") {
		d.fail(&yaml.Node{Line: 1, Column: 1}, "the file has several documents; keep one, and remove the lines with ---")
		return
	}
	at := &yaml.Node{Line: max(one.Mark.Line, 1), Column: max(one.Mark.Column, 1)}
	what := one.Message
	if one.ContextMsg != "" {
		what = one.ContextMsg + ", " + what
	}
	d.fail(at, "the file is not YAML: %s; mind indentation, quotes and brackets near here", what)
}

func invalidUTF8(text []byte) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return -1
}

func place(text []byte, at int) (line, column int) {
	before := string(text[:at])
	line = 1 + strings.Count(before, "\n")
	return line, utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
}

func blank(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && line != "..." && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// A custom value reads itself.
type custom interface {
	decode(d *decoder, n *yaml.Node)
}

// value reads a node into what p points to.
func (d *decoder) value(n *yaml.Node, p any) {
	if d.nodes++; d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.fail(n, "the file has more than %d values, aliases included; put long lists into files of their own", maxNodes)
		}
		return
	}
	if d.depth++; d.depth > maxDepth {
		d.fail(n, "the file is nested more than %d levels deep; nothing in a policy needs that", maxDepth)
		d.depth--
		return
	}
	defer func() { d.depth-- }()
	d.note(p, n)
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		d.fail(n, "nothing stands here; give it a value, or remove the line")
		return
	}
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		d.fail(n, "the tag %s is not known; remove it", n.Tag)
		return
	}
	if c, ok := p.(custom); ok {
		c.decode(d, n)
		return
	}
	d.plain(n, reflect.ValueOf(p).Elem())
}

// plain reads a node into a value of a built-in kind.
func (d *decoder) plain(n *yaml.Node, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Interface())
	case v.Kind() == reflect.Struct:
		if d.mapping(n, "fields with values") {
			d.fields(n, n.Content, v.Addr().Interface())
		}
	case v.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.fail(n, "a list belongs here; put %s into brackets, or begin each item with a dash", describe(n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.value(item, v.Index(i).Addr().Interface())
		}
	case n.Kind != yaml.ScalarNode:
		d.fail(n, "one value belongs here, not %s", describe(n))
	default:
		d.scalar(n, v)
	}
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value) {
	text, ok := d.expand(n)
	if !ok {
		return
	}
	if _, duration := v.Interface().(time.Duration); duration {
		parsed, err := time.ParseDuration(text)
		switch {
		case err != nil:
			d.fail(n, "%q is not a duration; write it with its unit, as in 500ms, 30s, 5m or 1h", text)
		case parsed < 0:
			d.fail(n, "%q is negative; a duration is not", text)
		}
		v.SetInt(int64(parsed))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			d.fail(n, "%q is neither true nor false", text)
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int64:
		parsed, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 53)
		if err != nil {
			d.fail(n, "%q is not a whole number below 2^52; write it in digits", text)
		}
		v.SetInt(parsed)
	default:
		panic("policy: a Config cannot hold a " + v.Type().String())
	}
}

// fields reads pairs of nodes into the fields of the struct that p points to.
func (d *decoder) fields(n *yaml.Node, content []*yaml.Node, p any) {
	v := reflect.ValueOf(p).Elem()
	known := fieldsOf(v.Type())
	seen := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(content); i += 2 {
		name := d.name(content[i], seen)
		field, ok := known[name]
		if !ok {
			d.fail(content[i], "there is no field %q here; %s", name, suggest(name, known))
			continue
		}
		d.value(content[i+1], v.Field(field).Addr().Interface())
	}
}

// fieldsOf are the fields of a struct by their names in YAML.
func fieldsOf(t reflect.Type) map[string]int {
	known := make(map[string]int)
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" && name != "-" {
			known[name] = i
		}
	}
	return known
}

// name reads a key of a mapping, which must not stand there twice.
func (d *decoder) name(n *yaml.Node, seen map[string]*yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, "a name belongs here, not %s", describe(n))
		return ""
	}
	if n.Value == "<<" {
		d.fail(n, "merge keys (<<) are not supported; write the fields out, or give what is shared a name under identities or tiers")
		return n.Value
	}
	if first := seen[n.Value]; first != nil {
		d.fail(n, "%q stands here twice, first in line %d; keep one", n.Value, first.Line)
	} else if seen != nil {
		seen[n.Value] = n
	}
	return n.Value
}

// mapping tells whether n is one, and complains if not.
func (d *decoder) mapping(n *yaml.Node, what string) bool {
	if n.Kind == yaml.MappingNode {
		return true
	}
	d.fail(n, "%s belong here, not %s", what, describe(n))
	return false
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields with values"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(clip(n.Value))
}

// expand is a scalar's text with ${NAME} replaced.
func (d *decoder) expand(n *yaml.Node) (string, bool) {
	text := n.Value
	if d.env == nil || !strings.Contains(text, "$") {
		return text, true
	}
	var s strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		s.WriteString(before)
		if !found {
			return s.String(), true
		}
		switch {
		case strings.HasPrefix(after, "$"):
			s.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "{"):
			inside, rest, closed := strings.Cut(after[1:], "}")
			if !closed {
				d.fail(n, "a ${ is not closed; write ${NAME}, or $$ for a dollar sign")
				return "", false
			}
			value, ok := d.variable(n, inside)
			if !ok {
				return "", false
			}
			s.WriteString(value)
			text = rest
		default:
			s.WriteByte('$')
			text = after
		}
		if s.Len() > MaxFile {
			d.fail(n, "the text is longer than %d bytes once variables are replaced", MaxFile)
			return "", false
		}
	}
}

func (d *decoder) variable(n *yaml.Node, inside string) (string, bool) {
	name, otherwise, hasDefault := strings.Cut(inside, ":-")
	for i, c := range []byte(name) {
		if !(c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || i > 0 && c >= '0' && c <= '9') {
			name = ""
			break
		}
	}
	if name == "" {
		d.fail(n, "${%s} does not name a variable; write ${NAME} or ${NAME:-default}, or $$ for a dollar sign", clip(inside))
		return "", false
	}
	value, ok := d.env(name)
	if value == "" && hasDefault {
		return otherwise, true
	}
	if !ok {
		d.fail(n, "the variable %s is not set; set it, or write ${%s:-default}", name, name)
	}
	return value, ok
}

// clip shortens a text for a message.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
