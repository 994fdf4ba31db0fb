package algorithm

import (
	"fmt"
	"math"
	"sort"
	"testing"
)

// The broken limiters have the mistakes of published designs and of deployed limiters, and some
// mistakes that we made. The law in its row must detect each of them, and must accept the sound
// limiter of the same kind. So the laws can fail, and they fail because of the mistake.

// A brokenLimiter is a limiter with a mistake, a sound one of the same kind, and the law that
// distinguishes them.
type brokenLimiter struct {
	name   string
	law    law
	sound  subject
	broken any     // a Step with some state
	limits []Limit // limits that show the mistake; nil: any
}

func TestBrokenLimitersAreDetected(t *testing.T) {
	const seed, cases = 7, 20_000
	detected := 0
	for _, b := range brokenLimiters() {
		t.Run(b.name, func(t *testing.T) {
			broken := b.sound
			broken.limits, broken.step = b.limits, hideAnyState(b.broken)
			sound := b.sound
			sound.limits = b.limits
			var err error
			tried := uint64(0)
			for ; tried < cases && err == nil; tried++ {
				err = b.law.check(broken, seeded(seed, tried))
			}
			if err == nil {
				t.Fatalf("%q does not detect the broken limiter in %d cases of seed %d", b.law.name, cases, seed)
			}
			for i := range max(2*tried, 200) {
				if err := b.law.check(sound, seeded(seed, i)); err != nil {
					t.Fatalf("%q also rejects the sound limiter in case %d of seed %d: %v", b.law.name, i, seed, err)
				}
			}
			t.Logf("detected by %q in case %d", b.law.name, tried-1)
			detected++
		})
	}
	t.Logf("counted: %d broken limiters detected (seed %d)", detected, seed)
}

// hideAnyState is hideState for a step whose state has one of the types below.
func hideAnyState(step any) func(any, Params, Request, int64) (Outcome, any) {
	switch step := step.(type) {
	case func(bucket, Params, Request, int64) (Outcome, bucket):
		return hideState(step)
	case func(queue, Params, Request, int64) (Outcome, queue):
		return hideState(step)
	case func(window, Params, Request, int64) (Outcome, window):
		return hideState(step)
	case func(windowPair, Params, Request, int64) (Outcome, windowPair):
		return hideState(step)
	case func(parts, Params, Request, int64) (Outcome, parts):
		return hideState(step)
	case func(record, Params, Request, int64) (Outcome, record):
		return hideState(step)
	case func(slots, Params, Request, int64) (Outcome, slots):
		return hideState(step)
	case func(stamps, Params, Request, int64) (Outcome, stamps):
		return hideState(step)
	case func(arrival, Params, Request, int64) (Outcome, arrival):
		return hideState(step)
	}
	panic(fmt.Sprintf("%T is not a step with a known state", step))
}

