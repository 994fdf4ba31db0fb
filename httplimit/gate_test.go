package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// sections are the sections that policies of these tests may have.
var sections = policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}

// rulesOf compiles a policy that is written in a test.
func rulesOf(t testing.TB, text string) *policy.Rules {
	t.Helper()
	p, err := policyfile.Parse("test.yaml", []byte(text), nil, sections)
	if err != nil {
		t.Fatal(err)
	}
	return p.Rules
}

// memoryGate returns a gate with a policy and a store in memory, and the events of the gate.
func memoryGate(t testing.TB, text string) (*httplimit.Gate, *events) {
	t.Helper()
	return gateWith(t, memstore.New(memstore.Options{}), text)
}

// gateWith returns a gate over a store, and the events of the gate.
func gateWith(t testing.TB, store penstock.Store, text string) (*httplimit.Gate, *events) {
	t.Helper()
	rules, seen := rulesOf(t, text), new(events)
	return gateOn(t, controllerOf(t, store, rules, admission.Options{Observe: seen.add})), seen
}

func controllerOf(t testing.TB, store penstock.Store, rules policy.RuleSource, o admission.Options) *admission.Controller {
	t.Helper()
	c, err := admission.New(store, rules, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// gateOn returns a gate with the rules of a Controller.
func gateOn(t testing.TB, c *admission.Controller) *httplimit.Gate {
	t.Helper()
	gate, err := httplimit.New(c, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

// memoryController returns a Controller with a policy and a store in memory.
func memoryController(t testing.TB, text string) *admission.Controller {
	t.Helper()
	return controllerOf(t, memstore.New(memstore.Options{}), rulesOf(t, text), admission.Options{})
}

// events are the events of a gate.
type events struct {
	mu   sync.Mutex
	list []admission.Event
}

func (e *events) add(event *admission.Event) {
	kept := *event
	kept.Decision, kept.Charges = nil, nil // an observer must not keep what an Event points to
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, kept)
}

func (e *events) count(outcome admission.Outcome) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.list {
		if event.Outcome == outcome {
			n++
		}
	}
	return n
}

// send sends a request from 192.0.2.1. The strings in header are names and values in turn.
func send(h http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	return sendBody(h, method, target, nil, header...)
}

func sendBody(h http.Handler, method, target string, body io.Reader, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func respond(status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) })
}

const perKeyPolicy = `
rules:
  - name: search
    match: {path: /search}
    per: {first_of: [{key: header X-API-Key}, ip]}
    limits: [{rate: 3/h}]
`

func TestOnlyMatchingRequestsAreLimited(t *testing.T) {
	gate, seen := memoryGate(t, perKeyPolicy)
	h := gate.Middleware(respond(200))
	for i, want := range []int{200, 200, 200, 429, 429} {
		if got := send(h, "GET", "/search", "X-API-Key", "a").Code; got != want {
			t.Errorf("request %d by key a: status %d; want %d", i+1, got, want)
		}
	}
	if got := send(h, "GET", "/search", "X-API-Key", "b").Code; got != 200 {
		t.Errorf("key b shares the counter of key a: status %d; want 200", got)
	}
	for range 10 {
		w := send(h, "GET", "/other", "X-API-Key", "a")
		if w.Code != 200 || w.Header().Get("RateLimit") != "" {
			t.Fatalf("a path without a rule: status %d, headers %v; want 200 without RateLimit", w.Code, w.Header())
		}
	}
	if allowed, denied := seen.count(admission.Allowed), seen.count(admission.Denied); allowed != 4 || denied != 2 {
		t.Errorf("the events have %d allowed and %d denied requests; want 4 and 2", allowed, denied)
	}
	if e := seen.list[0]; e.Rule != "search" || e.Limit != "hour" || e.Algorithm != "token-bucket" {
		t.Errorf("the event is %+v; want rule search, limit hour and its algorithm", e)
	}
}

