// Package describe writes policies and limits in words: for penstock validate and explain, and for
// the log. guard.Options.Bounds describes what a limit admits beyond its number in an outage.
package describe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// Spec describes a policy: first what is common to all requests, then each rule in the order of the
// file. The same files always have the same description. The description contains no secrets:
// values of headers, cookies and queries may be keys, so it only counts them.
//
// A section of the policy that has a method Describe(line func(label string, texts ...string))
// describes itself.
func Spec(s policy.Spec) string {
	var p printer
	p.policy(&s)
	for _, rule := range s.Rules {
		p.rule(&s, rule)
	}
	return p.String()
}

// A describer is a section of a policy that describes itself.
type describer interface {
	Describe(line func(label string, texts ...string))
}

type printer struct{ strings.Builder }

const (
	textColumn = 20  // the column in which the text of a line begins
	textEnd    = 120 // the column before which a long text is wrapped
)

// line writes each text in a line, and the label before the first. A text that is too long
// continues in the next line, indented by two spaces. Without texts, line writes nothing.
func (p *printer) line(label string, texts ...string) {
	for _, text := range texts {
		for {
			line, rest, hasMore := wrap(text)
			fmt.Fprintf(p, "%-*s%s\n", textColumn, label+"  ", line)
			label = ""
			if !hasMore {
				break
			}
			text = "  " + rest
		}
	}
}

// wrap splits a text after its first line. A word that is too long gets a line of its own.
func wrap(text string) (line, rest string, hasMore bool) {
	const width = textEnd - textColumn
	if len(text) <= width {
		return text, "", false
	}
	indent := len(text) - len(strings.TrimLeft(text, " "))
	end := strings.LastIndexByte(text[:width+1], ' ')
	if end >= indent {
		return text[:end], text[end+1:], true
	}
	longWord, rest, hasMore := strings.Cut(text[indent:], " ")
	return text[:indent] + longWord, rest, hasMore
}

func (p *printer) policy(s *policy.Spec) {
	p.line("policy", wording.Plain(s.Name))
	if s.ApplyAll {
		p.line("rules", "all that match a request apply, in this order")
	} else {
		p.line("rules", "the most specific one that matches a request applies, and all with always: true")
	}
	if len(s.Deny) > 0 {
		p.line("deny", Clients(s.Deny)...)
	}
	if len(s.Allow) > 0 {
		p.line("allow", Clients(s.Allow)...)
	}
	if len(s.Tiers) > 0 {
		p.line("tiers", "the first one that fits")
		p.line("", perTier(s, func(i int) string { return Tier(s.Tiers[i]) })...)
	}
	if s.Tokens.Verifier != nil {
		p.line("tokens", s.Tokens.Summary)
	}
	p.line("addresses", fmt.Sprintf("each IPv4 /%d counts as one client, and each IPv6 /%d", cmp.Or(s.IPv4Prefix, 32), cmp.Or(s.IPv6Prefix, 64)))
	choose := func(isSet bool, ifSet, otherwise string) string {
		if isSet {
			return ifSet
		}
		return otherwise
	}
	p.line("paths", strings.Join([]string{
		choose(s.Paths.IgnoreTrailingSlash, "/a/ equals /a", "/a/ differs from /a"),
		choose(s.Paths.IgnoreCase, "/A equals /a", "/A differs from /a"),
		choose(s.Paths.StripParameters, "/a;v=1 equals /a", "/a;v=1 differs from /a"),
		choose(s.Paths.KeepEncodedSlash, "%2F is part of a segment", "%2F is rejected"),
	}, ", "))
	for _, section := range s.Sections {
		if d, ok := section.(describer); ok {
			d.Describe(p.line)
		}
	}
}

func (p *printer) rule(s *policy.Spec, rule *policy.Rule) {
	p.WriteByte('\n')
	p.line("rule "+rule.Name, When(rule))
	for _, c := range Conditions(rule) {
		p.line("  "+c.Label, c.Text)
	}
	identities := make(map[string]bool)
	for _, l := range rule.Limits {
		identities[Identity(l.Key)] = true
	}
	if len(identities) == 1 {
		p.line("  identity", Identity(rule.Limits[0].Key))
	}
	if n := rule.NewIdentities; n != nil {
		p.line("  new identities", rateText(n.Limit())+" for each address, at each instance")
	}
	for _, l := range rule.Limits {
		p.limit(s, l, len(identities) > 1)
	}
}

