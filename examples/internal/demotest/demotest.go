// Package demotest is the law for examples that put a gate into a framework.
package demotest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A Service makes a framework's service of the rides with a gate. It has some more routes, for GET,
// that do things as the framework's users do them:
//
//	/fails       answers 502
//	/panics      panics
//	/waits       calls wait
//	/costs       answers with the header X-Cost: 5
//	/settles     settles the cost of 5 by its context
//	/files/**    answers 200, by a route that takes all paths that begin so
type Service func(gate *httplimit.Gate, wait func()) (serve func(net.Listener) error)

// Run tests a Service.
func Run(t *testing.T, service Service) {
	t.Run("TwentyOfABurstOf25Pass", func(t *testing.T) {
		s := start(t, service, rides(t))
		answers := make(map[int]int)
		for range 25 {
			answer := s.ask(t, "POST", "/api/rides/request", nil)
			answers[answer.StatusCode]++
			if answer.StatusCode == http.StatusTooManyRequests {
				wantHeader(t, answer, "Retry-After", "1")
				wantHeader(t, answer, "Content-Type", "application/problem+json")
				wantHeader(t, answer, "Ratelimit", `"ride-request.second";r=0;t=1`)
			} else {
				wantHeader(t, answer, "Ratelimit-Policy", `"ride-request.second";q=20;w=2`)
			}
		}
		if answers[http.StatusOK] != 20 || answers[http.StatusTooManyRequests] != 5 {
			t.Errorf("the answers by status: %v; they should be 20 of 200 and 5 of 429", answers)
		}
	})

	t.Run("WhatIsNotListedIsNotLimited", func(t *testing.T) {
		s := start(t, service, rides(t))
		for range 50 {
			if answer := s.ask(t, "GET", "/files/a", nil); answer.StatusCode != http.StatusOK || answer.Header["Ratelimit"] != nil {
				t.Fatalf("%s with %v", answer.Status, answer.Header)
			}
		}
	})

	t.Run("OnlyFailuresPay", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: failures
    per: everyone
    limits: [{rate: 3/h, on_status: 5xx}]
`))
		s.want(t, 10, "/files/a", http.StatusOK)
		s.want(t, 3, "/fails", http.StatusBadGateway)
		s.want(t, 1, "/fails", http.StatusTooManyRequests)
		s.want(t, 1, "/files/a", http.StatusTooManyRequests)
	})

	t.Run("MissingRoutesAreAnsweredTruly", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: scanners
    per: everyone
    limits: [{rate: 3/h, on_status: 404}]
`))
		s.want(t, 10, "/files/a", http.StatusOK)
		s.want(t, 3, "/wp-admin", http.StatusNotFound)
		s.want(t, 1, "/wp-admin", http.StatusTooManyRequests)
	})

	t.Run("APanicGivesItsSlotBack", func(t *testing.T) {
		s := start(t, service, parse(t, oneAtATime))
		s.want(t, 5, "/panics", http.StatusInternalServerError)
		s.want(t, 5, "/files/a", http.StatusOK)
	})

	t.Run("ASlotIsHeldUntilTheHandlerEnds", func(t *testing.T) {
		s := start(t, service, parse(t, oneAtATime))
		first := make(chan *http.Response)
		go func() { first <- s.ask(t, "GET", "/waits", nil) }()
		<-s.waiting
		s.want(t, 1, "/files/a", http.StatusTooManyRequests)
		close(s.release)
		if answer := <-first; answer.StatusCode != http.StatusOK {
			t.Errorf("the one that was let in: %s", answer.Status)
		}
		s.want(t, 1, "/files/a", http.StatusOK)
	})

	for _, path := range []string{"/costs", "/settles"} {
		t.Run("TheTrueCostOf"+path[1:]+"IsCharged", func(t *testing.T) {
			s := start(t, service, parse(t, `
rules:
  - name: costs
    per: everyone
    limits: [{rate: 10/h, cost: {actual: X-Cost}}]
`))
			s.want(t, 2, path, http.StatusOK)
			s.want(t, 1, path, http.StatusTooManyRequests)
		})
	}

	t.Run("NoSpellingOfAPathIsAWayAround", func(t *testing.T) {
		spelled := 0
		for _, spelling := range spellings {
			s := start(t, service, rides(t))
			passed := 0
			for range 30 {
				if answer := s.ask(t, "POST", spelling, nil); answer.StatusCode == http.StatusOK {
					passed++
				}
			}
			if passed > 20 {
				t.Errorf("POST %s: %d of 30 were answered 200; the limit is 20", spelling, passed)
			}
			spelled++
		}
		t.Logf("counted: %d spellings of a path", spelled)
	})

	t.Run("ARouteForAllPathsIsNoWayAround", func(t *testing.T) {
		s := start(t, service, parse(t, `
rules:
  - name: files
    match: {path: /files/**}
    per: everyone
    limits: [{rate: 3/h}]
`))
		passed := 0
		for range 10 {
			for _, spelling := range []string{"/files/../else", "/files/a/../../else", "/files/%2e%2e/else", "//files/a", "/./files/a", "/%66iles/a"} {
				if answer := s.ask(t, "GET", spelling, nil); answer.StatusCode == http.StatusOK {
					passed++
				}
			}
		}
		if passed > 3 {
			t.Errorf("%d were served by the route that may be asked 3 times", passed)
		}
	})

	t.Run("AKeyThatIsSentTwiceIsMalformed", func(t *testing.T) {
		s := start(t, service, rides(t))
		for i := range 30 {
			keys := []string{fmt.Sprint("mine", i), "victim"}
			if i%2 == 1 {
				slices.Reverse(keys)
			}
			if answer := s.ask(t, "POST", "/api/rides/request", keys); answer.StatusCode != http.StatusBadRequest {
				t.Fatalf("request %d with two keys got %d, want 400", i, answer.StatusCode)
			}
		}
		answer := s.ask(t, "POST", "/api/rides/request", []string{"victim"})
		wantHeader(t, answer, "Ratelimit", `"ride-request.second";r=19;t=1`)
	})
}

