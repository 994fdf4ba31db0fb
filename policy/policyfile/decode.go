package policyfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/policy/jwt"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
)

// The bounds of a file.
const (
	maxDepth = 32      // levels of nesting
	maxNodes = 100_000 // values and field names; those behind an alias count at each alias

	maxMessageBytes = 2000 // bytes of one message, which may quote values
)

// parse reads a policy. The name is the file's name, for messages. In scalar values, parse replaces
// ${NAME} and ${NAME:-default} by the variable NAME of env, and $$ by a dollar sign. It replaces
// nothing in keys of mappings and in fields of type any. If env is nil, it replaces nothing at all.
// The error is Errors: every mistake of form, with its position.
func parse(name string, text []byte, env func(string) (string, bool), o Options) (*policyConfig, error) {
	d := &decoder{reporter: newReporter(name), lookUpEnv: env, ifEmpty: "the file has no policy; begin with rules:"}
	d.text = text
	c := &policyConfig{reporter: d.reporter, sections: newSections(o.Sections), options: o}
	if root := d.parse(text); root != nil {
		d.decodeValue(root, c)
	} else {
		d.markUnreadable(c)
	}
	return c, d.err()
}

// A reporter collects the mistakes of a policyConfig. It has the position of each value, by a
// pointer to the value: positions[&config.OnFailure] is where the file has the value of on_failure.
type reporter struct {
	file        string
	text        []byte           // nil: nothing was read
	positions   map[any]position // by pointer to the value
	unreadable  map[any]bool     // values that could not be read, by pointer; their mistakes are reported
	suggestions map[any][]string // suggestions for unknown fields, by pointer to the struct without such a field
	mask        mask             // of the variables that were replaced
	mistakes    Errors
}

func newReporter(file string) *reporter {
	return &reporter{file: file, positions: make(map[any]position), unreadable: make(map[any]bool), suggestions: make(map[any][]string)}
}

type position struct{ line, column int }

// fail reports a mistake at the value that p points to, unless that value could not be read.
func (r *reporter) fail(p any, format string, args ...any) {
	if !r.unreadable[p] {
		r.mistakes = append(r.mistakes, r.newError(r.positions[p], format, args...))
	}
}

func (r *reporter) newError(at position, format string, args ...any) *Error {
	return &Error{File: r.file, Line: at.line, Column: at.column, Message: wording.ClipAt(r.mask.apply(fmt.Sprintf(format, args...)), maxMessageBytes)}
}

// isMisnamed reports whether an unknown field of the struct that p points to was probably meant as
// one of these fields. The unknown field is already reported, so the field that was meant must not
// be reported as missing too.
func (r *reporter) isMisnamed(p any, fields ...string) bool {
	return slices.ContainsFunc(r.suggestions[p], func(hint string) bool {
		isList := strings.HasPrefix(hint, "there are ") // a list of all fields, and not a guess
		return !isList && slices.ContainsFunc(fields, func(field string) bool { return strings.Contains(hint, field) })
	})
}

// isWritten reports whether the file has the value that p points to.
func (r *reporter) isWritten(p any) bool {
	_, ok := r.positions[p]
	return ok
}

// markUnreadable records that the value that p points to could not be read, and that its mistake is
// reported.
func (r *reporter) markUnreadable(p any) { r.unreadable[p] = true }

func (r *reporter) err() error {
	if len(r.mistakes) == 0 {
		return nil
	}
	return r.mistakes.sorted().bounded()
}

// A decoder fills Go values from YAML. After a mistake it continues, to find them all.
type decoder struct {
	*reporter
	lookUpEnv      func(string) (string, bool)
	ifEmpty        string       // the message about a file without values
	depth          int          // the levels of nesting around the value that is being read
	currentOptions fieldOptions // of the field that is being read
}

func (d *decoder) recordPosition(p any, n *yaml.Node) { d.positions[p] = position{n.Line, n.Column} }

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.mistakes = append(d.mistakes, d.newError(position{n.Line, n.Column}, format, args...))
}

// reject reports a mistake at the position of a node, and marks the value that p points to as
// unreadable.
func (d *decoder) reject(n *yaml.Node, p any, format string, args ...any) {
	d.fail(n, format, args...)
	d.markUnreadable(p)
}

