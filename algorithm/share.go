package algorithm

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
)

//go:embed share.lua
var shareLua string

// The modes by which regions lend each other shares of a limit. They have the numbers of the modes
// of [Across].
const (
	// reportLoan asks what the region that is the Holder has to know. In the outcome, Granted is the
	// offer to it + shareBase · its version + shareBase·versionBase · the version of the Holder's own
	// offer that was taken. Remaining is the share that this region needs + shareBase · the one that
	// it has. ResetAfter is for how long the offer holds.
	reportLoan = report

	// takeLoan brings an offer of the Holder. Cost is the offer + shareBase · its version. Receipt is
	// when it ends, in µs since the epoch, by the clock of this region. The Granted of the outcome is
	// above 0 if the Holder has to know that it was taken.
	takeLoan = merge

	// giveLoan brings what the Holder has reported. Cost is the share that it needs + shareBase · the
	// one that it has + shareBase² · the version of this region's offer that it has taken. Patience is
	// for how long an offer holds, in µs. The Granted of the outcome is above 0 if the Holder may have
	// a share of this region.
	giveLoan = rejoin
)

const (
	// wholeShare is the share that is the whole limit. It can be divided by 1 to 8, and by 10.
	wholeShare = 840

	maxLoans  = 9  // the largest number of other regions
	neverLent = 10 // a tenth of its own share is never lent by a region

	// Some numbers have several values: shares are below shareBase, versions below versionBase, and
	// the number of regions is below countBase.
	shareBase   = 1 << 10
	versionBase = 1 << 20
	countBase   = 1 << 4

	loanNumbers      = 5 // of a loan, in the Lua twin's state
	defaultOfferTime = 6_000_000
	minOfferTime     = 1000
	maxOfferTime     = 3600_000_000
	demandPart       = 3 // demand is counted for a third of offerTime: two intervals

	shareSuffix = "_share" + acrossSuffix // of the names of algorithms of ShareAcross
)

// ShareAcross returns an algorithm for limits that 1 to 10 regions divide among them, each with a
// store of its own. Each region has an equal share of the rate and the units, and lends to others
// what it does not need, for a few seconds at a time. The shares never add up to more than the
// limit. So all regions together admit no more than one would.
//
// A region that borrows a share of a token bucket gets no tokens with it. One that lends a share
// gives up the tokens that no longer fit.
//
// ShareAcross refuses what [Across] refuses, and limits that have
// fewer units than regions.
func ShareAcross(a *Algorithm, regions int) *Algorithm {
	if a.inner != nil {
		a = a.inner
	}
	made := a.across(shareSuffix, tallyNumbers+loanNumbers*maxLoans)
	if a.capacityParam == 0 {
		return made
	}
	prepare := made.prepare
	made.prepare = func(l Limit) (Params, error) {
		p, err := prepare(l)
		if err != nil {
			return Params{}, err
		}
		if regions < 1 || regions > maxLoans+1 {
			return Params{}, fmt.Errorf("%d regions cannot share a limit; 1 to %d can", regions, maxLoans+1)
		}
		units := &p[a.capacityParam-1]
		if *units < int64(regions) {
			return Params{}, fmt.Errorf("%d units cannot be shared by %d regions, because each needs one; raise the limit", *units, regions)
		}
		isFine := *units <= Max/2/wholeShare
		if isFine && a.hasSteadyRefill { // shares of a rate need smaller parts of a token
			p[1] *= wholeShare
			isFine = p[0] <= Max/2/wholeShare && p[1] <= Max/2/(*units)
		}
		if !isFine {
			return Params{}, fmt.Errorf("a share of %d per %d µs, burst %d, is too small to count exactly; write rounder numbers, a shorter period, or a window", l.Count, l.Period, l.Burst)
		}
		*units = *units*countBase + int64(regions)
		return p, nil
	}
	made.lendsShares = true
	made.possibleShares = func(l Limit, n int64) []Limit { return a.neverLentShares(l, n, int64(regions)) }
	made.newStates = func() States {
		return &sharedStates{statesAnd: statesAnd[sharing]{States: a.newStates(), algorithm: a}}
	}
	made.lua = a.acrossLua(shareLua, made.name)
	return made
}

