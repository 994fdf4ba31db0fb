package httplimit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/testing/flaky"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

func newFlaky() *flaky.Store { return flaky.New(memstore.New(memstore.Options{})) }

// withAndWithoutGuards runs a test twice, on a fake clock: with a Gate over a bare store, and with
// a Gate over a store with all guards.
func withAndWithoutGuards(t *testing.T, text string, test func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events)) {
	t.Helper()
	for _, isGuarded := range []bool{false, true} {
		t.Run(fmt.Sprintf("guarded=%t", isGuarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, rules, seen := newFlaky(), rulesOf(t, text), new(events)
				var gateStore penstock.Store = store
				if isGuarded {
					guarded, err := guard.Standard(store, guard.Options{Limits: rules.Settings, Instances: 1})
					if err != nil {
						t.Fatal(err)
					}
					defer guarded.Close()
					gateStore = guarded
				}
				controller := controllerOf(t, gateStore, rules, admission.Options{Observe: seen.add})
				test(t, gateOn(t, controller), store, seen)
			})
		})
	}
}

// allModesPolicy is a policy with a rule for each failure mode.
const allModesPolicy = `
rules:
  - {name: open, match: {path: /open}, per: ip, limits: [{rate: 1/h, on_failure: open}, {rate: 5/d, on_failure: open}]}
  - {name: ceiling, match: {path: /ceiling}, per: ip, limits: [{rate: 1/h, on_failure: open, ceiling: 3/h}]}
  - {name: closed, match: {path: /closed}, per: ip, limits: [{rate: 1/h}, {rate: 5/d, on_failure: closed}, {rate: 9/w, on_failure: open}]}
  - {name: local, match: {path: /local}, per: ip, limits: [{rate: 2/h}]}
  - {name: mixed, match: {path: /mixed}, per: ip, limits: [{rate: 2/h}, {rate: 1/d, on_failure: open}]}
`

func TestEachLimitHasItsFailureMode(t *testing.T) {
	withAndWithoutGuards(t, allModesPolicy, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
		store.IsDown.Store(true)
		h := gate.Middleware(respond(200))
		for _, c := range []struct {
			path     string
			statuses []int
			outcomes []admission.Outcome
			source   penstock.Source

			// rateLimits are the RateLimit headers of all responses. r is at most the capacity of the limit.
			// While a share has units, t is the time until it is full. When it is empty, t is the time in
			// which the limit, not its ceiling, refills a unit. For a denial, t is RetryAfter.
			rateLimits []string
		}{
			{path: "/open", statuses: []int{200, 200, 200}, outcomes: []admission.Outcome{admission.FailedOpen, admission.FailedOpen, admission.FailedOpen}, source: penstock.FromOpen},
			{path: "/ceiling", statuses: []int{200, 200, 200, 429}, outcomes: []admission.Outcome{admission.Allowed, admission.Allowed, admission.Allowed, admission.Denied},
				source: penstock.FromFallback, rateLimits: []string{`"ceiling.hour";r=1;t=1200`, `"ceiling.hour";r=1;t=2400`, `"ceiling.hour";r=0;t=3600`, `"ceiling.hour";r=0;t=1200`}},
			{path: "/closed", statuses: []int{503, 503}, outcomes: []admission.Outcome{admission.FailedClosed, admission.FailedClosed}, source: penstock.FromClosed},
			{path: "/local", statuses: []int{200, 200, 429}, outcomes: []admission.Outcome{admission.Allowed, admission.Allowed, admission.Denied}, source: penstock.FromFallback,
				rateLimits: []string{`"local.hour";r=1;t=1800`, `"local.hour";r=0;t=1800`, `"local.hour";r=0;t=1800`}},
			{path: "/mixed", statuses: []int{200, 200, 429}, outcomes: []admission.Outcome{admission.Allowed, admission.Allowed, admission.Denied}, source: penstock.FromFallback,
				rateLimits: []string{`"mixed.hour";r=1;t=1800`, `"mixed.hour";r=0;t=1800`, `"mixed.hour";r=0;t=1800`}},
		} {
			seen.list = nil
			var statuses []int
			var rateLimits []string
			for range c.statuses {
				w := send(h, "GET", c.path)
				statuses = append(statuses, w.Code)
				rateLimits = append(rateLimits, w.Header()["Ratelimit"]...)
				retryAfter, isRejected := w.Header().Get("Retry-After"), w.Code != 200
				if (retryAfter != "") != isRejected || w.Code == 503 && retryAfter != "1" {
					t.Errorf("%s: status %d with Retry-After %q; want the header for a rejection only, and 1 for status 503", c.path, w.Code, retryAfter)
				}
				if body := w.Body.String(); w.Code == 503 && !strings.Contains(body, `"violated-policies":["closed.day"]`) {
					t.Errorf("%s: the body is %s; want the limit closed.day as the violated policy", c.path, body)
				}
			}
			if !slices.Equal(statuses, c.statuses) || !slices.Equal(rateLimits, c.rateLimits) {
				t.Errorf("%s: statuses %v, RateLimit %q; want %v and %q", c.path, statuses, rateLimits, c.statuses, c.rateLimits)
			}
			for i, e := range seen.list {
				if e.Outcome != c.outcomes[i] || e.Source != c.source {
					t.Errorf("%s: request %d has the outcome %v from %v; want %v from %v", c.path, i+1, e.Outcome, e.Source, c.outcomes[i], c.source)
				}
			}
		}
	})
}

