package envoyconfig

import "strings"

// An Entry is a part of a descriptor in a request.
type Entry struct{ Key, Value string }

// A Match is the result of Domain.Match. Another call of Domain.Match can reuse it.
type Match struct {
	Limit *Limit // nil: no limit applies

	// Shared has one text for each entry. With share_threshold it replaces the value of the entry
	// in the key of the counter. An empty text keeps the value. If Shared is shorter than the
	// entries, the other entries keep their values.
	Shared []string

	isInMetric []bool // by entry: whether its descriptor has value_to_metric
	composite  []byte // a buffer for the entry that is being matched
}

// Match finds the limit of a descriptor. At each level it takes the child with the entry's key and
// value, else the first matching wildcard in the file, else the child with the key and no value. It
// does not backtrack: if that child has no match for the next entry, no limit applies. Only a limit
// of the descriptor that matches the last entry applies.
func (d *Domain) Match(entries []Entry, m *Match) {
	m.Limit, m.Shared, m.isInMetric = nil, m.Shared[:0], m.isInMetric[:0]
	at := &d.node
	for i := range entries {
		e := &entries[i]
		m.composite = append(append(append(m.composite[:0], e.Key...), '_'), e.Value...)
		next, isWildcard := at.child(m.composite, e.Key)
		if next == nil {
			return
		}
		if isWildcard && next.shared != "" {
			m.share(i, next.sharedValue(e.Key))
		}
		m.isInMetric = append(m.isInMetric, next.isValueInMetric)
		if i == len(entries)-1 {
			m.Limit = next.limit
		}
		at = next
	}
}

// sharedValue returns the text that replaces the value of an entry with this key: the rest of the
// wildcard after the key, or all of it if the wildcard begins within the key.
func (n *node) sharedValue(key string) string {
	if rest, ok := strings.CutPrefix(n.shared, key); ok && strings.HasPrefix(rest, "_") {
		return rest[1:]
	}
	return n.shared
}

// share sets the text that replaces the value of entry i in the key of the counter.
func (m *Match) share(i int, text string) {
	for len(m.Shared) <= i {
		m.Shared = append(m.Shared, "")
	}
	m.Shared[i] = text
}

// child returns the child for an entry, or nil. composite is key_value, even if the value is empty.
func (n *node) child(composite []byte, key string) (next *node, isWildcard bool) {
	if next := n.exact[string(composite)]; next != nil {
		return next, false
	}
	for i := range n.wildcards {
		if w := &n.wildcards[i]; w.matches(composite) {
			return w.node, true
		}
	}
	return n.exact[key], false
}

// AppendMetricPath appends the name of the matched limit for metrics. If the limit has
// detailed_metric, the name contains the values of all entries. Otherwise it contains the values of
// the entries whose descriptors have value_to_metric. Clients can cause any number of different
// names.
func (m *Match) AppendMetricPath(to []byte, domain string, entries []Entry) []byte {
	if m.Limit == nil {
		return to
	}
	if !m.Limit.DetailedMetric && !m.Limit.ValueToMetric {
		return append(to, m.Limit.Path...)
	}
	to = append(to, domain...)
	for i, e := range entries {
		to = append(append(to, '.'), e.Key...)
		var value string
		switch {
		case i < len(m.Shared) && m.Shared[i] != "":
			value = m.Shared[i]
		case m.Limit.DetailedMetric || m.isInMetric[i]:
			value = e.Value
		case i < len(m.Limit.values):
			value = m.Limit.values[i]
		}
		if value != "" {
			to = append(append(to, '_'), value...)
		}
	}
	return to
}

// A wildcard is a composite key with asterisks. Each asterisk matches any text.
type wildcard struct {
	parts []string // between the asterisks
	node  *node
}

func (w *wildcard) matches(composite []byte) bool {
	first, last := w.parts[0], w.parts[len(w.parts)-1]
	if len(composite) < len(first)+len(last) || string(composite[:len(first)]) != first || string(composite[len(composite)-len(last):]) != last {
		return false
	}
	rest := composite[len(first) : len(composite)-len(last)]
	for _, part := range w.parts[1 : len(w.parts)-1] {
		i := indexOf(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return true
}

// indexOf is bytes.Index for a string, without a copy.
func indexOf(text []byte, part string) int {
	for i := 0; i+len(part) <= len(text); i++ {
		if string(text[i:i+len(part)]) == part {
			return i
		}
	}
	return -1
}
