package policy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

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
			m.order, m.written = len(matchers), len(matchers)
			matchers = append(matchers, m)
		}
	}
	c.overlaps(matchers)
	c.together()
	c.leasedAlone()
	c.inventable()
	slices.SortStableFunc(matchers, specificity)
	c.rules.index = make(map[string][]*matcher)
	for i, m := range matchers {
		m.order = i
		if m.path[0].kind == segmentLiteral {
			c.rules.index[m.path[0].text] = append(c.rules.index[m.path[0].text], m)
		} else {
			c.rules.general = append(c.rules.general, m)
		}
		if m.rule.BeforeAuth {
			c.rules.before = append(c.rules.before, m)
		}
	}
	c.surprises(matchers)
}

// overlaps complains of rules that can never win.
func (c *compiler) overlaps(matchers []*matcher) {
	type place struct{ host, path string }
	seen := make(map[place][]*matcher)
	for _, m := range matchers {
		if m.rule.Always || m.implied || len(m.where) > 0 {
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

// together checks that no request can have too many charges. Each shard of a limit may be one.
func (c *compiler) together() {
	atOnce := func(count func(*Rule) int) int {
		always, most := 0, 0
		for _, r := range c.rules.rules {
			if r.Always {
				always += count(r)
			} else {
				most = max(most, count(r))
			}
		}
		return always + most
	}
	limits, counters := atOnce(func(r *Rule) int { return len(r.Limits) }), atOnce((*Rule).counters)
	switch {
	case limits > maxLimits:
		c.fail(&c.config.Rules, "a request could meet %d limits at once, as rules with always: true apply together; the most are %d", limits, maxLimits)
	case counters > maxLimits:
		c.fail(&c.config.Rules, "a request could meet %d counters at once, those of a limit with shards being several; the most are %d: write fewer shards", counters, maxLimits)
	}
}

// counters are how many a rule's limits have.
func (r *Rule) counters() (n int) {
	for _, l := range r.Limits {
		n += max(l.Guard.Shards, 1)
	}
	return n
}

func (c *compiler) rule(config *RuleConfig) *Rule {
	r := &Rule{Name: config.Name, Always: config.Always || config.BeforeAuth || c.rules.all, Unlimited: config.Unlimited, Shadow: config.Shadow, order: len(c.rules.rules)}
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
	c.leasedTogether(r, config)
	if config.NewIdentities != "" {
		c.newIdentities(r, config)
	}
	if config.BeforeAuth {
		c.beforeAuth(r, config)
	}
	if config.Per.set() && !slices.ContainsFunc(config.Limits, func(l LimitConfig) bool { return !l.Per.set() }) {
		c.identityOf(&config.Per) // for its mistakes: no limit uses it
	}
	return r
}

// ownName complains of a limit or candidate that has the name of another: they would share a
// counter.
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

// matchers are the ways in which a rule can match: each of its paths at each of its hosts. HEAD
// makes a server do what GET does, so a rule for GET is one for HEAD, too, unless another names
// that.
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
	paths, places := [][]segment{{{kind: segmentRest}}}, []any{config}
	if len(config.Path) > 0 {
		paths, places = paths[:0], places[:0]
		for i := range config.Path {
			if path, ok := c.pattern(&config.Path[i], config.Path[i]); ok {
				paths, places = append(paths, path), append(places, &config.Path[i])
			}
		}
	}
	if c.ways += len(hosts) * len(paths); c.ways > maxWays {
		c.fail(config, "here the rules have more than %d ways to match, each path at each host; write patterns instead", maxWays)
		return nil
	}
	for _, host := range hosts {
		for i, path := range paths {
			list = append(list, &matcher{rule: r, host: host, path: path, methods: methods, where: where, at: places[i]})
			if slices.Contains(methods, http.MethodGet) && !slices.Contains(methods, http.MethodHead) {
				list = append(list, &matcher{rule: r, host: host, path: path, methods: []string{http.MethodHead}, implied: true, where: where, at: places[i]})
			}
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