// neverLentShares returns what each of n instances enforces while the region's store gives no
// answer: of the tenth that the region never lends, because it may have lent the rest.
func (a *Algorithm) neverLentShares(l Limit, n, regions int64) []Limit {
	n *= neverLent
	share := func(units int64) int64 { return max(cdiv(units, n), regions) }
	rounded := Limit{share(l.Count), l.Period, share(l.Burst)}
	if !a.hasSteadyRefill || l.Period > MaxPeriod/n {
		return []Limit{rounded}
	}
	return []Limit{{l.Count, l.Period * n, share(l.Burst)}, rounded}
}

// A sharing is what a region knows of its share of a counter.
type sharing struct {
	start         int64 // of the present period of demand, in µs since the epoch
	asked, before int64 // units asked for in this period, and in the one before
	offerTime     int64 // for how long an offer holds, in µs
	applied       int64 // the share to which the state of the limit was adjusted last; 0: no state
	loans         []loan
}

// A loan is what this region lends to another one, and borrows from it, in parts of wholeShare.
type loan struct {
	region int64

	offered int64 // the latest offer
	lent    int64 // the most that the other region may still use: the largest offer that it has not returned
	version int64 // of the latest offer
	until   int64 // until when this region does without what it has lent, in µs since the epoch

	borrowed int64
	taken    int64 // the version of the other region's offer that was taken
	ends     int64 // when it ends, in µs since the epoch
}

// sharedStates are the States of an algorithm of ShareAcross.
type sharedStates struct {
	statesAnd[sharing]

	step Request // memory for Step
	own  Params
}

// Step decides a request.
func (s *sharedStates) Step(i uint32, p *Params, r *Request, now int64, commit bool, out *Outcome) {
	a, g := s.algorithm, s.beside[i]
	if now >= g.end() && now-g.start >= 2*g.period() { // nothing of the demand counts any more
		g.start, g.asked, g.before, g.offerTime = 0, 0, 0, 0
	}
	whole, regions := p[a.capacityParam-1]/countBase, p[a.capacityParam-1]%countBase
	base := wholeShare / regions
	g.offerTime = cmp.Or(g.offerTime, defaultOfferTime)
	g.applied = cmp.Or(g.applied, base)
	buckets, _ := s.States.(*bucketStates)
	var before bucket
	var beforeMarks *marks
	if buckets != nil {
		before, beforeMarks = buckets.states[i], buckets.marks[i]
	}
	if raisedAt, hasEnded := g.raisedAt(now); hasEnded {
		// What was borrowed may have ended first. So the bucket refills until now at the lower rate.
		if low := g.shareBefore(base, now); low < g.applied {
			s.apply(&g, i, p, low, now, now)
		}
		g.endLoans(now)
		s.apply(&g, i, p, g.share(base, now), raisedAt, now)
	}
	share := g.share(base, now)
	s.apply(&g, i, p, share, now, now) // if the number of regions has changed

	s.step, s.own = *r, s.paramsOf(p, g.applied)
	s.step.Patience = 0
	isExchange := r.Mode >= reportLoan
	if isExchange {
		s.step = Request{Mode: Peek}
		if r.Mode == reportLoan && buckets == nil {
			s.own[a.capacityParam-1]++ // then nothing remains only if more is used than the share has
		}
	}
	s.States.Step(i, &s.own, &s.step, now, commit, out)
	if out.RetryAfter == Never && r.leastCost() <= whole {
		out.RetryAfter = g.offerTime // a larger share may suffice
	}
	asked := int64(0)
	if r.Mode == Force {
		asked = out.Granted
	} else if (r.Mode == Spend || r.Mode == Draw) && r.leastCost() <= whole {
		asked = min(r.Cost, whole)
	}
	isChanged := out.Keep != Unchanged
	if asked > 0 {
		g.ask(asked, now)
		isChanged = true
	}
	switch r.Mode {
	case reportLoan:
		g.report(r, out, now, g.need(p, a, now), share, countsFor(p, a), buckets != nil || out.Remaining > 0)
	case takeLoan:
		isChanged = g.take(r, out, now)
	case giveLoan:
		room := int64(wholeShare) // how much more can be lent so that the rest covers what is used
		if buckets == nil {
			room = out.Remaining * wholeShare / whole
		}
		least := max(base/neverLent, cdiv(wholeShare, whole)) // is never lent
		isChanged = g.give(r, now, base, least, max(g.need(p, a, now), least), room, countsFor(p, a), max(regions-1, 1))
	}
	if isExchange && isChanged {
		if at := g.indexOf(r.Holder); r.Mode == giveLoan && at >= 0 {
			out.Granted = g.loans[at].lent
		}
		s.apply(&g, i, p, g.share(base, now), now, now)
	}
	isKnown := s.beside[i].applied > 0 // otherwise only a commit makes a state
	isSaved := isChanged && (commit || isKnown && !out.OK())
	if !isSaved && buckets != nil {
		buckets.restore(i, before, beforeMarks)
	}
	if !isChanged {
		return
	}
	if out.Keep == Unchanged {
		out.Keep = out.ResetAfter
	}
	fill := int64(0) // the time in which a share that comes back is refilled
	if buckets != nil {
		fill = cdiv(whole*p[1], p[0]*wholeShare)
	}
	if k := cdiv(g.applied, base); k > 1 { // a smaller share refills more slowly, so the state must live longer
		out.Keep = min(out.Keep, Max/k) * k
	}
	out.Keep += max(g.end()-now+fill, g.start+2*g.period()-now, 0)
	if isSaved {
		s.beside[i] = g
	}
}

