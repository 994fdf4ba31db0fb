package policyfile

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/match"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// A placedMatcher is a matcher of a rule, with its place in the file.
type placedMatcher struct {
	*match.Matcher
	rule         *policy.Rule
	ruleIndex    int // the index of the rule in the file
	at           any // a pointer to the path or the match in the policyConfig
	matcherIndex int // the index among all matchers of the file
}

func (c *compiler) compileRules() {
	if len(c.config.Rules) == 0 && !c.unreadable[&c.config.Rules] && !c.isMisnamed(c.config, "rules") {
		c.fail(c.placeOf(c.config, &c.config.Rules), "there are no rules; add rules: with a name, a match and limits")
	}
	if len(c.config.Rules) > maxRules {
		c.fail(&c.config.Rules, "there are %d rules; the most is %d", len(c.config.Rules), maxRules)
		return
	}
	byName := make(map[string]*ruleConfig) // the first rule of each name
	var matchers []*placedMatcher
	for i := range c.config.Rules {
		config := &c.config.Rules[i]
		if earlier := byName[config.Name]; earlier == nil {
			byName[config.Name] = config
		} else if config.Name != "" {
			c.fail(&config.Name, "line %[2]d has a rule %[1]q too; rename one, because counters are kept under the name", wording.Clip(config.Name), c.positions[&earlier.Name].line)
		}
		rule, ownMatchers := c.compileRule(config)
		c.spec.Rules = append(c.spec.Rules, rule)
		if c.unreadable[config] {
			continue
		}
		for _, m := range ownMatchers {
			m.ruleIndex, m.matcherIndex = i, len(matchers)
			matchers = append(matchers, m)
		}
	}
	c.checkOverlaps(matchers)
	c.checkBatchSize()
	c.warnUnusedLeases()
	c.warnInventedIdentities()
	c.hintSharedAddresses()
	c.hintSharedUnknown()
	c.warnOfSurprises(matchers)
}

// checkOverlaps reports each rule that matches the same requests as an earlier rule, with the same
// specificity: only one of the two can apply.
func (c *compiler) checkOverlaps(matchers []*placedMatcher) {
	type target struct{ host, path string } // path: the pattern without the names of segments
	seen := make(map[target][]*placedMatcher)
	for _, m := range matchers {
		// An implied matcher is that of HEAD, which GET implies.
		if m.rule.Always || m.IsImplied || m.Conditions > 0 {
			continue
		}
		var path strings.Builder
		for _, s := range m.Path {
			if s.Kind == match.Named {
				s.Text = ""
			}
			fmt.Fprintf(&path, "/%d%s", s.Kind, s.Text)
		}
		t := target{m.Host, path.String()}
		for _, other := range seen[t] {
			if m.rule.Name == "" || other.rule.Name == "" {
				continue // a name is missing, and that is an error already
			}
			if other.rule != m.rule && other.rule.Shadow == m.rule.Shadow && shareMethod(m.Methods, other.Methods) {
				config := &c.config.Rules[m.ruleIndex]
				c.fail(c.placeOf(config, &config.Name), "rule %s matches requests that the earlier rule %s matches equally well, and only one applies; "+
					"change one match, or write always: true to apply both", wording.Clip(m.rule.Name), wording.Clip(other.rule.Name))
				break
			}
		}
		seen[t] = append(seen[t], m)
	}
}

// shareMethod reports whether some method is in both lists, or both are empty. An empty list
// matches all methods. Any other list is more specific, so it never ties with an empty one.
func shareMethod(a, b []string) bool {
	if len(a) == 0 && len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(method string) bool { return slices.Contains(b, method) })
}

// checkBatchSize checks that no request can have too many charges. A split limit may charge each of
// its counters.
func (c *compiler) checkBatchSize() {
	// A request is charged by all rules with always: true, and by at most one other rule.
	mostPerRequest := func(count func(*policy.Rule) int) int {
		always, most := 0, 0
		for _, r := range c.spec.Rules {
			if r.Always {
				always += count(r)
			} else {
				most = max(most, count(r))
			}
		}
		return always + most
	}
	limits, counters := mostPerRequest(func(r *policy.Rule) int { return len(r.Limits) }), mostPerRequest(countersOf)
	switch {
	case limits > penstock.MaxCharges:
		c.fail(&c.config.Rules, "a request could be charged to %d limits, because rules with always: true apply together; the most is %d; remove rules or limits", limits, penstock.MaxCharges)
	case counters > penstock.MaxCharges:
		c.fail(&c.config.Rules, "a request could be charged to %d counters, counting each one that split_into makes; the most is %d; lower split_into", counters, penstock.MaxCharges)
	}
}

