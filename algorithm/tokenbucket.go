package algorithm

import (
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"
)

//go:embed tokenbucket.lua
var tokenBucketLua string

// TokenBucket refills Count tokens per Period, up to Burst (default: Count), and starts full. A
// Spend takes its cost in tokens. With patience it may book future tokens, and the Wait of its
// outcome says when they are there. GCRA, the generic cell rate algorithm of ATM (ITU-T I.371), is
// the same limiter: it stores the time at which the bucket is full again. So GCRA needs no
// algorithm of its own. Source: J. Turner, "New directions in communications", 1986.
//
//	Bound   in any interval of length w: admitted cost ≤ Burst + w·Count/Period, plus what was
//	        refunded in w; booked cost counts at the end of its Wait
//	State   3 numbers: level (used), at, parts; absent while the bucket is full
//	Time    O(1)
//	Choose  for almost everything: smooth, allows bursts, smallest state, exact retry times
//	Clock   a step back of any length stops the refill for at most this length, and at most 5 s; it
//	        never adds tokens
//
// A token is divided into Parts, and each microsecond refills Rate parts. Rate/Parts is
// Count/Period, reduced. So no interval between tokens is ever rounded. Burst·Parts must not exceed
// 2^51.
//
// When the limit changes, or several limits use one counter, used tokens stay used. For the time
// since the last grant, the bucket refills at the rate of the requested limit. A limit with a
// smaller Burst denies until the level has fallen below it. So limits that share one counter admit
// at most the largest Burst + w·the largest rate in an interval of length w. If they book, the
// interval begins with the booking.
//
// The level is converted to the parts of the requested limit and rounded up, against the caller.
// Rounding adds less than one part to the used tokens. If the product of the two numbers of parts
// exceeds 2^52, it adds less than three parts. A level is at most 2^52 parts, and the excess is
// dropped. 2^52 parts are at least twice the largest Burst that the present rate allows.
var TokenBucket = defineStates("tokenbucket", strings.Replace(tokenBucketLua, "MAXMARKS", strconv.Itoa(maxMarks), 1),
	func() States { return &bucketStates{marks: make(map[uint32]*marks)} },
	func(l Limit) (Params, error) { return prepareBucket(l, 0) },
	Title("token-bucket"), Burst(BurstIsCapacity), refillsSteadily(), CanRefund(), countsDenied(), exactRefunds(2), exchanged(3, false), CanBook(), additive(),
	retryAfterGrant(tokenRetryAfter), Leasable(DecayContinuous, nil),
	Bounded(func(l Limit, rate string) string { return fmt.Sprintf("%d at once, and %s", l.Burst, rate) }),
	shared(func(l Limit, n int64) []Limit {
		l.Burst = cdiv(l.Burst, n)
		return slower(l, n)
	}),
	divisible(func(l Limit, n, i int64) []Limit {
		l.Burst = piece(l.Burst, n, i)
		limits := []Limit{{piece(l.Count, n, i), l.Period, l.Burst}}
		if l.Period <= MaxPeriod/n { // then all n limits can have equal rates, which add up exactly
			limits = append([]Limit{{l.Count, l.Period * n, l.Burst}}, limits...)
		}
		return limits
	}))

// prepareBucket returns the rate in parts per µs, the parts of a token, and the capacity in tokens.
// extra is the capacity beyond Burst, in tokens.
func prepareBucket(l Limit, extra int64) (Params, error) {
	if err := l.check(); err != nil {
		return Params{}, err
	}
	burst, origin := l.Burst, ""
	if burst == 0 && extra == 0 { // TokenBucket's default; that of LeakyBucket is 0
		burst, origin = l.Count, " (the default is the count)"
	}
	g := gcd(l.Count, l.Period)
	rate, parts := l.Count/g, l.Period/g
	if _, ok := product(burst+extra, parts, Max/2); !ok {
		return Params{}, fmt.Errorf("burst %d%s is too large to count exactly at this rate; the largest is %d", burst, origin, Max/2/parts-extra)
	}
	return Params{rate, parts, burst + extra}, nil
}

// bucket is the state of a token bucket. The zero value is fresh: nothing used.
type bucket struct {
	Level int64 // parts used; above the capacity if tokens were booked, forced, or used under a larger limit
	At    int64 // when the level was Level, in µs since the epoch
	Parts int64 // parts per token when the state was written
	Low   int64 // the lowest level since the newest mark, in parts; 0: there are no marks (see marks)
}

// bucketStates are the States of TokenBucket. Few buckets have marks, so the marks are beside the
// array.
type bucketStates struct {
	stateArray[bucket]
	marks map[uint32]*marks // of the states whose Low is above 0
	spare *marks            // memory for the next marks
}

func (b *bucketStates) Remove(i uint32) {
	if b.states[i].Low > 0 {
		delete(b.marks, i)
	}
	b.stateArray.Remove(i)
}

func (b *bucketStates) Step(i uint32, p *Params, r *Request, now int64, commit bool, out *Outcome) {
	s := b.states[i]
	var m *marks
	if s.Low > 0 {
		m = b.marks[i]
	}
	if r.IsRefundable && b.spare == nil {
		b.spare = new(marks)
	}
	next, nextMarks := tokenBucket(s, m, b.spare, p, r, now, out)
	if out.Keep == Unchanged || !commit && out.OK() {
		return
	}
	b.states[i] = next
	switch nextMarks {
	case m:
		return
	case nil:
		delete(b.marks, i)
		return
	case b.spare:
		b.spare = m
	}
	b.marks[i] = nextMarks
}

