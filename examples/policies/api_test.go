package policies

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// run runs a test with a policy in a synctest bubble three times. The stores are the memory store,
// all guards around that store, and guards around a store that is down. In the third run, the
// fallback of all limits is local. The results must be the same each time.
func run(t *testing.T, name string, test func(*testing.T, *api)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		rules := load(t, name+".yaml")
		synctest.Test(t, func(t *testing.T) { test(t, newAPI(t, rules, memstore.New(memstore.Options{}))) })
	})
	t.Run("guarded", func(t *testing.T) {
		rules := load(t, name+".yaml")
		synctest.Test(t, func(t *testing.T) {
			store := guarded(t, memstore.New(memstore.Options{}), rules.Settings)
			defer store.Close()
			test(t, newAPI(t, rules, store))
		})
	})
	if name == "contractual-quotas" {
		return // its shadow limit refunds units, and a shadow does not count without its store
	}
	t.Run("outage", func(t *testing.T) {
		rules := loadLocal(t, name+".yaml")
		synctest.Test(t, func(t *testing.T) {
			store := guarded(t, down, func(limit *penstock.Plan) guard.Settings {
				s := rules.Settings(limit)
				s.OnFailure = guard.FailLocal // also for shadows, which would otherwise not count
				return s
			})
			defer store.Close()
			test(t, newAPI(t, rules, store))
		})
	})
}

// guarded puts guards around a store. No other process shares it.
func guarded(t *testing.T, store penstock.Store, settings func(*penstock.Plan) guard.Settings) *guard.Guarded {
	t.Helper()
	g, err := guard.Standard(store, guard.Options{Limits: settings, Instances: 1})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// An api is a service behind a gate with a policy.
type api struct {
	t           *testing.T
	handler     http.Handler
	servingTime time.Duration // how long the service needs for a request; default: 0

	mu         sync.Mutex
	events     map[string]int // how many, by "rule.limit outcome"
	startTimes []time.Time    // of served requests
}

// A request has what a client sends, and the response of the service if the request reaches it.
type request struct {
	method, path   string // default: GET
	from           string // default: 192.0.2.1
	header         map[string]string
	body           string
	status         int // of the response; default: 200
	responseHeader map[string]string
}

// sections are the sections that these policies may have.
var sections = policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}

// load loads a policy.
func load(t *testing.T, file string) *policy.Rules {
	t.Helper()
	t.Setenv("JWKS_URL", issuer().URL)
	p, err := policyfile.Load(file, sections)
	return startPolicy(t, p, err)
}

// loadLocal loads a policy and makes all its limits local.
func loadLocal(t *testing.T, file string) *policy.Rules {
	t.Helper()
	t.Setenv("JWKS_URL", issuer().URL)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := policyfile.Parse(file, failureSettings.ReplaceAll(text, nil), os.LookupEnv, sections)
	return startPolicy(t, p, err)
}

// failureSettings matches what a policy says about failures of the store. Without it, limits are
// local.
var failureSettings = regexp.MustCompile(`(?m)^on_failure: \w+$|, (on_failure: \w+|ceiling: [^,}]+)`)

// startPolicy starts to read the keys of a loaded policy.
func startPolicy(t *testing.T, p *policyfile.Policy, err error) *policy.Rules {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Start(func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	return p.Rules
}

// newAPI returns a service with these rules and this store.
func newAPI(t *testing.T, rules *policy.Rules, store penstock.Store) *api {
	t.Helper()
	a := &api{t: t, events: make(map[string]int)}
	controller, err := admission.New(store, rules, admission.Options{Observe: a.observe})
	if err != nil {
		t.Fatal(err)
	}
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a.handler = gate.Middleware(http.HandlerFunc(a.serve))
	return a
}

// down is a store that returns an error instead of a decision.
var down = penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Decision{}, penstock.ErrUnavailable
})

// observe counts an event.
func (a *api) observe(e *admission.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events[e.Rule+"."+e.Limit+" "+e.Outcome.String()]++
}

// A requestKey is the key of the request in the context of an HTTP request.
type requestKey struct{}

// serve responds as the request requires.
func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.startTimes = append(a.startTimes, time.Now())
	a.mu.Unlock()
	time.Sleep(a.servingTime)
	req := r.Context().Value(requestKey{}).(request)
	for name, value := range req.responseHeader {
		w.Header().Set(name, value)
	}
	if req.status != 0 {
		w.WriteHeader(req.status)
	}
}

// call sends a request, and returns its response.
func (a *api) call(req request) *httptest.ResponseRecorder {
	if req.method == "" {
		req.method = "GET"
	}
	if req.from == "" {
		req.from = "192.0.2.1"
	}
	r := httptest.NewRequest(req.method, req.path, strings.NewReader(req.body))
	r.RemoteAddr = req.from + ":1234"
	for name, value := range req.header {
		r.Header.Set(name, value)
	}
	response := httptest.NewRecorder()
	a.handler.ServeHTTP(response, r.WithContext(context.WithValue(r.Context(), requestKey{}, req)))
	return response
}

// want sends a request several times. All responses must have this status. The last response is
// returned.
func (a *api) want(times, status int, req request) (response *httptest.ResponseRecorder) {
	a.t.Helper()
	for i := range times {
		response = a.call(req)
		if response.Code != status {
			a.t.Fatalf("%s %s from %q with %v, number %d of %d: status %d; want %d\n%s",
				req.method, req.path, req.from, req.header, i+1, times, response.Code, status, response.Body)
		}
	}
	return response
}

// sendAll sends n requests of one kind and m of another, all at the same time. The results count
// the statuses of each kind.
func (a *api) sendAll(n int, one func(int) request, m int, other func(int) request) (statuses [2]map[int]int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for kind, makeRequest := range []func(int) request{one, other} {
		statuses[kind] = map[int]int{}
		for i := range []int{n, m}[kind] {
			all.Go(func() {
				response := a.call(makeRequest(i))
				mu.Lock()
				defer mu.Unlock()
				statuses[kind][response.Code]++
			})
		}
	}
	all.Wait()
	return statuses
}

func (a *api) sleep(d time.Duration)       { time.Sleep(d) }
func (a *api) sleepUntil(moment time.Time) { time.Sleep(time.Until(moment)) }

// address returns the i-th address.
func address(i int) string { return fmt.Sprintf("203.0.%d.%d", i/256, i%256) }

// issuer publishes the key of tokens while the tests run.
var issuer = sync.OnceValue(func() *httptest.Server {
	set := fmt.Sprintf(`{"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "1", "x": %q}]}`, encode(signer.Public().(ed25519.PublicKey)))
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(set)) }))
})

var signer = ed25519.NewKeyFromSeed([]byte("a seed of thirty-two bytes in all"[:32]))

// token makes a signed token. Each name of a claim is followed by its value.
func (a *api) token(nameValues ...string) string {
	claims := map[string]any{"iss": "https://login.example.com", "exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(nameValues); i += 2 {
		claims[nameValues[i]] = nameValues[i+1]
	}
	text, err := json.Marshal(claims)
	if err != nil {
		a.t.Fatal(err)
	}
	signed := encode([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + encode(text)
	return signed + "." + encode(ed25519.Sign(signer, []byte(signed)))
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