func countersOf(r *policy.Rule) (n int) {
	for _, l := range r.Limits {
		n += max(l.Guard.SplitInto, 1)
	}
	return n
}

// compileRule compiles a rule. matchers is empty if the rule's match has a mistake.
func (c *compiler) compileRule(config *ruleConfig) (r *policy.Rule, matchers []*placedMatcher) {
	r = &policy.Rule{Name: config.Name, Always: config.Always || config.BeforeAuth || c.spec.ApplyAll, Unlimited: config.Unlimited, Shadow: config.Shadow}
	switch {
	case config.Name == "" && c.isMisnamed(config, "name"):
	case config.Name == "":
		c.fail(c.placeOf(config, &config.Name), "the rule has no name; add one, as in name: search")
	case !syntax.IsName(config.Name):
		c.fail(&config.Name, "%q cannot be the name of a rule; write 1 to 64 of a-z, 0-9, '_', '.' and '-', as in search-api", wording.Clip(config.Name))
	}
	matchers = c.compileMatch(r, &config.Match)
	switch {
	case config.Unlimited && len(config.Limits) > 0:
		c.fail(&config.Unlimited, "the rule is unlimited and has limits; remove one of the two")
	case config.Unlimited && r.Always:
		c.fail(&config.Unlimited, "the rule is unlimited and always applied, which does nothing; remove always, or list clients that are never limited under allow")
	case config.Unlimited && config.Shadow:
		c.fail(&config.Unlimited, "the rule is unlimited and a shadow, which does nothing; remove one of the two")
	case !config.Unlimited && len(config.Limits) == 0 && !c.unreadable[&config.Unlimited] && !c.isMisnamed(config, "limits"):
		c.fail(c.placeOf(config, &config.Limits), "the rule has no limits; add limits: with a rate, or unlimited: true")
	}
	for i := range config.Limits {
		l := c.compileLimit(r, config, &config.Limits[i])
		c.checkLimitName(r, l, &config.Limits[i])
		r.Limits = append(r.Limits, l)
	}
	c.checkLeasesTogether(r, config)
	if config.NewIdentities != "" {
		c.compileNewIdentities(r, config)
	}
	if config.BeforeAuth {
		c.checkBeforeAuth(r, config)
	}
	if config.Per.isSet() && !slices.ContainsFunc(config.Limits, func(l limitConfig) bool { return !l.Per.isSet() }) {
		c.compileIdentityConfig(&config.Per) // no limit uses it, but its mistakes are reported
	}
	return r, matchers
}

// checkLimitName reports a limit or candidate with the name of another, because they would share a
// counter.
func (c *compiler) checkLimitName(r *policy.Rule, l *policy.Limit, config *limitConfig) {
	candidateName := func(l *policy.Limit) string {
		if l.Candidate == nil {
			return ""
		}
		return l.Candidate.Name
	}
	for _, other := range r.Limits {
		switch at := c.placeOf(config, &config.Name); {
		case l.Name == "":
		case l.Name == other.Name:
			c.fail(at, "rule %s has two limits called %q; give one another name", wording.Clip(r.Name), wording.Clip(l.Name))
		case len(l.Variants) > 0 && len(other.Variants) > 0 && l.Variants[0].Tag() == other.Variants[0].Tag():
			c.fail(at, "the store cannot distinguish limits %q and %q of rule %s, because their names have the same hash by chance; rename one of them", wording.Clip(l.Name), wording.Clip(other.Name), wording.Clip(r.Name))
		case l.Name == candidateName(other), candidateName(l) != "" && candidateName(l) == other.Name:
			c.fail(at, "rule %s has a limit with the name of another limit's candidate, which ends with .candidate; rename one of the two limits", wording.Clip(r.Name))
		}
	}
}

