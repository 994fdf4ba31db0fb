package httplimit_test

import (
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
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/testing/spellings"
	"github.com/penstock/penstock/memstore"
)

// A request that ends after its charge has expired refunds nothing. If it did, a client could hold
// requests open, and collect their refunds for one burst of guesses.
func TestHeldRequestsRefundNothingThatNoLongerCounts(t *testing.T) {
	for _, algorithm := range []string{"token-bucket", "fixed-window", "anchored-window", "sliding-log", "sliding-window", "sub-window"} {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit, period = 5, 2 * time.Second
				gate, _ := memoryGate(t, "rules: [{name: a, per: global, limits: [{rate: 5/2s, algorithm: "+algorithm+", on_status: 401}]}]\n")
				// The requests are held in four groups. Each group starts when the charges of the group before
				// have expired.
				var release [4]chan struct{}
				for i := range release {
					release[i] = make(chan struct{})
				}
				guesses := 0
				handler := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if number, isHeld := strings.CutPrefix(r.URL.Path, "/held/"); isHeld {
						<-release[number[0]-'0']
						return
					}
					guesses++
					w.WriteHeader(http.StatusUnauthorized)
				}))
				send := func(path string) { handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", path, nil)) }
				time.Sleep(time.Until(time.Now().Truncate(period).Add(period))) // until a period begins
				var held [4]sync.WaitGroup
				for i := range held {
					for range limit {
						held[i].Go(func() { send(fmt.Sprint("/held/", i)) })
					}
					time.Sleep(2 * period) // a sliding window also counts the previous window
				}
				for i := range held { // the end of a group must not admit further guesses
					for range 2 * limit {
						send("/guess")
					}
					close(release[i])
					held[i].Wait()
				}
				for range 2 * limit {
					send("/guess")
				}
				if guesses > limit {
					t.Errorf("%d guesses reached the handler in one moment; want at most %d", guesses, limit)
				}
			})
		})
	}
}

// A request keeps its slot while it waits for its turn, even if it waits for longer than the slot's
// ttl.
func TestASlotIsKeptWhileItsRequestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, _ := memoryGate(t, `
rules:
  - name: a
    per: global
    limits:
      - {name: slots, in_flight: 2, ttl: 1s}
      - {name: pace, rate: 1/5s, burst: 1, max_wait: 60s}
`)
		var inHandler, mostInHandler, served atomic.Int64
		handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			mostInHandler.Store(max(mostInHandler.Load(), inHandler.Add(1)))
			time.Sleep(30 * time.Second)
			inHandler.Add(-1)
			served.Add(1)
		}))
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) })
			time.Sleep(1300 * time.Millisecond)
		}
		all.Wait()
		if mostInHandler.Load() > 2 || served.Load() < 2 {
			t.Errorf("%d requests were served, and up to %d at the same time; want 2 or more, and at most 2 at the same time", served.Load(), mostInHandler.Load())
		}
	})
}

// The server notices that a client has left, even if the client has sent a small body.
func TestClientThatLeavesAfterItsBodyFreesItsPlace(t *testing.T) {
	controller := memoryController(t, "rules: [{name: a, per: global, limits: [{rate: 1/h, algorithm: leaky-bucket, burst: 100, max_wait: 24h}]}]\n")
	received := make(chan string, 1) // the body of a request, and the error of reading it
	server := httptest.NewServer(gateOn(t, controller).Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		received <- fmt.Sprint(string(body), err)
	})))
	defer server.CloseClientConnections()
	if _, err := http.Post(server.URL, "text/plain", strings.NewReader("hello")); err != nil || <-received != "hello<nil>" {
		t.Fatalf("the first request fails with %v, or its body is wrong; want no error, and the body \"hello\"", err)
	}
	var clients []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
		clients = append(clients, c)
	}
	await := func(n int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); controller.Waiting() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d requests wait; want %d", controller.Waiting(), n)
			}
		}
	}
	await(20)
	for _, c := range clients {
		c.Close()
	}
	await(0)
}

func TestASmallBodyIsCompleteAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, _ := memoryGate(t, "rules: [{name: a, per: global, limits: [{rate: 1/s, burst: 1, max_wait: 1m}]}]\n")
		var bodies []string
		handler := gate.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var b strings.Builder
			_, err := io.Copy(&b, r.Body)
			bodies = append(bodies, fmt.Sprint(b.String(), " ", err))
		}))
		for _, body := range []io.Reader{strings.NewReader("one"), strings.NewReader("two"), io.MultiReader(strings.NewReader("th"), brokenReader{})} {
			r := httptest.NewRequest("POST", "/", body)
			r.ContentLength = 3
			handler.ServeHTTP(httptest.NewRecorder(), r)
		}
		if got, want := strings.Join(bodies, ", "), "one <nil>, two <nil>, th broken"; got != want {
			t.Errorf("the bodies were %s; want %s", got, want)
		}
	})
}

// While a request waits, only a small body of known size is read. The handler reads any other body.
func TestALargeBodyIsNotReadDuringTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, _ := memoryGate(t, "rules: [{name: a, per: global, limits: [{rate: 1/s, burst: 1, max_wait: 1m}]}]\n")
		const unknown, small, large = -1, 16 << 10, 16<<10 + 1 // sizes in bytes
		var read []bool
		for _, size := range []int64{small, small, large, unknown} {
			body := strings.NewReader(strings.Repeat("x", large))
			r := httptest.NewRequest("POST", "/", body)
			r.ContentLength = size
			gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				read = append(read, body.Len() < large)
			})).ServeHTTP(httptest.NewRecorder(), r)
		}
		// The first request does not wait.
		if want := []bool{false, true, false, false}; !slices.Equal(read, want) {
			t.Errorf("whether the bodies were read before the handler was called: %v; want %v", read, want)
		}
	})
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, fmt.Errorf("broken") }

// A host or method that servers read in different ways is rejected.
func TestAmbiguousHostsAndMethodsAreMalformed(t *testing.T) {
	gate, _ := memoryGate(t, "rules: [{name: a, match: {host: [api.example.com, \"[2001:db8::1]\"], method: POST}, per: global, limits: [{rate: 1/d, burst: 1}]}]\n")
	handler := gate.Middleware(http.NotFoundHandler())
	send := func(method, host string) int {
		r := httptest.NewRequest("POST", "/", nil)
		r.Method, r.Host = method, host
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	send("POST", "api.example.com")
	for _, host := range []string{"api.example.com", "API.example.com", "api.example.com.", "api.example.com:80", "api.example.com.:443", "api.example.com:", "[2001:db8::1]", "[2001:DB8::1]:80"} {
		if status := send("POST", host); status != 429 {
			t.Errorf("host %q: status %d; want 429", host, status)
		}
	}
	ambiguous := 0
	for _, host := range []string{"api.example.com:80:80", "api.example.com::80", "api.example.com:80:", "api.example.com..", "[api.example.com]", "[api.example.com]x",
		"api%2eexample.com", "api.example.com:http", ".api.example.com", "api..example.com", "api.example.com/", "a@api.example.com", "api.example.com ", "[::1", "[::1]x",
		"[fe80::1%25eth0]", "2001:db8::1", "api.example.com\x00", "\u0430pi.example.com", "api.example.com,b", "[127.0.0.1]", ".", ":::"} {
		ambiguous++
		if status := send("POST", host); status != 400 {
			t.Errorf("host %q: status %d; want 400", host, status)
		}
	}
	for method, want := range map[string]int{"post": 400, "Post": 400, "get": 400, "pATCH": 400, "POST": 429, "GET": 404, "brew": 404, "BREW": 404,
		"P(OST": 400, "POST ": 400, "PO\nST": 400, "P\u00d6ST": 400, "POST\x00": 400, "/": 400, "M-SEARCH": 404} {
		ambiguous++
		if status := send(method, "api.example.com"); status != want {
			t.Errorf("method %q: status %d; want %d", method, status, want)
		}
	}
	t.Logf("counted: %d ambiguous hosts and methods", ambiguous)
}

// A rule and a request may spell a host differently.
func TestSpellingsOfOneHostAreEqual(t *testing.T) {
	for _, row := range []struct {
		rule  string   // the host in the policy
		hosts []string // other spellings of it
		other string   // another host
	}{
		{rule: "[2001:DB8:0::1]", hosts: []string{"[2001:db8::1]", "[2001:0db8:0000:0:0:0:0:1]", "[2001:DB8::0001]:8080", "[2001:db8::0.0.0.1]:"}, other: "[2001:db8::2]"},
		{rule: "2001:db8:0:0::1", hosts: []string{"[2001:db8::1]"}, other: "[::1]"},
		{rule: "XN--Bcher-Kva.Example.", hosts: []string{"xn--bcher-kva.example", "XN--BCHER-KVA.EXAMPLE.:443"}, other: "bcher-kva.example"},
		{rule: "*.Example.com.", hosts: []string{"a.example.com", "A.B.EXAMPLE.COM.:80"}, other: "example.com"},
		{rule: "192.0.2.1", hosts: []string{"192.0.2.1", "192.0.2.1:80", "192.0.2.1."}, other: "[::ffff:192.0.2.1]"},
	} {
		gate, _ := memoryGate(t, fmt.Sprintf(`
deny: {host: %q, method: DELETE}
tiers: {here: {host: [%[1]q, else.example]}, there: default}
rules:
  - {name: a, match: {host: %[1]q}, per: global, limits: [{rate: {here: 1/d, there: 100/s}}]}
`, row.rule))
		handler := gate.Middleware(http.NotFoundHandler())
		send := func(method, host string) int {
			r := httptest.NewRequest(method, "/", nil)
			r.Host = host
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code
		}
		send("GET", row.hosts[0])
		for _, host := range row.hosts {
			if status := send("GET", host); status != 429 {
				t.Errorf("%s: status %d; want 429, from the rule and the tier for %s", host, status, row.rule)
			}
			if status := send("DELETE", host); status != 403 {
				t.Errorf("%s: status %d; want 403, from the deny list for %s", host, status, row.rule)
			}
		}
		if status := send("GET", row.other); status != 404 {
			t.Errorf("%s: status %d; want 404, because the rule for %s must not match", row.other, status, row.rule)
		}
		if status := send("DELETE", row.other); status != 404 {
			t.Errorf("%s: status %d; want 404, because the deny list for %s must not match", row.other, status, row.rule)
		}
	}
}

// A request keeps its charge if its status is unknown.
func TestRequestOfUnknownStatusKeepsItsCharge(t *testing.T) {
	gate, _ := memoryGate(t, "rules: [{name: a, per: global, limits: [{rate: 5/h, on_status: 2xx}]}]\n")
	passed := 0
	handler := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		passed++
		httplimit.MarkStatusUnknown(r)
		w.WriteHeader(http.StatusBadGateway)
	}))
	for range 20 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	if passed != 5 {
		t.Errorf("%d requests passed; want 5", passed)
	}
	httplimit.MarkStatusUnknown(httptest.NewRequest("GET", "/", nil)) // no limit applies: nothing happens
}

