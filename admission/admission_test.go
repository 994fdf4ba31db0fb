package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/flaky"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// rulesOf compiles the rules of a policy file with this text.
func rulesOf(t testing.TB, text string) *policy.Rules {
	t.Helper()
	p, err := policyfile.Parse("test.yaml", []byte(text), nil, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Rules
}

// A copiedEvent is a copy of an Event, because an observer must not keep the Event itself.
type copiedEvent struct {
	admission.Event
	decision penstock.Decision // a copy of Event.Decision, or zero if there was none
	costs    []int64           // of Event.Charges
}

// events collects the events of a Controller.
type events struct {
	mu   sync.Mutex
	list []copiedEvent
}

func (e *events) add(event *admission.Event) {
	copied := copiedEvent{Event: *event}
	if event.Decision != nil {
		copied.decision = *event.Decision
	}
	for i := range event.Charges {
		copied.costs = append(copied.costs, event.Charges[i].Cost)
	}
	copied.Decision, copied.Charges = nil, nil
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, copied)
}

// take returns the events since the last take.
func (e *events) take() []copiedEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list = nil
	return list
}

// takeOutcomes returns the outcomes of the events since the last take.
func (e *events) takeOutcomes() (outcomes []admission.Outcome) {
	for _, event := range e.take() {
		outcomes = append(outcomes, event.Outcome)
	}
	return outcomes
}

// controllerOf makes a Controller for a policy file with this text, and collects its events.
func controllerOf(t testing.TB, store penstock.Store, text string) (*admission.Controller, *events) {
	t.Helper()
	rules, seen := rulesOf(t, text), new(events)
	c, err := admission.New(store, rules, admission.Options{Observe: seen.add})
	if err != nil {
		t.Fatal(err)
	}
	return c, seen
}

// memoryControllerOf makes a Controller like controllerOf, with counters in memory.
func memoryControllerOf(t testing.TB, text string) (*admission.Controller, *events) {
	t.Helper()
	return controllerOf(t, memstore.New(memstore.Options{}), text)
}

// oneWaitingControllerOf makes a Controller like memoryControllerOf, by which at most one request
// waits.
func oneWaitingControllerOf(t testing.TB, text string) *admission.Controller {
	t.Helper()
	spec := rulesOf(t, text).Spec()
	spec.MaxWaiting = 1
	rules, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// transportOf makes a JSON transport for a policy file with this text, with counters in memory. It
// collects the events.
func transportOf(t testing.TB, text string) (*transport, *events) {
	t.Helper()
	c, seen := memoryControllerOf(t, text)
	return &transport{controller: c}, seen
}

// post sends a request to the transport.
func post(ctx context.Context, t *transport, q jsonRequest) (reply jsonResponse) {
	body, err := json.Marshal(q)
	if err != nil {
		panic(err)
	}
	w := httptest.NewRecorder()
	t.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/", bytes.NewReader(body)))
	if err := json.Unmarshal(w.Body.Bytes(), &reply); err != nil {
		panic(err)
	}
	return reply
}

const perUserPolicy = `
rules:
  - {name: search, match: {path: /search}, per: {user: header X-User}, limits: [{rate: 2/h}, {rate: 10/d}]}
`

func TestTransportAllowsAndDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, seen := transportOf(t, perUserPolicy)
		send := func(user, path string) jsonResponse {
			return post(t.Context(), server, jsonRequest{Path: path, User: user})
		}
		for left := int64(1); left >= 0; left-- {
			want := jsonResponse{Outcome: "allowed", Remaining: map[string]int64{"search.hour": left, "search.day": 8 + left}}
			if got := send("a", "/search"); !reflect.DeepEqual(got, want) {
				t.Errorf("the response to an allowed request is %+v; want %+v", got, want)
			}
		}
		want := jsonResponse{Outcome: "denied", Rule: "search", Policies: []string{"search.hour"}, RetryAfter: 30 * time.Minute,
			Remaining: map[string]int64{"search.hour": 0, "search.day": 8}}
		if got := send("a", "/search"); !reflect.DeepEqual(got, want) {
			t.Errorf("the response to a denied request is %+v; want %+v", got, want)
		}
		if got := send("b", "/search"); got.Outcome != "allowed" {
			t.Errorf("the response to another user's request is %+v; want it allowed", got)
		}
		if got := send("a", "/other"); got.Outcome != "unlimited" || len(got.Remaining) != 0 {
			t.Errorf("the response for a path without limits is %+v; want the outcome unlimited, and no limits", got)
		}
		time.Sleep(30 * time.Minute)
		if got := send("a", "/search"); got.Outcome != "allowed" {
			t.Errorf("the response to a request after RetryAfter is %+v; want it allowed", got)
		}

		list := seen.take()
		denial := list[2]
		if denial.Rule != "search" || denial.Limit != "hour" || denial.Algorithm != "token-bucket" || denial.Key != "user:a" ||
			denial.Outcome != admission.Denied || denial.Source != penstock.FromStore || denial.Err != nil {
			t.Errorf("the event of the denial is %+v; want denied by the store, by limit hour of rule search, algorithm token-bucket, key user:a, and no error", denial)
		}
		if denial.decision.Allowed || denial.decision.RetryAfter() != 30*time.Minute || !slices.Equal(denial.costs, []int64{1, 1}) {
			t.Errorf("the event of the denial has the decision %v on costs %v; want denied for 30m, on costs 1 and 1", denial.decision, denial.costs)
		}
		if unlimited := list[4]; unlimited.Outcome != admission.Unlimited || unlimited.Rule != "" || unlimited.Key != "" || unlimited.costs != nil {
			t.Errorf("the event of a path without limits is %+v; want unlimited, without a rule, key or costs", unlimited)
		}
	})
}

