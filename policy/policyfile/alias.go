package policyfile

import (
	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/internal/wording"
)

// resolve returns a copy of a document in which each alias is replaced by a copy of its value. The
// copy of a value has the position of the alias. Values inside it keep their own positions. resolve
// reports a mistake and returns nil if a value contains itself, or if the copy would have more than
// maxNodes values.
func (d *decoder) resolve(root *yaml.Node) *yaml.Node {
	r := resolver{decoder: d, inProgress: make(map[*yaml.Node]bool)}
	return r.copy(root, nil)
}

type resolver struct {
	*decoder
	nodeCount  int
	inProgress map[*yaml.Node]bool // values whose contents are being copied
}

// copy copies one value. alias is the outermost alias around it, or nil.
func (r *resolver) copy(n, alias *yaml.Node) *yaml.Node {
	at := n // where mistakes are reported
	if alias != nil {
		at = alias
	}
	if r.nodeCount++; r.nodeCount > maxNodes {
		r.fail(at, "the file has more than %d values, counted again at each alias; put long lists into files of their own", maxNodes)
		return nil
	}
	if n.Kind == yaml.AliasNode {
		if r.inProgress[n.Alias] {
			r.fail(n, "*%s is inside the value that it stands for, so it would never end; write the value out", wording.Clip(n.Value))
			return nil
		}
		repeated := r.copy(n.Alias, at)
		if repeated != nil {
			repeated.Line, repeated.Column = n.Line, n.Column
		}
		return repeated
	}
	r.inProgress[n] = true
	defer delete(r.inProgress, n)
	copied := *n
	copied.Content = make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		if copied.Content[i] = r.copy(item, alias); copied.Content[i] == nil {
			return nil
		}
	}
	return &copied
}
