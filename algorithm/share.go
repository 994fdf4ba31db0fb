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
	// reportLoan returns what another region, the Holder, has to know: the Granted of the outcome has
	// the offer to it, the version of the offer, and the version of its own offer that was taken. The
	// Remaining has the share that this region needs, and the one that it has. The ResetAfter is for
	// how long the offer holds.
	reportLoan = report

	// takeLoan brings the offer of another region, the Holder. Cost has the offer and its version.
	// Receipt is when it ends, in µs since the epoch, by the clock of this region. The Granted of the
	// outcome is above 0 if the other region has to know that it was taken.
	takeLoan = merge

	// giveLoan brings what another region, the Holder, needs and has. Cost has both, and the version
	// of the offer that it has taken. Patience is for how long an offer holds, in µs. The Granted of
	// the outcome is above 0 if the other region may have a share.
	giveLoan = rejoin
)

const (
	// wholeShare is the share that is the whole limit. It can be divided by 1 to 8, and by 10.
	wholeShare = 840

	maxLoans       = 9       // the largest number of other regions
	shareBase      = 1024    // of the numbers that have several shares; shares are below it
	versionBase    = 1 << 20 // of versions
	countBase      = 16      // of the parameter that has the capacity, and the number of regions
	loanNumbers    = 5       // of a loan, in the Lua twin's state
	defaultRefresh = 6_000_000
	minRefresh     = 1000
	maxRefresh     = 3600_000_000
	demandPart     = 3 // of the time refresh

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
// The limits that ShareAcross refuses or cannot have are those of [Across], and limits that have
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
		largest := *units * wholeShare
		if a.hasSteadyRefill { // shares of a rate need smaller parts of a token
			p[1] *= wholeShare
			largest = max(p[0]*wholeShare, *units*p[1])
		}
		if *units > Max/2/wholeShare || largest > Max/2 || p[0] > Max/2/wholeShare || p[1] > Max/2/(*units) {
			return Params{}, fmt.Errorf("a share of %d units per %d µs is too small to count exactly; make the period shorter or the units fewer", l.Count, l.Period)
		}
		*units = *units*countBase + int64(regions)
		return p, nil
	}
	made.newStates = func() States { return &sharedStates{States: a.newStates(), algorithm: a} }
	made.lua = a.acrossLua(shareLua, made.name)
	return made
}

// A sharing is what a region knows of its share of a counter.
type sharing struct {
	start         int64 // of the present period of demand, in µs since the epoch
	asked, before int64 // units asked for in this period, and in the one before
	refresh       int64 // the length of a period, and for how long an offer holds, in µs
	applied       int64 // the share for which the state of the limit is right; 0: that without loans
	loans         []loan
}

// A loan is what this region lends to another one, and borrows from it, in parts of wholeShare.
type loan struct {
	region int64

	offered int64 // the latest offer
	lent    int64 // the most that the other region may have taken; offered or more
	version int64 // of the latest offer
	until   int64 // until when this region does without the lent share, in µs since the epoch

	borrowed int64
	taken    int64 // the version of the other region's offer that was taken
	ends     int64 // when it ends, in µs since the epoch
}

// sharedStates are the States of an algorithm of ShareAcross.
type sharedStates struct {
	States
	algorithm *Algorithm
	sharings  []sharing

	step Request // memory for Step
	own  Params
}

// Add adds a fresh state.
func (s *sharedStates) Add() uint32 {
	i := s.States.Add()
	if int(i) == len(s.sharings) {
		s.sharings = append(s.sharings, sharing{})
	}
	return i
}

// Remove clears a state.
func (s *sharedStates) Remove(i uint32) {
	s.States.Remove(i)
	s.sharings[i] = sharing{}
}