const queuePolicy = `
rules:
  - {name: jobs, per: global, limits: [{rate: 1/s, algorithm: leaky-bucket, burst: 5, max_wait: 10s}]}
`

func TestTransportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, seen := transportOf(t, queuePolicy)
		post(t.Context(), server, jsonRequest{})
		start := time.Now()
		clientCtx, disconnect := context.WithCancel(t.Context())
		var abandoned, next jsonResponse
		var nextAfter time.Duration
		var all sync.WaitGroup
		all.Go(func() { abandoned = post(clientCtx, server, jsonRequest{}) })
		synctest.Wait()
		all.Go(func() { next = post(t.Context(), server, jsonRequest{}); nextAfter = time.Since(start) })
		synctest.Wait()
		if n := server.controller.Waiting(); n != 2 {
			t.Errorf("%d requests wait; want 2", n)
		}
		disconnect()
		all.Wait()
		if abandoned.Outcome != "abandoned" || abandoned.Error != context.Canceled.Error() {
			t.Errorf("the response to a request whose client left is %+v; want the outcome abandoned, and the error of the context", abandoned)
		}
		if next.Outcome != "allowed" || nextAfter != 2*time.Second {
			t.Errorf("the response to the next request is %+v after %v; want it allowed after 2s", next, nextAfter)
		}
		// The place of the client that left is free again.
		start = time.Now()
		if got := post(t.Context(), server, jsonRequest{}); got.Outcome != "allowed" || time.Since(start) > time.Second {
			t.Errorf("the response to a later request is %+v after %v; want it allowed after 1s at most", got, time.Since(start))
		}
		want := []admission.Outcome{admission.Allowed, admission.Abandoned, admission.Allowed, admission.Allowed}
		if got := seen.takeOutcomes(); !slices.Equal(got, want) {
			t.Errorf("the outcomes of the events are %v; want %v", got, want)
		}
	})
}

func TestFullQueueDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := oneWaitingControllerOf(t, queuePolicy)
		admit := func() (admission.Rejection, admission.Outcome) {
			a, outcome, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
			defer a.Done(admission.Result{})
			return a.Rejection(), outcome
		}
		admit()
		var waits sync.WaitGroup
		waits.Go(func() { admit() })
		synctest.Wait()
		got, outcome := admit()
		want := admission.Rejection{Rule: "jobs", Policies: []string{"jobs.second"}, RetryAfter: 2 * time.Second}
		isEqual := got.Rule == want.Rule && slices.Equal(got.Policies, want.Policies) && got.RetryAfter == want.RetryAfter && got.Detail == want.Detail
		if outcome != admission.Denied || !isEqual || got.VisiblePolicies() != nil { // a limit of all clients together is hidden
			t.Errorf("a third request is %v with the rejection %+v; want denied with %+v", outcome, got, want)
		}
		waits.Wait()
	})
}

func TestTransportSettles(t *testing.T) {
	server, _ := transportOf(t, `
rules:
  - {name: chat, match: {path: /chat}, per: global, limits: [{name: tokens, rate: 1000/h, cost: {units: 100, actual: X-Tokens}, headers: true}]}
  - {name: login, match: {path: /login}, per: global, limits: [{name: failed, rate: 9/h, on_status: [401], headers: true}]}
  - {name: plain, match: {path: /plain}, per: global, limits: [{rate: 9/h}]}
`)
	cost := func(n int64) *int64 { return &n }
	// sendNext sends another request, and returns how many units it leaves.
	sendNext := func(path, limit string) int64 {
		return post(t.Context(), server, jsonRequest{Path: path, ID: "next"}).Remaining[limit]
	}
	// Each row of a path begins with the units that the row before it has left.
	for _, row := range []struct {
		name, path, limit string
		end               jsonRequest // how the request ends
		want              int64       // units left after the next request, which costs 100 units or 1
	}{
		{name: "a larger cost", path: "/chat", limit: "chat.tokens", end: jsonRequest{Cost: cost(350)}, want: 1000 - 350 - 100},
		{name: "a smaller cost", path: "/chat", limit: "chat.tokens", end: jsonRequest{Cost: cost(30)}, want: 550 - 30 - 100},
		{name: "no cost", path: "/chat", limit: "chat.tokens", end: jsonRequest{}, want: 420 - 100 - 100},
		{name: "a status that counts", path: "/login", limit: "login.failed", end: jsonRequest{Status: 401}, want: 9 - 1 - 1},
		{name: "a status that does not count", path: "/login", limit: "login.failed", end: jsonRequest{Status: 200}, want: 7 - 1},
		{name: "no status", path: "/login", limit: "login.failed", end: jsonRequest{}, want: 6 - 1 - 1},
	} {
		q := jsonRequest{ID: "1", Path: row.path}
		if got := post(t.Context(), server, q); got.Outcome != "allowed" {
			t.Fatalf("%s: the request is %+v; want it allowed", row.name, got)
		}
		row.end.ID, row.end.IsEnded = "1", true
		if got := post(t.Context(), server, row.end); got.Error != "" {
			t.Errorf("%s: the end of the request returned the error %q; want none", row.name, got.Error)
		}
		if got := sendNext(row.path, row.limit); got != row.want {
			t.Errorf("%s: %d units are left after the next request; want %d", row.name, got, row.want)
		}
	}
	post(t.Context(), server, jsonRequest{ID: "1", Path: "/plain"})
	if got := post(t.Context(), server, jsonRequest{ID: "1", IsEnded: true, Cost: cost(5)}); got.Error == "" {
		t.Error("a true cost is accepted although no limit of the request adjusts to it; want an error")
	}
}

