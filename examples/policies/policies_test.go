package policies

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func TestEveryPolicyHasADescriptionAndCompiles(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"backpressure", "brute-force", "checkout", "contractual-quotas", "cost", "credential-stuffing", "dos", "fair-use", "iot",
		"outbound-email", "public-api", "saas-tiers", "scraping"}
	for i, file := range files {
		files[i] = strings.TrimSuffix(file, ".yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "\n\n")
		if n := strings.Count(head, "\n") + 1; n < 2 || n > 4 || strings.Count(head, "#") != n || !strings.Contains(head, "Watch ") {
			t.Errorf("%s begins with a comment of %d lines; want 2 to 4 lines that name what to watch", file, n)
		}
		checkWatched(t, file, head, load(t, file))
	}
	if !slices.Equal(files, want) {
		t.Errorf("there are policies for %v; want %v", files, want)
	}
	t.Logf("counted: %d policies compiled", len(files))
}

// checkWatched checks that the metrics and limits that a policy's comment names exist.
func checkWatched(t *testing.T, file, head string, rules *policy.Rules) {
	t.Helper()
	served, err := os.ReadFile("../../docs/operations.md") // another test compares this page with /metrics
	if err != nil {
		t.Fatal(err)
	}
	limits := make(map[string]bool)
	for _, rule := range rules.Rules() {
		for _, l := range rule.Limits {
			limits[l.Policy] = true
			if l.Candidate != nil {
				limits[l.Candidate.Policy] = true
			}
		}
	}
	_, watch, _ := strings.Cut(strings.ReplaceAll(head, "\n#", ""), "Watch ")
	metrics := regexp.MustCompile(`rate_limiter_\w+`).FindAllString(watch, -1)
	if len(metrics) == 0 {
		t.Errorf("%s: the comment names no metric to watch", file)
	}
	for _, metric := range metrics {
		if !strings.Contains(string(served), "| `"+metric+"` |") {
			t.Errorf("%s: the comment names the metric %s, which does not exist", file, metric)
		}
	}
	for _, name := range regexp.MustCompile(`\b[a-z-]+\.[a-z][a-z.-]*[a-z]\b`).FindAllString(watch, -1) {
		if !limits[name] {
			t.Errorf("%s: the comment names the limit %s, which the policy does not have", file, name)
		}
	}
	if strings.Contains(head, "_denied") {
		t.Errorf("%s: shadow_denied is not a metric", file)
	}
}

// Limits of a path apply to every spelling that a server may treat as the same path.
func TestLimitedPathsMatchInEverySpelling(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, w := range warningsOf(t, file) {
			if strings.Contains(w.Message, "the rule limits") || strings.Contains(w.Message, "are not counted by rule") || strings.Contains(w.Message, "one segment here") {
				t.Error(w)
			}
		}
	}
	rules := load(t, "credential-stuffing.yaml")
	for _, path := range []string{"/login", "/LOGIN", "/login/", "/Login/", "/oauth/Token", "/%4Cogin"} {
		reading, err := httplimit.Inspect(rules, httptest.NewRequest("POST", path, nil))
		if err != nil || len(reading.Evaluation.Charges) != 1 {
			t.Errorf("%s: %v, with %d charges", path, err, len(reading.Evaluation.Charges))
		}
	}
}

func TestPoliciesFailClosedWhereItMatters(t *testing.T) {
	for _, c := range []struct {
		policy, method, path string
		isClosed             bool
	}{
		{"brute-force", "POST", "/accounts/anna/login", true},
		{"credential-stuffing", "POST", "/login", true},
		{"cost", "POST", "/v1/completions", true},
		{"outbound-email", "POST", "/messages", true},
		{"checkout", "POST", "/checkout/orders/1/payment", true},
		{"checkout", "POST", "/checkout/orders", false},
		{"dos", "GET", "/", false},
		{"scraping", "GET", "/products/1", false},
		{"fair-use", "GET", "/api/1", false},
		{"backpressure", "GET", "/api/1", false},
		{"public-api", "GET", "/v1/1", false},
		{"saas-tiers", "GET", "/api/1", false},
		{"iot", "POST", "/telemetry", false},
		{"contractual-quotas", "GET", "/api/1", false},
	} {
		want := http.StatusOK
		if c.isClosed {
			want = http.StatusServiceUnavailable
		}
		w := open(t, load(t, c.policy+".yaml"), down)
		w.want(1, want, request{method: c.method, path: c.path})
	}
}

