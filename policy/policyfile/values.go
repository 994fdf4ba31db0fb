package policyfile

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/internal/wording"
)

// A namedList has values with names, in the order in which they were written.
type namedList[T any] []namedEntry[T]

type namedEntry[T any] struct {
	Name  string
	Value T
}

func (n *namedList[T]) decode(d *decoder, node *yaml.Node) {
	if !d.requireMapping(node, n, "names with values, as in NAME: VALUE") {
		return
	}
	*n = make(namedList[T], len(node.Content)/2)
	seen := make(map[string]*yaml.Node)
	for i := range *n {
		key, value := node.Content[2*i], node.Content[2*i+1]
		e := &(*n)[i]
		d.recordPosition(e, key)
		d.recordPosition(&e.Name, key)
		var ok bool
		if e.Name, ok = d.decodeName(key, seen); !ok {
			d.markUnreadable(&e.Name)
		}
		d.decodeValue(value, &e.Value)
	}
}

// A valuesConfig has the values that a source may have: a list, one value, or {file: NAME} with one
// per line. "*" is any value.
type valuesConfig struct {
	Is   []string // empty if File is set
	File string   // a file with one value per line
}

func (v *valuesConfig) decode(d *decoder, node *yaml.Node) {
	if node.Kind == yaml.MappingNode {
		if len(node.Content) != 2 || node.Content[0].Value != "file" {
			d.fail(node, "a group of fields does not belong here; write a list of values, one alone, or {file: NAME}")
			return
		}
		d.decodeValue(node.Content[1], &v.File)
		return
	}
	if node.Kind != yaml.SequenceNode {
		d.decodeValue(node, &v.Is)
		return
	}
	if len(node.Content) == 0 {
		d.fail(node, "the list of values is empty; write values, or \"*\" for anything")
		return
	}
	for _, item := range node.Content {
		if item.Kind == yaml.MappingNode {
			d.fail(item, "a group of fields does not belong in a list of values; write {file: NAME} alone, without other values beside it")
			return
		}
	}
	d.decodeValue(node, &v.Is)
}

// A conditionConfig holds if all of its clauses hold.
type conditionConfig []clauseConfig

// A clauseConfig holds if its source has one of its values. A source is a part of the request, such
// as "header X-Plan", or the name of an identity.
type clauseConfig struct {
	Source string
	Values valuesConfig
}

func (c *conditionConfig) decode(d *decoder, node *yaml.Node) {
	if !d.requireMapping(node, c, "a source with its values, as in {header X-Plan: premium} or {ip: 10.0.0.0/8}") {
		return
	}
	if len(node.Content) == 0 {
		d.fail(node, "the condition is empty, so it would always hold; name a source, as in {header X-Plan: premium}")
	}
	c.decodeClauses(d, node.Content)
}

func (c *conditionConfig) decodeClauses(d *decoder, content []*yaml.Node) {
	*c = make(conditionConfig, len(content)/2)
	seen := make(map[string]*yaml.Node)
	for i := range *c {
		clause := &(*c)[i]
		key, value := content[2*i], content[2*i+1]
		d.recordPosition(&clause.Source, key)
		d.recordPosition(clause, key)
		var ok bool
		if clause.Source, ok = d.decodeName(key, seen); !ok {
			d.markUnreadable(&clause.Source)
		}
		if name := nestedName(clause.Source, value); ok && name != "" {
			d.reject(key, &clause.Source, "the name belongs beside %s; write %q with its value, as in {header X-Plan: premium}", clause.Source, clause.Source+" "+wording.Clip(name))
			d.markUnreadable(&clause.Values)
			continue
		}
		d.decodeValue(value, &clause.Values)
	}
}

// nestedName returns the name of a source if it was written as a field, as in header: {X-Plan: a}.
func nestedName(source string, value *yaml.Node) string {
	kind, isKnown := sourceWords[source]
	isOneField := value.Kind == yaml.MappingNode && len(value.Content) == 2
	if !isKnown || !kind.IsNamed() || !isOneField || value.Content[0].Value == "file" {
		return ""
	}
	return value.Content[0].Value
}

// A conditionsConfig holds if one of them holds. A single condition may be written without a list.
// The word default always holds.
type conditionsConfig struct {
	Otherwise bool              // the word default was written
	Any       []conditionConfig // the conditions, if that word was not written
}

func (c *conditionsConfig) decode(d *decoder, node *yaml.Node) {
	switch node.Kind {
	case yaml.ScalarNode:
		var text string
		d.decodeValue(node, &text)
		if c.Otherwise = text == "default"; c.Otherwise {
			return
		}
		d.markUnreadable(c)
		switch {
		case d.unreadable[&text]:
		case wording.Distance(text, "default") < 3: // a misspelling
			d.fail(node, "%q is not a condition; did you mean default?", wording.Clip(text))
		default:
			d.fail(node, "%q is not a condition; write a source with its values, as in {header X-Plan: premium}, or default", wording.Clip(text))
		}
	case yaml.SequenceNode:
		d.decodeValue(node, &c.Any)
	default:
		c.Any = make([]conditionConfig, 1)
		d.decodeValue(node, &c.Any[0])
	}
}

// An identityConfig says how a request is identified. It has one of these forms:
//
//   - the name of an identity, "ip" or "global"
//   - {KIND: SOURCE}, where the kind is written in the key
//   - {first_of: [...]}, the first one that the request has
//   - {all_of: [...]}, all of them together
type identityConfig struct {
	Name   string // of an identity
	Kind   string
	Source string
	Only   *valuesConfig // the values that identify; nil: any value of the source
	First  []identityConfig
	All    []identityConfig
}

