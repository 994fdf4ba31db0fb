package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// String says what the policy means, as people would read it aloud: what holds for all requests,
// and then each rule in the order of the file. The same files always have the same description. It
// tells no secrets: values that callers send in headers, cookies and queries may be keys, so those
// that a policy lists are only counted.
func (r *Rules) String() string {
	var d description
	d.policy(r)
	for _, rule := range r.rules {
		d.rule(r, rule)
	}
	return d.String()
}

// A description is a text of lines with a label each.
type description struct{ strings.Builder }

const (
	textColumn = 20  // where the text of a line begins
	textEnd    = 120 // where it goes on in the next line, if it has a space before
	mostListed = 20  // how many of a list are written out
)

// say writes texts behind a label, each in a line of its own, and nothing if there are none.
func (d *description) say(label string, texts ...string) {
	for _, text := range texts {
		for more := true; more; label, text = "", "  "+text {
			var line string
			line, text, more = wrap(text)
			fmt.Fprintf(d, "%-*s%s\n", textColumn, label+"  ", line)
		}
	}
}

// wrap takes the first line off a text.
func wrap(text string) (line, rest string, more bool) {
	const most = textEnd - textColumn
	if len(text) <= most {
		return text, "", false
	}
	begins := len(text) - len(strings.TrimLeft(text, " "))
	end := strings.LastIndexByte(text[:most+1], ' ')
	if end < begins {
		end = begins + strings.IndexByte(text[begins:], ' ')
	}
	if end < begins {
		return text, "", false
	}
	return text[:end], text[end+1:], true
}

// policy says what holds for all requests.
func (d *description) policy(r *Rules) {
	d.say("policy", plain(r.name))
	if r.all {
		d.say("rules", "all that match a request apply, in this order")
	} else {
		d.say("rules", "of those that match a request the most specific applies, and those that always do")
	}
	if len(r.deny) > 0 {
		d.say("deny", texts(r.deny)...)
	}
	if len(r.allow) > 0 {
		d.say("allow", texts(r.allow)...)
	}
	if len(r.tiers) > 0 {
		d.say("tiers", "the first of these that fits")
		d.say("", r.perTier(func(i int) string {
			if r.tiers[i].otherwise {
				return "all others"
			}
			return strings.Join(texts(r.tiers[i].when), ", or ")
		})...)
	}
	if r.verifier != nil {
		d.say("tokens", r.tokens.text(r.verifier))
	}
	d.http(r)
	if set := setFields(r.server); len(set) > 0 {
		d.say("server", list(set, "and")+", which the library does not use")
	}
}

// http says how requests are read and answered.
func (d *description) http(r *Rules) {
	h := &r.http
	d.say("addresses", fmt.Sprintf("those of one IPv4 /%d pay together, and those of one IPv6 /%d", r.prefix4, r.prefix6))
	if len(h.TrustedProxies) > 0 {
		d.say("proxies", h.AddressHeader+" is believed from "+some(h.TrustedProxies, "and"))
	}
	choose := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	d.say("paths", strings.Join([]string{
		choose(r.paths.IgnoreTrailingSlash, "/a/ is /a", "/a/ is not /a"),
		choose(r.paths.IgnoreCase, "/A is /a", "/A is not /a"),
		choose(r.paths.StripParameters, "/a;v=1 is /a", "/a;v=1 is not /a"),
		choose(r.paths.KeepEncodedSlash, "%2F is part of a segment", "%2F is refused"),
	}, ", "))
	denial := fmt.Sprintf("status %d, %s", h.Denied.Status, h.Denied.Body)
	if h.Denied.Body != "problem" && h.Denied.Body != "text" {
		denial = fmt.Sprintf("status %d, a template of %s", h.Denied.Status, plain(h.Denied.ContentType))
	}
	if h.RetryJitter > 0 {
		denial += ", Retry-After up to " + period(h.RetryJitter) + " longer"
	}
	d.say("denial", denial)
	dialects := list(h.Headers, "and")
	if slices.Contains(h.Headers, "x-ratelimit") {
		dialects += ", whose reset is in " + choose(h.Reset == "epoch", "seconds since 1970", "seconds from now")
	}
	d.say("headers", dialects)
	if len(h.CORS.Origins) > 0 {
		pages := "answers of the gate itself may be read by pages of " + some(h.CORS.Origins, "and")
		if h.CORS.Origins[0] == "*" {
			pages = "answers of the gate itself may be read by any page"
		}
		d.say("cors", pages+choose(h.CORS.Credentials, ", with credentials", ", without credentials"))
	}
	d.say("waiting", fmt.Sprintf("at most %d requests at once", h.MaxWaiting))
}

