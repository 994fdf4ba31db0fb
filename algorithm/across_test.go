package algorithm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
)

// acrossAlgorithms are those that Across supports.
func acrossAlgorithms() []*Algorithm {
	return []*Algorithm{TokenBucket, FixedWindow, CalendarWindow(Day, time.UTC), SubWindow(1), SubWindow(6)}
}

// eachSeed runs a check with many seeds, for each algorithm that Across supports.
func eachSeed(t *testing.T, check func(t *testing.T, a *Algorithm, rng *rand.Rand) error) {
	for _, a := range acrossAlgorithms() {
		eachSeedOf(t, a.Title(), func(rng *rand.Rand) error { return check(t, a, rng) })
	}
}

// eachSeedOf runs a check of an algorithm with many seeds.
func eachSeedOf(t *testing.T, title string, check func(rng *rand.Rand) error) {
	t.Helper()
	seeds := effort.Of(300, 100_000)
	for i := range uint64(seeds) {
		seed := effort.Seed() + i
		if err := check(rand.New(rand.NewPCG(seed, 0))); err != nil {
			t.Fatalf("PENSTOCK_SEED=%d, %s: %v", seed, title, err)
		}
	}
	t.Logf("counted: %d cases of laws", seeds)
}

// A counterUnderTest is one state with a clock.
type counterUnderTest struct {
	a      *Algorithm
	states States
	params Params
	now    int64
}

func newCounter(t *testing.T, a *Algorithm, l Limit, now int64) *counterUnderTest {
	t.Helper()
	p, err := a.Prepare(l)
	if err != nil {
		t.Fatal(err)
	}
	c := &counterUnderTest{a: a, states: a.NewStates(), params: p, now: now}
	c.states.Add()
	return c
}

func (c *counterUnderTest) do(r Request) (out Outcome) {
	p := c.a.ParamsAt(c.params, c.now)
	c.states.Step(0, &p, &r, c.now, true, &out)
	return out
}

func (c *counterUnderTest) tally() tally { return c.states.(*acrossStates).beside[0] }

// merge merges the total that another counter reports, as a fresh message.
func (c *counterUnderTest) merge(region string, m Outcome) Outcome {
	return c.do(Request{Mode: merge, Holder: region, Receipt: m.Wait, Cost: m.Granted, Patience: m.ResetAfter})
}

const someDay = 1_767_225_600_000_000 // 2026-01-01 in UTC, in µs

var acrossLimit = Limit{Count: 1000, Period: 10_000_000, Burst: 400}

// Without merges, an algorithm across regions decides as the algorithm does.
func TestAcrossDecidesAlike(t *testing.T) { testDecidesAlike(t, Across) }

// testDecidesAlike makes equal requests to an algorithm and to what made makes of it.
func testDecidesAlike(t *testing.T, made func(*Algorithm) *Algorithm) {
	t.Helper()
	eachSeed(t, func(t *testing.T, a *Algorithm, rng *rand.Rand) error {
		plain, other := newCounter(t, a, acrossLimit, someDay), newCounter(t, made(a), acrossLimit, someDay)
		for range 40 {
			r := Request{Mode: []Mode{Spend, Spend, Draw, Peek, Force, Refund, Reset}[rng.IntN(7)], Cost: rng.Int64N(450)}
			want, got := plain.do(r), other.do(r)
			want.Keep, got.Keep = 0, 0
			if got != want {
				return fmt.Errorf("%v %d: %+v; of the algorithm itself %+v", r.Mode, r.Cost, got, want)
			}
			step := rng.Int64N(3_000_000)
			plain.now, other.now = plain.now+step, other.now+step
		}
		return nil
	})
}

