package algorithm

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/penstock/penstock/internal/effort"
)

// The models are the algorithms in their simplest form. They use exact fractions, store all grants
// and convert nothing. They share no code with the steps. They find the first time that grants by
// binary search.

// A model decides requests at increasing times.
type model interface {
	// fits returns what would be granted at a time, and whether that is enough, if no other request
	// comes before.
	fits(a Request, now int64) (granted int64, enough bool)
	remaining(now int64) int64
	// use is the number of units that could be refunded.
	use(now int64) int64
	// empty tells whether nothing is used.
	empty(now int64) bool
	// wait is how long a caller whose request is granted must wait.
	wait(a Request, now int64) int64
	spend(cost int64, a Request, now int64)
	refund(a Request, now int64) int64
	reset()
	// room is what a fresh state has.
	room() int64
}

// decide returns the outcome that the step must have.
func decide(m model, a Request, now int64) Outcome {
	var out Outcome
	switch a.Mode {
	case Spend, Draw, Peek:
		granted, enough := m.fits(a, now)
		switch {
		case a.Mode != Draw && a.Cost > m.room():
			out.RetryAfter = Never
		case !enough:
			out.RetryAfter = first(func(after int64) bool {
				_, enough := m.fits(a, now+after)
				return enough
			})
		default:
			out.Wait = m.wait(a, now)
			if a.Mode != Peek {
				out.Granted = granted
				m.spend(granted, a, now)
			}
		}
	case Force:
		out.Granted = a.Cost
		m.spend(a.Cost, a, now)
	case Refund:
		out.Granted = m.refund(a, now)
	case Reset:
		m.reset()
	}
	out.Remaining = m.remaining(now)
	out.ResetAfter = first(func(after int64) bool { return m.empty(now + after) })
	return out
}

