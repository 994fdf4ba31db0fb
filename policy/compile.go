package policy

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// Load reads and compiles a policy from a YAML file, with the variables of the process. Names of files in it are relative to its folder.
func Load(path string) (*Rules, error) {
	text, err := readFile(path, MaxFile)
	if err != nil {
		return nil, fmt.Errorf("%w: policy: %w", penstock.ErrInvalid, err)
	}
	config, parsed := Parse(path, text, os.LookupEnv)
	if parsed == nil {
		return config.Compile()
	}
	// Compile what could be read, so that all mistakes are reported together.
	rules, err := config.Compile()
	if err == nil {
		rules.Close()
		return nil, parsed
	}
	return nil, err
}

func readFile(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a folder; name a file", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is longer than %d bytes; split it", path, most)
	}
	return text, err
}

// What a policy may have at most.
const (
	maxRules  = 10_000
	maxWays   = 100_000             // in which rules match: each path at each host
	maxLimits = penstock.MaxCharges // that are charged together
)

// Compile checks the whole policy and makes Rules of it. The error is Errors: every mistake, with its position.
func (config *Config) Compile() (*Rules, error) {
	c := newCompiler(config)
	c.compile()
	if err := c.err(); err != nil {
		c.rules.Close()
		return nil, err
	}
	return c.rules, nil
}

// A compiler turns a Config into Rules, and goes on after a mistake.
type compiler struct {
	*source
	config     *Config
	rules      *Rules
	identities map[string]*identityState
	payers     int
	ways       int // in which rules match
	listLines  int // read from files of values
	failClosed bool
}

func newCompiler(config *Config) *compiler {
	s := config.source
	if s == nil {
		s = newSource("policy")
	}
	return &compiler{source: s, config: config, rules: &Rules{name: s.file, files: []string{s.file}}, identities: make(map[string]*identityState)}
}

func (c *compiler) compile() {
	if c.config.Version != 0 && c.config.Version != 1 {
		c.fail(&c.config.Version, "version %d of the format is not known; write version: 1", c.config.Version)
	}
	c.failClosed = c.oneOf(&c.config.OnFailure, "on_failure", "open", "closed") == "closed"
	c.rules.all = c.oneOf(&c.config.Apply, "apply", "most-specific", "all") == "all"
	c.http()
	c.server()
	c.tokens()
	c.names()
	c.tiers()
	c.rules.allow = c.conditions(&c.config.Allow, "allow")
	c.rules.deny = c.conditions(&c.config.Deny, "deny")
	c.ruleList()
	c.rules.payers = c.payers
}

// oneOf is a word out of a few; the first is the default.
func (c *compiler) oneOf(p *string, what string, words ...string) string {
	if *p == "" {
		return words[0]
	}
	if !slices.Contains(words, *p) {
		c.fail(p, "%q has no meaning for %s; %s", clip(*p), what, suggestOf(*p, words))
	}
	return *p
}

func (c *compiler) warn(p any, format string, args ...any) {
	at := c.at[p]
	c.rules.warnings = append(c.rules.warnings, &Error{File: c.file, Line: at.line, Column: at.column, Message: fmt.Sprintf(format, args...)})
}

func (c *compiler) names() {
	for i := range c.config.Identities {
		e := &c.config.Identities[i]
		_, word := partWords[e.Name]
		switch {
		case word || e.Name == "everyone" || e.Name == "first" || e.Name == "all":
			c.fail(&e.Name, "%q has a meaning of its own; name the identity otherwise", e.Name)
		case !identityLike(e.Name):
			c.fail(&e.Name, "%q cannot be the name of an identity; write letters, digits, - and _, beginning with a letter", clip(e.Name))
		}
		c.identities[e.Name] = &identityState{entry: e}
	}
	for i := range c.config.Identities {
		c.identity(c.identities[c.config.Identities[i].Name])
	}
}

func identityLike(s string) bool {
	return wordLike(strings.ReplaceAll(s, "-", "_"))
}

func (c *compiler) tiers() {
	tiers := c.config.Tiers
	for i := range tiers {
		e := &tiers[i]
		last := i == len(tiers)-1
		t := tier{name: e.Name, otherwise: e.Value.Otherwise}
		switch {
		case !kindLike(e.Name):
			c.fail(&e.Name, "%q cannot be the name of a tier; write 1 to 20 of a-z, 0-9 and -, beginning with a letter", clip(e.Name))
		case e.Name == "otherwise":
			c.fail(&e.Name, "a tier cannot be called otherwise; write free: otherwise for the tier of all others")
		case t.otherwise && !last:
			c.fail(&e.Value, "tier %s takes everybody, so no tier behind it is ever chosen; move it to the end", e.Name)
		case !t.otherwise && last:
			c.fail(&e.Value, "the last tier, %s, has conditions, so some callers would have none; add one for all others, as in free: otherwise", e.Name)
		case !t.otherwise && len(e.Value.Any) == 0:
			c.fail(&e.Value, "tier %s has no condition, so nobody would have it; add one, as in {header X-Plan: premium}", e.Name)
		}
		if !t.otherwise {
			t.when = c.conditions(&e.Value, "tier")
		}
		c.rules.tiers = append(c.rules.tiers, t)
	}
}

func (c *compiler) conditions(config *Conditions, what string) (list []condition) {
	if config.Otherwise {
		c.fail(config, "%s cannot be otherwise; name a source with its values, as in [{address: 10.0.0.0/8}]", what)
	}
	for i := range config.Any {
		list = append(list, c.condition(config.Any[i], what))
	}
	return list
}

// condition compiles what is asked by a match, a tier, allow or deny.
func (c *compiler) condition(clauses Condition, what string) (when condition) {
	for i := range clauses {
		clause := &clauses[i]
		var known []string
		if what == "match" {
			known = []string{"path"}
		}
		part, ok := c.part(&clause.Source, clause.Source, known...)
		if !ok {
			continue
		}
		switch {
		case what == "tier" && part.needs(partTier):
			c.fail(&clause.Source, "who has a tier cannot depend on the tier; use a claim, a header or a list")
			continue
		case what == "match" && part.needs(partSegment):
			c.fail(&clause.Source, "a match cannot test a named segment; write the segment itself into the path")
		case part.needs(partSegment):
			c.fail(&clause.Source, "%s goes by the request, whichever rule matches, and so not by a segment of a path; use a claim, a header or a list", what)
		}
		when = append(when, c.test(part, &clause.Values))
	}
	return when
}

