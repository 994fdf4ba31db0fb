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
	metricsPage, err := os.ReadFile("../../docs/operations.md") // another test compares this page with /metrics
	if err != nil {
		t.Fatal(err)
	}
	limits := make(map[string]bool)
	for _, rule := range rules.Spec().Rules {
		for _, l := range rule.Limits {
			limits[l.FullName] = true
			if l.Candidate != nil {
				limits[l.Candidate.FullName] = true
			}
		}
	}
	_, watch, _ := strings.Cut(strings.ReplaceAll(head, "\n#", ""), "Watch ")
	metrics := regexp.MustCompile(`rate_limiter_\w+`).FindAllString(watch, -1)
	if len(metrics) == 0 {
		t.Errorf("%s: the comment names no metric to watch", file)
	}
	for _, metric := range metrics {
		if !strings.Contains(string(metricsPage), "| `"+metric+"` |") {
			t.Errorf("%s: the comment names the metric %s, which does not exist", file, metric)
		}
	}
	for _, name := range regexp.MustCompile(`\b[a-z-]+\.[a-z][a-z.-]*[a-z]\b`).FindAllString(watch, -1) {
		if !limits[name] {
			t.Errorf("%s: the comment names the limit %s, which the policy does not have", file, name)
		}
	}
	if strings.Contains(head, "_denied") {
		t.Errorf("%s: the comment names a metric with _denied; no metric has such a name", file)
	}
}

// Limits of a path apply to every spelling that a server may treat as the same path.
func TestLimitedPathsMatchInEverySpelling(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, warning := range warningsOf(t, file) {
			for _, missedSpelling := range []string{"the rule limits", "are not counted by rule", "one segment here"} {
				if strings.Contains(warning.Message, missedSpelling) {
					t.Errorf("%s: a path does not match in every spelling: %v", file, warning)
				}
			}
		}
	}
	rules := load(t, "credential-stuffing.yaml")
	for _, path := range []string{"/login", "/LOGIN", "/login/", "/Login/", "/oauth/Token", "/%4Cogin"} {
		attributes, err := httplimit.AttributesOf(rules, httptest.NewRequest("POST", path, nil), nil)
		if err != nil {
			t.Fatal(path, err)
		}
		var evaluation policy.Evaluation
		if rules.Evaluate(attributes, &evaluation); len(evaluation.Charges) != 1 {
			t.Errorf("%s: there are %d charges; want 1", path, len(evaluation.Charges))
		}
	}
}

func TestPoliciesFailClosedWhereItMatters(t *testing.T) {
	for _, c := range []struct {
		policy, method, path string
		isClosed             bool
	}{
		{policy: "brute-force", method: "POST", path: "/accounts/anna/login", isClosed: true},
		{policy: "credential-stuffing", method: "POST", path: "/login", isClosed: true},
		{policy: "cost", method: "POST", path: "/v1/completions", isClosed: true},
		{policy: "outbound-email", method: "POST", path: "/messages", isClosed: true},
		{policy: "checkout", method: "POST", path: "/checkout/orders/1/payment", isClosed: true},
		{policy: "checkout", method: "POST", path: "/checkout/orders"},
		{policy: "dos", method: "GET", path: "/"},
		{policy: "scraping", method: "GET", path: "/products/1"},
		{policy: "fair-use", method: "GET", path: "/api/1"},
		{policy: "backpressure", method: "GET", path: "/api/1"},
		{policy: "public-api", method: "GET", path: "/v1/1"},
		{policy: "saas-tiers", method: "GET", path: "/api/1"},
		{policy: "iot", method: "POST", path: "/telemetry"},
		{policy: "contractual-quotas", method: "GET", path: "/api/1"},
	} {
		want := http.StatusOK
		if c.isClosed {
			want = http.StatusServiceUnavailable
		}
		a := newAPI(t, load(t, c.policy+".yaml"), down)
		a.want(1, want, request{method: c.method, path: c.path})
	}
}

