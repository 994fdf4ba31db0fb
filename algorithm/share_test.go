package algorithm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// A sharedRegion is a region of TestShares, with a clock of its own.
type sharedRegion struct {
	*counterUnderTest
	name  string
	ahead int64
}

func (g *sharedRegion) at(now int64) *counterUnderTest {
	g.now = now + g.ahead
	return g.counterUnderTest
}

// A message is what region from has reported for region to, and may come late, twice or never.
type message struct {
	from, to  int
	report    Outcome
	asked, at int64 // by the clock of the test
}

// A meter is one bucket or window for all regions. It reports what was admitted above the limit.
type meter struct {
	a       *Algorithm
	limit   Limit
	level   float64
	last    int64
	granted [][2]int64 // when and how many, for a sub-window
}

func (m *meter) add(now, units int64) (above float64) {
	switch {
	case m.a == TokenBucket:
		m.level = max(m.level-float64(now-m.last)*float64(m.limit.Count)/float64(m.limit.Period), 0) + float64(units)
		m.last = now
		return m.level - float64(m.limit.Burst)
	case m.a.isWindowed:
		if now/m.limit.Period != m.last/m.limit.Period {
			m.level = 0
		}
		m.level, m.last = m.level+float64(units), now
		return m.level - float64(m.limit.Count)
	}
	m.granted = append(slices.DeleteFunc(m.granted, func(g [2]int64) bool { return g[0] <= now-m.limit.Period }), [2]int64{now, units})
	sum := int64(0)
	for _, g := range m.granted {
		sum += g[1]
	}
	return float64(sum - m.limit.Count)
}

// All regions together admit no more than the limit, whatever they ask for, and however messages
// are lost, delayed, repeated and reordered. The shares never add up to more than the whole.
func TestSharesAddNothing(t *testing.T) {
	lent := 0
	for _, a := range []*Algorithm{TokenBucket, FixedWindow, SubWindow(5)} {
		eachSeedOf(t, a.Title(), func(rng *rand.Rand) error {
			n := 2 + rng.IntN(4)
			limit := Limit{Count: 60 + rng.Int64N(100), Period: 2_000_000 + rng.Int64N(20_000_000)}
			if a == TokenBucket {
				limit.Burst = int64(n) + rng.Int64N(3*limit.Count)
			}
			m := &meter{a: a, limit: limit}
			regions := make([]*sharedRegion, n)
			for i := range regions {
				regions[i] = &sharedRegion{newCounter(t, ShareAcross(a, n), limit, someDay), fmt.Sprint(i), 0}
				if a == TokenBucket {
					regions[i].ahead = rng.Int64N(3600_000_000)
				}
			}
			var inFlight []message
			now, busy := int64(someDay), 0
			for range 400 {
				now += rng.Int64N(300_000)
				if rng.IntN(40) == 0 {
					busy = rng.IntN(n)
				}
				for i, g := range regions {
					if i != busy && rng.IntN(5) > 0 {
						continue
					}
					out := g.at(now).do(Request{Mode: []Mode{Spend, Draw}[rng.IntN(2)], Cost: 1 + rng.Int64N(30)})
					if above := m.add(now, out.Granted); above > 1e-6 {
						return fmt.Errorf("%d regions admit %.3f units more than %+v", n, above, limit)
					}
				}
				from, to := rng.IntN(n), rng.IntN(n)
				if from != to {
					asked := now - rng.Int64N(200_000)
					report := regions[from].at(now).do(Request{Mode: reportLoan, Holder: regions[to].name})
					for range rng.IntN(3) {
						inFlight = append(inFlight, message{from, to, report, asked, now + rng.Int64N(1_500_000+rng.Int64N(4_000_000))})
					}
				}
				inFlight = slices.DeleteFunc(inFlight, func(m message) bool {
					if m.at > now {
						return false
					}
					from, to := regions[m.from], regions[m.to].at(now)
					const amounts, versions = shareBase, versionBase
					if m.report.Remaining > 0 {
						to.do(Request{Mode: giveLoan, Holder: from.name, Cost: m.report.Remaining + m.report.Granted/amounts/versions*versions, Patience: 3_000_000})
					}
					if m.report.ResetAfter > 0 {
						to.do(Request{Mode: takeLoan, Holder: from.name, Cost: m.report.Granted % (amounts * versions), Receipt: m.asked + regions[m.to].ahead + m.report.ResetAfter})
					}
					return true
				})
				sum := int64(0)
				for _, g := range regions {
					s := g.states.(*sharedStates).beside[0]
					share := s.share(wholeShare/int64(n), now+g.ahead)
					if sum += share; share > wholeShare/int64(n) {
						lent++
					}
				}
				if sum > wholeShare {
					return fmt.Errorf("the shares add up to %d of %d", sum, wholeShare)
				}
			}
			return nil
		})
	}
	if lent == 0 {
		t.Error("no region has borrowed a share; the test would find nothing")
	}
	t.Logf("counted: %d times a region had more than its own share", lent)
}

