package adminapi

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
)

func TestTimingsOfStoreAndUpstream(t *testing.T) {
	f := newFixture(t, nil)
	r := f.options.Recorder
	tick := func(second int) { r.Tick(time.Duration(second)*time.Second, func(func(activity.Series, uint64)) {}) }
	tick(0)
	for range 99 {
		r.Store.Observe(7 * time.Microsecond)
	}
	r.Store.Observe(2 * time.Millisecond)
	r.Upstream.Observe(5 * time.Microsecond)
	r.Upstream.Fail()
	tick(3)
	state := read[State](f, "state")
	// A quantile is the upper end of the range that has the time: 7 µs are in the range up to 8 µs.
	if want := (Latency{Calls: 100, P50: 8, P95: 8, P99: 8}); state.Store.Latency != want {
		t.Errorf("the latency of the store is %+v; want %+v", state.Store.Latency, want)
	}
	if want := (Upstream{"http://127.0.0.1:3000", Latency{Calls: 1, Failed: 1, P50: 6, P95: 6, P99: 6}}); *state.Upstream != want {
		t.Errorf("the upstream is %+v; want %+v", state.Upstream, want)
	}
	if state.Waiting != 3 || state.Times.Last != 3 || state.Recent.Last != 3 || len(state.Times.Store.Calls) != recentSeconds {
		t.Errorf("the state is %+v; want 3 waiting requests, and times of the last seconds", state)
	}
	got := read[Timings](f, "timings?last=5")
	if !slices.Equal(got.Store.Calls, []uint64{0, 0, 0, 0, 100}) || got.Store.P99[4] != 8 || got.Last != 3 || !slices.Equal(got.Upstream.Failed, []uint64{0, 0, 0, 0, 1}) {
		t.Errorf("the timings are %+v; want 100 calls in the last second, and one failure of the upstream", got)
	}
	tick(61)
	if got := read[Timings](f, "timings?span=minutes&last=2"); got.Last != 1 || got.Store.Calls[0] != 100 || got.Store.Calls[1] != 0 {
		t.Errorf("the timings by the minute are %+v; want 100 calls in the first and none in the last", got)
	}
	if got := read[History](f, "history?span=minutes&last=2"); got.Last != 1 {
		t.Errorf("the history by the minute is %+v; want 1 as the number of its last minute", got)
	}
	alone := newFixture(t, func(o *Options) { o.Upstream = func() string { return "" } })
	if state, got := read[State](alone, "state"), read[Timings](alone, "timings"); state.Upstream != nil || got.Upstream != nil {
		t.Errorf("without an upstream: its state is %+v and its timings are %+v; want none", state.Upstream, got.Upstream)
	}
}

func TestStateShowsWhatMayBeAdmittedWhileTheStoreFails(t *testing.T) {
	store := StoreState{Breakers: map[string]string{"default": "closed"}, Instances: 2}
	f := newFixture(t, func(o *Options) { o.StoreInfo = func(context.Context) StoreState { return store } })
	if got := read[StoreState](f, "store"); got.Over != nil {
		t.Errorf("while the store works, the bounds are %+v; want none", got.Over)
	}
	for _, change := range []func(){func() { store.Breakers["default"] = "open" }, func() { store.Breakers["default"], store.IsFailing = "closed", true }} {
		change()
		got := read[StoreState](f, "store")
		// The shadow of the policy is neither listed nor skipped, because it admits nothing.
		if got.Over == nil || len(got.Over.Limits) != 3 || got.Over.Skipped != 0 {
			t.Fatalf("while the store fails, the bounds are %+v; want those of 3 limits", got.Over)
		}
		one := got.Over.Limits[1]
		if one.Rule != "api" || one.Limit != "day" || one.OnFailure != "local" || len(one.Bounds) != 2 {
			t.Fatalf("the limit is %+v; want api.day with on_failure local and 2 bounds", one)
		}
		if b := one.Bounds[0]; b.When != "store fails" || b.Over == nil || *b.Over <= 0 || b.Text == "" {
			t.Errorf("the first bound is %+v; want units and a text for a failing store", b)
		}
	}
}

func TestHistoryAddsUpRules(t *testing.T) {
	f := newFixture(t, nil)
	f.options.Recorder.Tick(time.Second, func(add func(activity.Series, uint64)) {
		add(activity.Series{Rule: "api", Limit: "hour", Name: "denied"}, 7)
		add(activity.Series{Rule: "api", Limit: "day", Name: "denied"}, 5)
		add(activity.Series{Rule: "all", Limit: "hour", Name: "denied"}, 1)
		add(activity.Series{Name: "source:store"}, 9)
	})
	// The keys are the rule and the name of a line. The line without a rule is the sum of all rules.
	want := map[string]uint32{" denied": 13, "api denied": 12, "all denied": 1, " source:store": 9}
	for _, got := range []History{read[History](f, "history?sum=rules&last=1"), read[State](f, "state").Recent} {
		if len(got.Lines) != len(want) {
			t.Errorf("the lines are %+v; want %d", got.Lines, len(want))
		}
		for _, line := range got.Lines {
			if n := line.Counts[len(line.Counts)-1]; n != want[line.Rule+" "+line.Name] || line.Limit != "" {
				t.Errorf("the line is %+v; want the count %d, and no limit", line, want[line.Rule+" "+line.Name])
			}
		}
	}
	if got := read[History](f, "history?sum=rules&rule=api&last=1"); len(got.Lines) != 2 || got.Lines[0].Counts[0] != 12 || got.Lines[1].Counts[0] != 12 {
		t.Errorf("the lines of one rule are %+v; want 2 with 12 each", got.Lines)
	}
	if got := read[History](f, "history?last=1"); len(got.Lines) != 4 || got.Lines[1].Limit == "" {
		t.Errorf("the lines of all limits are %+v; want 4, each with its limit", got.Lines)
	}
}
