// Package promote edits policy files: it makes shadows and candidates the limits that are enforced.
// All other text of a file stays as it is, with its comments and its order.
package promote

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// A Result is an edited file.
type Result struct {
	Text     []byte
	Changes  []string // what is enforced now, for people
	Warnings policyfile.Errors
}

var errByHand = errors.New("this has a form that promote cannot edit, such as an anchor or an alias; move the fields by hand")

// Edit promotes the shadows and candidates of a rule, or of one limit as in search.minute. compile
// reads a policy from a text.
func Edit(text []byte, name string, compile func([]byte) (*policyfile.Policy, error)) (*Result, error) {
	before, err := compile(text)
	if err != nil {
		return nil, err
	}
	defer before.Close()
	e := editor{text: text, line: 1}
	if err := e.promote(before.Rules.Spec().Rules, name); err != nil {
		return nil, e.withLine(err)
	}
	result := &Result{Text: e.apply(), Changes: e.changes}
	after, err := compile(result.Text)
	if err != nil {
		return nil, fmt.Errorf("the policy would not be valid any more: %w", err)
	}
	defer after.Close()
	var got any
	if err := yaml.Load(result.Text, &got); err != nil || !reflect.DeepEqual(got, e.want) {
		return nil, e.withLine(errByHand)
	}
	for _, c := range e.candidates {
		l := after.Rules.Spec().Rules[c.rule].Limits[c.limit]
		if !isSame(c.candidate, l) {
			return nil, e.withLine(errByHand)
		}
		if old := strings.TrimSuffix(c.candidate.FullName, ".candidate"); old != l.FullName {
			result.Changes = append(result.Changes, fmt.Sprintf("the limit %s is named %s now, and begins with a new counter; add a name to keep the old one", old, l.FullName))
		}
	}
	for _, w := range after.Warnings {
		isOld := slices.ContainsFunc(before.Warnings, func(o *policyfile.Error) bool { return o.Message == w.Message })
		if !isOld {
			result.Warnings = append(result.Warnings, w)
		}
	}
	return result, nil
}

type editor struct {
	text       []byte
	line       int // of the rule or limit that is edited
	want       any // what the new text must mean
	edits      []edit
	changes    []string
	candidates []promoted
}

// withLine adds the line to errByHand.
func (e *editor) withLine(err error) error {
	if err == errByHand {
		return fmt.Errorf("line %d: %w", e.line, err)
	}
	return err
}

// An edit replaces a part of the text.
type edit struct {
	from, to int
	text     string
}

// A promoted is a candidate that becomes the limit of a rule. rule and limit are indices.
type promoted struct {
	rule, limit int
	candidate   *policy.Limit
}

// promote finds what is promoted, and edits it.
func (e *editor) promote(rules []*policy.Rule, name string) error {
	var document yaml.Node
	if err := yaml.Load(e.text, &document); err != nil {
		return err
	}
	if err := yaml.Load(e.text, &e.want); err != nil {
		return err
	}
	root, _ := e.want.(map[string]any)
	list, _ := root["rules"].([]any)
	nodes := valueOf(document.Content[0], "rules")
	var known []string
	for i, r := range rules {
		for _, l := range r.Limits {
			known = append(known, l.FullName)
		}
		known = append(known, r.Name)
		isOne := slices.ContainsFunc(r.Limits, func(l *policy.Limit) bool { return l.FullName == name })
		if r.Name != name && !isOne {
			continue
		}
		if nodes == nil || len(list) != len(rules) || len(nodes.Content) != len(rules) {
			return errByHand
		}
		e.line = nodes.Content[i].Line
		return e.promoteRule(i, r, name, nodes.Content[i], list[i])
	}
	return fmt.Errorf("the policy has no rule %q; %s", wording.Clip(name), wording.Suggest(name, known))
}

