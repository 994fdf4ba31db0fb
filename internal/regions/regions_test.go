package regions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

func plan(t testing.TB, rate string, a *algorithm.Algorithm) *penstock.Plan {
	t.Helper()
	limit, err := penstock.ParseRate(rate)
	if err != nil {
		t.Fatal(err)
	}
	return limit.With(a).MustCompile()
}

// exchanges makes a region for each name.
func exchanges(t testing.TB, o Options, names ...string) map[string]*Exchange {
	t.Helper()
	all := make(map[string]*Exchange)
	for _, name := range names {
		o.Self, o.Store = name, memstore.New(memstore.Options{Now: o.Now})
		o.Peers = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
		e, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = e
	}
	return all
}

// spend charges one unit at a time until a charge is denied, and returns how many were granted.
func spend(t testing.TB, e *Exchange, p *penstock.Plan, key string, most int64) (granted int64) {
	t.Helper()
	for granted < most {
		d, err := e.Store().Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			break
		}
		granted++
	}
	return granted
}

// An answer has the busiest counters first. What was not merged comes again, and what was granted
// meanwhile too.
func TestAnswersHaveWhatIsNotMerged(t *testing.T) {
	p := plan(t, "100/h", algorithm.Across(penstock.TokenBucket))
	eu := exchanges(t, Options{MaxTotals: 2}, "eu", "us")["eu"]
	ask := func(merged uint64) (a Answer, text string) {
		t.Helper()
		a, err := eu.Site().Answer(t.Context(), Ask{From: "us", Merged: merged, Contact: -1})
		if err != nil {
			t.Fatal(err)
		}
		for _, total := range a.Totals {
			text += fmt.Sprintf("%s=%d ", total.Key, total.Granted)
		}
		if a.IsFull {
			text += "full"
		}
		return a, strings.TrimSpace(text)
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("the answer is %q; want %q", got, want)
		}
	}
	spend(t, eu, p, "a", 1)
	spend(t, eu, p, "b", 5)
	spend(t, eu, p, "c", 3)
	_, text := ask(0)
	expect(text, "b=5 c=3")
	lost, text := ask(0) // the first answer was lost
	expect(text, "b=5 c=3")
	spend(t, eu, p, "c", 4)
	last, text := ask(lost.Number)
	expect(text, "c=7 a=1 full")
	last, text = ask(last.Number)
	expect(text, "full")
	if a, err := eu.Site().Answer(t.Context(), Ask{From: "mars"}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a region that is not known gets %+v, %v; want ErrInvalid", a, err)
	}
}

// The shares of the parts of a divided network add up to the limit, or to a little less.
func TestSharesAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(effort.Seed(), 0))
	for range effort.Of(500, 100_000) {
		n := 2 + rng.IntN(MaxRegions-1)
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("r%02d", i))
		}
		e := exchanges(t, Options{}, names...)["r00"]
		a := []*algorithm.Algorithm{penstock.TokenBucket, penstock.FixedWindow, penstock.SubWindow(6)}[rng.IntN(3)]
		limit := penstock.Per(1+rng.Int64N(1000), time.Duration(1+rng.IntN(100_000))*time.Millisecond).With(algorithm.Across(a))
		if a == penstock.TokenBucket {
			limit.Burst = 1 + rng.Int64N(1000)
		}
		whole := limit.MustCompile()
		err := e.Check(whole)
		if isTooSmall := whole.Capacity() < int64(n); isTooSmall != (err != nil) {
			t.Fatalf("PENSTOCK_SEED=%d: %v for %d regions: %v", effort.Seed(), whole, n, err)
		} else if isTooSmall {
			continue
		}
		side := rng.Uint64N(1<<n-2) + 1
		first, err1 := e.shareOf(shareID{whole, side})
		second, err2 := e.shareOf(shareID{whole, 1<<n - 1 - side})
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		rate := func(p *penstock.Plan) float64 { return float64(p.Limit().Count) / float64(p.Limit().Period) }
		if sum := rate(first) + rate(second); first.Capacity()+second.Capacity() != whole.Capacity() || sum > rate(whole)*1.000001 || sum < rate(whole)*0.999 {
			t.Fatalf("PENSTOCK_SEED=%d: %v is shared by %d regions as %v and %v", effort.Seed(), whole, n, first, second)
		}
		if first.ID() != whole.ID() {
			t.Fatalf("a share has another counter")
		}
	}
}

// A link is the way to another region. It has a delay, and may be cut.
type link struct {
	to    *Exchange
	delay time.Duration
	isCut *atomic.Bool
}

