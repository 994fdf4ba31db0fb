package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

// A server is a fake http.RoundTripper. A server responds to requests, and records them.
type server struct {
	answer func(n int) *http.Response // returns the response to request n, from 0; nil means status 200

	mu        sync.Mutex
	start     time.Time
	sentAfter []time.Duration // when each request was sent, since the start
	bodies    []string        // of the requests
	unclosed  int             // how many bodies of responses are not closed
}

func newServer(answer func(n int) *http.Response) *server {
	return &server{answer: answer, start: time.Now()}
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
		r.Body.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.sentAfter)
	s.sentAfter, s.bodies = append(s.sentAfter, time.Since(s.start)), append(s.bodies, body)
	answer := response(200)
	if s.answer != nil {
		if a := s.answer(n); a != nil {
			answer = a
		}
	}
	s.unclosed++
	answer.Request = r
	answer.Body = &closer{Reader: answer.Body, closed: func() { s.mu.Lock(); s.unclosed--; s.mu.Unlock() }}
	return answer, nil
}

// A closer calls closed on its first Close.
type closer struct {
	io.Reader
	once   sync.Once
	closed func()
}

func (c *closer) Close() error { c.once.Do(c.closed); return nil }

// response returns a response. The strings in header are names and values in turn.
func response(status int, header ...string) *http.Response {
	h := make(http.Header)
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("the answer"))}
}

// onFirstRequest returns a function for newServer. This function responds to the first request with
// this status and header, and to later requests with 200.
func onFirstRequest(status int, header ...string) func(int) *http.Response {
	return func(n int) *http.Response {
		if n == 0 {
			return response(status, header...)
		}
		return nil
	}
}

// newRequest returns a request, and a counter of how often the body of the request was closed.
func newRequest(t testing.TB, ctx context.Context, method, target, body string) (r *http.Request, closed *atomic.Int64) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	closed = new(atomic.Int64)
	r.Body = &closer{Reader: r.Body, closed: func() { closed.Add(1) }}
	return r, closed
}

// send sends a GET request with a body of 1 byte, and reads the whole response.
func send(t testing.TB, rt http.RoundTripper, target string) (*http.Response, error) {
	t.Helper()
	r, closed := newRequest(t, context.Background(), "GET", target, "x")
	answer, err := rt.RoundTrip(r)
	if closed.Load() != 1 {
		t.Errorf("%s: the request's body was closed %d times; want once", target, closed.Load())
	}
	if err == nil {
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	return answer, err
}

// mustSend sends a request as send does, and fails the test if it was not sent.
func mustSend(t testing.TB, rt http.RoundTripper, target string) {
	t.Helper()
	if _, err := send(t, rt, target); err != nil {
		t.Fatal(err)
	}
}

func wantNotSent(t testing.TB, err error, retryAfter time.Duration) {
	t.Helper()
	var notSent *NotSentError
	if !errors.As(err, &notSent) || notSent.RetryAfter != retryAfter {
		t.Fatalf("the error is %v (%+v); want a NotSentError with RetryAfter %v", err, notSent, retryAfter)
	}
}

// wantSent checks when the requests were sent: each not before its time in times, and at most a
// tenth of that time (or 1 ms, if that is more) later.
func (s *server) wantSent(t testing.TB, times ...time.Duration) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sentAfter) != len(times) {
		t.Fatalf("the requests were sent after %v; want %v", s.sentAfter, times)
	}
	for i := range times {
		if late := s.sentAfter[i] - times[i]; late < 0 || late > max(times[i]/10, time.Millisecond) {
			t.Errorf("request %d was sent after %v; want %v, or up to a tenth later", i, s.sentAfter[i], times[i])
		}
	}
}

func (s *server) wantBodiesClosed(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unclosed != 0 {
		t.Errorf("%d response bodies are not closed; want all closed", s.unclosed)
	}
}

