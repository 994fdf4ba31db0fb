package envoyconfig

import (
	"slices"

	yaml "go.yaml.in/yaml/v4"
)

// A path leads from the root of a file to a value: keys of maps and indices of lists.
type path []any

func (p path) to(step ...any) path { return append(slices.Clip(p), step...) }

// A position finds the lines of values. It is needed because the YAML 1.1 parser that reads the
// values reports no lines.
type position struct{ root *yaml.Node }

// positionsIn reads the positions of a file. If that fails, all lines are unknown.
func positionsIn(content []byte) position {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil || len(document.Content) == 0 {
		return position{}
	}
	return position{document.Content[0]}
}

// line returns the line of a value. If it does not find the value, it returns the line of the
// nearest enclosing value.
func (p position) line(at path) int {
	node, line := p.root, 0
	for i := 0; node != nil; i++ {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		line = node.Line
		if i == len(at) {
			break
		}
		var key *yaml.Node
		merges := maxMerges
		if key, node = step(node, at[i], &merges); key != nil {
			line = key.Line
			if i == len(at)-1 {
				return line
			}
		}
	}
	return line
}

// maxMerges bounds how many maps are searched for a key, including merged ones.
const maxMerges = 100

// step returns a value of a map or a list, and its key if it is in a map. The argument to is a key
// or an index. merges is how many maps may still be searched.
func step(n *yaml.Node, to any, merges *int) (key, value *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch to := to.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && to < len(n.Content) {
			return nil, n.Content[to]
		}
	case string:
		if *merges--; n.Kind != yaml.MappingNode || *merges < 0 {
			return nil, nil
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == to {
				return n.Content[i], n.Content[i+1]
			}
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value != "<<" {
				continue
			}
			merged := []*yaml.Node{n.Content[i+1]}
			if merged[0].Kind == yaml.SequenceNode {
				merged = merged[0].Content
			}
			for _, m := range merged {
				if key, value := step(m, to, merges); value != nil {
					return key, value
				}
			}
		}
	}
	return nil, nil
}