func TestEventsHaveTheErrorOfTheStore(t *testing.T) {
	store := newFlaky()
	gate, seen := gateWith(t, store, allModesPolicy)
	h := gate.Middleware(respond(200))
	paths := []string{"/open", "/ceiling", "/closed", "/local"}
	for _, isDown := range []bool{false, true, false} {
		store.IsDown.Store(isDown)
		seen.list = nil
		for _, path := range paths {
			send(h, "GET", path)
		}
		for i, e := range seen.list {
			if errors.Is(e.Err, flaky.ErrDown) != isDown {
				t.Errorf("%s, store down: %t: the event has the error %v; want ErrDown exactly while the store is down", paths[i], isDown, e.Err)
			}
		}
	}
}

// The store may have charged a batch although its answer was lost.
func TestSlotsOfALostAnswerAreReturned(t *testing.T) {
	for mode, status := range map[string]int{"open": 200, "closed": 503, "local": 429} {
		text := "rules:\n- {name: a, per: global, limits: [{in_flight: 1, on_failure: " + mode + "}, {rate: 1/h, on_failure: " + mode + "}]}\n"
		want := []string{"in-flight"}
		if mode != "local" { // with local there are two requests: with a shadow, their failed calls would open the breaker before the refunds
			text += "- {name: b, always: true, shadow: true, per: global, limits: [{name: tried, in_flight: 9}]}\n"
			want = append(want, "tried")
		}
		withAndWithoutGuards(t, text, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
			store.IsDown.Store(true)
			store.LosesAnswers.Store(true)
			h := gate.Middleware(respond(200))
			if mode == "local" {
				send(h, "GET", "/") // this request uses up the limit
			}
			store.Forget()
			if got := send(h, "GET", "/").Code; got != status {
				t.Fatalf("on_failure: %s: status %d; want %d", mode, got, status)
			}
			synctest.Wait()
			got := store.Received(penstock.Refund)
			slices.Sort(got)
			got = slices.Compact(got) // the guard returns slots too
			if !slices.Equal(got, want) {
				t.Errorf("on_failure: %s: the refunds are %v; want %v", mode, got, want)
			}
		})
	}
}

func TestUncountedChargesAreNotRefunded(t *testing.T) {
	const text = `
rules:
  - name: login
    per: global
    limits:
      - {name: local, rate: 5/h, on_status: 401}
      - {name: open, rate: 5/h, on_status: 401, on_failure: open}
`
	withAndWithoutGuards(t, text, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
		store.IsDown.Store(true)
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			store.IsDown.Store(false) // the store is back before the response
			w.WriteHeader(200)
		}))
		send(h, "GET", "/")
		if got := store.Received(penstock.Refund); slices.Contains(got, "open") {
			t.Errorf("the refunds are %v; want none for the limit open, which had counted nothing", got)
		}
	})
}