func clientLimiter(t testing.TB, store penstock.Store, limits ...penstock.Limit) *penstock.Limiter {
	t.Helper()
	l, err := penstock.NewLimiter(store, "outbound", limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// inSeconds returns durations of so many seconds.
func inSeconds(seconds ...int64) (durations []time.Duration) {
	for _, n := range seconds {
		durations = append(durations, time.Duration(n)*time.Second)
	}
	return durations
}

// waitResponses returns a response for each way in which a server can demand a pause of 7 seconds.
func waitResponses(now time.Time) map[string]*http.Response {
	unix := strconv.FormatInt(now.Unix()+7, 10)
	date := now.Add(7 * time.Second).UTC().Format(http.TimeFormat)
	return map[string]*http.Response{
		"429 with seconds":                        response(429, "Retry-After", "7"),
		"503 with seconds":                        response(503, "Retry-After", " 7 "),
		"429 with a date":                         response(429, "Retry-After", date),
		"429 with a date in UTC":                  response(429, "Retry-After", strings.Replace(date, "GMT", "UTC", 1)),
		"429 with the server's Date":              response(429, "Retry-After", "Sun, 06 Nov 1994 08:49:44 GMT", "Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
		"draft-11":                                response(200, "RateLimit", `"a";r=0;t=7`),
		"draft-11, several":                       response(200, "RateLimit", `"a";r=0;t=7, "b";r=3;t=99, "c";r=0;t=2;pk=:AA==:`),
		"draft-11, several lines":                 response(200, "RateLimit", `"a";r=0;t=2`, "RateLimit", `"b";r=0;t=7`),
		"draft-11 of a failure":                   response(500, "RateLimit", `"a";r=0;t=7`),
		"draft-07":                                response(200, "RateLimit", "limit=10, remaining=0, reset=7"),
		"draft-06":                                response(200, "RateLimit-Limit", "10, 10;w=60", "RateLimit-Remaining", "0", "RateLimit-Reset", "7"),
		"x-ratelimit in seconds":                  response(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "7"),
		"x-ratelimit with spaces":                 response(200, "X-RateLimit-Remaining", " 0 ", "X-RateLimit-Reset", " 7 "),
		"x-ratelimit in Unix time":                response(403, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix),
		"x-ratelimit in Unix ms":                  response(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", unix+"000"),
		"x-ratelimit as a date":                   response(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", date),
		"Retry-After before others":               response(429, "Retry-After", "7", "RateLimit", `"a";r=0;t=60`),
		"garbage, then the next header":           response(429, "Retry-After", "soon", "RateLimit", `"a";r=0;t=7`),
		"a response that a cache has just stored": response(200, "Age", "0", "RateLimit", `"a";r=0;t=7`),
	}
}

func TestRequestsWaitAsLongAsTheServerDemands(t *testing.T) {
	for what := range waitResponses(time.Time{}) {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(nil)
				s.answer = func(n int) *http.Response {
					if n == 0 {
						return waitResponses(time.Now())[what]
					}
					return nil
				}
				client := &Transport{Base: s}
				mustSend(t, client, "http://a.example/")
				mustSend(t, client, "http://b.example/") // the pause is not for this server
				mustSend(t, client, "http://A.example/2")
				mustSend(t, client, "http://a.example/3")
				s.wantSent(t, 0, 0, 7*time.Second, 7*time.Second)
				s.wantBodiesClosed(t)
			})
		})
	}
	t.Logf("counted: %d ways to demand 7 seconds", len(waitResponses(time.Time{})))
}

func TestOnlyClearHeadersPause(t *testing.T) {
	answers := []*http.Response{
		response(200, "Retry-After", "7"),
		response(301, "Retry-After", "7"),
		response(503),
		response(503, "Retry-After", "-7"),
		response(503, "Retry-After", "+7"),
		response(503, "Retry-After", "7.5"),
		response(503, "Retry-After", "7 seconds"),
		response(429, "Retry-After", "0"),
		response(429, "Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT"), // long ago
		response(503, "Retry-After", strings.Repeat("9", maxValueBytes+1)),
		response(200, "RateLimit", `"a";r=1;t=7`),
		response(200, "RateLimit", `"a";r=0`),
		response(200, "RateLimit", `"a";t=7`),
		response(200, "RateLimit", `"a";r=0;t=-7`),
		response(200, "RateLimit", `"a";r=0;t=7.0`),
		response(200, "RateLimit", `a;r=0;t=7`), // a token, which the draft forbids
		response(200, "RateLimit", `("a");r=0;t=7`),
		response(200, "RateLimit", `"a";r=0;t=7,`),
		response(200, "RateLimit", `"a;r=0;t=7`),
		response(200, "RateLimit", `"a";r=0;t=1000000000000000`),
		response(200, "RateLimit", `"`+strings.Repeat("a", maxRateLimitBytes)+`";r=0;t=7`),
		response(200, "RateLimit", "limit=10, remaining=0"),
		response(200, "RateLimit", "remaining=(0), reset=7"),
		response(200, "RateLimit-Remaining", "1", "RateLimit-Reset", "7"),
		response(200, "RateLimit-Remaining", "0"),
		response(200, "RateLimit-Reset", "7"),
		response(200, "X-RateLimit-Remaining", "-1", "X-RateLimit-Reset", "7"),
		response(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "6m0s"),
		response(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "784111777"), // Unix time, long ago
		response(200, "Age", "60", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "7"),
		response(200, "Age", "60", "RateLimit", `"a";r=0;t=7`),
	}
	for _, answer := range answers {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(func(n int) *http.Response {
				if n == 0 {
					return answer
				}
				return nil
			})
			client := &Transport{Base: s}
			mustSend(t, client, "http://a.example/")
			mustSend(t, client, "http://a.example/")
			if s.sentAfter[1] != 0 {
				t.Errorf("status %d, headers %v: the next request waited for %v; want no pause", answer.StatusCode, answer.Header, s.sentAfter[1])
			}
			if len(client.pauses) != 0 {
				t.Errorf("status %d, headers %v: the pauses %+v are remembered; want none", answer.StatusCode, answer.Header, client.pauses)
			}
		})
	}
	t.Logf("counted: %d responses that demand no pause", len(answers))
}

