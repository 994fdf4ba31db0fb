package activity

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

func plainNames() func([]byte, string) []byte {
	return rediskeys.NewNames(nil).Append
}

const testPolicy = `
rules:
  - name: api
    per: {key: header X-Key}
    limits: [{rate: 10/h, candidate: {rate: 5/h}}, {name: day, rate: 1000/d}]
`

func rulesOf(t testing.TB, text string) *policy.Rules {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policyfile.Load(file, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p.Rules
}

// attributes are those of a request with a key.
type attributes struct{ key []string }

func (a attributes) Lookup(kind policy.Kind, name string) []string {
	switch kind {
	case policy.KindHeader:
		return a.key
	case policy.KindMethod:
		return get
	case policy.KindPath:
		return root
	}
	return nil
}
func (attributes) HasHeader(func(string) bool) bool { return false }
func (attributes) BodySize() int64                  { return 0 }
func (attributes) Address() netip.Addr              { return netip.Addr{} }

var get, root = []string{"GET"}, []string{"/"}

// A fixture is a Recorder that reads the events of a controller, whose store is in memory.
type fixture struct {
	*Recorder
	*admission.Controller
	rules *policy.Rules
}

func newFixture(t testing.TB, text string, o Options) *fixture {
	t.Helper()
	f := &fixture{Recorder: New(o), rules: rulesOf(t, text)}
	f.SetLimits(f.rules.Plans())
	c, err := admission.New(memstore.New(memstore.Options{}), f.rules, admission.Options{Observe: f.Recorder.Observe})
	if err != nil {
		t.Fatal(err)
	}
	f.Controller = c
	return f
}

func (f *fixture) decide(key string) admission.Outcome {
	a, outcome, _ := f.Admit(context.Background(), admission.Request{Attributes: attributes{[]string{key}}})
	a.Done(admission.Result{})
	return outcome
}

// noCounters is for a Tick of an instance without counters.
func noCounters(func(Series, uint64)) {}

// A denial by new_identities has the name of its limit, as in the log.
func TestDenialsOfNewIdentitiesNameTheirLimit(t *testing.T) {
	f := newFixture(t, "rules: [{name: api, per: {key: header X-Key}, new_identities: 1/h, limits: [{rate: 9/h}]}]", Options{Names: plainNames})
	f.SetLimits(append(f.rules.Plans(), f.rules.Spec().Rules[0].NewIdentities))
	for _, key := range []string{"a", "b", "c"} {
		f.decide(key)
	}
	f.Tick(time.Second, noCounters)
	got := f.Activity(FiveMinutes).Tops[Denied].Items
	if len(got) != 1 || got[0].Rule != "api" || got[0].Limit != reserved.NewIdentities || got[0].Weight != 2 {
		t.Errorf("the denied keys are %+v; want one with 2 denials by api.%s", got, reserved.NewIdentities)
	}
}

// Of a limit above 2^50 units, a hundredth is computed first, because a product would overflow.
func TestKeysNearVeryLargeLimitsAreFound(t *testing.T) {
	r := New(Options{NearPercent: 80})
	for _, count := range []int64{1 << 50, 1<<50 + 100, 1 << 51, penstock.MaxCost} {
		plan, err := penstock.Limit{Name: "l", Algorithm: penstock.FixedWindow, Count: count, Period: 24 * time.Hour}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		most := count / 100 * 20
		if count <= 1<<50 {
			most = count * 20 / 100
		}
		for _, remaining := range []int64{0, most - 1, most, most + 1, count / 2, count} {
			want := remaining <= most
			if got := r.isNear(&penstock.Charge{Plan: plan, Cost: 1}, remaining); got != want {
				t.Errorf("with %d of %d units left, a request is near the limit: %v; want %v", remaining, count, got, want)
			}
		}
	}
}

func TestRecorderCountsKeysThatAreDeniedOrNearTheLimit(t *testing.T) {
	f := newFixture(t, testPolicy, Options{Names: plainNames})
	for range 14 {
		f.decide("a-b")
	}
	f.decide("c")
	f.Tick(time.Second, noCounters)
	got := f.Activity(FiveMinutes)
	for kind, want := range map[Kind][]Item{
		Denied: {{Rule: "api", Limit: "hour", Name: "key:a-b", Weight: 4}},
		Near:   {{Rule: "api", Limit: "hour", Name: "key:a-b", Weight: 3}}, // with 2, 1 and 0 left
		Units: {{Rule: "api", Limit: "day", Name: "key:a-b", Weight: 10}, {Rule: "api", Limit: "hour", Name: "key:a-b", Weight: 10},
			{Rule: "api", Limit: "day", Name: "key:c", Weight: 1}, {Rule: "api", Limit: "hour", Name: "key:c", Weight: 1}},
		ShadowDenied: {{Rule: "api", Limit: "hour.candidate", Name: "key:a-b", Weight: 9}}, // of 14 requests, 5 fit
	} {
		if !slices.Equal(got.Tops[kind].Items, want) {
			t.Errorf("the keys of the kind %v are %+v; want %+v", kind, got.Tops[kind].Items, want)
		}
	}
	if n, deviation := got.Denied.Count(); n != 1 || deviation != 0 {
		t.Errorf("%v ± %v different keys were denied; want 1", n, deviation)
	}
	if n := f.History().Since(10)[Series{"api", "hour", NearLimit}]; n != 3 {
		t.Errorf("%d requests near the limit; want 3", n)
	}
	if n := f.History().Since(10)[Series{"api", "hour.candidate", NearLimit}]; n != 0 {
		t.Errorf("%d requests are counted near the candidate's limit; want 0, because a candidate limits nothing", n)
	}
}

// The commands of Redis clients state the rates of the limit that is kept for CL.THROTTLE. All of
// these plans count as one limit, also after a reload.
func TestKeptLimitsHaveTheirNames(t *testing.T) {
	f := newFixture(t, testPolicy, Options{Names: plainNames})
	f.Keep(penstock.PerSecond(1).WithName("kept").MustCompile())
	for i := range 3 {
		f.observeDenied(penstock.PerHour(int64(i+1)).WithName("kept").MustCompile(), "k", rand.Uint32())
		f.observeDenied(penstock.PerHour(int64(i+1)).WithName("unknown").MustCompile(), "k", rand.Uint32())
		f.SetLimits(f.rules.Plans())
	}
	want := []Item{{Rule: "kept", Limit: "kept", Name: "k", Weight: 3}, {Rule: Overflow, Limit: Overflow, Name: "k", Weight: 3}}
	if got := f.Activity(FiveMinutes).Tops[Denied].Items; !slices.Equal(got, want) {
		t.Errorf("the denied keys are %+v; want %+v", got, want)
	}
}

func TestKeysOfGlobalLimitsAndKeysWithoutNamesAreNotRecorded(t *testing.T) {
	f := newFixture(t, "rules: [{name: all, per: global, limits: [{rate: 2/h}]}]", Options{Names: plainNames})
	for range 5 {
		f.decide("a")
	}
	f.Tick(time.Second, noCounters)
	if a := f.Activity(Hour); len(a.Tops[Denied].Items)+len(a.Tops[Near].Items)+len(a.Tops[Units].Items) != 0 {
		t.Errorf("a limit that all clients share has the active keys %+v; want none", a.Tops)
	} else if n, _ := a.Denied.Count(); n != 0 {
		t.Errorf("a limit that all clients share has %v different keys that were denied; want none", n)
	}
	if n := f.History().Since(10)[Series{"all", "hour", NearLimit}]; n != 1 {
		t.Errorf("%d requests near the limit; want 1", n)
	}
	f = newFixture(t, testPolicy, Options{})
	for range 20 {
		f.decide("a")
	}
	if a := f.Activity(Hour); len(a.Tops[Denied].Items)+len(a.Tops[Near].Items)+len(a.Tops[Units].Items) != 0 {
		t.Errorf("without Options.Names, keys are recorded: %+v; want none", a.Tops)
	}
	if n, _ := f.Activity(Hour).Denied.Count(); n != 1 {
		t.Errorf("%v different keys were denied; want 1", n)
	}
}

func TestWindowsDropOldActivity(t *testing.T) {
	f := newFixture(t, testPolicy, Options{Names: plainNames})
	denied := func(w Window) (n uint64) {
		for _, item := range f.Activity(w).Tops[Denied].Items {
			n += item.Weight
		}
		return n
	}
	deny := func(n int) {
		for range n {
			f.observeDenied(f.rules.Plans()[0], "k", rand.Uint32())
		}
	}
	check := func(minute int, recent, hour uint64) { // recent and hour are the denials of the windows
		t.Helper()
		f.Tick(time.Duration(minute)*time.Minute, noCounters)
		if a, b := denied(FiveMinutes), denied(Hour); a != recent || b != hour {
			t.Errorf("in minute %d there are %d denials in 5 minutes and %d in an hour; want %d and %d", minute, a, b, recent, hour)
		}
	}
	deny(1)
	check(0, 1, 1)
	check(4, 1, 1)
	deny(10)
	check(5, 10, 11)
	deny(100)
	check(9, 100, 111) // of the minutes 5 to 9
	check(10, 0, 111)
	check(59, 0, 111)
	check(60, 0, 0) // the part of minutes 0 to 9 has ended
	deny(7)
	check(100, 0, 7)
	deny(3)
	check(3000, 0, 0) // a long suspension
}

// A flood of keys does not hide a heavy key.
func TestRecorderSamplesFloods(t *testing.T) {
	effort.SkipUnderRace(t)
	f := newFixture(t, testPolicy, Options{Names: plainNames})
	plan := f.rules.Plans()[0]
	const events = 400_000
	exact := make(map[string]uint64)
	r := rand.New(rand.NewPCG(knownSeed, 0))
	for i := range events {
		key := fmt.Sprint("new:", i)
		if i%10 == 0 {
			key = fmt.Sprint("heavy:", r.IntN(5))
		}
		exact[key]++
		f.observeDenied(plan, key, r.Uint32())
	}
	if gap := f.streams[Denied].gap.Load(); gap < 4 {
		t.Errorf("after %d events in a second, the gap is %d; want at least 4", events, gap)
	}
	a := f.Activity(FiveMinutes)
	found := 0
	for _, item := range a.Tops[Denied].Items {
		least, most := item.Bounds()
		if n := exact[item.Name]; n < least || n > most {
			t.Errorf("the bounds of %s are %d to %d; want bounds around its true weight, %d", item.Name, least, most, n)
		}
		if exact[item.Name] > 1000 {
			found++
		}
	}
	if found != 5 {
		t.Errorf("%d of 5 heavy keys were found; want all", found)
	}
	if n, deviation := a.Denied.Count(); n < float64(len(exact))-5*deviation || n > float64(len(exact))+5*deviation {
		t.Errorf("%.0f ± %.0f different keys; want %d", n, deviation, len(exact))
	}
	for second := range 30 {
		f.Tick(time.Duration(second)*time.Second, noCounters)
	}
	if gap := f.streams[Denied].gap.Load(); gap != 1 {
		t.Errorf("after 30 quiet seconds, the gap is %d; want 1", gap)
	}
}

// Observe does not wait while another goroutine uses a sketch.
func TestObserveWaitsForNothing(t *testing.T) {
	f := newFixture(t, testPolicy, Options{Names: plainNames})
	for i := range f.streams {
		f.streams[i].mu.Lock()
	}
	f.denied.mu.Lock()
	f.mu.Lock()
	f.history.mu.Lock()
	for range 14 { // 10 are allowed, by 2 limits each; decide would not return if Observe waited
		f.decide("a")
	}
	f.history.mu.Unlock()
	f.mu.Unlock()
	f.denied.mu.Unlock()
	for i := range f.streams {
		f.streams[i].mu.Unlock()
	}
	a := f.Activity(FiveMinutes)
	if top := a.Tops[Denied]; len(top.Items) != 0 || top.Missed != 4 || a.Denied.Missed != 4 || a.Tops[Units].Missed != 20 {
		t.Errorf("missed events: %d denials, %d different keys and %d units, with the items %+v; want 4, 4, 20 and no items", top.Missed, a.Denied.Missed, a.Tops[Units].Missed, top.Items)
	}
}

func TestManyGoroutinesObserveAtOnce(t *testing.T) {
	f := newFixture(t, testPolicy, Options{Names: plainNames})
	plan := f.rules.Plans()[0]
	const each, goroutines = 5_000, 4 // the keys are k:0 to k:5
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for n := range each {
				f.observeDenied(plan, fmt.Sprint("k:", n%(3+i)), rand.Uint32())
			}
		})
	}
	for i := range 50 {
		f.Tick(time.Duration(i)*time.Second, noCounters)
		f.Activity(Hour)
	}
	all.Wait()
	a := f.Activity(Hour)
	if n, _ := a.Denied.Count(); n > 6 || n+float64(a.Denied.Missed) < 6 {
		t.Errorf("%v different keys were denied, and %d denials were missed; want 6 keys, or fewer by the missed ones", n, a.Denied.Missed)
	}
	for _, item := range a.Tops[Denied].Items {
		var exact uint64
		for i := range goroutines {
			for n := range each {
				if item.Name == fmt.Sprint("k:", n%(3+i)) {
					exact++
				}
			}
		}
		if least, most := item.Bounds(); exact < least || exact > most+a.Tops[Denied].Missed {
			t.Errorf("the bounds of %s are %d to %d, and %d were missed; want bounds around its true weight, %d", item.Name, least, most, a.Tops[Denied].Missed, exact)
		}
	}
}

