package algorithm

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed across.lua
var acrossLua string

// The modes by which regions exchange what they have granted. Only algorithms of [Across] know
// them, and only package internal/regions uses them.
const (
	// report returns the tally. Granted is the total of the present life, Wait the life, and Remaining
	// for how long it has lasted, in µs. ResetAfter is as in a Peek.
	report Mode = Attempt + 1 + iota

	// merge brings the total of another region: Holder is its name, Receipt its life, and Cost the
	// total. For windows, Patience is the time until the other region's window ends. What is new is
	// charged as a Force does, and is the Granted of the outcome.
	merge

	// rejoin is a merge after silence. Patience is 32 times a number of units, plus a factor. The
	// units are those that this region has not refilled meanwhile, because they were the other
	// region's share. They are not charged again. The factor says how many times the capacity of
	// this region's share the other region can have in use. So much is charged at least, or all that
	// is new. A total of a region that is not known here is charged up to this capacity only.
	rejoin
)

const (
	// tallyLife is for how long, in µs, a tally outlives the state of its limit. A total begins anew
	// after half of it. So the rows of other regions outlive the total that they count.
	tallyLife = 60_000_000

	// maxRows is the largest number of other regions. With it, a TokenBucket with all its marks has
	// 115 numbers.
	maxRows = 14

	rejoinFactors = 32 // see rejoin

	acrossSuffix = "_across" // of the names of algorithms across regions

	tallyNumbers = 6 // of a tally without its rows, in the Lua twin's state
)

// exchanged says that Across supports the algorithm. capacity is the index, from 1, of the
// parameter that has the units of a limit. isWindowed says that the first number of the state is
// the end of a window that is aligned to a clock.
func exchanged(capacity int, isWindowed bool) Option {
	return func(a *Algorithm) { a.capacityParam, a.isWindowed = capacity, isWindowed }
}

// Across returns an algorithm for limits that hold across several regions, each with a store of its
// own. It decides as a does, and keeps a tally: how many units this region has granted in all, and
// how many it has merged of each other region. The tallies are exchanged outside of decisions.
//
// If others have used up a token bucket, a region still grants out of its own share: the rate and
// the Burst, divided by the number of regions that use the bucket, as far as they are known here.
// So each region gets its part under overload. A region's own share has less with each unit that
// the region grants, and such a grant makes a debt. Windows have no own shares.
//
// All regions use the same algorithm. A limit across regions can neither book, nor be leased or
// split, nor count denied requests. TokenBucket, FixedWindow, CalendarWindow and SubWindow can be
// across regions. With another algorithm, the limit is invalid.
func Across(a *Algorithm) *Algorithm {
	if a.isAcross {
		return a
	}
	made := a.across(acrossSuffix, tallyNumbers+3*maxRows)
	if a.capacityParam > 0 {
		made.newStates = func() States { return &acrossStates{statesAnd[tally]{States: a.newStates(), algorithm: a}} }
		made.lua = a.acrossLua(acrossLua, made.name)
	}
	return made
}

// across returns a copy of a for several regions, whose state has some numbers more.
func (a *Algorithm) across(suffix string, numbers int) *Algorithm {
	made := *a
	made.isAcross, made.inner = true, a
	made.name = a.name + suffix
	made.maxNumbers = a.maxNumbers + numbers
	if a.hasMarks() {
		made.maxNumbers += 2 * maxMarks
	}
	made.receiptNumber += tallyNumbers
	made.isAdditive, made.canBook, made.countsDenied, made.decay, made.possibleParts = false, false, false, DecayUnknown, nil
	made.retryAfterGrant = nil // it also depends on the other regions
	if a.capacityParam == 0 {
		made.prepare = func(Limit) (Params, error) {
			return Params{}, fmt.Errorf("%s cannot be across regions; use token-bucket, sub-window, or windows that are aligned to the clock", a.title)
		}
	}
	return &made
}

// hasMarks reports whether the state can have marks, so that refunds are exact.
func (a *Algorithm) hasMarks() bool { return a.receiptNumber > 0 && a.canBook }