// The refund is made before the response, so the client's next request finds it.
func TestRefundsComeBeforeTheResponse(t *testing.T) {
	for _, part := range []string{"header", "body", "flush", "nothing"} {
		gate, _ := memoryGate(t, "rules: [{name: a, per: global, limits: [{rate: 1/h, algorithm: sliding-log, on_status: 401}]}]\n")
		handler := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch part {
			case "header":
				w.WriteHeader(http.StatusNoContent)
			case "body":
				io.WriteString(w, "hello")
			case "flush":
				w.(http.Flusher).Flush()
			case "nothing":
				return
			}
			if r.Header.Get("Inner") != "" {
				return
			}
			// The client has its response, and the handler still runs.
			inner := httptest.NewRecorder()
			again := httptest.NewRequest("POST", "/", nil)
			again.Header.Set("Inner", "yes")
			gate.Middleware(http.NotFoundHandler()).ServeHTTP(inner, again)
			if inner.Code != 404 {
				t.Errorf("%s: the client's next request got status %d; want 404, from the handler", part, inner.Code)
			}
		}))
		for range 5 {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
			if w.Code >= 400 {
				t.Errorf("%s: a request got status %d; want a success, because the request before it is refunded", part, w.Code)
			}
		}
	}
}

// A request may lose its slot while it waits, for example if the store loses its data. This request
// is not served at the same time as the slot's new holder.
func TestALostSlotIsNoticedAtTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Bool
		memory := memstore.New(memstore.Options{})
		store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			isRenewal := len(charges) == 1 && charges[0].Plan.Algorithm().NeedsHolder() && charges[0].Mode == penstock.Spend
			if lost.Load() && isRenewal {
				return penstock.Single(penstock.Status{RetryAfter: time.Second}), nil
			}
			return memory.Decide(ctx, charges)
		})
		gate, _ := gateWith(t, store, "rules: [{name: a, per: global, limits: [{in_flight: 9, ttl: 3s, headers: true}, {rate: 1/30s, burst: 1, max_wait: 60s, headers: true}]}]\n")
		served := 0
		handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		send := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			return w
		}
		send()
		time.AfterFunc(10*time.Second, func() { lost.Store(true) })
		w := send()
		if w.Code != 429 || served != 1 {
			t.Errorf("the request that lost its slot got status %d, and %d requests were served; want 429 and 1", w.Code, served)
		}
		if body := w.Body.String(); !strings.Contains(body, `"violated-policies":["a.in-flight"]`) {
			t.Errorf("the body is %s; want only the limit of slots as the violated policy", body)
		}
	})
}