func TestFloodDoesNotAffectOtherClients(t *testing.T) {
	run(t, "dos", func(t *testing.T, w *api) {
		flood := request{path: "/", from: "203.0.113.9"}
		w.want(200, 200, flood)
		w.want(2000, 429, flood)
		if got := w.seen["address.rate.candidate shadow_denied"]; got != 2100 { // 100 admitted requests and all denied ones
			t.Errorf("the tighter candidate would have denied %d requests; want 2100", got)
		}
		w.want(50, 200, request{path: "/", from: "192.0.2.1"}) // denied requests have not used the shared capacity
		for i := range 250 {
			w.want(1, 200, request{path: "/", from: address(i)})
		}
		w.want(10, 429, request{path: "/", from: address(999)}) // 200+50+250 of a capacity of 500
		w.want(1, 403, request{path: "/", from: "198.51.100.7"})
	})
}

func TestEleventhGuessIsDenied(t *testing.T) {
	run(t, "brute-force", func(t *testing.T, w *api) {
		wrong := request{method: "POST", path: "/accounts/anna/login", status: 401}
		right := request{method: "POST", path: "/accounts/anna/login"}
		w.want(50, 200, right) // correct logins never count
		w.want(10, 401, wrong)
		w.want(1, 429, wrong)
		w.want(1, 429, right) // the right password is denied too, so guessing finds nothing
		w.want(1, 429, request{method: "POST", path: "/accounts/ANNA/login", status: 401})
		w.want(1, 429, request{method: "POST", path: "/accounts/%61nna/login/", status: 401})
		w.want(1, 200, request{method: "POST", path: "/accounts/anna/login", from: "192.0.2.2"}) // the owner, from another address
		w.want(1, 401, request{method: "POST", path: "/accounts/bert/login", status: 401})
		w.sleep(15 * time.Minute)
		w.want(10, 401, wrong)
		w.want(1, 429, wrong)
	})
}

func TestMoreAddressesDoNotAllowMoreGuesses(t *testing.T) {
	run(t, "brute-force", func(t *testing.T, w *api) {
		for i := range 100 {
			w.want(1, 401, request{method: "POST", path: "/accounts/anna/login", from: address(i), status: 401})
		}
		for i := range 100 {
			w.want(1, 429, request{method: "POST", path: "/accounts/anna/login", from: address(100 + i), status: 401})
		}
	})
}

// A guess counts before its response is known.
func TestParallelGuessesAreLimited(t *testing.T) {
	run(t, "brute-force", func(t *testing.T, w *api) {
		w.takes = time.Second // to check a password
		var wrong sync.WaitGroup
		for range 100 {
			wrong.Go(func() { w.call(request{method: "POST", path: "/accounts/anna/login", status: 401}) })
		}
		wrong.Wait()
		if len(w.times) != 10 {
			t.Errorf("%d passwords were tried at once; want 10", len(w.times))
		}
	})
}

func TestStuffingFromOneAddressIsDeniedAndFromManyIsReported(t *testing.T) {
	run(t, "credential-stuffing", func(t *testing.T, w *api) {
		wrong := request{method: "POST", path: "/login", status: 401, header: map[string]string{"X-JA4": "t13d1516h2"}}
		w.want(20, 401, wrong)
		denied := wrong
		denied.header = map[string]string{"X-JA4": "t13d1517h2"}
		w.want(5, 429, denied)
		for i := range 300 { // a botnet with one attempt per address: no client is locked out, but the shadow limit counts it
			wrong.from = address(i)
			w.want(1, 401, wrong)
		}
		if got := w.seen["login.tool shadow_denied"]; got != 120 { // 320 - 200
			t.Errorf("the tool was reported %d times; want 120", got)
		}
		if got := w.seen["login.all shadow_denied"]; got != 0 {
			t.Errorf("the failures of all clients were reported %d times", got)
		}
	})
}