func TestResultsSettleByNameAndBody(t *testing.T) {
	c, _ := memoryControllerOf(t, `
rules:
  - {name: a, per: global, limits: [{name: kb, rate: 1000/h, cost: {body: 1KB}, headers: true}, {name: tokens, rate: 1000/h, cost: {units: 10, actual: X-Tokens}, headers: true}]}
`)
	a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: unknownSize{}})
	if !a.NeedsResult() || !a.NeedsBodySize() {
		t.Errorf("NeedsResult is %t, NeedsBodySize is %t; want both to be true", a.NeedsResult(), a.NeedsBodySize())
	}
	a.Done(admission.Result{BodySize: 10_000, Cost: func(name string) (int64, bool) { return 7, name == "X-Tokens" }})
	a, _, _ = c.Admit(t.Context(), admission.Request{Attributes: attributes{}, RequestOptions: admission.RequestOptions{Peek: true}})
	var left []int64
	for _, s := range a.AppendVisible(nil) {
		left = append(left, s.Status.Remaining)
	}
	want := []int64{1000 - 10, 1000 - 7} // 10,000 bytes cost 10 units, and X-Tokens is 7
	if !slices.Equal(left, want) {
		t.Errorf("the units left of each limit are %v; want %v", left, want)
	}
}

// The cost of a body of known size, also of an empty one, is final.
func TestEmptyBodiesNeedNoResult(t *testing.T) {
	c, _ := memoryControllerOf(t, `
rules:
  - {name: a, per: global, limits: [{name: kb, rate: 1000/h, cost: {body: 1KB}}]}
`)
	a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
	defer a.Done(admission.Result{})
	if a.NeedsResult() || a.NeedsBodySize() {
		t.Errorf("NeedsResult is %t, NeedsBodySize is %t; want both to be false", a.NeedsResult(), a.NeedsBodySize())
	}
}

// unknownSize are attributes of a request whose body has an unknown size.
type unknownSize struct{ attributes }

func (unknownSize) BodySize() int64 { return -1 }

func TestRefundByStatusComesBeforeDone(t *testing.T) {
	c, _ := memoryControllerOf(t, "rules: [{name: a, per: global, limits: [{rate: 1/h, on_status: [401]}]}]")
	admit := func() (*admission.Admission, admission.Outcome) {
		a, outcome, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
		return a, outcome
	}
	first, _ := admit()
	first.RefundByStatus(200)
	second, outcome := admit()
	if outcome != admission.Allowed {
		t.Fatalf("a second request after RefundByStatus is %v; want allowed", outcome)
	}
	second.MarkStatusUnknown()
	second.RefundByStatus(200)
	second.Done(admission.Result{Status: 200})
	first.Done(admission.Result{Status: 200}) // this must not refund a second time
	if _, outcome := admit(); outcome != admission.Denied {
		t.Errorf("a request after one of unknown status is %v; want denied", outcome)
	}
}

func TestEachLimitHasItsFailureMode(t *testing.T) {
	for _, c := range []struct {
		onFailure  string
		want       []string // the outcomes of three requests; the limit is 2
		source     penstock.Source
		retryAfter time.Duration // of the last request
	}{
		{onFailure: "open", want: []string{"failed_open", "failed_open", "failed_open"}, source: penstock.FromOpen, retryAfter: 0},
		{onFailure: "closed", want: []string{"failed_closed", "failed_closed", "failed_closed"}, source: penstock.FromClosed, retryAfter: time.Second},
		{onFailure: "local", want: []string{"allowed", "allowed", "denied"}, source: penstock.FromFallback, retryAfter: 30 * time.Minute},
	} {
		// If a decorator hides the guards of the store, a second fallback changes nothing.
		for _, kind := range []struct{ hasGuards, isHidden bool }{
			{hasGuards: false},
			{hasGuards: true},
			{hasGuards: true, isHidden: true},
		} {
			hasGuards := kind.hasGuards
			t.Run(fmt.Sprintf("%s/%+v", c.onFailure, kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					text := "rules: [{name: a, per: global, limits: [{rate: 2/h, on_failure: " + c.onFailure + ", headers: true}]}]"
					bare := flaky.New(memstore.New(memstore.Options{}))
					bare.IsDown.Store(true)
					store := penstock.Store(bare)
					if hasGuards {
						guarded, err := guard.Standard(bare, guard.Options{Limits: rulesOf(t, text).Settings, Instances: 1})
						if err != nil {
							t.Fatal(err)
						}
						defer guarded.Close()
						store = guarded
						if kind.isHidden {
							store = penstock.StoreFunc(guarded.Decide)
						}
					}
					controller, seen := controllerOf(t, store, text)
					server := &transport{controller: controller}
					var last jsonResponse
					for i, want := range c.want {
						if last = post(t.Context(), server, jsonRequest{}); last.Outcome != want || last.Error != "" {
							t.Errorf("the response to request %d is %+v; want %s", i+1, last, want)
						}
					}
					isRejected := c.retryAfter > 0
					if last.RetryAfter != c.retryAfter || isRejected && !slices.Equal(last.Policies, []string{"a.hour"}) {
						t.Errorf("the last response is %+v; want RetryAfter %v, and the limit \"a.hour\" if that is above 0", last, c.retryAfter)
					}
					for _, e := range seen.take() {
						if e.Source != c.source || errors.Is(e.Err, flaky.ErrDown) == hasGuards {
							t.Errorf("the event of outcome %v has the source %v and the error %v; want the source %v, and the store's error: %v", e.Outcome, e.Source, e.Err, c.source, !hasGuards)
						}
					}
				})
			})
		}
	}
}

