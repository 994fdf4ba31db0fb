package policy

import (
	"cmp"
	"fmt"
	"io"
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
	failClosed bool
}

func newCompiler(config *Config) *compiler {
	s := config.source
	if s == nil {
		s = &source{file: "policy", at: make(map[any]position)}
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
		c.fail(p, "%s is %q; %s", what, clip(*p), suggestOf(*p, words))
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
			c.fail(&e.Name, "the identity's name %q has to be letters, digits, - and _, beginning with a letter", clip(e.Name))
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
			c.fail(&e.Name, "the tier's name %q has to be 1 to 20 of a-z, 0-9 and -, beginning with a letter", clip(e.Name))
		case e.Name == "otherwise":
			c.fail(&e.Name, "a tier cannot be called otherwise; write free: otherwise for the tier of all others")
		case t.otherwise && !last:
			c.fail(&e.Value, "tier %s takes everybody, so no tier behind it is ever chosen; move it to the end", e.Name)
		case !t.otherwise && last:
			c.fail(&e.Value, "the last tier, %s, has conditions, so some callers would have none; add one for all others, as in free: otherwise", e.Name)
		}
		if !t.otherwise {
			t.when = c.conditions(&e.Value, "tier "+e.Name)
		}
		for _, when := range t.when {
			for _, one := range when {
				if one.part.what == partTier || one.part.what == partSegment {
					c.fail(&e.Value, "a tier's conditions cannot depend on the tier or on a segment of a rule's path; use a claim, a header or a list")
				}
			}
		}
		c.rules.tiers = append(c.rules.tiers, t)
	}
}

func (c *compiler) conditions(config *Conditions, what string) (list []condition) {
	if config.Otherwise {
		c.fail(config, "%s cannot be otherwise; name a source with its values, as in [{address: 10.0.0.0/8}]", what)
	}
	for i := range config.Any {
		when := c.condition(config.Any[i])
		for _, one := range when {
			if what == "allow" || what == "deny" {
				c.noSegment(one, &config.Any[i], what)
			}
		}
		list = append(list, when)
	}
	return list
}

func (c *compiler) noSegment(t test, p any, what string) {
	if t.part.what == partSegment || t.part.what == partIdentity && len(t.part.id.segments()) > 0 {
		c.fail(p, "%s holds for all paths, so it cannot depend on a segment of a rule's path; use a rule with where it matters", what)
	}
}

func (c *compiler) condition(clauses Condition) (when condition) {
	for i := range clauses {
		clause := &clauses[i]
		part, ok := c.part(&clause.Source, clause.Source)
		if !ok {
			continue
		}
		when = append(when, c.test(part, &clause.Values))
	}
	return when
}