func TestLeavingAQueueRefundsOnlyWhatWasCounted(t *testing.T) {
	const text = `
rules:
  - name: mail
    per: global
    limits:
      - {name: local, rate: 1/s, burst: 1, max_wait: 5s}
      - {name: open, rate: 5/h, on_failure: open}
      - {name: slots, in_flight: 5, on_failure: open}
`
	for _, isBack := range []bool{false, true} { // whether the store answers again when the client leaves
		withAndWithoutGuards(t, text, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
			store.IsDown.Store(true)
			h := gate.Middleware(respond(200))
			send(h, "GET", "/")
			ctx, leave := context.WithCancel(t.Context())
			var leaving sync.WaitGroup
			leaving.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx)) })
			synctest.Wait()
			store.IsDown.Store(!isBack)
			store.Forget()
			leave()
			leaving.Wait()
			refunds := store.Received(penstock.Refund)
			if !slices.Contains(refunds, "slots") || slices.Contains(refunds, "open") || isBack && slices.Contains(refunds, "local") {
				t.Errorf("store back: %t: the refunds are %v; want slots, not open, and local only if the store is still down", isBack, refunds)
			}
			if isBack {
				return
			}
			start := time.Now()
			send(h, "GET", "/")
			if waited := time.Since(start); waited != time.Second {
				t.Errorf("the next request waited %v; want 1s, because no other request waits", waited)
			}
		})
	}
}

// A charge that was decided locally is not in the store. So a refund in the store would return
// units of other clients, and a forced charge would count the request in two places.
func TestWhatWasDecidedLocallyIsNotCorrectedInTheStore(t *testing.T) {
	const text = `
rules:
  - name: a
    per: global
    limits:
      - {name: login, rate: 50/h, on_status: 401}
      - {name: settled, rate: 50/h, cost: {units: 2, actual: X-Cost}}
      - {name: body, rate: 50/h, cost: {body: 1KB}}
      - {name: ceiling, rate: 50/h, cost: {units: 2, actual: X-Cost}, on_failure: open, ceiling: 60/h}
      - {name: slots, in_flight: 5}
`
	for _, isDown := range []bool{false, true} { // whether the store is down for the decision
		corrected := 0
		withAndWithoutGuards(t, text, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
			for _, cost := range []string{"1", "7"} {
				store.IsDown.Store(isDown)
				store.Forget()
				h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					store.IsDown.Store(false) // the store is back before the response
					io.Copy(io.Discard, r.Body)
					w.Header().Set("X-Cost", cost)
					w.WriteHeader(200)
				}))
				r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", 3000)))
				r.ContentLength = -1
				h.ServeHTTP(httptest.NewRecorder(), r)
				got := append(store.Received(penstock.Refund), store.Received(penstock.Force)...)
				corrected += len(got)
				slices.Sort(got)
				want := []string{"slots"}
				if !isDown {
					want = []string{"body", "ceiling", "login", "settled", "slots"}
				}
				if !slices.Equal(got, want) {
					t.Errorf("store down at first: %t, cost %s: corrections in the store: %v; want %v", isDown, cost, got, want)
				}
			}
		})
		t.Logf("counted: %d corrections in a store that is up (decided locally: %t)", corrected, isDown)
	}
}

func TestLoginsAreCountedByStatusInAnOutageToo(t *testing.T) {
	const text = `
rules: [{name: login, per: global, limits: [{rate: 3/h, algorithm: sliding-log, on_status: 401}]}]
`
	withAndWithoutGuards(t, text, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
		status := 200
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }))
		send := func(what string, want ...int) {
			t.Helper()
			for i, want := range want {
				if got := send(h, "POST", "/").Code; got != want {
					t.Errorf("%s: request %d: status %d; want %d", what, i+1, got, want)
				}
			}
		}
		send("right passwords", 200, 200, 200, 200, 200)
		status = 401
		send("a wrong password", 401)
		store.IsDown.Store(true)
		status = 200
		send("right passwords in an outage", 200, 200, 200, 200, 200)
		status = 401
		send("wrong passwords in an outage", 401, 401, 429, 429)
	})
}

