package policyfile

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

func (c *compiler) compileLimit(r *policy.Rule, rule *RuleConfig, config *LimitConfig) *policy.Limit {
	l := &policy.Limit{Rule: r, Shadow: config.Shadow || rule.Shadow, Patience: config.MaxWait}
	l.Key = c.keyOf(r, rule, config)
	c.compileShape(l, config.shape(), config.Name)
	if config.Name != "" && !policy.IsName(config.Name) {
		c.fail(&config.Name, "%q cannot be the name of a limit; write 1 to 64 of a-z, 0-9, '_', '.' and '-'", wording.Clip(config.Name))
	}
	l.Policy = r.Name + "." + l.Name
	l.InHeaders = !l.Key.Global
	if config.Headers != nil {
		l.InHeaders = *config.Headers
	}
	c.compileCosts(l, config)
	c.compileOutcomes(l, config)
	c.checkPatience(l, config)
	c.compileGuards(l, config)
	if config.Candidate != nil {
		l.Candidate = c.compileCandidate(l, config)
	}
	return l
}

func (c *compiler) keyOf(r *policy.Rule, rule *RuleConfig, config *LimitConfig) *policy.Identity {
	per := &config.Per
	if !per.isSet() {
		per = &rule.Per
	}
	if !per.isSet() {
		if !c.isWritten(per) && !c.isWritten(&config.Per) && !c.isMisnamed(config, "per") && !c.isMisnamed(rule, "per") {
			c.fail(config, "the limit has no identity; add per: ip, per: global or the name of an identity, to it or to its rule")
		}
		return invalidIdentity
	}
	id := c.compileIdentityConfig(per)
	for _, name := range id.Segments() {
		hasSegment := func(path policy.Pattern) bool { return path.HasSegment(name) }
		if paths := r.Match.Paths; len(paths) == 0 && len(rule.Match.Path) == 0 || !holdsForAll(paths, hasSegment) {
			c.fail(per, "the identity depends on segment %s, and a path of the rule has no {%s}; add it to the path", name, name)
		}
	}
	return id
}

// A shape is the fields that a limit and its candidate have in common.
type shape struct {
	at                    any
	rate, burst, inFlight *PerTier
	ttl                   *time.Duration
	algorithm             *string
	subWindows            *int
	timezone              *string
}

func (l *LimitConfig) shape() shape {
	return shape{at: l, rate: &l.Rate, burst: &l.Burst, inFlight: &l.InFlight, ttl: &l.TTL, algorithm: &l.Algorithm, subWindows: &l.SubWindows, timezone: &l.Timezone}
}

// candidate returns the shape of a limit's candidate. Fields that it does not set are those of the
// limit, if they fit.
func (l *LimitConfig) candidate() shape {
	can := l.Candidate
	s := shape{at: can, rate: &can.Rate, burst: &can.Burst, inFlight: &can.InFlight, ttl: &can.TTL, algorithm: &can.Algorithm, subWindows: &can.SubWindows, timezone: &can.Timezone}
	if !can.Rate.isSet() && !can.InFlight.isSet() {
		s.rate, s.inFlight = &l.Rate, &l.InFlight
	}
	if can.TTL == 0 && s.inFlight.isSet() {
		s.ttl = &l.TTL
	}
	if s.inFlight.isSet() {
		return s
	}
	calendar := s.rate.isCalendar()
	if can.Timezone == "" && calendar {
		s.timezone = &l.Timezone
	}
	if can.Algorithm == "" && !calendar {
		s.algorithm = &l.Algorithm
	}
	if can.SubWindows == 0 && *s.algorithm == "sub-window" {
		s.subWindows = &l.SubWindows
	}
	if !can.Burst.isSet() && !calendar && hasBurst(*s.algorithm) {
		s.burst = &l.Burst
	}
	return s
}

func hasBurst(algorithm string) bool {
	return algorithm == "" || algorithm == "token-bucket" || algorithm == "gcra" || algorithm == "leaky-bucket"
}

