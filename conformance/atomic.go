package main

import (
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// A charge is the total cost of several descriptors of an atomic request. They have the same
// counter and are charged in the same way.
type charge struct {
	members  []int  // descriptors
	name     string // name of the counter in this window
	limit    string // the same in all windows: a denial may be repeated in the next window
	cost     uint64
	isForced bool // charged even if it does not fit: the descriptor has hits of its own
	isAlone  bool // decided by itself: shadow_mode or quota_mode
}

// decideTogether decides the descriptors of a request atomically.
//
// Hits of a descriptor are charged in any case, because they may report what has been used. Hits of
// the request are charged if those of all descriptors fit. Hits of 0 check whether a limit is
// exceeded. Descriptors with the same counter are charged together if they are charged in the same
// way. Otherwise the later descriptors wait for the next round. Forced charges of a denied request
// wait too.
//
// Penstock repeats a denial from its deny cache for a second, with the numbers of the first answer.
// These numbers may be old: a limit may have had more room then, and so may the other limits of the
// request. markCached marks the descriptors for which this is possible.
func (m *model) decideTogether(request *rls.RateLimitRequest, results []result, now int64) {
	var pending []int
	for i := range results {
		if results[i].hasCounter() {
			pending = append(pending, i)
		}
	}
	isDenied := false // in an earlier round
	for len(pending) > 0 {
		charges, later := m.compose(request, results, pending, now)
		m.markCached(charges, results, now)
		isDenying := false // in this round
		for _, c := range charges {
			isDenying = isDenying || !c.isAlone && !m.fits(c, results)
		}
		for _, c := range charges {
			later = append(later, m.settle(c, request, results, now, isDenying, isDenied)...)
		}
		isDenied = isDenied || isDenying
		pending = later
	}
}

// cachedFor is how long Penstock may repeat a denial, in seconds. The deny cache keeps it for 1 s,
// and the times of both requests are whole seconds.
const cachedFor = 2

// markCached marks the descriptors whose status may come from a cached denial.
func (m *model) markCached(charges []*charge, results []result, now int64) {
	together := make(map[string][]*charge) // charges that have one entry in the deny cache, by its key
	key := ""                              // of the charges that are enforced
	for _, c := range charges {
		if c.isAlone {
			together[c.limit+"\n"] = []*charge{c} // a cached denial also answers a request with only this charge
		} else {
			key += c.limit + "\n"
		}
	}
	for _, c := range charges {
		if !c.isAlone {
			together[key] = append(together[key], c)
		}
	}
	for key, charges := range together {
		isDenying := false
		for _, c := range charges {
			isDenying = isDenying || !m.fits(c, results)
		}
		if !isDenying {
			continue
		}
		if at, ok := m.denied[key]; ok && now-at <= cachedFor {
			for _, c := range charges {
				for _, i := range c.members {
					m.maybeCached[i] = true
				}
			}
		}
		m.denied[key] = now
	}
}

// compose returns the charges of a round, and the descriptors that wait for the next round.
func (m *model) compose(request *rls.RateLimitRequest, results []result, pending []int, now int64) (charges []*charge, later []int) {
	byName := make(map[string]*charge)
	for _, i := range pending {
		res := &results[i]
		cost, isOwn := hits(request, i)
		c := &charge{
			members: []int{i}, name: m.counterName(res.match, request, i, now), limit: res.identity(request, i),
			cost: cost, isForced: isOwn && cost > 0, isAlone: res.isShadow || res.isQuota,
		}
		other := byName[c.name]
		if other == nil {
			byName[c.name] = c
			charges = append(charges, c)
			continue
		}
		first := &results[other.members[0]]
		if other.isForced != c.isForced || (other.cost == 0) != (cost == 0) || first.isShadow != res.isShadow || first.isQuota != res.isQuota ||
			first.limit.count != res.limit.count || first.limit.name != res.limit.name {
			later = append(later, i)
			continue
		}
		other.members, other.cost = append(other.members, i), other.cost+cost
	}
	return charges, later
}

// fits tells whether the limit has room for a charge.
func (m *model) fits(c *charge, results []result) bool {
	count := uint64(results[c.members[0]].limit.count)
	switch {
	case c.isForced:
		return true
	case c.cost == 0:
		return m.counters[c.name] <= count
	}
	return m.counters[c.name]+c.cost <= count
}

// settle makes a charge, and sets its results. It returns the descriptors that wait for the next
// round.
func (m *model) settle(c *charge, request *rls.RateLimitRequest, results []result, now int64, isDenying, isDenied bool) (later []int) {
	fits := m.fits(c, results)
	canIgnoreDenial := c.isAlone && m.rules.shouldChargeShadow // of other descriptors in this round
	switch {
	case c.isForced && isDenying && !c.isAlone:
		return c.members
	case c.isForced:
		m.counters[c.name] += c.cost
	case fits && !isDenied && (!isDenying || canIgnoreDenial):
		m.counters[c.name] += c.cost
	}
	for _, i := range c.members {
		res := &results[i]
		m.read(res, request, i, now)
		if !c.isForced {
			res.isOver = !fits
		}
	}
	return nil
}
