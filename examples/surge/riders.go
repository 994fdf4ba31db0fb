package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// A scenario describes the riders.
type scenario struct {
	isShort            bool // shortened, so times are not checked
	riders             int
	arrivalPeriod      time.Duration // riders arrive evenly in it
	duration           time.Duration // no request is sent after this time; those in flight continue
	minPause, maxPause time.Duration // pause of a rider between a response and the next request
	timeout            time.Duration // of a request
	poolTimeout        time.Duration // how long a request waits for a database connection at most
	areImpatient       bool          // riders ignore 429 and Retry-After
	endpoints          []endpoint
}

// An endpoint gets requests in proportion to its weight.
type endpoint struct {
	name   string // of its rule
	weight int
	method string
	path   string
}

// run makes the riders send requests to a target, and returns the result. service is the backend
// behind the target, or nil if it is unknown.
func (s *scenario) run(transport http.RoundTripper, target *url.URL, service *backend) *result {
	result := newResult(len(s.endpoints))
	start := time.Now()
	end := start.Add(s.duration)
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	var riders sync.WaitGroup
	for i := range s.riders {
		r := rider{scenario: s, transport: transport, target: target, id: fmt.Sprintf("R-%04d", i), result: result}
		arrival := s.arrivalPeriod * time.Duration(i) / time.Duration(s.riders)
		riders.Go(func() {
			r.pause(ctx, arrival)
			for ctx.Err() == nil {
				r.pause(ctx, r.nextRequest())
			}
		})
	}
	<-ctx.Done()
	if service != nil {
		l := service.loadSince(s.duration)
		result.backend = &l
	}
	riders.Wait()
	if t, ok := transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	return result
}

// A rider is a client. After a denial, a patient one waits for Retry-After, and a little longer. An
// impatient one comes back as after any other response.
type rider struct {
	*scenario
	transport http.RoundTripper
	target    *url.URL
	id        string
	result    *result
}

// nextRequest sends one request, and returns how long to wait before the next.
func (r *rider) nextRequest() time.Duration {
	i := r.pick()
	e := r.endpoints[i]
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	request := (&http.Request{Method: e.method, URL: &url.URL{Scheme: r.target.Scheme, Host: r.target.Host, Path: e.path}, Header: http.Header{"X-User-Id": {r.id}}}).WithContext(ctx)
	start := time.Now()
	status, retry := r.send(request)
	r.result.record(i, status, time.Since(start))
	if status == http.StatusTooManyRequests && !r.areImpatient {
		return retry + rand.N(time.Second)
	}
	return r.minPause + rand.N(r.maxPause-r.minPause)
}

// send sends a request. It returns the status of the response, or 0 if none came, and the
// Retry-After of the response.
func (r *rider) send(request *http.Request) (status int, retry time.Duration) {
	response, err := r.transport.RoundTrip(request)
	if err != nil {
		return 0, 0
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, 0
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil {
		seconds = 1
	}
	return response.StatusCode, time.Duration(seconds) * time.Second
}

// pick chooses an endpoint at random, by weight, and returns its index.
func (r *rider) pick() int {
	all := 0
	for _, e := range r.endpoints {
		all += e.weight
	}
	n := rand.IntN(all)
	for i := range r.endpoints {
		if n -= r.endpoints[i].weight; n < 0 {
			return i
		}
	}
	panic("the endpoints have no weight")
}

func (r *rider) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