func TestFloodDoesNotAffectOtherClients(t *testing.T) {
	run(t, "dos", func(t *testing.T, a *api) {
		flood := request{path: "/", from: "203.0.113.9"}
		a.want(200, 200, flood)
		a.want(2000, 429, flood)
		if got := a.events["address.rate.candidate shadow_denied"]; got != 2100 { // 100 admitted requests and all denied ones
			t.Errorf("the tighter candidate would have denied %d requests; want 2100", got)
		}
		a.want(50, 200, request{path: "/", from: "192.0.2.1"}) // denied requests have not used the shared capacity
		for i := range 250 {
			a.want(1, 200, request{path: "/", from: address(i)})
		}
		a.want(10, 429, request{path: "/", from: address(999)}) // 200+50+250 of a capacity of 500
		a.want(1, 403, request{path: "/", from: "198.51.100.7"})
	})
}

func TestEleventhGuessIsDenied(t *testing.T) {
	run(t, "brute-force", func(t *testing.T, a *api) {
		wrong := request{method: "POST", path: "/accounts/anna/login", status: 401}
		right := request{method: "POST", path: "/accounts/anna/login"}
		a.want(50, 200, right) // correct logins never count
		a.want(10, 401, wrong)
		a.want(1, 429, wrong)
		a.want(1, 429, right) // the right password is denied too, so guessing finds nothing
		a.want(1, 429, request{method: "POST", path: "/accounts/ANNA/login", status: 401})
		a.want(1, 429, request{method: "POST", path: "/accounts/%61nna/login/", status: 401})
		a.want(1, 200, request{method: "POST", path: "/accounts/anna/login", from: "192.0.2.2"}) // the owner, from another address
		a.want(1, 401, request{method: "POST", path: "/accounts/bert/login", status: 401})
		a.sleep(15 * time.Minute)
		a.want(10, 401, wrong)
		a.want(1, 429, wrong)
	})
}

func TestMoreAddressesDoNotAllowMoreGuesses(t *testing.T) {
	run(t, "brute-force", func(t *testing.T, a *api) {
		for i := range 100 {
			a.want(1, 401, request{method: "POST", path: "/accounts/anna/login", from: address(i), status: 401})
		}
		for i := range 100 {
			a.want(1, 429, request{method: "POST", path: "/accounts/anna/login", from: address(100 + i), status: 401})
		}
	})
}

// A guess counts before its response is known.
func TestParallelGuessesAreLimited(t *testing.T) {
	run(t, "brute-force", func(t *testing.T, a *api) {
		a.servingTime = time.Second // to check a password
		var wrong sync.WaitGroup
		for range 100 {
			wrong.Go(func() { a.call(request{method: "POST", path: "/accounts/anna/login", status: 401}) })
		}
		wrong.Wait()
		if len(a.startTimes) != 10 {
			t.Errorf("%d passwords were tried at the same time; want 10", len(a.startTimes))
		}
	})
}

func TestStuffingFromOneAddressIsDeniedAndFromManyIsReported(t *testing.T) {
	run(t, "credential-stuffing", func(t *testing.T, a *api) {
		wrong := request{method: "POST", path: "/login", status: 401, header: map[string]string{"X-JA4": "t13d1516h2"}}
		a.want(20, 401, wrong)
		denied := wrong
		denied.header = map[string]string{"X-JA4": "t13d1517h2"}
		a.want(5, 429, denied)
		for i := range 300 { // a botnet with one attempt per address: no client is locked out, but the shadow limit counts it
			wrong.from = address(i)
			a.want(1, 401, wrong)
		}
		if got := a.events["login.tool shadow_denied"]; got != 120 { // 320 failures, of which the limit allows 200
			t.Errorf("the tool was reported %d times; want 120", got)
		}
		if got := a.events["login.all shadow_denied"]; got != 0 {
			t.Errorf("the failures of all clients were reported %d times; want 0", got)
		}
	})
}