func brokenLimiters() []brokenLimiter {
	bucket, leaky, fixed, anchored := bucketSubject(), queueSubject(), windowSubject(), anchoredSubject()
	sliding, sub, log, concurrent := slidingSubject(), subSubject(10), logSubject(), slotSubject()
	perDay := []Limit{{Count: 10_000, Period: day}, {Count: 1, Period: 30 * day}, {Count: 100, Period: 3 * hour}}
	return []brokenLimiter{
		{name: "a bucket writes its time backwards: two clocks add tokens", law: twoClocksAddNothing, sound: bucket, broken: timeWrittenBackwards},
		{name: "a bucket does not clamp elapsed time: tokens fall below zero", law: farStepBackIsRepaired, sound: bucket, broken: elapsedNotClamped},
		{name: "a bucket accepts any future time: locked out after a step back", law: farStepBackIsRepaired, sound: bucket, broken: futureAccepted},
		{name: "a denial does not store the repaired state: nothing is admitted", law: farStepBackIsRepaired, sound: bucket, broken: neverRepaired},
		{name: "state is kept for 3600 s, whatever the period", law: stateEqualsFreshAfterKeep, sound: bucket, broken: keptForAnHour, limits: perDay},
		{name: "state is kept for 3600 s: a full bucket after an idle hour", law: admittedCostStaysWithinTheBound, sound: bucket, broken: keptForAnHour, limits: perDay},
		{name: "state is kept for whole seconds, rounded down", law: admittedCostStaysWithinTheBound, sound: bucket, broken: keptForWholeSeconds,
			limits: []Limit{{Count: 10, Period: 1_000_000, Burst: 19}}},
		{name: "state is kept forever", law: stateEqualsFreshAfterKeep, sound: fixed, broken: keptForever},
		{name: "a denied spend is charged", law: denialChangesNothing, sound: bucket, broken: denialCharged},
		{name: "a denied request is counted", law: denialChangesNothing, sound: fixed, broken: denialCounted},
		{name: "a cost above the burst has a RetryAfter", law: whatCannotFitIsDeniedForever, sound: bucket, broken: oversizeHasRetryAfter},
		{name: "a cost of exactly the burst is refused", law: remainingIsWhatSpendFinds, sound: bucket, broken: wholeBurstRefused},
		{name: "a refund goes above the capacity", law: refundNeverExceedsUse, sound: fixed, broken: refundAboveCapacity},
		{name: "a refund that fills the bucket is not stored", law: outcomeIsKept, sound: bucket, broken: fillingRefundLost},
		{name: "a draw charges the fraction that it does not report", law: spendThenRefundIsNothing, sound: bucket, broken: drawChargesFraction},
		{name: "a log's member is its time: grants of one µs collapse", law: admittedCostStaysWithinTheBound, sound: log, broken: membersCollapse},
		{name: "a log forgets earlier grants when its period grows", law: limitChangeKeepsWhatWasUsed, sound: log, broken: baseLost},
		{name: "a sliding window rounds the weight down", law: slidingWindowAdmitsOnePlusF, sound: sliding, broken: weightRoundedDown},
		{name: "a sliding window checks for one unit and charges all", law: admittedCostStaysWithinTheBound, sound: sliding, broken: costIgnored},
		{name: "a sliding window is realigned when it is repaired", law: farStepBackIsRepaired, sound: sliding, broken: realigned},
		{name: "sub-windows count n parts only", law: admittedCostStaysWithinTheBound, sound: sub, broken: oneShort},
		{name: "a quotient is rounded up in floats", law: retryAfterIsTight, sound: bucket, broken: floatQuotients, limits: []Limit{
			{Count: 999_983, Period: 999_999_937, Burst: 2_251_000}, {Count: 7919, Period: 86_399_999_999, Burst: 26_000}}},
		{name: "an emission interval is rounded to whole µs", law: admittedCostStaysWithinTheBound, sound: bucket, broken: intervalRounded, limits: []Limit{
			{Count: 3, Period: 10}, {Count: 7, Period: 1000, Burst: 1}, {Count: 7919, Period: 1_000_000}}},
		{name: "a bucket charges a fee for each spend", law: spendsAddUp, sound: bucket, broken: feePerSpend},
		{name: "a reset is rounded up to milliseconds", law: spendsAddUp, sound: bucket, broken: resetRounded, limits: []Limit{{Count: 7, Period: 1000, Burst: 100}}},
		{name: "the reset is always a full refill away", law: resetAfterIsTight, sound: bucket, broken: resetAlwaysFull},
		{name: "a window's length is rounded down to whole seconds", law: resetAfterIsTight, sound: anchored, broken: wholeSeconds,
			limits: []Limit{{Count: 3, Period: 1_500_000}, {Count: 1, Period: 500_000}, {Count: 5, Period: 59_900_000}}},
		{name: "a smaller burst forgives what a larger one has used", law: limitsInTurn, sound: bucket, broken: levelClamped},
		{name: "a shorter window forgets what a longer one has used", law: limitsInTurn, sound: fixed, broken: shorterForgets},
		{name: "a shorter sliding window carries use over, share by share", law: limitsInTurn, sound: sliding, broken: sharesCarried},
		{name: "sub-windows of another width keep all used units as new ones", law: limitsInTurn, sound: sub, broken: gatheredAtOnce},
		{name: "a log with a shorter period drops what a longer one counts", law: limitsInTurn, sound: log, broken: droppedEarly},
		{name: "a hold lasts for at most the period of the present limit", law: limitsInTurn, sound: concurrent, broken: holdsCut},
		{name: "a place in a queue counts at the present rate", law: limitsInTurn, sound: leaky, broken: turnsMoved},
		{name: "a fixed window is repaired by any step back across its edge", law: twoClocksAddNothing, sound: fixed, broken: repairedTooSoon},
		{name: "a queue lets its tail refund the places of others", law: departuresAreSpaced, sound: leaky, broken: tailGivesAll},
		{name: "a queue lets any holder refund a place", law: departuresAreSpaced, sound: leaky, broken: anyHolderRefunds},
		{name: "all holds expire together, with the last", law: slotsAreNeverExceeded, sound: concurrent, broken: oneExpiryForAll},
		{name: "a renewal takes another slot", law: renewedHoldsLive, sound: concurrent, broken: renewalTakesAnother},
		{name: "a counted denial begins the window again", law: lockoutEnds, sound: fixed, broken: windowExtended},
		{name: "denials are counted without a bound", law: lockoutEnds, sound: bucket, broken: countedForever},
		{name: "a denied cost that never fits is counted", law: countingOnlyDelays, sound: bucket, broken: oversizeCounted},
		{name: "a counted denial moves used units to windows that end sooner", law: countingOnlyDelays, sound: sliding, broken: attemptMoves},
		{name: "any holder releases a slot", law: refundsAreTheHoldersOwn, sound: concurrent, broken: anyHolderReleases},
	}
}