func (l link) Answer(ctx context.Context, ask Ask) (Answer, error) {
	time.Sleep(l.delay)
	if l.isCut.Load() {
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
	answer, err := l.to.Site().Answer(ctx, ask)
	time.Sleep(l.delay)
	return answer, err
}

// TestRegionsExchange runs three regions with one limit: they know of each other, have their shares
// while a link is cut, and the whole limit again afterwards.
func TestRegionsExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := plan(t, "300/day", algorithm.Across(penstock.TokenBucket))
		var isCut, never atomic.Bool
		all := exchanges(t, Options{}, "ap", "eu", "us")
		ctx, cancel := context.WithCancel(t.Context())
		for name, e := range all {
			peers := make(map[string]Peer)
			for other, to := range all {
				l := link{to, 80 * time.Millisecond, &never}
				if name == "us" || other == "us" {
					l.isCut = &isCut
				}
				if other != name {
					peers[other] = l
				}
			}
			go e.Run(ctx, peers)
		}
		usual, most := Options{}.Lag(80 * time.Millisecond)
		for name, e := range all {
			if err := e.Check(p); err != nil {
				t.Fatal(err)
			}
			if n := spend(t, e, p, "at the beginning", 1000); n != 100 {
				t.Errorf("at the beginning %s grants %d; want 100, its share", name, n)
			}
		}
		time.Sleep(most)
		check := func(when, key string, want map[string]int64) {
			t.Helper()
			for _, name := range []string{"eu", "us", "ap"} {
				if n := spend(t, all[name], p, key, want[name]); n != want[name] {
					t.Errorf("%s: %s grants %d; want %d", when, name, n, want[name])
				}
				time.Sleep(usual + 80*time.Millisecond)
			}
		}
		check("in contact", "k", map[string]int64{"eu": 150, "us": 100, "ap": 40})
		isCut.Store(true)
		time.Sleep(most)
		for name, want := range map[string]int64{"eu": 200, "us": 100} {
			if n := spend(t, all[name], p, "during the cut", 1000); n != want {
				t.Errorf("during the cut %s grants %d; want %d", name, n, want)
			}
		}
		if n := spend(t, all["ap"], p, "k", 1000); n != 40 {
			t.Errorf("during the cut, ap grants %d of a counter of which 290 are used, 40 of these here; want 40, what is left of its own share", n)
		}
		isCut.Store(false)
		time.Sleep(most)
		for name, e := range all {
			want := map[string]int64{"ap": 100}[name] // the others have used up their own shares
			if n := spend(t, e, p, "during the cut", 1000); n != want {
				t.Errorf("after the cut %s grants %d of what both sides have used up; want %d", name, n, want)
			}
		}
		check("after the cut", "another", map[string]int64{"eu": 100, "us": 100, "ap": 100})
		cancel()
		time.Sleep(most) // until the last answers have come
	})
}

// talk lets each region ask the other once.
func talk(t testing.TB, a, b *Exchange) {
	t.Helper()
	for _, pair := range [][2]*Exchange{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		answer, err := to.Site().Answer(t.Context(), from.Ask(to.o.Self))
		if err == nil {
			err = from.Merge(t.Context(), to.o.Self, from.o.Now(), answer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Regions are in contact only when both have merged full answers, and both know it.
func TestContactNeedsFullAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := exchanges(t, Options{MaxTotals: 1}, "eu", "us")
		eu, us := all["eu"], all["us"]
		p := plan(t, "100/day", algorithm.Across(penstock.TokenBucket))
		spend(t, us, p, "a", 10)
		spend(t, us, p, "b", 20)
		spend(t, us, p, "c", 30)
		for round, want := range []int64{50, 50, 50, 100, 100} { // 3 answers, the third is full, and the fourth ask tells it
			talk(t, eu, us)
			for name, e := range all {
				if name == "us" && round == 2 {
					continue // us learns it with the next ask
				}
				if n := spend(t, e, p, fmt.Sprint(name, round), 1000); n != want && (round < 2 || round > 3) {
					t.Errorf("after round %d %s grants %d; want %d", round+1, name, n, want)
				}
			}
			for _, e := range all { // these answers are not of interest
				for _, v := range e.site.consumers {
					for id := range v.changed {
						if len(id.key) > 1 {
							delete(v.changed, id)
						}
					}
				}
			}
		}
	})
}

// The contact is as old as the question, not as the answer.
func TestContactBeginsWithTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := exchanges(t, Options{}, "eu", "us")["eu"]
		asked := eu.o.Now()
		time.Sleep(time.Second)
		if err := eu.Merge(t.Context(), "us", asked, Answer{Number: 7, IsFull: true}); err != nil {
			t.Fatal(err)
		}
		if ask := eu.Ask("us"); ask != (Ask{From: "eu", Merged: 7, Contact: time.Second}) {
			t.Errorf("the next question is %+v; want a contact of a second, and answer 7 merged", ask)
		}
	})
	if usual, most := (Options{}).Lag(80 * time.Millisecond); usual != 1180*time.Millisecond || most != 4180*time.Millisecond {
		t.Errorf("the lag is %v, and at most %v; want 1.18 s and 4.18 s, as decision 33 says", usual, most)
	}
}