// A refund removes cached denials. So the login after a correct one is admitted, even if logins
// were denied before.
func TestDenialsOfLoginsEndWithARefund(t *testing.T) {
	const text = `
rules: [{name: login, per: global, limits: [{rate: 2/h, algorithm: sliding-log, on_status: 401, deny_cache_ttl: 1h}]}]
`
	withAndWithoutGuards(t, text, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
		proceed := make(chan int) // the handler waits for a status, and responds with it
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(<-proceed) }))
		var busy sync.WaitGroup
		for range 2 {
			busy.Go(func() { send(h, "POST", "/") })
		}
		synctest.Wait()
		for range 3 {
			if got := send(h, "POST", "/").Code; got != 429 {
				t.Errorf("a third login while two are in flight: status %d; want 429", got)
			}
		}
		proceed <- 200
		synctest.Wait()
		busy.Go(func() {
			if got := send(h, "POST", "/").Code; got != 401 {
				t.Errorf("a login after a correct one: status %d; want 401, from the handler", got)
			}
		})
		synctest.Wait()
		proceed <- 401
		proceed <- 401
		busy.Wait()
		if got := send(h, "POST", "/").Code; got != 429 {
			t.Errorf("a login after two wrong ones: status %d; want 429", got)
		}
	})
}

func TestShadowsAreNotReportedWhileTheStoreIsDown(t *testing.T) {
	// The requests use up no limit. If they did, the deny cache would report denials without the
	// store.
	const text = `
rules:
  - {name: a, per: global, limits: [{rate: 9/h, candidate: {rate: 3/h}}, {name: maybe, rate: 3/h, shadow: true, on_failure: local}]}
  - {name: b, always: true, shadow: true, per: global, limits: [{rate: 3/h, on_failure: closed}]}
`
	withAndWithoutGuards(t, text, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
		h := gate.Middleware(respond(200))
		shadows := func() int { return seen.count(admission.ShadowAllowed) + seen.count(admission.ShadowDenied) }
		for i, c := range []struct {
			isDown  bool
			shadows int // reported until then
		}{
			{isDown: false, shadows: 3},
			{isDown: true, shadows: 3},
			{isDown: true, shadows: 3},
		} {
			store.IsDown.Store(c.isDown)
			if got := send(h, "GET", "/").Code; got != 200 {
				t.Errorf("request %d: status %d; want 200", i+1, got)
			}
			if got := shadows(); got != c.shadows {
				t.Errorf("request %d, store down: %t: %d shadows are reported; want %d", i+1, c.isDown, got, c.shadows)
			}
		}
	})
}

func TestErrorsWithoutAFallbackFailUnlessAllLimitsAreOpen(t *testing.T) {
	wrong := fmt.Errorf("%w: no connection", penstock.ErrInvalid)
	gate, seen := gateWith(t, penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { return penstock.Decision{}, wrong }), allModesPolicy)
	h := gate.Middleware(respond(200))
	for path, want := range map[string]int{"/open": 200, "/mixed": 503, "/local": 503, "/closed": 503} {
		seen.list = nil
		w := send(h, "GET", path)
		if w.Code != want || (w.Header().Get("Retry-After") == "1") != (want == 503) {
			t.Errorf("%s: status %d, Retry-After %q; want status %d, and Retry-After: 1 with 503 only", path, w.Code, w.Header().Get("Retry-After"), want)
		}
		outcome := map[int]admission.Outcome{200: admission.FailedOpen, 503: admission.FailedClosed}[want]
		source := map[int]penstock.Source{200: penstock.FromOpen, 503: penstock.FromClosed}[want]
		if e := seen.list[0]; e.Outcome != outcome || e.Source != source || !errors.Is(e.Err, wrong) {
			t.Errorf("%s: the event has the outcome %v from %v and the error %v; want %v from %v and the store's error", path, e.Outcome, e.Source, e.Err, outcome, source)
		}
	}
}

