// Package gatetest tests that a gate works in a web framework, against the framework's own server.
package gatetest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// A Service makes a web service behind a gate, and returns the function that serves it. POST
// /api/rides/request responds with 200. POST /body responds with the body of the request. The
// routes for GET do common things in the style of the framework:
//
//	/fails       responds with 502
//	/panics      panics
//	/waits       calls wait
//	/costs       responds with the header X-Cost: 5
//	/costs-twice responds with the header X-Cost: 5 twice
//	/settles     settles a cost of 5 with httplimit.Settle
//	/files/**    responds with 200, by one route for all paths with this prefix
type Service func(gate *httplimit.Gate, wait func()) (serve func(net.Listener) error)

// Run tests that the gate limits the requests of a Service.
func Run(t *testing.T, service Service) {
	t.Run("20Of25RequestsPass", func(t *testing.T) {
		s := start(t, service, rides(t))
		statuses := make(map[int]int)
		for range 25 {
			res := s.send(t, "POST", "/api/rides/request", nil)
			statuses[res.StatusCode]++
			if res.StatusCode == http.StatusTooManyRequests {
				wantHeader(t, res, "Retry-After", "1")
				wantHeader(t, res, "Content-Type", "application/problem+json")
				wantHeader(t, res, "Ratelimit", `"ride-request.second";r=0;t=1`)
			} else {
				wantHeader(t, res, "Ratelimit-Policy", `"ride-request.second";q=20;w=2`)
			}
		}
		if statuses[http.StatusOK] != 20 || statuses[http.StatusTooManyRequests] != 5 {
			t.Errorf("the responses by status: %v; want 20 of 200 and 5 of 429", statuses)
		}
	})

	t.Run("PathsWithoutARuleAreNotLimited", func(t *testing.T) {
		s := start(t, service, rides(t))
		for range 50 {
			if res := s.send(t, "GET", "/files/a", nil); res.StatusCode != http.StatusOK || res.Header["Ratelimit"] != nil {
				t.Fatalf("GET /files/a, which has no rule: %s with headers %v; want 200 without RateLimit", res.Status, res.Header)
			}
		}
	})

	t.Run("ForgedAddressesShareOneLimit", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: clients
    per: ip
    limits: [{rate: 3/h}]
`))
		admitted := 0
		for i, header := range []string{"X-Forwarded-For", "Forwarded", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Client-IP", "Client-IP", "X-Forwarded-For"} {
			value := fmt.Sprintf("203.0.113.%d", i)
			if header == "Forwarded" {
				value = "for=" + value
			}
			keyAndHeader := "one\r\n" + header + ": " + value // send writes this after "X-API-Key: "
			if res := s.send(t, "GET", "/files/a", []string{keyAndHeader}); res.StatusCode == http.StatusOK {
				admitted++
			}
		}
		if admitted != 3 {
			t.Errorf("%d requests with forged addresses are admitted; want 3, the limit of the one true address", admitted)
		}
	})

	t.Run("OnlyFailuresAreCharged", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: failures
    per: global
    limits: [{rate: 3/h, on_status: 5xx}]
`))
		s.wantStatus(t, 10, "/files/a", http.StatusOK)
		s.wantStatus(t, 3, "/fails", http.StatusBadGateway)
		s.wantStatus(t, 1, "/fails", http.StatusTooManyRequests)
		s.wantStatus(t, 1, "/files/a", http.StatusTooManyRequests)
	})

	t.Run("MissingRoutesGet404", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: scanners
    per: global
    limits: [{rate: 3/h, on_status: 404}]
`))
		s.wantStatus(t, 10, "/files/a", http.StatusOK)
		s.wantStatus(t, 3, "/wp-admin", http.StatusNotFound)
		s.wantStatus(t, 1, "/wp-admin", http.StatusTooManyRequests)
	})

	t.Run("PanicReleasesItsSlot", func(t *testing.T) {
		s := start(t, service, parse(t, oneAtATime))
		s.wantStatus(t, 5, "/panics", http.StatusInternalServerError)
		s.wantStatus(t, 5, "/files/a", http.StatusOK)
	})

	t.Run("SlotIsHeldUntilTheHandlerEnds", func(t *testing.T) {
		s := start(t, service, parse(t, oneAtATime))
		first := make(chan *http.Response)
		go func() { first <- s.send(t, "GET", "/waits", nil) }()
		<-s.waiting
		s.wantStatus(t, 1, "/files/a", http.StatusTooManyRequests)
		close(s.release)
		if res := <-first; res.StatusCode != http.StatusOK {
			t.Errorf("the admitted request got %s; want 200", res.Status)
		}
		s.wantStatus(t, 1, "/files/a", http.StatusOK)
	})

	t.Run("ARepeatedCostIsIgnored", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: costs
    per: global
    limits: [{rate: 10/h, cost: {actual: X-Cost}}]
`))
		s.wantStatus(t, 10, "/costs-twice", http.StatusOK)
	})

	for _, path := range []string{"/costs", "/settles"} {
		t.Run("TheTrueCostOf"+path[1:]+"IsCharged", func(t *testing.T) {
			s := start(t, service, parse(t, `
rules:
  - name: costs
    per: global
    limits: [{rate: 10/h, cost: {actual: X-Cost}}]
`))
			s.wantStatus(t, 2, path, http.StatusOK)
			s.wantStatus(t, 1, path, http.StatusTooManyRequests)
		})
	}

	t.Run("BodiesArriveWhole", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: bodies
    match: {path: /body}
    per: global
    limits: [{rate: 10000/h, cost: {body: 1}, max_wait: 1s}]
`))
		for _, size := range []int{1, 100, 9000} {
			body := strings.Repeat("b", size)
			res := s.sendBody(t, "POST", "/body", nil, body)
			got, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != http.StatusOK || string(got) != body {
				t.Errorf("a body of %d bytes: %s with %d bytes, %v; want 200 with the same", size, res.Status, len(got), err)
			}
		}
		if res := s.sendBody(t, "POST", "/body", nil, strings.Repeat("b", 9000)); res.StatusCode != http.StatusTooManyRequests {
			t.Errorf("a body of 9,000 bytes, after 9,101 bytes in all, got %s; want 429, because the limit is 10,000", res.Status)
		}
	})

	t.Run("NoSpellingOfAPathEvadesItsRule", func(t *testing.T) {
		for _, spelling := range spellings {
			s := start(t, service, rides(t))
			passed := 0
			for range 30 {
				if res := s.send(t, "POST", spelling, nil); res.StatusCode == http.StatusOK {
					passed++
				}
			}
			if passed > 20 {
				t.Errorf("POST %s: %d of 30 requests got 200; want at most 20, the limit", spelling, passed)
			}
		}
		t.Logf("counted: %d spellings of a path", len(spellings))
	})

	t.Run("WildcardRouteDoesNotEvadeRules", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: files
    match: {path: /files/**}
    per: global
    limits: [{rate: 3/h}]
`))
		passed := 0
		for range 10 {
			for _, spelling := range []string{"/files/../else", "/files/a/../../else", "/files/%2e%2e/else", "//files/a", "/./files/a", "/%66iles/a"} {
				if res := s.send(t, "GET", spelling, nil); res.StatusCode == http.StatusOK {
					passed++
				}
			}
		}
		if passed > 3 {
			t.Errorf("%d of the requests to /files/** got 200; want at most 3, the limit", passed)
		}
	})

	t.Run("RequestWithTwoKeysIsMalformed", func(t *testing.T) {
		s := start(t, service, rides(t))
		for i := range 30 {
			keys := []string{fmt.Sprint("mine", i), "victim"}
			if i%2 == 1 {
				slices.Reverse(keys)
			}
			if res := s.send(t, "POST", "/api/rides/request", keys); res.StatusCode != http.StatusBadRequest {
				t.Fatalf("request %d with two keys got %d, want 400", i, res.StatusCode)
			}
		}
		res := s.send(t, "POST", "/api/rides/request", []string{"victim"})
		wantHeader(t, res, "Ratelimit", `"ride-request.second";r=19;t=1`)
	})
}