// test compiles what a part of a request may be.
func (c *compiler) test(part part, values *Values) test {
	t := test{part: part, texts: make(map[string]struct{}), networks: make(networks)}
	add := func(p any, where, text string) bool {
		switch {
		case text == "*":
			t.anything = true
		case part.what == partAddress:
			network, ok := parseNetwork(text)
			if !ok {
				c.fail(p, "%s%q is not an address or a network; write 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32", where, clip(text))
				return false
			}
			t.networks.add(network)
		case part.what == partTier && !slices.ContainsFunc(c.rules.tiers, func(t tier) bool { return t.name == text }):
			c.fail(p, "%sthere is no tier %q; %s", where, clip(text), suggestOf(text, c.rules.Tiers()))
			return false
		case part.what == partHost:
			t.texts[strings.ToLower(text)] = struct{}{}
		default:
			t.texts[text] = struct{}{}
		}
		return true
	}
	for i := range values.Is {
		add(&values.Is[i], "", values.Is[i])
	}
	if values.File != "" {
		c.lines(&values.File, values.File, add)
	}
	return t
}

// Bounds of files with values.
const (
	maxList      = 64 << 20 // bytes
	maxListLines = 1_000_000 // of all files
	maxListBad   = 10 // bad lines that are told one by one
)

// lines reads a file with one value per line. # begins a comment.
func (c *compiler) lines(p any, name string, add func(p any, where, text string) bool) {
	path := c.path(name)
	text, err := readFile(path, maxList)
	if err != nil {
		c.fail(p, "the file cannot be read: %v; a name without / in front starts from the policy's folder", err)
		return
	}
	c.rules.files = append(c.rules.files, path)
	number, bad := 0, 0
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		number++
		if c.listLines++; c.listLines > maxListLines {
			c.fail(p, "the files of values have more than %d lines, those that are named twice counted twice; name fewer", maxListLines)
			return
		}
		value, _, _ := strings.Cut(line, "#")
		if value = strings.TrimSpace(value); value == "" || add(p, fmt.Sprintf("%s:%d: ", name, number), value) {
			continue
		}
		if bad++; bad == maxListBad {
			c.fail(p, "%s has more such lines; mend them all", name)
			return
		}
	}
}

// path is a file's name, relative to the policy's folder.
func (c *compiler) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(c.file), name)
}

func (c *compiler) ruleList() {
	if len(c.config.Rules) == 0 && !c.broken[&c.config.Rules] {
		c.fail(c.orWritten(c.config, &c.config.Rules), "there are no rules; add rules: with a name, a match and limits")
	}
	if len(c.config.Rules) > maxRules {
		c.fail(&c.config.Rules, "there are %d rules; the most are %d", len(c.config.Rules), maxRules)
		return
	}
	first := make(map[string]*RuleConfig)
	var matchers []*matcher
	for i := range c.config.Rules {
		config := &c.config.Rules[i]
		if earlier := first[config.Name]; earlier != nil && config.Name != "" {
			c.fail(&config.Name, "a rule %q stands in line %d already; rename one, since counters go by it", clip(config.Name), c.at[&earlier.Name].line)
		}
		if first[config.Name] == nil {
			first[config.Name] = config
		}
		rule := c.rule(config)
		rule.order = i
		c.rules.rules = append(c.rules.rules, rule)
		if c.broken[config] {
			continue
		}
		for _, m := range rule.matchers {
			m.order = len(matchers)
			matchers = append(matchers, m)
		}
	}
	c.overlaps(matchers)
	c.together()
	slices.SortStableFunc(matchers, specificity)
	c.rules.index = make(map[string][]*matcher)
	for i, m := range matchers {
		m.order = i
		if m.path[0].kind == segmentLiteral {
			c.rules.index[m.path[0].text] = append(c.rules.index[m.path[0].text], m)
		} else {
			c.rules.general = append(c.rules.general, m)
		}
	}
}

// overlaps complains of rules that can never win.
func (c *compiler) overlaps(matchers []*matcher) {
	type place struct{ host, path string }
	seen := make(map[place][]*matcher)
	for _, m := range matchers {
		if m.rule.Always || len(m.where) > 0 {
			continue
		}
		var path strings.Builder
		for _, s := range m.path {
			if s.kind == segmentNamed {
				s.text = ""
			}
			fmt.Fprintf(&path, "/%d%s", s.kind, s.text)
		}
		at := place{m.host, path.String()}
		for _, other := range seen[at] {
			if other.rule != m.rule && other.rule.Shadow == m.rule.Shadow && m.alike(other) {
				config := &c.config.Rules[m.rule.order]
				c.fail(c.orWritten(config, &config.Name), "rule %s matches requests that rule %s, which stands before it, matches just as well, and only one applies; "+
					"change one match, or write always: true to apply both", clip(m.rule.Name), clip(other.rule.Name))
				break
			}
		}
		seen[at] = append(seen[at], m)
	}
}

// together checks that no request can have too many charges.
func (c *compiler) together() {
	always, most := 0, 0
	for _, r := range c.rules.rules {
		if r.Always {
			always += len(r.Limits)
		} else {
			most = max(most, len(r.Limits))
		}
	}
	if n := always + most; n > maxLimits {
		c.fail(&c.config.Rules, "a request could meet %d limits at once, as rules with always: true apply together; the most are %d", n, maxLimits)
	}
}