// Totals may come late, repeated and in any order. What is charged of a life is its largest total,
// and an earlier life changes nothing.
func TestMergesAreIdempotentAndCommute(t *testing.T) {
	limit := Limit{Count: 1_000_000, Period: 3600_000_000, Burst: 1_000_000}
	eachSeed(t, func(t *testing.T, a *Algorithm, rng *rand.Rand) error {
		var messages []row // the region is the last field
		want := map[int64]row{}
		for region := int64(1); region <= 3; region++ {
			last := row{region: region}
			life, total := int64(0), int64(0)
			for range 1 + rng.IntN(6) {
				if life == 0 || rng.IntN(4) == 0 {
					life, total = life+1+rng.Int64N(9), 0
				}
				total += 1 + rng.Int64N(100)
				last = row{total, life, region}
				messages = append(messages, last)
			}
			want[region] = last
		}
		for range 2 {
			c := newCounter(t, Across(a), limit, someDay)
			shuffled := slices.Concat(messages, messages[:rng.IntN(len(messages)+1)])
			rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			charged := int64(0)
			until := (24 * time.Hour).Microseconds()
			if !Across(a).IsCalendar() {
				until = limit.Period
			}
			seen := map[row]int64{} // the largest total of each life that was merged
			for _, m := range shuffled {
				before := c.tally()
				out := c.do(Request{Mode: merge, Holder: fmt.Sprint(m.region), Receipt: m.life, Cost: m.granted, Patience: until})
				charged += out.Granted
				if out.Granted > 0 {
					seen[row{0, m.life, m.region}] = m.granted
				}
				again := c.do(Request{Mode: merge, Holder: fmt.Sprint(m.region), Receipt: m.life, Cost: m.granted, Patience: until})
				if again.Granted != 0 {
					return fmt.Errorf("%+v charged %d units when it came again", m, again.Granted)
				}
				for _, r := range before.rows {
					i := slices.IndexFunc(c.tally().rows, func(now row) bool { return now.region == r.region })
					if now := c.tally().rows[i]; now.life < r.life || now.life == r.life && now.granted < r.granted {
						return fmt.Errorf("%+v turned the row %+v back to %+v", m, r, now)
					}
				}
			}
			sum := int64(0)
			for _, total := range seen {
				sum += total
			}
			if sum != charged {
				return fmt.Errorf("%d units are charged; want %d, the largest totals %v", charged, sum, seen)
			}
			for region, last := range want {
				i := slices.IndexFunc(c.tally().rows, func(r row) bool { return r.region == HolderID(fmt.Sprint(region)) })
				if got := c.tally().rows[i]; got.life != last.life || got.granted != last.granted {
					return fmt.Errorf("the row of region %d is %+v; want %+v", region, got, last)
				}
			}
		}
		return nil
	})
}

// After all messages have come, each region counts what each other one has granted, and what is
// used is the same everywhere. A credit is paid off first, so no region counts too little.
func TestTotalsAreConserved(t *testing.T) {
	eachSeed(t, func(t *testing.T, a *Algorithm, rng *rand.Rand) error {
		regions := make([]*counterUnderTest, 2+rng.IntN(4))
		net, most := make([]int64, len(regions)), make([]int64, len(regions))
		for i := range regions {
			regions[i] = newCounter(t, Across(a), acrossLimit, someDay)
		}
		exchange := func(from, to int) {
			if m := regions[from].do(Request{Mode: report}); m.Granted > 0 {
				regions[to].merge(fmt.Sprint("region ", from), m)
			}
		}
		for range 60 {
			i, j := rng.IntN(len(regions)), rng.IntN(len(regions))
			switch r := (Request{Mode: []Mode{Spend, Draw, Force}[rng.IntN(3)], Cost: 1 + rng.Int64N(60)}); {
			case rng.IntN(5) == 0:
				net[i] -= regions[i].do(Request{Mode: Refund, Cost: rng.Int64N(60)}).Granted
			case i != j && rng.IntN(2) == 0:
				exchange(i, j)
			default:
				net[i] += regions[i].do(r).Granted
				most[i] = max(most[i], net[i])
			}
		}
		for range 2 { // a window in which all is refunded reports nothing, until others have merged something into it
			for i := range regions {
				for j := range regions {
					if i != j {
						exchange(i, j)
					}
				}
			}
		}
		for i, from := range regions {
			last := from.do(Request{Mode: report})
			total := last.Granted
			if a.isWindowed && last.ResetAfter == 0 { // all is refunded, so nothing is used
				continue
			}
			if total < most[i] {
				return fmt.Errorf("region %d has granted up to %d units; its total is %d", i, most[i], total)
			}
			for j, to := range regions {
				at := slices.IndexFunc(to.tally().rows, func(r row) bool { return r.region == HolderID(fmt.Sprint("region ", i)) })
				if i != j && total > 0 && (at < 0 || to.tally().rows[at].granted != total) {
					return fmt.Errorf("region %d has granted %d units; region %d has %+v", i, total, j, to.tally().rows)
				}
			}
		}
		return nil
	})
}