const oneAtATime = `
rules:
  - name: busy
    per: global
    limits: [{in_flight: 1}]
`

// spellings of /api/rides/request, which has a rule for POST.
var spellings = []string{
	"/api/rides/request", "//api/rides/request", "/api//rides///request", "/api/./rides/request", "/api/x/../rides/request",
	"/./api/rides/request", "/../api/rides/request", "/api/rides/%72equest", "/api/rides/%52equest", "/%61pi/rides/request",
	"/api%2Frides%2Frequest", "/api%2frides/request", "/api/rides/request/", "/api/rides/request//", "/api/rides/request/.",
	"/API/rides/request", "/api/rides/Request", "/api/rides/request?a=1", "/api/rides/request;a=1", "/api/rides/request%3Fa=1",
	"/api/rides/request%00", "/api/rides/request%20", "/api\\rides\\request", "/api%5Crides%5Crequest", "/api/rides/x/%2e%2e/request",
	"/api/rides/%2e/request", "/files/../api/rides/request", "http://else/api/rides/request", "/api/rides/request#a",
}

// A runningService is a service that runs in a test.
type runningService struct {
	address string
	waiting chan struct{} // receives when a handler begins to wait
	release chan struct{} // closed when handlers may end
}

func start(t *testing.T, service Service, rules *policy.Rules) *runningService {
	t.Helper()
	now := time.Now()
	controller, err := admission.New(memstore.New(memstore.Options{Now: func() time.Time { return now }}), rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s := &runningService{address: listener.Addr().String(), waiting: make(chan struct{}), release: make(chan struct{})}
	serve := service(gate, func() {
		s.waiting <- struct{}{}
		<-s.release
	})
	go serve(listener)
	return s
}

// send sends a request with exactly this target, which the client of net/http would change. keys
// are the values of X-API-Key; nil: one key, "one".
func (s *runningService) send(t *testing.T, method, target string, keys []string) *http.Response {
	t.Helper()
	return s.sendBody(t, method, target, keys, "")
}

func (s *runningService) sendBody(t *testing.T, method, target string, keys []string, body string) *http.Response {
	t.Helper()
	connection, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(time.Minute))
	if keys == nil {
		keys = []string{"one"}
	}
	request := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nContent-Length: %d\r\n", method, target, len(body))
	for _, key := range keys {
		request += "X-API-Key: " + key + "\r\n"
	}
	io.WriteString(connection, request+"\r\n"+body)
	res, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Errorf("%s %s: %v", method, target, err)
		return &http.Response{Status: "no answer", Body: http.NoBody}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, target, err)
	}
	res.Body = io.NopCloser(strings.NewReader(string(answer)))
	return res
}

