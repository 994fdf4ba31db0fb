package envoyconfig

import (
	"slices"

	yaml "go.yaml.in/yaml/v4"
)

// A path leads from the root of a file to a value: keys of maps and indices of lists.
type path []any

// join returns the path p, extended by keys of maps and indices of lists.
func (p path) join(steps ...any) path { return append(slices.Clip(p), steps...) }

// A lineFinder finds the lines of the values of a file, because the YAML 1.1 parser that reads the
// values reports none.
type lineFinder struct{ root *yaml.Node }

// newLineFinder parses a file. If that fails, all lines are unknown.
func newLineFinder(content []byte) lineFinder {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil || len(document.Content) == 0 {
		return lineFinder{}
	}
	return lineFinder{document.Content[0]}
}

// line returns the line of a value. If it does not find the value, it returns the line of the
// nearest enclosing value.
func (f lineFinder) line(at path) int {
	node, line := f.root, 0
	for i := 0; node != nil; i++ {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		line = node.Line
		if i == len(at) {
			break
		}
		var key *yaml.Node
		remaining := maxSearched
		if key, node = step(node, at[i], &remaining); key != nil {
			line = key.Line
			if i == len(at)-1 {
				return line // a value of a map is at the line of its key
			}
		}
	}
	return line
}

// maxSearched bounds how many maps are searched for a key, including merged ones.
const maxSearched = 100

// step returns a value of a map or a list, and its key if it is in a map. remaining is how many
// maps may still be searched.
func step(n *yaml.Node, keyOrIndex any, remaining *int) (key, value *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch at := keyOrIndex.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && at < len(n.Content) {
			return nil, n.Content[at]
		}
	case string:
		*remaining--
		if n.Kind != yaml.MappingNode || *remaining < 0 {
			return nil, nil
		}
		for i := 0; i+1 < len(n.Content); i += 2 { // a map has keys and values in turn
			if n.Content[i].Value == at {
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
				if key, value := step(m, at, remaining); value != nil {
					return key, value
				}
			}
		}
	}
	return nil, nil
}