func TestNewCookiesDoNotHelpScrapers(t *testing.T) {
	run(t, "scraping", func(t *testing.T, a *api) {
		for i := range 100 {
			a.want(1, 200, request{path: "/products/" + strconv.Itoa(i), header: map[string]string{"Cookie": "session=" + strconv.Itoa(i)}})
		}
		a.want(10, 429, request{path: "/products/101", header: map[string]string{"Cookie": "session=new"}})
		a.want(20, 429, request{path: "/products/101", header: map[string]string{"User-Agent": "Googlebot/2.1"}})
		a.want(60, 200, request{path: "/products/101", header: map[string]string{"Cookie": "session=" + a.token("sub", "anna", "aud", "shop")}})
		a.want(1, 429, request{path: "/products/101", header: map[string]string{"Cookie": "session=" + a.token("sub", "anna", "aud", "shop")}})
		a.want(20, 200, request{path: "/products/101", from: "192.0.2.70"}) // a search engine's network
		a.want(1, 429, request{path: "/products/101", from: "192.0.2.71"})

		for range 5000 / 100 { // 5,000 pages are the daily limit
			a.sleep(20 * time.Second)
			a.want(100, 200, request{path: "/products/1", from: "203.0.113.1"})
		}
		a.sleep(20 * time.Second)
		a.want(100, 200, request{path: "/products/1", from: "203.0.113.1"})
		if got := a.events["catalog.day shadow_denied"]; got != 100 {
			t.Errorf("%d pages beyond the daily limit were reported; want 100", got)
		}
	})
}

func TestUserThatLoopsDoesNotAffectOthers(t *testing.T) {
	run(t, "fair-use", func(t *testing.T, a *api) {
		user := func(org, sub string) request {
			return request{path: "/api/things", header: map[string]string{"Authorization": "Bearer " + a.token("org", org, "sub", sub, "aud", "api")}}
		}
		a.want(60, 200, user("acme", "loop"))
		a.want(500, 429, user("acme", "loop"))
		a.want(60, 200, user("acme", "anna"))
		a.want(60, 200, user("acme", "bert"))
		a.want(20, 200, user("acme", "carl")) // the customer has used 200
		a.want(40, 429, user("acme", "carl"))
		a.want(60, 200, user("globex", "dora"))
		forged := user("globex", "dora")
		misspelled := user("globex", "dora")
		misspelled.header["Authorization"] += "x"
		a.want(1, 400, misspelled) // some servers may accept this spelling
		forged.header["Authorization"] = strings.Replace(forged.header["Authorization"], ".eyJ", ".eyK", 1)
		a.want(60, 200, forged) // shares the quota of requests without a token
		a.want(1, 429, forged)
		a.want(1, 429, request{path: "/api/things"})
		a.sleep(time.Second)
		a.want(20, 200, user("globex", "dora"))
	})
}

func TestCompletionIsChargedItsTrueCost(t *testing.T) {
	run(t, "cost", func(t *testing.T, a *api) {
		call := func(key string, most, used int) request {
			return request{method: "POST", path: "/v1/completions",
				header: map[string]string{"X-API-Key": key, "X-Max-Tokens": strconv.Itoa(most)}, responseHeader: map[string]string{"X-Tokens-Used": strconv.Itoa(used)}}
		}
		a.want(70, 200, call("key-of-acme", 16000, 1200)) // 84,000 tokens; if the maximum were charged, only 6 requests would pass
		a.want(1, 200, call("key-of-acme", 16000, 16000)) // 100,000 tokens together
		a.want(1, 429, call("key-of-acme", 1, 1))
		a.want(1, 200, call("key-of-globex", 16000, 16000))
		for i := range 6 {
			a.want(1, 200, call("invented"+strconv.Itoa(i), 16000, 16000))
		}
		a.want(1, 429, call("invented", 16000, 16000)) // denied by the limit of the address

		a.want(12, 200, request{method: "POST", path: "/v1/reports"})
		a.want(1, 429, request{method: "POST", path: "/v1/reports"})
	})
}