// After silence, what the other region's share has refilled is not charged, but a full burst may
// be. A region that has lost its rows charges at most a burst.
func TestRejoinChargesWhatIsStillUsed(t *testing.T) {
	for _, c := range []struct{ known, total, share, want int64 }{
		{0, 10_000, 0, 400},              // no row: at most the burst
		{0, 300, 0, 300},                 // no row, less than a burst
		{1000, 1000, 500, 0},             // nothing is new
		{1000, 1300, 500, 300},           // less than a burst is new
		{1000, 11_000, 9000, 1000},       // more than the share
		{1000, 11_000, 9900, 400},        // the share, and at most a burst of it is still used
		{1000, 11_000, 1 << 40, 400},     // the share is larger than what is new
		{1000, 1<<30 + 1000, 0, 1 << 30}, // nothing was refilled for it
	} {
		bucket := newCounter(t, Across(TokenBucket), acrossLimit, someDay)
		if c.known > 0 {
			bucket.do(Request{Mode: merge, Holder: "us", Receipt: 1, Cost: c.known})
		}
		out := bucket.do(Request{Mode: rejoin, Holder: "us", Receipt: 1, Cost: c.total, Patience: c.share*rejoinFactors + 1})
		if out.Granted != c.want {
			t.Errorf("%+v: %d units are charged", c, out.Granted)
		}
	}
	bucket := newCounter(t, Across(TokenBucket), acrossLimit, someDay)
	if out := bucket.do(Request{Mode: rejoin, Holder: "us", Receipt: 1, Cost: 10_000, Patience: 3}); out.Granted != 1200 {
		t.Errorf("with the factor 3 %d units are charged; want 1200", out.Granted)
	}
}

// A total of another window is not merged: neither a late nor an early one.
func TestWindowsMergeTheirOwnTotals(t *testing.T) {
	window := newCounter(t, Across(FixedWindow), acrossLimit, someDay+3_000_000) // 7 s before its end
	for ends, want := range map[int64]int64{7_000_000: 5, 2_100_000: 5, 11_900_000: 5, 1_900_000: 0, 12_100_000: 0, 0: 0} {
		out := window.do(Request{Mode: merge, Holder: fmt.Sprint(ends), Receipt: 1, Cost: 5, Patience: ends})
		if out.Granted != want {
			t.Errorf("a window that ends in %d µs: %d units are charged, want %d", ends, out.Granted, want)
		}
	}
	window.do(Request{Mode: Spend, Cost: 3})
	first := window.do(Request{Mode: report})
	window.now += 8_000_000 // the next window
	if next := window.do(Request{Mode: report}); first.Granted != 3 || next.Granted != 0 || next.Wait <= first.Wait {
		t.Errorf("the reports are %+v and %+v; want 3 units, and then none in a later life", first, next)
	}
}

// A total begins anew when nothing of it is used any more, so that peers that have forgotten it
// need not know it.
func TestAnOldTotalBeginsAnew(t *testing.T) {
	bucket := newCounter(t, Across(TokenBucket), acrossLimit, someDay)
	if out := bucket.do(Request{Mode: Spend, Cost: 100}); out.ResetAfter != 1_000_000 || out.Keep != out.ResetAfter+tallyLife {
		t.Errorf("the outcome is %+v; want a Keep that is a minute longer than ResetAfter", out)
	}
	first := bucket.do(Request{Mode: report})
	bucket.now += 1_000_000 + tallyLife/2
	if same := bucket.do(Request{Mode: report}); same.Wait != first.Wait || same.Granted != 100 {
		t.Errorf("the report is %+v; want 100 units in the life %d", same, first.Wait)
	}
	bucket.now++
	bucket.do(Request{Mode: Spend, Cost: 1})
	if next := bucket.do(Request{Mode: report}); next.Wait != bucket.now || next.Granted != 1 {
		t.Errorf("the report is %+v; want 1 unit in a new life", next)
	}
}