func TestDenialHasReasonAndRetryAfter(t *testing.T) {
	gate, _ := memoryGate(t, perKeyPolicy)
	h := gate.Middleware(respond(200))
	for range 3 {
		send(h, "GET", "/search", "X-API-Key", "a")
	}
	w := send(h, "GET", "/search", "X-API-Key", "a")
	if got := w.Header().Get("Retry-After"); got != "1200" {
		t.Errorf("Retry-After is %s; want 1200 seconds, in which a limit of 3/h refills 1 unit", got)
	}
	if got := w.Header().Get("RateLimit"); got != `"search.hour";r=0;t=1200` {
		t.Errorf("RateLimit is %s; want r=0 and t=1200", got)
	}
	if got := w.Header().Get("RateLimit-Policy"); got != `"search.hour";q=3;w=3600` {
		t.Errorf("RateLimit-Policy is %s; want q=3 and w=3600", got)
	}
	var problem struct {
		Type     string   `json:"type"`
		Status   int      `json:"status"`
		Violated []string `json:"violated-policies"`
		RetryMS  int64    `json:"retry_after_ms"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Fatalf("the body has the type %s and the JSON error %v; want problem+json\n%s", w.Header().Get("Content-Type"), err, w.Body)
	}
	if problem.Status != 429 || len(problem.Violated) != 1 || problem.Violated[0] != "search.hour" || problem.RetryMS < 1_199_000 || problem.RetryMS > 1_200_000 {
		t.Errorf("the problem is %+v; want status 429, the violated policy search.hour, and a retry after 20 minutes", problem)
	}
}

func TestRequestCarriesTheDecision(t *testing.T) {
	gate, _ := memoryGate(t, perKeyPolicy)
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, ok := httplimit.DecisionOf(r.Context())
		fmt.Fprint(w, ok, d.Remaining())
	}))
	if got := send(h, "GET", "/search").Body.String(); got != "true 2" {
		t.Errorf("the handler found the decision and the units left: %q; want \"true 2\"", got)
	}
	if got := send(h, "GET", "/other").Body.String(); !strings.HasPrefix(got, "false") {
		t.Errorf("without a limit the handler found a decision: %q; want false", got)
	}
}

func TestLimitsInCode(t *testing.T) {
	limits := []penstock.Limit{penstock.PerHour(2), penstock.PerDay(10)}
	gate, err := httplimit.NewSimple(memstore.New(memstore.Options{}), "api", limits, httplimit.SimpleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := gate.Middleware(respond(200))
	for i, want := range []int{200, 200, 429} {
		w := send(h, "GET", fmt.Sprintf("/%d", i))
		if w.Code != want {
			t.Errorf("request %d: status %d; want %d", i+1, w.Code, want)
		}
		if got := w.Header().Get("RateLimit-Policy"); got != `"api.hour";q=2;w=3600, "api.day";q=10;w=86400` {
			t.Errorf("RateLimit-Policy is %s; want both limits", got)
		}
	}
}

// The HTTP settings of limits in code decide which requests are of one client, and which headers
// they get.
func TestLimitsInCodeHaveHTTPSettings(t *testing.T) {
	for name, c := range map[string]struct {
		addresses [2]string
		want      int // the status of the second request
	}{
		"IPv6, the same 64 bits":     {addresses: [2]string{"[2001:db8::1]:80", "[2001:db8:0:0:8000::1]:80"}, want: 429},
		"IPv6, bit 64 differs":       {addresses: [2]string{"[2001:db8::1]:80", "[2001:db8:0:1::1]:80"}, want: 200},
		"IPv4, the last bit differs": {addresses: [2]string{"192.0.2.1:80", "192.0.2.0:80"}, want: 200},
	} {
		gate, err := httplimit.NewSimple(memstore.New(memstore.Options{}), "api", []penstock.Limit{penstock.PerHour(1)},
			httplimit.SimpleOptions{HTTP: httplimit.Config{Headers: []string{"x-ratelimit"}}})
		if err != nil {
			t.Fatal(err)
		}
		h := gate.Middleware(respond(200))
		for i, address := range c.addresses {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = address
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if want := []int{200, c.want}[i]; w.Code != want {
				t.Errorf("%s: request %d has the status %d; want %d", name, i+1, w.Code, want)
			}
			if got := w.Header().Get("X-RateLimit-Limit"); got != "1" {
				t.Errorf("%s: X-RateLimit-Limit is %q; want 1", name, got)
			}
		}
	}
}

// A bucket of 20 refills ten units a second. After 16 requests it has another unit in 0.1 s, and is
// full in 1.6 s.
func TestResetUntilDecidesWhichTimeXRateLimitResetIs(t *testing.T) {
	for until, want := range map[string]string{"": "1", "next": "1", "full": "2"} {
		synctest.Test(t, func(t *testing.T) {
			gate, err := httplimit.NewSimple(memstore.New(memstore.Options{}), "api", []penstock.Limit{penstock.PerSecond(10).WithBurst(20)},
				httplimit.SimpleOptions{HTTP: httplimit.Config{Headers: []string{"x-ratelimit"}, Reset: "seconds", ResetUntil: until}})
			if err != nil {
				t.Fatal(err)
			}
			h := gate.Middleware(respond(200))
			for range 15 {
				send(h, "GET", "/")
			}
			if got := send(h, "GET", "/").Header(); got.Get("X-RateLimit-Remaining") != "4" || got.Get("X-RateLimit-Reset") != want {
				t.Errorf("reset_until %q: %v; want 4 left and the reset %s", until, got, want)
			}
		})
	}
}

// Each setting of section http decides which spellings of a path a rule matches.
func TestPathSettingsDecideWhatIsLimited(t *testing.T) {
	for _, c := range []struct{ setting, rule, path string }{
		{setting: "case_sensitive: false", rule: "/login", path: "/LOGIN"},
		{setting: "trailing_slash: ignore", rule: "/login", path: "/login/"},
		{setting: "path_parameters: strip", rule: "/login", path: "/login;v=1"},
		{setting: "encoded_slash: keep", rule: `"/{name}"`, path: "/a%2fb"},
	} {
		for settings, want := range map[string]bool{c.setting: true, "": false} {
			gate, _ := memoryGate(t, fmt.Sprintf("http: {%s}\nrules: [{name: a, match: {path: %s}, per: ip, limits: [{rate: 1/h}]}]\n", settings, c.rule))
			if got := send(gate.Middleware(respond(200)), "GET", c.path).Header().Get("RateLimit-Policy") != ""; got != want {
				t.Errorf("http: {%s}: the rule for %s matches %s: %t; want %t", settings, c.rule, c.path, got, want)
			}
		}
	}
}

func TestEachKeyHasItsOwnCounter(t *testing.T) {
	gate, err := httplimit.PerKey(memstore.New(memstore.Options{}), "api", penstock.PerHour(2), func(r *http.Request) string { return r.URL.Path })
	if err != nil {
		t.Fatal(err)
	}
	h := gate.Middleware(respond(200))
	for i, path := range []string{"/a", "/b", "/a", "/a", "/b"} {
		want := []int{200, 200, 200, 429, 200}[i]
		if w := send(h, "GET", path); w.Code != want {
			t.Errorf("request %d, of %s: status %d; want %d", i+1, path, w.Code, want)
		}
	}
}

func TestOptionsThatCannotWorkAreRejected(t *testing.T) {
	store := memstore.New(memstore.Options{})
	limits := []penstock.Limit{penstock.PerSecond(1)}
	for what, err := range map[string]error{
		"no controller":   errorOf(httplimit.New(nil, httplimit.Options{})),
		"no store":        errorOf(httplimit.PerKey(nil, "a", limits[0], httplimit.ByAddress)),
		"no key function": errorOf(httplimit.PerKey(store, "a", limits[0], nil)),
	} {
		if !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: the error is %v; want an ErrInvalid", what, err)
		}
	}
	for what, c := range map[string]struct {
		store  penstock.Store
		name   string
		limits []penstock.Limit
		http   httplimit.Config
	}{
		"no store":                  {name: "a", limits: limits},
		"no limits":                 {store: store, name: "a"},
		"no name":                   {store: store, limits: limits},
		"a bad name":                {store: store, name: "A B", limits: limits},
		"a bad limit":               {store: store, name: "a", limits: []penstock.Limit{{}}},
		"the same limits":           {store: store, name: "a", limits: []penstock.Limit{penstock.PerSecond(1), penstock.PerSecond(2)}},
		"a bad dialect":             {store: store, name: "a", limits: limits, http: httplimit.Config{Headers: []string{"draft-99"}}},
		"two dialects of one field": {store: store, name: "a", limits: limits, http: httplimit.Config{Headers: []string{"draft-11", "draft-07"}}},
		"a bad template":            {store: store, name: "a", limits: limits, http: httplimit.Config{Denied: httplimit.DeniedConfig{Body: "{{.Nothing}}"}}},
	} {
		if _, err := httplimit.NewSimple(c.store, c.name, c.limits, httplimit.SimpleOptions{HTTP: c.http}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: the error is %v; want an ErrInvalid", what, err)
		}
	}
}

func errorOf(_ *httplimit.Gate, err error) error { return err }

const loginPolicy = `
rules:
  - name: login
    match: {method: POST, path: /login}
    per: {account: header X-Account}
    limits: [{rate: 10/h, algorithm: sliding-log, on_status: 401}]
`

func TestOnlyFailedLoginsCount(t *testing.T) {
	gate, _ := memoryGate(t, loginPolicy)
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Password") != "right" {
			w.WriteHeader(401)
		}
	}))
	try := func(password string) int {
		return send(h, "POST", "/login", "X-Account", "eve", "X-Password", password).Code
	}
	for i := range 9 {
		if got := try("right"); got != 200 {
			t.Fatalf("correct login %d: status %d; want 200", i+1, got)
		}
		if got := try("wrong"); got != 401 {
			t.Fatalf("failure %d: status %d; want 401", i+1, got)
		}
	}
	for range 50 {
		if got := try("right"); got != 200 {
			t.Fatalf("correct login after nine failures: status %d; want 200", got)
		}
	}
	if got := try("wrong"); got != 401 {
		t.Fatalf("failure 10: status %d; want 401", got)
	}
	if got := try("wrong"); got != 429 {
		t.Fatalf("attempt after ten failures: status %d; want 429", got)
	}
}

func TestConcurrentGuessesAreLimitedLikeSuccessiveOnes(t *testing.T) {
	gate, _ := memoryGate(t, loginPolicy)
	var guesses atomic.Int64
	allArrived := make(chan struct{})
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		guesses.Add(1)
		<-allArrived // no request gets its response before all have arrived
		w.WriteHeader(401)
	}))
	var requestsDone sync.WaitGroup
	var denied atomic.Int64
	for range 100 {
		requestsDone.Go(func() {
			// Of 100 requests, 10 are in the handler when 90 are denied.
			if send(h, "POST", "/login", "X-Account", "eve").Code == 429 && denied.Add(1) == 90 {
				close(allArrived)
			}
		})
	}
	requestsDone.Wait()
	if n := guesses.Load(); n != 10 {
		t.Errorf("%d guesses reached the handler; want 10", n)
	}
}

func TestCostIsCorrectedToTheActualCost(t *testing.T) {
	const text = `
rules:
  - name: chat
    per: global
    limits: [{name: tokens, rate: 1000/h, cost: {units: 100, actual: X-Tokens}, headers: true}]
`
	// The handler ignores a request with X-Peek.
	peek := func(h http.Handler) string { return send(h, "GET", "/", "X-Peek", "1").Header().Get("RateLimit") }
	for _, c := range []struct {
		what    string
		handler http.HandlerFunc
		want    string // RateLimit of a second request, which costs 100 of the 1000 units
	}{
		{what: "no actual cost", handler: func(w http.ResponseWriter, r *http.Request) {}, want: `"chat.tokens";r=800`},
		{what: "less in a header", handler: func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Tokens", "30") }, want: `"chat.tokens";r=870`},
		{what: "more in a header", handler: func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Tokens", "350") }, want: `"chat.tokens";r=550`},
		{what: "nonsense in a header", handler: func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Tokens", "-5") }, want: `"chat.tokens";r=800`},
		{what: "set by the handler", handler: func(w http.ResponseWriter, r *http.Request) {
			if err := httplimit.Settle(r.Context(), 7); err != nil {
				t.Errorf("Settle returns %v; want no error", err)
			}
			w.Header().Set("X-Tokens", "500")
		}, want: `"chat.tokens";r=893`},
		{what: "set to 0 by the handler", handler: func(w http.ResponseWriter, r *http.Request) {
			if err := httplimit.Settle(r.Context(), 0); err != nil {
				t.Errorf("Settle returns %v; want no error", err)
			}
		}, want: `"chat.tokens";r=900`},
	} {
		gate, _ := memoryGate(t, text)
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Peek") == "" {
				c.handler(w, r)
			}
		}))
		send(h, "GET", "/")
		if got := peek(h); !strings.HasPrefix(got, c.want+";") {
			t.Errorf("%s: RateLimit is %s; want %s", c.what, got, c.want)
		}
	}
	if err := httplimit.Settle(t.Context(), 1); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("Settle of a request that no gate admitted returns %v; want an ErrInvalid", err)
	}
}

func TestBodiesAreChargedBySize(t *testing.T) {
	gate, _ := memoryGate(t, `
rules:
  - name: upload
    per: global
    limits: [{name: kb, rate: 1000/h, cost: {body: 1KB}, headers: true}]
`)
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	left := 1000
	for _, c := range []struct{ bytes, units int }{
		{bytes: 0, units: 1}, {bytes: 1, units: 1}, {bytes: 1024, units: 1}, {bytes: 1025, units: 2}, {bytes: 100_000, units: 98},
	} {
		w := sendBody(h, "POST", "/", strings.NewReader(strings.Repeat("x", c.bytes)))
		left -= c.units
		if got, want := w.Header().Get("RateLimit"), fmt.Sprintf(`"upload.kb";r=%d;`, left); !strings.HasPrefix(got, want) {
			t.Errorf("after %d bytes RateLimit is %s; want %s", c.bytes, got, want)
		}
	}
	// A body of unknown size is charged by the bytes that are read.
	unsized := struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 10_000))}
	sendBody(h, "POST", "/", unsized)
	left -= 10
	w := sendBody(h, "POST", "/", nil)
	if got, want := w.Header().Get("RateLimit"), fmt.Sprintf(`"upload.kb";r=%d;`, left-1); !strings.HasPrefix(got, want) {
		t.Errorf("after 10,000 bytes of unknown size RateLimit is %s; want %s", got, want)
	}
}

const slotsPolicy = `
rules:
  - name: export
    per: global
    limits: [{in_flight: 2, ttl: 30s}]
`

func TestSlotsAreReturnedHoweverTheHandlerEnds(t *testing.T) {
	gate, _ := memoryGate(t, slotsPolicy)
	for _, handler := range []http.HandlerFunc{
		func(w http.ResponseWriter, r *http.Request) {},
		func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) },
		func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
	} {
		h := gate.Middleware(handler)
		for range 5 {
			func() {
				defer func() { recover() }()
				if got := send(h, "GET", "/").Code; got == 429 {
					t.Errorf("status %d; want the previous request's slot to be free", got)
				}
			}()
		}
	}
}

func TestRetryAfterOfASlotIsASecond(t *testing.T) {
	gate, _ := memoryGate(t, `
rules:
  - name: export
    per: global
    limits: [{in_flight: 1, ttl: 1h, headers: true}]
`)
	inside, leave := make(chan struct{}), make(chan struct{})
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { close(inside); <-leave }))
	var first sync.WaitGroup
	first.Go(func() { send(h, "GET", "/") })
	<-inside
	w := send(h, "GET", "/")
	if w.Code != 429 || w.Header().Get("Retry-After") != "1" || w.Header().Get("RateLimit") != `"export.in-flight";r=0;t=1` {
		t.Errorf("status %d, Retry-After %s, RateLimit %s; want 429, 1 second, and r=0 with t=1", w.Code, w.Header().Get("Retry-After"), w.Header().Get("RateLimit"))
	}
	close(leave)
	first.Wait()
}

func TestSlotsLastAsLongAsTheirRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, _ := memoryGate(t, slotsPolicy)
		done := make(chan struct{})
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-done }))
		var busy sync.WaitGroup
		for range 2 {
			busy.Go(func() { send(h, "GET", "/") })
		}
		synctest.Wait()
		for range 20 {
			time.Sleep(29 * time.Second) // almost the ttl
			if got := send(h, "GET", "/").Code; got != 429 {
				t.Fatalf("a third request while two are served: status %d; want 429", got)
			}
		}
		close(done)
		busy.Wait()
		if got := send(h, "GET", "/").Code; got != 200 {
			t.Errorf("after the slots were returned: status %d; want 200", got)
		}
	})
}

const queuePolicy = `
rules:
  - name: jobs
    per: global
    limits: [{rate: 1/s, algorithm: leaky-bucket, burst: 5, max_wait: 10s}]
http: {max_waiting: 3}
`

func TestQueuedRequestsLeaveOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := new(events)
		controller := controllerOf(t, memstore.New(memstore.Options{}), rulesOf(t, queuePolicy), admission.Options{Observe: seen.add})
		gate := gateOn(t, controller)
		start := time.Now()
		var served []time.Duration
		var mu sync.Mutex
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			served = append(served, time.Since(start))
		}))
		var statuses [6]int
		var all sync.WaitGroup
		for i := range statuses {
			all.Go(func() { statuses[i] = send(h, "GET", "/").Code })
			synctest.Wait()
		}
		if got := controller.Waiting(); got != 3 {
			t.Errorf("%d requests wait; want 3", got)
		}
		all.Wait()
		if want := [6]int{200, 200, 200, 200, 429, 429}; statuses != want {
			t.Errorf("statuses %v; want %v: one is served without a wait, three wait, and the others are denied", statuses, want)
		}
		for i, at := range served {
			if want := time.Duration(i) * time.Second; at != want {
				t.Errorf("request %d was served after %v; want %v", i+1, at, want)
			}
		}
		if n := seen.count(admission.Denied); n != 2 {
			t.Errorf("the events have %d denials; want 2", n)
		}
	})
}

// A request has a place in the queue only until its turn comes, not while its body is read.
func TestSlowBodiesTakeNoPlacesInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		controller := memoryController(t, queuePolicy)
		h := gateOn(t, controller).Middleware(respond(200))
		send(h, "GET", "/")
		var slow sync.WaitGroup
		var bodies []*io.PipeWriter
		for range 3 {
			body, client := io.Pipe()
			bodies = append(bodies, client)
			slow.Go(func() {
				r := httptest.NewRequest("POST", "/", body)
				r.ContentLength = int64(len("hello"))
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code != 200 {
					t.Errorf("a request with a slow body: status %d; want 200", w.Code)
				}
			})
		}
		synctest.Wait()
		if got := controller.Waiting(); got != 3 {
			t.Errorf("%d requests wait; want 3", got)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := controller.Waiting(); got != 0 {
			t.Errorf("%d requests wait after all have had their turn; want 0", got)
		}
		send(h, "GET", "/")
		if w := send(h, "GET", "/"); w.Code != 200 {
			t.Errorf("a request that has to wait: status %d; want 200", w.Code)
		}
		for _, client := range bodies {
			io.WriteString(client, "hello")
			client.Close()
		}
		slow.Wait()
	})
}

func TestClientThatLeavesTheQueueFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, seen := memoryGate(t, queuePolicy)
		served := 0
		h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { served++ }))
		send(h, "GET", "/")
		ctx, leave := context.WithCancel(t.Context())
		var leaving sync.WaitGroup
		leaving.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx)) })
		synctest.Wait()
		leave()
		leaving.Wait()
		start := time.Now()
		if got := send(h, "GET", "/").Code; got != 200 || time.Since(start) != time.Second {
			t.Errorf("the next request got status %d after %v; want 200 after 1s", got, time.Since(start))
		}
		if served != 2 || seen.count(admission.Abandoned) != 1 {
			t.Errorf("%d requests were served, and %d were abandoned; want 2 and 1", served, seen.count(admission.Abandoned))
		}
	})
}

func TestListsComeFirst(t *testing.T) {
	gate, seen := memoryGate(t, `
allow: [{header X-API-Key: friend}]
deny: [{header X-API-Key: [foe]}]
rules:
  - {name: all, per: global, limits: [{rate: 1/h}]}
`)
	h := gate.Middleware(respond(200))
	for range 3 {
		if got := send(h, "GET", "/", "X-API-Key", "friend").Code; got != 200 {
			t.Errorf("a client on the allow list: status %d; want 200", got)
		}
		if got := send(h, "GET", "/", "X-API-Key", "foe").Code; got != 403 {
			t.Errorf("a client on the deny list: status %d; want 403", got)
		}
	}
	if got := send(h, "GET", "/").Code; got != 200 {
		t.Errorf("the first request of another client: status %d; want 200, because lists charge nothing", got)
	}
	if exempt, refused := seen.count(admission.Exempt), seen.count(admission.Refused); exempt != 3 || refused != 3 {
		t.Errorf("the events have %d exempt and %d refused requests; want 3 and 3", exempt, refused)
	}
}

func TestShadowsAreReportedAndNotEnforced(t *testing.T) {
	gate, seen := memoryGate(t, `
rules:
  - name: api
    per: global
    limits:
      - {name: real, rate: 4/h, candidate: {rate: 2/h}}
      - {name: maybe, rate: 3/h, shadow: true}
  - name: whole
    always: true
    shadow: true
    per: global
    limits: [{rate: 1/h}]
`)
	h := gate.Middleware(respond(200))
	for i, want := range []int{200, 200, 200, 200, 429} {
		w := send(h, "GET", "/")
		if w.Code != want {
			t.Errorf("request %d: status %d; want %d", i+1, w.Code, want)
		}
	}
	denied := map[string]int{}
	for _, e := range seen.list {
		if e.Outcome == admission.ShadowDenied {
			denied[e.Rule+"."+e.Limit]++
		}
	}
	// Of five requests, each shadow would have denied those over its own limit.
	for limit, want := range map[string]int{"api.real.candidate": 3, "api.maybe": 2, "whole.hour": 4} {
		if denied[limit] != want {
			t.Errorf("%s would have denied %d requests; want %d", limit, denied[limit], want)
		}
	}
}

func TestHandlerGetsThePathThatRulesMatched(t *testing.T) {
	gate, _ := memoryGate(t, perKeyPolicy)
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.EscapedPath()) }))
	for _, target := range []string{"/search", "//search", "/./search", "/x/../search", "/%73earch", "/s%65arch?q=1"} {
		w := send(h, "GET", target, "X-API-Key", target)
		if w.Body.String() != "/search" || w.Header().Get("RateLimit") == "" {
			t.Errorf("%s is served as %s, with RateLimit %q; want /search with a limit", target, w.Body, w.Header().Get("RateLimit"))
		}
	}
	// net/url would send the second target as /a/b%22, which another rule might match.
	for _, target := range []string{"/a%00b", "/a%2Fb\"", "/a%2fb"} {
		r := httptest.NewRequest("GET", "/", nil)
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatal(err)
		}
		r.URL = u
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 400 {
			t.Errorf("%s: status %d; want 400", target, w.Code)
		}
	}
}

func TestOwnHandlerAnswersDenials(t *testing.T) {
	gate, err := httplimit.New(memoryController(t, perKeyPolicy), httplimit.Options{
		Rejected: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, ok := httplimit.RejectionOf(r.Context())
			w.WriteHeader(420)
			fmt.Fprintf(w, "%v %d %s %v %v", ok, d.Status, d.Rule, d.Policies, d.RetryAfter.Round(time.Minute))
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := gate.Middleware(respond(200))
	for range 3 {
		send(h, "GET", "/search")
	}
	w := send(h, "GET", "/search")
	if w.Code != 420 || w.Body.String() != "true 429 search [search.hour] 20m0s" || w.Header().Get("Retry-After") != "1200" {
		t.Errorf("status %d, Retry-After %s, body %q; want the response of the handler Rejected", w.Code, w.Header().Get("Retry-After"), w.Body)
	}
}

func TestHandlersKeepTheirResponseWriter(t *testing.T) {
	gate, _ := memoryGate(t, loginPolicy)
	server := httptest.NewServer(gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(http.Flusher); !ok {
			t.Errorf("the response writer is a %T; want an http.Flusher", w)
		}
		control := http.NewResponseController(w)
		if err := control.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("SetWriteDeadline returns %v; want no error", err)
		}
		connection, rw, err := control.Hijack()
		if err != nil {
			t.Errorf("Hijack returns %v; want the connection", err)
			return
		}
		defer connection.Close()
		rw.WriteString("HTTP/1.1 299 Mine\r\nContent-Length: 0\r\n\r\n")
		rw.Flush()
	})))
	defer server.Close()
	response, err := http.Post(server.URL+"/login", "", nil)
	if err != nil || response.StatusCode != 299 {
		t.Errorf("the response is %v, %v; want status 299, which the handler wrote to the connection", response, err)
	}
}

func TestPolicySetsTheBodyOfDenials(t *testing.T) {
	for body, begins := range map[string]string{"problem": "{", "text": "Too many requests: a.hour", "'no: {{.Rule}}'": "no: a"} {
		gate, _ := memoryGate(t, "http: {denied: {body: "+body+"}}\nrules: [{name: a, per: ip, limits: [{rate: 1/h}]}]\n")
		handler := gate.Middleware(http.NotFoundHandler())
		var w *httptest.ResponseRecorder
		for range 2 {
			w = httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		}
		if w.Code != 429 || !strings.HasPrefix(w.Body.String(), begins) {
			t.Errorf("with the body %s, a denial has status %d and the body %s; want 429 with a body that begins with %q", body, w.Code, w.Body, begins)
		}
	}
}

// The name of a limit with headers: false must not reach a client, whatever denies the request.
func TestDenialsHideWhatHeadersHide(t *testing.T) {
	const (
		first  = "{name: known, rate: 1/h}"
		second = "{name: secret, rate: 1/h, headers: false}"
		closed = "{name: secret, rate: 1/h, headers: false, on_failure: closed}"
	)
	down := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonUnreachable, nil)
	})
	for name, c := range map[string]struct {
		store                        penstock.Store
		limits, accept, policy, want string
	}{
		"one of two":       {limits: first + ", " + second, want: `"violated-policies":["a.known"]`},
		"the only one":     {limits: second, want: `"detail":"Retry after 1h0m0s.","retry_after_ms"`},
		"text":             {limits: first + ", " + second, accept: "text/html", want: "Too many requests: a.known."},
		"text of one":      {limits: second, accept: "text/html", want: "Too many requests."},
		"a template":       {limits: first + ", " + second, policy: "http: {denied: {body: '{{range .Policies}}[{{.}}]{{end}}'}}\n", want: "[a.known]"},
		"its first policy": {limits: second, policy: "http: {denied: {body: 'first {{index .Policies 0}}'}}\n", want: "first a"},
		"a closed limit":   {limits: closed, store: down, want: `"status":503`},
	} {
		if c.store == nil {
			start := time.Now()
			c.store = memstore.New(memstore.Options{Now: func() time.Time { return start }}) // so that exactly 1h is left
		}
		gate, _ := gateWith(t, c.store, c.policy+"rules: [{name: a, per: ip, limits: ["+c.limits+"]}]\n")
		handler := gate.Middleware(http.NotFoundHandler())
		var w *httptest.ResponseRecorder
		for range 2 {
			w = httptest.NewRecorder()
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Accept", c.accept)
			handler.ServeHTTP(w, r)
		}
		answer := fmt.Sprint(w.Header(), w.Body)
		if w.Code < 400 || !strings.Contains(answer, c.want) || strings.Contains(answer, "secret") {
			t.Errorf("%s: status %d, %s; want a denial with %s, and without the word secret", name, w.Code, answer, c.want)
		}
	}
}

func TestSettlingWithoutActualCostIsAnError(t *testing.T) {
	for cost, isValid := range map[string]bool{"1": false, "{units: 1, actual: X-Cost}": true} {
		gate, _ := memoryGate(t, "rules: [{name: a, per: global, limits: [{rate: 10/h, cost: "+cost+"}]}]\n")
		gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := httplimit.Settle(r.Context(), 3); (err == nil) != isValid || err != nil && !errors.Is(err, penstock.ErrInvalid) {
				t.Errorf("with the cost %s, Settle returns %v; want an error only without actual", cost, err)
			}
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
}