func (c *compiler) rule(config *RuleConfig) *Rule {
	r := &Rule{Name: config.Name, Always: config.Always || c.rules.all, Unlimited: config.Unlimited, Shadow: config.Shadow, order: len(c.rules.rules)}
	switch {
	case config.Name == "":
		c.fail(c.orWritten(config, &config.Name), "the rule has no name; add one, as in name: search")
	case !nameLike(config.Name):
		c.fail(&config.Name, "%q cannot be the name of a rule; write 1 to 64 of a-z, 0-9, '_', '.' and '-'", clip(config.Name))
	}
	r.matchers = c.matchers(r, &config.Match)
	switch {
	case config.Unlimited && len(config.Limits) > 0:
		c.fail(&config.Unlimited, "the rule is unlimited and has limits; remove one of the two")
	case config.Unlimited && r.Always:
		c.fail(&config.Unlimited, "the rule is unlimited and always applied, which does nothing; remove always, or list those who are never limited under allow")
	case config.Unlimited && config.Shadow:
		c.fail(&config.Unlimited, "the rule is unlimited and a shadow, which does nothing; remove one of the two")
	case !config.Unlimited && len(config.Limits) == 0 && !c.broken[&config.Unlimited]:
		c.fail(c.orWritten(config, &config.Limits), "the rule has no limits; add limits: with a rate, or unlimited: true")
	}
	for i := range config.Limits {
		l := c.limit(r, config, &config.Limits[i])
		c.ownName(r, l, &config.Limits[i])
		r.Limits = append(r.Limits, l)
	}
	return r
}

// ownName complains of a limit or candidate that has the name of another: they would share a counter.
func (c *compiler) ownName(r *Rule, l *Limit, config *LimitConfig) {
	candidate := func(l *Limit) string {
		if l.Candidate == nil {
			return ""
		}
		return l.Candidate.Name
	}
	for _, other := range r.Limits {
		switch at := c.orWritten(config, &config.Name); {
		case l.Name == "":
		case l.Name == other.Name:
			c.fail(at, "rule %s has two limits called %q; give one another name", clip(r.Name), clip(l.Name))
		case sameTag(l, other):
			c.fail(at, "limits %q and %q of rule %s have the same tag by an unlucky chance; rename one of them", clip(l.Name), clip(other.Name), clip(r.Name))
		case l.Name == candidate(other), candidate(l) != "" && candidate(l) == other.Name:
			c.fail(at, "the candidate of a limit of rule %s is called as another limit, by .candidate behind the name; give one another name", clip(r.Name))
		}
	}
}

// sameTag tells whether a store could not tell two limits of a rule apart.
func sameTag(a, b *Limit) bool {
	if len(a.forms) == 0 || len(b.forms) == 0 {
		return false
	}
	p, err := a.forms[0].Plan()
	q, other := b.forms[0].Plan()
	return err == nil && other == nil && p.Tag == q.Tag
}

// orWritten is p if it was written, to show a mistake there, and else what it is in.
func (c *compiler) orWritten(within, p any) any {
	if c.written(p) {
		return p
	}
	return within
}