// acrossLua returns the Lua twin of a and of text, which calls it. name is that of the twin.
func (a *Algorithm) acrossLua(text, name string) string {
	return strings.Replace(a.lua, "local function "+a.name+"(", "local function "+a.name+"_here(", 1) +
		strings.NewReplacer("name_across", name, "name_here", a.name+"_here", "CAPACITYAT", strconv.Itoa(a.capacityParam), "CAPACITY", "p"+strconv.Itoa(a.capacityParam),
			"WINDOWED", strconv.FormatBool(a.isWindowed), "HASMARKS", strconv.FormatBool(a.hasMarks()), "REFILLS", strconv.FormatBool(a.hasSteadyRefill),
			"REPORT", strconv.Itoa(int(report)), "MERGE", strconv.Itoa(int(merge)), "REJOIN", strconv.Itoa(int(rejoin)),
			"MAXROWS", strconv.Itoa(maxRows), "MAXLOANS", strconv.Itoa(maxLoans), "WHOLE", strconv.Itoa(wholeShare),
			"DEMANDPART", strconv.Itoa(demandPart), "DEFAULTOFFERTIME", strconv.Itoa(defaultOfferTime), "MINOFFERTIME", strconv.Itoa(minOfferTime), "MAXOFFERTIME", strconv.Itoa(maxOfferTime), "TALLYLIFE", strconv.Itoa(tallyLife), "FACTORS", strconv.Itoa(rejoinFactors)).Replace(text)
}

// A tally is what a region knows of a counter across regions.
type tally struct {
	life    int64 // when the total began, in µs since the epoch, or later: a new life is above the last
	granted int64 // the total: units granted in this life, less those that a credit paid for
	credit  int64 // units refunded, for the next grants
	until   int64 // when the total ends, in µs since the epoch
	since   int64 // since when the own share is refilled, in µs since the epoch; see ownShare
	rows    []row // never changed in place
}

// A row is what is merged of another region.
type row struct{ granted, life, region int64 }

// statesAnd are the States of an algorithm, with more beside each state.
type statesAnd[T any] struct {
	States
	algorithm *Algorithm
	beside    []T // by the index of the state
}

// Add adds a fresh state.
func (s *statesAnd[T]) Add() uint32 {
	i := s.States.Add()
	if int(i) == len(s.beside) {
		s.beside = append(s.beside, *new(T))
	}
	return i
}

// Remove clears a state.
func (s *statesAnd[T]) Remove(i uint32) {
	s.States.Remove(i)
	s.beside[i] = *new(T)
}

// acrossStates are the States of an algorithm of Across.
type acrossStates struct{ statesAnd[tally] }

// Step decides a request.
func (s *acrossStates) Step(i uint32, p *Params, r *Request, now int64, commit bool, out *Outcome) {
	t := s.beside[i]
	if t.life == 0 || s.isOver(i, now) || now > t.until { // nothing of the total counts any more
		t.life, t.granted, t.credit, t.until = max(now, t.life+1), 0, 0, now
	}
	if !s.hasCredit(now, t.until) {
		t.credit = 0
	}
	step, isMerge := *r, r.Mode == merge || r.Mode == rejoin
	at, total := -1, row{r.Cost, r.Receipt, 0}
	step.Patience = 0
	if r.Mode == report {
		step = Request{Mode: Peek}
	} else if isMerge {
		total.region = HolderID(r.Holder)
		at = slices.IndexFunc(t.rows, func(known row) bool { return known.region == total.region })
		units := r.Cost // what is new
		if at >= 0 && t.rows[at].life == total.life {
			units -= t.rows[at].granted
		}
		step = Request{Mode: Force, Cost: units}
		if units <= 0 || at >= 0 && t.rows[at].life > total.life {
			step, isMerge = Request{Mode: Peek}, false
		} else if r.Mode == rejoin {
			step.Cost = min(units, p[s.algorithm.capacityParam-1]*(r.Patience%rejoinFactors))
			if at >= 0 {
				step.Cost = max(units-r.Patience/rejoinFactors, step.Cost)
			}
		}
	}

	hasShare := s.algorithm.hasSteadyRefill && len(t.rows) > 0 && r.Mode <= Reset
	var left, since int64 // of the own share
	if s.algorithm.hasSteadyRefill {
		left, since = t.ownShare(p, now)
	}
	least := r.leastCost()
	if units := min(r.Cost, left); hasShare && r.Mode <= Peek && units >= least {
		bucket := s.States.(*bucketStates)
		bucket.peek(i, p, step, now, out)
		if units > out.Granted && (r.Mode == Draw || !out.OK()) { // the share has more than the level
			forced := step
			forced.Mode, forced.Cost = Force, units
			bucket.peek(i, p, forced, now, out)
			isPossible := out.Granted == units
			if isPossible && r.Mode == Peek {
				step.Cost = 0
			} else if isPossible {
				step = forced
			}
		}
	}

	s.States.Step(i, p, &step, now, commit && !isMerge, out)
	if hasShare && !out.OK() && least > left && least <= p[2]/t.users() {
		out.RetryAfter = min(out.RetryAfter, since+cdiv(least*p[1]*t.users(), p[0])-now)
	}
	units := out.Granted
	if isMerge && s.isOtherWindow(p, r.Patience, out.ResetAfter) || isMerge && at < 0 && len(t.rows) == maxRows {
		step, isMerge = Request{Mode: Peek}, false
		s.States.Step(i, p, &step, now, commit, out)
	}
	switch {
	case r.Mode == report:
		out.Granted, out.Remaining, out.Wait = t.granted, max(now-t.life, 0), t.life
	case isMerge:
		if commit {
			s.States.Step(i, p, &step, now, commit, out)
		}
		if at >= 0 {
			t.rows = slices.Clone(t.rows)
			t.rows[at] = total
		} else {
			t.rows = append(slices.Clip(t.rows), total)
		}
		out.Keep = max(out.Keep, 0)
	case units > 0 && r.Mode != merge && r.Mode != rejoin:
		paid := min(t.credit, units)
		if r.Mode == Refund {
			paid = -units
		} else {
			t.granted = min(t.granted+units-paid, Max)
		}
		t.credit = min(t.credit-paid, Max)
		t.until = min(now+out.ResetAfter+tallyLife/2, Max)
		if s.algorithm.hasSteadyRefill {
			t.charge(p, r.Mode, units, left, since, now)
		}
	case r.Mode == Reset:
		t.since = 0
	}
	if s.algorithm.hasSteadyRefill && len(t.rows) > 0 && r.Mode != report {
		left, _ = t.ownShare(p, now)
		out.Remaining = max(out.Remaining, left)
	}
	if !s.hasCredit(now, t.until) {
		t.credit = 0
	}
	if out.Keep == Unchanged {
		return
	}
	out.Keep += tallyLife
	if commit || !out.OK() {
		s.beside[i] = t
	}
}

