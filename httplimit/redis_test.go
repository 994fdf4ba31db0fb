package httplimit_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/internal/testing/spellings"
	"github.com/penstock/penstock/redisstore"
)

// openStore opens a store that is closed when the test ends.
func openStore(t *testing.T, address string) penstock.Store {
	t.Helper()
	store, err := redisstore.Open(address, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// withGuards puts the guards around a store, with a timeout that suits slow machines.
func withGuards(t *testing.T, store penstock.Store, text string, denyCacheTTL time.Duration) penstock.Store {
	t.Helper()
	g, err := guard.Standard(store, guard.Options{
		Instances: 1,
		Limits:    rulesOf(t, text).Settings, Timeout: guard.TimeoutOptions{After: 10 * time.Second}, DenyCacheTTL: denyCacheTTL,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// Two servers share one Redis, and get requests from real clients over loopback. Each server counts
// what the other one admits, with guards and without.
func TestServersShareLimitsOverRedis(t *testing.T) {
	single := redistest.Start(t)
	cluster := redistest.StartCluster(t)
	for name, address := range map[string]string{
		"single":          single.URL(),
		"single guarded":  single.URL(),
		"cluster":         "redis+cluster://" + strings.Join(cluster.Addrs(), ","),
		"cluster guarded": "redis+cluster://" + strings.Join(cluster.Addrs(), ","),
	} {
		t.Run(name, func(t *testing.T) {
			const text = `
identities:
  tenant: {tenant: header X-Tenant}
rules:
  - name: api
    limits:
      - {name: everyone, rate: 1000/h, per: global, split_into: 8}
      - {name: tenant, rate: 50/h, per: tenant}
      - {name: key, rate: 20/h, per: {key: header X-API-Key}, algorithm: sliding-log}
`
			var urls []string
			for range 2 {
				store := openStore(t, address)
				switch name {
				case "single guarded":
					store = withGuards(t, store, text, time.Hour)
				case "cluster guarded":
					store = withGuards(t, store, text, -1) // without a deny cache: a denial may come from a moment when a refund was in flight
				}
				gate, _ := gateWith(t, store, text)
				server := httptest.NewServer(gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })))
				t.Cleanup(server.Close)
				urls = append(urls, server.URL)
			}
			var allowed [3]atomic.Int64 // allowed requests of each key
			send := func(key, server int) bool {
				request, _ := http.NewRequest("GET", urls[server]+"/", nil)
				request.Header.Set("X-Tenant", name)
				request.Header.Set("X-API-Key", fmt.Sprint(name, key))
				response, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Errorf("key %d, server %d: the error is %v; want a response", key, server, err)
					return false
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode == 200 {
					allowed[key].Add(1)
				}
				return response.StatusCode == 200
			}
			// Three keys of one tenant send 40 requests each, concurrently, to both servers.
			var all sync.WaitGroup
			for key := range allowed {
				for i := range 40 {
					all.Go(func() { send(key, i%2) })
				}
			}
			all.Wait()
			concurrent := allowed[0].Load() + allowed[1].Load() + allowed[2].Load()
			// On a Cluster, a request peeks and then charges, and another request may charge between the
			// two. Then the charges of the first are refunded, and until then others may be denied. No unit
			// is lost: requests that are sent one by one use up the rest of the limit.
			for key := range allowed {
				for send(key, key%2) {
				}
			}
			sum := int64(0)
			for key := range allowed {
				n := allowed[key].Load()
				sum += n
				if n > 20 {
					t.Errorf("key %d was allowed %d requests; want at most 20", key, n)
				}
			}
			if sum != 50 || concurrent != 50 && strings.HasPrefix(name, "single") {
				t.Errorf("the tenant was allowed %d requests, %d of them concurrent; want 50, on a single server all concurrent", sum, concurrent)
			}
			t.Logf("counted: 120 requests over loopback to two servers on one Redis (%s, %d allowed)", name, sum)
		})
	}
}

// All spellings of one path are charged under one key.
func TestSpellingsOfOnePathShareOneCounter(t *testing.T) {
	gate, _ := memoryGate(t, `
rules:
  - name: ride
    match: {path: /api/rides/request}
    per: {key: header X-API-Key}
    limits: [{rate: 1/h}]
`)
	server := httptest.NewServer(gate.Middleware(respond(200)))
	defer server.Close()
	connection, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	responses := bufio.NewReader(connection)
	admitted, malformed := 0, 0
	targets := spellings.All()
	for _, target := range targets {
		fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: a\r\nX-API-Key: a\r\nContent-Length: 0\r\n\r\n", target)
		response, err := http.ReadResponse(responses, nil)
		if err != nil {
			t.Fatalf("%s: the error is %v; want a response", target, err)
		}
		io.Copy(io.Discard, response.Body)
		switch {
		case response.StatusCode == 200:
			admitted++
		case response.StatusCode == 400:
			malformed++
		case response.StatusCode != 429:
			t.Errorf("%s: status %d; want 200, 429 or 400", target, response.StatusCode)
		}
	}
	if admitted != 1 {
		t.Errorf("%d spellings were admitted; want one", admitted)
	}
	t.Logf("counted: %d spellings of one path over HTTP (%d rejected as malformed)", len(targets), malformed)
}

// A scriptCounter counts the calls of scripts that the server ran. Calls of scripts that the server
// did not know do not count.
type scriptCounter struct {
	redisstore.Client
	scripts atomic.Int64
}

func (c *scriptCounter) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	reply, err := c.Client.EvalSha(ctx, digest, keys, args)
	if err == nil {
		c.scripts.Add(1)
	}
	return reply, err
}

// A candidate with its limit's algorithm needs no script call, through all guards. A candidate with
// another algorithm needs one.
func TestCandidatesGoInTheScriptOfTheirLimits(t *testing.T) {
	server := redistest.Start(t)
	const requests = 20
	for _, test := range []struct {
		candidate        string // the text after the rate of the limit
		scripts, allowed int64
		shadows          int64 // requests that the candidate would have allowed
	}{
		{scripts: requests, allowed: requests},
		{candidate: ", candidate: {rate: 5/h}", scripts: requests, allowed: requests, shadows: 5},
		{candidate: ", candidate: {rate: 5/h, algorithm: sliding-window}", scripts: 2 * requests, allowed: requests, shadows: 5},
	} {
		text := "rules: [{name: a, per: {key: header X-API-Key}, limits: [{rate: 1000/h" + test.candidate + "}]}]"
		dialed, err := redisstore.Dial(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		client := &scriptCounter{Client: dialed}
		store, err := redisstore.New(client, redisstore.Options{Prefix: fmt.Sprintf("p%d-%d", test.scripts, test.shadows)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		gate, seen := gateWith(t, withGuards(t, store, text, -1), text)
		h := gate.Middleware(respond(200))
		for range requests {
			send(h, "GET", "/", "X-API-Key", "k")
		}
		if scripts, allowed := client.scripts.Load(), int64(seen.count(admission.Allowed)); scripts != test.scripts || allowed != test.allowed {
			t.Errorf("%q: %d script calls, and %d requests allowed; want %d and %d", test.candidate, scripts, allowed, test.scripts, test.allowed)
		}
		if shadows := int64(seen.count(admission.ShadowAllowed)); shadows != test.shadows {
			t.Errorf("%q: the candidate would have allowed %d requests; want %d", test.candidate, shadows, test.shadows)
		}
	}
}

// If a guard decides the enforced limit, the store is called for the candidate alone, so the
// candidate still counts the request.
func TestCandidatesCountWhenAGuardDecides(t *testing.T) {
	server := redistest.Start(t)
	const text = "rules: [{name: a, per: {key: header X-API-Key}, limits: [{rate: 2/h, candidate: {rate: 5/h}}]}]"
	gate, seen := gateWith(t, withGuards(t, openStore(t, server.URL()), text, time.Hour), text)
	h := gate.Middleware(respond(200))
	for range 10 {
		send(h, "GET", "/", "X-API-Key", "k")
	}
	cached := 0
	for _, e := range seen.list {
		if e.Source == penstock.FromDenyCache {
			cached++
		}
	}
	for outcome, want := range map[admission.Outcome]int{admission.Allowed: 2, admission.Denied: 8, admission.ShadowAllowed: 5, admission.ShadowDenied: 5} {
		if n := seen.count(outcome); n != want {
			t.Errorf("%d events have the outcome %v; want %d", n, outcome, want)
		}
	}
	if cached == 0 {
		t.Error("no denial came from the deny cache; want one or more")
	}
}

// A foreign value under a shadow's key does not affect the enforced limits.
func TestCorruptShadowsChangeNothing(t *testing.T) {
	server := redistest.Start(t)
	const text = `
rules:
  - {name: a, per: {key: header X-API-Key}, limits: [{rate: 2/h}]}
  - {name: b, shadow: true, always: true, per: {key: header X-API-Key}, limits: [{rate: 7/h}]}
`
	var shadowBatches [][]penstock.Charge
	store := openStore(t, server.URL())
	gate, _ := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if isShadow(charges) {
			shadowBatches = append(shadowBatches, slices.Clone(charges))
			return penstock.Decision{}, penstock.ErrUnavailable
		}
		return store.Decide(context.Background(), charges) // without the context, so the shadow gets a call of its own
	}), text)
	send(gate.Middleware(respond(200)), "GET", "/", "X-API-Key", "k")
	key, err := redisstore.KeyOf(shadowBatches[0][0], redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Do("LPUSH", key, "x"); err != nil {
		t.Fatal(err)
	}
	guardedGate, seen := gateWith(t, withGuards(t, store, text, -1), text)
	h := guardedGate.Middleware(respond(200))
	for i, want := range []int{200, 429, 429} { // the first Gate has admitted one request
		if w := send(h, "GET", "/", "X-API-Key", "k"); w.Code != want {
			t.Errorf("request %d: status %d; want %d", i+1, w.Code, want)
		}
	}
	for _, e := range seen.list {
		if e.Rule != "a" || e.Err != nil || e.Source != penstock.FromStore {
			t.Errorf("observed %+v; want only events of rule a, without errors, from the store", e)
		}
	}
}
