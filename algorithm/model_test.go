package algorithm

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

// The models are the algorithms in their simplest form. They use exact fractions, store all grants
// and convert nothing. They share no code with the steps. They find the first time that grants by
// binary search.

// A model decides requests at increasing times.
type model interface {
	// fits returns how many units a request at a time would get, and whether it would be granted. It
	// assumes that no other request comes before that time.
	fits(r Request, now int64) (granted int64, isEnough bool)
	remaining(now int64) int64
	// refundable returns the number of units that could be refunded.
	refundable(now int64) int64
	// countable returns how many units of denied requests would be counted.
	countable(now int64) int64
	// isEmpty returns true if no unit is used.
	isEmpty(now int64) bool
	// wait returns how long, in µs, a caller whose request is granted must wait.
	wait(r Request, now int64) int64
	spend(cost int64, r Request, now int64)
	refund(r Request, now int64) int64
	reset()
	// capacity returns the units that a fresh state has.
	capacity() int64
}

// decide returns the outcome that the step must have.
func decide(m model, r Request, now int64) Outcome {
	var out Outcome
	switch r.Mode {
	case Spend, Draw, Peek:
		granted, enough := m.fits(r, now)
		switch {
		case r.Mode != Draw && r.Cost > m.capacity():
			out.RetryAfter = Never
		case !enough:
			out.RetryAfter = first(func(after int64) bool {
				_, enough := m.fits(r, now+after)
				return enough
			})
		default:
			out.Wait = m.wait(r, now)
			if r.Mode != Peek {
				out.Granted = granted
				m.spend(granted, r, now)
			}
		}
	case Force:
		out.Granted = r.Cost
		m.spend(r.Cost, r, now)
	case Refund:
		out.Granted = m.refund(r, now)
	case Attempt:
		if r.Cost <= m.capacity() {
			out.Granted = min(r.Cost, m.countable(now))
			m.spend(out.Granted, r, now)
		}
	case Reset:
		m.reset()
	}
	out.Remaining = m.remaining(now)
	out.ResetAfter = first(func(after int64) bool { return m.isEmpty(now + after) })
	return out
}