func TestRequestsWhoseClientHasLeftAreAbandoned(t *testing.T) {
	withAndWithoutGuards(t, allModesPolicy, func(t *testing.T, gate *httplimit.Gate, store *flaky.Store, seen *events) {
		store.IsDown.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		leave()
		served := 0
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { served++ }))
		for _, path := range []string{"/open", "/closed", "/local"} {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil).WithContext(ctx))
		}
		if n := seen.count(admission.Abandoned); n != 3 || served != 0 {
			t.Errorf("%d requests were abandoned, and %d were served; want 3 and 0", n, served)
		}
	})
}

func TestSlotOfAClientThatLeftIsReturned(t *testing.T) {
	synctest.Test(t, slotOfAClientThatLeft)
}

func slotOfAClientThatLeft(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	store := newFlaky()
	gate, seen := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := store.Decide(ctx, charges)
		leave()
		return d, cmp.Or(ctx.Err(), err)
	}), "rules: [{name: a, per: global, limits: [{in_flight: 1}]}]")
	h := gate.Middleware(respond(200))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	synctest.Wait()
	if got := store.Received(penstock.Refund); seen.count(admission.Abandoned) != 1 || !slices.Equal(got, []string{"in-flight"}) {
		t.Errorf("%d requests were abandoned, and the refunds are %v; want 1 abandoned request, and a refund of its slot", seen.count(admission.Abandoned), got)
	}
}

// A denied request returns its slots with a second call of the store. The response must not wait
// for this call, which may be as slow as the first.
func TestResponseDoesNotWaitForReturnedSlots(t *testing.T) {
	const text = `
rules:
  - {name: closed, match: {path: /closed}, per: global, limits: [{in_flight: 1, on_failure: closed}]}
  - {name: local, match: {path: /local}, per: global, limits: [{in_flight: 1}, {rate: 1/h}]}
`
	const requests = 1200
	const maxInBackground = 1000 // slots that are returned in the background at the same time
	for path, want := range map[string]int{"/closed": 503, "/local": 429} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var returning, returned atomic.Int64
			gate, _ := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if charges[0].Mode == penstock.Refund {
					returning.Add(1)
					select {
					case <-release:
						returned.Add(1)
					case <-ctx.Done():
					}
					returning.Add(-1)
				}
				return penstock.Decision{}, flaky.ErrDown
			}), text)
			h := gate.Middleware(respond(200))
			if path == "/local" { // the first request uses up the limit
				done := make(chan struct{})
				go func() { send(h, "GET", path); close(done) }()
				synctest.Wait()
				<-done
			}
			var responses atomic.Int64
			for range requests {
				go func() {
					if got := send(h, "GET", path).Code; got != want {
						t.Errorf("%s: status %d; want %d", path, got, want)
					}
					responses.Add(1)
				}()
			}
			synctest.Wait()
			if sent, slots := responses.Load(), returning.Load(); sent != maxInBackground || slots != requests {
				t.Errorf("%s: %d responses are sent while %d slots are being returned; want %d and %d", path, sent, slots, maxInBackground, requests)
			}
			close(release)
			synctest.Wait()
			if slots, sent := returned.Load(), responses.Load(); slots != requests || sent != requests {
				t.Errorf("%s: %d slots are returned, and %d responses are sent; want %d of each", path, slots, sent, requests)
			}
		})
	}
	t.Logf("counted: %d responses that did not wait for the store", 2*maxInBackground)
}