func TestRateLimitOfMoreThan4KiBIsIgnored(t *testing.T) {
	const parameters = `";r=0;t=7`
	for length, want := range map[int]time.Duration{4096: 7 * time.Second, 4097: 0} {
		line := `"` + strings.Repeat("a", length-len(parameters)-1) + parameters
		if pause, hasTime := parseRateLimit([]string{line}); pause != want || hasTime != (want > 0) {
			t.Errorf("a RateLimit of %d bytes: the pause is %v, and whether it has a time: %v; want %v", length, pause, hasTime, want)
		}
	}
	for _, line := range []string{"", "remaining=(", "limit=10, remaining=1, reset=7"} {
		if pause, hasTime := parseRateLimit([]string{line}); pause != 0 || hasTime {
			t.Errorf("RateLimit %q: the pause is %v, and whether it has a time: %v; want 0 and no time", line, pause, hasTime)
		}
	}
}

// A 429 without a time causes a pause too.
func Test429WithoutATimeBacksOff(t *testing.T) {
	for _, c := range []struct {
		what     string
		answers  []*http.Response // the first responses; the later ones have status 200
		maxPause time.Duration    // 0: the default
		pauses   []time.Duration  // after each response
	}{
		{what: "doubling", answers: []*http.Response{response(429), response(429), response(429), response(429)}, pauses: inSeconds(1, 2, 4, 8, 0)},
		{what: "up to MaxPause", answers: []*http.Response{response(429), response(429), response(429)}, maxPause: 3 * time.Second, pauses: inSeconds(1, 2, 3, 0)},
		{what: "reset by another response", answers: []*http.Response{response(429), response(429), response(200), response(429)}, pauses: inSeconds(1, 2, 0, 1)},
		{what: "reset by a time from the server", answers: []*http.Response{response(429), response(429, "Retry-After", "7"), response(429)},
			pauses: inSeconds(1, 7, 1)},
		{what: "unreadable times are ignored", answers: []*http.Response{response(429, "Retry-After", "soon"), response(429, "Retry-After", "-7")}, pauses: inSeconds(1, 2)},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(func(n int) *http.Response {
				if n < len(c.answers) {
					return c.answers[n]
				}
				return nil
			})
			client := &Transport{Base: s, MaxPause: c.maxPause}
			for i, want := range c.pauses {
				mustSend(t, client, "http://a.example/")
				if got := client.pauseLeft("a.example"); max(got, 0) != want {
					t.Errorf("%s: the pause after response %d is %v; want %v", c.what, i+1, got, want)
				}
			}
			if len(client.pauses) > 1 {
				t.Errorf("%s: the Transport holds %d pauses; want at most one, for the one key", c.what, len(client.pauses))
			}
		})
	}
	// Responses to requests that were sent together double the pause once.
	synctest.Test(t, func(t *testing.T) {
		client := &Transport{}
		for range 5 {
			if wait, hasTime := client.recordPause("a.example", response(429)); wait != time.Second || !hasTime {
				t.Errorf("one of five responses pauses for %v, and has a time: %t; want 1s and true", wait, hasTime)
			}
		}
	})
}

func TestAServerCannotKeepRequestsWaitingForever(t *testing.T) {
	for _, answer := range []*http.Response{
		response(429, "Retry-After", "86400"),
		response(503, "Retry-After", strings.Repeat("9", 40)),
		response(429, "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"),
		response(429, "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT", "Date", "Thu, 01 Jan 1970 00:00:00 GMT"),
		response(200, "RateLimit", `"a";r=0;t=999999999999999`),
		response(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", strconv.Itoa(math.MaxInt64)),
		response(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "99999999999"),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(func(n int) *http.Response {
				if n == 0 {
					return answer
				}
				return nil
			})
			client := &Transport{Base: s, MaxWait: time.Hour}
			mustSend(t, client, "http://a.example/")
			mustSend(t, client, "http://a.example/")
			s.wantSent(t, 0, 5*time.Minute) // the default MaxPause

			capped := &Transport{Base: newServer(func(int) *http.Response { return answer }), MaxPause: 3 * time.Second, MaxWait: -1}
			mustSend(t, capped, "http://a.example/")
			_, err := send(t, capped, "http://a.example/")
			wantNotSent(t, err, 3*time.Second)
		})
	}
}

func TestALaterAnswerDoesNotShortenThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		client := &Transport{Base: s}
		client.recordPause("a.example", response(429, "Retry-After", "10"))
		client.recordPause("a.example", response(429, "Retry-After", "2"))
		mustSend(t, client, "http://a.example/")
		s.wantSent(t, 10*time.Second)
	})
}

func TestRequestThatWouldWaitTooLongIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(onFirstRequest(429, "Retry-After", "20"))
		client := &Transport{Base: s, MaxWait: 5 * time.Second}
		mustSend(t, client, "http://a.example/")
		time.Sleep(2 * time.Second)
		_, err := send(t, client, "http://a.example/")
		wantNotSent(t, err, 18*time.Second)
		if !errors.Is(err, ErrPaused) {
			t.Errorf("the error is %v; want ErrPaused", err)
		}
		if want := "the server demands a pause: the pause lasts another 18s, and the request may wait for 5s"; !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v; want %s", err, want)
		}

		// A context that ends earlier counts.
		client.MaxWait = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, closed := newRequest(t, ctx, "GET", "http://a.example/", "x")
		_, err = client.RoundTrip(r)
		wantNotSent(t, err, 18*time.Second)
		if closed.Load() != 1 || ctx.Err() != nil {
			t.Errorf("the body was closed %d times, and the context has the error %v; want once and no error", closed.Load(), ctx.Err())
		}
		s.wantSent(t, 0)
	})
}

func TestAPauseAsLongAsMaxWaitIsWaitedFor(t *testing.T) {
	for maxWait, isSent := range map[time.Duration]bool{7 * time.Second: true, 7*time.Second - time.Millisecond: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(onFirstRequest(429, "Retry-After", "7"))
			client := &Transport{Base: s, MaxWait: maxWait}
			mustSend(t, client, "http://a.example/")
			_, err := send(t, client, "http://a.example/")
			if isSent {
				if err != nil || s.sentAfter[1] != 7*time.Second {
					t.Errorf("the error is %v, and requests were sent after %v; want the second after 7s", err, s.sentAfter)
				}
				return
			}
			wantNotSent(t, err, 7*time.Second)
		})
	}
}

func TestRequestsThatWaitedTogetherAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		client := &Transport{Base: s}
		client.recordPause("a.example", response(429, "Retry-After", "10"))
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { mustSend(t, client, "http://a.example/") })
		}
		all.Wait()
		first, last := s.sentAfter[0], s.sentAfter[49]
		if first < 10*time.Second || last > 11*time.Second || last-first < 300*time.Millisecond {
			t.Errorf("50 requests were sent from %v to %v; want them spread between 10s and 11s, over 300ms or more", first, last)
		}
	})
}

func TestRequestsKeepTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		client := &Transport{
			Base:    s,
			Limiter: clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerSecond(2).WithBurst(4)),
			Key:     func(r *http.Request) string { return r.URL.Query().Get("as") },
			Cost:    func(r *http.Request) int64 { return r.ContentLength },
		}
		for range 6 { // the body of each has 1 byte, so it costs 1 unit
			mustSend(t, client, "http://a.example/?as=me")
		}
		mustSend(t, client, "http://a.example/?as=other")
		s.wantSent(t, 0, 0, 0, 0, 500*time.Millisecond, time.Second, time.Second)

		r, _ := newRequest(t, t.Context(), "GET", "http://a.example/?as=me", "four") // 4 bytes, the burst
		if _, err := client.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if got, want := s.sentAfter[7], 3*time.Second; got != want { // from 1s, when no units were left, 4 units take 2s
			t.Errorf("a request of cost 4 was sent after %v; want %v", got, want)
		}

		r, closed := newRequest(t, t.Context(), "GET", "http://a.example/?as=me", "fives") // 5 bytes, more than the burst
		_, err := client.RoundTrip(r)
		wantNotSent(t, err, penstock.Never)
		if closed.Load() != 1 {
			t.Errorf("the body of a request that was not sent was closed %d times; want once", closed.Load())
		}
	})
}

func TestDenialOfTheLimiterIsReturnedWithoutAWait(t *testing.T) {
	for what, maxWait := range map[string]time.Duration{"a wait of 10 s is allowed": 10 * time.Second, "no wait is allowed": -1} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(nil)
			client := http.Client{Transport: &Transport{
				Base: s, MaxWait: maxWait,
				Limiter: clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerMinute(1).With(penstock.SlidingLog)),
			}}
			answer, err := client.Get("http://a.example/")
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			_, err = client.Get("http://a.example/")
			wantNotSent(t, err, time.Minute)
			var denied *penstock.DeniedError
			if !errors.As(err, &denied) || denied.Decision.RetryAfter() != time.Minute {
				t.Errorf("%s: the error is %v; want a DeniedError with RetryAfter 1m", what, err)
			}
			if got := time.Since(s.start); got != 0 {
				t.Errorf("%s: the denial took %v; want 0s", what, got)
			}
			s.wantSent(t, 0)
		})
	}
}

func TestWaitingRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		client := &Transport{
			Base: s, MaxWaiting: 3, MaxWait: time.Minute,
			Limiter: clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerSecond(1)),
		}
		mustSend(t, client, "http://a.example/")
		var all sync.WaitGroup
		var notSent atomic.Int64
		for range 10 {
			all.Go(func() {
				_, err := send(t, client, "http://a.example/")
				var failure *NotSentError
				if errors.As(err, &failure) {
					notSent.Add(1)
				} else if err != nil {
					t.Errorf("the error is %v; want a NotSentError or a response", err)
				}
			})
		}
		synctest.Wait()
		if notSent.Load() != 7 {
			t.Errorf("%d of 10 requests were not sent; want 7, because MaxWaiting is 3", notSent.Load())
		}
		mustSend(t, client, "http://b.example/") // this request does not have to wait, so it is sent
		all.Wait()
		s.wantSent(t, 0, 0, time.Second, 2*time.Second, 3*time.Second)
		if client.waiting != 0 {
			t.Errorf("%d requests still wait; want 0", client.waiting)
		}
	})
}

func TestCanceledRequestReturnsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		s := newServer(nil)
		limiter := clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerSecond(1))
		client := &Transport{Base: s, Limiter: limiter}
		mustSend(t, client, "http://a.example/")

		ctx, cancel := context.WithCancelCause(t.Context())
		r, closed := newRequest(t, ctx, "GET", "http://a.example/", "x")
		time.AfterFunc(500*time.Millisecond, func() { cancel(gone) })
		if _, err := client.RoundTrip(r); !errors.Is(err, gone) {
			t.Errorf("the error is %v; want the context's cause", err)
		}
		if closed.Load() != 1 || time.Since(s.start) != 500*time.Millisecond {
			t.Errorf("the body was closed %d times, after %v; want once, after 500ms", closed.Load(), time.Since(s.start))
		}
		mustSend(t, client, "http://a.example/")
		s.wantSent(t, 0, time.Second)

		// A request that waits for a pause to end also returns when it is canceled.
		client.recordPause("a.example", response(429, "Retry-After", "20"))
		ctx, cancel = context.WithCancelCause(t.Context())
		time.AfterFunc(5*time.Second, func() { cancel(gone) })
		r, _ = newRequest(t, ctx, "GET", "http://a.example/", "x")
		if _, err := client.RoundTrip(r); !errors.Is(err, gone) || time.Since(s.start) != 6*time.Second {
			t.Errorf("the error is %v, after %v; want the context's cause, 6s after the start", err, time.Since(s.start))
		}
		r, _ = newRequest(t, ctx, "GET", "http://c.example/", "x")
		if _, err := client.RoundTrip(r); !errors.Is(err, gone) {
			t.Errorf("a request whose context has ended: the error is %v; want its cause", err)
		}
		s.wantSent(t, 0, time.Second)
	})
}

// While a request waits for the Limiter, another response may pause the server.
func TestAPauseThatBeginsDuringTheWaitRefundsTheCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		limiter := clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerMinute(2).With(penstock.AnchoredWindow))
		client := &Transport{Base: s, Limiter: limiter, MaxWait: 90 * time.Second}
		mustSend(t, client, "http://a.example/")
		mustSend(t, client, "http://a.example/")
		time.AfterFunc(30*time.Second, func() { client.recordPause("a.example", response(503, "Retry-After", "200")) })
		_, err := send(t, client, "http://a.example/")
		var notSent *NotSentError
		// The pause ends 230 s after the start. The wait for the Limiter ends slightly after 60 s, so at
		// most 170 s of the pause are left.
		if !errors.As(err, &notSent) || !errors.Is(err, ErrPaused) || notSent.RetryAfter < 165*time.Second || notSent.RetryAfter > 170*time.Second {
			t.Fatalf("the error is %v (%+v); want ErrPaused with a RetryAfter from 165s to 170s", err, notSent)
		}
		if d, err := limiter.Peek(t.Context(), "a.example"); err != nil || d.Remaining() != 2 {
			t.Errorf("Peek returns %v and the error %v; want 2 units left, because the cost is refunded", d, err)
		}
		s.wantSent(t, 0, 0)
	})
}

func TestUnavailableStoreStopsRequestsOnlyWithFailClosed(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, fmt.Errorf("%w: connection refused", penstock.ErrUnavailable)
	})
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		limiter := clientLimiter(t, down, penstock.PerSecond(1))
		mustSend(t, &Transport{Base: s, Limiter: limiter}, "http://a.example/")
		mustSend(t, &Transport{Base: s, Limiter: limiter, MaxWait: -1}, "http://a.example/")
		_, err := send(t, &Transport{Base: s, Limiter: limiter, FailClosed: true}, "http://a.example/")
		wantNotSent(t, err, 0)
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("the error is %v; want ErrUnavailable", err)
		}
		s.wantSent(t, 0, 0)

		// An invalid request is never sent.
		wrong := &Transport{Base: s, Limiter: limiter, Cost: func(*http.Request) int64 { return -1 }}
		wrong.Limiter = clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerSecond(1))
		_, err = send(t, wrong, "http://a.example/")
		wantNotSent(t, err, 0)
		if !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("the error is %v; want ErrInvalid", err)
		}
		s.wantSent(t, 0, 0)
	})
}