// first is the least number for which yes holds. If yes holds for a number, it must hold for all
// larger ones.
func first(yes func(int64) bool) int64 {
	if yes(0) {
		return 0
	}
	low, high := int64(0), int64(1)
	for !yes(high) {
		low, high = high, high*2
	}
	for high-low > 1 {
		if mid := low + (high-low)/2; yes(mid) {
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

// A bucketModel is a bucket that holds used tokens and leaks at a constant rate. As a queue,
// a caller waits until it has leaked dry.
type bucketModel struct {
	capacity int64
	rate     *big.Rat // tokens per µs
	used     *big.Rat
	at       int64
	queue    bool
	tail     string
	places   int64
}

func (m *bucketModel) usedAt(now int64) *big.Rat {
	leaked := new(big.Rat).Mul(m.rate, whole(now-m.at))
	used := new(big.Rat).Sub(m.used, leaked)
	if used.Sign() < 0 {
		return new(big.Rat)
	}
	return used
}

// until is how long it takes to leak an amount.
func (m *bucketModel) until(leaked *big.Rat) int64 {
	if leaked.Sign() <= 0 {
		return 0
	}
	return ceiling(new(big.Rat).Quo(leaked, m.rate))
}

func (m *bucketModel) fits(a Request, now int64) (int64, bool) {
	free := floor(new(big.Rat).Sub(whole(m.capacity), m.usedAt(now)))
	granted, need := a.Cost, a.Cost
	if a.Mode == Draw {
		granted, need = min(a.Cost, max(free, 0)), min(a.Cost, 1)
	}
	switch {
	case need == 0:
		return granted, true
	case m.queue:
		return granted, need <= free && m.wait(a, now) <= a.Patience
	case a.Mode == Draw:
		return granted, need <= free
	}
	return granted, need <= m.capacity && m.wait(a, now) <= a.Patience
}

func (m *bucketModel) wait(a Request, now int64) int64 {
	if a.Cost == 0 {
		return 0
	}
	if m.queue {
		return m.until(m.usedAt(now))
	}
	if a.Mode == Draw {
		return 0
	}
	used := new(big.Rat).Add(m.usedAt(now), whole(a.Cost))
	return m.until(used.Sub(used, whole(m.capacity)))
}

func (m *bucketModel) remaining(now int64) int64 {
	return max(floor(new(big.Rat).Sub(whole(m.capacity), m.usedAt(now))), 0)
}

func (m *bucketModel) use(now int64) int64 { return ceiling(m.usedAt(now)) }

func (m *bucketModel) empty(now int64) bool { return m.usedAt(now).Sign() == 0 }

func (m *bucketModel) spend(cost int64, a Request, now int64) {
	if cost > 0 {
		m.used, m.at = new(big.Rat).Add(m.usedAt(now), whole(cost)), now
		m.tail, m.places = a.Holder, cost
	}
}

func (m *bucketModel) refund(a Request, now int64) int64 {
	used := m.usedAt(now)
	back := min(a.Cost, floor(used))
	if m.queue {
		if a.Holder == "" || a.Holder != m.tail {
			return 0
		}
		back = min(a.Cost, m.places, ceiling(used))
		m.places -= back
		if used.Sub(used, whole(back)).Sign() < 0 {
			used = new(big.Rat)
		}
		m.used, m.at = used, now
		return back
	}
	if used.Sub(used, whole(a.Cost)).Sign() < 0 {
		used = new(big.Rat)
	}
	m.used, m.at = used, now
	return back
}

func (m *bucketModel) reset() { m.used = new(big.Rat) }

func (m *bucketModel) room() int64 { return m.capacity }

// A ledger stores every grant. Which of them count at a time makes it a window, a log, or
// sub-windows.
type ledger struct {
	count  int64
	grants []event
	used   func(grants []event, now int64) int64
	counts func(at, now int64) bool // whether a grant can still be refunded
	// starts, if set, begins a window when a grant comes and none runs.
	starts func(now int64)
}

func (m *ledger) fits(a Request, now int64) (int64, bool) {
	free := m.count - m.used(m.grants, now)
	if a.Mode == Draw {
		granted := min(a.Cost, max(free, 0))
		return granted, granted > 0 || a.Cost == 0
	}
	return a.Cost, a.Cost == 0 || a.Cost <= free
}

func (m *ledger) wait(Request, int64) int64 { return 0 }

func (m *ledger) remaining(now int64) int64 { return max(m.count-m.used(m.grants, now), 0) }

func (m *ledger) use(now int64) int64 { return m.sum(m.grants, now) }

func (m *ledger) empty(now int64) bool {
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
	if m.starts != nil {
		m.starts(now)
	}
	m.grants = append(m.grants, event{at: now, admitted: cost})
}

// refund removes the newest cost.
func (m *ledger) refund(a Request, now int64) int64 {
	back := int64(0)
	for len(m.grants) > 0 && back < a.Cost {
		newest := &m.grants[len(m.grants)-1]
		if !m.counts(newest.at, now) {
			break
		}
		taken := min(newest.admitted, a.Cost-back)
		back += taken
		if newest.admitted -= taken; newest.admitted == 0 {
			m.grants = m.grants[:len(m.grants)-1]
		}
	}
	return back
}

func (m *ledger) reset() { m.grants = nil }

func (m *ledger) room() int64 { return m.count }

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

// modelFor is the model of a subject.
func modelFor(a subject, l Limit) model {
	index := func(at int64) int64 { return at / l.Period }
	switch a.name {
	case "tokenbucket", "leakybucket":
		return &bucketModel{capacity: a.room(l), rate: fraction(l.Count, l.Period), used: new(big.Rat), queue: a.queues}
	case "fixedwindow":
		return newLedger(l, func(at, now int64) bool { return index(at) == index(now) })
	case "fixedwindow/anchored":
		begins := int64(0)
		m := newLedger(l, func(at, now int64) bool { return at >= begins && now < begins+l.Period })
		m.starts = func(now int64) {
			if m.empty(now) {
				begins = now
			}
		}
		return m
	case "slidingwindow":
		m := newLedger(l, func(at, now int64) bool { return index(at) >= index(now)-1 })
		m.used = func(grants []event, now int64) int64 {
			current, previous := int64(0), int64(0)
			for i := len(grants) - 1; i >= 0 && m.counts(grants[i].at, now); i-- {
				if index(grants[i].at) == index(now) {
					current += grants[i].admitted
				} else {
					previous += grants[i].admitted
				}
			}
			share := fraction(l.Period-now%l.Period, l.Period)
			return current + ceiling(share.Mul(share, whole(previous)))
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
	seed, requests := effort.Seed(), effort.Of(7000, 400_000)
	if testing.Short() {
		requests = 1000
	}
	total := 0
	for _, a := range allSubjects() {
		if a.at != nil || a.holds {
			continue // their laws are their models
		}
		t.Run(a.name, func(t *testing.T) {
			for historyEntry, trace := 0, uint64(0); historyEntry < requests; trace++ {
				n, err := compare(a, seeded(seed, trace))
				if err != nil {
					t.Fatalf("PENSTOCK_SEED=%d, trace %d: %v", seed, trace, err)
				}
				historyEntry, total = historyEntry+n, total+n
			}
		})
	}
	t.Logf("counted: %d requests compared with exact models (PENSTOCK_SEED=%d)", total, seed)
}

// compare runs a trace against the model. It returns how many requests agreed.
func compare(a subject, d dice) (int, error) {
	l := a.anyLimit(d)
	for a.name == "slidingwindow" && tickOf(l.Count, l.Period) > 1 {
		l = a.anyLimit(d) // with coarser ticks, the step admits less than the model
	}
	r, m := startRunWith(a, d, l), modelFor(a, l)
	for historyEntry := range 100 {
		r.pass()
		request := r.anyRequest(Spend, Spend, Spend, Draw, Draw, Peek, Refund, Force)
		switch {
		case request.Mode == Force:
			request.Cost = min(request.Cost, max(min(2*r.room(l), Max/2)-m.use(r.now), 0)) // the steps drop units beyond this
		case request.Mode == Refund && r.queues && d.oneIn(2) && m.(*bucketModel).tail != "":
			request.Holder = m.(*bucketModel).tail
		case d.oneIn(50):
			request.Mode = Reset
		}
		want := decide(m, request, r.now)
		if got := answer(r.decide(request)); got != want {
			return historyEntry, r.lawError("%v %d: the model has the outcome %+v", request.Mode, request.Cost, want)
		}
	}
	return 100, nil
}
