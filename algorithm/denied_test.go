package algorithm

import "testing"

// The laws of limits that count denied requests. A store counts a denied request by an Attempt.

func mayCountDenied(a subject) bool { return a.countsDenied }

var countingOnlyDelays = law{"a counted denial only delays", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(Request, Outcome) error {
		without := r.clone()
		denied := r.anyRequest(Spend)        // by this limit or, if it fits, by another
		without.decide(Request{Mode: Spend}) // may repair the state
		with := without.clone()
		out := with.decide(Request{Mode: Attempt, Cost: denied.Cost})
		if !out.OK() || out.Receipt != 0 || denied.Cost > r.capacity(r.limit) && out.Granted > 0 {
			return r.lawError("an attempt of %d has the outcome %+v; want it granted, without a receipt, and with Granted 0 if the cost never fits", denied.Cost, out)
		}
		if with.hasCoarseTicks() { // answers are rounded to ticks, whose length depends on what is used
			return nil
		}
		for _, at := range []int64{r.now, r.now + roll(0, min(2*r.refillTime(r.limit), 1<<50))} {
			probe := r.anyRequest(Peek)
			earlier, later := without.decideAt(probe, at), with.decideAt(probe, at)
			isEarlier := later.RetryAfter < earlier.RetryAfter && later.RetryAfter != Never
			if isEarlier || later.Wait < earlier.Wait && later.OK() || later.Remaining > earlier.Remaining || later.ResetAfter < earlier.ResetAfter {
				return with.lawError("at %d, a peek of %d has the outcome %+v, and %+v if the denial is not counted; want nothing earlier, and no more units", at, probe.Cost, later, earlier)
			}
		}
		return nil
	})
}}

// hasCoarseTicks returns true for sliding windows that count time in ticks of more than 1 µs.
func (r *run) hasCoarseTicks() bool {
	s, isSliding := r.state.(windowPair)
	return isSliding && cdiv(max(s.Width, r.limit.Period), max(Max/2/max(r.limit.Count, s.Current, s.Previous), 1)) > 1
}

func TestCountingOnlyDelays(t *testing.T) {
	prove(t, countingOnlyDelays, subjectsWhere(mayCountDenied))
}

// hammer makes requests that take all units, and counts those that are denied. It calls the
// function each after every request.
func (r *run) hammer(each func(request Request, out Outcome) error) error {
	for range r.roll(1, 40) {
		r.pass()
		request := r.anyRequest(Spend, Spend, Draw)
		request.Patience = 0
		out := r.decide(request)
		if !out.OK() {
			r.decide(Request{Mode: Attempt, Cost: request.Cost})
		}
		if err := each(request, out); err != nil {
			return err
		}
	}
	return nil
}

var countingAdmitsNoMore = law{"counting denials admits no more", func(a subject, roll dice) error {
	r := startRun(a, roll)
	var events []event
	err := r.hammer(func(_ Request, out Outcome) error {
		events = append(events, event{at: r.now, admitted: out.Granted})
		return nil
	})
	if err == nil {
		err = checkBound(events, func(apart int64) int64 { return r.bound(r.limit, apart) })
	}
	if err != nil {
		return r.lawError("%v", err)
	}
	return nil
}}

func TestCountingAdmitsNoMore(t *testing.T) {
	prove(t, countingAdmitsNoMore, subjectsWhere(func(a subject) bool { return a.countsDenied && isBounded(a) }))
}

// However many requests are denied, all units are free again after at most twice the usual time.
var lockoutEnds = law{"a lockout ends after twice the usual time", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.hammer(func(Request, Outcome) error {
		most := 2 * r.refillTime(r.limit)
		last := r.peek(r.now)
		if last.ResetAfter > most {
			return r.lawError("ResetAfter is %d; want at most %d", last.ResetAfter, most)
		}
		whole := Request{Mode: Spend, Cost: r.capacity(r.limit)}
		if out := r.decideAt(whole, r.now+last.ResetAfter); !out.OK() {
			return r.lawError("at ResetAfter, %d µs later, a request of all units has the outcome %+v; want it granted", last.ResetAfter, out)
		}
		if out := r.decideAt(whole, r.now); out.RetryAfter > most || out.RetryAfter == Never {
			return r.lawError("the RetryAfter of all units is %d; want at most %d", out.RetryAfter, most)
		}
		return nil
	})
}}

func TestLockoutEnds(t *testing.T) { prove(t, lockoutEnds, subjectsWhere(mayCountDenied)) }

// The algorithms that count denied requests are those whose units have no holder and no turn.
func TestTheseAlgorithmsCountDenied(t *testing.T) {
	for _, a := range append(All(), SubWindow(10)) {
		if want := a != LeakyBucket && a != Concurrency; a.CountsDenied() != want {
			t.Errorf("CountsDenied of %s is %v; want %v", a.Title(), a.CountsDenied(), want)
		}
	}
}