// paramsOf returns the parameters of a share.
func (s *sharedStates) paramsOf(p *Params, share int64) Params {
	own := *p
	own[s.algorithm.capacityParam-1] = unitsOf(p[s.algorithm.capacityParam-1]/countBase, share)
	if s.algorithm.hasSteadyRefill {
		own[0] *= share
	}
	return own
}

// unitsOf returns how many units a share has. Less than one is possible only after regions were
// added.
func unitsOf(whole, share int64) int64 { return max(whole*share/wholeShare, 1) }

// apply makes the state right for a share. A larger one brings no tokens: it refills from raisedAt.
// A smaller one loses those that no longer fit.
func (s *sharedStates) apply(g *sharing, i uint32, p *Params, share, raisedAt, now int64) {
	buckets, isBucket := s.States.(*bucketStates)
	if share == g.applied || !isBucket {
		g.applied = share
		return
	}
	whole := p[s.algorithm.capacityParam-1] / countBase
	change := unitsOf(whole, share) - unitsOf(whole, g.applied)
	step, own, at := Request{Mode: Refund, Cost: -change}, s.paramsOf(p, share), now
	if share > g.applied {
		if change == 0 {
			return // less than a unit counts with the next change
		}
		step, own, at = Request{Mode: Force, Cost: change}, s.paramsOf(p, g.applied), raisedAt
	}
	var out Outcome
	next, nextMarks := tokenBucket(buckets.states[i], buckets.marks[i], nil, &own, &step, at, &out)
	if out.Keep != Unchanged {
		buckets.restore(i, next, nextMarks)
	}
	g.applied = share
}

// countsFor returns for how long the units that a borrower has spent may still count after its loan
// has ended, in µs. In a bucket, a share that ends takes its tokens with it.
func countsFor(p *Params, a *Algorithm) int64 {
	switch {
	case a.hasSteadyRefill:
		return 0
	case a.isWindowed && p[3] != alignEpoch:
		return lengthOf(p) * 5 / 4 // a month may have 31 days, and another one 28
	case a.isWindowed:
		return lengthOf(p)
	}
	return p[1] * (p[2] + 1) // all parts of a sub-window, and one more
}