// test compiles what a part of a request may be.
func (c *compiler) test(part part, values *Values) test {
	t := test{part: part, texts: make(map[string]struct{}), networks: make(networks)}
	add := func(p any, where, text string) {
		switch {
		case text == "*":
			t.anything = true
		case part.what == partAddress:
			network, ok := parseNetwork(text)
			if !ok {
				c.fail(p, "%s%q is not an address or a network; write 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32", where, clip(text))
			}
			t.networks.add(network)
		case part.what == partTier && !slices.ContainsFunc(c.rules.tiers, func(t tier) bool { return t.name == text }):
			c.fail(p, "%sthere is no tier %q; %s", where, clip(text), suggestOf(text, c.rules.Tiers()))
		case part.what == partHost:
			t.texts[strings.ToLower(text)] = struct{}{}
		default:
			t.texts[text] = struct{}{}
		}
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
	maxListLines = 1_000_000
)

// lines reads a file with one value per line. # begins a comment.
func (c *compiler) lines(p any, name string, add func(p any, where, text string)) {
	path := c.path(name)
	text, err := readFile(path, maxList)
	if err != nil {
		c.fail(p, "the file cannot be read: %v; names are relative to the policy's folder", err)
		return
	}
	c.rules.files = append(c.rules.files, path)
	number := 0
	for line := range strings.Lines(string(text)) {
		if number++; number > maxListLines {
			c.fail(p, "the file %s has more than %d lines; split it", name, maxListLines)
			return
		}
		value, _, _ := strings.Cut(line, "#")
		if value = strings.TrimSpace(value); value != "" {
			add(p, fmt.Sprintf("%s:%d: ", name, number), value)
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
	if len(c.config.Rules) == 0 {
		c.fail(c.config, "there are no rules; add rules: with a name, a match and limits")
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
			c.fail(&config.Name, "a rule %q stands in line %d already; rename one, since counters go by it", config.Name, c.at[&earlier.Name].line)
		}
		first[config.Name] = config
		rule := c.rule(config)
		rule.order = i
		c.rules.rules = append(c.rules.rules, rule)
		for _, m := range rule.matchers {
			m.order = len(matchers)
			matchers = append(matchers, m)
		}
	}
	c.overlaps(matchers)
	c.together()
	slices.SortStableFunc(matchers, specificity)
	c.rules.index, c.rules.general = indexed(matchers)
}

// indexed sorts matchers by the first segment of their paths.
func indexed(matchers []*matcher) (index map[string][]*matcher, general []*matcher) {
	index = make(map[string][]*matcher)
	for _, m := range matchers {
		if m.path[0].kind == segmentLiteral {
			index[m.path[0].text] = nil
		} else {
			general = append(general, m)
		}
	}
	for _, m := range matchers {
		if m.path[0].kind == segmentLiteral {
			index[m.path[0].text] = append(index[m.path[0].text], m)
			continue
		}
		for first := range index {
			if matchesPath(m.path[:1], "/"+first) || m.path[0].kind == segmentRest {
				index[first] = append(index[first], m)
			}
		}
	}
	return index, general
}

// overlaps complains of rules that can never win.
func (c *compiler) overlaps(matchers []*matcher) {
	type place struct{ host, path string }
	seen := make(map[place][]*matcher)
	for _, m := range matchers {
		if m.rule.Always {
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
			if other.rule != m.rule && m.alike(other) {
				c.fail(&c.config.Rules[m.rule.order].Name, "rule %s matches requests that rule %s, which stands before it, matches just as well; change one match, or write always: true to apply both",
					m.rule.Name, other.rule.Name)
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
		c.fail(config, "the rule has no name; add one, as in name: search")
	case !nameLike(config.Name):
		c.fail(&config.Name, "the rule's name %q has to be 1 to 64 of a-z, 0-9, '_', '.' and '-'", clip(config.Name))
	}
	r.matchers = c.matchers(r, &config.Match)
	switch {
	case config.Unlimited && len(config.Limits) > 0:
		c.fail(&config.Unlimited, "the rule is unlimited and has limits; remove one of the two")
	case config.Unlimited && r.Always:
		c.fail(&config.Unlimited, "the rule is unlimited and always applied, which does nothing; remove always, or list those who are never limited under allow")
	case !config.Unlimited && len(config.Limits) == 0:
		c.fail(config, "rule %s has no limits; add limits: with a rate, or unlimited: true", config.Name)
	}
	seen := make(map[string]bool)
	for i := range config.Limits {
		l := c.limit(r, config, &config.Limits[i])
		if seen[l.Name] && l.Name != "" {
			c.fail(c.nameOrSelf(&config.Limits[i]), "rule %s has two limits called %q; give one another name", r.Name, l.Name)
		}
		seen[l.Name] = true
		r.Limits = append(r.Limits, l)
	}
	return r
}

func (c *compiler) nameOrSelf(config *LimitConfig) any {
	if c.written(&config.Name) {
		return &config.Name
	}
	return config
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
		if !token(methods[i]) {
			c.fail(&config.Method[i], "%q is not a method; write GET, POST and so on", clip(config.Method[i]))
		}
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
	where := c.condition(config.Where)
	for i, one := range where {
		if one.part.what == partSegment || one.part.what == partIdentity && len(one.part.id.segments()) > 0 {
			c.fail(&config.Where[i].Source, "a match cannot test a named segment; write the segment itself into the path")
		}
	}
	paths := [][]segment{{{kind: segmentRest}}}
	if len(config.Path) > 0 {
		paths = paths[:0]
		for i := range config.Path {
			if path, ok := c.pattern(&config.Path[i], config.Path[i]); ok {
				paths = append(paths, path)
			}
		}
	}
	for _, host := range hosts {
		for _, path := range paths {
			list = append(list, &matcher{rule: r, host: host, path: path, methods: methods, where: where})
		}
	}
	return list
}

func (c *compiler) limit(r *Rule, rule *RuleConfig, config *LimitConfig) *Limit {
	l := &Limit{Rule: r, Shadow: config.Shadow || rule.Shadow, Patience: config.Wait}
	l.Closed = c.failClosed
	if config.OnFailure != "" {
		l.Closed = c.oneOf(&config.OnFailure, "on_failure", "open", "closed") == "closed"
	}
	l.per = c.payerOf(r, rule, config)
	shape := shape{at: config, rate: &config.Rate, burst: &config.Burst, inFlight: &config.InFlight, expires: &config.Expires,
		algorithm: &config.Algorithm, parts: &config.Parts, zone: &config.Zone}
	c.shapeOf(l, shape, config.Name)
	if config.Name != "" && !nameLike(config.Name) {
		c.fail(&config.Name, "the limit's name %q has to be 1 to 64 of a-z, 0-9, '_', '.' and '-'", clip(config.Name))
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
		if !c.written(per) {
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
	case s.inFlight.set() && s.burst.set():
		c.fail(s.burst, "in_flight has no burst; remove it")
	case s.rate.set() && *s.expires != 0:
		c.fail(s.expires, "expires belongs to in_flight; remove it")
	}
	tiers := []string{""}
	if s.rate.Tiers != nil || s.burst.Tiers != nil || s.inFlight.Tiers != nil {
		if tiers = c.rules.Tiers(); len(tiers) == 0 {
			c.fail(s.at, "the limit has numbers for tiers, and there are none; add tiers: with conditions, or give one number for all")
			return
		}
		for _, p := range []*PerTier{s.rate, s.burst, s.inFlight} {
			c.tierNames(p, tiers)
		}
	}
	for _, tier := range tiers {
		limit, ok := c.form(s, tier)
		if !ok {
			return
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
			return
		}
		l.Algorithm = ready.Algorithm.Name
		l.forms = append(l.forms, ready)
	}
}

// reason is what an error of the core says, without what the position tells already.
func reason(err error) string {
	text := strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": ")
	if rest, ok := strings.CutPrefix(text, "limit "); ok {
		if _, after, found := strings.Cut(rest, ": "); found {
			return after
		}
	}
	if rest, ok := strings.CutPrefix(text, "rate "); ok {
		return "rate " + rest
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
		return limit, false
	}
	if limit.Algorithm, ok = c.algorithm(s, calendar); !ok {
		return limit, false
	}
	if !s.burst.set() {
		return limit, true
	}
	text, at, ok = s.burst.of(tier)
	if !ok {
		return limit, true // the default
	}
	if limit.Burst, ok = c.count(at, "burst", text); !ok {
		return limit, false
	}
	if !limit.Algorithm.Is(penstock.TokenBucket) && !limit.Algorithm.Is(penstock.LeakyBucket) {
		c.fail(at, "%s has no burst: a window admits its whole count at once; remove it, or use token-bucket", *s.algorithm)
	}
	return limit, true
}

func (c *compiler) slots(s shape, at any, text string) (penstock.Limit, bool) {
	n, ok := c.count(at, "in_flight", text)
	if !ok {
		return penstock.Limit{}, false
	}
	if *s.algorithm != "" {
		c.fail(s.algorithm, "in_flight needs no algorithm; remove it")
	}
	return penstock.InFlight(n, cmp.Or(*s.expires, time.Minute)), true
}

func (c *compiler) count(at any, what, text string) (int64, bool) {
	n, err := strconv.ParseInt(strings.NewReplacer("_", "", ",", "").Replace(text), 10, 53)
	if err != nil || n < 1 {
		c.fail(at, "%s is %q; it has to be a whole number from 1 on", what, clip(text))
		return 0, false
	}
	return n, true
}

var calendarRate = regexp.MustCompile(`^(.*?)\s*(?:/|\s+per\s+|\s*/\s*)\s*calendar[ -](day|week|month)$`)

// parseRate reads a rate, which may go by the calendar: "1000 per calendar month".
func parseRate(text string) (penstock.Limit, string, error) {
	m := calendarRate.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		limit, err := penstock.ParseRate(text)
		return limit, "", err
	}
	limit, err := penstock.ParseRate(m[1] + " per day")
	limit.Name = "calendar-" + m[2]
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
	if *s.parts != 0 && *s.algorithm != "sub-window" {
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
	if *s.algorithm == "sub-window" {
		parts := cmp.Or(*s.parts, 10)
		if parts < 1 || parts > 60 {
			c.fail(s.parts, "a window of %d parts is not possible; write 1 to 60", parts)
			return nil, false
		}
		a = penstock.SubWindow(parts)
	}
	return a, true
}

func (c *compiler) calendar(s shape, unit string) (*algorithm.Algorithm, bool) {
	if *s.algorithm != "" {
		c.fail(s.algorithm, "a calendar rate has its own windows; remove algorithm, or write the period without calendar")
	}
	zone, err := time.LoadLocation(cmp.Or(*s.zone, "UTC"))
	if err != nil {
		c.fail(s.zone, "there is no time zone %q; write one as Europe/Berlin or UTC", clip(*s.zone))
		return nil, false
	}
	return penstock.CalendarWindow(calendarUnits[unit], zone), true
}

func (c *compiler) candidate(l *Limit, config *LimitConfig) *Limit {
	can := config.Candidate
	if l.Shadow {
		c.fail(can, "the limit is a shadow, and a candidate is tried beside an enforced limit; make it a shadow limit of its own")
	}
	candidate := *l
	candidate.Shadow, candidate.Shown, candidate.forms = true, false, nil
	if !can.Rate.set() && !can.InFlight.set() {
		// What it does not say is as in the limit.
		if config.Rate.set() {
			can.Rate = config.Rate
		} else {
			can.InFlight = config.InFlight
		}
	}
	c.shapeOf(&candidate, shape{at: can, rate: &can.Rate, burst: &can.Burst, inFlight: &can.InFlight, expires: &can.Expires,
		algorithm: &can.Algorithm, parts: &can.Parts, zone: &can.Zone}, l.Name+".candidate")
	if candidate.Name = l.Name + ".candidate"; !nameLike(candidate.Name) && nameLike(l.Name) {
		c.fail(can, "the limit's name %q is too long to have a candidate, whose name is 10 letters longer; shorten it", l.Name)
	}
	if len(candidate.forms) > 0 && !candidate.forms[0].Algorithm.Bookable {
		candidate.Patience = 0
	}
	if len(l.forms) > 0 && len(candidate.forms) > 0 && l.forms[0].Algorithm.Holds != candidate.forms[0].Algorithm.Holds {
		c.fail(can, "a rate cannot be the candidate of in_flight, nor the other way round; make it a shadow limit of its own")
	}
	candidate.Policy = l.Rule.Name + "." + candidate.Name
	return &candidate
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
		l.cost.methods = make(map[string]int64)
		for i := range k.Methods {
			e := &k.Methods[i]
			n := c.units(&e.Value, e.Value)
			if e.Name == "otherwise" {
				l.cost.units = n
				continue
			}
			l.cost.methods[strings.ToUpper(e.Name)] = n
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
	c.fits(l, k)
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
	case k.Header != "" && k.Max == 0:
		c.fail(&k.Header, "callers choose what they write into a header, so its cost needs a bound; add max:")
	case k.Header == "" && k.Max != 0:
		c.fail(&k.Max, "max belongs to header; remove it")
	case k.Header == "" && k.Body == 0 && k.Min != 0:
		c.fail(&k.Min, "min belongs to header and body; remove it")
	case l.cost.min > l.cost.max:
		c.fail(&k.Max, "max is %d and min is %d; max has to be the larger", l.cost.max, l.cost.min)
	}
	if k.Body < 0 || c.written(&k.Body) && k.Body == 0 {
		c.fail(&k.Body, "the size is 0; write for how many bytes one unit is charged, as in 64KB")
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
func (c *compiler) fits(l *Limit, k *CostConfig) {
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
			c.fail(k, "a request costs up to %d and the limit admits at most %d at once, so it would always be denied; raise the limit or its burst, or lower the cost", worst, most)
			return
		}
	}
}

var statusForm = regexp.MustCompile(`^(?:([1-5])xx|([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?)$`)

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
	for _, a := range []*algorithm.Algorithm{penstock.LeakyBucket, penstock.Concurrency} {
		if l.forms[0].Algorithm.Is(a) {
			c.fail(config, "%s cannot give back what turns out not to count, so on_status and cost.actual are not possible; use token-bucket or a window", l.Algorithm)
		}
	}
}

func (c *compiler) patience(l *Limit, config *LimitConfig) {
	if config.Wait == 0 || len(l.forms) == 0 {
		return
	}
	for i := range l.forms {
		plan, err := l.forms[i].Plan()
		if err != nil {
			continue
		}
		if !l.forms[i].Algorithm.Bookable {
			c.fail(&config.Wait, "a request can wait for its turn only with token-bucket and leaky-bucket; remove wait, or change the algorithm")
			return
		}
		if most := plan.MaxPatience(); config.Wait > most {
			c.fail(&config.Wait, "at this rate a request can wait %v at most; shorten wait", most)
			return
		}
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
		c.fail(&h.RetryJitter, "retry_jitter is %v; the most is 1h", h.RetryJitter)
	}
	c.denied(&h.Denied)
	if h.MaxWaiting < 0 || h.MaxWaiting > 1_000_000 {
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
	if d.Status != 0 && (d.Status < 400 || d.Status > 599) {
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
		if _, err := template.New("body").Parse(d.Body); err != nil {
			c.fail(&d.Body, "the template is not understood: %v; write it as for Go's text/template", strings.TrimPrefix(err.Error(), "template: "))
		}
	}
	if strings.ContainsAny(d.ContentType, "\r\n") {
		c.fail(&d.ContentType, "a content type is one line; write application/json")
	}
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
