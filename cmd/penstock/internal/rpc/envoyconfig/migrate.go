package envoyconfig

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Policy returns the limits as a policy file of Penstock. Comments list the limits that a policy
// cannot express. The policy is a draft: the comments at its head describe how it differs from the
// files.
func (c *Config) Policy() string {
	p := &policyWriter{names: make(map[string]bool)}
	p.b.WriteString(policyHead)
	for _, w := range c.warnings {
		p.writeComment("warning: " + w.String())
	}
	limits := slices.Clone(c.limits)
	slices.SortStableFunc(limits, compareLimits)
	for _, l := range limits {
		if l.RequestsPerUnit == 0 && !l.IsUnlimited && l.obstacle() == "" {
			p.denied = append(p.denied, l)
		}
	}
	if len(p.denied) > 0 {
		p.b.WriteString("\n# requests_per_unit is 0.\ndeny:\n")
		for _, l := range p.denied {
			fmt.Fprintf(&p.b, "- {%s}\n", l.conditions())
		}
	}
	p.b.WriteString("\nrules:\n")
	for _, l := range limits {
		p.writeRule(l)
	}
	if p.rules == 0 {
		p.b.WriteString("# A policy can express none of the limits. This rule keeps the file valid.\n- {name: none, match: {descriptor domain: none}, unlimited: true}\n")
	}
	return p.b.String()
}

// LeftOut returns a line for each limit that Policy omits, with its place and the reason.
func (c *Config) LeftOut() (lines []string) {
	for _, l := range c.limits {
		if why := l.obstacle(); why != "" {
			lines = append(lines, place(l.File, l.Line)+": "+clean(l.Path)+" is left out: "+why)
		}
	}
	return lines
}

const policyHead = `# Made by penstock migrate envoy-ratelimit.
#
# These rules decide Envoy's requests of all domains that --envoy-config does not have.
# "descriptor domain" is the domain of a request. The rules differ from the files:
#   - All limits of a request are charged, or none. A denied request charges nothing.
#   - If several rules match a descriptor, the one with the most conditions applies. Of rules with
#     equally many conditions, the first applies. A rule also applies to descriptors with further
#     entries, unless another rule matches those entries too.
#   - A rule for all values of an entry also applies to a value that has rules of its own, if none
#     of these matches. In the files, it does not.
#   - A descriptor in deny is always denied, even if it has further entries.
`

type policyWriter struct {
	b      strings.Builder
	names  map[string]bool // of rules
	denied []*Limit        // the limits of 0 requests, which are in deny
	rules  int             // how many rules were written
}

func (p *policyWriter) writeComment(text string) {
	for line := range strings.Lines(text) {
		p.b.WriteString("# " + strings.Map(visible, strings.TrimRight(line, "\n")) + "\n")
	}
}