// A store in memory fails only when it is full, and then it has no fallback.
func TestFullMemoryRejectsNewKeysUnlessTheLimitIsOpen(t *testing.T) {
	gate, seen := gateWith(t, memstore.New(memstore.Options{MaxCounters: 1, Locks: 1}), `
rules:
  - {name: local, match: {path: /local}, per: {key: header X-Key}, limits: [{rate: 2/h}]}
  - {name: open, match: {path: /open}, per: {key: header X-Key}, limits: [{rate: 2/h, on_failure: open}]}
`)
	h := gate.Middleware(respond(200))
	for _, c := range []struct {
		path, key string
		want      int
	}{
		{path: "/local", key: "a", want: 200},
		{path: "/local", key: "b", want: 503},
		{path: "/open", key: "b", want: 200},
		{path: "/local", key: "a", want: 200},
		{path: "/local", key: "a", want: 429},
	} {
		if got := send(h, "GET", c.path, "X-Key", c.key).Code; got != c.want {
			t.Errorf("%s with key %s: status %d; want %d", c.path, c.key, got, c.want)
		}
	}
	for _, e := range seen.list {
		hasFailed := e.Outcome == admission.FailedClosed || e.Outcome == admission.FailedOpen
		if hasFailed != errors.Is(e.Err, penstock.ErrUnavailable) {
			t.Errorf("an event with the outcome %v has the error %v; want ErrUnavailable exactly if the store failed", e.Outcome, e.Err)
		}
	}
}

func TestGuardsOfTheStoreDefineHowLimitsFail(t *testing.T) {
	store := newFlaky()
	store.IsDown.Store(true)
	guarded, err := guard.Standard(store, guard.Options{OnFailure: guard.FailClosed, Instances: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer guarded.Close()
	gate, err := httplimit.NewSimple(guarded, "api", []penstock.Limit{penstock.PerHour(5)}, httplimit.SimpleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []httplimit.SimpleOptions{{OnFailure: guard.FailClosed}} {
		_, err := httplimit.NewSimple(guarded, "api", []penstock.Limit{penstock.PerHour(5)}, o)
		if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "set redisguard.Options{Guard: guard.Options{OnFailure: guard.FailClosed}}") {
			t.Errorf("%+v: the error is %v; want ErrInvalid that names the option of redisguard", o, err)
		}
	}
	if got := send(gate.Middleware(respond(200)), "GET", "/").Code; got != 503 {
		t.Errorf("status %d; want 503, because the guards fail closed", got)
	}
}

func TestOptionsDefineHowLimitsInCodeFail(t *testing.T) {
	for mode, want := range map[guard.FailureMode][]int{
		guard.FailDefault: {200, 429}, guard.FailLocal: {200, 429}, guard.FailOpen: {200, 200}, guard.FailClosed: {503, 503},
	} {
		store := newFlaky()
		store.IsDown.Store(true)
		gate, err := httplimit.NewSimple(store, "api", []penstock.Limit{penstock.PerHour(1)}, httplimit.SimpleOptions{OnFailure: mode})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range want {
			if got := send(gate.Middleware(respond(200)), "GET", "/").Code; got != want {
				t.Errorf("%v: request %d: status %d; want %d", mode, i+1, got, want)
			}
		}
	}
}

// changingRules are a source of rules that change.
type changingRules struct{ atomic.Pointer[policy.Rules] }

func (r *changingRules) Rules() *policy.Rules { return r.Load() }

func TestHowLimitsFailChangesWithTheRules(t *testing.T) {
	const text = "rules: [{name: a, per: global, limits: [{rate: 1/h, on_failure: %s}]}]"
	current := new(changingRules)
	current.Store(rulesOf(t, fmt.Sprintf(text, "closed")))
	store := newFlaky()
	store.IsDown.Store(true)
	h := gateOn(t, controllerOf(t, store, current, admission.Options{})).Middleware(respond(200))
	for _, c := range []struct {
		mode string
		want []int
	}{
		{mode: "closed", want: []int{503, 503}},
		{mode: "open", want: []int{200, 200}},
		{mode: "local", want: []int{200, 429}},
	} {
		current.Store(rulesOf(t, fmt.Sprintf(text, c.mode)))
		for i, want := range c.want {
			if got := send(h, "GET", "/").Code; got != want {
				t.Errorf("%s: request %d: status %d; want %d", c.mode, i+1, got, want)
			}
		}
	}
}