// compileShape compiles the limit's variants: one for all tiers, or one for each.
func (c *compiler) compileShape(l *policy.Limit, s shape, name string) {
	switch {
	case s.rate.isSet() && s.inFlight.isSet():
		c.fail(s.inFlight, "a limit has a rate or in_flight, not both; make two limits of it")
		return
	case !s.rate.isSet() && !s.inFlight.isSet():
		if !c.isWritten(s.rate) && !c.isWritten(s.inFlight) && !c.isMisnamed(s.at, "rate", "in_flight") {
			c.fail(s.at, "the limit has no rate; add one, as in rate: 100/s, or in_flight: 50")
		}
		return
	case s.rate.isSet() && *s.ttl != 0:
		c.fail(s.ttl, "ttl belongs to in_flight; remove it")
	}
	tiers := []string{""}
	if s.rate.Tiers != nil || s.burst.Tiers != nil || s.inFlight.Tiers != nil {
		if tiers = c.tierNames(); len(tiers) == 0 {
			c.fail(s.at, "the limit has numbers for tiers, and there are no tiers; add tiers: with conditions, or write one number")
			return
		}
		for _, p := range []*PerTier{s.rate, s.burst, s.inFlight} {
			c.checkTiersOf(p, tiers)
		}
	}
	for _, tier := range tiers {
		limit, ok := c.compileVariant(s, tier)
		if !ok {
			continue
		}
		if name == "" {
			name = limit.Name
		}
		l.Name = name
		limit.Name, limit.Group = name, l.Rule.Name
		if !policy.IsName(name) || !policy.IsName(l.Rule.Name) {
			limit.Name, limit.Group = "x", "x" // reported elsewhere
		}
		ready, err := limit.Compile()
		if err != nil {
			c.fail(s.at, "%s", reason(err))
			continue
		}
		l.Algorithm = ready.Algorithm().Title()
		l.Variants = append(l.Variants, ready)
	}
	if len(l.Variants) < len(tiers) {
		l.Variants = nil // there were mistakes
		return
	}
	for _, v := range l.Variants {
		if v.Algorithm().Windows() != l.Variants[0].Algorithm().Windows() {
			c.fail(s.rate, "the tiers have windows of different calendars, so used units would be lost when a client's tier changes; give all tiers one calendar, or none")
			return
		}
	}
	if l.Variants[0].Algorithm().Windows() != "" {
		l.Timezone = cmp.Or(*s.timezone, "UTC")
	}
	if *s.algorithm == "sub-window" {
		l.SubWindows = cmp.Or(*s.subWindows, defaultSubWindows)
	}
}

func (c *compiler) checkTiersOf(p *PerTier, tiers []string) {
	for i := range p.Tiers {
		e := &p.Tiers[i]
		if e.Name != "default" && !slices.Contains(tiers, e.Name) {
			c.fail(&e.Name, "there is no tier %q; %s", wording.Clip(e.Name), suggestOf(e.Name, tiers))
		}
	}
}

// of returns the text for a tier, and where it was written.
func (p *PerTier) of(tier string) (text string, at any, ok bool) {
	if p.Tiers == nil {
		return p.All, p, true
	}
	for _, name := range []string{tier, "default"} {
		for i := range p.Tiers {
			if p.Tiers[i].Name == name {
				return p.Tiers[i].Value, &p.Tiers[i].Value, true
			}
		}
	}
	return "", p, false
}

func (c *compiler) compileCandidate(l *policy.Limit, config *LimitConfig) *policy.Limit {
	can := config.Candidate
	if c.broken[can] {
		return nil
	}
	if l.Shadow {
		c.fail(can, "the limit is a shadow, and a candidate counts beside an enforced limit; make it a separate shadow limit")
	}
	candidate := *l
	candidate.Shadow, candidate.InHeaders, candidate.Variants, candidate.SubWindows, candidate.Timezone = true, false, nil, 0, ""
	candidate.Guard = shadowSettings(l.Guard)
	c.compileShape(&candidate, config.candidate(), l.Name+".candidate")
	if candidate.Name = l.Name + ".candidate"; !policy.IsName(candidate.Name) && policy.IsName(l.Name) {
		c.fail(can, "the limit's name %q is too long for a candidate, whose name is 10 letters longer; shorten it", l.Name)
	}
	candidate.Policy = l.Rule.Name + "." + candidate.Name
	if len(l.Variants) == 0 || len(candidate.Variants) == 0 {
		return &candidate
	}
	switch a := candidate.Variants[0].Algorithm(); {
	case l.Variants[0].Algorithm().NeedsHolder() != a.NeedsHolder():
		c.fail(can, "a rate cannot be the candidate of in_flight, nor in_flight that of a rate; make it a separate shadow limit")
	case (l.Status != nil || l.Adjustable) && !a.CanRefund():
		c.fail(can, "the limit refunds charges, and %s cannot; choose another algorithm", a.Title())
	case haveSameVariants(l, &candidate):
		c.fail(can, "the candidate equals the limit; change a field, or remove it")
	}
	if l.Patience > 0 {
		candidate.Patience = min(l.Patience, maxPatience(&candidate))
	}
	c.checkCost(&candidate, &config.Cost, can)
	return &candidate
}

// maxPatience returns how long a request can wait at most in any tier. It is 0 if the algorithm has
// no reservations.
func maxPatience(l *policy.Limit) time.Duration {
	most := 24 * time.Hour
	for i := range l.Variants {
		if !l.Variants[i].Algorithm().CanBook() {
			return 0
		}
		most = min(most, l.Variants[i].MaxPatience())
	}
	return most
}

func haveSameVariants(a, b *policy.Limit) bool {
	same := func(p, q *penstock.Plan) bool {
		f, g := p.Limit(), q.Limit()
		return f.Count == g.Count && f.Period == g.Period && f.Burst == g.Burst && f.Algorithm.Title() == g.Algorithm.Title()
	}
	return slices.EqualFunc(a.Variants, b.Variants, same) && a.SubWindows == b.SubWindows && a.Timezone == b.Timezone
}

func holdsForAll[T any](list []T, is func(T) bool) bool {
	return !slices.ContainsFunc(list, func(one T) bool { return !is(one) })
}
