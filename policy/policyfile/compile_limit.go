package policyfile

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

func (c *compiler) compileLimit(r *policy.Rule, ruleConfig *ruleConfig, config *limitConfig) *policy.Limit {
	l := &policy.Limit{Rule: r, Shadow: config.Shadow || ruleConfig.Shadow, Patience: config.MaxWait}
	l.Key = c.compileKey(r, ruleConfig, config)
	c.compileShape(l, config.shape(), config.Name)
	if config.Name != "" && !syntax.IsName(config.Name) {
		c.fail(&config.Name, "%q cannot be the name of a limit; write 1 to 64 of a-z, 0-9, '_', '.' and '-'", wording.Clip(config.Name))
	}
	l.FullName = r.Name + "." + l.Name
	l.InHeaders = !l.Key.Global
	if config.Headers != nil {
		l.InHeaders = *config.Headers
	}
	c.compileCosts(l, config)
	c.compileOnStatus(l, config)
	if c.checkAcross(config) {
		c.checkPatience(l, config)
		c.compileGuards(l, config)
	}
	if config.Candidate != nil {
		l.Candidate = c.compileCandidate(l, config)
	}
	return l
}

func (c *compiler) compileKey(r *policy.Rule, ruleConfig *ruleConfig, config *limitConfig) *policy.Identity {
	per := &config.Per
	if !per.isSet() {
		per = &ruleConfig.Per
	}
	if !per.isSet() {
		if !c.isWritten(per) && !c.isWritten(&config.Per) && !c.isMisnamed(config, "per") && !c.isMisnamed(ruleConfig, "per") {
			c.fail(config, "the limit has no identity; add per: ip, per: global or the name of an identity, to it or to its rule")
		}
		return invalidIdentity
	}
	id := c.compileIdentityConfig(per)
	for _, name := range id.Segments() {
		hasSegment := func(path string) bool { return slices.Contains(strings.Split(path, "/"), "{"+name+"}") }
		matchesAllPaths := len(r.Match.Paths) == 0 && len(ruleConfig.Match.Path) == 0
		if matchesAllPaths || !holdsForAll(r.Match.Paths, hasSegment) {
			c.fail(per, "the identity depends on segment %s, and a path of the rule has no {%s}; add it to the path", name, name)
		}
	}
	return id
}

// A shape has pointers to the fields of a policyConfig that a limit and its candidate have in
// common.
type shape struct {
	at                    any // a pointer to the limit or the candidate itself
	rate, burst, inFlight *tierTexts
	ttl                   *time.Duration
	algorithm             *string
	subWindows            *int
	timezone              *string
	countsDenied          bool
	countsDeniedAt        any // a pointer to the field
	across                string
}

func (l *limitConfig) shape() shape {
	return shape{at: l, rate: &l.Rate, burst: &l.Burst, inFlight: &l.InFlight, ttl: &l.TTL, algorithm: &l.Algorithm, subWindows: &l.SubWindows, timezone: &l.Timezone,
		countsDenied: l.CountDenied && l.Across == "", countsDeniedAt: &l.CountDenied, across: l.Across}
}

// candidateShape returns the shape of a limit's candidate. The candidate takes the fields that it
// does not set from the limit. It does not take fields that its rate or its algorithm cannot have.
func (c *compiler) candidateShape(l *limitConfig) shape {
	config := l.Candidate
	s := shape{at: config, rate: &config.Rate, burst: &config.Burst, inFlight: &config.InFlight, ttl: &config.TTL, algorithm: &config.Algorithm, subWindows: &config.SubWindows,
		timezone: &config.Timezone, countsDeniedAt: &config.CountDenied, across: l.Across}
	if config.CountDenied != nil {
		s.countsDenied = *config.CountDenied
	}
	if !config.Rate.isSet() && !config.InFlight.isSet() {
		s.rate, s.inFlight = &l.Rate, &l.InFlight
	}
	if config.TTL == 0 && s.inFlight.isSet() {
		s.ttl = &l.TTL
	}
	if s.inFlight.isSet() {
		return s
	}
	isCalendar := s.rate.isCalendar()
	if config.Timezone == "" && isCalendar {
		s.timezone = &l.Timezone
	}
	if config.Algorithm == "" && !isCalendar {
		s.algorithm = &l.Algorithm
	}
	if config.SubWindows == 0 && *s.algorithm == "sub-window" {
		s.subWindows = &l.SubWindows
	}
	if !config.Burst.isSet() && !isCalendar && c.hasBurst(*s.algorithm) {
		s.burst = &l.Burst
	}
	if config.CountDenied == nil && (isCalendar || c.canCountDenied(*s.algorithm)) {
		s.countsDenied = l.CountDenied
	}
	return s
}