func nameLike(s string) bool {
	for _, b := range []byte(s) {
		if !(b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '_' || b == '.' || b == '-') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 64
}

// matchers are the ways in which a rule can match: each of its paths at each of its hosts.
func (c *compiler) matchers(r *Rule, config *MatchConfig) (list []*matcher) {
	methods := make([]string, len(config.Method))
	for i := range config.Method {
		methods[i] = strings.ToUpper(config.Method[i])
		c.method(&config.Method[i], config.Method[i])
	}
	hosts := []string{""}
	if len(config.Host) > 0 {
		hosts = hosts[:0]
		for i := range config.Host {
			if host, ok := c.host(&config.Host[i], config.Host[i]); ok {
				hosts = append(hosts, host)
			}
		}
	}
	where := c.condition(config.Where, "match")
	paths := [][]segment{{{kind: segmentRest}}}
	if len(config.Path) > 0 {
		paths = paths[:0]
		for i := range config.Path {
			if path, ok := c.pattern(&config.Path[i], config.Path[i]); ok {
				paths = append(paths, path)
			}
		}
	}
	if c.ways += len(hosts) * len(paths); c.ways > maxWays {
		c.fail(config, "here the rules have more than %d ways to match, each path at each host; write patterns instead", maxWays)
		return nil
	}
	for _, host := range hosts {
		for _, path := range paths {
			list = append(list, &matcher{rule: r, host: host, path: path, methods: methods, where: where})
		}
	}
	return list
}

// method checks the name of one, as people write it.
func (c *compiler) method(p any, name string) {
	switch {
	case name == "*":
		c.fail(p, "no request has the method *; leave methods out to mean any")
	case !token(name):
		c.fail(p, "%q is not a method; write one as GET or POST, and several as a list", clip(name))
	}
}

func (c *compiler) limit(r *Rule, rule *RuleConfig, config *LimitConfig) *Limit {
	l := &Limit{Rule: r, Shadow: config.Shadow || rule.Shadow, Patience: config.Wait}
	l.Closed = c.failClosed
	if config.OnFailure != "" {
		l.Closed = c.oneOf(&config.OnFailure, "on_failure", "open", "closed") == "closed"
	}
	l.per = c.payerOf(r, rule, config)
	c.shapeOf(l, config.shape(), config.Name)
	if config.Name != "" && !nameLike(config.Name) {
		c.fail(&config.Name, "%q cannot be the name of a limit; write 1 to 64 of a-z, 0-9, '_', '.' and '-'", clip(config.Name))
	}
	l.Policy = r.Name + "." + l.Name
	l.Shown = !l.per.everyone
	if config.Headers != nil {
		l.Shown = *config.Headers
	}
	c.costs(l, config)
	c.outcomes(l, config)
	c.patience(l, config)
	if config.Candidate != nil {
		l.Candidate = c.candidate(l, config)
	}
	return l
}

func (c *compiler) payerOf(r *Rule, rule *RuleConfig, config *LimitConfig) *identity {
	per := &config.Per
	if !per.set() {
		per = &rule.Per
	}
	if !per.set() {
		if !c.written(per) && !c.written(&config.Per) {
			c.fail(config, "it is not said who pays for this limit; add per: address, per: everyone or the name of an identity, to it or to its rule")
		}
		return nobody
	}
	id := c.identityOf(per)
	for _, name := range id.segments() {
		for _, m := range r.matchers {
			if !m.has(name) {
				c.fail(per, "who pays depends on segment %s, and a path of the rule has no {%s}; add it to the path", name, name)
				break
			}
		}
	}
	if id.part.what == partAddress && id.only == nil && id.first == nil && id.all == nil {
		c.warn(per, "limits by address alone hit callers behind one NAT or proxy together, and those with many addresses evade them; put {first: [...]} with a better identity before it where there is one")
	}
	return id
}

// A shape is what a limit and its candidate have in common.
type shape struct {
	at                    any
	rate, burst, inFlight *PerTier
	expires               *time.Duration
	algorithm             *string
	parts                 *int
	zone                  *string
}

func (l *LimitConfig) shape() shape {
	return shape{at: l, rate: &l.Rate, burst: &l.Burst, inFlight: &l.InFlight, expires: &l.Expires, algorithm: &l.Algorithm, parts: &l.Parts, zone: &l.Zone}
}

// candidate is the shape of a limit's candidate: what that does not say is as in the limit, as far as it fits.
func (l *LimitConfig) candidate() shape {
	can := l.Candidate
	s := shape{at: can, rate: &can.Rate, burst: &can.Burst, inFlight: &can.InFlight, expires: &can.Expires, algorithm: &can.Algorithm, parts: &can.Parts, zone: &can.Zone}
	if !can.Rate.set() && !can.InFlight.set() {
		s.rate, s.inFlight = &l.Rate, &l.InFlight
	}
	if can.Expires == 0 && s.inFlight.set() {
		s.expires = &l.Expires
	}
	if s.inFlight.set() {
		return s
	}
	calendar := s.rate.calendar()
	if can.Zone == "" && calendar {
		s.zone = &l.Zone
	}
	if can.Algorithm == "" && !calendar {
		s.algorithm = &l.Algorithm
	}
	if can.Parts == 0 && *s.algorithm == "sub-window" {
		s.parts = &l.Parts
	}
	if !can.Burst.set() && !calendar && hasBurst(*s.algorithm) {
		s.burst = &l.Burst
	}
	return s
}

// calendar tells whether a rate goes by the calendar.
func (p *PerTier) calendar() bool {
	if calendarRate.MatchString(p.All) {
		return true
	}
	for _, e := range p.Tiers {
		if calendarRate.MatchString(e.Value) {
			return true
		}
	}
	return false
}

func hasBurst(algorithm string) bool {
	return algorithm == "" || algorithm == "token-bucket" || algorithm == "gcra" || algorithm == "leaky-bucket"
}

// shapeOf makes the limit's forms, one for all tiers or one for each.
func (c *compiler) shapeOf(l *Limit, s shape, name string) {
	switch {
	case s.rate.set() && s.inFlight.set():
		c.fail(s.inFlight, "a limit has a rate or in_flight, not both; make two limits of it")
		return
	case !s.rate.set() && !s.inFlight.set():
		if !c.written(s.rate) && !c.written(s.inFlight) {
			c.fail(s.at, "the limit has no rate; add one, as in rate: 100/s, or in_flight: 50")
		}
		return
	case s.rate.set() && *s.expires != 0:
		c.fail(s.expires, "expires belongs to in_flight; remove it")
	}
	tiers := []string{""}
	if s.rate.Tiers != nil || s.burst.Tiers != nil || s.inFlight.Tiers != nil {
		if tiers = c.rules.Tiers(); len(tiers) == 0 {
			c.fail(s.at, "the limit has numbers for tiers, and there are no tiers; add tiers: with conditions, or give one number for all")
			return
		}
		for _, p := range []*PerTier{s.rate, s.burst, s.inFlight} {
			c.tierNames(p, tiers)
		}
	}
	for _, tier := range tiers {
		limit, ok := c.form(s, tier)
		if !ok {
			continue
		}
		if name == "" {
			name = limit.Name
		}
		l.Name = name
		limit.Name, limit.Group = name, l.Rule.Name
		if !nameLike(name) || !nameLike(l.Rule.Name) {
			limit.Name, limit.Group = "x", "x" // complained of elsewhere
		}
		ready, err := limit.Ready()
		if err != nil {
			c.fail(s.at, "%s", reason(err))
			continue
		}
		l.Algorithm = ready.Algorithm.Name
		l.forms = append(l.forms, ready)
	}
	if len(l.forms) < len(tiers) {
		l.forms = nil // there were mistakes
		return
	}
	for _, form := range l.forms {
		if calendarOf(form) != calendarOf(l.forms[0]) {
			c.fail(s.rate, "the tiers' windows are of different calendars, so what was used would be lost when a caller's tier changes; give all tiers one calendar, or none")
			return
		}
	}
	if calendarOf(l.forms[0]) != "" {
		l.zone = cmp.Or(*s.zone, "UTC")
	}
	if *s.algorithm == "sub-window" {
		l.parts = cmp.Or(*s.parts, defaultParts)
	}
}

// defaultParts is how many parts a sub-window has if nothing else is said.
const defaultParts = 10

// calendarOf is the calendar unit that a limit's windows have, or nothing.
func calendarOf(l penstock.Limit) string {
	if l.Algorithm.At == nil {
		return ""
	}
	for name, unit := range calendarUnits {
		if unit.Period() == l.Period {
			return name
		}
	}
	return "calendar"
}

// reason is what an error of the core says, without what the position tells already, and in the words of the file.
func reason(err error) string {
	text := strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": ")
	if rest, ok := strings.CutPrefix(text, "limit "); ok {
		if _, after, found := strings.Cut(rest, ": "); found {
			text = after
		}
	}
	text = strings.NewReplacer(
		"or use CalendarWindow with Month", "or 1000 per calendar month",
		"deny before asking", "use deny",
	).Replace(text)
	if !strings.Contains(text, ";") {
		text += "; choose other numbers"
	}
	return text
}

func (c *compiler) tierNames(p *PerTier, tiers []string) {
	for i := range p.Tiers {
		e := &p.Tiers[i]
		if e.Name != "otherwise" && !slices.Contains(tiers, e.Name) {
			c.fail(&e.Name, "there is no tier %q; %s", clip(e.Name), suggestOf(e.Name, tiers))
		}
	}
}

