package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

// looserShadows is a policy whose shadows allow more than the enforced limit.
const looserShadows = `
rules:
  - {name: a, per: global, limits: [{rate: 2/h, candidate: {rate: 5/h}}]}
  - {name: b, always: true, shadow: true, per: global, limits: [{rate: 7/h}]}
`

func TestLooserShadowsReportWhatTheyWouldAllow(t *testing.T) {
	gate, seen := memoryGate(t, looserShadows)
	h := gate.Middleware(respond(200))
	for i := range 10 {
		want := 429
		if i < 2 {
			want = 200
		}
		if w := send(h, "GET", "/"); w.Code != want {
			t.Errorf("request %d: status %d; want %d", i+1, w.Code, want)
		}
	}
	got := make(map[string]int)
	for _, e := range seen.list {
		got[e.Rule+"."+e.Limit+" "+e.Outcome.String()]++
	}
	for what, want := range map[string]int{"a.hour allowed": 2, "a.hour denied": 8, "a.hour.candidate shadow_allowed": 5, "a.hour.candidate shadow_denied": 5,
		"b.hour shadow_allowed": 7, "b.hour shadow_denied": 3} {
		if got[what] != want {
			t.Errorf("%s: %d events; want %d", what, got[what], want)
		}
	}
}

// isShadow reports whether a batch belongs to a shadow: a candidate, or the rule b.
func isShadow(charges []penstock.Charge) bool {
	return strings.HasSuffix(charges[0].Plan.Name(), ".candidate") || charges[0].Plan.Group() == "b"
}

func TestFailuresOfShadowsAreIgnored(t *testing.T) {
	for _, err := range []error{penstock.ErrUnavailable, penstock.ErrInvalid, errors.New("unclassified")} {
		memory := memstore.New(memstore.Options{})
		gate, seen := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if isShadow(charges) {
				return penstock.Decision{}, err
			}
			return memory.Decide(ctx, charges)
		}), looserShadows)
		h := gate.Middleware(respond(200))
		for i, want := range []int{200, 200, 429, 429} {
			if w := send(h, "GET", "/"); w.Code != want {
				t.Errorf("%v: request %d: status %d; want %d", err, i+1, w.Code, want)
			}
		}
		for _, e := range seen.list {
			if e.Err != nil || e.Source != penstock.FromStore {
				t.Errorf("%v: observed %+v; want no event of a shadow", err, e)
			}
		}
	}
}

// otherAlgorithms is a policy whose shadows have another algorithm than the enforced limit.
const otherAlgorithms = `
rules:
  - {name: a, per: global, limits: [{rate: 2/h, candidate: {rate: 5/h, algorithm: sliding-window}}]}
  - {name: b, always: true, shadow: true, per: global, limits: [{rate: 7/h, algorithm: sliding-window}]}
`

// Shadows of other algorithms are decided concurrently: all batches of a request are sent before
// the store decides the first one.
func TestShadowsAreDecidedTogetherWithEnforcedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, sent := memstore.New(memstore.Options{}), make(chan bool, 3)
		allSent := make(chan struct{})
		gate, seen := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			sent <- isShadow(charges)
			<-allSent
			return memory.Decide(ctx, charges)
		}), otherAlgorithms)
		served := make(chan int, 1)
		go func() { served <- send(gate.Middleware(respond(200)), "GET", "/").Code }()
		synctest.Wait()
		if len(sent) != 3 {
			t.Errorf("%d batches were sent before the first decision; want 3", len(sent))
		}
		close(allSent)
		if status := <-served; status != 200 || seen.count(admission.ShadowAllowed) != 2 {
			t.Errorf("status %d, and %d shadows allowed the request; want 200 and 2", status, seen.count(admission.ShadowAllowed))
		}
	})
}

func TestDeniedRequestsKeepNoSlotOfAShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, seen := memoryGate(t, "rules: [{name: a, per: global, limits: [{name: slots, in_flight: 1, candidate: {in_flight: 2}}]}]")
		release := make(chan struct{})
		h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		served := make(chan int, 1)
		go func() { served <- send(h, "GET", "/").Code }()
		synctest.Wait()
		for range 5 { // the candidate allows each request, because the previous one has returned its slot
			if w := send(h, "GET", "/"); w.Code != 429 {
				t.Errorf("status %d; want 429", w.Code)
			}
			synctest.Wait() // slots are returned in the background
		}
		close(release)
		<-served
		if allowed, denied := seen.count(admission.ShadowAllowed), seen.count(admission.ShadowDenied); allowed != 6 || denied != 0 {
			t.Errorf("the candidate would have allowed %d requests and denied %d; want 6 and 0", allowed, denied)
		}
	})
}

// A denied request gets status 429 and not 401, so the shadow with on_status 401 must not count it.
func TestDeniedRequestsAreNotChargedByStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, seen := memoryGate(t, `
rules: [{name: a, per: global, limits: [{name: hard, rate: 1/h}, {name: failed, rate: 3/h, on_status: 401, shadow: true}]}]
`)
		h := gate.Middleware(respond(401))
		for i := range 10 {
			if w := send(h, "GET", "/"); (w.Code == 401) != (i == 0) {
				t.Errorf("request %d: status %d; want 429 after the first", i+1, w.Code)
			}
			synctest.Wait()
		}
		if denied := seen.count(admission.ShadowDenied); denied != 0 {
			t.Errorf("the shadow would have denied %d requests; want 0, because only one of the 3 failures that it allows was served", denied)
		}
	})
}