// parse returns the root of a YAML text. In it, each alias is replaced by the value that it names.
// parse returns nil after a mistake, or if the text has no values.
func (d *decoder) parse(text []byte) *yaml.Node {
	start := &yaml.Node{Line: 1, Column: 1}
	if len(text) > boundedfile.MaxPolicy {
		d.fail(start, "the file has %d bytes; the most is %d. Put long lists into separate files: {file: NAME}", len(text), boundedfile.MaxPolicy)
		return nil
	}
	if at := invalidUTF8(text); at >= 0 {
		line, column := positionAt(text, at)
		d.fail(&yaml.Node{Line: line, Column: column}, "the file is not UTF-8; save it as UTF-8")
		return nil
	}
	if at, char := controlCharacter(text); at >= 0 {
		line, column := positionAt(text, at)
		d.fail(&yaml.Node{Line: line, Column: column}, "YAML does not allow the control character %U; remove it", char)
		return nil
	}
	if isBlank(text) {
		d.fail(start, "%s", d.ifEmpty)
		return nil
	}
	var document yaml.Node
	if err := yaml.Load(text, &document); err != nil {
		d.reportSyntax(text, err)
		return nil
	}
	if len(document.Content) == 0 {
		d.fail(start, "%s", d.ifEmpty)
		return nil
	}
	return d.resolve(document.Content[0])
}

// reportSyntax turns an error of the YAML library into a mistake with a position.
func (d *decoder) reportSyntax(text []byte, err error) {
	var syntax *yaml.LoadError
	if !errors.As(err, &syntax) {
		d.fail(&yaml.Node{Line: 1, Column: 1}, "the file is not YAML: %v; check indentation, quotes and brackets", err)
		return
	}
	if syntax.Stage == "loader" || strings.Contains(syntax.Message, "multiple") {
		d.fail(&yaml.Node{Line: secondDocument(text), Column: 1}, "a second document begins here; keep one, and remove the lines with --- or ... between them")
		return
	}
	at := &yaml.Node{Line: max(syntax.Mark.Line, 1), Column: max(syntax.Mark.Column, 1)}
	if line, column := endOf(text); at.Line > line {
		at.Line, at.Column = line, column
	}
	lineText, column := lineOf(text, at.Line), at.Column-1
	isOpen := strings.Contains(syntax.Message, "did not find expected ',' or") // a bracket is not closed
	before := head(lineText, column)
	// If a bracket is not closed, the parser stops later: at the next value that begins a line, or at
	// the colon after the name of the next field.
	isNextField := strings.TrimSpace(before) == "" || strings.HasPrefix(lineText[len(before):], ":")
	if isOpen && isNextField && at.Line > syntax.ContextMark.Line {
		at.Line, at.Column = endBefore(text, at.Line) // the bracket is missing there
	}
	d.fail(at, "%s", describeSyntaxError(syntax, lineText, column))
}