func (c *identityConfig) isSet() bool {
	return c.Name != "" || c.Kind != "" || c.First != nil || c.All != nil
}

const identityForms = "write {KIND: SOURCE} as in {key: header X-API-Key}, {first_of: [...]}, {all_of: [...]}, ip, global or the name of an identity"

func (c *identityConfig) decode(d *decoder, node *yaml.Node) {
	if node.Kind == yaml.ScalarNode {
		d.decodeValue(node, &c.Name)
		if c.Name == "" {
			d.markUnreadable(c)
		}
		return
	}
	if !d.requireMapping(node, c, strings.TrimPrefix(identityForms, "write ")) {
		return
	}
	if len(node.Content) == 0 {
		d.reject(node, c, "the identity is missing; %s", identityForms)
		return
	}
	if len(node.Content) != 2 {
		d.markUnreadable(c)
		d.fail(node, "the identity has %d entries and needs one; to combine several, write {all_of: [...]}, to take the first that is present, {first_of: [...]}",
			len(node.Content)/2)
		return
	}
	key, value := node.Content[0], node.Content[1]
	kind, ok := d.decodeName(key, nil)
	if !ok {
		d.markUnreadable(c)
		return
	}
	switch kind {
	case "first_of":
		d.decodeValue(value, &c.First)
	case "all_of":
		d.decodeValue(value, &c.All)
	case "":
		d.reject(key, c, "the kind, which is part of the key, is empty; write {KIND: SOURCE}, as in {key: header X-API-Key}")
		return
	default:
		c.Kind = kind
		d.recordPosition(&c.Kind, key)
		c.decodeSource(d, value)
		return
	}
	if !c.isSet() {
		d.markUnreadable(c)
	}
}

// decodeSource decodes SOURCE, or {SOURCE: VALUES} if only those values count.
func (c *identityConfig) decodeSource(d *decoder, node *yaml.Node) {
	if node.Kind == yaml.ScalarNode {
		d.decodeValue(node, &c.Source)
		return
	}
	if node.Kind == yaml.SequenceNode {
		d.reject(node, &c.Source, "a list does not belong here; to combine several, write {all_of: [...]}, to take the first that is present, {first_of: [...]}")
		return
	}
	var only conditionConfig
	d.decodeValue(node, &only)
	if len(only) == 0 {
		d.markUnreadable(&c.Source)
		return
	}
	if len(only) > 1 {
		d.fail(node, "there are %d sources, and there can be only one; to combine several, write {all_of: [...]}", len(only))
	}
	c.Source, c.Only = only[0].Source, &only[0].Values
	d.recordPosition(&c.Source, node.Content[0])
}

type tierTexts struct {
	All   string
	Tiers namedList[string]
}

func (p *tierTexts) isSet() bool { return p.All != "" || p.Tiers != nil }

func (p *tierTexts) decode(d *decoder, node *yaml.Node) {
	if node.Kind == yaml.MappingNode {
		d.decodeValue(node, &p.Tiers)
		if len(node.Content) == 0 {
			d.reject(node, p, "no tier is named; write {free: ..., premium: ...}, or one value for all")
		}
		return
	}
	d.decodeValue(node, &p.All)
}

func (m *matchConfig) decode(d *decoder, node *yaml.Node) {
	if !d.requireMapping(node, m, "what to match, as in {method: POST, path: /api/**}") {
		return
	}
	var fields, sources []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		switch pair := node.Content[i : i+2]; pair[0].Value {
		case "method", "path", "host":
			fields = append(fields, pair...)
		default:
			sources = append(sources, pair...)
		}
	}
	d.decodeFields(fields, m)
	m.Where.decodeClauses(d, sources)
}

func (c *costConfig) decode(d *decoder, node *yaml.Node) {
	if node.Kind == yaml.MappingNode {
		if len(node.Content) == 0 {
			d.fail(node, "the cost is empty; write a number, or one of {methods: ...}, {header: ...} and {body: ...}")
		}
		d.decodeFields(node.Content, c)
		return
	}
	d.decodeValue(node, &c.Units)
}

// A byteSize is a number of bytes, written as 512, 64KB or 10MB. 1KB and 1KiB are 1024 bytes.
type byteSize int64

func (s *byteSize) decode(d *decoder, node *yaml.Node) {
	var text string
	d.decodeValue(node, &text)
	if d.unreadable[&text] {
		d.markUnreadable(s)
		return
	}
	n, ok := parseSize(text)
	if !ok || n == 0 {
		d.reject(node, s, "%q is not a size; write 512, 64KB, 10MB or 1GB", wording.Clip(text))
	}
	*s = n
}

// parseSize reads a number of bytes. It returns false if the text is malformed or too large.
func parseSize(text string) (byteSize, bool) {
	number := strings.TrimRight(text, "kKmMgGiIbB ")
	unit := strings.ToUpper(strings.TrimSpace(text[len(number):]))
	n, err := strconv.ParseUint(number, 10, 40) // at most 40 bits
	shift, ok := map[string]int{"": 0, "B": 0, "K": 10, "KB": 10, "KIB": 10, "M": 20, "MB": 20, "MIB": 20, "G": 30, "GB": 30, "GIB": 30}[unit]
	const most = 1 << 50 // bytes
	if err != nil || !ok || n > most>>shift {
		return 0, false
	}
	return byteSize(n << shift), true
}