// A store with the method Settings has a fallback. If this fallback gives no answer either, limits
// that fail open admit requests, and all others reject them. Other stores get a fallback.
func TestOnlyStoresWithoutAFallbackGetOne(t *testing.T) {
	const text = `
rules:
  - {name: open, match: {path: /open}, per: global, limits: [{rate: 9/h, on_failure: open}]}
  - {name: local, match: {path: /local}, per: global, limits: [{rate: 9/h}]}
`
	down := flaky.New(memstore.New(memstore.Options{}))
	down.IsDown.Store(true)
	for _, c := range []struct {
		store       penstock.Store
		open, local string
	}{
		{store: down, open: "failed_open", local: "allowed"},
		{store: failsafe{down, rulesOf(t, text).Settings}, open: "failed_open", local: "failed_closed"},
	} {
		controller, _ := controllerOf(t, c.store, text)
		server := &transport{controller: controller}
		open, local := post(t.Context(), server, jsonRequest{Path: "/open"}), post(t.Context(), server, jsonRequest{Path: "/local"})
		if open.Outcome != c.open || local.Outcome != c.local {
			t.Errorf("with a store %T that gives no answer, the outcomes are %s and %s; want %s and %s", c.store, open.Outcome, local.Outcome, c.open, c.local)
		}
	}
}

// traced wraps a store as a tracing decorator does. It passes another context and another slice to
// the store.
func traced(store penstock.Store) penstock.Store {
	type span struct{}
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return store.Decide(context.WithValue(ctx, span{}, "decide"), slices.Clone(charges))
	})
}

// A decorator may hide that the guards of a store do not know on_failure. In an outage they count
// every limit locally.
func TestHiddenGuardsDoNotChangeOnFailure(t *testing.T) {
	const text = `
rules:
  - {name: open, match: {path: /open}, per: global, limits: [{rate: 1/h, on_failure: open}]}
  - {name: closed, match: {path: /closed}, per: global, limits: [{rate: 1/h, on_failure: closed}]}
  - {name: local, match: {path: /local}, per: global, limits: [{rate: 1/h}]}
`
	down := flaky.New(memstore.New(memstore.Options{}))
	down.IsDown.Store(true)
	hidden := penstock.StoreFunc(penstock.Wrap(down, guard.Fallback(guard.FallbackOptions{})).Decide)
	controller, _ := controllerOf(t, hidden, text)
	server := &transport{controller: controller}
	for _, c := range []struct{ path, first, second string }{
		{"/open", "failed_open", "failed_open"},
		{"/closed", "failed_closed", "failed_closed"},
		{"/local", "allowed", "denied"},
	} {
		first, second := post(t.Context(), server, jsonRequest{Path: c.path}), post(t.Context(), server, jsonRequest{Path: c.path})
		if first.Outcome != c.first || second.Outcome != c.second {
			t.Errorf("in an outage, the outcomes of %s are %s and %s; want %s and %s", c.path, first.Outcome, second.Outcome, c.first, c.second)
		}
	}
}

