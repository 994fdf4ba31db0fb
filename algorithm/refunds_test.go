package algorithm

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

// A chargedCost is a charge of a trace.
type chargedCost struct {
	at, cost  int64
	receipt   int64 // 0: it cannot be refunded
	surplus   int64 // units that were never used
	isSettled bool  // the surplus was refunded
}

// A refundTrace charges one state at random, and refunds charges in random order.
type refundTrace struct {
	algorithm *Algorithm
	states    States
	params    Params
	limit     Limit
	now       int64
	charges   []chargedCost
	marked    int // charges that may be refunded
	hasForced bool
}

func (t *refundTrace) decide(r Request) (out Outcome) {
	const state, commit = 0, true
	t.states.Step(state, &t.params, &r, t.now, commit, &out)
	return out
}

// run makes a trace, and returns an error if it breaks a law.
func (t *refundTrace) run(rng *rand.Rand) error {
	t.states = t.algorithm.NewStates()
	t.states.Add()
	t.limit = Limit{Count: 1 + rng.Int64N(100), Period: (1 + rng.Int64N(20)) * (1 + rng.Int64N(50)), Burst: 0}
	if t.algorithm == TokenBucket {
		t.limit.Burst = 1 + rng.Int64N(200)
	}
	t.limit.Period = max(t.limit.Period, 10)
	var err error
	if t.params, err = t.algorithm.Prepare(t.limit); err != nil {
		return err
	}
	t.now = 1_700_000_000_000_000 + rng.Int64N(1_000_000)
	largest := 1 + rng.Int64N(t.limit.Count)
	t.hasForced = rng.IntN(2) == 0
	for range 10 + rng.IntN(40) {
		t.now += []int64{0, 1, rng.Int64N(t.limit.Period/10 + 1), rng.Int64N(t.limit.Period + 1)}[rng.IntN(4)]
		if rng.IntN(3) > 0 || !t.settle(rng) {
			t.charge(rng, largest)
		}
		if err := t.check(); err != nil {
			return err
		}
	}
	return t.checkIntervals()
}

func (t *refundTrace) charge(rng *rand.Rand, largest int64) {
	modes := []Mode{Spend, Spend, Spend, Draw}
	if t.hasForced {
		modes = append(modes, Force)
	}
	r := Request{Mode: modes[rng.IntN(len(modes))], Cost: 1 + rng.Int64N(largest), IsRefundable: rng.IntN(4) > 0}
	if out := t.decide(r); out.Granted > 0 {
		c := chargedCost{at: t.now, cost: out.Granted, receipt: out.Receipt}
		if c.receipt != 0 {
			c.surplus = rng.Int64N(c.cost + 1)
			if rng.IntN(2) == 0 {
				c.surplus = c.cost
			}
			if t.algorithm == AnchoredWindow { // without any cost, no window would begin
				c.surplus = min(c.surplus, c.cost-1)
			}
			t.marked++
		}
		t.charges = append(t.charges, c)
	}
}

// settle refunds a random surplus. It returns false if there is none.
func (t *refundTrace) settle(rng *rand.Rand) bool {
	for _, i := range rng.Perm(len(t.charges)) {
		if c := &t.charges[i]; c.surplus > 0 && !c.isSettled {
			t.decide(Request{Mode: Refund, Cost: c.surplus, Receipt: c.receipt})
			c.isSettled = true
			return true
		}
	}
	return false
}

// check compares the state with that of a run of the same charges in which no settled surplus was
// ever charged.
func (t *refundTrace) check() error {
	without := refundTrace{algorithm: t.algorithm, states: t.algorithm.NewStates(), params: t.params}
	without.states.Add()
	for _, c := range t.charges {
		if c.isSettled {
			c.cost -= c.surplus
		}
		without.now = c.at
		without.decide(Request{Mode: Force, Cost: c.cost})
	}
	without.now = t.now
	got, want := t.decide(Request{Mode: Peek}), without.decide(Request{Mode: Peek})
	if got.Remaining > want.Remaining || got.ResetAfter < want.ResetAfter {
		return fmt.Errorf("%d units are left, all after %d µs; without the surplus %d, after %d µs: too much was refunded in\n%+v", got.Remaining, got.ResetAfter, want.Remaining, want.ResetAfter, t)
	}
	if t.marked < maxMarks && got != want {
		return fmt.Errorf("%d units are left, all after %d µs; without the surplus %d, after %d µs: too little was refunded in\n%+v", got.Remaining, got.ResetAfter, want.Remaining, want.ResetAfter, t)
	}
	return nil
}

// checkIntervals checks that no interval of a token bucket has more use than its bound. Force is
// not bounded.
func (t *refundTrace) checkIntervals() error {
	if t.algorithm != TokenBucket || t.hasForced {
		return nil
	}
	for i := range t.charges {
		used := int64(0)
		for _, c := range t.charges[i:] {
			if used += c.cost; c.isSettled {
				used -= c.surplus
			}
			if bound := t.limit.Burst + (c.at-t.charges[i].at)*t.limit.Count/t.limit.Period; used > bound {
				return fmt.Errorf("%d units are used in %d µs; the bound is %d in\n%+v", used, c.at-t.charges[i].at, bound, t)
			}
		}
	}
	return nil
}

// A refund is exact: the state is never better than if the surplus had never been charged. It is
// equal to that state, unless so many charges were open that marks were dropped.
func TestRefundIsExact(t *testing.T) {
	for _, a := range []*Algorithm{TokenBucket, FixedWindow, AnchoredWindow, SlidingWindow, SubWindow(1), SubWindow(5), SlidingLog} {
		t.Run(a.Title(), func(t *testing.T) {
			t.Parallel()
			seed := effort.Seed()
			traces := effort.Of(250, 100_000)
			if a == TokenBucket {
				traces = effort.Of(2_500, 2_000_000)
			}
			for trace := range uint64(traces) {
				r := refundTrace{algorithm: a}
				if err := r.run(rand.New(rand.NewPCG(seed, trace))); err != nil {
					t.Fatalf("PENSTOCK_SEED=%d go test -run 'TestRefundIsExact/%s' (trace %d): %v", seed, a.Title(), trace, err)
				}
			}
			t.Logf("counted: %d traces of refunds (%s)", traces, a.Title())
		})
	}
}

// A busy state reuses the memory of its marks.
func TestRefundableChargesDoNotAllocate(t *testing.T) {
	r := refundTrace{algorithm: TokenBucket, states: TokenBucket.NewStates(), now: 1_700_000_000_000_000}
	r.states.Add()
	var err error
	if r.params, err = TokenBucket.Prepare(Limit{Count: 1000, Period: 1_000_000, Burst: 100_000}); err != nil {
		t.Fatal(err)
	}
	var out Outcome
	request := Request{Mode: Spend, Cost: 2, IsRefundable: true}
	charge := func() {
		r.now += 1000
		r.states.Step(0, &r.params, &request, r.now, true, &out)
	}
	for range 100 {
		charge()
	}
	if n := testing.AllocsPerRun(1000, charge); n > 0 {
		t.Errorf("a charge that may be refunded makes %v allocations; want 0", n)
	}
}