// One region alone decides as the algorithm does.
func TestOneRegionHasTheWholeLimit(t *testing.T) {
	testDecidesAlike(t, func(a *Algorithm) *Algorithm { return ShareAcross(a, 1) })
}

// A share that comes back brings no tokens. It is refilled from the moment at which the loan ended,
// although nothing was asked for then.
func TestShareComesBackEmpty(t *testing.T) {
	c := newCounter(t, ShareAcross(TokenBucket, 2), Limit{Count: 1000, Period: 1_000_000, Burst: 1000}, someDay)
	c.do(Request{Mode: giveLoan, Holder: "b", Cost: wholeShare + wholeShare/2*shareBase, Patience: 6_000_000})
	for _, step := range []struct{ after, want int64 }{
		{0, 50}, // a tenth of a half
		{5_900_000, 50},
		{100_000, 5},
		{200_000, 100},
		{2_000_000, 500},
	} {
		c.now += step.after
		if got := c.do(Request{Mode: Draw, Cost: 1000}).Granted; got != step.want {
			t.Errorf("at %d µs, %d units are granted; want %d", c.now-someDay, got, step.want)
		}
	}
	c.now += 10_000_000 // so that nothing is needed here
	c.do(Request{Mode: giveLoan, Holder: "b", Cost: wholeShare + wholeShare/2*shareBase, Patience: 6_000_000})
	c.now += 6_200_000
	if got := c.do(Request{Mode: Draw, Cost: 1000}).Granted; got != 150 {
		t.Errorf("0.2 s after the loan has ended, %d units are granted; want 150", got)
	}
}

// A share comes back after a borrowed one has ended, and nothing was asked for between. The bucket
// is refilled at the lower rate meanwhile.
func TestLoansThatEndInTurn(t *testing.T) {
	for _, isAskedBetween := range []bool{false, true} {
		c := newCounter(t, ShareAcross(TokenBucket, 3), Limit{Count: 1000, Period: 1_000_000, Burst: 1000}, someDay)
		c.do(Request{Mode: giveLoan, Holder: "x", Cost: wholeShare + wholeShare/3*shareBase, Patience: 6_000_000})
		c.do(Request{Mode: takeLoan, Holder: "y", Cost: 200 + shareBase, Receipt: c.now + 1_000_000})
		c.do(Request{Mode: Draw, Cost: 1000})
		if c.now += 1_000_000; isAskedBetween {
			c.do(Request{Mode: Draw, Cost: 1})
		}
		c.now += 5_000_000
		if got := c.do(Request{Mode: Draw, Cost: 1000}).Granted; got > 33 { // what 28 of 840 has at once
			t.Errorf("with a request between %v, %d units are granted; want at most 33", isAskedBetween, got)
		}
	}
}

// The months of a calendar differ. A lender waits until the borrower's month has ended.
func TestShareOfAMonthComesBackInTheNext(t *testing.T) {
	a, limit := CalendarWindow(Month, time.UTC), Limit{Count: 1000}
	begin := time.Date(2026, 2, 28, 23, 59, 58, 0, time.UTC).UnixMicro()
	lender, borrower := newCounter(t, ShareAcross(a, 2), limit, begin), newCounter(t, ShareAcross(a, 2), limit, begin)
	lender.do(Request{Mode: giveLoan, Holder: "b", Cost: wholeShare + wholeShare/2*shareBase, Patience: 6_000_000})
	report := lender.do(Request{Mode: reportLoan, Holder: "b"})
	borrower.do(Request{Mode: takeLoan, Holder: "a", Cost: report.Granted % (shareBase * versionBase), Receipt: begin + report.ResetAfter})
	granted := int64(0)
	for _, day := range []int{1, 2, 15, 31} {
		now := time.Date(2026, 3, day, 0, 0, 1, 0, time.UTC).UnixMicro()
		for _, c := range []*counterUnderTest{borrower, lender} {
			c.now = now
			granted += c.do(Request{Mode: Draw, Cost: 1000}).Granted
		}
	}
	if granted > 1000 || granted < 950 {
		t.Errorf("in March, two regions admit %d of 1000; want at most 1000, and what one has borrowed", granted)
	}
}