// MaxWait also bounds the wait for a store that does not answer.
func TestAHangingStoreEndsWithTheWait(t *testing.T) {
	hangs := penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
		<-ctx.Done()
		return penstock.Decision{}, ctx.Err()
	})
	synctest.Test(t, func(t *testing.T) {
		s := newServer(nil)
		_, err := send(t, &Transport{Base: s, Limiter: clientLimiter(t, hangs, penstock.PerSecond(1))}, "http://a.example/")
		wantNotSent(t, err, 0)
		if time.Since(s.start) != 30*time.Second {
			t.Errorf("the request took %v; want 30s, the default MaxWait", time.Since(s.start))
		}
	})
}

func TestRetries(t *testing.T) {
	always := func(int) *http.Response { return response(429, "Retry-After", "2") }
	longOnFirst := func(n int) *http.Response {
		if n > 0 {
			return nil
		}
		a := response(429, "Retry-After", "2")
		a.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", maxBufferedBytes+1)))
		return a
	}
	for _, c := range []struct {
		what         string
		answer       func(int) *http.Response
		method       string
		header       string
		hasNoBody    bool
		lacksGetBody bool
		retries      int
		maxWait      time.Duration
		status       int             // of the response that is returned
		sent         []time.Duration // when the request is sent, since the start
	}{
		{what: "429", answer: onFirstRequest(429, "Retry-After", "2"), method: "POST", retries: 1, status: 200, sent: inSeconds(0, 2)},
		{what: "503 to a PUT", answer: onFirstRequest(503, "Retry-After", "2"), method: "PUT", retries: 1, status: 200, sent: inSeconds(0, 2)},
		{what: "503 to a GET", answer: onFirstRequest(503, "Retry-After", "2"), method: "GET", hasNoBody: true, retries: 1, status: 200, sent: inSeconds(0, 2)},
		{what: "Retry-After: 0", answer: onFirstRequest(503, "Retry-After", "0"), method: "GET", retries: 1, status: 200, sent: inSeconds(0, 0)},
		{what: "429 with RateLimit only", answer: onFirstRequest(429, "RateLimit", `"a";r=0;t=2`), method: "GET", retries: 1, status: 200, sent: inSeconds(0, 2)},
		{what: "503 to a POST", answer: onFirstRequest(503, "Retry-After", "2"), method: "POST", retries: 1, status: 503, sent: inSeconds(0)},
		{what: "503 to a POST with an idempotency key", answer: onFirstRequest(503, "Retry-After", "2"), method: "POST", header: "Idempotency-Key", retries: 1, status: 200, sent: inSeconds(0, 2)},
		{what: "no retries by default", answer: always, method: "GET", status: 429, sent: inSeconds(0)},
		{what: "two retries", answer: always, method: "GET", retries: 2, status: 429, sent: inSeconds(0, 2, 4)},
		{what: "another status", answer: onFirstRequest(500, "RateLimit", `"a";r=0;t=2`), method: "GET", retries: 1, status: 500, sent: inSeconds(0)},
		{what: "429 without a time", answer: onFirstRequest(429), method: "POST", retries: 1, status: 200, sent: inSeconds(0, 1)},
		{what: "503 without a time", answer: onFirstRequest(503), method: "GET", retries: 1, status: 503, sent: inSeconds(0)},
		{what: "a pause beyond MaxWait", answer: onFirstRequest(429, "Retry-After", "6"), method: "GET", retries: 1, maxWait: 5 * time.Second, status: 429, sent: inSeconds(0)},
		{what: "pauses beyond MaxWait together", answer: always, method: "GET", retries: 9, maxWait: 5 * time.Second, status: 429, sent: inSeconds(0, 2, 4)},
		{what: "MaxWait forbids to wait", answer: onFirstRequest(429, "Retry-After", "0"), method: "GET", retries: 1, maxWait: -1, status: 429, sent: inSeconds(0)},
		{what: "a body without GetBody", answer: onFirstRequest(429, "Retry-After", "2"), method: "POST", lacksGetBody: true, retries: 1, status: 429, sent: inSeconds(0)},
		{what: "a response too long to buffer", answer: longOnFirst, method: "POST", retries: 1, status: 429, sent: inSeconds(0)},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(c.answer)
			client := &Transport{Base: s, Retries: c.retries, MaxWait: c.maxWait}
			r, closed := newRequest(t, t.Context(), c.method, "http://a.example/", "the request")
			if c.lacksGetBody {
				r.GetBody = nil
			}
			if c.hasNoBody {
				r.Body, r.GetBody, r.ContentLength = nil, nil, 0
			}
			if c.header != "" {
				r.Header.Set(c.header, "1")
			}
			before := *r
			header := r.Header.Clone()
			answer, err := client.RoundTrip(r)
			if err != nil {
				t.Fatalf("%s: the error is %v; want a response", c.what, err)
			}
			if answer.StatusCode != c.status {
				t.Errorf("%s: the status is %d; want %d", c.what, answer.StatusCode, c.status)
			}
			body, err := io.ReadAll(answer.Body)
			if string(body) != "the answer" && len(body) != maxBufferedBytes+1 || err != nil {
				t.Errorf("%s: the response's body has %d bytes, and reading it returns %v; want the whole body", c.what, len(body), err)
			}
			answer.Body.Close()
			s.wantBodiesClosed(t)
			s.wantSent(t, c.sent...)
			if !c.hasNoBody && closed.Load() != 1 {
				t.Errorf("%s: the first body was closed %d times; want once", c.what, closed.Load())
			}
			for i, got := range s.bodies {
				if got != "the request" && !c.hasNoBody {
					t.Errorf("%s: try %d sent %q; want the request's body", c.what, i, got)
				}
			}
			if r.Body != before.Body || r.URL != before.URL || r.Context() != before.Context() || !reflect.DeepEqual(r.Header, header) {
				t.Errorf("%s: the request is %v; want it unchanged: %v", c.what, r, &before)
			}
		})
	}
}