// first returns the least number for which isTrue returns true. isTrue must also return true for
// all larger numbers.
func first(isTrue func(int64) bool) int64 {
	if isTrue(0) {
		return 0
	}
	low, high := int64(0), int64(1)
	for !isTrue(high) {
		low, high = high, high*2
	}
	for high-low > 1 {
		if mid := low + (high-low)/2; isTrue(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

func fraction(a, b int64) *big.Rat { return big.NewRat(a, b) }

func whole(n int64) *big.Rat { return fraction(n, 1) }

// floor is x rounded down.
func floor(x *big.Rat) int64 { return new(big.Int).Div(x.Num(), x.Denom()).Int64() }

// ceiling is x rounded up.
func ceiling(x *big.Rat) int64 { return -floor(new(big.Rat).Neg(x)) }

// A bucketModel is a bucket that contains used tokens and leaks at a constant rate. If it is a
// queue, a caller waits until the bucket is empty.
type bucketModel struct {
	size    int64    // tokens
	rate    *big.Rat // tokens per µs
	used    *big.Rat // tokens, when at was the current time
	at      int64    // µs
	isQueue bool
	tail    string // the last holder in the queue
	places  int64  // places that this holder took
}

func (m *bucketModel) usedAt(now int64) *big.Rat {
	leaked := new(big.Rat).Mul(m.rate, whole(now-m.at))
	used := new(big.Rat).Sub(m.used, leaked)
	if used.Sign() < 0 {
		return new(big.Rat)
	}
	return used
}

// leakTime returns the time, in µs, in which this number of tokens leaks.
func (m *bucketModel) leakTime(leaked *big.Rat) int64 {
	if leaked.Sign() <= 0 {
		return 0
	}
	return ceiling(new(big.Rat).Quo(leaked, m.rate))
}

func (m *bucketModel) fits(r Request, now int64) (int64, bool) {
	free := floor(new(big.Rat).Sub(whole(m.size), m.usedAt(now)))
	granted, need := r.Cost, r.Cost // need is the fewest tokens with which the request is granted
	if r.Mode == Draw {
		granted, need = min(r.Cost, max(free, 0)), min(r.Cost, 1)
	}
	switch {
	case need == 0:
		return granted, true
	case m.isQueue:
		return granted, need <= free && m.wait(r, now) <= r.Patience
	case r.Mode == Draw:
		return granted, need <= free
	}
	return granted, need <= m.size && m.wait(r, now) <= r.Patience // tokens that leak meanwhile count
}

func (m *bucketModel) wait(r Request, now int64) int64 {
	if r.Cost == 0 {
		return 0
	}
	if m.isQueue {
		return m.leakTime(m.usedAt(now))
	}
	if r.Mode == Draw {
		return 0
	}
	used := new(big.Rat).Add(m.usedAt(now), whole(r.Cost))
	return m.leakTime(used.Sub(used, whole(m.size)))
}

func (m *bucketModel) remaining(now int64) int64 {
	return max(floor(new(big.Rat).Sub(whole(m.size), m.usedAt(now))), 0)
}

func (m *bucketModel) refundable(now int64) int64 { return ceiling(m.usedAt(now)) }

func (m *bucketModel) countable(now int64) int64 {
	return max(floor(new(big.Rat).Sub(whole(2*m.size), m.usedAt(now))), 0)
}

func (m *bucketModel) isEmpty(now int64) bool { return m.usedAt(now).Sign() == 0 }

func (m *bucketModel) spend(cost int64, r Request, now int64) {
	if cost > 0 {
		m.used, m.at = new(big.Rat).Add(m.usedAt(now), whole(cost)), now
		m.tail, m.places = r.Holder, cost
	}
}

func (m *bucketModel) refund(r Request, now int64) int64 {
	if m.isQueue {
		return m.refundPlaces(r, now)
	}
	refunded := min(r.Cost, floor(m.usedAt(now))) // whole tokens only
	m.remove(r.Cost, now)
	return refunded
}

// refundPlaces returns the places of the last holder in the queue. Other holders cannot refund.
func (m *bucketModel) refundPlaces(r Request, now int64) int64 {
	if r.Holder == "" || r.Holder != m.tail {
		return 0
	}
	refunded := min(r.Cost, m.places, ceiling(m.usedAt(now)))
	m.places -= refunded
	m.remove(refunded, now)
	return refunded
}

// remove takes tokens out of the bucket, which may then be empty.
func (m *bucketModel) remove(tokens, now int64) {
	used := new(big.Rat).Sub(m.usedAt(now), whole(tokens))
	if used.Sign() < 0 {
		used = new(big.Rat)
	}
	m.used, m.at = used, now
}

func (m *bucketModel) reset() { m.used = new(big.Rat) }

func (m *bucketModel) capacity() int64 { return m.size }

// A ledger stores every grant. It is the model of windows, logs and sub-windows, which differ in
// how long a grant counts.
type ledger struct {
	count  int64
	grants []event
	used   func(grants []event, now int64) int64 // units in use
	counts func(at, now int64) bool              // whether a grant that was made at a time still counts now
	// beginWindow is called before each grant, or is nil.
	beginWindow func(now int64)
}

func (m *ledger) fits(r Request, now int64) (int64, bool) {
	free := m.count - m.used(m.grants, now)
	if r.Mode == Draw {
		granted := min(r.Cost, max(free, 0))
		return granted, granted > 0 || r.Cost == 0
	}
	return r.Cost, r.Cost == 0 || r.Cost <= free
}

func (m *ledger) wait(Request, int64) int64 { return 0 }

func (m *ledger) remaining(now int64) int64 { return max(m.count-m.used(m.grants, now), 0) }

// refundable counts each grant in full, while used may weight it by its age.
func (m *ledger) refundable(now int64) int64 { return m.sum(m.grants, now) }

func (m *ledger) countable(now int64) int64 {
	return max(min(2*m.count, Max/2)-m.used(m.grants, now), 0)
}

func (m *ledger) isEmpty(now int64) bool {
	for _, g := range m.grants {
		if m.counts(g.at, now) {
			return false
		}
	}
	return true
}

func (m *ledger) spend(cost int64, _ Request, now int64) {
	if cost == 0 {
		return
	}
	if m.beginWindow != nil {
		m.beginWindow(now)
	}
	m.grants = append(m.grants, event{at: now, admitted: cost})
}

// refund removes the newest cost.
func (m *ledger) refund(r Request, now int64) int64 {
	refunded := int64(0)
	for len(m.grants) > 0 && refunded < r.Cost {
		newest := &m.grants[len(m.grants)-1]
		if !m.counts(newest.at, now) {
			break
		}
		taken := min(newest.admitted, r.Cost-refunded)
		refunded += taken
		if newest.admitted -= taken; newest.admitted == 0 {
			m.grants = m.grants[:len(m.grants)-1]
		}
	}
	return refunded
}

func (m *ledger) reset() { m.grants = nil }

func (m *ledger) capacity() int64 { return m.count }

// sum adds up all grants that count.
func (m *ledger) sum(grants []event, now int64) int64 {
	sum := int64(0)
	for i := len(grants) - 1; i >= 0 && m.counts(grants[i].at, now); i-- {
		sum += grants[i].admitted
	}
	return sum
}

func newLedger(l Limit, counts func(at, now int64) bool) *ledger {
	m := &ledger{count: l.Count, counts: counts}
	m.used = m.sum
	return m
}

// modelFor returns the model of a subject with a limit.
func modelFor(a subject, l Limit) model {
	windowIndex := func(at int64) int64 { return at / l.Period }
	switch a.name {
	case "tokenbucket", "leakybucket":
		return &bucketModel{size: a.capacity(l), rate: fraction(l.Count, l.Period), used: new(big.Rat), isQueue: a.isQueue}
	case "fixedwindow":
		return newLedger(l, func(at, now int64) bool { return windowIndex(at) == windowIndex(now) })
	case "fixedwindow/anchored":
		begins := int64(0)
		m := newLedger(l, func(at, now int64) bool { return at >= begins && now < begins+l.Period })
		m.beginWindow = func(now int64) {
			if m.isEmpty(now) {
				begins = now
			}
		}
		return m
	case "slidingwindow":
		m := newLedger(l, func(at, now int64) bool { return windowIndex(at) >= windowIndex(now)-1 })
		m.used = func(grants []event, now int64) int64 {
			current, previous := int64(0), int64(0)
			for i := len(grants) - 1; i >= 0 && m.counts(grants[i].at, now); i-- {
				if windowIndex(grants[i].at) == windowIndex(now) {
					current += grants[i].admitted
				} else {
					previous += grants[i].admitted
				}
			}
			weight := fraction(l.Period-now%l.Period, l.Period) // of the previous window
			return current + ceiling(weight.Mul(weight, whole(previous)))
		}
		return m
	case "slidinglog":
		return newLedger(l, func(at, now int64) bool { return at > now-l.Period })
	default:
		var n int64
		if _, err := fmt.Sscanf(a.name, "subwindow/%d", &n); err != nil {
			panic(err)
		}
		width := cdiv(l.Period, n)
		return newLedger(l, func(at, now int64) bool { return at/width >= now/width-n })
	}
}

// The steps have the outcomes of their models in every field, over long traces with one limit and
// a clock that never steps back.
func TestStepsEqualTheirModels(t *testing.T) {
	seed, requests := effort.Seed(), effort.Of(3000, 400_000)
	total := 0
	for _, a := range allSubjects() {
		if a.calendarAt != nil || a.needsHolder {
			continue // they have no model: the laws of calendars and of slots describe them completely
		}
		t.Run(a.name, func(t *testing.T) {
			for compared, trace := 0, uint64(0); compared < requests; trace++ {
				n, err := compare(a, seeded(seed, trace))
				if err != nil {
					t.Fatalf("PENSTOCK_SEED=%d, trace %d: %v", seed, trace, err)
				}
				compared, total = compared+n, total+n
			}
		})
	}
	t.Logf("counted: %d requests compared with exact models (PENSTOCK_SEED=%d)", total, seed)
}

// compare runs a trace against the model. It returns how many requests agreed.
func compare(a subject, roll dice) (int, error) {
	l := a.anyLimit(roll)
	for a.name == "slidingwindow" && tickOf(l.Count, l.Period) > 1 {
		l = a.anyLimit(roll) // with ticks of several µs, the step admits less than the model
	}
	r, m := startRunWith(a, roll, l), modelFor(a, l)
	const requests = 100
	for i := range requests {
		r.pass()
		request := r.anyRequest(Spend, Spend, Spend, Draw, Draw, Peek, Refund, Force)
		switch {
		case request.Mode == Force:
			request.Cost = min(request.Cost, max(min(2*r.capacity(l), Max/2)-m.refundable(r.now), 0)) // the steps drop units beyond this
		case request.Mode == Refund && r.isQueue && roll.oneIn(2) && m.(*bucketModel).tail != "":
			request.Holder = m.(*bucketModel).tail
		case roll.oneIn(50):
			request.Mode = Reset
		case a.countsDenied && roll.oneIn(4):
			request.Mode = Attempt
		}
		want := decide(m, request, r.now)
		if got := answer(r.decide(request)); got != want {
			return i, r.lawError("%v %d has the outcome %+v; the model has %+v", request.Mode, request.Cost, got, want)
		}
	}
	return requests, nil
}