// In the steps below, p has the parameters of the sound step, in this order:
//
//   - bucket: rate, parts of a token, capacity
//   - queue: rate, parts of a place, places
//   - fixed window: count, period
//   - sliding window: count, period, length of a tick, ticks in a period
//   - sub-windows: count, width, number of parts
//   - log: count, period
//   - slots: number of slots, period

// A published bucket that treats an elapsed time below 0 as 0, and then stores now as the time of
// its last refill.
func timeWrittenBackwards(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	s.At = min(s.At, now)
	return byValue(unmarked)(s, p, r, now)
}

// A published bucket that adds elapsed·rate tokens, even if elapsed is negative because the clock
// stepped back.
func elapsedNotClamped(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	if back := s.At - now; back > 0 && s.Parts > 0 {
		s.Level += min(muldiv(back, p[0], 1), Max/4)
		s.At = now
	}
	return byValue(unmarked)(s, p, r, now)
}

// GCRA that accepts any stored time, however far ahead of the clock it is.
func futureAccepted(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	ahead := max(s.At-now-MaxStall, 0)
	out, next := byValue(unmarked)(s, p, r, now+ahead)
	if out.RetryAfter > 0 {
		out.RetryAfter += ahead
	}
	if out.ResetAfter > 0 {
		out.ResetAfter += ahead
	}
	if out.Keep > 0 {
		out.Keep += ahead
	}
	return out, next
}

// A denial that writes nothing, although it had to repair the time.
func neverRepaired(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if !out.OK() {
		out.Keep, next = Unchanged, s
	}
	return out, next
}

func keptForAnHour(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	out.Keep = min(out.Keep, hour)
	return out, next
}

func keptForWholeSeconds(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if out.Keep > 0 {
		out.Keep = out.Keep / 1_000_000 * 1_000_000
	}
	return out, next
}

// A counter by Redis' INCR whose EXPIRE never runs.
func keptForever(s window, p Params, r Request, now int64) (Outcome, window) {
	out, next := fixedWindow(s, p, r, now)
	if out.Keep > 0 {
		out.Keep = Max
	}
	return out, next
}

func denialCharged(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if r.Mode == Spend && out.RetryAfter > 0 {
		r.Mode = Force
		_, next = byValue(unmarked)(s, p, r, now)
		out.Keep = out.ResetAfter
	}
	return out, next
}

// A counter by Redis' INCR that is compared with the limit only afterwards.
func denialCounted(s window, p Params, r Request, now int64) (Outcome, window) {
	out, next := fixedWindow(s, p, r, now)
	if r.Mode == Spend && out.RetryAfter > 0 {
		_, next = fixedWindow(s, p, Request{Mode: Force, Cost: 1}, now)
		out.Keep = next.End - now
	}
	return out, next
}

// GCRA that computes a RetryAfter even for a cost that never fits.
func oversizeHasRetryAfter(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if out.RetryAfter == Never {
		out.RetryAfter = max(out.ResetAfter, 1)
	}
	return out, next
}

// GCRA that compares with >= instead of >.
func wholeBurstRefused(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if (r.Mode == Spend || r.Mode == Peek) && r.Cost == p[2] {
		left, _ := byValue(unmarked)(s, p, Request{Mode: Peek}, now)
		return Outcome{RetryAfter: Never, Remaining: left.Remaining, ResetAfter: left.ResetAfter, Keep: Unchanged}, s
	}
	return out, next
}