// of is the text for a tier, and where it was written.
func (p *PerTier) of(tier string) (text string, at any, ok bool) {
	if p.Tiers == nil {
		return p.All, p, true
	}
	for _, name := range []string{tier, "otherwise"} {
		for i := range p.Tiers {
			if p.Tiers[i].Name == name {
				return p.Tiers[i].Value, &p.Tiers[i].Value, true
			}
		}
	}
	return "", p, false
}

// form is a limit for one tier.
func (c *compiler) form(s shape, tier string) (penstock.Limit, bool) {
	what := s.rate
	if s.inFlight.set() {
		what = s.inFlight
	}
	text, at, ok := what.of(tier)
	if !ok {
		c.fail(at, "there is no number for tier %s; add %s: or otherwise:", tier, tier)
		return penstock.Limit{}, false
	}
	if s.inFlight.set() {
		return c.slots(s, at, text)
	}
	limit, calendar, err := parseRate(text)
	if err != nil {
		c.fail(at, "%s", reason(err))
	}
	a, ok := c.algorithm(s, calendar)
	if err != nil || !ok {
		return limit, false
	}
	limit.Algorithm = a
	return limit, c.burst(s, tier, &limit, at)
}

// burst sets how much a limit admits at once. rate is where its rate was written, which may say it, too.
func (c *compiler) burst(s shape, tier string, limit *penstock.Limit, rate any) bool {
	text, at, ok := s.burst.of(tier)
	switch {
	case !s.burst.set() || !ok:
		if at = rate; limit.Burst == 0 {
			return true // the default
		}
	case limit.Burst != 0:
		c.fail(at, "the rate has a burst already; keep one of the two")
		return false
	default:
		if limit.Burst, ok = c.count(at, "a burst", text); !ok {
			return false
		}
	}
	if !limit.Algorithm.Is(penstock.TokenBucket) && !limit.Algorithm.Is(penstock.LeakyBucket) {
		c.fail(at, "a window has no burst, since it admits its whole count at once; remove it, or use token-bucket")
		return false
	}
	return true
}

func (c *compiler) slots(s shape, at any, text string) (penstock.Limit, bool) {
	n, ok := c.count(at, "a number of requests in flight", text)
	for p, set := range map[any]bool{s.burst: s.burst.set(), s.algorithm: *s.algorithm != "", s.parts: *s.parts != 0, s.zone: *s.zone != ""} {
		if set {
			c.fail(p, "this belongs to a rate, and here is in_flight; remove it")
			ok = false
		}
	}
	if c.written(s.expires) && (*s.expires < time.Millisecond || *s.expires > 24*time.Hour) {
		c.fail(s.expires, "expires is %s; write a time from 1ms to 24h", period(*s.expires))
		ok = false
	}
	return penstock.InFlight(n, cmp.Or(*s.expires, time.Minute)), ok
}

func (c *compiler) count(at any, what, text string) (int64, bool) {
	digits, by := strings.NewReplacer("_", "", ",", "").Replace(text), int64(1)
	if number, ok := strings.CutSuffix(digits, "k"); ok {
		digits, by = number, 1e3
	} else if number, ok := strings.CutSuffix(digits, "M"); ok {
		digits, by = number, 1e6
	}
	const most = penstock.MaxCost
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > most/by {
		c.fail(at, "%q cannot be %s; write a whole number from 1 to 2^51, as 50 or 10k", clip(text), what)
		return 0, false
	}
	return n * by, true
}