// restore replaces a state and its marks.
func (b *bucketStates) restore(i uint32, state bucket, m *marks) {
	b.states[i] = state
	if m != nil {
		b.marks[i] = m
	} else {
		delete(b.marks, i)
	}
}

// peek answers a request without saving anything.
func (b *bucketStates) peek(i uint32, p *Params, r Request, now int64, out *Outcome) {
	r.IsRefundable = false // so no memory for marks is needed
	tokenBucket(b.states[i], b.marks[i], nil, p, &r, now, out)
}

// tokenBucket is the step. It writes new marks to *spare, which the state must not have.
func tokenBucket(s bucket, m, spare *marks, p *Params, r *Request, now int64, out *Outcome) (bucket, *marks) {
	rate, parts, burst := p[0], p[1], p[2]
	capacity := burst * parts
	level, oldParts := s.Level, s.Parts
	if oldParts != 0 && oldParts != parts {
		level = convert(level, oldParts, parts)
	}
	level, at, ahead, repaired := drain(rate, now, level, s.At)
	room := capacity - level
	before := level
	low, next := s.Low, m
	if low > 0 {
		if oldParts != parts {
			low, next = m.convert(low, oldParts, parts)
		}
		low = min(low, level)
		if repaired {
			low = 0
		}
	}

	var granted, remaining, retry, reset, wait int64
	switch r.Mode {
	case Spend, Peek:
		if r.Cost > burst {
			retry = Never
		} else if r.Cost > 0 {
			short := r.Cost*parts - room
			if short > 0 {
				wait = cdiv(short, rate) + ahead
			}
			if wait > r.Patience {
				retry, wait = wait-r.Patience, 0
			} else if r.Mode == Spend {
				granted = r.Cost
				level += r.Cost * parts
			}
		}
	case Draw:
		if room >= parts {
			granted = min(r.Cost, room/parts)
			level += granted * parts
		} else if r.Cost > 0 {
			retry = cdiv(parts-room, rate) + ahead
		}
	case Force:
		granted = min(r.Cost, (Max-level)/parts)
		level += granted * parts
	case Refund:
		returned := level // the most parts to return
		if r.Receipt != 0 {
			returned = next.lowestSince(r.Receipt, low)
		}
		lowest := returned
		if r.Cost < cdiv(returned, parts) { // otherwise the last fraction of a token is returned too
			returned = r.Cost * parts
		}
		granted = returned / parts // whole tokens
		level -= returned
		if r.Receipt != 0 && returned > 0 {
			low, next = next.lower(low, lowest, returned)
		}
	case Attempt:
		if r.Cost <= burst {
			granted = min(r.Cost, max(2*capacity-level, 0)/parts)
			level += granted * parts
		}
	default: // Reset
		level = 0
	}

	if level < capacity {
		remaining = (capacity - level) / parts
	}
	if level > 0 {
		reset = cdiv(level, rate) + ahead
	}
	low = min(low, level)
	out.Receipt = 0
	if r.IsRefundable && granted > 0 && r.Mode != Refund {
		low, next = next.add(low, at, level, spare)
		out.Receipt = at
	}
	// The fields are set one by one, because a composite literal would be built and then copied.
	out.Granted, out.Remaining, out.RetryAfter, out.ResetAfter, out.Wait, out.Keep = granted, remaining, retry, reset, wait, reset
	// A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
	savesRepair := repaired && (r.Mode != Peek || retry != 0)
	if level == before && !savesRepair && r.Mode != Reset {
		out.Keep = Unchanged
		return s, m
	}
	if low == 0 {
		next = nil
	}
	return bucket{level, at, parts, low}, next
}

// tokenRetryAfter counts back from the time at which the bucket is full, to the time at which it
// has as many tokens as the cost.
func tokenRetryAfter(p *Params, cost, remaining, reset int64) int64 {
	rate, parts, burst := p[0], p[1], p[2]
	if cost <= remaining || cost > burst {
		return 0
	}
	return max(reset-cdiv((burst-cost)*parts, rate), 0)
}

// drain lets a level leak until now. It returns the new level, the time for which this level is
// right, and how far that time is ahead of now. isRepaired is true if the state was too far in the
// future and was repaired.
func drain(rate, now, old, since int64) (level, at, ahead int64, isRepaired bool) {
	if old == 0 {
		return 0, now, 0, false
	}
	isRepaired = since-now > MaxStall
	if since > now && !isRepaired {
		return old, since, since - now, false
	}
	passed := max(now-since, 0)
	if float64(passed)*float64(rate) >= float64(old) { // a product too large to be exact is larger than any level
		return 0, now, 0, isRepaired
	}
	return old - passed*rate, now, 0, isRepaired
}

// convert returns level·parts/old, rounded up, and at most Max. A level in parts of 1/old token
// becomes a level in parts of 1/parts token. LeakyBucket passes rates as old and parts, so that a
// queue empties in the same time at the new rate. If rest·parts is too large to be exact, convert
// computes in doubles, as the twin must. The result is then less than three parts too large.
func convert(level, old, parts int64) int64 {
	whole := level / old
	if whole >= Max/parts {
		return Max
	}
	rest := level - whole*old
	if rest > Max/parts {
		rest = min(parts, int64(math.Ceil(float64(float64(rest)/float64(old))*float64(parts)))+1)
	} else if rest > 0 {
		rest = cdiv(rest*parts, old)
	}
	return whole*parts + rest
}