// Step decides a request.
func (s *sharedStates) Step(i uint32, p *Params, r *Request, now int64, commit bool, out *Outcome) {
	a, g := s.algorithm, s.sharings[i]
	if now >= g.end() && now-g.start >= 2*g.period() { // nothing of the demand counts any more
		g.start, g.asked, g.before, g.refresh = 0, 0, 0, 0
	}
	whole, regions := p[a.capacityParam-1]/countBase, p[a.capacityParam-1]%countBase
	base := wholeShare / regions
	g.refresh = cmp.Or(g.refresh, defaultRefresh)
	g.applied = cmp.Or(g.applied, base)
	buckets, _ := s.States.(*bucketStates)
	var before bucket
	var beforeMarks *marks
	if buckets != nil {
		before, beforeMarks = buckets.states[i], buckets.marks[i]
	}
	share := g.share(base, now)
	s.apply(&g, i, p, share, g.raisedAt(now), now)

	s.step, s.own = *r, s.paramsOf(p, g.applied)
	s.step.Patience = 0
	isExchange := r.Mode >= reportLoan
	if isExchange {
		s.step = Request{Mode: Peek}
		if r.Mode == reportLoan && buckets == nil {
			s.own[a.capacityParam-1]++ // so that nothing remains if more is used than the share has
		}
	}
	s.States.Step(i, &s.own, &s.step, now, commit, out)
	if out.RetryAfter == Never && r.leastCost() <= whole {
		out.RetryAfter = g.refresh // a larger share may suffice
	}
	asked := int64(0)
	if r.Mode == Force {
		asked = out.Granted
	} else if (r.Mode == Spend || r.Mode == Draw) && r.leastCost() <= whole {
		asked = min(r.Cost, whole)
	}
	isChanged := out.Keep != Unchanged
	if asked > 0 && (out.OK() || s.sharings[i].applied > 0) { // a denial makes no state
		g.ask(asked, now)
		isChanged = true
	}
	switch r.Mode {
	case reportLoan:
		g.report(r, out, now, g.need(p, a, now), share, memory(p, a), buckets != nil || out.Remaining > 0)
	case takeLoan:
		isChanged = g.take(r, out, now)
	case giveLoan:
		room := int64(wholeShare) // how much more can be lent without less units than are used
		if buckets == nil {
			room = out.Remaining * wholeShare / whole
		}
		least := max(base/10, cdiv(wholeShare, whole)) // is never lent
		isChanged = g.give(r, now, base, least, max(g.need(p, a, now), least), room, memory(p, a), max(regions-1, 1))
	}
	if isExchange && isChanged {
		if r.Mode == giveLoan {
			out.Granted = g.loans[g.indexOf(r.Holder)].lent
		}
		s.apply(&g, i, p, g.share(base, now), now, now)
	}
	isSaved := isChanged && (commit || !out.OK())
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
	if k := cdiv(g.applied, base); k > 1 { // the share can become smaller, and refills more slowly then
		out.Keep = min(out.Keep, Max/k) * k
	}
	out.Keep += max(g.end()-now+fill, g.start+2*g.period()-now, 0)
	if isSaved {
		s.sharings[i] = g
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
			return // it counts with the next change
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

// memory returns for how long units may count that were spent by a share which has ended, in µs.
func memory(p *Params, a *Algorithm) int64 {
	switch {
	case a.hasSteadyRefill:
		return 0
	case a.isWindowed:
		return lengthOf(p)
	}
	return p[1] * (p[2] + 1) // a sub-window
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

// isTaken reports whether an offer holds that was taken. If the clock was set back, it does not.
func (g *sharing) isTaken(l *loan, now int64) bool { return now < l.ends && l.ends-now <= g.refresh }

// raisedAt returns since when the region has a share again that it had lent.
func (g *sharing) raisedAt(now int64) (at int64) {
	for _, l := range g.loans {
		if l.lent > 0 && l.until <= now {
			at = max(at, l.until)
		}
	}
	return cmp.Or(at, now)
}

// end returns when the last loan ends.
func (g *sharing) end() (end int64) {
	for _, l := range g.loans {
		end = max(end, l.until, l.ends)
	}
	return end
}

// period returns for how long demand is counted, in µs.
func (g *sharing) period() int64 { return g.refresh / demandPart }

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

// report answers the region that is the Holder. fits says that no more is used than the share has.
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

// loanOf returns the loan of a region, for a change. Loans that have ended are removed. If there is
// no loan, loanOf adds one if add is true and there is room. Otherwise it returns nil.
func (g *sharing) loanOf(holder string, now int64, add bool) *loan {
	g.loans = slices.DeleteFunc(slices.Clone(g.loans), func(l loan) bool { return l.until <= now && l.ends <= now })
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
	if g.isTaken(l, now) {
		if version == l.taken {
			ends = max(ends, l.ends)
		} else if (l.taken-version+versionBase)%versionBase < versionBase/2 {
			return false // an earlier offer came late
		}
	}
	out.Granted = offer
	if version != l.taken {
		out.Granted++
	}
	l.borrowed, l.taken, l.ends = offer, version, ends
	return true
}

// give decides what to offer to another region. least is the share that is never lent, and need the
// share that this region needs. room is how much more can be lent without less units than are used.
// It reports whether anything has changed.
func (g *sharing) give(r *Request, now, base, least, need, room, memory, others int64) bool {
	want, has, taken := r.Cost%shareBase, r.Cost/shareBase%shareBase, r.Cost/shareBase/shareBase%versionBase
	l := g.loanOf(r.Holder, now, want > has)
	if l == nil {
		return false
	}
	if now >= l.until {
		l.offered, l.lent = 0, 0
	}
	isTaken := taken == l.version
	if isTaken { // the other region has no more than the latest offer
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
	case missing > 0: // what is lent anyway can be offered again
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
	g.refresh = min(max(r.Patience, minRefresh), maxRefresh)
	if l.offered > 0 {
		l.until = max(l.until, now+g.refresh+memory)
	}
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