// A failsafe store has the method Settings, because it also decides while its server gives no
// answer.
type failsafe struct {
	penstock.Store
	settings func(*penstock.Plan) guard.Settings
}

func (s failsafe) Settings(plan *penstock.Plan) guard.Settings { return s.settings(plan) }

func TestTracedStoresBehaveLikeOthers(t *testing.T) {
	const text = `
rules:
  - {name: open, match: {path: /open}, per: global, limits: [{rate: 2/h, on_failure: open}]}
  - {name: closed, match: {path: /closed}, per: global, limits: [{rate: 2/h, on_failure: closed}]}
  - {name: local, match: {path: /local}, per: global, limits: [{rate: 2/h, candidate: {rate: 1/h}}, {in_flight: 1}]}
`
	undecorated := func(store penstock.Store) penstock.Store { return store }
	for _, kind := range []string{"memory", "guards", "no fallback"} { // of the store
		// run returns all answers and events as text.
		run := func(t *testing.T, decorate penstock.Decorator) (lines []string) {
			synctest.Test(t, func(t *testing.T) {
				memory := memstore.New(memstore.Options{MaxCounters: 2, Locks: 1})
				down := flaky.New(memory)
				store := penstock.Store(down)
				switch kind {
				case "memory":
					store = memory
				case "guards":
					guarded, err := guard.Standard(down, guard.Options{Limits: rulesOf(t, text).Settings, Instances: 1})
					if err != nil {
						t.Fatal(err)
					}
					defer guarded.Close()
					store = guarded
				}
				c, seen := controllerOf(t, decorate(store), text)
				for _, isDown := range []bool{false, true, false} {
					down.IsDown.Store(isDown)
					for _, path := range []string{"/open", "/closed", "/local"} {
						for range 3 {
							a, outcome, err := c.Admit(t.Context(), admission.Request{Attributes: attributes{jsonRequest{Path: path}}})
							d, _ := a.Decision()
							lines = append(lines, fmt.Sprint(path, outcome, err, d, d.Source, a.Rejection()))
							a.Done(admission.Result{Status: 200})
							synctest.Wait()
						}
					}
					time.Sleep(2 * time.Second) // the breaker probes the store
				}
				for _, e := range seen.take() {
					e.Latency = 0
					lines = append(lines, fmt.Sprint(e.Event, e.decision, e.costs))
				}
			})
			return lines
		}
		bare, decorated := run(t, undecorated), run(t, func(store penstock.Store) penstock.Store {
			if kind == "no fallback" {
				return traced(store)
			}
			return failsafe{traced(store), rulesOf(t, text).Settings}
		})
		if len(bare) != len(decorated) {
			t.Errorf("%s: there are %d answers and events, but %d with a decorator; want the same number", kind, len(bare), len(decorated))
		}
		for i := range min(len(bare), len(decorated)) {
			if bare[i] != decorated[i] {
				t.Errorf("%s: answer or event %d is %s\nwith a decorator it is %s\nwant the same", kind, i, bare[i], decorated[i])
			}
		}
	}
}

