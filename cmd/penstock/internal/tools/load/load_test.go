package load

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simulate"
	"github.com/penstock/penstock/memstore"
)

func plan(t testing.TB, rate string) *penstock.Plan {
	t.Helper()
	limit, err := penstock.ParseRate(rate)
	if err != nil {
		t.Fatal(err)
	}
	return limit.MustCompile()
}

func arrivals(t testing.TB, text string) *simulate.Arrivals {
	t.Helper()
	a, err := simulate.Parse(text, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// answersAfter returns a Send whose answers take this time.
func answersAfter(d time.Duration, a Answer) func(context.Context, int, int64) Answer {
	return func(ctx context.Context, _ int, _ int64) Answer {
		select {
		case <-time.After(d):
			return a
		case <-ctx.Done():
			return Answer{Failure: Timeout}
		}
	}
}

// A generator that waits for each answer would send one request a second here, and would call the
// latency 1 s.
func TestLatencyCountsFromThePlannedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Run(t.Context(), Options{Arrivals: arrivals(t, "10/s for 1s"), Weights: []int{1}, MaxInFlight: 1, Send: answersAfter(time.Second, Answer{Status: 200})})
		const last, width = 9100.0, 5.0 // ms: the request of 0.9 s is sent at 9 s; and the width of a bucket of the histogram
		if r.Allowed != 10 || r.Queued != 9 || r.Latency.Max < last || r.Latency.Max > last+width || r.Service.Max > 1000+width {
			t.Errorf("the report is %+v; want 10 allowed requests, 9 of them queued, a latency of at most %g ms, and 1000 ms from when it was sent", r, last)
		}
		if r.Client.IsLimit {
			t.Errorf("the client is called slow because of %q; want no reason, because the server was slow", r.Client.Reasons)
		}
	})
}

// TestOverloadEnds: a rate far above what is possible ends soon after its time, and all of its
// requests are counted.
func TestOverloadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Run(t.Context(), Options{Arrivals: arrivals(t, "10/s for 60s"), Weights: []int{1}, MaxInFlight: 1, Send: answersAfter(time.Second, Answer{Status: 200})})
		if longest := (60*time.Second + maxDelay + 2*time.Second).Seconds(); r.Sent+r.Unsent != 600 || r.Unsent < 500 || r.Seconds > longest {
			t.Errorf("%d requests were sent and %d not, in %g s; want 600 together, most of them not sent, in %g s", r.Sent, r.Unsent, r.Seconds, longest)
		}
	})
}

func TestRequestsOfARateDoNotWaitForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var sent []time.Duration
		var mu sync.Mutex
		r := Run(t.Context(), Options{Arrivals: arrivals(t, "4/s for 1s; 2 at 10s"), Weights: []int{1}, Send: func(ctx context.Context, _ int, _ int64) Answer {
			mu.Lock()
			sent = append(sent, time.Since(start))
			mu.Unlock()
			return answersAfter(3*time.Second, Answer{Status: 429})(ctx, 0, 1)
		}})
		if want := "[0s 250ms 500ms 750ms 10s 10s]"; fmt.Sprint(sent) != want || r.Denied != 6 || r.Denials.Count != 6 || r.Latency.Count != 0 {
			t.Errorf("the requests were sent at %v with %d denied, %d in the latencies of denials, and %d in the others; want %s, 6, 6 and 0", sent, r.Denied, r.Denials.Count, r.Latency.Count, want)
		}
	})
}

func TestClientsWaitForTheirAnswersAndRetryAfter(t *testing.T) {
	for _, c := range []struct {
		shouldHonorRetryAfter bool
		want                  int64 // requests: one each second and a half, or each six and a half
	}{{false, 7}, {true, 2}} {
		synctest.Test(t, func(t *testing.T) {
			r := Run(t.Context(), Options{Arrivals: arrivals(t, "3 clients every 1s for 10s"), Weights: []int{1}, ShouldHonorRetryAfter: c.shouldHonorRetryAfter,
				Send: answersAfter(500*time.Millisecond, Answer{Status: 429, RetryAfter: 6 * time.Second})})
			if r.Sent != 3*c.want {
				t.Errorf("3 clients that obey (%v) sent %d requests; want %d", c.shouldHonorRetryAfter, r.Sent, 3*c.want)
			}
		})
	}
}

func TestRequestsAreSharedByWeightAndTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		targets, clients := make([]int, 3), make(map[int64]int)
		o := Options{Arrivals: arrivals(t, "8000 at 0s"), Weights: []int{5, 2, 1}, Clients: 20, Send: func(_ context.Context, target int, client int64) Answer {
			mu.Lock()
			defer mu.Unlock()
			targets[target]++
			clients[client]++
			return Answer{Status: 200}
		}}
		Run(t.Context(), o)
		for i, want := range []int{5000, 2000, 1000} {
			if n := targets[i]; n < want*9/10 || n > want*11/10 {
				t.Errorf("target %d got %d of 8000 requests; want about %d", i, n, want)
			}
		}
		if len(clients) != 20 || clients[1] != 400 || clients[20] != 400 || clients[0] != 0 {
			t.Errorf("the clients sent %v; want 400 requests of each of 1 to 20", clients)
		}
	})
}

func TestAnInterruptionReportsWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		start := time.Now()
		r := Run(ctx, Options{Arrivals: arrivals(t, "1/s for 1h; 1 at 0s; 5 clients every 1ms for 1h"), Weights: []int{1}, Send: answersAfter(2*time.Second, Answer{Status: 200})})
		// The requests of 0 s are answered. Those of 1 s and of the interruption are too.
		if took := time.Since(start); !r.IsInterrupted || r.Allowed != 8 || r.Failures[Interrupted] != 6 || took != 3500*time.Millisecond {
			t.Errorf("after %v, the report is %+v; want 8 allowed requests, and 6 that were interrupted, after 3.5s", took, r)
		}
	})
}

func TestASlowClientIsReported(t *testing.T) {
	ms := func(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
	for _, c := range []struct {
		late, answer float64 // ms
		isStream     bool
		busy         time.Duration
		failure      Failure
		want         string
	}{
		{late: 0.5, answer: 1, isStream: true},
		{late: 2, answer: 100, isStream: true},
		{late: 2, answer: 1}, // the timer of a client that pauses
		{late: 2, answer: 1, isStream: true, want: "1 % of the requests were sent at least 2ms too late"},
		{late: 11, answer: 1000, want: "1 % of the requests were sent at least 11.007ms too late"},
		{answer: 1, busy: time.Hour, want: "this process used 3600.00 of"},
		{answer: 1, failure: NoFiles, want: "1 requests could not be sent: too many open files"},
		{answer: 1, failure: Refused},
	} {
		tally := newTally(1, nil)
		tally.hasStream = c.isStream
		for range 100 {
			tally.add(&sample{sent: ms(c.late), received: ms(c.late + c.answer), answer: Answer{Status: 200}})
		}
		if c.failure != "" {
			tally.add(&sample{answer: Answer{Failure: c.failure}})
		}
		client := tally.report(time.Second, c.busy, false).Client
		if text := strings.Join(client.Reasons, "; "); client.IsLimit != (c.want != "") || !strings.Contains(text, c.want) {
			t.Errorf("%+v: the reasons are %q; want %q", c, text, c.want)
		}
	}
}

func TestTimeoutsCountAsLatency(t *testing.T) {
	tally := newTally(1, nil)
	tally.add(&sample{received: time.Second, answer: Answer{Failure: Timeout}})
	tally.add(&sample{received: time.Millisecond, answer: Answer{Failure: Refused}})
	if r := tally.report(time.Second, 0, false); r.Latency.Count != 1 || r.Latency.Max < 1000 || r.Unanswered != 2 {
		t.Errorf("the report is %+v; want a latency of 1 s for the timeout, and none for the refused connection", r)
	}
}

// serve decides requests by a limit, each at some time between when it is sent and when it is
// answered, and returns what a client sees, in the order of the answers.
func serve(t *testing.T, limit *penstock.Plan, rng *rand.Rand) (seen []*sample) {
	var now time.Time
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	type request struct {
		*sample
		decided time.Duration
	}
	var all []request
	sent, slowest := time.Duration(0), time.Duration(1+rng.IntN(3_000))*time.Millisecond
	for range 300 {
		sent += time.Duration(rng.ExpFloat64() * float64(50*time.Millisecond))
		s := &sample{client: 1, sent: sent, received: sent + time.Duration(rng.Int64N(int64(slowest)))}
		s.answer.Status = 429
		all = append(all, request{s, sent + time.Duration(rng.Int64N(int64(s.received-sent+1)))})
	}
	slices.SortFunc(all, func(a, b request) int { return int(a.decided - b.decided) })
	for _, r := range all {
		now = time.Unix(1_800_000_000, 0).Add(r.decided)
		d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "a", Plan: limit, Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			r.answer.Status = 200
		}
		seen = append(seen, r.sample)
	}
	slices.SortFunc(seen, func(a, b *sample) int { return int(a.received - b.received) })
	return seen
}

// excess returns how many requests a judge says were admitted beyond a limit.
func excess(seen []*sample, limit *penstock.Plan) int64 {
	j := newJudge(limit)
	for _, s := range seen {
		if s.answer.Status == 200 {
			j.admit(s)
		}
	}
	return j.report().Excess
}

func TestAServerThatIsRightIsNeverAccused(t *testing.T) {
	found := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		limit := plan(t, fmt.Sprintf("%d/s, burst %d", 1+rng.IntN(20), 1+rng.IntN(30)))
		seen := serve(t, limit, rng)
		if n := excess(seen, limit); n != 0 {
			t.Errorf("seed %d: a server with %v is said to have admitted %d too many", seed, limit, n)
		}
		l := limit.Limit()
		l.Count, l.Burst = (l.Count+1)/2, (l.Burst+1)/2
		if excess(seen, l.MustCompile()) > 0 {
			found++
		}
	}
	if found < 100 {
		t.Errorf("only %d of 300 servers with twice the limit were found; want at least 100", found)
	}
}

