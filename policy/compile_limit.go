package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

func (c *compiler) limit(r *Rule, rule *RuleConfig, config *LimitConfig) *Limit {
	l := &Limit{Rule: r, Shadow: config.Shadow || rule.Shadow, Patience: config.Wait}
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
	c.guards(l, config)
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
	if id.part.what == partAddress && id.only == nil && id.first == nil && id.all == nil && len(config.OnStatus) == 0 {
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

// candidate is the shape of a limit's candidate: what that does not say is as in the limit, as far
// as it fits.
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
		l.Algorithm = ready.Algorithm.Title
		l.forms = append(l.forms, ready)
	}
	if len(l.forms) < len(tiers) {
		l.forms = nil // there were mistakes
		return
	}
	for _, form := range l.forms {
		if form.Algorithm.Windows != l.forms[0].Algorithm.Windows {
			c.fail(s.rate, "the tiers' windows are of different calendars, so what was used would be lost when a caller's tier changes; give all tiers one calendar, or none")
			return
		}
	}
	if l.forms[0].Algorithm.Windows != "" {
		l.zone = cmp.Or(*s.zone, "UTC")
	}
	if *s.algorithm == "sub-window" {
		l.parts = cmp.Or(*s.parts, defaultParts)
	}
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
	candidate.Guard = shadowed(l.Guard)
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
		c.fail(can, "the limit gives back what turns out not to count, and %s cannot; choose another algorithm", a.Title)
	case sameForms(l, &candidate):
		c.fail(can, "the candidate is what the limit is; change something, or remove it")
	}
	if l.Patience > 0 {
		candidate.Patience = min(l.Patience, candidate.maxPatience())
	}
	c.fits(&candidate, &config.Cost, can)
	return &candidate
}

// maxPatience is how long a request can wait at most, whatever the tier: not at all if the future
// cannot be booked.
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

func sameForms(a, b *Limit) bool {
	same := func(f, g penstock.Limit) bool {
		return f.Count == g.Count && f.Period == g.Period && f.Burst == g.Burst && f.Algorithm.Title == g.Algorithm.Title
	}
	return slices.EqualFunc(a.forms, b.forms, same) && a.parts == b.parts && a.zone == b.zone
}
