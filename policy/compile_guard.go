package policy

import (
	"reflect"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// What guards can do at most.
const (
	leastLease = 2  // units drawn in advance
	leastRoom  = 8  // units of a limit that is leased: a quarter is drawn at most
	maxShards  = 32 // of a split limit
	maxDenyFor = 24 * time.Hour
)

// guards reads how the limit is guarded.
func (c *compiler) guards(l *Limit, config *LimitConfig) {
	l.Guard.OnFailure = c.onFailure
	if config.OnFailure != "" {
		l.Guard.OnFailure = c.failure(&config.OnFailure)
	}
	if config.Ceiling != "" {
		c.ceiling(l, config)
	}
	if c.written(&config.Lease) || config.Lease != 0 {
		c.lease(l, config)
	}
	if c.written(&config.Shards) || config.Shards != 0 {
		c.shards(l, config)
	}
	if config.DenyFor != nil {
		c.denyFor(l, config)
	}
	if l.Shadow {
		l.Guard = shadowed(l.Guard)
	}
}

// shadowed are the settings of a limit that is tried only. Nobody waits for it, so nothing is drawn
// in advance or split; and what it would have denied without the store would say little of it.
func shadowed(s guard.Settings) guard.Settings {
	return guard.Settings{OnFailure: guard.Open, DenyFor: s.DenyFor}
}

var failures = map[string]guard.Failure{"local": guard.Local, "open": guard.Open, "closed": guard.Closed}

// failure reads what happens to charges while the store gives no answer.
func (c *compiler) failure(p *string) guard.Failure {
	return failures[c.oneOf(p, "on_failure", "local", "open", "closed")]
}

// ceiling reads what bounds an open limit.
func (c *compiler) ceiling(l *Limit, config *LimitConfig) {
	at := &config.Ceiling
	limit, calendar, err := parseRate(config.Ceiling)
	switch {
	case config.InFlight.set():
		c.fail(at, "a ceiling is a rate, which cannot bound what is in flight; write on_failure: local instead, for this process' share of it")
		return
	case l.Guard.OnFailure == guard.Local || l.Guard.OnFailure == guard.Closed:
		c.fail(at, "a ceiling bounds what passes with on_failure: open, and here it is %v; change it, or remove ceiling", l.Guard.OnFailure)
		return
	case err != nil:
		c.fail(at, "%s", reason(err))
		return
	case calendar != "":
		c.fail(at, "a ceiling is for as long as the store gives no answer and has no calendar; write it as 1000/s, or 1000/s, burst 50")
		return
	case len(l.forms) == 0:
		return
	}
	limit.Name, limit.Group = l.Name, l.forms[0].Group
	ready, err := limit.Ready()
	if err != nil {
		c.fail(at, "%s", reason(err))
		return
	}
	c.fits(&Limit{forms: []penstock.Limit{ready}, cost: l.cost}, &config.Cost, at)
	l.Guard.Ceiling = ready
}

// lease reads how much may be drawn in advance, and complains if nothing ever would.
func (c *compiler) lease(l *Limit, config *LimitConfig) {
	at := &config.Lease
	if config.Lease < leastLease || config.Lease > penstock.MaxCost {
		c.fail(at, "lease is %d; write how many units may be drawn in advance at once, from %d to 2^51, or remove it", config.Lease, leastLease)
		return
	}
	l.Guard.Lease = config.Lease
	if len(l.forms) == 0 {
		return
	}
	switch a := l.forms[0].Algorithm; {
	case a.Holds:
		c.fail(at, "what is in flight cannot be drawn in advance; remove lease")
	case a.Is(penstock.LeakyBucket), a.Is(penstock.SlidingLog):
		c.fail(at, "nothing can be drawn in advance of %s; remove lease, or use token-bucket, sliding-window or another window", a.Title)
	case l.Patience > 0:
		c.fail(at, "a request that may wait is for the store to decide, so nothing would be drawn in advance; remove lease or wait")
	case l.Status != nil:
		c.fail(at, "on_status gives much back, and with it all that was drawn in advance; remove lease or on_status")
	case l.Settled:
		c.fail(at, "cost.actual gives much back, and with it all that was drawn in advance; remove lease or actual")
	case l.most() < leastRoom:
		c.fail(at, "the limit admits %d at once, and a quarter of that is drawn in advance at most; let it admit %d or more, or remove lease", l.most(), leastRoom)
	}
}

// most is how much the largest form admits at once.
func (l *Limit) most() (most int64) {
	for i := range l.forms {
		if plan, err := l.forms[i].Plan(); err == nil {
			most = max(most, plan.Capacity)
		}
	}
	return most
}

func (c *compiler) shards(l *Limit, config *LimitConfig) {
	at := &config.Shards
	if config.Shards < 2 || config.Shards > maxShards {
		c.fail(at, "shards is %d; write in how many counters the limit is split, from 2 to %d, or remove it", config.Shards, maxShards)
		return
	}
	l.Guard.Shards = config.Shards
	for i := range l.forms {
		plan, err := l.forms[i].Plan()
		switch {
		case err != nil:
		case plan.Limit.Algorithm.Is(penstock.LeakyBucket):
			c.fail(at, "a leaky-bucket lets out one at a time, so it cannot be split; remove shards, or use token-bucket")
			return
		case plan.Capacity < int64(config.Shards):
			c.fail(at, "the limit admits %d at once, which cannot be split in %d; write fewer shards, or remove them", plan.Capacity, config.Shards)
			return
		}
	}
}

func (c *compiler) denyFor(l *Limit, config *LimitConfig) {
	at := &config.DenyFor
	l.Guard.DenyFor = *config.DenyFor
	switch {
	case config.InFlight.set():
		c.fail(at, "denials of in_flight are never remembered, since a slot may be free again at any time; remove deny_for")
	case *config.DenyFor > maxDenyFor:
		c.fail(at, "deny_for is %s; write a time of at most 24h, or 0s to remember no denial", period(*config.DenyFor))
	case *config.DenyFor <= 0:
		l.Guard.DenyFor = -1
	}
}

// leasedTogether complains of limits that are never leased because of others of their rule: a batch
// is leased as a whole.
func (c *compiler) leasedTogether(r *Rule, config *RuleConfig) {
	for i, l := range r.Limits {
		if l.Guard.Lease == 0 {
			continue
		}
		for j, other := range r.Limits {
			at := &config.Limits[i].Lease
			switch {
			case other.Shadow || len(other.forms) == 0:
			case config.Limits[j].Lease == 0 && !c.written(&config.Limits[j].Lease):
				c.fail(at, "limits that are charged together are drawn in advance together, and limit %s has no lease; add one there, or remove this", clip(other.Name))
				return
			case other.per.text() != l.per.text():
				c.fail(at, "limits that are charged together are drawn in advance together, and limit %s has another payer; remove lease from both", clip(other.Name))
				return
			case !reflect.DeepEqual(other.cost, l.cost) || other.Body != l.Body:
				c.fail(at, "limits that are charged together are drawn in advance together, and limit %s has another cost; remove lease from both", clip(other.Name))
				return
			}
		}
	}
}

// leasedAlone warns of rules that are never leased because another is charged with them each time.
func (c *compiler) leasedAlone() {
	for i, r := range c.rules.rules {
		for j, l := range r.Limits {
			if l.Guard.Lease == 0 {
				continue
			}
			for _, other := range c.rules.rules {
				if other != r && other.Always && !other.Shadow && other.enforces() && other.matchesAll() {
					c.warn(&c.config.Rules[i].Limits[j].Lease, "rule %s is always charged with this one, and limits of several rules are not drawn in advance together; the lease has no effect",
						other.Name)
					break
				}
			}
		}
	}
}

// enforces tells whether a rule has a limit that is no shadow.
func (r *Rule) enforces() bool {
	for _, l := range r.Limits {
		if !l.Shadow {
			return true
		}
	}
	return false
}

// matchesAll tells whether the rule matches every request.
func (r *Rule) matchesAll() bool {
	for _, m := range r.matchers {
		if m.host == "" && len(m.methods) == 0 && len(m.where) == 0 && len(m.path) == 1 && m.path[0].kind == segmentRest {
			return true
		}
	}
	return false
}