func TestRequestOfUnknownStatusKeepsItsShadowCharge(t *testing.T) {
	gate, seen := memoryGate(t, "rules: [{name: a, shadow: true, per: global, limits: [{rate: 5/h, on_status: 2xx}]}]\n")
	handler := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := httplimit.DecisionOf(r.Context()); ok {
			t.Error("DecisionOf finds a decision; want none, because no enforced limit applies")
		}
		httplimit.MarkStatusUnknown(r)
		w.WriteHeader(http.StatusBadGateway)
	}))
	for range 20 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	if denied := seen.count(admission.ShadowDenied); denied != 15 {
		t.Errorf("%d of 20 requests would have been denied; want 15", denied)
	}
}

// Applications behind CGI, WSGI or PHP read some names as another one. No client may use such a
// name to hide what rules read.
func TestNamesThatSomeServersReadAsOthersAreMalformed(t *testing.T) {
	gate, seen := memoryGate(t, `
deny: [{header X-API-Key: banned}, {query key: banned}]
rules: [{name: a, match: {method: POST}, per: {first_of: [{key: header X-API-Key}, ip]}, limits: [{rate: 1000/h}]}]
`)
	handled := 0
	handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ }))
	send := func(target, name string) (status int, body string) {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", target, nil)
		r.Header[name] = []string{"banned"}
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	rejected := 0
	for _, name := range spellings.Header("X-API-Key") {
		if status, body := send("/", http.CanonicalHeaderKey(name)); status != 400 || !strings.Contains(body, "X-API-Key") {
			t.Errorf("a request with %s got %d %s; want 400 and the name X-API-Key", name, status, body)
		}
		rejected++
	}
	for _, c := range []struct {
		target, name string
		want         int
	}{
		{"/?key%00=banned", "X-Other", 400}, {"/", "X-Http-Method-Override", 400}, {"/?key=a", "X_other", 200}, {"/", "X-Api-Key", 403},
	} {
		if status, body := send(c.target, c.name); status != c.want {
			t.Errorf("a request for %s with %s got %d %s; want %d", c.target, c.name, status, body, c.want)
		}
		if c.want == 400 {
			rejected++
		}
	}
	if malformed := seen.count(admission.Malformed); handled != 1 || malformed != rejected {
		t.Errorf("%d requests were handled, and %d were malformed; want 1 and %d", handled, malformed, rejected)
	}
}

// A client over its limit cannot become another client by sending its key twice.
func TestKeySentTwiceIsNoOtherClient(t *testing.T) {
	gate, _ := memoryGate(t, `
identities: {client: {first_of: [{key: {header X-API-Key: [k1, k2]}}, ip]}}
rules: [{name: api, per: client, limits: [{rate: 3/h}]}]
`)
	handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, keys := range [][]string{{"k1"}, {"k1"}, {"k1"}, {"k1"}, {"k1", "k1"}, {"k1", "k1"}} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header["X-Api-Key"] = keys
		handler.ServeHTTP(w, r)
		if isAdmitted := w.Code == 200; isAdmitted != (i < 3) {
			t.Errorf("request %d with the keys %q got %d; want that only the first 3 are admitted", i+1, keys, w.Code)
		}
	}
}

func TestReadsHeaderKnowsTheHeadersOfThePolicy(t *testing.T) {
	gate, _ := memoryGate(t, `
http: {trusted_proxies: [10.0.0.0/8], address_header: CF-Connecting-IP}
rules: [{name: a, match: {header X-Plan: free}, per: {session: cookie sid}, limits: [{rate: 1/h, cost: {header: X-Cost, max: 5}}]}]
`)
	for name, want := range map[string]bool{"X-Plan": true, "x-cost": true, "COOKIE": true, "Cf-Connecting-Ip": true, "X-Pla": false, "X_Plan": false, "Accept": false} {
		if got := gate.ReadsHeader(name); got != want {
			t.Errorf("whether the policy reads %s: %v; want %v", name, got, want)
		}
	}
}