// describeSyntaxError returns the mistake in plain words. column is how many characters of the line
// are before the place where the library found it.
func describeSyntaxError(e *yaml.LoadError, line string, column int) string {
	before := head(line, column)
	character := head(line[len(before):], 1)
	opening := fmt.Sprintf("line %d, column %d", e.ContextMark.Line, e.ContextMark.Column)
	openBracket, closeBracket := "{", "}"
	if strings.Contains(e.ContextMsg, "sequence") {
		openBracket, closeBracket = "[", "]"
	}
	has := func(text string) bool { return strings.Contains(e.Message, text) }
	switch {
	case character == "\t" && (has("cannot start any token") || has("tab")):
		return "the indentation has a tab; indent with spaces"
	case has("cannot start any token"):
		return fmt.Sprintf("a text cannot begin with %s; put it into quotes", character)
	case has("mapping values are not allowed"):
		return "a colon is in a place where no field can begin; indent the fields of a group equally, put a space after each colon, and texts with a colon into quotes"
	case has("did not find expected key") && strings.TrimRight(before, "}]\"'") != before:
		return fmt.Sprintf("more text follows a bracket or a quote; put the whole text into quotes, as in %q", textAround(line, len(before)-1, " "))
	case has("did not find expected '-' indicator"), has("did not find expected key"):
		return "the line is indented differently from the one that it continues; indent the fields and dashes of a group equally"
	case has("did not find expected ',' or") && character == "{":
		return fmt.Sprintf("a text with { needs quotes within the bracket that opens in %s; write %q, with the quotes", opening, textAround(line, len(before), " ,[{"))
	case has("did not find expected ',' or"):
		return fmt.Sprintf("the %s that opens in %s is not closed; write %s after its last value, or a comma if another value follows", openBracket, opening, closeBracket)
	case has("unexpected end of stream"):
		return fmt.Sprintf("the quote that opens in %s is never closed; close it", opening)
	case has("unknown escape character"):
		return "unknown escape sequence; write \\\\ for a backslash, or use single quotes"
	case has("unknown anchor"):
		return "a text that begins with * is an alias, and no value has this name after &; put the text into quotes, or name the value"
	case has("could not find expected ':'"):
		return "a field has no colon after its name; add one, or indent the line as a part of the text above"
	case has("did not find expected node content"):
		return "a value is missing before this; add it, or remove the comma"
	}
	what := e.Message
	if e.ContextMsg != "" {
		what = e.ContextMsg + ", " + what
	}
	return fmt.Sprintf("the file is not YAML: %s; check indentation, quotes and brackets near here", what)
}