func TestNewCookiesDoNotHelpScrapers(t *testing.T) {
	run(t, "scraping", func(t *testing.T, w *api) {
		for i := range 100 {
			w.want(1, 200, request{path: "/products/" + strconv.Itoa(i), header: map[string]string{"Cookie": "session=" + strconv.Itoa(i)}})
		}
		w.want(10, 429, request{path: "/products/101", header: map[string]string{"Cookie": "session=new"}})
		w.want(20, 429, request{path: "/products/101", header: map[string]string{"User-Agent": "Googlebot/2.1"}})
		w.want(60, 200, request{path: "/products/101", header: map[string]string{"Cookie": "session=" + w.token("sub", "anna", "aud", "shop")}})
		w.want(1, 429, request{path: "/products/101", header: map[string]string{"Cookie": "session=" + w.token("sub", "anna", "aud", "shop")}})
		w.want(20, 200, request{path: "/products/101", from: "192.0.2.70"}) // a search engine's network
		w.want(1, 429, request{path: "/products/101", from: "192.0.2.71"})

		for range 5000 / 100 {
			w.sleep(20 * time.Second)
			w.want(100, 200, request{path: "/products/1", from: "203.0.113.1"})
		}
		w.sleep(20 * time.Second)
		w.want(100, 200, request{path: "/products/1", from: "203.0.113.1"})
		if got := w.seen["catalog.day shadow_denied"]; got != 100 {
			t.Errorf("%d pages beyond the daily limit were reported; want 100", got)
		}
	})
}

func TestUserThatLoopsDoesNotAffectOthers(t *testing.T) {
	run(t, "fair-use", func(t *testing.T, w *api) {
		user := func(org, sub string) request {
			return request{path: "/api/things", header: map[string]string{"Authorization": "Bearer " + w.token("org", org, "sub", sub, "aud", "api")}}
		}
		w.want(60, 200, user("acme", "loop"))
		w.want(500, 429, user("acme", "loop"))
		w.want(60, 200, user("acme", "anna"))
		w.want(60, 200, user("acme", "bert"))
		w.want(20, 200, user("acme", "carl")) // the customer has used 200
		w.want(40, 429, user("acme", "carl"))
		w.want(60, 200, user("globex", "dora"))
		forged := user("globex", "dora")
		spelled := user("globex", "dora")
		spelled.header["Authorization"] += "x"
		w.want(1, 400, spelled) // some servers may accept this spelling
		forged.header["Authorization"] = strings.Replace(forged.header["Authorization"], ".eyJ", ".eyK", 1)
		w.want(60, 200, forged) // shares the quota of requests without a token
		w.want(1, 429, forged)
		w.want(1, 429, request{path: "/api/things"})
		w.sleep(time.Second)
		w.want(20, 200, user("globex", "dora"))
	})
}

func TestCompletionIsChargedItsTrueCost(t *testing.T) {
	run(t, "cost", func(t *testing.T, w *api) {
		call := func(key string, most, used int) request {
			return request{method: "POST", path: "/v1/completions",
				header: map[string]string{"X-API-Key": key, "X-Max-Tokens": strconv.Itoa(most)}, answer: map[string]string{"X-Tokens-Used": strconv.Itoa(used)}}
		}
		w.want(70, 200, call("key-of-acme", 16000, 1200)) // 84,000; by the maximum, only 6 would pass
		w.want(1, 200, call("key-of-acme", 16000, 16000)) // 100,000
		w.want(1, 429, call("key-of-acme", 1, 1))
		w.want(1, 200, call("key-of-globex", 16000, 16000))
		for i := range 6 {
			w.want(1, 200, call("invented"+strconv.Itoa(i), 16000, 16000))
		}
		w.want(1, 429, call("invented", 16000, 16000)) // denied by the limit of the address

		w.want(12, 200, request{method: "POST", path: "/v1/reports"})
		w.want(1, 429, request{method: "POST", path: "/v1/reports"})
	})
}