func TestOneRequestTooManyIsFound(t *testing.T) {
	limit := plan(t, "10/s, burst 20")
	for admitted, want := range map[int]int64{20: 0, 21: 1, 40: 20} {
		var seen []*sample
		for range admitted { // at one moment, for each of two clients
			for client := range int64(2) {
				seen = append(seen, &sample{client: client, sent: time.Second, received: time.Second, answer: Answer{Status: 200}})
			}
		}
		if got := excess(seen, limit); got != 2*want {
			t.Errorf("%d requests at once of each of two clients: %d are too many; want %d", admitted, got, 2*want)
		}
	}
}

func TestPoliciesOfAnswersAreJudged(t *testing.T) {
	for text, want := range map[string]string{
		`"api.second";q=20;w=2`: "[{api.second {40 20}}]",
		`"a";q=100;w=61, "b";q=5;w=1, "c";q=7, "d";q=3;qu="concurrent-requests";w=9`: "[{a {200 1.6666666666666667}}]",
		`20;w=2`: "[]", `"a";q=x;w=2`: "[]", `"unclosed`: "[]", ``: "[]", `("a" "b")`: "[]",
		`"` + strings.Repeat("n", maxName+1) + `";q=1;w=2`: "[]",
	} {
		if got := fmt.Sprint(parsePolicies(text)); got != want {
			t.Errorf("the policies of %.80s are %s; want %s", text, got, want)
		}
	}
	j := newJudge(nil)
	for range 50 {
		j.admit(&sample{client: 7, answer: Answer{Status: 200, Policies: `"api.second";q=20;w=2`}})
	}
	if v := j.report(); v.Excess != 10 || v.Worst.Client != 7 || v.Worst.Policy != "api.second" {
		t.Errorf("50 admitted requests at once, where 20 are allowed: the report is %+v; want an excess of 10 beyond twice 20", v)
	}
}

func TestRequestsStandForClients(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[string]int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		mu.Lock()
		defer mu.Unlock()
		seen[fmt.Sprint(r.Method, " ", r.URL, " ", r.Host, " ", r.Header.Get("X-Api-Key"), " ", r.Header.Get("X-Forwarded-For"), " ", string(body), " ", host)]++
		w.Header().Set("Retry-After", "7")
		w.Header().Set("RateLimit-Policy", `"a";q=3;w=2`)
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	target, err := ParseTarget("3 post " + server.URL + "/$client?a=$address")
	if err != nil || target.Weight != 3 {
		t.Fatalf("%+v, %v", target, err)
	}
	h := &HTTP{Targets: []HTTPTarget{target}, Body: "<$client>", Timeout: time.Minute}
	for _, text := range []string{"X-API-Key: k-$client", "X-Forwarded-For: $address", "Host: h$client.example"} {
		header, err := ParseHeader(text)
		if err != nil {
			t.Fatal(err)
		}
		h.Headers = append(h.Headers, header)
	}
	if h.Sources, err = ParseSources([]string{"127.0.9.0/31"}); err != nil || !h.UsesAddresses() {
		t.Fatalf("%v; want that addresses are used", err)
	}
	h.Open(10)
	defer h.Close()
	for client := range int64(3) {
		a := h.Send(t.Context(), 0, client+1)
		if a.Status != 429 || a.RetryAfter != 7*time.Second || fmt.Sprint(parsePolicies(a.Policies)) != "[{a {6 3}}]" {
			t.Errorf("the answer is %+v; want 429, 7 s and the policy", a)
		}
	}
	for _, want := range []string{
		"POST /1?a=198.18.0.1 h1.example k-1 198.18.0.1 <1> 127.0.9.1",
		"POST /2?a=198.18.0.2 h2.example k-2 198.18.0.2 <2> 127.0.9.0",
		"POST /3?a=198.18.0.3 h3.example k-3 198.18.0.3 <3> 127.0.9.1",
	} {
		if seen[want] != 1 {
			t.Errorf("the server has seen %v; want %s once", seen, want)
		}
	}
}

func TestFailuresHaveReasons(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	block := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/break" {
			panic(http.ErrAbortHandler)
		}
		<-block
	}))
	defer server.Close()
	defer close(block)
	for url, want := range map[string]Failure{closed.URL: Refused, server.URL + "/break": Broken, server.URL: Timeout, "https" + server.URL[4:]: Other} {
		h := &HTTP{Targets: []HTTPTarget{{1, "GET", url}}, Timeout: time.Minute}
		if want == Timeout {
			h.Timeout = 50 * time.Millisecond
		}
		h.Open(1)
		if a := h.Send(t.Context(), 0, 1); a.Failure != want || a.Error == nil || a.Status != 0 {
			t.Errorf("GET %s: the answer is %+v; want the failure %q", url, a, want)
		}
		h.Close()
	}
}