func lineOf(text []byte, number int) string {
	for ; number > 1; number-- {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return strings.TrimSuffix(string(line), "\r")
}

func head(line string, n int) string {
	for at := range line {
		if n--; n < 0 {
			return line[:at]
		}
	}
	return line
}

// endBefore returns the position after the last value above a line.
func endBefore(text []byte, number int) (line, column int) {
	number--
	for number > 1 && isBlank([]byte(lineOf(text, number))) {
		number--
	}
	value, _, _ := strings.Cut(lineOf(text, number), " #")
	return number, utf8.RuneCountInString(strings.TrimRight(value, " \t")) + 1
}

// textAround returns the part of a line around the byte with index at. The part begins after the
// last separator before that byte. The part ends before a space, before a comma outside brackets,
// or before a closing bracket that was not opened in the part.
func textAround(line string, at int, separators string) string {
	from := strings.LastIndexAny(line[:at], separators) + 1
	depth, end := 0, len(line)
	for i, c := range line[from:] {
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth < 0 || c == ' ' || c == ',' && depth == 0 {
			end = from + i
			break
		}
	}
	return wording.Clip(line[from:end])
}

// secondDocument finds the line that ends the first document.
func secondDocument(text []byte) int {
	lineNumber, hasBegun := 0, false // hasBegun: a line of the first document was found
	for line := range strings.Lines(string(text)) {
		lineNumber++
		hasMark := strings.HasPrefix(line, "---") || strings.HasPrefix(line, "...")
		isSeparator := hasMark && strings.TrimSpace(line[3:min(4, len(line))]) == "" // no text directly after the mark
		if isSeparator && hasBegun {
			return lineNumber
		}
		hasBegun = hasBegun || !isSeparator && !isBlank([]byte(line))
	}
	return 1
}

// controlCharacter finds the first character that YAML does not allow. at is -1 if there is none.
func controlCharacter(text []byte) (at int, char rune) {
	const nextLine = 0x85
	for i, c := range string(text) {
		isLow := c < ' ' && c != '\t' && c != '\n' && c != '\r'
		isHigh := c >= 0x7f && c < 0xa0 && c != nextLine
		isNoncharacter := c == 0xfffe || c == 0xffff
		if isLow || isHigh || isNoncharacter {
			return i, c
		}
	}
	return -1, 0
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

func positionAt(text []byte, at int) (line, column int) {
	before := string(text[:at])
	line = 1 + strings.Count(before, "\n")
	return line, utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
}

// endOf returns the position after a text, with lines as YAML counts them.
func endOf(text []byte) (line, column int) {
	line, column = 1, 1
	previous := ' '
	for _, c := range string(text) {
		switch {
		case c == '\n' && previous == '\r':
		case c == '\n', c == '\r', c == 0x85, c == 0x2028, c == 0x2029: // next line, line and paragraph separator
			line, column = line+1, 1
		default:
			column++
		}
		previous = c
	}
	return line, column
}

// isBlank reports whether a text has only comments and separators of documents.
func isBlank(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && line != "..." && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// A selfDecoder has its own form in YAML, and decodes itself.
type selfDecoder interface {
	decode(d *decoder, n *yaml.Node)
}

func (d *decoder) decodeValue(n *yaml.Node, p any) {
	if d.depth++; d.depth > maxDepth {
		d.reject(n, p, "the file is nested more than %d levels deep; no policy needs that", maxDepth)
		d.depth--
		return
	}
	defer func() { d.depth-- }()
	d.recordPosition(p, n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		d.reject(n, p, "the value is missing; write one, or remove the line")
		return
	}
	if n.Tag != "" && !slices.Contains(plainTags, n.Tag) {
		d.reject(n, p, "the tag %s is not known; remove it", wording.Clip(n.Tag))
		return
	}
	if c, ok := p.(selfDecoder); ok {
		c.decode(d, n)
		return
	}
	d.decodePlain(n, reflect.ValueOf(p).Elem())
}

var plainTags = []string{"!!str", "!!int", "!!float", "!!bool", "!!timestamp", "!!seq", "!!map", "!!merge", "!"}

func (d *decoder) decodePlain(n *yaml.Node, v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[map[string]any]():
		if d.requireMapping(n, v.Addr().Interface(), "names with values, as in {sub: alice}") {
			v.Set(reflect.ValueOf(d.decodeAny(n)))
		}
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decodeValue(n, v.Interface())
	case v.Kind() == reflect.Struct:
		if d.requireMapping(n, v.Addr().Interface(), suggestFields(n, v.Addr().Interface())) {
			d.decodeFields(n.Content, v.Addr().Interface())
		}
	case v.Kind() == reflect.Slice:
		d.decodeList(n, v)
	case n.Kind == yaml.MappingNode && d.currentOptions.isHeaders:
		d.reject(n, v.Addr().Interface(), "a header field is one text in quotes; write %s", suggestHeaders(n))
	case n.Kind != yaml.ScalarNode:
		d.reject(n, v.Addr().Interface(), "expected one value, found %s; write the value alone", describeNode(n))
	default:
		if wrong := d.setScalar(n, v); wrong != "" {
			d.reject(n, v.Addr().Interface(), "%s", wrong)
		}
	}
}

// decodeList decodes a node into a slice. A single text needs no list.
func (d *decoder) decodeList(n *yaml.Node, v reflect.Value) {
	p := v.Addr().Interface()
	isTexts := v.Type() == reflect.TypeFor[[]string]()
	if isTexts && n.Kind != yaml.SequenceNode {
		v.Set(reflect.ValueOf(make([]string, 1)))
		only := v.Index(0).Addr().Interface()
		if d.decodeValue(n, only); d.unreadable[only] {
			d.markUnreadable(p)
		}
		return
	}
	if isTexts && len(n.Content) == 0 && !d.currentOptions.canBeEmpty {
		d.reject(n, p, "the list is empty; add values, or remove the line")
	}
	if n.Kind != yaml.SequenceNode {
		d.reject(n, p, "expected a list, found %s; %s", describeNode(n), suggestList(n, reflect.New(v.Type().Elem()).Interface()))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.decodeValue(item, v.Index(i).Addr().Interface())
	}
}

func (d *decoder) setScalar(n *yaml.Node, v reflect.Value) (wrong string) {
	text, wrong := d.expand(n.Value)
	if wrong != "" {
		return wrong
	}
	if text == "" {
		if n.Value != "" {
			return "nothing is left once variables are replaced; set them, or give a default as in ${NAME:-default}"
		}
		return "the text is empty; write one, or remove the line"
	}
	if _, isDuration := v.Interface().(time.Duration); isDuration {
		parsed, err := time.ParseDuration(text)
		if err != nil || parsed < 0 {
			return fmt.Sprintf("%q is not a duration; write it with its unit, as in 500ms, 30s, 5m or 1h", wording.Clip(text))
		}
		v.SetInt(int64(parsed))
		return ""
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Sprintf("%q is neither true nor false; write one of the two", wording.Clip(text))
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int64:
		parsed, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 53) // bits, one for the sign
		if err != nil {
			return fmt.Sprintf("%q is not a whole number below 2^52; write one such as 10 or 1000", wording.Clip(text))
		}
		v.SetInt(parsed)
	default:
		panic("policy: a Config cannot hold a " + v.Type().String())
	}
	return ""
}

// decodeFields decodes pairs of nodes into the fields of the struct that p points to.
func (d *decoder) decodeFields(content []*yaml.Node, p any) {
	known := fieldsIn(p)
	var sections []Section
	if c, ok := p.(*policyConfig); ok {
		sections = c.sections
	}
	seen := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(content); i += 2 {
		name, ok := d.decodeName(content[i], seen)
		if !ok {
			continue
		}
		field, ok := known[name]
		if !ok {
			var removal string // what to do about a field that the section had in an earlier version
			if t := textsOf(p); t != nil {
				removal = t.Removed[name]
			}
			hint := cmp.Or(removal, suggestRate(name, content[i+1], known), suggestPlace(name, known, sections))
			d.fail(content[i], "there is no field %q here; %s", wording.Clip(name), hint)
			d.suggestions[p] = append(d.suggestions[p], hint)
			continue
		}
		d.currentOptions = field.options
		d.decodeValue(content[i+1], field.value)
		d.currentOptions = fieldOptions{}
	}
}

func (c *policyConfig) decode(d *decoder, node *yaml.Node) {
	names := slices.Collect(maps.Keys(fieldsIn(c)))
	for _, s := range c.sections {
		names = append(names, s.SectionName())
	}
	slices.Sort(names)
	if !d.requireMapping(node, c, "fields with values: "+wording.List(names, "or")) {
		return
	}
	var fields []*yaml.Node
	seen := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := slices.IndexFunc(c.sections, func(s Section) bool { return key.Kind == yaml.ScalarNode && s.SectionName() == key.Value })
		switch {
		case key.Kind == yaml.ScalarNode && slices.Contains(c.options.Ignore, key.Value):
			continue
		case at < 0:
			fields = append(fields, key, value)
		default:
			if _, ok := d.decodeName(key, seen); ok {
				d.decodeValue(value, c.sections[at])
			}
		}
	}
	d.decodeFields(fields, c)
}