// A refund as a negative cost, without a bound.
func refundAboveCapacity(s window, p Params, r Request, now int64) (Outcome, window) {
	if r.Mode != Refund {
		return fixedWindow(s, p, r, now)
	}
	ends, _, _, _ := windowEnd(p[1], p[2], p[3], now)
	if s.End <= now {
		s = window{End: ends, Kind: p[1]}
	}
	s.Used -= r.Cost
	return Outcome{Granted: r.Cost, Remaining: p[0] - s.Used, ResetAfter: s.End - now, Keep: s.End - now}, s
}

// GCRA that stores the time at which the bucket is full only if this time is in the future.
func fillingRefundLost(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if r.Mode == Refund && out.Keep == 0 {
		out.Keep, next = Unchanged, s
	}
	return out, next
}

// A Draw that takes everything, and reports only the whole units.
func drawChargesFraction(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if r.Mode == Draw && out.Granted > 0 && out.Granted < r.Cost {
		next.Level = p[1] * p[2]
		out.Remaining, out.ResetAfter = 0, cdiv(next.Level, p[0])
		out.Keep = out.ResetAfter
	}
	return out, next
}

// stamps are the members of a sorted set whose names are their times.
type stamps map[int64]int64

func membersCollapse(s stamps, p Params, r Request, now int64) (Outcome, stamps) {
	count, period := p[0], p[1]
	next, used, newest := stamps{}, int64(0), now
	for at, cost := range s {
		if at > now-period {
			next[at] = cost
			used += cost
			newest = max(newest, at)
		}
	}
	granted, after, fits := take(r, used, count)
	out := Outcome{Granted: granted, Remaining: max(count-after, 0), ResetAfter: newest + period - now, Keep: Unchanged}
	switch {
	case never(r, count):
		out.RetryAfter = Never
	case !fits:
		out.RetryAfter = out.ResetAfter
	case granted > 0 && r.Mode != Refund:
		next[now] = granted // replaces another grant of the same µs, as ZADD of an existing member does
		out.Keep = out.ResetAfter
		return out, next
	}
	return out, s
}

// A log that keeps the time of its last expired entry, so that the entry counts again when the
// period grows.
func baseLost(s record, p Params, r Request, now int64) (Outcome, record) {
	kept := make(map[int64]int64, len(s.grants))
	for _, g := range s.grants {
		kept[g.sum] = g.at
	}
	out, next := slidingLog(s, p, r, now)
	if len(next.grants) > 0 && next.grants[0].at < 0 {
		next.grants = append([]grant(nil), next.grants...)
		next.grants[0].at = kept[next.grants[0].sum]
	}
	return out, next
}

// estimated is a sliding window that computes its used units by the function estimate.
func estimated(s windowPair, p Params, r Request, now int64, estimate func(current, previous, weight, ticks int64) int64) (Outcome, windowPair) {
	count, period, tick, ticks := p[0], p[1], p[2], p[3]
	start, current, _, previous, _ := slide(s, period, now)
	used := estimate(current, previous, ticks-max(now-start, 0)/tick, ticks)
	granted, _, fits := take(r, used, count)
	out := Outcome{Granted: granted, Remaining: max(count-used-granted, 0), Keep: Unchanged}
	if !fits {
		out.RetryAfter = start + period - now
		return out, s
	}
	if granted == 0 {
		return out, s
	}
	out.ResetAfter = start + 2*period - now
	out.Keep = out.ResetAfter
	return out, windowPair{Start: start, Current: current + granted, Width: period, Previous: previous}
}

func weightRoundedDown(s windowPair, p Params, r Request, now int64) (Outcome, windowPair) {
	return estimated(s, p, r, now, func(current, previous, weight, ticks int64) int64 { return current + previous*weight/ticks })
}

// A check that only compares used < limit, and ignores the cost.
func costIgnored(s windowPair, p Params, r Request, now int64) (Outcome, windowPair) {
	return estimated(s, p, r, now, func(current, previous, weight, ticks int64) int64 {
		used := current + cdiv(previous*weight, ticks)
		if r.Mode == Spend && used < p[0] && r.Cost <= p[0] {
			return p[0] - r.Cost // with this number of used units, the cost just fits
		}
		return used
	})
}

// Repaired windows that are aligned to the epoch instead of beginning now. So the weight of the
// previous window jumps.
func realigned(s windowPair, p Params, r Request, now int64) (Outcome, windowPair) {
	if s.Width > 0 && s.Start-now > MaxStall {
		s.Start = now - now%p[1]
	}
	return slidingWindow(s, p, r, now)
}