func TestPeeksChargeNothing(t *testing.T) {
	store := memstore.New(memstore.Options{})
	c, seen := controllerOf(t, store, `
rules:
  - {name: a, per: global, limits: [{rate: 1/h, candidate: {rate: 5/h}}, {in_flight: 1}]}
`)
	peek := func() admission.Outcome {
		a, outcome, err := c.Admit(t.Context(), admission.Request{Attributes: attributes{}, RequestOptions: admission.RequestOptions{Peek: true}})
		if err != nil || a.NeedsResult() {
			t.Errorf("a peek has the error %v, and NeedsResult is %t; want no error, and false", err, a.NeedsResult())
		}
		a.Done(admission.Result{})
		return outcome
	}
	for range 9 {
		if got := peek(); got != admission.Allowed {
			t.Fatalf("a peek is %v; want allowed", got)
		}
	}
	if n := store.Len(); n != 0 {
		t.Errorf("peeks have made %d counters; want none", n)
	}
	a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
	if got := peek(); got != admission.Denied {
		t.Errorf("a peek while a request is served is %v; want denied", got)
	}
	a.Done(admission.Result{})
	if got := seen.takeOutcomes(); slices.Contains(got, admission.Denied) || !slices.Contains(got, admission.Allowed) {
		t.Errorf("the outcomes of the events are %v; want those of the request, and none of a peek", got)
	}
}

const slotsPolicy = "rules: [{name: a, per: global, limits: [{in_flight: 1, ttl: 30s}]}]"

func TestHoldsAreRenewedUntilDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := memoryControllerOf(t, slotsPolicy)
		admit := func() (*admission.Admission, admission.Outcome) {
			a, outcome, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
			return a, outcome
		}
		a, _ := admit()
		for range 5 {
			time.Sleep(29 * time.Second) // a slot lasts 30 s
			if _, outcome := admit(); outcome != admission.Denied {
				t.Fatalf("a request while the slot is held is %v; want denied", outcome)
			}
		}
		a.Done(admission.Result{})
		synctest.Wait()
		next, outcome := admit()
		if outcome != admission.Allowed {
			t.Errorf("a request after the slot was returned is %v; want allowed", outcome)
		}
		next.Done(admission.Result{})
	})
}

func TestListsAndMalformedRequests(t *testing.T) {
	c, seen := memoryControllerOf(t, `
allow: [{header X-User: friend}]
deny: [{header X-User: foe}]
rules: [{name: a, per: {user: header X-User}, limits: [{rate: 1/h}]}]
`)
	for user, want := range map[string]admission.Outcome{"friend": admission.Exempt, "foe": admission.Refused} {
		a, outcome, err := c.Admit(t.Context(), admission.Request{Attributes: attributes{jsonRequest{User: user}}})
		a.Done(admission.Result{})
		if outcome != want || err != nil {
			t.Errorf("the request of user %q is %v, error %v; want %v, and no error", user, outcome, err, want)
		}
	}
	a, outcome, err := c.Admit(t.Context(), admission.Request{Attributes: twoUsers{}})
	defer a.Done(admission.Result{})
	if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || a.Rejection().Detail == "" {
		t.Errorf("a request with two users is %v, error %v, rejection %+v; want malformed, an error that wraps ErrInvalid, and a Detail", outcome, err, a.Rejection())
	}
	if got := seen.takeOutcomes(); len(got) != 3 {
		t.Errorf("the outcomes of the events are %v; want 3, one for each request", got)
	}
}

// twoUsers are attributes that name two users.
type twoUsers struct{ attributes }

func (t twoUsers) Lookup(kind policy.Kind, name string) []string {
	if kind == policy.KindHeader {
		return []string{"a", "b"}
	}
	return t.attributes.Lookup(kind, name)
}

func TestOnlyAdmittedOutcomesAreServed(t *testing.T) {
	var admitted []string
	for _, o := range admission.Outcomes() {
		if o.IsAdmitted() {
			admitted = append(admitted, o.String())
		}
	}
	if want := []string{"allowed", "failed_open", "unlimited", "exempt"}; !slices.Equal(admitted, want) {
		t.Errorf("the outcomes that are admitted are %v; want %v", admitted, want)
	}
	if got := admission.Outcome(255).String(); got != "unknown" {
		t.Errorf("an outcome of a newer version is called %q; want \"unknown\"", got)
	}
}