// decisions returns a function that decides a request of one of many keys.
func decisions(t testing.TB, text string, observe func(*admission.Event)) func(i int) {
	rules := rulesOf(t, text)
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{Observe: observe})
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]policy.Attributes, 1000)
	for i := range keys {
		keys[i] = attributes{[]string{fmt.Sprint("client-", i)}}
	}
	ctx, a := context.Background(), new(admission.Admission)
	return func(i int) {
		*a = admission.Admission{}
		c.Admit(ctx, admission.Request{Attributes: keys[i%len(keys)], RequestOptions: admission.RequestOptions{Reuse: a}})
		a.Done(admission.Result{})
	}
}

// loads are policies for measurements. The name is what happens to the requests.
var loads = []struct{ name, policy string }{
	{"allowed", "rules: [{name: a, per: {key: header X-Key}, limits: [{rate: 100M/s}]}]"},
	{"two limits", "rules: [{name: a, per: {key: header X-Key}, limits: [{rate: 100M/s}, {rate: 100000M/d}]}]"},
	{"denied", "rules: [{name: a, per: {key: header X-Key}, limits: [{rate: 1/d}]}]"},
}

func TestObserveAllocatesNothing(t *testing.T) {
	effort.SkipUnderRace(t)
	for _, names := range []redisstore.Options{{}, {Secret: []byte("pepper")}} {
		for _, load := range loads {
			r := New(Options{Names: func() func([]byte, string) []byte { return rediskeys.NewNames(names.Secret).Append }})
			r.SetLimits(rulesOf(t, load.policy).Plans())
			without, with, n := decisions(t, load.policy, nil), decisions(t, load.policy, r.Observe), 0
			allocations := func(decide func(int)) float64 {
				return testing.AllocsPerRun(20_000, func() { decide(n); n++ })
			}
			if a, b := allocations(without), allocations(with); b > a {
				t.Errorf("%s: a decision takes %v allocations, and %v with a recorder; want no more", load.name, a, b)
			}
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	plan := rulesOf(t, testPolicy).Plans()[0]
	heap()
	before := heap()
	r := New(Options{Names: plainNames})
	unused := heap() - before
	e := admission.Event{Outcome: admission.Allowed, Charges: []penstock.Charge{{Plan: plan, Cost: 1}}, Decision: new(penstock.Decision)}
	for minute := range 70 {
		for i := range 2000 {
			e.Charges[0].Key = fmt.Sprintf("key:%0100d:%d", minute, i)
			r.observeDenied(plan, e.Charges[0].Key, rand.Uint32())
			r.Observe(&e)
		}
		r.Tick(time.Duration(minute)*time.Minute, noCounters)
	}
	keys := heap() - before
	r.Tick(70*time.Minute, func(add func(Series, uint64)) {
		for i := range 2 * MaxSeries {
			add(Series{"r", fmt.Sprint(i), "allowed"}, 1)
		}
	})
	all := heap() - before
	runtime.KeepAlive(r)
	t.Logf("counted: %d KB of memory at first, %d KB with all windows full of long keys, %d KB with all rings", unused>>10, keys>>10, all>>10)
	if all > 16<<20 {
		t.Errorf("a recorder uses %d KB; want at most 16 MB", all>>10)
	}
}

func TestKindsHaveNames(t *testing.T) {
	names := make(map[string]bool)
	for _, k := range Kinds() {
		names[k.String()] = true
	}
	if len(names) != int(kindCount) || names["unknown"] || kindCount.String() != "unknown" {
		t.Errorf("the kinds have the names %v, and one past the last %q; want %d names, and unknown", names, kindCount, kindCount)
	}
}
