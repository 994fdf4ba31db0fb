package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// A domain is one configuration file: a tree of descriptors.
type domain struct {
	name  string
	nodes []*node
}

// A node is a descriptor of a configuration.
type node struct {
	key        string
	value      string // "": the node has no value
	limit      *limit // nil: the node has no limit
	isShadow   bool   // shadow_mode
	isQuota    bool   // quota_mode
	isDetailed bool   // detailed_metric
	isMetric   bool   // value_to_metric
	isShared   bool   // share_threshold
	metadata   map[string]any
	nodes      []*node
}

type limit struct {
	unit           string // in upper case; "": the limit is unlimited
	count          uint32 // requests_per_unit
	isCountOmitted bool   // the file has no requests_per_unit, so count is 0
	isUnlimited    bool
	name           string
	replaces       []string // names of other limits
}

// label returns key_value, or the key of a node without a value. Labels are unique within a level.
func (n *node) label() string {
	if n.value == "" {
		return n.key
	}
	return n.key + "_" + n.value
}

func (n *node) isWildcard() bool { return strings.Contains(n.label(), "*") }

// windowSeconds are the lengths of windows in seconds, by unit.
var windowSeconds = map[string]int64{
	"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400, "MONTH": 30 * 86400, "YEAR": 365 * 86400,
}

// unitNames are the names of units, by their number in the protocol.
var unitNames = []string{1: "SECOND", 2: "MINUTE", 3: "HOUR", 4: "DAY", 5: "MONTH", 6: "YEAR", 7: "WEEK"}

// Random configurations and requests have these texts and numbers. There are few keys and values,
// so that entries often match, repeat, or have equal labels.
var (
	keys   = []string{"k", "k", "a", "a_b", "path", "remote_address", "é"}
	values = []string{"", "", "", "x", "x", "y", "b_c", "c", "10", "true", "1.2.3.4", "/api", "/api/v1", "a b", "x*", "*", "/api/*", "b*", "*b", "/*/v1", "ü"}
	names  = []string{"one", "two", "three"}
	counts = []uint32{0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 10, 20, 100, 1000, 1<<31 - 1, 1 << 31, 1<<32 - 1}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// chance returns true in one of n cases.
func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// newDomain returns a random configuration that both services accept.
func newDomain(r *rand.Rand, name string) *domain {
	return &domain{name: name, nodes: newNodes(r, 0)}
}

// newNodes returns random nodes of one level, with the levels below it. depth is the number of
// levels above it.
func newNodes(r *rand.Rand, depth int) (nodes []*node) {
	var labels []string
	for range 1 + r.IntN(6-depth) {
		n := &node{key: pick(r, keys), value: pick(r, values)}
		if chance(r, 20) {
			n.key += "*"
		}
		if slices.Contains(labels, n.label()) {
			continue
		}
		labels = append(labels, n.label())
		if !chance(r, 5) {
			n.limit = newLimit(r)
		}
		n.isShadow, n.isQuota = chance(r, 10), chance(r, 20)
		n.isDetailed, n.isMetric = chance(r, 10), chance(r, 10)
		n.isShared = n.isWildcard() && chance(r, 2)
		if chance(r, 4) {
			n.metadata = newMetadata(r)
		}
		if depth < 3 && chance(r, 3) {
			n.nodes = newNodes(r, depth+1)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// newMetadata returns random metadata. There are few names, so that those of several limits often
// are to be merged.
func newMetadata(r *rand.Rand) map[string]any {
	values := []any{"web", 1.5, true, []any{"x", 2.0}, map[string]any{pick(r, names): pick(r, names)}, map[string]any{"one": map[string]any{pick(r, names): 1.0}}}
	m := make(map[string]any)
	for range 1 + r.IntN(2) {
		m[pick(r, names)] = pick(r, values)
	}
	return m
}

func newLimit(r *rand.Rand) *limit {
	var l limit
	if chance(r, 2) {
		l.name = pick(r, names)
	}
	if chance(r, 6) {
		for _, name := range names {
			if name != l.name && chance(r, 2) {
				l.replaces = append(l.replaces, name)
			}
		}
	}
	if chance(r, 12) {
		l.isUnlimited = true
		return &l
	}
	l.unit, l.count = unitNames[1+r.IntN(len(unitNames)-1)], pick(r, counts)
	l.isCountOmitted = l.count == 0 && chance(r, 2)
	return &l
}

// yaml returns the text of the configuration file, in one of several spellings.
func (d *domain) yaml(r *rand.Rand) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\n", d.name)
	if len(d.nodes) > 0 {
		b.WriteString("descriptors:\n")
		writeNodes(&b, r, d.nodes, "")
	}
	return b.String()
}

func writeNodes(b *strings.Builder, r *rand.Rand, nodes []*node, indent string) {
	for _, n := range nodes {
		fmt.Fprintf(b, "%s- key: %s\n", indent, scalar(r, n.key))
		indent := indent + "  "
		if n.value != "" {
			fmt.Fprintf(b, "%svalue: %s\n", indent, scalar(r, n.value))
		}
		for _, flag := range []struct {
			name  string
			isSet bool
		}{
			{"shadow_mode", n.isShadow},
			{"quota_mode", n.isQuota},
			{"detailed_metric", n.isDetailed},
			{"value_to_metric", n.isMetric},
			{"share_threshold", n.isShared},
		} {
			if flag.isSet || chance(r, 12) {
				fmt.Fprintf(b, "%s%s: %t\n", indent, flag.name, flag.isSet)
			}
		}
		if len(n.metadata) > 0 {
			text, _ := json.Marshal(n.metadata) // YAML includes JSON
			fmt.Fprintf(b, "%smetadata: %s\n", indent, text)
		}
		if n.limit != nil {
			fmt.Fprintf(b, "%srate_limit:\n", indent)
			n.limit.write(b, r, indent+"  ")
		}
		if len(n.nodes) > 0 {
			fmt.Fprintf(b, "%sdescriptors:\n", indent)
			writeNodes(b, r, n.nodes, indent)
		}
	}
}

func (l *limit) write(b *strings.Builder, r *rand.Rand, indent string) {
	if l.isUnlimited {
		fmt.Fprintf(b, "%sunlimited: true\n", indent)
	} else {
		lower := strings.ToLower(l.unit)
		spellings := []string{l.unit, lower, l.unit[:1] + lower[1:]}
		fmt.Fprintf(b, "%sunit: %s\n", indent, pick(r, spellings))
		if !l.isCountOmitted {
			fmt.Fprintf(b, "%srequests_per_unit: %d\n", indent, l.count)
		}
	}
	if l.name != "" {
		fmt.Fprintf(b, "%sname: %s\n", indent, l.name)
	}
	if len(l.replaces) > 0 {
		fmt.Fprintf(b, "%sreplaces:\n", indent)
		for _, name := range l.replaces {
			fmt.Fprintf(b, "%s- name: %s\n", indent, name)
		}
	}
}

// scalar returns a text as a YAML scalar. The text is in quotes if necessary, and sometimes if not.
func scalar(r *rand.Rand, s string) string {
	_, err := strconv.ParseFloat(s, 64)
	isFloat := err == nil && strings.Contains(s, ".")
	if isFloat || strings.ContainsAny(s, "*:#&!%@`'\"{}[]|>") || chance(r, 3) {
		return strconv.Quote(s)
	}
	return s
}

func unitNumber(unit string) int { return slices.Index(unitNames, unit) }
