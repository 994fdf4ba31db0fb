package policyfile

import (
	"reflect"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

const (
	minLeasableCapacity = 8 // the smallest capacity of a leased limit, in units; a lease draws at most a quarter of it
	maxDenyCacheTTL     = 24 * time.Hour
)

func (c *compiler) compileGuards(l *policy.Limit, config *limitConfig) {
	l.Guard.OnFailure = c.defaultOnFailure
	if config.OnFailure != "" {
		l.Guard.OnFailure = c.compileOnFailure(&config.OnFailure)
	}
	if config.Ceiling != "" {
		c.compileCeiling(l, config)
	}
	if c.isWritten(&config.Lease) || config.Lease != 0 {
		c.compileLease(l, config)
	}
	if c.isWritten(&config.SplitInto) || config.SplitInto != 0 {
		c.compileSplitInto(l, config)
	}
	if config.DenyCacheTTL != nil {
		c.compileDenyCacheTTL(l, config)
	}
	if l.Shadow {
		l.Guard = shadowSettings(l.Guard)
	}
}

// shadowSettings returns the settings of a shadow. A shadow is neither leased nor split, because no
// request waits for a shadow. While the store gives no answer, shadows are not counted, because a
// fallback would decide them, and not the store.
func shadowSettings(s guard.Settings) guard.Settings {
	return guard.Settings{OnFailure: guard.FailOpen, DenyCacheTTL: s.DenyCacheTTL}
}

var failureModes = map[string]guard.FailureMode{"local": guard.FailLocal, "open": guard.FailOpen, "closed": guard.FailClosed}

func (c *compiler) compileOnFailure(p *string) guard.FailureMode {
	return failureModes[c.checkWord(p, "on_failure", fieldvalues.OnFailure)]
}

func (c *compiler) compileCeiling(l *policy.Limit, config *limitConfig) {
	at := &config.Ceiling
	limit, calendar, err := parseRate(config.Ceiling)
	switch {
	case config.InFlight.isSet():
		c.fail(at, "a ceiling is a rate, and cannot bound in_flight; write on_failure: local instead")
		return
	case l.Guard.OnFailure == guard.FailLocal || l.Guard.OnFailure == guard.FailClosed:
		c.fail(at, "a ceiling needs on_failure: open, and here it is %v; change it, or remove ceiling", l.Guard.OnFailure)
		return
	case err != nil:
		c.fail(at, "%s", reason(err))
		return
	case calendar != "":
		c.fail(at, "a ceiling cannot be for calendar periods; write it as 1000/s, or 1000/s, burst 50")
		return
	case len(l.Variants) == 0:
		return
	}
	limit.Name, limit.Group = l.Name, l.Variants[0].Group()
	plan, err := limit.Compile()
	if err != nil {
		c.fail(at, "%s", reason(err))
		return
	}
	c.checkCost(&policy.Limit{Variants: []*penstock.Plan{plan}, Cost: l.Cost}, &config.Cost, at, "the ceiling")
	l.Guard.Ceiling = plan.Limit()
}

// compileLease compiles how many units may be drawn in advance. A lease that never draws units is
// reported as a mistake.
func (c *compiler) compileLease(l *policy.Limit, config *limitConfig) {
	at := &config.Lease
	if !fieldvalues.Lease.Has(config.Lease) {
		c.fail(at, "lease is %d; write how many units may be drawn in advance in one call, from %d to 2^51, or remove it", config.Lease, fieldvalues.Lease.Least)
		return
	}
	l.Guard.Lease = config.Lease
	if len(l.Variants) == 0 {
		return
	}
	switch a := l.Variants[0].Algorithm(); {
	case a.NeedsHolder():
		c.fail(at, "in_flight cannot have a lease; remove it")
	case a.Decay() == algorithm.DecayUnknown: // the algorithm does not support leases
		c.fail(at, "%s cannot have a lease; remove it, or use token-bucket, sliding-window or another window", a.Title())
	case l.Variants[0].CountsDenied():
		c.fail(at, "the store must count each denied request, so the lease has no effect; remove lease or count_denied")
	case l.Patience > 0:
		c.fail(at, "requests that may wait are decided by the store, so the lease has no effect; remove lease or max_wait")
	case l.Status != nil:
		c.fail(at, "on_status often refunds, which also returns all units that were drawn in advance; remove lease or on_status")
	case l.Adjustable:
		c.fail(at, "cost.actual often refunds, which also returns all units that were drawn in advance; remove lease or actual")
	case largestCapacity(l) < minLeasableCapacity:
		c.fail(at, "the limit admits %d at once, and at most a quarter of that is leased; let it admit %d or more, or remove lease", largestCapacity(l), minLeasableCapacity)
	}
}

func largestCapacity(l *policy.Limit) (most int64) {
	for i := range l.Variants {
		most = max(most, l.Variants[i].Capacity())
	}
	return most
}

func (c *compiler) compileSplitInto(l *policy.Limit, config *limitConfig) {
	at := &config.SplitInto
	if !fieldvalues.SplitInto.Has(int64(config.SplitInto)) {
		c.fail(at, "split_into is %d; write into how many counters the limit is split, from %v, or remove it", config.SplitInto, fieldvalues.SplitInto)
		return
	}
	l.Guard.SplitInto = config.SplitInto
	for i := range l.Variants {
		plan := l.Variants[i]
		switch {
		case plan.Part(1, 0) == nil:
			c.fail(at, "%s cannot be split; remove split_into, or use token-bucket", plan.Algorithm().Title())
			return
		case plan.CountsDenied():
			c.fail(at, "several counters would count one denied request; remove split_into or count_denied")
			return
		case plan.Capacity() < int64(config.SplitInto):
			c.fail(at, "the limit admits %d at once, which cannot be split into %d; lower split_into, or remove it", plan.Capacity(), config.SplitInto)
			return
		}
	}
}

func (c *compiler) compileDenyCacheTTL(l *policy.Limit, config *limitConfig) {
	at := &config.DenyCacheTTL
	l.Guard.DenyCacheTTL = *config.DenyCacheTTL
	switch {
	case config.InFlight.isSet():
		c.fail(at, "denials of in_flight are never cached, because a slot may become free at any time; remove deny_cache_ttl")
	case config.CountDenied && *config.DenyCacheTTL > 0:
		c.fail(at, "denials of a limit with count_denied are never cached, so that each is counted; remove deny_cache_ttl")
	case *config.DenyCacheTTL > maxDenyCacheTTL:
		c.fail(at, "deny_cache_ttl is %s; write a time of at most 24h, or 0s to cache none", wording.Period(*config.DenyCacheTTL))
	case *config.DenyCacheTTL <= 0:
		l.Guard.DenyCacheTTL = -1 // no denial is cached; 0 would be the default
	}
}

// checkLeasesTogether reports limits that are never leased because of another limit of their rule.
// All limits of a rule are one batch, and a batch is leased as a whole.
func (c *compiler) checkLeasesTogether(r *policy.Rule, config *ruleConfig) {
	for i, l := range r.Limits {
		if l.Guard.Lease == 0 {
			continue
		}
		for j, other := range r.Limits {
			at := &config.Limits[i].Lease
			switch {
			case other.Shadow || len(other.Variants) == 0:
			case config.Limits[j].Lease == 0 && !c.isWritten(&config.Limits[j].Lease):
				c.fail(at, "the limits of a rule are leased together, and limit %s has no lease; add one there, or remove this one", wording.Clip(other.Name))
				return
			case describe.Identity(other.Key) != describe.Identity(l.Key):
				c.fail(at, "the limits of a rule are leased together, and limit %s has another identity; remove lease from both", wording.Clip(other.Name))
				return
			case !reflect.DeepEqual(other.Cost, l.Cost):
				c.fail(at, "the limits of a rule are leased together, and limit %s has another cost; remove lease from both", wording.Clip(other.Name))
				return
			}
		}
	}
}

// warnUnusedLeases warns about leases without effect, because another rule always charges too.
func (c *compiler) warnUnusedLeases() {
	for i, r := range c.spec.Rules {
		for j, l := range r.Limits {
			if l.Guard.Lease == 0 {
				continue
			}
			for _, other := range c.spec.Rules {
				alwaysCharges := other.Always && !other.Shadow && other.Enforces() && other.Match.IsAll()
				if other != r && alwaysCharges {
					c.warn(&c.config.Rules[i].Limits[j].Lease, "rule %s is always charged with this one, and limits of several rules are not leased together; the lease has no effect",
						other.Name)
					break
				}
			}
		}
	}
}