// The Limiter denies the retry, so the caller gets the first response.
func TestRetryThatTheLimiterDeniesReturnsTheFirstResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(onFirstRequest(429, "Retry-After", "1"))
		client := &Transport{
			Base: s, Retries: 3, MaxWait: 10 * time.Second,
			Limiter: clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerHour(1)),
		}
		r, _ := newRequest(t, t.Context(), "POST", "http://a.example/", "x")
		answer, err := client.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if answer.StatusCode != 429 || string(body) != "the answer" || err != nil {
			t.Errorf("status %d, body %q, error %v; want the first response", answer.StatusCode, body, err)
		}
		s.wantSent(t, 0)
		s.wantBodiesClosed(t)
	})
}

func TestARetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(onFirstRequest(429, "Retry-After", "10"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		r, _ := newRequest(t, ctx, "POST", "http://a.example/", "x")
		if _, err := (&Transport{Base: s, Retries: 3}).RoundTrip(r); !errors.Is(err, context.Canceled) || time.Since(s.start) != 3*time.Second {
			t.Errorf("the error is %v, after %v; want context.Canceled after 3s", err, time.Since(s.start))
		}
		s.wantSent(t, 0)
		s.wantBodiesClosed(t)
	})
}

func TestTruncatedResponseIsReturnedAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		s := newServer(func(int) *http.Response {
			a := response(429, "Retry-After", "1")
			a.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), &failingOnceReader{err: broken}))
			return a
		})
		r, _ := newRequest(t, t.Context(), "GET", "http://a.example/", "x")
		answer, err := (&Transport{Base: s, Retries: 1}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(answer.Body); string(body) != "half" || err != broken {
			t.Errorf("the body is %q, and the error %v; want \"half\" and the error \"broken\"", body, err)
		}
		answer.Body.Close()
		s.wantBodiesClosed(t)
		s.wantSent(t, 0)
	})
}

type failingOnceReader struct{ err error }

func (f *failingOnceReader) Read([]byte) (int, error) {
	err := f.err
	f.err = io.EOF
	return 0, err
}

func TestErrorsOfTheBaseAreReturned(t *testing.T) {
	refused := errors.New("refused")
	client := &Transport{Base: roundTripFunc(func(r *http.Request) (*http.Response, error) { r.Body.Close(); return nil, refused }), Retries: 3}
	if _, err := send(t, client, "http://a.example/"); err != refused {
		t.Errorf("the error is %v; want the Base's", err)
	}
	// A request without a URL has no host. The Base returns the error.
	if _, err := (&Transport{}).RoundTrip(&http.Request{}); err == nil {
		t.Error("a request without a URL was sent; want an error")
	}
	client.CloseIdleConnections() // the Base has no idle connections
	base := &idleRecorder{}
	(&Transport{Base: base}).CloseIdleConnections()
	if !base.isClosed {
		t.Error("idle connections of the Base stay open; want them closed")
	}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An idleRecorder records whether its idle connections were closed.
type idleRecorder struct {
	http.RoundTripper
	isClosed bool
}

func (i *idleRecorder) CloseIdleConnections() { i.isClosed = true }

func TestRememberedPausesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &Transport{MaxPause: 100 * time.Hour}
		// receive records a pause of so many seconds for the key i.
		receive := func(i int, seconds int) {
			client.recordPause(strconv.Itoa(i), response(429, "Retry-After", strconv.Itoa(seconds)))
		}
		for i := range maxPauses {
			receive(i, 1000+i)
		}
		receive(5, 9000) // key 5 has a pause already, so no other pause is dropped
		if len(client.pauses) != maxPauses || client.pauseLeft("0") == 0 {
			t.Fatalf("there are %d pauses, and the first lasts for %v; want %d, with the first kept", len(client.pauses), client.pauseLeft("0"), maxPauses)
		}
		receive(maxPauses, 5000)
		if len(client.pauses) != maxPauses || client.pauseLeft("0") != 0 || client.pauseLeft("1") != 1001*time.Second ||
			client.pauseLeft(strconv.Itoa(maxPauses)) != 5000*time.Second {
			t.Errorf("there are %d pauses, and the one of key 0, which ends first, still lasts for %v; want %d, with that one replaced", len(client.pauses), client.pauseLeft("0"), maxPauses)
		}
		time.Sleep(2000 * time.Second)
		receive(maxPauses+1, 10)
		const ended = 999 // the pauses of the keys 1 to 1000, except 5
		if got, want := len(client.pauses), maxPauses-ended+1; got != want {
			t.Errorf("there are %d pauses; want the %d that have not ended", got, want)
		}
	})
}

