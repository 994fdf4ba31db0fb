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
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// play lets a test ask a service behind a policy, in a time that passes only while all wait: by
// itself, with all guards around its store, and with guards around a store that never answers, all
// limits being local. The same holds each time.
func play(t *testing.T, name string, test func(*testing.T, *world)) {
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
		return // its shadow gives back what it counted, and a shadow does not count without its store
	}
	t.Run("outage", func(t *testing.T) {
		rules := loadLocal(t, name+".yaml")
		synctest.Test(t, func(t *testing.T) {
			store := guarded(t, down, func(limit *penstock.Limit) guard.Settings {
				s := rules.Settings(limit)
				s.OnFailure = guard.Local // shadows and candidates too, which would not count
				return s
			})
			defer store.Close()
			test(t, open(t, rules, store))
		})
	})
}

// guarded puts guards around a store that no other process shares.
func guarded(t *testing.T, store penstock.Store, settings func(*penstock.Limit) guard.Settings) *guard.Guarded {
	t.Helper()
	g, err := guard.Standard(store, guard.Options{Limits: settings, Instances: 1})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A world is a service behind a policy.
type world struct {
	t       *testing.T
	handler http.Handler
	takes   time.Duration // to serve a request; default: none

	mu    sync.Mutex
	seen  map[string]int // what the gate reported, as "rule.limit outcome"
	times []time.Time    // at which serving began, one for each request that was served
}

// A request, and how the service is to answer it if it gets there.
type request struct {
	method, path string // default: GET
	from         string // default: 192.0.2.1
	header       map[string]string
	body         string
	status       int // default: 200
	answer       map[string]string
}

func load(t *testing.T, file string) *policy.Rules {
	t.Helper()
	t.Setenv("JWKS_URL", issuer().URL)
	rules, err := policy.Load(file)
	return started(t, rules, err)
}

// loadLocal loads a policy as if all its limits were local.
func loadLocal(t *testing.T, file string) *policy.Rules {
	t.Helper()
	t.Setenv("JWKS_URL", issuer().URL)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	config, err := policy.Parse(file, text, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	config.OnFailure = "local"
	for i := range config.Rules {
		for j := range config.Rules[i].Limits {
			config.Rules[i].Limits[j].OnFailure, config.Rules[i].Limits[j].Ceiling = "", ""
		}
	}
	rules, err := config.Compile()
	return started(t, rules, err)
}

func started(t *testing.T, rules *policy.Rules, err error) *policy.Rules {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rules.Close)
	rules.Start(func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	return rules
}

func open(t *testing.T, rules *policy.Rules, store penstock.Store) *world {
	t.Helper()
	w := &world{t: t, seen: make(map[string]int)}
	gate, err := httplimit.New(httplimit.Options{Store: store, Rules: func() *policy.Rules { return rules }, Observe: w.observe})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = gate.Middleware(http.HandlerFunc(w.serve))
	return w
}

// down is a store that gives no answer.
var down = penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Decision{}, penstock.ErrUnavailable
})

func (w *world) observe(e httplimit.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[e.Rule+"."+e.Limit+" "+e.Outcome.String()]++
}

type requestKey struct{}

func (w *world) serve(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.times = append(w.times, time.Now())
	w.mu.Unlock()
	time.Sleep(w.takes)
	asked := r.Context().Value(requestKey{}).(request)
	for name, value := range asked.answer {
		out.Header().Set(name, value)
	}
	if asked.status != 0 {
		out.WriteHeader(asked.status)
	}
}

func (w *world) ask(asked request) *httptest.ResponseRecorder {
	if asked.method == "" {
		asked.method = "GET"
	}
	if asked.from == "" {
		asked.from = "192.0.2.1"
	}
	r := httptest.NewRequest(asked.method, asked.path, strings.NewReader(asked.body))
	r.RemoteAddr = asked.from + ":1234"
	for name, value := range asked.header {
		r.Header.Set(name, value)
	}
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), requestKey{}, asked)))
	return answer
}

// want asks some times and wants all to be answered so. It returns the last answer.
func (w *world) want(times, status int, asked request) (answer *httptest.ResponseRecorder) {
	w.t.Helper()
	for i := range times {
		answer = w.ask(asked)
		if answer.Code != status {
			w.t.Fatalf("%s %s from %q with %v, number %d of %d: %d, not %d\n%s",
				asked.method, asked.path, asked.from, asked.header, i+1, times, answer.Code, status, answer.Body)
		}
	}
	return answer
}

// askAll asks n and m times, all at once, and counts the statuses of either.
func (w *world) askAll(n int, one func(int) request, m int, other func(int) request) (statuses [2]map[int]int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for of, make := range []func(int) request{one, other} {
		statuses[of] = map[int]int{}
		for i := range []int{n, m}[of] {
			all.Go(func() {
				answer := w.ask(make(i))
				mu.Lock()
				defer mu.Unlock()
				statuses[of][answer.Code]++
			})
		}
	}
	all.Wait()
	return statuses
}

func (w *world) pass(d time.Duration)   { time.Sleep(d) }
func (w *world) until(moment time.Time) { time.Sleep(time.Until(moment)) }

// address is one of many.
func address(i int) string { return fmt.Sprintf("203.0.%d.%d", i/256, i%256) }

// issuer is who signs tokens, and publishes its key, for as long as the tests run.
var issuer = sync.OnceValue(func() *httptest.Server {
	set := fmt.Sprintf(`{"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "1", "x": %q}]}`, encode(signer.Public().(ed25519.PublicKey)))
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(set)) }))
})

var signer = ed25519.NewKeyFromSeed([]byte("a seed of thirty-two bytes in all"[:32]))

// token is a signed token that says name and value, name and value, ...
func (w *world) token(says ...string) string {
	claims := map[string]any{"iss": "https://login.example.com", "exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(says); i += 2 {
		claims[says[i]] = says[i+1]
	}
	text, err := json.Marshal(claims)
	if err != nil {
		w.t.Fatal(err)
	}
	signed := encode([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + encode(text)
	return signed + "." + encode(ed25519.Sign(signer, []byte(signed)))
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