// A sub-window that counts the current part and only n-1 before it.
func oneShort(s parts, p Params, r Request, now int64) (Outcome, parts) {
	p[2]--
	return subWindow(s, p, r, now)
}

// floatQuotients is a bucket that divides as scripts do: ceil(a/b) in doubles, by the rate in
// tokens per µs.
func floatQuotients(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if out.RetryAfter > 0 && r.Patience == 0 {
		level, _, ahead, _ := drain(p[0], now, s.Level, s.At)
		short := float64(r.leastCost()) - float64(p[2]*p[1]-level)/float64(p[1])
		out.RetryAfter = int64(math.Ceil(short/(float64(p[0])/float64(p[1])))) + ahead
	}
	return out, next
}

// arrival is the state of GCRA: when the bucket will be full.
type arrival struct{ at int64 }

// GCRA whose interval between two units is rounded down to a whole number of µs.
func intervalRounded(s arrival, p Params, r Request, now int64) (Outcome, arrival) {
	rate, parts, burst := p[0], p[1], p[2]
	interval := parts / rate
	at := max(s.at, now)
	cost := r.Cost
	free := burst
	if interval > 0 {
		free = max((now+burst*interval-at)/interval, 0)
	}
	if r.Mode == Draw {
		cost = min(cost, free)
	}
	out := Outcome{Remaining: min(free, burst), ResetAfter: at - now, Keep: Unchanged}
	if (r.Mode != Spend && r.Mode != Draw) || r.Cost == 0 {
		return out, s
	}
	if cost == 0 || cost > free {
		out.RetryAfter = max(interval, 1)
		return out, s
	}
	s.at = at + cost*interval
	out.Granted, out.Remaining, out.ResetAfter = cost, free-cost, s.at-now
	out.Keep = out.ResetAfter
	return out, s
}

// A reset of now + capacity/rate, however much is used.
func resetAlwaysFull(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	out.ResetAfter = cdiv(p[1]*p[2], p[0])
	return out, next
}

// A window whose length is stored in whole seconds. A window of less than a second never ends.
func wholeSeconds(s window, p Params, r Request, now int64) (Outcome, window) {
	period := p[1]
	if p[1] = p[1] / 1_000_000 * 1_000_000; p[1] == 0 {
		p[1] = MaxPeriod
	}
	out, next := fixedWindow(s, p, r, now)
	if out.ResetAfter > 0 {
		out.ResetAfter = min(out.ResetAfter+period-p[1], period)
	}
	return out, next
}

// A level that is reduced to the present burst, as if the rest had never been used.
func levelClamped(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	if s.Parts != 0 {
		s.Level = min(convert(s.Level, s.Parts, p[1]), p[1]*p[2])
		s.Parts = p[1]
	}
	return byValue(unmarked)(s, p, r, now)
}

// A fixed window that moves used units to the window of the present limit, even if that ends
// sooner.
func shorterForgets(s window, p Params, r Request, now int64) (Outcome, window) {
	if ends, _, _, kind := windowEnd(p[1], p[2], p[3], now); s.End > now && s.Kind != kind {
		s.End, s.Kind = ends, kind
	}
	return fixedWindow(s, p, r, now)
}

// A sliding window that keeps the fraction of its window that has passed, and both counts, when the
// period changes.
func sharesCarried(s windowPair, p Params, r Request, now int64) (Outcome, windowPair) {
	if start, current, width, previous, _ := slide(s, p[1], now); s.Width > 0 && width != p[1] {
		s = windowPair{Start: now - muldiv(max(now-start, 0), p[1], width), Current: current, Width: p[1], Previous: previous}
	}
	return slidingWindow(s, p, r, now)
}

// Sub-windows that count all used units as spent now when their width changes.
func gatheredAtOnce(s parts, p Params, r Request, now int64) (Outcome, parts) {
	if s.Width > 0 && s.Width != p[1] {
		_, used, _ := advanceParts(s, p[1], p[2], now)
		s = parts{Width: p[1], Count: p[2], Start: now - now%p[1]}
		s.Used[0] = used
	}
	return subWindow(s, p, r, now)
}

// A log that keeps each grant for at most the present period.
func droppedEarly(s record, p Params, r Request, now int64) (Outcome, record) {
	var kept []grant
	for _, g := range s.grants {
		if g.keep > p[1] {
			g.keep = p[1]
		}
		kept = append(kept, g)
	}
	return slidingLog(record{kept}, p, r, now)
}