// A new life is later than the last one, even if the clock has stepped back far.
func TestLivesOnlyGrow(t *testing.T) {
	window := newCounter(t, Across(FixedWindow), acrossLimit, someDay)
	window.do(Request{Mode: Spend, Cost: 1})
	first := window.do(Request{Mode: report})
	window.now -= 3600_000_000
	window.do(Request{Mode: Spend, Cost: 1}) // repairs the end of the window
	window.now += 2 * acrossLimit.Period
	window.do(Request{Mode: Spend, Cost: 1})
	if next := window.do(Request{Mode: report}); next.Granted != 1 || next.Wait != first.Wait+1 {
		t.Errorf("the reports are %+v and %+v; want the next life with 1 unit", first, next)
	}
}

// What comes back pays for the next grants, as long as it would still be in use.
func TestRefundsAreACredit(t *testing.T) {
	eachSeed(t, func(t *testing.T, a *Algorithm, _ *rand.Rand) error {
		c := newCounter(t, Across(a), acrossLimit, someDay)
		total := func(mode Mode, cost int64) int64 {
			c.do(Request{Mode: mode, Cost: cost})
			return c.do(Request{Mode: report}).Granted
		}
		for _, step := range []struct {
			mode              Mode
			cost, want, inSub int64 // the units of a sub-window become free one after another, so it has no credit
		}{
			{Spend, 100, 100, 100}, {Refund, 60, 100, 100}, {Spend, 30, 100, 130}, {Spend, 50, 120, 180},
			{Refund, 100, 120, 180}, {Peek, 100, 120, 180}, {Force, 130, 150, 310},
		} {
			want := step.want
			if a.name == "subwindow" {
				want = step.inSub
			}
			if got := total(step.mode, step.cost); got != want {
				return fmt.Errorf("after %v %d the total is %d; want %d", step.mode, step.cost, got, want)
			}
		}
		return nil
	})
	bucket := newCounter(t, Across(TokenBucket), acrossLimit, someDay)
	bucket.do(Request{Mode: Spend, Cost: 100})
	bucket.do(Request{Mode: Refund, Cost: 60})
	bucket.now += 1_000_000 // nothing is used any more
	bucket.do(Request{Mode: Spend, Cost: 100})
	if got := bucket.do(Request{Mode: report}).Granted; got != 200 {
		t.Errorf("the total is %d; want 200, because the credit is worth nothing any more", got)
	}
}

func TestAcrossRefusesOtherAlgorithms(t *testing.T) {
	for _, a := range []*Algorithm{LeakyBucket, AnchoredWindow, SlidingWindow, SlidingLog, Concurrency} {
		if _, err := Across(a).Prepare(acrossLimit); err == nil {
			t.Errorf("%s can be across regions; want an error", a.Title())
		}
	}
	for _, a := range acrossAlgorithms() {
		across := Across(a)
		if _, err := across.Prepare(acrossLimit); err != nil || Across(across) != across || across.CanBook() || across.CountsDenied() {
			t.Errorf("%s: %v; want no error, and neither bookings nor counted denials", a.Title(), err)
		}
	}
}