func (e *editor) promoteRule(at int, r *policy.Rule, name string, node *yaml.Node, want any) error {
	fields, ok := want.(map[string]any)
	if !ok || node.Kind != yaml.MappingNode {
		return errByHand
	}
	limits, _ := fields["limits"].([]any)
	nodes := valueOf(node, "limits")
	if fields["shadow"] == true && r.Name != name {
		return fmt.Errorf("the whole rule %s is a shadow; promote the rule", r.Name)
	}
	if fields["shadow"] == true {
		delete(fields, "shadow")
		e.changes = append(e.changes, fmt.Sprintf("the rule %s is enforced", r.Name))
		if err := e.change(node, []string{"shadow"}, nil); err != nil {
			return err
		}
	}
	for i, l := range r.Limits {
		if r.Name != name && l.FullName != name {
			continue
		}
		if nodes == nil || len(limits) != len(r.Limits) || len(nodes.Content) != len(limits) {
			return errByHand
		}
		e.line = nodes.Content[i].Line
		limit, ok := limits[i].(map[string]any)
		if !ok {
			return errByHand
		}
		if limit["shadow"] == true {
			delete(limit, "shadow")
			e.changes = append(e.changes, fmt.Sprintf("the limit %s is enforced", l.FullName))
			if err := e.change(nodes.Content[i], []string{"shadow"}, nil); err != nil {
				return err
			}
		}
		if l.Candidate != nil {
			e.candidates = append(e.candidates, promoted{at, i, l.Candidate})
			if err := e.promoteCandidate(l, nodes.Content[i], limit); err != nil {
				return err
			}
		}
	}
	if len(e.edits) == 0 {
		return fmt.Errorf("%s is enforced already: it has no shadow and no candidate; add one and see what it would deny", name)
	}
	return nil
}

// promoteCandidate moves the fields of a candidate into its limit, and removes the fields of the
// limit that the candidate cannot have.
func (e *editor) promoteCandidate(l *policy.Limit, node *yaml.Node, want map[string]any) error {
	candidate, ok := want["candidate"].(map[string]any)
	from := valueOf(node, "candidate")
	if !ok || from == nil || from.Kind != yaml.MappingNode {
		return errByHand
	}
	remove := fieldsToRemove(l.Candidate, candidate)
	for _, field := range remove {
		delete(want, field)
	}
	delete(want, "candidate")
	maps.Copy(want, candidate)
	e.changes = append(e.changes, fmt.Sprintf("the limit %s is %s instead of %s", l.FullName, texts(l.Candidate), texts(l)))
	return e.change(node, append(remove, "candidate"), from)
}

// fieldsToRemove returns the fields of a limit that cannot stay when its candidate is promoted: the
// candidate has no such field, and the limit with it would differ from the candidate. own are the
// fields of the candidate.
func fieldsToRemove(candidate *policy.Limit, own map[string]any) (fields []string) {
	a := candidate.Variants[0].Algorithm()
	for field, mustGo := range map[string]bool{
		"burst":        a.BurstUse() == algorithm.BurstUnused,
		"sub_windows":  candidate.SubWindows == 0,
		"timezone":     candidate.Timezone == "",
		"algorithm":    a.IsCalendar(),
		"count_denied": !candidate.Variants[0].CountsDenied(),
	} {
		if _, isOwn := own[field]; mustGo && !isOwn {
			fields = append(fields, field)
		}
	}
	return fields
}

// texts describes a limit, in each tier.
func texts(l *policy.Limit) string {
	var all []string
	for i := range l.Variants {
		_, text, _ := strings.Cut(l.Variants[i].String(), ": ") // behind the name
		all = append(all, text)
	}
	return strings.Join(slices.Compact(all), " / ")
}

func isSame(candidate, limit *policy.Limit) bool {
	text := func(l *policy.Limit) (s string) {
		for i := range l.Variants {
			v := l.Variants[i].Limit()
			s += fmt.Sprintln(v.Count, v.Period, v.Burst, v.Algorithm.Title(), v.ShouldCountDenied)
		}
		return s + fmt.Sprintln(l.SubWindows, l.Timezone)
	}
	return text(candidate) == text(limit)
}

func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; mapping.Kind == yaml.MappingNode && i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}