// What may have been granted is noted, and what was not is not.
func TestUnknownOutcomesAreNoted(t *testing.T) {
	const none = penstock.Reason(255)
	tooSmall := plan(t, "1/s", algorithm.Across(penstock.SubWindow(1)))
	p := plan(t, "100/h", algorithm.Across(penstock.TokenBucket))
	for _, c := range []struct {
		name   string
		mode   penstock.Mode
		reason penstock.Reason // none if the store decides
		want   int             // changed counters
	}{
		{"granted", penstock.Spend, none, 1}, {"forced", penstock.Force, none, 1}, {"peeked", penstock.Peek, none, 0}, {"returned", penstock.Refund, none, 0},
		{"unknown", penstock.Spend, penstock.ReasonTimeout, 1}, {"not sent", penstock.Spend, penstock.ReasonUnreachable, 0},
	} {
		reason := none
		memory := memstore.New(memstore.Options{})
		e, err := New(Options{Self: "us", Peers: []string{"eu"}, Store: penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			d, err := memory.Decide(ctx, charges)
			if reason != none {
				return penstock.Decision{}, penstock.NewStoreError(reason, nil)
			}
			return d, err
		})})
		if err != nil {
			t.Fatal(err)
		}
		reason = c.reason
		_, _ = e.Store().Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: p, Cost: 1, Mode: c.mode}})
		_, _ = e.Store().Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: tooSmall, Cost: 1}})
		reason = none
		if a, err := e.Site().Answer(t.Context(), Ask{From: "eu"}); err != nil || len(a.Totals) != c.want {
			t.Errorf("%s: the answer is %+v, %v; want %d totals", c.name, a, err, c.want)
		}
	}
}

// After silence, a bucket was refilled at the rate of its share only, but the other side may have
// used a whole burst.
func TestMergingAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eu := exchanges(t, Options{}, "eu", "us")["eu"]
		p := plan(t, "10/s, burst 100", algorithm.Across(penstock.TokenBucket))
		left := func(key string) penstock.Status {
			d, err := eu.o.Store.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Mode: penstock.Peek, Cost: 1}})
			if err != nil {
				t.Fatal(err)
			}
			return d.Status(0)
		}
		merge := func(key string, granted int64, age time.Duration) {
			total := Total{Counter: Counter{key, p}, Life: 1, Granted: granted, Age: age, Left: time.Second}
			if err := eu.Merge(t.Context(), "us", eu.o.Now(), Answer{Totals: []Total{total}, IsFull: true}); err != nil {
				t.Fatal(err)
			}
		}
		spend(t, eu, p, "k", 50)
		time.Sleep(5 * time.Second) // 25 units are refilled
		merge("k", 10, time.Second)
		if s := left("k"); s.Remaining != 100-25-10 {
			t.Errorf("the status is %+v; want 65 units left", s)
		}
		merge("k", 10+1000, time.Second) // 5 units a second are the share of the other region
		if s := left("k"); s.ResetAfter != (1000+35)*100*time.Millisecond {
			t.Errorf("the status is %+v; want a debt of 1000 units, because no time has passed", s)
		}
		time.Sleep(4 * time.Second) // 20 units are refilled here, and 20 belong to the other share
		merge("k", 10+1000+200, time.Second)
		if s := left("k"); s.ResetAfter != (1035-20+200-20)*100*time.Millisecond {
			t.Errorf("the status is %+v; want a debt of 180 units more, after 20 were refilled", s)
		}
		merge("unknown", 1_000_000, time.Hour)
		if s := left("unknown"); s.ResetAfter != 10*time.Second {
			t.Errorf("the status is %+v; want a whole burst used", s)
		}
		eu.site.consumers["us"].contactAt = eu.o.Now()
		merge("lost here", 1_000_000, time.Hour)
		merge("new", 1000, time.Second)
		if old, young := left("lost here"), left("new"); old.ResetAfter != 10*time.Second || young.ResetAfter != 100*time.Second {
			t.Errorf("in contact the statuses are %+v and %+v; want a burst of the old total, and all of the new one", old, young)
		}
	})
}

func TestNamesOfRegionsAreChecked(t *testing.T) {
	for _, peers := range [][]string{nil, {""}, {"eu"}, {"us", "us"}, strings.Split(strings.Repeat("x,", 15)+"x", ",")} {
		if _, err := New(Options{Self: "eu", Peers: peers, Store: memstore.New(memstore.Options{})}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("the peers %q: %v; want ErrInvalid", peers, err)
		}
	}
}

// A store of a region decides limits of this region as before, and does not note them.
func TestOtherLimitsStayAsTheyAre(t *testing.T) {
	eu := exchanges(t, Options{}, "eu", "us")["eu"]
	if n := spend(t, eu, plan(t, "9/h", penstock.TokenBucket), "k", 100); n != 9 {
		t.Errorf("%d units are granted; want 9", n)
	}
	small := plan(t, "1/h", algorithm.Across(penstock.TokenBucket))
	us := exchanges(t, Options{}, "eu", "us")["us"]
	if _, err := us.Store().Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: small, Cost: 1}}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a limit that has no share: %v; want ErrInvalid", err)
	}
	if a, err := eu.Site().Answer(t.Context(), Ask{From: "us"}); err != nil || len(a.Totals) != 0 || !a.IsFull {
		t.Errorf("the answer is %+v, %v; want no totals", a, err)
	}
}