// share returns the share that the region has.
func (g *sharing) share(base, now int64) int64 {
	share := base
	for i := range g.loans {
		l := &g.loans[i]
		if now < l.until {
			share -= l.lent
		}
		if g.isTaken(l, now) {
			share += l.borrowed
		}
	}
	return max(share, 1) // less only if there are more regions than before
}

// isTaken reports whether an offer holds that was taken. If the clock was set back by more than has
// passed since, it does not.
func (g *sharing) isTaken(l *loan, now int64) bool { return now < l.ends && l.ends-now <= g.offerTime }

// raisedAt returns since when the region has a share again that it had lent, or now if it lent
// none. hasEnded reports whether a loan has ended that endLoans has not ended yet.
func (g *sharing) raisedAt(now int64) (at int64, hasEnded bool) {
	for i := range g.loans {
		l := &g.loans[i]
		if l.lent > 0 && l.until <= now {
			at, hasEnded = max(at, l.until), true
		}
		hasEnded = hasEnded || l.borrowed > 0 && !g.isTaken(l, now)
	}
	return cmp.Or(at, now), hasEnded
}

// shareBefore returns the share without what was lent and has come back.
func (g *sharing) shareBefore(base, now int64) int64 {
	share := g.share(base, now)
	for _, l := range g.loans {
		if l.until <= now {
			share -= l.lent
		}
	}
	return max(share, 1)
}

// endLoans ends the loans whose time has passed.
func (g *sharing) endLoans(now int64) {
	g.loans = slices.Clone(g.loans)
	for i := range g.loans {
		l := &g.loans[i]
		if l.until <= now {
			l.offered, l.lent = 0, 0
		}
		if !g.isTaken(l, now) {
			l.borrowed = 0
		}
	}
}

// end returns when the last loan ends.
func (g *sharing) end() (end int64) {
	for _, l := range g.loans {
		end = max(end, l.until, l.ends)
	}
	return end
}

// period returns for how long demand is counted, in µs.
func (g *sharing) period() int64 { return g.offerTime / demandPart }

// ask counts units that are asked for, for need.
func (g *sharing) ask(units, now int64) {
	period := g.period()
	switch passed := now - g.start; {
	case passed < 0 || passed >= 2*period:
		g.start, g.before, g.asked = now, 0, 0
	case passed >= period:
		g.start, g.before, g.asked = g.start+period, g.asked, 0
	}
	g.asked = min(g.asked+units, Max)
}

// need returns the share with which the region could grant what was asked for lately. It adds a
// tenth, and twice the standard deviation of random arrivals. It computes in doubles, as the twin
// must.
func (g *sharing) need(p *Params, a *Algorithm, now int64) int64 {
	asked := max(g.asked, g.before)
	switch passed := now - g.start; {
	case passed >= 2*g.period():
		return 0
	case passed >= g.period():
		asked = g.asked
	}
	length, units := p[1], p[0]*wholeShare // of a bucket: the parts of a token, and the parts that are refilled in a µs
	if a.isWindowed {
		length, units = lengthOf(p), p[0]/countBase
	} else if !a.hasSteadyRefill {
		length, units = p[1]*p[2], p[0]/countBase
	}
	all := float64(float64(units)*float64(g.period())) / float64(length)
	wanted := float64(float64(asked)*1.1) + float64(2*math.Sqrt(float64(asked)))
	return int64(min(math.Ceil(float64(wanted*wholeShare)/all), wholeShare))
}

// report tells the Holder what it is offered. fits says that no more is used than the share has.
func (g *sharing) report(r *Request, out *Outcome, now, need, share, memory int64, fits bool) {
	out.Granted, out.Remaining, out.ResetAfter = 0, 0, 0
	if g.start == 0 && now >= g.end() {
		return // nothing is known here
	}
	out.Remaining = need + share*shareBase
	at := g.indexOf(r.Holder)
	if at < 0 {
		return
	}
	l := &g.loans[at]
	if left := l.until - memory - now; left > 0 {
		out.Granted, out.ResetAfter = l.offered+l.version*shareBase, left
	}
	if fits && g.isTaken(l, now) {
		out.Granted += l.taken * shareBase * versionBase
	}
}

