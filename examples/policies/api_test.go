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

// run runs a test with a policy in a synctest bubble, three times: with the memory store, with all
// guards around that store, and with guards around a store that is down while all limits are local.
// The results must be the same each time.
func run(t *testing.T, name string, test func(*testing.T, *api)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		rules := load(t, name+".yaml")
		synctest.Test(t, func(t *testing.T) { test(t, open(t, rules, memstore.New(memstore.Options{}))) })
	})
	t.Run("guarded", func(t *testing.T) {
		rules := load(t, name+".yaml")
		synctest.Test(t, func(t *testing.T) {
			store := guarded(t, memstore.New(memstore.Options{}), rules.Settings)
			defer store.Close()
			test(t, open(t, rules, store))
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
			test(t, open(t, rules, store))
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

// An api is a service with a policy.
type api struct {
	t       *testing.T
	handler http.Handler
	takes   time.Duration // to serve a request; default: none

	mu    sync.Mutex
	seen  map[string]int // events, as "rule.limit outcome"
	times []time.Time    // start times of served requests
}

// A request has what a client sends, and the response of the service if the request reaches it.
type request struct {
	method, path string // default: GET
	from         string // default: 192.0.2.1
	header       map[string]string
	body         string
	status       int // default: 200
	answer       map[string]string
}

// sections are the sections that these policies may have.
var sections = policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}

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
	config, err := policyfile.Parse(file, text, os.LookupEnv, sections)
	if err != nil {
		t.Fatal(err)
	}
	config.OnFailure = "local"
	for i := range config.Rules {
		for j := range config.Rules[i].Limits {
			config.Rules[i].Limits[j].OnFailure, config.Rules[i].Limits[j].Ceiling = "", ""
		}
	}
	p, err := config.Compile()
	return startPolicy(t, p, err)
}

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

func open(t *testing.T, rules *policy.Rules, store penstock.Store) *api {
	t.Helper()
	w := &api{t: t, seen: make(map[string]int)}
	gate, err := httplimit.New(store, func() *policy.Rules { return rules }, httplimit.Options{Observe: w.observe})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = gate.Middleware(http.HandlerFunc(w.serve))
	return w
}

// down is a store that returns an error instead of a decision.
var down = penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Decision{}, penstock.ErrUnavailable
})

func (w *api) observe(e *admission.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[e.Rule+"."+e.Limit+" "+e.Outcome.String()]++
}

type requestKey struct{}

func (w *api) serve(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.times = append(w.times, time.Now())
	w.mu.Unlock()
	time.Sleep(w.takes)
	req := r.Context().Value(requestKey{}).(request)
	for name, value := range req.answer {
		out.Header().Set(name, value)
	}
	if req.status != 0 {
		out.WriteHeader(req.status)
	}
}

func (w *api) call(req request) *httptest.ResponseRecorder {
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
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), requestKey{}, req)))
	return answer
}

// want sends a request several times. All responses must have the status. It returns the last
// response.
func (w *api) want(times, status int, req request) (answer *httptest.ResponseRecorder) {
	w.t.Helper()
	for i := range times {
		answer = w.call(req)
		if answer.Code != status {
			w.t.Fatalf("%s %s from %q with %v, number %d of %d: status %d; want %d\n%s",
				req.method, req.path, req.from, req.header, i+1, times, answer.Code, status, answer.Body)
		}
	}
	return answer
}

// sendAll sends n requests of one kind and m of another, all at once. It counts the statuses of
// each kind.
func (w *api) sendAll(n int, one func(int) request, m int, other func(int) request) (statuses [2]map[int]int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for of, make := range []func(int) request{one, other} {
		statuses[of] = map[int]int{}
		for i := range []int{n, m}[of] {
			all.Go(func() {
				answer := w.call(make(i))
				mu.Lock()
				defer mu.Unlock()
				statuses[of][answer.Code]++
			})
		}
	}
	all.Wait()
	return statuses
}

func (w *api) sleep(d time.Duration)       { time.Sleep(d) }
func (w *api) sleepUntil(moment time.Time) { time.Sleep(time.Until(moment)) }

// address returns the i-th address.
func address(i int) string { return fmt.Sprintf("203.0.%d.%d", i/256, i%256) }

// issuer publishes the key of tokens while the tests run.
var issuer = sync.OnceValue(func() *httptest.Server {
	set := fmt.Sprintf(`{"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "1", "x": %q}]}`, encode(signer.Public().(ed25519.PublicKey)))
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(set)) }))
})

var signer = ed25519.NewKeyFromSeed([]byte("a seed of thirty-two bytes in all"[:32]))

// token makes a signed token. Its arguments are the names and values of claims, in turn.
func (w *api) token(nameValues ...string) string {
	claims := map[string]any{"iss": "https://login.example.com", "exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(nameValues); i += 2 {
		claims[nameValues[i]] = nameValues[i+1]
	}
	text, err := json.Marshal(claims)
	if err != nil {
		w.t.Fatal(err)
	}
	signed := encode([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + encode(text)
	return signed + "." + encode(ed25519.Sign(signer, []byte(signed)))
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