func TestDailyBillIsLimited(t *testing.T) {
	run(t, "cost", func(t *testing.T, w *api) {
		w.sleepUntil(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
		call := request{method: "POST", path: "/v1/completions", header: map[string]string{"X-Max-Tokens": "16000"}, answer: map[string]string{"X-Tokens-Used": "16000"}}
		for i := range 50_000_000 / 16_000 {
			call.from = address(i)
			w.want(1, 200, call)
		}
		call.from = "203.0.113.77"
		w.want(1, 429, call)
		w.sleepUntil(time.Date(2026, 7, 1, 22, 0, 0, 0, time.UTC)) // midnight in Berlin
		w.want(1, 200, call)
	})
}

func TestBackgroundWorkLeavesRoomForPeople(t *testing.T) {
	run(t, "backpressure", func(t *testing.T, w *api) {
		w.takes = time.Second
		statuses := w.sendAll(100, func(i int) request { return request{path: "/api/jobs/" + strconv.Itoa(i)} },
			100, func(i int) request { return request{path: "/api/orders/" + strconv.Itoa(i)} })
		jobs, orders := statuses[0][200], statuses[1][200]
		if jobs > 16 || jobs+orders != 64 {
			t.Errorf("%d jobs and %d other requests were admitted at once; want 64, of which at most 16 jobs", jobs, orders)
		}
		w.want(16, 200, request{path: "/api/jobs/1"})
		w.want(64, 200, request{path: "/api/orders/1"}) // one after the other
	})
}

func TestReportsAreSentAtTheirRate(t *testing.T) {
	run(t, "backpressure", func(t *testing.T, w *api) {
		start := time.Now()
		statuses := w.sendAll(30, func(i int) request {
			return request{method: "POST", path: "/reports", header: map[string]string{"X-API-Key": strconv.Itoa(i)}}
		}, 0, nil)
		if statuses[0][200] != 21 || statuses[0][429] != 9 {
			t.Errorf("the statuses of 30 requests at once are %v; want 21 served, and the others denied at once", statuses[0])
		}
		for i, at := range w.times {
			if want := time.Duration(i) * 200 * time.Millisecond; at.Sub(start) != want {
				t.Errorf("report %d began after %v; want %v", i+1, at.Sub(start), want)
			}
		}
		statuses = w.sendAll(10, func(int) request {
			return request{method: "POST", path: "/reports", header: map[string]string{"X-API-Key": "greedy"}}
		}, 0, nil)
		if statuses[0][200] != 2 {
			t.Errorf("one client had %d reports in the queue at once; want 2", statuses[0][200])
		}
	})
}

func TestKeyHasBurstsOf100And10000ADay(t *testing.T) {
	run(t, "public-api", func(t *testing.T, w *api) {
		acme := request{path: "/v1/things", header: map[string]string{"X-API-Key": "key-of-acme"}}
		w.want(100, 200, acme)
		denied := w.want(1, 429, acme)
		if denied.Header().Get("RateLimit") == "" || denied.Header().Get("X-RateLimit-Remaining") != "0" || denied.Header().Get("Retry-After") == "" {
			t.Errorf("a denial has the headers %v", denied.Header())
		}
		for range 99 {
			w.sleep(10 * time.Second)
			w.want(100, 200, acme)
		}
		w.sleep(time.Hour)
		w.want(1, 429, acme) // 10,000 requests are used
		w.want(1, 200, request{path: "/v1/status", header: acme.header})
		w.want(1, 200, request{path: "/v1/things", header: map[string]string{"X-API-Key": "key-of-globex"}})
		for i := range 10 {
			w.want(1, 200, request{path: "/v1/things", header: map[string]string{"X-API-Key": "invented" + strconv.Itoa(i)}})
		}
		w.want(1, 429, request{path: "/v1/things", header: map[string]string{"X-API-Key": "invented"}})
		w.sleep(23 * time.Hour) // a day after its first request, and not at midnight
		w.want(1, 200, acme)
	})
}

func TestStolenCardsCannotBeTested(t *testing.T) {
	run(t, "checkout", func(t *testing.T, w *api) {
		payment := func(who string, status int) request {
			return request{method: "POST", path: "/checkout/orders/7/payment", status: status, header: map[string]string{"Cookie": "session=" + w.token("sub", who, "aud", "shop")}}
		}
		w.want(30, 200, payment("anna", 200)) // payments that succeed do not count
		w.want(5, 402, payment("anna", 402))
		w.want(1, 429, payment("anna", 402))
		for _, who := range []string{"b", "c", "d"} { // further accounts from the same address
			w.want(5, 402, payment(who, 402))
		}
		w.want(1, 429, payment("e", 402))
		other := payment("f", 402)
		other.from = "192.0.2.99"
		w.want(1, 402, other)
	})
}

func TestBuyersWaitForThePaymentProvider(t *testing.T) {
	run(t, "checkout", func(t *testing.T, w *api) {
		start := time.Now()
		statuses := w.sendAll(300, func(i int) request {
			return request{method: "POST", path: "/checkout/orders/" + strconv.Itoa(i) + "/payment", from: address(i)}
		}, 0, nil)
		if statuses[0][200] != 201 || statuses[0][429] != 99 {
			t.Errorf("the statuses of 300 requests at once are %v; want 201 served within 5 seconds", statuses[0])
		}
		if last := w.times[len(w.times)-1].Sub(start); last != 5*time.Second {
			t.Errorf("the last request was served after %v; want 5s for 200 requests at 40 per second", last)
		}
	})
}

func TestPlanComesFromTheToken(t *testing.T) {
	run(t, "saas-tiers", func(t *testing.T, w *api) {
		customer := func(org, plan string) request {
			return request{path: "/api/things", header: map[string]string{"Authorization": "Bearer " + w.token("org", org, "plan", plan, "aud", "api")}}
		}
		w.want(100, 200, customer("small", "free"))
		w.want(1, 429, customer("small", "free"))
		w.want(2000, 200, customer("large", "premium"))
		w.want(1, 429, customer("large", "premium"))
		w.sleep(time.Second)
		w.want(100, 200, customer("small", "free"))
		w.want(1000, 200, customer("large", "premium"))
		w.want(1, 429, customer("large", "premium"))

		claimed := request{path: "/api/things", header: map[string]string{"X-Plan": "premium"}}
		w.want(10, 200, claimed)
		w.want(1, 429, claimed)
		forged := customer("large", "premium")
		forged.header["Authorization"] = strings.Replace(forged.header["Authorization"], ".", ".e", 1)
		forged.from = "192.0.2.2"
		w.want(10, 200, forged)
		w.want(1, 429, forged)
	})
}

func TestDeviceThatLoopsDoesNotAffectOthers(t *testing.T) {
	run(t, "iot", func(t *testing.T, w *api) {
		report := func(device int) request { // all devices at one site
			return request{method: "POST", path: "/telemetry", header: map[string]string{"X-Device-Id": strconv.Itoa(device)}}
		}
		w.want(60, 200, report(0)) // stored reports of an outage
		w.want(100, 429, report(0))
		for device := range 1000 {
			w.want(1, 200, report(1+device))
		}
		for range 100 {
			w.sleep(10 * time.Second)
			w.want(1, 200, report(0))
		}
		large := report(2000)
		large.body = strings.Repeat("x", 100<<10)
		w.want(10, 200, large) // a megabyte an hour
		w.want(1, 429, large)
	})
}

func TestFleetReconnectsAtDifferentTimes(t *testing.T) {
	run(t, "iot", func(t *testing.T, w *api) {
		seen := make(map[string]bool)
		for device := range 3000 {
			want := http.StatusOK
			if device >= 1000 {
				want = http.StatusTooManyRequests
			}
			answer := w.want(1, want, request{method: "POST", path: "/connect", header: map[string]string{"X-Device-Id": strconv.Itoa(device)}})
			if want == http.StatusTooManyRequests {
				seen[answer.Header().Get("Retry-After")] = true
			}
		}
		if len(seen) < 100 { // 2,000 draws of 120 seconds
			t.Errorf("2,000 devices got %d different times in Retry-After; want at least 100", len(seen))
		}
	})
}

func TestMailIsChargedByRecipientAndStoppedByBounces(t *testing.T) {
	run(t, "outbound-email", func(t *testing.T, w *api) {
		send := func(org, mail string, recipients, status int) request {
			return request{method: "POST", path: "/messages", status: status, header: map[string]string{
				"Authorization": "Bearer " + w.token("org", org, "mail", mail, "aud", "mail"), "X-Recipients": strconv.Itoa(recipients)}}
		}
		one := func(status int, r request) {
			t.Helper()
			w.sleep(time.Second / 14) // the provider's rate
			w.want(1, status, r)
		}
		for range 20 {
			one(200, send("acme", "known", 50, 200))
		}
		one(429, send("acme", "known", 50, 200))
		one(200, send("spam", "new", 50, 200))
		one(200, send("spam", "new", 1000, 200)) // at most 50 recipients get it, so only 50 are charged
		one(429, send("spam", "new", 1, 200))
		for range 30 {
			one(422, send("old-list", "new", 1, 422))
		}
		one(429, send("old-list", "new", 1, 200))
		one(200, send("acme-too", "new", 1, 200))
	})
}

func TestMailIsSentAtTheProvidersRate(t *testing.T) {
	run(t, "outbound-email", func(t *testing.T, w *api) {
		start := time.Now()
		statuses := w.sendAll(29, func(i int) request { return request{method: "POST", path: "/messages"} }, 0, nil)
		if statuses[0][200] != 29 {
			t.Errorf("the statuses of 29 messages at once are %v; want 29 sent", statuses[0])
		}
		if took := w.times[28].Sub(start); took != 2*time.Second {
			t.Errorf("29 messages at 14 per second took %v; want 2s", took)
		}
	})
}

func TestMonthEndsInTheTimeZoneOfTheContract(t *testing.T) {
	run(t, "contractual-quotas", func(t *testing.T, w *api) {
		w.sleepUntil(time.Date(2026, 7, 31, 20, 0, 0, 0, time.UTC))
		call := func(status int) request {
			return request{path: "/api/things", status: status, header: map[string]string{"Authorization": "Bearer " + w.token("org", "acme", "aud", "api")}}
		}
		expect := func(n, want int, r request) {
			t.Helper()
			for range n {
				w.sleep(50 * time.Millisecond) // 20 per second
				w.want(1, want, r)
			}
		}
		expect(500, 502, call(502)) // failures of the service do not count
		expect(800, 200, call(200))
		if got := w.seen["calls.warning shadow_denied"]; got != 0 {
			t.Errorf("after 800 calls there were %d warnings", got)
		}
		expect(200, 404, call(404))
		if got := w.seen["calls.warning shadow_denied"]; got != 200 {
			t.Errorf("from 800 to 1000 calls there were %d warnings", got)
		}
		expect(1, 429, call(200))
		w.sleepUntil(time.Date(2026, 7, 31, 21, 59, 59, 0, time.UTC))
		expect(1, 429, call(200))
		w.sleepUntil(time.Date(2026, 7, 31, 22, 0, 0, 0, time.UTC)) // August in Berlin
		expect(1, 200, call(200))
	})
}

func warningsOf(t *testing.T, file string) []*policyfile.Error {
	t.Helper()
	t.Setenv("JWKS_URL", issuer().URL)
	p, err := policyfile.Load(file, sections)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return slices.Concat(p.Warnings, p.Hints)
}