// hasBurst reports whether a limit may have a burst. word is what the file has as its algorithm, or
// "" for the default.
func (c *compiler) hasBurst(word string) bool {
	if word == "" {
		return true // token-bucket
	}
	a := c.algorithms[word]
	return a != nil && a.BurstUse() != algorithm.BurstUnused
}

// canCountDenied reports whether a limit may count denied requests. word is as for hasBurst.
func (c *compiler) canCountDenied(word string) bool {
	if word == "" || word == "sub-window" {
		return true
	}
	a := c.algorithms[word]
	return a != nil && a.CountsDenied()
}

// compileShape compiles the limit's variants: one for all tiers, or one for each.
func (c *compiler) compileShape(l *policy.Limit, s shape, name string) {
	if !c.checkShape(s) {
		return
	}
	tiers, ok := c.tiersOf(s)
	if !ok {
		return
	}
	for _, tier := range tiers {
		limit, ok := c.compileVariant(s, tier)
		if !ok {
			continue
		}
		name = cmp.Or(name, limit.Name)
		l.Name = name
		limit.Name, limit.Group = name, l.Rule.Name
		if !syntax.IsName(name) || !syntax.IsName(l.Rule.Name) {
			limit.Name, limit.Group = "x", "x" // valid placeholders; the wrong name is reported elsewhere
		}
		plan, err := limit.Compile()
		if err != nil {
			c.fail(s.at, "%s", reason(err))
			continue
		}
		l.Algorithm = plan.Algorithm().Title()
		l.Variants = append(l.Variants, plan)
		isSlow := time.Duration(float64(plan.Capacity())/float64(limit.Count)*float64(limit.Period)) > time.Minute
		if s.across == "share" && limit.Algorithm.RefillsSteadily() && isSlow {
			c.hint(s.rate, "a token bucket that refills in more than a minute cannot lend its burst to other regions; write algorithm: fixed-window, or a calendar rate")
		}
	}
	if len(l.Variants) < len(tiers) {
		l.Variants = nil // there were mistakes
		return
	}
	for _, v := range l.Variants {
		if calendarOf(v) != calendarOf(l.Variants[0]) {
			c.fail(s.rate, "the tiers have windows of different calendars, so used units would be lost when a client's tier changes; give all tiers one calendar, or none")
			return
		}
	}
	if l.Variants[0].Algorithm().IsCalendar() {
		l.Timezone = cmp.Or(*s.timezone, "UTC")
	}
	if *s.algorithm == "sub-window" {
		l.SubWindows = cmp.Or(*s.subWindows, defaultSubWindows)
	}
}

// calendarOf names the windows of a limit whose windows follow the calendar. It is "" for others.
func calendarOf(p *penstock.Plan) string {
	if !p.Algorithm().IsCalendar() {
		return ""
	}
	return p.Algorithm().Rate(algorithm.Limit{Count: 1})
}

// checkShape reports whether a limit has either a rate or in_flight. If it has none or both,
// checkShape records a mistake.
func (c *compiler) checkShape(s shape) bool {
	switch {
	case s.rate.isSet() && s.inFlight.isSet():
		c.fail(s.inFlight, "a limit has a rate or in_flight, not both; make two limits of it")
		return false
	case !s.rate.isSet() && !s.inFlight.isSet():
		if !c.isWritten(s.rate) && !c.isWritten(s.inFlight) && !c.isMisnamed(s.at, "rate", "in_flight") {
			c.fail(s.at, "the limit has no rate; add one, as in rate: 100/s, or in_flight: 50")
		}
		return false
	case s.rate.isSet() && *s.ttl != 0:
		c.fail(s.ttl, "ttl belongs to in_flight; remove it")
	}
	return true
}

// tiersOf returns the tiers that need a variant of their own. If the limit has one number for all
// tiers, it returns only "".
func (c *compiler) tiersOf(s shape) (tiers []string, ok bool) {
	if s.rate.Tiers == nil && s.burst.Tiers == nil && s.inFlight.Tiers == nil {
		return []string{""}, true
	}
	if tiers = c.tierNames(); len(tiers) == 0 {
		c.fail(s.at, "the limit has numbers for tiers, and there are no tiers; add tiers: with conditions, or write one number")
		return nil, false
	}
	for _, p := range []*tierTexts{s.rate, s.burst, s.inFlight} {
		for i := range p.Tiers {
			if e := &p.Tiers[i]; e.Name != "default" && !slices.Contains(tiers, e.Name) {
				c.fail(&e.Name, "there is no tier %q; %s", wording.Clip(e.Name), suggestOf(e.Name, tiers))
			}
		}
	}
	return tiers, true
}

