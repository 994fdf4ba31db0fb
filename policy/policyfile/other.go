package policyfile

import (
	"encoding/json"

	"go.yaml.in/yaml/v4"
)

// Decode reads a YAML file of another kind into *target, which is a struct. The size and the depth
// of the file are bounded as for policies. The yaml tags of the fields name the keys. Decode
// replaces no variables. ifEmpty is the message about a file without values. The error has the type
// Errors. The values without mistakes are read nevertheless, so that the caller can check them. If
// a list of pointers has an item without a value, that item is nil.
func Decode(name string, text []byte, target any, ifEmpty string) (*Places, error) {
	d := &decoder{reporter: newReporter(name), ifEmpty: ifEmpty}
	if root := d.parse(text); root != nil {
		d.decodeValue(root, target)
	}
	return &Places{d.reporter}, d.err()
}

// Places are the positions of the values that Decode has read.
type Places struct{ reporter *reporter }

// At returns the position of the value that p points to, or zeros if the file does not have it.
func (s *Places) At(p any) (line, column int) {
	at := s.reporter.positions[p]
	return at.line, at.column
}

// Has reports whether the file has the value that p points to.
func (s *Places) Has(p any) bool { return s.reporter.isWritten(p) }

// IsReported reports whether a mistake about a field of a struct is recorded already: its value
// could not be read, or an unknown field was probably meant as this one. owner points to the
// struct, and field to the field in it. name is the field's name in YAML.
func (s *Places) IsReported(owner, field any, name string) bool {
	return s.reporter.unreadable[owner] || s.reporter.unreadable[field] || s.reporter.isMisnamed(owner, name)
}

// Fail records a mistake at the value that p points to; Err returns all.
func (s *Places) Fail(p any, format string, args ...any) { s.reporter.fail(p, format, args...) }

// Err returns the mistakes as Errors, or nil.
func (s *Places) Err() error { return s.reporter.err() }

// decodeAny reads a value of any kind, as encoding/json does with UseNumber.
func (d *decoder) decodeAny(n *yaml.Node) any {
	d.depth++
	defer func() { d.depth-- }()
	if d.depth > maxDepth {
		d.fail(n, "the file is nested more than %d levels deep; make it flatter", maxDepth)
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		all, seen := make(map[string]any), make(map[string]*yaml.Node)
		for i := 0; i+1 < len(n.Content); i += 2 {
			if name, ok := d.decodeName(n.Content[i], seen); ok {
				all[name] = d.decodeAny(n.Content[i+1])
			}
		}
		return all
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			list = append(list, d.decodeAny(item))
		}
		return list
	}
	switch n.Tag {
	case "!!int", "!!float":
		return json.Number(n.Value)
	case "!!bool":
		return n.Value == "true"
	case "!!null":
		return nil
	}
	return n.Value
}
