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

// A scenario is how many riders there are and what they do.
type scenario struct {
	riders      int
	arrive      time.Duration // within which they come, evenly
	last        time.Duration // after which nobody asks any more; who waits for an answer, waits on
	least, most time.Duration // how long riders wait between an answer and the next request
	timeout     time.Duration // after which riders give up a request
	endpoints   []endpoint
}

// An endpoint is asked in proportion to its weight.
type endpoint struct {
	weight int
	method string
	path   string
}

// run sends the riders to a service, and tells what became of them.
func (s *scenario) run(by http.RoundTripper, to *url.URL, service *backend) *result {
	result := newResult()
	start := time.Now()
	end := start.Add(s.last)
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	var riders sync.WaitGroup
	for i := range s.riders {
		r := rider{scenario: s, by: by, to: to, id: fmt.Sprintf("R-%04d", i), result: result}
		riders.Go(func() {
			for r.pause(ctx, s.arrive*time.Duration(i)/time.Duration(s.riders)); ctx.Err() == nil; {
				r.pause(ctx, r.ask())
			}
		})
	}
	<-ctx.Done()
	result.backend = float64(service.asked.Load()) / s.last.Seconds()
	riders.Wait()
	if t, ok := by.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	return result
}

// A rider is a good client: when it is denied, it comes back when it is told to, and a little
// later.
type rider struct {
	*scenario
	by     http.RoundTripper
	to     *url.URL
	id     string
	result *result
}

// ask sends one request, and says how long to wait until the next.
func (r *rider) ask() time.Duration {
	e := r.pick()
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	request := (&http.Request{Method: e.method, URL: &url.URL{Scheme: r.to.Scheme, Host: r.to.Host, Path: e.path}, Header: http.Header{"X-User-Id": {r.id}}}).WithContext(ctx)
	start := time.Now()
	status, retry := r.send(request)
	r.result.note(status, time.Since(start))
	if status == http.StatusTooManyRequests {
		return retry + rand.N(time.Second)
	}
	return r.least + rand.N(r.most-r.least)
}

// send is the answer's status, 0 if there is none, and its Retry-After.
func (r *rider) send(request *http.Request) (status int, retry time.Duration) {
	answer, err := r.by.RoundTrip(request)
	if err != nil {
		return 0, 0
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, 0
	}
	seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if err != nil {
		seconds = 1
	}
	return answer.StatusCode, time.Duration(seconds) * time.Second
}

func (r *rider) pick() *endpoint {
	all := 0
	for _, e := range r.endpoints {
		all += e.weight
	}
	n := rand.IntN(all)
	for i := range r.endpoints {
		if n -= r.endpoints[i].weight; n < 0 {
			return &r.endpoints[i]
		}
	}
	panic("weights")
}

func (r *rider) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