func (c *compiler) compileMatch(r *policy.Rule, config *matchConfig) (matchers []*placedMatcher) {
	for i := range config.Method {
		r.Match.Methods = append(r.Match.Methods, strings.ToUpper(config.Method[i]))
		c.checkMethod(&config.Method[i], config.Method[i])
	}
	for i := range config.Host {
		if config.Host[i] == "*" {
			r.Match.Hosts = append(r.Match.Hosts, "")
		} else if host, err := syntax.ParseHost(config.Host[i]); err != nil {
			c.fail(&config.Host[i], "%v", err)
		} else {
			r.Match.Hosts = append(r.Match.Hosts, host)
		}
	}
	r.Match.Where = c.compileCondition(config.Where, "match")
	var paths []match.Pattern
	var places []any // where each path is written, by Matcher.PathIndex
	if len(config.Path) == 0 {
		places = []any{config} // match.Matchers makes one matcher, with PathIndex 0, for all paths
	}
	for i := range config.Path {
		if path, ok := c.compilePattern(&config.Path[i], config.Path[i]); ok {
			paths, places = append(paths, path), append(places, &config.Path[i])
			r.Match.Paths = append(r.Match.Paths, config.Path[i])
		}
	}
	if len(places) == 0 || len(r.Match.Hosts) == 0 && len(config.Host) > 0 {
		return nil // there were mistakes
	}
	if c.combinations += max(len(r.Match.Hosts), 1) * len(places); c.combinations > maxCombinations {
		c.fail(config, "up to here, the rules have more than %d combinations of path and host; write patterns instead", maxCombinations)
		return nil
	}
	for _, m := range match.Matchers(r.Match.Methods, r.Match.Hosts, paths, len(r.Match.Where)) {
		matchers = append(matchers, &placedMatcher{Matcher: m, rule: r, at: places[m.PathIndex]})
	}
	return matchers
}

func (c *compiler) compilePattern(p any, text string) (match.Pattern, bool) {
	pattern, err := match.ParsePattern(text, c.spec.Paths.Clean, c.spec.Paths.IgnoreTrailingSlash)
	if err != nil {
		c.fail(p, "%v", err)
		return nil, false
	}
	for _, s := range strings.Split(text, "/") {
		name := strings.Trim(s, ":<>") // :name and <name> are named segments in other programs
		switch {
		case s != name && syntax.IsIdentifier(name):
			c.warn(p, "the segment %q matches only this text; for a segment with any text write path: %q, with the quotes", wording.Clip(s),
				wording.Clip(strings.Replace(text, s, "{"+name+"}", 1)))
		case expressionLike.MatchString(s):
			c.warn(p, "the segment %q is a regular expression, but matches only this text; write path: %q, where * is any segment; "+
				"** at the end is everything below, and %%5B a bracket", wording.Clip(s), wording.Clip(strings.Replace(text, s, "*", 1)))
		case s == ".*":
			c.hint(p, "the segment %q matches only names that begin with a dot; write ** at the end for everything below", wording.Clip(s))
		}
	}
	return pattern, true
}

// expressionLike matches segments that look like regular expressions. One of [, | and ^ suffices,
// because URLs do not contain them. URLs can contain parentheses, + and $, so these count only in
// places that are usual in expressions. The places are (.*), .+ at the beginning, )* and $ at the
// end.
var expressionLike = regexp.MustCompile(`\[.*\]|\||\^|\(\.[*+]\)|^\.\+|\)[+*?]|.\$$`)

// registeredMethods are the methods of the HTTP registry, and PURGE, which caches use.
var registeredMethods = strings.Fields("GET POST PUT PATCH DELETE HEAD OPTIONS QUERY CONNECT TRACE PURGE " +
	"ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE ORDERPATCH " +
	"PRI PROPFIND PROPPATCH REBIND REPORT SEARCH UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL")

func (c *compiler) checkMethod(p any, name string) {
	switch {
	case name == "*":
		c.fail(p, "no request has the method *; remove method to match any")
	case !syntax.IsToken(name):
		c.fail(p, "%q is not a method; write one such as GET or POST, or a list", wording.Clip(name))
	case !slices.Contains(registeredMethods, strings.ToUpper(name)):
		c.warn(p, "%q is not a method of the HTTP registry; %s", wording.Clip(name), wording.Suggest(strings.ToUpper(name), registeredMethods))
	}
}