// A region grants out of its own share if others have used up the bucket. Each step is one request;
// left is what is left of the share afterwards.
func TestARegionHasItsOwnShare(t *testing.T) {
	bucket := newCounter(t, Across(TokenBucket), acrossLimit, someDay) // 100 a second, 400 at once; half of it is the share
	bucket.do(Request{Mode: merge, Holder: "us", Receipt: 1, Cost: 400})
	for i, step := range []struct {
		mode                Mode
		cost, granted, left int64
		retryAfter          int64 // in ms
	}{
		{Spend, 201, 0, 200, 2010}, // more than the share, so it waits for the level
		{Peek, 200, 0, 200, 0},
		{Spend, 150, 150, 50, 0},
		{Spend, 60, 0, 50, 200}, // the share refills 50 a second
		{Peek, 60, 0, 50, 200},
		{Draw, 1000, 50, 0, 0},
		{Draw, 1000, 0, 0, 20},
		{Spend, 0, 0, 0, 0},
		{Refund, 30, 30, 30, 0},
		{Force, 80, 80, 0, 0}, // 50 more than the share has
		{Spend, 1, 0, 0, 1020},
		{Reset, 0, 0, 400, 0},
	} {
		out := bucket.do(Request{Mode: step.mode, Cost: step.cost})
		if out.Granted != step.granted || out.Remaining != step.left || out.RetryAfter != step.retryAfter*1000 {
			t.Errorf("step %d, %v %d: %+v; want %+v", i, step.mode, step.cost, out, step)
		}
	}
	if total := bucket.do(Request{Mode: report}).Granted; total != 150+50+50 {
		t.Errorf("the total is %d; want 250, without the 30 refunded units that the Force used again", total)
	}
	bucket.do(Request{Mode: merge, Holder: "us", Receipt: 1, Cost: 800})
	if left := bucket.do(Request{Mode: Peek}).Remaining; left != 200 {
		t.Errorf("after a reset, %d units of the share are left; want all 200", left)
	}
	bucket.do(Request{Mode: Reset})
	bucket.do(Request{Mode: merge, Holder: "us", Receipt: 1, Cost: 801})
	if out := bucket.do(Request{Mode: Spend, Cost: 399}); !out.OK() {
		t.Fatalf("%+v; want 399 units granted by the level", out)
	}
	if out := bucket.do(Request{Mode: Spend, Cost: 1}); out.RetryAfter != 10_000 {
		t.Errorf("%+v; want no share left, and a unit of the level in 10 ms", out)
	}
	alone := newCounter(t, Across(TokenBucket), acrossLimit, someDay)
	alone.do(Request{Mode: Force, Cost: 401})
	if out := alone.do(Request{Mode: Spend, Cost: 1}); out.RetryAfter != 20_000 {
		t.Errorf("%+v; want no share of a bucket that no other region uses", out)
	}
}

// A region never grants more than the limit, whatever it merges. Without debt, it grants what the
// algorithm grants.
func TestOwnSharesAddNothingInOneRegion(t *testing.T) {
	eachSeed(t, func(t *testing.T, a *Algorithm, rng *rand.Rand) error {
		if !a.hasSteadyRefill {
			return nil
		}
		const rate = 100 // a second
		c := newCounter(t, Across(a), acrossLimit, someDay)
		level, last, others := 0.0, c.now, int64(0)
		for range 200 {
			if rng.IntN(4) == 0 {
				others += 1 + rng.Int64N(300)
				c.do(Request{Mode: merge, Holder: fmt.Sprint(rng.IntN(3)), Receipt: 1, Cost: others})
			}
			before := c.do(Request{Mode: Peek}).Remaining
			r := Request{Mode: []Mode{Spend, Draw}[rng.IntN(2)], Cost: 1 + rng.Int64N(200)}
			out := c.do(r)
			if want := out.OK() && (out.Granted == r.Cost || r.Mode == Draw && out.Granted == before); out.OK() != (before >= r.leastCost()) || out.OK() && !want {
				return fmt.Errorf("%v %d with %d left: %+v", r.Mode, r.Cost, before, out)
			}
			level = max(level-float64(c.now-last)*rate/1e6, 0) + float64(out.Granted)
			last = c.now
			if level > 400.001 {
				return fmt.Errorf("the region has granted %.1f units more than the limit", level-400)
			}
			if !out.OK() && out.RetryAfter > 0 && rng.IntN(2) == 0 {
				c.now += out.RetryAfter - 1
				if early := c.do(Request{Mode: Peek, Cost: r.leastCost()}); early.OK() {
					return fmt.Errorf("%v %d has a RetryAfter of %d µs, and is granted 1 µs earlier", r.Mode, r.Cost, out.RetryAfter)
				}
				c.now++
				if then := c.do(Request{Mode: Peek, Cost: r.leastCost()}); !then.OK() {
					return fmt.Errorf("%v %d is denied after its RetryAfter of %d µs: %+v", r.Mode, r.Cost, out.RetryAfter, then)
				}
				continue
			}
			c.now += rng.Int64N(800_000)
		}
		return nil
	})
}