func TestManyGoroutinesShareATransport(t *testing.T) {
	s := newServer(func(n int) *http.Response {
		if n%7 == 0 {
			return response(429, "Retry-After", "0", "RateLimit", `"a";r=0;t=0`)
		}
		return nil
	})
	client := &Transport{Base: s, Retries: 2, Limiter: clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerSecond(1_000_000))}
	var all sync.WaitGroup
	const goroutines, requestsOfEach = 16, 200
	for i := range goroutines {
		all.Go(func() {
			for j := range requestsOfEach {
				mustSend(t, client, fmt.Sprintf("http://%d.example/", (i+j)%5))
			}
		})
	}
	all.Wait()
	s.wantBodiesClosed(t)
	if len(s.sentAfter) < goroutines*requestsOfEach || client.waiting != 0 {
		t.Errorf("%d requests were sent, and %d wait; want at least %d sent and none waiting", len(s.sentAfter), client.waiting, goroutines*requestsOfEach)
	}
	t.Logf("counted: %d requests of %d goroutines through one Transport", len(s.sentAfter), goroutines)
}

// The test uses a real connection. The first response demands a pause, and the body is sent twice.
func TestTransportOverTheNetwork(t *testing.T) {
	var mu sync.Mutex
	var received []string // the method and body of each request
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read the request's body: the error is %v; want no error", err)
		}
		mu.Lock()
		defer mu.Unlock()
		received = append(received, r.Method+" "+string(body))
		if len(received) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, "later")
		}
	}))
	defer api.Close()
	client := http.Client{Transport: &Transport{
		Retries: 1, Limiter: clientLimiter(t, memstore.New(memstore.Options{}), penstock.PerSecond(100)),
	}}
	defer client.CloseIdleConnections()
	answer, err := client.PostForm(api.URL, url.Values{"a": {"b"}})
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if want := []string{"POST a=b", "POST a=b"}; answer.StatusCode != 200 || !slices.Equal(received, want) {
		t.Fatalf("status %d, and the server received %q; want 200 and %q", answer.StatusCode, received, want)
	}
}

func FuzzPauseOf(f *testing.F) {
	f.Add(429, "7", "", "", "", "", "", "")
	f.Add(503, "Sun, 06 Nov 1994 08:49:37 GMT", "", "", "", "", "", "Sun, 06 Nov 1994 08:49:30 GMT")
	f.Add(200, "", `"a";r=0;t=7, "b";r=1`, "", "", "", "", "")
	f.Add(200, "", `"a";r=0;t=-7`, "", "", "", "", "")
	f.Add(200, "", "limit=10, remaining=0, reset=-7", "", "", "", "", "")
	f.Add(200, "", "limit=10, remaining=0, reset=7", "0", "7", "0", "1800000000", "")
	f.Add(429, "99999999999999999999", `"a";r=0;t=-1`, "-0", "0x7", "0", "99999999999999", "UTC")
	now := time.Unix(1_800_000_000, 0)
	f.Fuzz(func(t *testing.T, status int, retryAfter, rateLimit, remaining, reset, xRemaining, xReset, date string) {
		h := make(http.Header)
		for i, value := range []string{retryAfter, rateLimit, remaining, reset, xRemaining, xReset, date} {
			name := []string{"Retry-After", "RateLimit", "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Date"}[i]
			if value != "" {
				h.Set(name, value)
			}
		}
		pause, hasTime := pauseOf(status, h, now)
		if pause < 0 || pause > 0 && !hasTime {
			t.Fatalf("status %d with the headers %v pauses for %v, and has a time: %t; want 0 or longer, and 0 without a time", status, h, pause, hasTime)
		}
		if n, err := strconv.ParseUint(retryAfter, 10, 32); err == nil && (status == 429 || status == 503) && pause != time.Duration(n)*time.Second {
			t.Fatalf("status %d with the headers %v pauses for %v; want %d s", status, h, pause, n)
		}
		// No header, however long, makes a request wait for longer than it may.
		client := &Transport{MaxPause: time.Minute}
		if kept, _ := client.recordPause("", &http.Response{StatusCode: status, Header: h}); kept > time.Minute || client.pauseLeft("") > time.Minute {
			t.Fatalf("status %d with the headers %v pauses for %v; want at most MaxPause, 1m", status, h, client.pauseLeft(""))
		}
	})
}