// textFor returns the text for a tier, and a pointer to where it was written.
func (p *tierTexts) textFor(tier string) (text string, at any, ok bool) {
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

const candidateSuffix = ".candidate"

func (c *compiler) compileCandidate(l *policy.Limit, config *limitConfig) *policy.Limit {
	at := config.Candidate
	if c.unreadable[at] {
		return nil
	}
	if l.Shadow {
		c.fail(at, "the limit is a shadow, and a candidate counts beside an enforced limit; make it a separate shadow limit")
	}
	candidate := *l
	candidate.Shadow, candidate.InHeaders, candidate.Variants, candidate.SubWindows, candidate.Timezone = true, false, nil, 0, ""
	candidate.Guard = shadowSettings(l.Guard)
	c.compileShape(&candidate, c.candidateShape(config), l.Name+candidateSuffix)
	candidate.Name = l.Name + candidateSuffix
	if !syntax.IsName(candidate.Name) && syntax.IsName(l.Name) {
		c.fail(at, "the limit's name %q is too long for a candidate, whose name is %d letters longer; shorten it", l.Name, len(candidateSuffix))
	}
	candidate.FullName = l.Rule.Name + "." + candidate.Name
	if len(l.Variants) == 0 || len(candidate.Variants) == 0 {
		return &candidate
	}
	switch a := candidate.Variants[0].Algorithm(); {
	case l.Variants[0].Algorithm().NeedsHolder() != a.NeedsHolder():
		c.fail(at, "the limit and its candidate must both be rates, or both in_flight; make the candidate a separate shadow limit")
	case (l.Status != nil || l.Adjustable) && !a.CanRefund():
		c.fail(at, "the limit refunds charges, and %s cannot; choose another algorithm", a.Title())
	case l.Status != nil && candidate.Variants[0].CountsDenied():
		c.fail(at, countsNoResponse)
	case haveSameVariants(l, &candidate):
		c.fail(at, "the candidate equals the limit; change a field, or remove it")
	}
	if l.Patience > 0 {
		candidate.Patience = min(l.Patience, maxPatience(&candidate))
	}
	c.checkCost(&candidate, &config.Cost, at, "the candidate")
	return &candidate
}

// maxPatience returns the longest wait that every tier allows. The wait is 0 if the algorithm has
// no reservations.
func maxPatience(l *policy.Limit) time.Duration {
	longest := 24 * time.Hour // the bound of Plan.MaxPatience
	for i := range l.Variants {
		if !l.Variants[i].Algorithm().CanBook() {
			return 0
		}
		longest = min(longest, l.Variants[i].MaxPatience())
	}
	return longest
}

func haveSameVariants(a, b *policy.Limit) bool {
	isSame := func(planA, planB *penstock.Plan) bool {
		limitA, limitB := planA.Limit(), planB.Limit()
		return limitA.Count == limitB.Count && limitA.Period == limitB.Period && limitA.Burst == limitB.Burst &&
			limitA.Algorithm.Title() == limitB.Algorithm.Title() && limitA.ShouldCountDenied == limitB.ShouldCountDenied
	}
	return slices.EqualFunc(a.Variants, b.Variants, isSame) && a.SubWindows == b.SubWindows && a.Timezone == b.Timezone
}

func holdsForAll[T any](list []T, holds func(T) bool) bool {
	return !slices.ContainsFunc(list, func(one T) bool { return !holds(one) })
}

// An exchangingSection is the section of a program whose regions exchange what they have granted.
// Other programs cannot enforce a limit across regions. RegionBound says how much they admit.
type exchangingSection interface {
	RegionBound(*penstock.Plan) string
}

// checkAcross reports what a limit across regions cannot have. It returns false if the limit has
// fields that others would report too.
func (c *compiler) checkAcross(config *limitConfig) bool {
	if config.Across == "" {
		return true
	}
	c.checkWord(&config.Across, "across", fieldvalues.Across)
	isExchanging := slices.ContainsFunc(c.config.sections, func(s Section) bool { _, ok := s.(exchangingSection); return ok })
	if !isExchanging {
		c.fail(&config.Across, "only penstock serve can enforce one limit in several regions; remove across, so that each region has the limit on its own")
	}
	isValid := true
	for _, field := range []struct {
		name, why string
		at        any
		isSet     bool
	}{
		{"in_flight", "slots come back, and only what is used up for good can be counted in several regions", &config.InFlight, config.InFlight.isSet()},
		{"max_wait", "a turn in the future cannot be booked in several regions", &config.MaxWait, config.MaxWait != 0},
		{"lease", "units that an instance draws in advance would count in all regions", &config.Lease, config.Lease != 0},
		{"split_into", "a counter across regions is one counter in each region", &config.SplitInto, config.SplitInto != 0},
		{"count_denied", "denied requests count in no other region", &config.CountDenied, config.CountDenied},
	} {
		if field.isSet {
			c.fail(field.at, "a limit across regions cannot have %s: %s; remove %[1]s or across", field.name, field.why)
			isValid = false
		}
	}
	return isValid
}