// When describes in which case a rule that matches a request applies.
func When(rule *policy.Rule) string {
	when := "if it is the most specific"
	switch {
	case rule.Shadow && !rule.Always:
		when = "beside the rule that applies, unless that is more specific"
	case rule.BeforeAuth:
		when = "always, and in a separate call before a token is verified"
	case rule.Always:
		when = "always"
	}
	switch {
	case rule.Unlimited:
		when += ", and sets no limit"
	case rule.Shadow:
		when += ", as a shadow: counted, never enforced"
	}
	return when
}

// A Condition is a part of a rule's match, such as path: /api/*.
type Condition struct {
	Label string `json:"label"`
	Text  string `json:"text"`
}

// Conditions describes the requests that a rule matches: those that meet all of the conditions.
func Conditions(rule *policy.Rule) (all []Condition) {
	m := &rule.Match
	var hosts, paths []string
	for _, host := range m.Hosts {
		if host = wording.Plain(host); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	for _, path := range m.Paths {
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	if m.IsAll() {
		all = append(all, Condition{"matches", "every request"})
	}
	if len(m.Methods) > 0 {
		text := wording.ShortList(m.Methods, "or")
		if slices.Contains(m.Methods, "GET") && !slices.Contains(m.Methods, "HEAD") {
			text += "; HEAD as GET"
		}
		all = append(all, Condition{"method", text})
	}
	if len(hosts) > 0 && !slices.Contains(m.Hosts, "") {
		all = append(all, Condition{"host", wording.ShortList(hosts, "or")})
	}
	if len(paths) > 0 && !slices.Contains(m.Paths, "/**") {
		all = append(all, Condition{"path", wording.ShortList(paths, "or")})
	}
	if len(m.Where) > 0 {
		all = append(all, Condition{"where", conditionText(m.Where)})
	}
	return all
}

// limit describes what one limit admits and charges, and if shouldShowIdentity is true also its
// identity.
func (p *printer) limit(s *policy.Spec, l *policy.Limit, shouldShowIdentity bool) {
	how := algorithmText(l)
	if l.Shadow && !l.Rule.Shadow {
		how += ", as a shadow: counted, never enforced"
	}
	p.line("  limit "+l.Name, how)
	p.line("    admits", rateLines(s, l)...)
	if regions.IsAcross(l.Variants[0]) {
		for _, section := range s.Sections {
			if d, ok := section.(interface{ RegionBound(*penstock.Plan) string }); ok {
				p.line("    all regions", linesOf(s, l, d.RegionBound)...)
			}
		}
	}
	if l.Variants[0].Algorithm().IsCustom() {
		p.line("    bound", linesOf(s, l, (*penstock.Plan).Bound)...)
	}
	if shouldShowIdentity {
		p.line("    identity", Identity(l.Key))
	}
	if cost := costText(l); cost != "1" {
		p.line("    cost", cost)
	}
	if l.Status != nil {
		p.line("    only for", "responses with status "+statusText(l.Status))
	}
	if l.Patience > 0 {
		p.line("    waits", "up to "+wording.Period(l.Patience))
	}
	if !l.Shadow {
		p.guards(l)
		if !l.InHeaders {
			p.line("    headers", "do not report it")
		}
	}
	if c := l.Candidate; c != nil {
		how := algorithmText(c) + ", beside it: counted, never enforced"
		if c.Patience > 0 {
			how += "; waits up to " + wording.Period(c.Patience)
		}
		p.line("    candidate", append([]string{how}, rateLines(s, c)...)...)
	}
}

func (p *printer) guards(l *policy.Limit) {
	g := &l.Guard
	if g.Lease > 0 {
		p.line("    leased", fmt.Sprintf("up to %d units drawn in advance", g.Lease),
			fmt.Sprintf("while traffic is below the limit, leases admit at least %.0f %% of what the store alone would admit", 100*guard.LeaseUtilization))
	}
	if g.SplitInto > 0 {
		p.line("    split", fmt.Sprintf("in %d counters", g.SplitInto))
	}
	if l.Variants[0].CountsDenied() || g.DenyCacheTTL < 0 {
		p.line("    denials", "never cached")
	} else if g.DenyCacheTTL > 0 {
		p.line("    denials", "cached for up to "+wording.Period(g.DenyCacheTTL))
	}
	p.line("    store fails", StoreFailure(g))
}

// StoreFailure describes what happens to requests while the store gives no answer.
func StoreFailure(s *guard.Settings) string {
	switch {
	case s.OnFailure == guard.FailClosed:
		return "rejected"
	case s.OnFailure == guard.FailLocal:
		return "each instance enforces its share of the limit"
	case s.Ceiling.Algorithm != nil:
		return "allowed; each instance enforces this ceiling for each key: " + rateText(s.Ceiling)
	}
	return "allowed"
}

// FailureModes counts the enforced limits of each failure mode, as in "3 limits local, 1 limit
// closed".
func FailureModes(rules []*policy.Rule) string {
	counts := make(map[guard.FailureMode]int)
	for _, rule := range rules {
		for _, l := range rule.Limits {
			if !l.Shadow {
				counts[l.Guard.OnFailure]++
			}
		}
	}
	var parts []string
	for _, mode := range []guard.FailureMode{guard.FailLocal, guard.FailClosed, guard.FailOpen} {
		switch n := counts[mode]; n {
		case 0:
		case 1:
			parts = append(parts, fmt.Sprintf("1 limit %v", mode))
		default:
			parts = append(parts, fmt.Sprintf("%d limits %v", n, mode))
		}
	}
	return strings.Join(parts, ", ")
}

// Rate describes how much a limit admits, as in "10 per 1s, burst 20" or "5 in flight".
func Rate(plan *penstock.Plan) string {
	if plan.Algorithm().NeedsHolder() {
		return fmt.Sprintf("%d in flight", plan.Limit().Count)
	}
	return rateText(plan.Limit())
}

func rateLines(s *policy.Spec, l *policy.Limit) []string { return linesOf(s, l, Rate) }

// linesOf describes a limit, in a line for each tier if they differ.
func linesOf(s *policy.Spec, l *policy.Limit, text func(*penstock.Plan) string) []string {
	if len(l.Variants) == 1 {
		return []string{text(l.Variants[0])}
	}
	return perTier(s, func(i int) string { return text(l.Variants[i]) })
}

// rateText returns a limit's rate and burst, without its name and algorithm.
func rateText(limit penstock.Limit) string {
	if limit.Algorithm.BurstUse() == algorithm.BurstIsCapacity {
		limit.Burst = cmp.Or(limit.Burst, limit.Count) // String leaves out a default burst
	}
	_, text, _ := strings.Cut(limit.String(), ": ") // the form is "NAME: RATE (ALGORITHM)"
	text, _, _ = strings.Cut(text, " (")
	return text
}

// perTier returns a line for each tier, with its name and its text. The text is a function of the
// tier's index in Spec.Tiers.
func perTier(s *policy.Spec, text func(tier int) string) []string {
	lines, width := make([]string, len(s.Tiers)), 0
	for _, t := range s.Tiers {
		width = max(width, len(t.Name))
	}
	for i, t := range s.Tiers {
		lines[i] = fmt.Sprintf("%-*s  %s", width, t.Name, text(i))
	}
	return lines
}

func algorithmText(l *policy.Limit) string {
	a := l.Variants[0].Algorithm()
	text := a.Title()
	if a.NeedsHolder() {
		return "slots, each free " + wording.Period(l.Variants[0].Limit().Period) + " after its instance died"
	}
	if l.SubWindows > 0 {
		text += fmt.Sprintf(" of %d parts", l.SubWindows)
	}
	if l.Timezone != "" {
		text += " of " + l.Timezone
	}
	switch {
	case regions.IsShared(l.Variants[0]):
		text += ", across regions, which have shares and lend them"
	case regions.IsAcross(l.Variants[0]):
		text += ", across regions, which exchange what they grant"
	}
	return text
}

func costText(l *policy.Limit) string {
	c := &l.Cost
	text := strconv.FormatInt(c.Units, 10)
	switch {
	case c.Body > 0:
		text = fmt.Sprintf("1 for each %s of the body, rounded up, at least %d", wording.Size(c.Body), c.Min)
	case c.Header != "":
		text = fmt.Sprintf("the number in header %s, from %d to %d; %[2]d without it", c.Header, c.Min, c.Max)
	case c.Methods != nil:
		var each []string
		for _, method := range slices.Sorted(maps.Keys(c.Methods)) {
			each = append(each, fmt.Sprintf("%d for %s", c.Methods[method], method))
		}
		text = fmt.Sprintf("%s, otherwise %d", wording.ShortList(each, "and"), c.Units)
	}
	switch {
	case l.CostHeader != "":
		text += ", corrected to the number in the response header " + l.CostHeader + ", or by the handler"
	case l.Adjustable:
		text += ", corrected by the handler"
	}
	return text
}

// statusText writes statuses like 401, 500-599.
func statusText(s *policy.Statuses) string {
	var ranges []string
	const statusesPerElement = 64 // of the array that Statuses is
	for from := 0; from < statusesPerElement*len(s); from++ {
		if !s.Has(from) {
			continue
		}
		to := from
		for s.Has(to + 1) {
			to++
		}
		if to > from {
			ranges = append(ranges, fmt.Sprintf("%d-%d", from, to))
		} else {
			ranges = append(ranges, strconv.Itoa(from))
		}
		from = to
	}
	return wording.ShortList(ranges, "or")
}

func Identity(id *policy.Identity) string {
	text := keyText(id)
	if !id.IsAlwaysPresent() {
		text += ", else unknown: all such requests together"
	}
	return text
}

func keyText(id *policy.Identity) string {
	join := func(list []*policy.Identity, separator string) string {
		var all []string
		for _, one := range list {
			text := keyText(one)
			if len(one.FirstOf)+len(one.AllOf) > 1 {
				text = "(" + text + ")"
			}
			all = append(all, text)
		}
		return strings.Join(all, separator)
	}
	switch {
	case id.Global:
		return "all requests together"
	case id.Func != nil:
		return "a function of the program"
	case id.FirstOf != nil:
		return join(id.FirstOf, ", else ")
	case id.AllOf != nil:
		return join(id.AllOf, " with ")
	case id.AllowedValues != nil:
		return id.Kind + " (" + testText(id.AllowedValues) + ")"
	}
	source := sourceText(&id.Source)
	if source == id.Kind {
		return source
	}
	return id.Kind + " (" + source + ")"
}

// Tier describes the clients that a tier has, of those that no earlier tier has.
func Tier(t policy.Tier) string {
	if t.IsDefault {
		return "all other clients"
	}
	return strings.Join(Clients(t.AnyOf), ", or ")
}

// Clients describes the clients of a list: those that meet one of the conditions. Like Spec, it
// shows no value that may be a secret.
func Clients(conditions []policy.Condition) []string {
	texts := []string{}
	for _, c := range conditions {
		texts = append(texts, conditionText(c))
	}
	return texts
}

func conditionText(c policy.Condition) string {
	var all []string
	for i := range c {
		all = append(all, testText(&c[i]))
	}
	return strings.Join(all, " and ")
}

func testText(t *policy.Test) string {
	name := sourceText(&t.Source)
	switch {
	case t.Any && t.Source.IsAlwaysPresent():
		return name + " is any"
	case t.Any:
		return name + " is present"
	case t.File != "":
		return fmt.Sprintf("%s is one of the %d in %s", name, t.Len(), wording.Plain(t.File))
	case isPrivate(&t.Source) && t.Len() == 1:
		return name + " is a value that is not shown"
	case isPrivate(&t.Source):
		return fmt.Sprintf("%s is one of %d values that are not shown", name, t.Len())
	}
	values := t.Values()
	for i := range values {
		values[i] = wording.Plain(wording.Clip(values[i]))
	}
	return name + " is " + wording.ShortList(values, "or")
}

func sourceText(s *policy.Source) string {
	switch {
	case s.Kind == policy.KindIdentity:
		return "the identity [" + keyText(s.Identity) + "]"
	case s.Kind.IsNamed():
		kind, name, _ := strings.Cut(s.String(), " ")
		return kind + " " + wording.Plain(name)
	}
	return s.Kind.String()
}

// isPrivate reports whether the values of a source may be secrets, such as API keys.
func isPrivate(s *policy.Source) bool {
	return s.Needs(policy.KindHeader) || s.Needs(policy.KindCookie) || s.Needs(policy.KindQuery) || s.Needs(policy.KindDescriptor)
}