// rule says when a rule applies, who pays, and what is limited.
func (d *description) rule(r *Rules, rule *Rule) {
	d.WriteByte('\n')
	when := "if it is the most specific"
	switch {
	case rule.Shadow && !rule.Always:
		when = "beside the most specific unless that is more specific"
	case rule.BeforeAuth:
		when = "always, and by itself before a token is verified"
	case rule.Always:
		when = "always"
	}
	switch {
	case rule.Unlimited:
		when += ", and sets no limit"
	case rule.Shadow:
		when += ", as a shadow: counted, never enforced"
	}
	d.say("rule "+rule.Name, when)
	d.match(rule)
	payers := make(map[string]bool)
	for _, l := range rule.Limits {
		payers[l.per.text()] = true
	}
	if len(payers) == 1 {
		d.say("  who pays", rule.Limits[0].per.text())
	}
	if n := rule.newIdentities; n != nil {
		d.say("  new identities", rateText(*n)+" of each address, in each process")
	}
	for _, l := range rule.Limits {
		d.limit(r, l, len(payers) > 1)
	}
}

func (d *description) match(rule *Rule) {
	var hosts, paths []string
	for _, m := range rule.matchers {
		if host := plain(m.host); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
		if path := pathText(m.path); !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	m := rule.matchers[0]
	anyHost, anyPath := slices.ContainsFunc(rule.matchers, func(m *matcher) bool { return m.host == "" }), slices.Contains(paths, "/**")
	if anyHost && anyPath && len(m.methods) == 0 && len(m.where) == 0 {
		d.say("  matches", "every request")
	}
	if len(m.methods) > 0 {
		text := some(m.methods, "or")
		if slices.ContainsFunc(rule.matchers, func(m *matcher) bool { return m.implied }) {
			text += "; HEAD as GET"
		}
		d.say("  method", text)
	}
	if !anyHost {
		d.say("  host", some(hosts, "or"))
	}
	if !anyPath {
		d.say("  path", some(paths, "or"))
	}
	if len(m.where) > 0 {
		d.say("  where", m.where.text())
	}
}

// limit says what one limit admits, and what it charges.
func (d *description) limit(r *Rules, l *Limit, payer bool) {
	how := l.algorithm()
	if l.Shadow && !l.Rule.Shadow {
		how += ", as a shadow: counted, never enforced"
	}
	d.say("  limit "+l.Name, how)
	d.say("    admits", l.admits(r)...)
	if payer {
		d.say("    who pays", l.per.text())
	}
	if cost := l.costText(); cost != "1" {
		d.say("    cost", cost)
	}
	if l.Status != nil {
		d.say("    only for", "answers with status "+l.Status.text())
	}
	if l.Patience > 0 {
		d.say("    waits", "up to "+period(l.Patience))
	}
	if !l.Shadow {
		d.guards(l)
		d.say("    headers", map[bool]string{true: "tell of it", false: "do not tell of it"}[l.Shown && !slices.Contains(r.http.Headers, "none")])
	}
	if c := l.Candidate; c != nil {
		how := c.algorithm() + ", beside it: counted, never enforced"
		if c.Patience > 0 {
			how += "; waits up to " + period(c.Patience)
		}
		d.say("    candidate", append([]string{how}, c.admits(r)...)...)
	}
}

// guards says what stands between the limit and the store.
func (d *description) guards(l *Limit) {
	g := &l.Guard
	if g.Lease > 0 {
		d.say("    leased", fmt.Sprintf("up to %d drawn in advance", g.Lease),
			fmt.Sprintf("of traffic below the limit, at least %.0f %% of what the store alone would admit", 100*guard.LeaseUtilization))
	}
	if g.Shards > 0 {
		d.say("    split", fmt.Sprintf("in %d counters", g.Shards))
	}
	if g.DenyFor > 0 {
		d.say("    denials", "remembered up to "+period(g.DenyFor))
	} else if g.DenyFor < 0 {
		d.say("    denials", "never remembered")
	}
	text := withoutStore[g.OnFailure]
	if g.Ceiling.Algorithm != nil {
		text += ", to each payer from each process " + rateText(g.Ceiling)
	}
	d.say("    no store", text)
}

// withoutStore is what becomes of requests while the store gives no answer.
var withoutStore = map[guard.Failure]string{
	guard.Open: "requests pass", guard.Closed: "requests are refused", guard.Local: "this process decides, by its share of the limit",
}

// admits are the numbers of a limit, in a line for each tier if they differ.
func (l *Limit) admits(r *Rules) []string {
	number := func(i int) string {
		if f := l.forms[i]; f.Algorithm.Holds {
			return fmt.Sprintf("%d in flight", f.Count)
		}
		return rateText(l.forms[i])
	}
	if len(l.forms) == 1 {
		return []string{number(0)}
	}
	return r.perTier(number)
}

// rateText is a limit's rate, without its name and algorithm.
func rateText(f penstock.Limit) string {
	if f.Algorithm.Is(penstock.TokenBucket) {
		f.Burst = cmp.Or(f.Burst, f.Count)
	}
	_, text, _ := strings.Cut(f.String(), ": ")
	text, _, _ = strings.Cut(text, " (")
	return text
}

// perTier is a line for each tier.
func (r *Rules) perTier(text func(i int) string) []string {
	lines, width := make([]string, len(r.tiers)), 0
	for _, t := range r.tiers {
		width = max(width, len(t.name))
	}
	for i, t := range r.tiers {
		lines[i] = fmt.Sprintf("%-*s  %s", width, t.name, text(i))
	}
	return lines
}

// algorithm is how a limit is enforced.
func (l *Limit) algorithm() string {
	a := l.forms[0].Algorithm
	text := a.Title
	if a.Holds {
		return "slots, each free again " + period(l.forms[0].Period) + " after its process died"
	}
	if l.parts > 0 {
		text += fmt.Sprintf(" of %d parts", l.parts)
	}
	if l.zone != "" {
		text += " of " + l.zone
	}
	return text
}

func (l *Limit) costText() string {
	c := &l.cost
	text := strconv.FormatInt(c.units, 10)
	switch {
	case l.Body > 0:
		text = fmt.Sprintf("1 for each begun %s of the body, at least %d", sizeText(l.Body), c.min)
	case c.header != "":
		text = fmt.Sprintf("what header %s says, from %d to %d; %[2]d if it says no number", c.header, c.min, c.max)
	case c.methods != nil:
		var each []string
		for _, method := range slices.Sorted(maps.Keys(c.methods)) {
			each = append(each, fmt.Sprintf("%d for %s", c.methods[method], method))
		}
		text = fmt.Sprintf("%s, otherwise %d", some(each, "and"), c.units)
	}
	switch {
	case l.Actual != "":
		text += ", corrected to what the answer's header " + l.Actual + " says, or the handler"
	case l.Settled:
		text += ", corrected to what the handler says"
	}
	return text
}

// text is the statuses as people write them: 401, 500-599.
func (s *Statuses) text() string {
	var ranges []string
	for from := 0; from < 64*len(s); from++ {
		to := from
		for s.Has(to) {
			to++
		}
		switch {
		case to > from+1:
			ranges = append(ranges, fmt.Sprintf("%d-%d", from, to-1))
		case to > from:
			ranges = append(ranges, strconv.Itoa(from))
		}
		from = max(from, to-1)
	}
	return some(ranges, "or")
}

func (t *Tokens) text(v *verifier) string {
	var in, keys []string
	if v.header != "" {
		in = append(in, "header "+v.header)
	}
	if v.cookie != "" {
		in = append(in, "cookie "+v.cookie)
	}
	for _, file := range []string{t.KeyFile, t.JWKSFile} {
		if file != "" {
			keys = append(keys, plain(file))
		}
	}
	if u, err := url.Parse(t.JWKSURL); err == nil && t.JWKSURL != "" {
		// The rest of it may hold a password.
		bare := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
		keys = append(keys, bare.String()+", read every "+period(cmp.Or(t.Refresh, keyRefresh)))
	}
	text := "in " + list(in, "or") + "; signed with a key of " + list(keys, "or")
	if len(keys) == 0 {
		text = "in " + list(in, "or") + "; signed with the secret"
	}
	if len(t.Algorithms) > 0 {
		text += " by " + list(t.Algorithms, "or")
	}
	if t.Issuer != "" {
		text += "; issuer " + plain(t.Issuer)
	}
	if t.Audience != "" {
		text += "; audience " + plain(t.Audience)
	}
	return text + "; clocks may differ by " + period(cmp.Or(t.Leeway, tokenLeeway))
}

// text says who pays: the first that a request has.
func (id *identity) text() string {
	text := id.chain()
	if !id.certain() {
		text += ", else unknown, all together"
	}
	return text
}

func (id *identity) chain() string {
	join := func(list []*identity, between string) string {
		var all []string
		for _, one := range list {
			text := one.chain()
			if len(one.first)+len(one.all) > 1 {
				text = "(" + text + ")"
			}
			all = append(all, text)
		}
		return strings.Join(all, between)
	}
	switch {
	case id.everyone:
		return "everyone together"
	case id.payer != nil:
		return "whom the program says"
	case id.first != nil:
		return join(id.first, ", else ")
	case id.all != nil:
		return join(id.all, " with ")
	case id.only != nil:
		return id.kind + " (" + id.only.text() + ")"
	}
	return id.kind + " (" + id.part.text() + ")"
}

// certain tells whether every request has the identity.
func (id *identity) certain() bool {
	some := slices.ContainsFunc(slices.Concat(id.first, id.all), (*identity).certain)
	if id.everyone || id.payer != nil || some {
		return true
	}
	return id.part.always() && (id.only == nil || id.only.anything)
}

func texts(conditions []condition) (lines []string) {
	for _, c := range conditions {
		lines = append(lines, c.text())
	}
	return lines
}

func (c condition) text() string {
	var all []string
	for i := range c {
		all = append(all, c[i].text())
	}
	return strings.Join(all, " and ")
}

func (t *test) text() string {
	n := len(t.texts) + len(t.domains)
	for _, set := range t.networks {
		n += len(set)
	}
	name := t.part.text()
	switch {
	case t.anything && t.part.always():
		return name + " is any"
	case t.anything:
		return name + " is there"
	case t.file != "":
		return fmt.Sprintf("%s is one of the %d in %s", name, n, plain(t.file))
	case t.part.private() && n == 1:
		return name + " is a value that is not shown"
	case t.part.private():
		return fmt.Sprintf("%s is one of %d values that are not shown", name, n)
	}
	values := slices.Clone(t.domains)
	for _, set := range t.networks {
		for network := range set {
			values = append(values, networkText(network))
		}
	}
	for text := range t.texts {
		values = append(values, plain(clip(text)))
	}
	slices.Sort(values)
	return name + " is " + some(values, "or")
}

func networkText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// private tells whether what a part may be can be a secret: callers send it, and may be let in by
// it.
func (s *part) private() bool {
	return s.needs(partHeader) || s.needs(partCookie) || s.needs(partQuery)
}

// always tells whether every request has the part.
func (s *part) always() bool {
	return s.what == partAddress || s.what == partSegment || s.what == partMethod || s.what == partTier
}

func (s *part) text() string {
	if s.what == partIdentity {
		return "the payer [" + s.id.chain() + "]"
	}
	for word, known := range partWords {
		if known.what == s.what && known.named {
			return word + " " + plain(s.name)
		} else if known.what == s.what {
			return word
		}
	}
	return ""
}

// pathText is a path's pattern as it is written.
func pathText(path []segment) string {
	var s strings.Builder
	for _, one := range path {
		switch one.kind {
		case segmentNamed:
			one.text = "{" + one.text + "}"
		case segmentAny:
			one.text = "*"
		case segmentRest:
			one.text = "**"
		}
		s.WriteString("/" + one.text)
	}
	return s.String()
}

// sizeText is a number of bytes as it is written.
func sizeText(n int64) string {
	for i, unit := range []string{"GB", "MB", "KB"} {
		if by := int64(1) << (30 - 10*i); n%by == 0 {
			return strconv.FormatInt(n/by, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// setFields are the fields of a struct that are set, by their names in YAML.
func setFields(from any) (names []string) {
	v := reflect.ValueOf(from)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); !v.Field(i).IsZero() {
			names = append(names, name)
		}
	}
	return names
}

// some writes a list, or its beginning and how many follow.
func some(names []string, and string) string {
	if len(names) > mostListed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostListed], ", "), len(names)-mostListed)
	}
	return list(names, and)
}

// plain is a text that people wrote, in quotes if it would not be seen as it is.
func plain(text string) string {
	odd := func(c rune) bool { return c == ' ' || c == ',' || c == ';' || c == '"' || !unicode.IsPrint(c) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, odd) {
		return text
	}
	return strconv.Quote(text)
}