const oneAtATime = `
rules:
  - name: busy
    per: everyone
    limits: [{in_flight: 1}]
`

// The rule is for POST /api/rides/request.
var spellings = []string{
	"/api/rides/request", "//api/rides/request", "/api//rides///request", "/api/./rides/request", "/api/x/../rides/request",
	"/./api/rides/request", "/../api/rides/request", "/api/rides/%72equest", "/api/rides/%52equest", "/%61pi/rides/request",
	"/api%2Frides%2Frequest", "/api%2frides/request", "/api/rides/request/", "/api/rides/request//", "/api/rides/request/.",
	"/API/rides/request", "/api/rides/Request", "/api/rides/request?a=1", "/api/rides/request;a=1", "/api/rides/request%3Fa=1",
	"/api/rides/request%00", "/api/rides/request%20", "/api\\rides\\request", "/api%5Crides%5Crequest", "/api/rides/x/%2e%2e/request",
	"/api/rides/%2e/request", "/files/../api/rides/request", "http://else/api/rides/request", "/api/rides/request#a",
}

// A running is a service that runs.
type running struct {
	address          string
	waiting, release chan struct{} // a handler has begun to wait; they may end
}

func start(t *testing.T, service Service, rules *policy.Rules) *running {
	t.Helper()
	now := time.Now()
	gate, err := httplimit.New(httplimit.Options{
		Store: memstore.New(memstore.Options{Now: func() time.Time { return now }}),
		Rules: func() *policy.Rules { return rules },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s := &running{address: listener.Addr().String(), waiting: make(chan struct{}), release: make(chan struct{})}
	go service(gate, func() { s.waiting <- struct{}{}; <-s.release })(listener)
	return s
}

// ask sends the target as it is, which net/http's client would not. Without keys it has one of its
// own.
func (s *running) ask(t *testing.T, method, target string, keys []string) *http.Response {
	t.Helper()
	connection, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(30 * time.Second))
	if keys == nil {
		keys = []string{"one"}
	}
	request := method + " " + target + " HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nContent-Length: 0\r\n"
	for _, key := range keys {
		request += "X-API-Key: " + key + "\r\n"
	}
	io.WriteString(connection, request+"\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Errorf("%s %s: %v", method, target, err)
		return &http.Response{Status: "no answer"}
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, target, err)
	}
	answer.Body = io.NopCloser(strings.NewReader(string(body)))
	return answer
}

// want asks some times and wants all to be answered so.
func (s *running) want(t *testing.T, times int, path string, status int) {
	t.Helper()
	for i := range times {
		if answer := s.ask(t, "GET", path, nil); answer.StatusCode != status {
			t.Errorf("GET %s, number %d: %s, not %d", path, i+1, answer.Status, status)
		}
	}
}

func wantHeader(t *testing.T, answer *http.Response, name, value string) {
	t.Helper()
	if got := answer.Header[name]; len(got) != 1 || got[0] != value {
		t.Errorf("%s: the header %s is %q, not %q", answer.Status, name, got, value)
	}
}

// rides are the rules that the examples have.
func rides(t *testing.T) *policy.Rules {
	t.Helper()
	text, err := os.ReadFile("../rides.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(text))
}

func parse(t *testing.T, text string) *policy.Rules {
	t.Helper()
	config, err := policy.Parse("test.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := config.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}