// period is a duration as people write it: 24h, not 24h0m0s.
func period(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

var calendarRate = regexp.MustCompile(`^\s*(.*?)\s*(?:/|\bper\b)\s*calendar[ -](day|week|month)\s*$`)

// parseRate reads a rate, which may go by the calendar: "1000 per calendar month".
func parseRate(text string) (penstock.Limit, string, error) {
	m := calendarRate.FindStringSubmatch(text)
	if m == nil {
		limit, err := penstock.ParseRate(text)
		if err != nil && strings.Contains(text, "calendar") {
			err = fmt.Errorf("rate %q is not understood; write it as 1000 per calendar day, week or month", clip(text))
		}
		return limit, "", err
	}
	limit, err := penstock.ParseRate(m[1] + " per day")
	if err != nil {
		_, why, _ := strings.Cut(reason(err), ": ")
		err = fmt.Errorf("rate %q: %s", clip(text), why)
	}
	limit.Name, limit.Period = "calendar-"+m[2], calendarUnits[m[2]].Period()
	return limit, m[2], err
}

var calendarUnits = map[string]algorithm.CalendarUnit{"day": algorithm.Day, "week": algorithm.Week, "month": algorithm.Month}

var algorithms = map[string]*algorithm.Algorithm{
	"token-bucket": penstock.TokenBucket, "gcra": penstock.GCRA, "leaky-bucket": penstock.LeakyBucket,
	"fixed-window": penstock.FixedWindow, "anchored-window": penstock.AnchoredWindow,
	"sliding-window": penstock.SlidingWindow, "sub-window": nil, "sliding-log": penstock.SlidingLog,
}

func (c *compiler) algorithm(s shape, calendar string) (*algorithm.Algorithm, bool) {
	if *s.zone != "" && calendar == "" {
		c.fail(s.zone, "a zone belongs to a calendar rate, as in 1000 per calendar month; remove it, or change the rate")
	}
	if c.written(s.parts) && *s.algorithm != "sub-window" {
		c.fail(s.parts, "parts belong to algorithm: sub-window; remove them, or change the algorithm")
	}
	if calendar != "" {
		return c.calendar(s, calendar)
	}
	if *s.algorithm == "" {
		return penstock.TokenBucket, true
	}
	a, ok := algorithms[*s.algorithm]
	if !ok {
		c.fail(s.algorithm, "there is no algorithm %q; %s", clip(*s.algorithm), suggest(*s.algorithm, algorithms))
		return nil, false
	}
	if *s.algorithm != "sub-window" {
		return a, true
	}
	if c.written(s.parts) && !c.broken[s.parts] && (*s.parts < 1 || *s.parts > algorithm.MaxParts) {
		c.fail(s.parts, "a window of %d parts is not possible; write 1 to %d", *s.parts, algorithm.MaxParts)
		return nil, false
	}
	return penstock.SubWindow(cmp.Or(*s.parts, defaultParts)), true
}

func (c *compiler) calendar(s shape, unit string) (*algorithm.Algorithm, bool) {
	if *s.algorithm != "" {
		c.fail(s.algorithm, "a calendar rate has its own windows; remove algorithm, or write the period without calendar")
	}
	zone, err := time.LoadLocation(cmp.Or(*s.zone, "UTC"))
	if err != nil || *s.zone == "Local" {
		c.fail(s.zone, "there is no time zone %q; write one as Europe/Berlin or UTC", clip(*s.zone))
		return nil, false
	}
	return penstock.CalendarWindow(calendarUnits[unit], zone), true
}

func (c *compiler) candidate(l *Limit, config *LimitConfig) *Limit {
	can := config.Candidate
	if c.broken[can] {
		return nil
	}
	if l.Shadow {
		c.fail(can, "the limit is a shadow, and a candidate is tried beside an enforced limit; make it a shadow limit of its own")
	}
	candidate := *l
	candidate.Shadow, candidate.Shown, candidate.forms, candidate.parts, candidate.zone = true, false, nil, 0, ""
	c.shapeOf(&candidate, config.candidate(), l.Name+".candidate")
	if candidate.Name = l.Name + ".candidate"; !nameLike(candidate.Name) && nameLike(l.Name) {
		c.fail(can, "the limit's name %q is too long to have a candidate, whose name is 10 letters longer; shorten it", l.Name)
	}
	candidate.Policy = l.Rule.Name + "." + candidate.Name
	if len(l.forms) == 0 || len(candidate.forms) == 0 {
		return &candidate
	}
	switch a := candidate.forms[0].Algorithm; {
	case l.forms[0].Algorithm.Holds != a.Holds:
		c.fail(can, "a rate cannot be the candidate of in_flight, nor the other way round; make it a shadow limit of its own")
	case (l.Status != nil || l.Settled) && !givesBack(a):
		c.fail(can, "the limit gives back what turns out not to count, and %s cannot; choose another algorithm", nameOf(a))
	case sameForms(l, &candidate):
		c.fail(can, "the candidate is what the limit is; change something, or remove it")
	}
	if l.Patience > 0 {
		candidate.Patience = min(l.Patience, candidate.maxPatience())
	}
	c.fits(&candidate, &config.Cost, can)
	return &candidate
}

// maxPatience is how long a request can wait at most, whatever the tier: not at all if the future cannot be booked.
func (l *Limit) maxPatience() time.Duration {
	most := 24 * time.Hour
	for i := range l.forms {
		plan, err := l.forms[i].Plan()
		if err != nil || !l.forms[i].Algorithm.Bookable {
			return 0
		}
		most = min(most, plan.MaxPatience())
	}
	return most
}

// givesBack tells whether what was charged can be taken back later.
func givesBack(a *algorithm.Algorithm) bool { return !a.Holds && !a.Is(penstock.LeakyBucket) }

// nameOf is an algorithm's name in the file.
func nameOf(a *algorithm.Algorithm) string {
	if a.Holds {
		return "in_flight"
	}
	for _, name := range slices.Sorted(maps.Keys(algorithms)) {
		if known := algorithms[name]; known != nil && name != "gcra" && a.Is(known) {
			return name
		}
	}
	return a.Name
}

func sameForms(a, b *Limit) bool {
	same := func(f, g penstock.Limit) bool {
		return f.Count == g.Count && f.Period == g.Period && f.Burst == g.Burst && f.Algorithm.Is(g.Algorithm) && calendarOf(f) == calendarOf(g)
	}
	return slices.EqualFunc(a.forms, b.forms, same) && a.parts == b.parts && a.zone == b.zone
}

// costs finds what a request costs.
func (c *compiler) costs(l *Limit, config *LimitConfig) {
	k := &config.Cost
	l.cost = cost{units: 1, min: 1, max: penstock.MaxCost}
	l.Actual, l.Body = "", int64(k.Body)
	ways := 0
	for _, way := range []bool{k.Units != nil, k.Methods != nil, k.Header != "", k.Body != 0} {
		if way {
			ways++
		}
	}
	if ways > 1 {
		c.fail(k, "the cost is told in %d ways; keep one of units, methods, header and body", ways)
	}
	if k.Units != nil {
		l.cost.units = c.units(k.Units, *k.Units)
	}
	if k.Methods != nil {
		if len(k.Methods) == 0 {
			c.fail(&k.Methods, "no method is named; write what each costs, as in {POST: 5, otherwise: 1}")
		}
		l.cost.methods = make(map[string]int64)
		for i := range k.Methods {
			e := &k.Methods[i]
			n := c.units(&e.Value, e.Value)
			if e.Name == "otherwise" {
				l.cost.units = n
				continue
			}
			name := strings.ToUpper(e.Name)
			c.method(&e.Name, name)
			if _, twice := l.cost.methods[name]; twice && name != e.Name {
				c.fail(&e.Name, "the cost of %s stands here twice; keep one", clip(name))
			}
			l.cost.methods[name] = n
		}
	}
	if c.written(&k.Min) || k.Min != 0 {
		l.cost.min = c.units(&k.Min, k.Min)
	}
	if k.Max != 0 {
		l.cost.max = c.units(&k.Max, k.Max)
	}
	c.costFields(l, k)
	if config.InFlight.set() && c.written(k) {
		c.fail(k, "in_flight counts requests, each as one; remove cost")
	}
	c.fits(l, k, c.orWritten(config, k))
}

func (c *compiler) units(p any, n int64) int64 {
	if n < 0 || n > penstock.MaxCost {
		c.fail(p, "a cost of %d is not possible; write 0 to %d", n, int64(penstock.MaxCost))
		return 1
	}
	return n
}

func (c *compiler) costFields(l *Limit, k *CostConfig) {
	switch {
	case k.Header != "" && !token(k.Header):
		c.fail(&k.Header, "%q cannot be the name of a header; use letters, digits and -", clip(k.Header))
	case k.Header != "" && !c.written(&k.Max) && k.Max == 0:
		c.fail(&k.Header, "callers choose what they write into a header, so its cost needs a bound; add max:")
	case k.Header != "" && k.Max < 1:
		c.fail(&k.Max, "max is %d; write the most that a header may cost", k.Max)
	case k.Header == "" && !c.written(&k.Header) && k.Max != 0:
		c.fail(&k.Max, "max belongs to header; remove it")
	case k.Header == "" && k.Body == 0 && !c.written(&k.Header) && !c.written(&k.Body) && k.Min != 0:
		c.fail(&k.Min, "min belongs to header and body; remove it")
	case l.cost.min > l.cost.max:
		c.fail(&k.Max, "max is %d and min is %d; max has to be the larger", l.cost.max, l.cost.min)
	}
	if k.Body < 0 {
		c.fail(&k.Body, "the size is %d; write for how many bytes one unit is charged, as in 64KB", k.Body)
	}
	l.cost.header = httpHeader(k.Header)
	if k.Actual != "" {
		if !token(k.Actual) {
			c.fail(&k.Actual, "%q cannot be the name of a header; use letters, digits and -", clip(k.Actual))
		}
		l.Actual, l.Settled = httpHeader(k.Actual), true
	}
}

// fits complains of a fixed cost that the limit could never admit.
func (c *compiler) fits(l *Limit, k *CostConfig, at any) {
	for i := range l.forms {
		f := &l.forms[i]
		most := f.Count
		switch {
		case f.Algorithm.Is(penstock.TokenBucket):
			most = cmp.Or(f.Burst, f.Count)
		case f.Algorithm.Is(penstock.LeakyBucket):
			most = f.Burst + 1
		}
		worst := l.cost.units
		if k.Header != "" || k.Body != 0 {
			worst = l.cost.min
		}
		for _, n := range l.cost.methods {
			worst = max(worst, n)
		}
		if worst > most {
			who := "the limit"
			if _, ok := at.(*CandidateConfig); ok {
				who = "the candidate"
			}
			c.fail(at, "a request costs up to %d and %s admits at most %d at once, so it would always be denied; raise the limit or its burst, or lower the cost", worst, who, most)
			return
		}
	}
}

var statusForm = regexp.MustCompile(`^(?:([1-5])[xX]{2}|([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?)$`)

// outcomes reads on_status.
func (c *compiler) outcomes(l *Limit, config *LimitConfig) {
	if len(config.OnStatus) > 0 {
		l.Status = new(Statuses)
	}
	for i := range config.OnStatus {
		m := statusForm.FindStringSubmatch(config.OnStatus[i])
		if m == nil {
			c.fail(&config.OnStatus[i], "%q is not a status; write 401, 5xx or 400-499", clip(config.OnStatus[i]))
			continue
		}
		if m[1] != "" {
			from, _ := strconv.Atoi(m[1])
			l.Status.add(100*from, 100*from+99)
			continue
		}
		from, _ := strconv.Atoi(m[2])
		to, _ := strconv.Atoi(cmp.Or(m[3], m[2]))
		if to < from {
			c.fail(&config.OnStatus[i], "%q ends before it begins; write the smaller status first", config.OnStatus[i])
			continue
		}
		l.Status.add(from, to)
	}
	if l.Status == nil && !l.Settled || len(l.forms) == 0 {
		return
	}
	if a := l.forms[0].Algorithm; !givesBack(a) {
		at := c.orWritten(config, &config.OnStatus)
		if l.Status == nil {
			at = c.orWritten(config, &config.Cost.Actual)
		}
		c.fail(at, "%s cannot give back what turns out not to count, so on_status and cost.actual are not possible; use token-bucket or a window", nameOf(a))
	}
}

func (c *compiler) patience(l *Limit, config *LimitConfig) {
	if config.Wait == 0 || len(l.forms) == 0 {
		return
	}
	most := l.maxPatience()
	switch {
	case most == 0:
		c.fail(&config.Wait, "a request can wait for its turn only with token-bucket and leaky-bucket; remove wait, or change the algorithm")
		return
	case config.Wait > most:
		c.fail(&config.Wait, "at this rate a request can wait %s at most; shorten wait", period(most.Truncate(time.Millisecond)))
		return
	}
	if l.Status != nil {
		c.fail(&config.Wait, "a limit that counts only some answers cannot make requests wait; remove wait or on_status")
	}
}

func (c *compiler) http() {
	h := &c.config.HTTP
	r := c.rules
	r.paths = Paths{
		KeepEncodedSlash:    c.oneOf(&h.EncodedSlash, "encoded_slash", "refuse", "keep") == "keep",
		IgnoreTrailingSlash: c.oneOf(&h.TrailingSlash, "trailing_slash", "keep", "ignore") == "ignore",
		IgnoreCase:          c.oneOf(&h.Case, "case", "keep", "ignore") == "ignore",
		StripParameters:     c.oneOf(&h.PathParameters, "path_parameters", "keep", "strip") == "strip",
	}
	r.prefix4 = c.bits(&h.IPv4Prefix, "ipv4_prefix", 8, 32, 32)
	r.prefix6 = c.bits(&h.IPv6Prefix, "ipv6_prefix", 16, 128, 64)
	for i := range h.TrustedProxies {
		text := h.TrustedProxies[i]
		if network, ok := parseNetwork(text); text != "unix" && !ok {
			c.fail(&h.TrustedProxies[i], "%q is not a network; write 10.0.0.0/8, 192.0.2.1, or unix for peers on a unix socket", clip(text))
		} else if ok && network.Bits() == 0 {
			c.fail(&h.TrustedProxies[i], "%s trusts everybody, so any caller could claim any address; name your proxies' networks", text)
		}
	}
	if h.AddressHeader != "" && !token(h.AddressHeader) {
		c.fail(&h.AddressHeader, "%q cannot be the name of a header; write X-Forwarded-For, Forwarded or X-Real-IP", clip(h.AddressHeader))
	}
	if h.AddressHeader != "" && len(h.TrustedProxies) == 0 {
		c.fail(&h.AddressHeader, "no proxy is trusted, so the header is never believed; add trusted_proxies")
	}
	for i := range h.Headers {
		c.oneOf(&h.Headers[i], "headers", "draft-11", "draft-07", "draft-06", "x-ratelimit", "none")
		switch {
		case h.Headers[i] == "none" && len(h.Headers) > 1:
			c.fail(&h.Headers[i], "headers are none and others; keep none alone, or remove it")
		case slices.Contains(h.Headers[:i], h.Headers[i]):
			c.fail(&h.Headers[i], "headers have %s twice; keep one", h.Headers[i])
		case h.Headers[i] == "draft-07" && slices.Contains(h.Headers, "draft-11"):
			c.fail(&h.Headers[i], "draft-11 and draft-07 both write RateLimit, in forms that no client can tell apart; choose one")
		}
	}
	c.oneOf(&h.Reset, "reset", "epoch", "seconds")
	if h.RetryJitter > time.Hour {
		c.fail(&h.RetryJitter, "retry_jitter is %s; the most is 1h", period(h.RetryJitter))
	}
	c.denied(&h.Denied)
	if h.MaxWaiting < 0 || h.MaxWaiting > 1_000_000 || h.MaxWaiting == 0 && c.written(&h.MaxWaiting) {
		c.fail(&h.MaxWaiting, "max_waiting is %d; write 1 to 1000000", h.MaxWaiting)
	}
	r.http = *h
	r.http.IPv4Prefix, r.http.IPv6Prefix = r.prefix4, r.prefix6
	r.http.AddressHeader = cmp.Or(httpHeader(h.AddressHeader), "X-Forwarded-For")
	r.http.Reset = cmp.Or(h.Reset, "epoch")
	r.http.MaxWaiting = cmp.Or(h.MaxWaiting, 1000)
	r.http.Denied.Status = cmp.Or(h.Denied.Status, 429)
	r.http.Denied.Body = cmp.Or(h.Denied.Body, "problem")
	r.http.Denied.ContentType = cmp.Or(h.Denied.ContentType, "application/json")
	if len(h.Headers) == 0 {
		r.http.Headers = Strings{"draft-11"}
	}
}

func (c *compiler) bits(p *int, what string, least, most, otherwise int) int {
	if *p == 0 && !c.written(p) {
		return otherwise
	}
	if *p < least || *p > most {
		c.fail(p, "%s is %d; write %d to %d", what, *p, least, most)
		return otherwise
	}
	return *p
}

func (c *compiler) denied(d *DeniedConfig) {
	if (d.Status != 0 || c.written(&d.Status)) && (d.Status < 400 || d.Status > 599) {
		c.fail(&d.Status, "the status of a denial is %d; write 429, or another from 400 to 599", d.Status)
	}
	switch {
	case d.Body == "" || d.Body == "problem" || d.Body == "text":
		if d.ContentType != "" {
			c.fail(&d.ContentType, "content_type belongs to a template; remove it")
		}
	case !strings.Contains(d.Body, "{{") && !strings.ContainsAny(d.Body, " \n{<"):
		c.fail(&d.Body, "body is %q; write problem, text, or a template such as '{\"retry_after\":{{.RetryAfter}}}'", clip(d.Body))
	default:
		if err := tryTemplate(d.Body); err != nil {
			c.fail(&d.Body, "the template is not understood: %v; write it as for Go's text/template, with the fields .Status, .Rule, .Policies, "+
				".RetryAfter and .RetryAfterMS", strings.ReplaceAll(strings.TrimPrefix(err.Error(), "template: "), " in type policy.fields", ""))
		}
	}
	if mediaType, _, err := mime.ParseMediaType(d.ContentType); d.ContentType != "" && (err != nil || !strings.Contains(mediaType, "/")) {
		c.fail(&d.ContentType, "%q is not a content type; write one such as application/json", clip(d.ContentType))
	}
}

// tryTemplate writes a template for each kind of denial: by a limit, without an answer of the store, by a list, and of what is malformed.
func tryTemplate(text string) error {
	t, err := template.New("body").Parse(text)
	if err != nil {
		return err
	}
	type fields struct {
		Status                   int
		Rule                     string
		Policies                 []string
		RetryAfter, RetryAfterMS int64
	}
	for _, denial := range []fields{{429, "rule", []string{"rule.limit"}, 1, 1000}, {503, "rule", nil, 1, 1000}, {Status: 403}, {Status: 400}} {
		if err := t.Execute(io.Discard, denial); err != nil {
			return err
		}
	}
	return nil
}

func (c *compiler) server() { c.rules.server = c.config.Server }

func (c *compiler) tokens() {
	if c.config.Tokens == nil {
		return
	}
	t, dir := c.config.Tokens, filepath.Dir(c.file)
	for _, warning := range t.warnings() {
		c.warn(t, "%s", warning)
	}
	verifier, err := newVerifier(*t, dir)
	for _, one := range flat(err) {
		c.fail(c.tokenField(one), "%v", one)
	}
	if err == nil {
		c.rules.verifier = verifier
		c.rules.files = append(c.rules.files, t.files(dir)...)
	}
}

// flat is an error as the list of those that were joined in it.
func flat(err error) (list []error) {
	if err == nil {
		return nil
	}
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, one := range several.Unwrap() {
		list = append(list, flat(one)...)
	}
	return list
}

// tokenField is where the field was written of which an error speaks: "tokens.secret: ...".
func (c *compiler) tokenField(err error) any {
	name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "tokens."), ":")
	v := reflect.ValueOf(c.config.Tokens).Elem()
	if field, ok := fieldsOf(v.Type())[name]; ok && c.written(v.Field(field).Addr().Interface()) {
		return v.Field(field).Addr().Interface()
	}
	return c.config.Tokens
}

func httpHeader(name string) string { return http.CanonicalHeaderKey(name) }