// Slots that forget the longest period with which a hold was taken.
func holdsCut(s slots, p Params, r Request, now int64) (Outcome, slots) {
	s.longest = p[1]
	return concurrency(s, p, r, now)
}

// A queue whose places all leave at the present limit's rate. Callers already know when it is their
// turn, and a change of the limit then moves these turns.
func turnsMoved(s queue, p Params, r Request, now int64) (Outcome, queue) {
	if s.Rate != 0 {
		s.Rate = p[0]
	}
	return leakyBucket(s, p, r, now)
}

// A fixed window that takes the end of the window in which now is, as soon as its stored end is
// more than MaxStall after that end.
func repairedTooSoon(s window, p Params, r Request, now int64) (Outcome, window) {
	if ends, _, _, _ := windowEnd(p[1], p[2], p[3], now); s.End-ends > MaxStall {
		s.End = ends
	}
	return fixedWindow(s, p, r, now)
}

// A queue that checks the holder of a refund, but not how much the holder took.
func tailGivesAll(s queue, p Params, r Request, now int64) (Outcome, queue) {
	s.Taken = Max / 2
	return leakyBucket(s, p, r, now)
}

// A queue that refunds a place even if another holder has it.
func anyHolderRefunds(s queue, p Params, r Request, now int64) (Outcome, queue) {
	s.Tail, s.Taken = HolderID(r.Holder), Max/2
	return leakyBucket(s, p, r, now)
}

// A set of holds with one expiry. Each holder that takes or renews a slot extends it. So ended
// holds live as long as there is traffic.
func oneExpiryForAll(s slots, p Params, r Request, now int64) (Outcome, slots) {
	out, next := concurrency(s, p, r, now)
	last := int64(0)
	for _, h := range next.holds {
		last = max(last, h.expires)
	}
	holds := append([]hold(nil), next.holds...)
	for i := range holds {
		holds[i].expires = last
	}
	sort.Slice(holds, func(i, j int) bool { return holds[i].less(holds[j]) })
	return out, slots{holds, next.longest}
}

// Slots as a counter: a renewal takes another slot.
func renewalTakesAnother(s slots, p Params, r Request, now int64) (Outcome, slots) {
	if r.Mode == Spend {
		r.Holder = fmt.Sprint(r.Holder, len(s.holds))
	}
	return concurrency(s, p, r, now)
}

// A release that frees a slot of any holder.
func anyHolderReleases(s slots, p Params, r Request, now int64) (Outcome, slots) {
	if r.Mode == Refund && len(s.holds) > 0 {
		r.Holder = s.holds[0].holder
	}
	return concurrency(s, p, r, now)
}

// A bucket that charges an extra unit for each spend.
func feePerSpend(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	if r.Mode == Spend && out.Granted > 0 {
		next.Level++
	}
	return out, next
}

// A bucket that returns its reset in whole milliseconds.
func resetRounded(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	out, next := byValue(unmarked)(s, p, r, now)
	out.ResetAfter = cdiv(out.ResetAfter, 1000) * 1000
	return out, next
}

// A window by Redis' INCR and EXPIRE, which each request extends. A client that retries stays out
// long after it has stopped.
func windowExtended(s window, p Params, r Request, now int64) (Outcome, window) {
	out, next := fixedWindow(s, p, r, now)
	if r.Mode == Attempt && out.Granted > 0 {
		next.End += p[1]
		out.Keep += p[1]
	}
	return out, next
}

func countedForever(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	if r.Mode == Attempt {
		r.Mode = Force
	}
	return byValue(unmarked)(s, p, r, now)
}

func oversizeCounted(s bucket, p Params, r Request, now int64) (Outcome, bucket) {
	if r.Mode == Attempt {
		r.Cost = min(r.Cost, p[2])
	}
	return byValue(unmarked)(s, p, r, now)
}

// A sliding window that treats a counted denial as a grant, which may move more units than one
// window of the limit has.
func attemptMoves(s windowPair, p Params, r Request, now int64) (Outcome, windowPair) {
	out, next := slidingWindow(s, p, r, now)
	if r.Mode == Attempt && out.Granted > 0 && next.Width != p[1] {
		used := next.Current + cdiv(next.Previous*max(next.Start+next.Width-now, 0), next.Width)
		next = windowPair{Start: now, Current: used, Width: p[1]}
		out.ResetAfter, out.Keep = 2*p[1], 2*p[1]
	}
	return out, next
}