// While the store gives no answer, a region has what it never lends, and not what it may have lent.
func TestInAnOutageARegionHasWhatItNeverLends(t *testing.T) {
	for _, a := range []*Algorithm{TokenBucket, FixedWindow, SubWindow(5)} {
		for _, instances := range []int64{1, 2, 5} {
			limit, isPossible := ShareAcross(a, 3).Share(Limit{Count: 3000, Period: 60_000_000, Burst: 3000}, instances)
			if !isPossible {
				t.Fatalf("%s has no share for %d instances", a.Title(), instances)
			}
			granted := int64(0)
			c := newCounter(t, ShareAcross(a, 3), limit, someDay)
			for range 60 {
				granted += c.do(Request{Mode: Draw, Cost: 1000}).Granted
				c.now += 1_000_000 - 1
			}
			most := int64(3000 / 3 / 10 / instances)
			if a == TokenBucket {
				most *= 2
			}
			if granted > most || granted < most-2 {
				t.Errorf("%s: one of %d instances grants %d units in a minute of an outage; want %d", a.Title(), instances, granted, most)
			}
		}
	}
}

// All requests of a key cost more than the region's share. It borrows as much as it needs.
func TestRequestsAboveTheShareBorrow(t *testing.T) {
	c := newCounter(t, ShareAcross(FixedWindow, 3), Limit{Count: 300, Period: 60_000_000}, someDay)
	if out := c.do(Request{Mode: Spend, Cost: 150}); out.OK() || out.Keep <= 0 {
		t.Errorf("150 units of a share of 100: %+v; want a denial that is kept", out)
	}
	if report := c.do(Request{Mode: reportLoan, Holder: "b"}); report.Remaining%shareBase != wholeShare {
		t.Errorf("after the denial, the region needs %d of %d; want all", report.Remaining%shareBase, wholeShare)
	}
}

// An offer comes late, after a newer one. A region that would take it had more than it was given.
func TestLateOffersAreNotTaken(t *testing.T) {
	c := newCounter(t, ShareAcross(TokenBucket, 2), Limit{Count: 1000, Period: 1_000_000, Burst: 1000}, someDay)
	take := func(offer, version int64) int64 {
		c.do(Request{Mode: takeLoan, Holder: "b", Cost: offer + version*shareBase, Receipt: c.now + 1_000_000})
		return c.states.(*sharedStates).beside[0].share(wholeShare/2, c.now)
	}
	for _, step := range []struct{ offer, version, want int64 }{
		{100, 1, 520}, {40, 2, 460}, {100, 1, 460}, {100, versionBase - 1, 460}, {70, 3, 490}, {0, 4, 420}, {70, 3, 420},
	} {
		if got := take(step.offer, step.version); got != step.want {
			t.Errorf("after offer %d of version %d, the share is %d; want %d", step.offer, step.version, got, step.want)
		}
	}
	c.now += 2_000_000 // the offers have ended
	if got := take(100, 1); got != 420 {
		t.Errorf("after all offers have ended, an earlier one makes the share %d; want 420", got)
	}
	c.now += 8_000_000 // no earlier offer is on its way any more
	if got := take(100, 1); got != 520 {
		t.Errorf("long after all offers have ended, the share is %d; want 520", got)
	}
}

func TestLimitsThatCannotBeShared(t *testing.T) {
	for _, limit := range []Limit{{Count: 100_000, Period: 86400_000_000}, {Count: 1_000_000_000, Period: MaxPeriod}} {
		if _, err := ShareAcross(FixedWindow, 3).Prepare(limit); err != nil {
			t.Errorf("a window of %+v cannot be shared: %v", limit, err)
		}
	}
	for want, prepare := range map[string]func() (Params, error){
		"cannot be across regions": func() (Params, error) { return ShareAcross(SlidingLog, 2).Prepare(Limit{Count: 10, Period: 1_000_000}) },
		"1 to 10 can": func() (Params, error) {
			return ShareAcross(TokenBucket, 11).Prepare(Limit{Count: 100, Period: 1_000_000})
		},
		"each needs one":     func() (Params, error) { return ShareAcross(FixedWindow, 3).Prepare(Limit{Count: 2, Period: 1_000_000}) },
		"too small to count": func() (Params, error) { return ShareAcross(TokenBucket, 2).Prepare(Limit{Count: 7, Period: MaxPeriod}) },
	} {
		if p, err := prepare(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v; want an error with %q", p, err, want)
		}
	}
}
