package main

import (
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// A charge is the total cost of one or several descriptors of an atomic request. These descriptors
// have the same counter and are charged in the same way.
type charge struct {
	members  []int  // indexes of the descriptors
	counter  string // name of the counter in this window
	identity string // of the counter in all windows, because a cached denial may be repeated in the next one
	cost     uint64
	isForced bool // the charge is made even if it does not fit: its descriptors have hits of their own
	isAlone  bool // the charge does not depend on others: its limit has shadow_mode or quota_mode
}

// decideTogether decides the descriptors of a request atomically, in one or several rounds.
//
// Hits that a descriptor has of its own are always charged, because they may report what has been
// used. Hits of the request are charged if those of all descriptors fit. Hits of 0 check whether a
// limit is exceeded. Descriptors with the same counter are charged together if they are charged in
// the same way. Otherwise the later descriptors wait for the next round. Forced charges of a denied
// request wait too.
//
// Penstock repeats a denial from its deny cache for a second, with the numbers of the first answer.
// These numbers may be old: each limit of the request may have had more room then. markCached marks
// the descriptors for which this is possible.
func (m *model) decideTogether(request *rls.RateLimitRequest, results []result, now int64) {
	var pending []int
	for i := range results {
		if results[i].hasCounter() {
			pending = append(pending, i)
		}
	}
	wasDenied := false // by an earlier round
	for len(pending) > 0 {
		charges, later := m.composeCharges(request, results, pending, now)
		m.markCached(charges, results, now)
		isDenied := false // by this round
		for _, c := range charges {
			isDenied = isDenied || !c.isAlone && !m.fits(c, results)
		}
		for _, c := range charges {
			later = append(later, m.decideCharge(c, request, results, now, isDenied, wasDenied)...)
		}
		wasDenied = wasDenied || isDenied
		pending = later
	}
}

// cachedSeconds is how long Penstock may repeat a denial, in seconds. The deny cache keeps a denial
// for 1 s. Another second comes from rounding, because the times of both requests are whole
// seconds.
const cachedSeconds = 2

// markCached marks the descriptors whose status may come from a cached denial.
func (m *model) markCached(charges []*charge, results []result, now int64) {
	byCacheKey := make(map[string][]*charge) // charges that share an entry of the deny cache, by the entry's key
	togetherKey := ""                        // of all charges that are not alone
	for _, c := range charges {
		if c.isAlone {
			byCacheKey[c.identity+"\n"] = []*charge{c} // the same key as for a request that has only this charge
		} else {
			togetherKey += c.identity + "\n"
		}
	}
	for _, c := range charges {
		if !c.isAlone {
			byCacheKey[togetherKey] = append(byCacheKey[togetherKey], c)
		}
	}
	for key, charges := range byCacheKey {
		isDenied := false
		for _, c := range charges {
			isDenied = isDenied || !m.fits(c, results)
		}
		if !isDenied {
			continue
		}
		if at, ok := m.denied[key]; ok && now-at <= cachedSeconds {
			for _, c := range charges {
				for _, i := range c.members {
					m.maybeCached[i] = true
				}
			}
		}
		m.denied[key] = now
	}
}

// composeCharges returns the charges of a round, and the descriptors that wait for the next round.
func (m *model) composeCharges(request *rls.RateLimitRequest, results []result, pending []int, now int64) (charges []*charge, later []int) {
	byCounter := make(map[string]*charge)
	for _, i := range pending {
		res := &results[i]
		cost, isOwn := hitsOf(request, i)
		c := &charge{
			members: []int{i}, counter: m.counterName(res.match, request, i, now), identity: res.identity(request, i),
			cost: cost, isForced: isOwn && cost > 0, isAlone: res.isShadow || res.isQuota,
		}
		other := byCounter[c.counter]
		if other == nil {
			byCounter[c.counter] = c
			charges = append(charges, c)
			continue
		}
		first := &results[other.members[0]]
		hasSameKind := other.isForced == c.isForced && (other.cost == 0) == (cost == 0)
		hasSameMode := first.isShadow == res.isShadow && first.isQuota == res.isQuota
		hasSameLimit := first.limit.count == res.limit.count && first.limit.name == res.limit.name
		if !hasSameKind || !hasSameMode || !hasSameLimit {
			later = append(later, i)
			continue
		}
		other.members, other.cost = append(other.members, i), other.cost+cost
	}
	return charges, later
}

func (m *model) fits(c *charge, results []result) bool {
	count := uint64(results[c.members[0]].limit.count)
	switch {
	case c.isForced:
		return true
	case c.cost == 0:
		return m.counters[c.counter] <= count
	}
	return m.counters[c.counter]+c.cost <= count
}

// decideCharge makes a charge if it is allowed, and sets its results. isDenied is true if this
// round denies the request, and wasDenied if an earlier round did. decideCharge returns the
// descriptors that wait for the next round.
func (m *model) decideCharge(c *charge, request *rls.RateLimitRequest, results []result, now int64, isDenied, wasDenied bool) (later []int) {
	fits := m.fits(c, results)
	canIgnoreDenial := c.isAlone && m.rules.shouldChargeShadow // by this round
	switch {
	case c.isForced && isDenied && !c.isAlone:
		return c.members
	case c.isForced:
		m.counters[c.counter] += c.cost
	case fits && !wasDenied && (!isDenied || canIgnoreDenial):
		m.counters[c.counter] += c.cost
	}
	for _, i := range c.members {
		res := &results[i]
		m.readCounter(res, request, i, now)
		if !c.isForced {
			res.isOver = !fits
		}
	}
	return nil
}
