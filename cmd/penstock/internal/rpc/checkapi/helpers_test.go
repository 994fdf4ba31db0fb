package checkapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

const (
	callerToken   = "caller-0123456789"
	operatorToken = "operator-0123456789"
)

// A clock shows the time that the test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_700_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(by)
}

// rules is a policy with a rule of each kind.
const rules = `
deny: [{ip: 192.0.2.66}]
allow: [{ip: 192.0.2.1}]
rules:
- {name: search, match: {path: /search}, per: {user: header X-User}, limits: [{name: minute, rate: 3/min}, {name: day, rate: 10/day}]}
- {name: jobs, match: {path: /jobs}, per: {user: header X-User}, limits: [{in_flight: 2, ttl: 1m}]}
- {name: login, match: {path: /login}, per: ip, limits: [{name: hour, rate: 5/h, on_status: 401}]}
- {name: tokens, match: {path: /tokens}, per: {user: header X-User}, limits: [{name: calls, rate: 9/min}, {name: tokens, rate: 100/min, cost: {units: 40, actual: X-Tokens}}]}
- {name: upload, match: {path: /upload}, per: ip, limits: [{name: bytes, rate: 10/s, cost: {body: 1KB}}]}
- {name: plans, match: {path: /**, descriptor plan: pro}, per: {tenant: descriptor tenant}, limits: [{rate: 2/min}]}
- {name: free, match: {path: /free}, unlimited: true}
`

func rulesOf(t testing.TB, text string) *policy.Rules {
	t.Helper()
	p, err := policyfile.Parse("test.yaml", []byte(text), nil, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Rules
}

// A testService is a service that a test calls over HTTP. It collects the events of the service.
type testService struct {
	testing.TB
	*Service
	clock  *clock
	mu     sync.Mutex
	events []admission.Event
}

// newService makes a service for the policy rules, with a memory store that has a clock of the
// test.
func newService(t testing.TB, change ...func(*Options)) *testService {
	t.Helper()
	c := newClock()
	return newServiceOn(t, memstore.New(memstore.Options{Now: c.Now}), c, change...)
}

// newServiceOn makes a service for the policy rules on a store, without guards. change changes the
// options.
func newServiceOn(t testing.TB, store penstock.Store, c *clock, change ...func(*Options)) *testService {
	t.Helper()
	s := &testService{TB: t, clock: c}
	compiled := rulesOf(t, rules)
	controller, err := admission.New(store, compiled, admission.Options{
		Observe: func(e *admission.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, *e)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{CallerToken: []byte(callerToken), OperatorToken: []byte(operatorToken), AllowCallerLimits: true, Secret: []byte("secret of all instances")}
	for _, set := range change {
		set(&o)
	}
	if s.Service, err = New(store, controller, o); err != nil {
		t.Fatal(err)
	}
	return s
}

// failingStore returns a store that gives no answer.
func failingStore(reason penstock.Reason) penstock.Store {
	return penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.NewStoreError(reason, nil)
	})
}

// newServiceOf makes a service for a policy on a store, with a fallback around the store. It
// collects no events.
func newServiceOf(t testing.TB, text string, store penstock.Store) *testService {
	t.Helper()
	rules := rulesOf(t, text)
	store = penstock.Wrap(store, guard.Fallback(guard.FallbackOptions{Limits: rules.Settings}))
	controller, err := admission.New(store, rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	service, err := New(store, controller, Options{CallerToken: []byte(callerToken), OperatorToken: []byte(operatorToken), AllowCallerLimits: true, Secret: []byte("secret of all instances")})
	if err != nil {
		t.Fatal(err)
	}
	return &testService{TB: t, Service: service}
}

// send sends a call with a token, and returns the response. It checks the response against the
// OpenAPI file. The headers are lines such as "X-A: b".
func (s *testService) send(token, path, body string, headers ...string) *httptest.ResponseRecorder {
	s.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	checkResponse(s, path, w)
	return w
}

// An object is a JSON object.
type object map[string]any

// call sends a call with the operator token and returns the response, which must have status 200.
func (s *testService) call(path, body string, headers ...string) object {
	s.Helper()
	w := s.send(operatorToken, path, body, headers...)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		s.Fatalf("%s %s: %d %s; want 200 and JSON", path, body, w.Code, w.Body)
	}
	return objectOf(s, w.Body.String())
}

func objectOf(t testing.TB, text string) object {
	t.Helper()
	var answer object
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("the text is not a JSON object: %v: %s", err, text)
	}
	return answer
}

// object returns the object in a field, or nil.
func (o object) object(name string) object {
	inner, _ := o[name].(map[string]any)
	return inner
}

// list returns the objects in the list of a field.
func (o object) list(name string) (all []object) {
	list, _ := o[name].([]any)
	for _, one := range list {
		all = append(all, one.(map[string]any))
	}
	return all
}

// remaining returns how many units a limit in a response has left.
func (o object) remaining(t testing.TB, limit string) int64 {
	t.Helper()
	for _, l := range o.list("limits") {
		if l["limit"] == limit {
			return int64(l["remaining"].(float64))
		}
	}
	t.Fatalf("the response %v has no limit %s; want one", o, limit)
	return 0
}