// fieldOptions are the words that follow the name in the yaml tag of a field.
type fieldOptions struct {
	isSecret   bool // secret: messages do not quote the value
	canBeEmpty bool // empty: the list of texts may have no items
	isHeaders  bool // headers: each text is a header field
}

type field struct {
	value   any // a pointer
	options fieldOptions
}

// fieldsIn returns the fields of the struct that p points to, by their names in YAML.
func fieldsIn(p any) map[string]field {
	if t := textsOf(p); t != nil {
		return fieldsOfTexts(t)
	}
	known := make(map[string]field)
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		words := strings.Split(v.Type().Field(i).Tag.Get("yaml"), ",")
		if words[0] == "" || words[0] == "-" {
			continue
		}
		has := func(word string) bool { return slices.Contains(words[1:], word) }
		known[words[0]] = field{v.Field(i).Addr().Interface(), fieldOptions{isSecret: has("secret"), canBeEmpty: has("empty"), isHeaders: has("headers")}}
	}
	return known
}

// suggestPlace returns where an unknown field belongs, or which known field was probably meant.
// sections are the sections of the file, if the fields are those of the file.
func suggestPlace(name string, known map[string]field, sections []Section) string {
	places := []struct {
		field, form string
		contents    any // a pointer
	}{
		{"limits", "[{%s: ...}]", new(limitConfig)},
		{"match", "{%s: ...}", new(matchConfig)},
		{"rules", "[{%s: ...}]", new(ruleConfig)},
		{"cost", "{%s: ...}", new(costConfig)},
		{"tokens", "{%s: ...}", new(jwt.Config)},
	}
	names := make(map[string]bool)
	for field := range known {
		names[field] = true
	}
	for _, s := range sections {
		names[s.SectionName()] = true
	}
	for _, place := range places {
		if _, ok := fieldsIn(place.contents)[name]; ok && names[place.field] {
			return fmt.Sprintf("it belongs in %s, as in %[1]s: "+place.form, place.field, name)
		}
	}
	for _, s := range sections {
		if _, ok := fieldsIn(s)[name]; ok {
			return fmt.Sprintf("it belongs in %s", s.SectionName())
		}
	}
	return suggest(name, names)
}

