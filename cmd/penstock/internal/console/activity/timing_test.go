package activity

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

func TestQuantilesAreWithinAQuarter(t *testing.T) {
	r := rand.New(rand.NewPCG(effort.Seed(), 1))
	for range 200 {
		timing := Timing{history: NewHistory()}
		all := make([]time.Duration, 1+r.IntN(500))
		for i := range all {
			all[i] = time.Duration(math.Exp(r.Float64()*math.Log(float64(time.Minute)))) + 16*time.Microsecond // up to 1 min
			timing.Observe(all[i])
		}
		slices.Sort(all)
		timing.tick(time.Second)
		got := timing.Since(10)
		if got.Calls != uint64(len(all)) || got.Failed != 0 {
			t.Fatalf("of %d calls, %d were counted, and %d failures; want all and none", len(all), got.Calls, got.Failed)
		}
		for percent, q := range map[int]time.Duration{50: got.P50, 95: got.P95, 99: got.P99} {
			if exact := all[(percent*len(all)+99)/100-1]; q <= exact || q*4/5 > exact {
				t.Fatalf("of %d calls, %d %% took at most %v; the quantile is %v; want more, but at most 25 %% more", len(all), percent, exact, q)
			}
		}
	}
}

func TestDurationsBelongToOneCounter(t *testing.T) {
	last := time.Duration(0)
	for i := range failures {
		end := endOf(i)
		if end <= last {
			t.Fatalf("counter %d ends at %v; want more than %v, the end of the counter before", i, end, last)
		}
		next := min(i+1, failures-1)
		if before, at := counterOf(end-time.Nanosecond), counterOf(end); before != i || at != next {
			t.Fatalf("counter %d ends at %v; a nanosecond less is in counter %d, and the end in %d; want %d and %d", i, end, before, at, i, next)
		}
		last = end
	}
	for _, d := range []time.Duration{-time.Second, math.MinInt64} {
		if i := counterOf(d); i != 0 {
			t.Errorf("%v is in counter %d; want 0", d, i)
		}
	}
	if i := counterOf(math.MaxInt64); i != failures-1 {
		t.Errorf("the longest time is in counter %d; want %d", i, failures-1)
	}
}

func TestTimesAreKeptBySecondAndByMinute(t *testing.T) {
	timing := Timing{history: NewHistory()}
	timing.tick(0)
	timing.Observe(3 * time.Microsecond)
	timing.tick(time.Second)
	timing.Observe(9 * time.Microsecond)
	timing.Observe(9 * time.Microsecond)
	timing.Fail()
	timing.tick(60 * time.Second)
	us := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
	seconds := timing.BySecond(60)
	if one, two := (Times{1, 0, us(4), us(4), us(4)}), (Times{2, 1, us(10), us(10), us(10)}); seconds[0] != one || seconds[59] != two || seconds[30] != (Times{}) {
		t.Errorf("the seconds 0, 30 and 59 are %v, %v and %v; want 1 call, none, and 2 with 1 failure", seconds[0], seconds[30], seconds[59])
	}
	if minutes := timing.ByMinute(2); minutes[0].Calls != 1 || minutes[1].Calls != 2 || minutes[1].Failed != 1 {
		t.Errorf("the minutes are %v; want 1 call, then 2 with 1 failure", minutes)
	}
}

func TestRequestsThatWaitedAreCounted(t *testing.T) {
	rules := rulesOf(t, "rules: [{name: api, per: global, limits: [{rate: 60/m, burst: 1, max_wait: 1h}]}]")
	r := New(Options{})
	r.SetLimits(rules.Plans())
	store, plan := memstore.New(memstore.Options{Now: func() time.Time { return time.Unix(1e9, 0) }}), rules.Plans()[0]
	for range 3 {
		charges := []penstock.Charge{{Key: "global", Plan: plan, Cost: 1, Patience: time.Hour}}
		d, err := store.Decide(t.Context(), charges)
		if err != nil || !d.Allowed {
			t.Fatalf("the decision is %+v, %v; want an allowed one", d, err)
		}
		r.Observe(&admission.Event{Rule: "api", Limit: plan.Name(), Key: "global", Decision: &d, Charges: charges})
	}
	r.Tick(time.Second, func(func(Series, uint64)) {})
	if n := r.History().Since(10)[Series{"api", plan.Name(), Waited}]; n != 2 {
		t.Errorf("%d requests are counted as waited; want 2", n)
	}
}