// users returns how many regions are known to use the limit.
func (t *tally) users() int64 { return int64(len(t.rows)) + 1 }

// ownShare returns how many units of a token bucket this region may grant although the level does
// not suffice, and since when they are refilled. Each region has an equal part of the rate and of
// the capacity, so each share is full after the same time. since is after now if the region has
// forced more units than its share has.
func (t *tally) ownShare(p *Params, now int64) (left, since int64) {
	rate, parts, burst := p[0], p[1], p[2]
	since = max(t.since, now-cdiv(burst*parts, rate))
	if since < now {
		left = min((now-since)*rate/(parts*t.users()), burst/t.users())
	}
	return left, since
}

// charge charges units to the own share, or returns them. A Spend or Draw of more than is left was
// granted by the level, and empties the share. left and since are those of ownShare.
func (t *tally) charge(p *Params, mode Mode, units, left, since, now int64) {
	rate, parts := p[0], p[1]
	switch {
	case mode == Refund:
		t.since = max(since-units*parts/rate*t.users(), 0)
	case units <= left:
		t.since = since + cdiv(units*parts*t.users(), rate)
	case mode == Force:
		t.since = min(since+cdiv(units*parts, rate)*t.users(), Max)
	default:
		t.since = max(since, now)
	}
}

// isOver reports whether the window has ended in which the total was granted.
func (s *acrossStates) isOver(i uint32, now int64) bool {
	return s.algorithm.isWindowed && s.States.(*stateArray[window]).states[i].End <= now
}

// hasCredit reports whether units that were refunded are still used elsewhere, where they were
// merged: until the window ends, or while the bucket here is in use, because both refill alike.
func (s *acrossStates) hasCredit(now, until int64) bool {
	return s.algorithm.isWindowed || s.algorithm.hasSteadyRefill && now < until-tallyLife/2
}

// isOtherWindow reports whether the window of another region, which ends after a time, is another
// one than that of this region.
func (s *acrossStates) isOtherWindow(p *Params, theirs, ours int64) bool {
	return s.algorithm.isWindowed && 2*max(theirs-ours, ours-theirs) >= lengthOf(p)
}

// lengthOf returns the length of an aligned window.
func lengthOf(p *Params) int64 {
	if p[3] != alignEpoch {
		return p[3] - p[2]
	}
	return p[1]
}