// decodeName decodes a key of a mapping. It returns false if the key is not valid. The map seen,
// which may be nil, has the earlier keys of the mapping, so that a key that occurs twice is
// reported.
func (d *decoder) decodeName(n *yaml.Node, seen map[string]*yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, "expected a name, found %s; write the name as a text", describeNode(n))
		return "", false
	}
	if n.Value == "<<" {
		d.fail(n, "merge keys (<<) are not supported; write the fields out, or give the shared part a name under identities or tiers")
		return "", false
	}
	if first := seen[n.Value]; first != nil {
		d.fail(n, "%q occurs twice, first in line %d; keep one", wording.Clip(n.Value), first.Line)
	} else if seen != nil {
		seen[n.Value] = n
	}
	return n.Value, true
}

// requireMapping reports whether n is a mapping. If not, it records a mistake, with what to write
// instead, and marks the value that p points to as unreadable.
func (d *decoder) requireMapping(n *yaml.Node, p any, instead string) bool {
	if n.Kind == yaml.MappingNode {
		return true
	}
	d.reject(n, p, "%s does not belong here; write %s", describeNode(n), instead)
	return false
}

func describeNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of fields"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(wording.Clip(n.Value))
}

// expand replaces ${NAME} in a text, or returns its mistake.
func (d *decoder) expand(text string) (expanded, wrong string) {
	if d.lookUpEnv == nil || !strings.Contains(text, "$") {
		return text, ""
	}
	isWhole := strings.HasPrefix(text, "${") && strings.IndexByte(text, '}') == len(text)-1
	var s strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		s.WriteString(before)
		if !found {
			return s.String(), ""
		}
		switch {
		case strings.HasPrefix(after, "$"):
			s.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "{"):
			reference, rest, isClosed := strings.Cut(after[1:], "}")
			if !isClosed {
				return "", "a ${ is not closed; write ${NAME}, or $$ for a dollar sign"
			}
			value, wrong := d.lookUpVariable(reference, isWhole)
			if wrong != "" {
				return "", wrong
			}
			s.WriteString(value)
			text = rest
		default:
			s.WriteByte('$')
			text = after
		}
		if s.Len() > boundedfile.MaxPolicy {
			return "", fmt.Sprintf("the text is longer than %d bytes once variables are replaced; put it into a file", boundedfile.MaxPolicy)
		}
	}
}

// lookUpVariable returns the value of a variable, or its mistake. reference is the text between ${
// and }. isWhole reports whether ${...} is the whole scalar. If it is only a part, the scalar may
// be a secret that contains ${ by chance, so messages do not show the reference.
func (d *decoder) lookUpVariable(reference string, isWhole bool) (value, wrong string) {
	name, defaultValue, hasDefault := strings.Cut(reference, ":-")
	isNamed := syntax.IsIdentifier(name) && !strings.ContainsAny(defaultValue, "${")
	switch {
	case !isNamed && (d.currentOptions.isSecret || !isWhole):
		return "", "the text in ${ } does not name a variable; write ${NAME} or ${NAME:-default}, or $$ for a dollar sign"
	case !isNamed:
		return "", fmt.Sprintf("${%s} does not name a variable; write ${NAME} or ${NAME:-default}, or $$ for a dollar sign", wording.Clip(reference))
	}
	value, ok := d.lookUpEnv(name)
	switch {
	case value == "" && hasDefault:
		return defaultValue, ""
	case !ok && d.currentOptions.isSecret && !isWhole:
		return "", "a variable in the text is not set; set it, or write $$ for a dollar sign"
	case !ok:
		return "", fmt.Sprintf("the variable %s is not set; set it, or write ${%s:-default}", name, name)
	}
	d.mask.hide(name, value)
	return value, ""
}