// wantStatus sends requests one after another. If one of them gets another status, the test fails.
func (s *runningService) wantStatus(t *testing.T, times int, path string, status int) {
	t.Helper()
	for i := range times {
		if res := s.send(t, "GET", path, nil); res.StatusCode != status {
			t.Errorf("GET %s, request %d of %d: %s; want %d", path, i+1, times, res.Status, status)
		}
	}
}

func wantHeader(t *testing.T, res *http.Response, name, value string) {
	t.Helper()
	if got := res.Header[name]; len(got) != 1 || got[0] != value {
		t.Errorf("%s: the header %s is %q; want %q", res.Status, name, got, value)
	}
}

// rides returns rules that limit POST /api/rides/request for each API key: to 10 per second, with a
// burst of 20.
func rides(t *testing.T) *policy.Rules {
	t.Helper()
	return parse(t, `
rules:
  - name: ride-request
    match: {method: POST, path: /api/rides/request}
    per: {first_of: [{key: header X-API-Key}, ip]}
    limits: [{rate: 10/s, burst: 20}]
`)
}

func parse(t *testing.T, text string) *policy.Rules {
	t.Helper()
	p, err := policyfile.Parse("test.yaml", []byte(text), nil, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		t.Fatal(err)
	}
	return p.Rules
}