// indexOf returns the index of the loan of a region, or -1 if there is none.
func (g *sharing) indexOf(holder string) int {
	id := HolderID(holder)
	return slices.IndexFunc(g.loans, func(l loan) bool { return l.region == id })
}

// loanOf returns the loan of a region, for a change. Loans that ended long ago are removed: until
// then, an earlier offer that comes late is known by its version. If there is no loan, loanOf adds
// one if add is true and there is room. Otherwise it returns nil.
func (g *sharing) loanOf(holder string, now int64, add bool) *loan {
	g.loans = slices.DeleteFunc(slices.Clone(g.loans), func(l loan) bool { return l.until <= now && l.ends+g.offerTime <= now })
	at := g.indexOf(holder)
	if at < 0 {
		if !add || len(g.loans) == maxLoans {
			return nil
		}
		at, g.loans = len(g.loans), append(g.loans, loan{region: HolderID(holder)})
	}
	return &g.loans[at]
}

// take takes an offer. It reports whether anything has changed.
func (g *sharing) take(r *Request, out *Outcome, now int64) bool {
	offer, version := r.Cost%shareBase, r.Cost/shareBase%versionBase
	l := g.loanOf(r.Holder, now, offer > 0)
	if l == nil {
		return false
	}
	ends := r.Receipt
	switch {
	case version == l.taken && g.isTaken(l, now):
		ends = max(ends, l.ends)
	case l.taken > 0 && version != l.taken && (l.taken-version+versionBase)%versionBase < versionBase/2:
		return false // an earlier offer came late
	}
	out.Granted = offer
	if version != l.taken {
		out.Granted++
	}
	l.borrowed, l.taken, l.ends = offer, version, ends
	return true
}

// give decides what to offer to another region. least is the share that is never lent, and need the
// share that this region needs. room is how much more can be lent so that the rest covers what is
// used.// It reports whether anything has changed.
func (g *sharing) give(r *Request, now, base, least, need, room, memory, others int64) bool {
	want, has, taken := r.Cost%shareBase, r.Cost/shareBase%shareBase, r.Cost/shareBase/shareBase%versionBase
	offerTime := min(max(r.Patience, minOfferTime), maxOfferTime)
	l := g.loanOf(r.Holder, now, want > has)
	if l == nil {
		isChanged := g.start > 0 && g.offerTime != offerTime
		g.offerTime = offerTime
		return isChanged
	}
	if now >= l.until {
		l.offered, l.lent = 0, 0
	}
	isTaken := taken == l.version
	if isTaken { // the other region has reported it, and takes no earlier one any more
		l.lent = l.offered
	}
	spare, free := base-need, base-least
	for i := range g.loans {
		if other := &g.loans[i]; now < other.until || other == l {
			spare -= other.offered
			if other != l {
				free -= other.lent
			}
		}
	}
	offer, missing := l.offered, want-has
	switch {
	case spare < 0:
		offer += spare
	case missing > 0: // until a smaller offer is confirmed, the rest of a larger one can be offered again
		most := l.lent - l.offered
		if isTaken {
			most = max(most, spare)
		}
		offer += min(cdiv(missing, others), most)
	case missing < -base/8:
		offer -= cdiv(-missing, others)
	}
	offer = max(min(offer, free, l.lent+room), 0)
	if offer != l.offered {
		l.offered, l.version = offer, nextVersion(l.version, now)
		l.lent = max(l.lent, offer)
	}
	if l.offered > 0 {
		l.until = max(l.until, now+offerTime+memory)
	}
	g.offerTime = offerTime
	return true
}

// nextVersion returns a version after another one, 0 for none. It follows the clock, so that it is
// also after those of loans that were removed. Versions are from 1, and begin anew after 19 hours.
func nextVersion(version, now int64) int64 {
	next, clock := version%(versionBase-1)+1, now>>16%(versionBase-1)+1
	if version == 0 || (clock-next+versionBase)%versionBase < versionBase/2 {
		return clock
	}
	return next
}