func TestDailyBillIsLimited(t *testing.T) {
	run(t, "cost", func(t *testing.T, a *api) {
		a.sleepUntil(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
		call := request{method: "POST", path: "/v1/completions", header: map[string]string{"X-Max-Tokens": "16000"}, responseHeader: map[string]string{"X-Tokens-Used": "16000"}}
		for i := range 50_000_000 / 16_000 {
			call.from = address(i)
			a.want(1, 200, call)
		}
		call.from = "203.0.113.77"
		a.want(1, 429, call)
		a.sleepUntil(time.Date(2026, 7, 1, 22, 0, 0, 0, time.UTC)) // midnight in Berlin
		a.want(1, 200, call)
	})
}

func TestBackgroundWorkLeavesRoomForPeople(t *testing.T) {
	run(t, "backpressure", func(t *testing.T, a *api) {
		a.servingTime = time.Second
		statuses := a.sendAll(100, func(i int) request { return request{path: "/api/jobs/" + strconv.Itoa(i)} },
			100, func(i int) request { return request{path: "/api/orders/" + strconv.Itoa(i)} })
		jobs, orders := statuses[0][200], statuses[1][200]
		if jobs > 16 || jobs+orders != 64 {
			t.Errorf("%d jobs and %d other requests were admitted at the same time; want 64, of which at most 16 jobs", jobs, orders)
		}
		a.want(16, 200, request{path: "/api/jobs/1"})
		a.want(64, 200, request{path: "/api/orders/1"}) // one after the other
	})
}

func TestReportsAreSentAtTheirRate(t *testing.T) {
	run(t, "backpressure", func(t *testing.T, a *api) {
		start := time.Now()
		statuses := a.sendAll(30, func(i int) request {
			return request{method: "POST", path: "/reports", header: map[string]string{"X-API-Key": strconv.Itoa(i)}}
		}, 0, nil)
		if statuses[0][200] != 21 || statuses[0][429] != 9 {
			t.Errorf("the statuses of 30 simultaneous requests are %v; want 21 served, and the others denied", statuses[0])
		}
		for i, at := range a.startTimes {
			if want := time.Duration(i) * 200 * time.Millisecond; at.Sub(start) != want {
				t.Errorf("report %d began after %v; want %v", i+1, at.Sub(start), want)
			}
		}
		statuses = a.sendAll(10, func(int) request {
			return request{method: "POST", path: "/reports", header: map[string]string{"X-API-Key": "greedy"}}
		}, 0, nil)
		if statuses[0][200] != 2 {
			t.Errorf("one client had %d reports in the queue at the same time; want 2", statuses[0][200])
		}
	})
}

func TestKeyHasBurstsOf100And10000ADay(t *testing.T) {
	run(t, "public-api", func(t *testing.T, a *api) {
		acme := request{path: "/v1/things", header: map[string]string{"X-API-Key": "key-of-acme"}}
		a.want(100, 200, acme)
		denied := a.want(1, 429, acme)
		if denied.Header().Get("RateLimit") == "" || denied.Header().Get("X-RateLimit-Remaining") != "0" || denied.Header().Get("Retry-After") == "" {
			t.Errorf("a denial has the headers %v; want RateLimit, Retry-After and an X-RateLimit-Remaining of 0", denied.Header())
		}
		for range 99 {
			a.sleep(10 * time.Second)
			a.want(100, 200, acme)
		}
		a.sleep(time.Hour)
		a.want(1, 429, acme) // 10,000 requests are used
		a.want(1, 200, request{path: "/v1/status", header: acme.header})
		a.want(1, 200, request{path: "/v1/things", header: map[string]string{"X-API-Key": "key-of-globex"}})
		for i := range 10 {
			a.want(1, 200, request{path: "/v1/things", header: map[string]string{"X-API-Key": "invented" + strconv.Itoa(i)}})
		}
		a.want(1, 429, request{path: "/v1/things", header: map[string]string{"X-API-Key": "invented"}})
		a.sleep(23 * time.Hour) // a day after its first request, and not at midnight
		a.want(1, 200, acme)
	})
}

func TestStolenCardsCannotBeTested(t *testing.T) {
	run(t, "checkout", func(t *testing.T, a *api) {
		payment := func(who string, status int) request {
			return request{method: "POST", path: "/checkout/orders/7/payment", status: status, header: map[string]string{"Cookie": "session=" + a.token("sub", who, "aud", "shop")}}
		}
		a.want(30, 200, payment("anna", 200)) // payments that succeed do not count
		a.want(5, 402, payment("anna", 402))
		a.want(1, 429, payment("anna", 402))
		for _, who := range []string{"b", "c", "d"} { // further accounts from the same address
			a.want(5, 402, payment(who, 402))
		}
		a.want(1, 429, payment("e", 402))
		other := payment("f", 402)
		other.from = "192.0.2.99"
		a.want(1, 402, other)
	})
}

func TestBuyersWaitForThePaymentProvider(t *testing.T) {
	run(t, "checkout", func(t *testing.T, a *api) {
		start := time.Now()
		statuses := a.sendAll(300, func(i int) request {
			return request{method: "POST", path: "/checkout/orders/" + strconv.Itoa(i) + "/payment", from: address(i)}
		}, 0, nil)
		if statuses[0][200] != 201 || statuses[0][429] != 99 {
			t.Errorf("the statuses of 300 simultaneous requests are %v; want 201 served within 5 seconds, and the others denied", statuses[0])
		}
		if last := a.startTimes[len(a.startTimes)-1].Sub(start); last != 5*time.Second {
			t.Errorf("the last request was served after %v; want 5s for 200 requests at 40 per second", last)
		}
	})
}

func TestPlanComesFromTheToken(t *testing.T) {
	run(t, "saas-tiers", func(t *testing.T, a *api) {
		customer := func(org, plan string) request {
			return request{path: "/api/things", header: map[string]string{"Authorization": "Bearer " + a.token("org", org, "plan", plan, "aud", "api")}}
		}
		a.want(100, 200, customer("small", "free"))
		a.want(1, 429, customer("small", "free"))
		a.want(2000, 200, customer("large", "premium"))
		a.want(1, 429, customer("large", "premium"))
		a.sleep(time.Second)
		a.want(100, 200, customer("small", "free"))
		a.want(1000, 200, customer("large", "premium"))
		a.want(1, 429, customer("large", "premium"))

		claimed := request{path: "/api/things", header: map[string]string{"X-Plan": "premium"}}
		a.want(10, 200, claimed)
		a.want(1, 429, claimed)
		forged := customer("large", "premium")
		forged.header["Authorization"] = strings.Replace(forged.header["Authorization"], ".", ".e", 1)
		forged.from = "192.0.2.2"
		a.want(10, 200, forged)
		a.want(1, 429, forged)
	})
}

func TestDeviceThatLoopsDoesNotAffectOthers(t *testing.T) {
	run(t, "iot", func(t *testing.T, a *api) {
		report := func(device int) request { // all devices at one site
			return request{method: "POST", path: "/telemetry", header: map[string]string{"X-Device-Id": strconv.Itoa(device)}}
		}
		a.want(60, 200, report(0)) // stored reports of an outage
		a.want(100, 429, report(0))
		for device := range 1000 {
			a.want(1, 200, report(1+device))
		}
		for range 100 {
			a.sleep(10 * time.Second)
			a.want(1, 200, report(0))
		}
		large := report(2000)
		large.body = strings.Repeat("x", 100<<10)
		a.want(10, 200, large) // a megabyte an hour
		a.want(1, 429, large)
	})
}

func TestFleetReconnectsAtDifferentTimes(t *testing.T) {
	run(t, "iot", func(t *testing.T, a *api) {
		retryAfters := make(map[string]bool)
		for device := range 3000 {
			want := http.StatusOK
			if device >= 1000 {
				want = http.StatusTooManyRequests
			}
			response := a.want(1, want, request{method: "POST", path: "/connect", header: map[string]string{"X-Device-Id": strconv.Itoa(device)}})
			if want == http.StatusTooManyRequests {
				retryAfters[response.Header().Get("Retry-After")] = true
			}
		}
		if len(retryAfters) < 100 { // 2,000 random times of up to 120 s
			t.Errorf("2,000 devices got %d different times in Retry-After; want at least 100", len(retryAfters))
		}
	})
}

func TestMailIsChargedByRecipientAndStoppedByBounces(t *testing.T) {
	run(t, "outbound-email", func(t *testing.T, a *api) {
		send := func(org, mail string, recipients, status int) request {
			return request{method: "POST", path: "/messages", status: status, header: map[string]string{
				"Authorization": "Bearer " + a.token("org", org, "mail", mail, "aud", "mail"), "X-Recipients": strconv.Itoa(recipients)}}
		}
		wantPaced := func(status int, r request) {
			t.Helper()
			a.sleep(time.Second / 14) // the provider's rate
			a.want(1, status, r)
		}
		for range 20 {
			wantPaced(200, send("acme", "known", 50, 200))
		}
		wantPaced(429, send("acme", "known", 50, 200))
		wantPaced(200, send("spam", "new", 50, 200))
		wantPaced(200, send("spam", "new", 1000, 200)) // at most 50 recipients get it, so only 50 are charged
		wantPaced(429, send("spam", "new", 1, 200))
		for range 30 {
			wantPaced(422, send("old-list", "new", 1, 422))
		}
		wantPaced(429, send("old-list", "new", 1, 200))
		wantPaced(200, send("acme-too", "new", 1, 200))
	})
}

func TestMailIsSentAtTheProvidersRate(t *testing.T) {
	run(t, "outbound-email", func(t *testing.T, a *api) {
		start := time.Now()
		statuses := a.sendAll(29, func(i int) request { return request{method: "POST", path: "/messages"} }, 0, nil)
		if statuses[0][200] != 29 {
			t.Errorf("the statuses of 29 simultaneous messages are %v; want 29 sent", statuses[0])
		}
		if took := a.startTimes[28].Sub(start); took != 2*time.Second {
			t.Errorf("29 messages at 14 per second took %v; want 2s", took)
		}
	})
}

func TestMonthEndsInTheTimeZoneOfTheContract(t *testing.T) {
	run(t, "contractual-quotas", func(t *testing.T, a *api) {
		a.sleepUntil(time.Date(2026, 7, 31, 20, 0, 0, 0, time.UTC))
		call := func(status int) request {
			return request{path: "/api/things", status: status, header: map[string]string{"Authorization": "Bearer " + a.token("org", "acme", "aud", "api")}}
		}
		expect := func(n, want int, r request) {
			t.Helper()
			for range n {
				a.sleep(50 * time.Millisecond) // 20 per second
				a.want(1, want, r)
			}
		}
		expect(500, 502, call(502)) // failures of the service do not count
		expect(800, 200, call(200))
		if got := a.events["calls.warning shadow_denied"]; got != 0 {
			t.Errorf("after 800 calls there were %d warnings; want 0", got)
		}
		expect(200, 404, call(404))
		if got := a.events["calls.warning shadow_denied"]; got != 200 {
			t.Errorf("from 800 to 1000 calls there were %d warnings; want 200", got)
		}
		expect(1, 429, call(200))
		a.sleepUntil(time.Date(2026, 7, 31, 21, 59, 59, 0, time.UTC))
		expect(1, 429, call(200))
		a.sleepUntil(time.Date(2026, 7, 31, 22, 0, 0, 0, time.UTC)) // August in Berlin
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