// visible replaces a character that cannot be printed. A carriage return in the name of a file, for
// example, would end the comment.
func visible(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

func (p *policyWriter) writeRule(l *Limit) {
	p.b.WriteString("\n")
	p.writeComment(place(l.File, l.Line) + ": " + clean(l.Path))
	if why := l.obstacle(); why != "" {
		p.writeComment("Left out: " + why)
		return
	}
	if slices.Contains(p.denied, l) {
		p.writeComment("The limit is 0, so it is in deny above.")
		return
	}
	for _, note := range l.notes() {
		p.writeComment(note)
	}
	p.rules++
	fmt.Fprintf(&p.b, "- name: %s\n  match: {%s}\n", p.ruleName(l), l.conditions())
	if l.IsUnlimited {
		p.b.WriteString("  unlimited: true\n")
		return
	}
	fmt.Fprintf(&p.b, "  per: %s\n  limits:\n  - {name: %s, rate: %d/%s, algorithm: fixed-window", l.identity(), strings.ToLower(l.Unit.String()), l.RequestsPerUnit, rateUnits[l.Unit])
	if l.ShadowMode {
		p.b.WriteString(", shadow: true")
	}
	p.b.WriteString("}\n")
}

// rateUnits are the units as a rate of a policy has them.
var rateUnits = [...]string{Second: "s", Minute: "min", Hour: "h", Day: "day", Week: "week", Month: "30d", Year: "365d"}

// maxName is how many characters of a limit's path a rule's name has. A name may have 64
// characters, so there is room for a number.
const maxName = 56

// ruleName returns a unique rule name, made from the path of the limit.
func (p *policyWriter) ruleName(l *Limit) string {
	var b strings.Builder
	for _, r := range strings.ToLower(l.Path) {
		isInNames := r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("_.-", r)
		if isInNames {
			b.WriteRune(r)
		} else if s := b.String(); s != "" && s[len(s)-1] != '-' {
			b.WriteByte('-')
		}
	}
	base := strings.Trim(b.String(), "-.")
	base = cmp.Or(base[:min(len(base), maxName)], "limit")
	name := base
	for n := 2; p.names[name]; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	p.names[name] = true
	return name
}

// obstacle returns why a policy cannot express the limit, or "".
func (l *Limit) obstacle() string {
	seen := make(map[string]bool)
	for i, key := range l.keys {
		value := l.values[i]
		switch {
		case key == "domain":
			return "a key is \"domain\", and in a policy that is the domain of the request"
		case seen[key]:
			return "the key " + clean(key) + " is used twice"
		case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' }) || key == "":
			return "a key is empty or has white space"
		case strings.Contains(key, "*"), value != "*" && strings.Contains(value, "*"):
			return "a policy has no wildcards inside values; list the values, as in: descriptor " + clean(key) + ": [a, b]"
		}
		seen[key] = true
	}
	return ""
}

func (l *Limit) notes() (notes []string) {
	if l.QuotaMode {
		notes = append(notes, "quota_mode is left out: the limit denies by itself.")
	}
	if len(l.Replaces) > 0 {
		notes = append(notes, "replaces is left out: the limits named "+clean(strings.Join(l.Replaces, ", "))+" apply to other descriptors of a request as well.")
	}
	if l.DetailedMetric || l.ValueToMetric {
		notes = append(notes, "detailed_metric and value_to_metric are left out: metrics have the name of the rule.")
	}
	if len(l.Metadata) > 0 {
		notes = append(notes, "metadata are left out.")
	}
	return notes
}

func (l *Limit) conditions() string {
	all := []string{quote("descriptor domain") + ": " + quote(l.domain)}
	for i, key := range l.keys {
		all = append(all, quote("descriptor "+key)+": "+quote(cmp.Or(l.values[i], "*")))
	}
	return strings.Join(all, ", ")
}

// identity returns the value of per: the entries whose values have separate counters.
func (l *Limit) identity() string {
	var parts []string
	for i, key := range l.keys {
		if l.values[i] == "" || l.values[i] == "*" && !l.isShared[i] {
			parts = append(parts, fmt.Sprintf("{%s: %s}", kindOf(key, len(parts)), quote("descriptor "+key)))
		}
	}
	switch len(parts) {
	case 0:
		return "global"
	case 1:
		return parts[0]
	}
	return "{all_of: [" + strings.Join(parts, ", ") + "]}"
}

// kindOf makes the kind of an identity from the key of an entry. n identities precede it.
func kindOf(key string, n int) string {
	var b strings.Builder
	for _, r := range strings.ToLower(key) {
		switch {
		case r >= 'a' && r <= 'z', b.Len() > 0 && r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0:
			b.WriteByte('-')
		}
	}
	kind := b.String()
	const longest = 16 // characters
	kind = strings.Trim(kind[:min(len(kind), longest)], "-")
	if kind == "" || kind == "first-of" || kind == "all-of" { // policy files have the words first_of and all_of
		return fmt.Sprintf("entry-%d", n+1)
	}
	return kind
}

// compareLimits orders limits by domain, and then as they are matched: at each level exact values
// first, then wildcards, then descriptors without a value.
func compareLimits(a, b *Limit) int {
	if a.domainIndex != b.domainIndex {
		return cmp.Compare(a.domainIndex, b.domainIndex)
	}
	for i := range min(len(a.values), len(b.values)) {
		if rank := cmp.Compare(rankOf(a.values[i]), rankOf(b.values[i])); rank != 0 {
			return rank
		}
	}
	return cmp.Compare(len(a.values), len(b.values))
}

// rankOf returns the place of a value in the order of matching; 0 is matched first.
func rankOf(value string) int {
	switch {
	case value == "":
		return 2
	case strings.Contains(value, "*"):
		return 1
	}
	return 0
}

// quote returns the text as a YAML string for a policy file. It doubles dollar signs, because a
// single one can begin the name of a variable.
func quote(text string) string {
	return `"` + strings.ReplaceAll(clean(text), "$", "$$") + `"`
}

// clean escapes a text for a comment.
func clean(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil { // no string causes an error
		return ""
	}
	return string(quoted[1 : len(quoted)-1])
}
