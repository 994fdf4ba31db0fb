// Package load sends requests to a server at planned times, and reports what the server answered.
// A slow server does not delay the requests of a stream. Latencies count from the planned time, so
// requests that wait in the client are not left out.
package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simulate"
)

// Options configure Run. Arrivals, Weights and Send must be set.
type Options struct {
	Arrivals *simulate.Arrivals
	Seed     uint64 // of random gaps and targets
	Weights  []int  // how often each target is chosen, relative to the others

	Clients               int64          // that the requests of streams stand for, in turn. Default: 1
	ShouldHonorRetryAfter bool           // clients of the Arrivals wait for the Retry-After of a denial
	Limit                 *penstock.Plan // of each client at each target. Default: those that the answers state
	MaxInFlight           int            // further requests wait in the client. Default: 10,000
	Allowed               []int          // statuses of 400 or more that say that limits admitted the request. Default: none

	// Send sends a request of a client to a target, and returns its answer. Clients count from 1.
	Send func(ctx context.Context, target int, client int64) Answer
}

// An Answer is what came back. Without a Status, Failure says why there was none.
type Answer struct {
	Status     int
	RetryAfter time.Duration
	Policies   string // the field RateLimit-Policy
	Failure    Failure
	Error      error
}

// A Failure is the reason why there was no answer.
type Failure string

// The reasons. The last two are the client's own.
const (
	Timeout     Failure = "timeout"
	Refused     Failure = "connection refused"
	Broken      Failure = "connection broken"
	Other       Failure = "another error"
	Interrupted Failure = "interrupted"
	NoFiles     Failure = "too many open files"
	NoPorts     Failure = "no free port"
)

const (
	grace = time.Second // that requests in flight may take after an interruption

	// maxDelay is how late a request of a stream is still sent. So an overloaded test ends.
	maxDelay = 30 * time.Second
)

// A run is the state of one load test.
type run struct {
	Options
	start   time.Time
	slots   chan struct{} // has a value for each request in flight
	weight  int           // the sum of all weights
	turn    atomic.Int64  // of the clients of streams
	sending sync.WaitGroup
	tally   *tally
}

// Run sends the requests of the arrivals, and waits for their answers. If ctx ends, it sends no
// more, and reports what was answered.
func Run(ctx context.Context, o Options) *Report {
	o.Clients = max(o.Clients, 1)
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 10_000
	}
	r := &run{Options: o, start: time.Now(), slots: make(chan struct{}, o.MaxInFlight)}
	for _, w := range o.Weights {
		r.weight += w
	}
	r.tally = newTally(len(o.Weights), o.Limit)
	r.tally.allowedStatuses = o.Allowed
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()
	busyBefore := processTime()
	for i := range o.Arrivals.Items {
		it := &o.Arrivals.Items[i]
		r.tally.hasStream = r.tally.hasStream || !it.IsClients
		rng := func(n int64) *rand.Rand { return rand.New(rand.NewPCG(o.Seed+uint64(i), uint64(n))) }
		if !it.IsClients {
			r.sending.Go(func() { r.stream(ctx, requests, it, rng(0)) })
			continue
		}
		r.sending.Go(func() { // clients join later, so that few goroutines wait
			for n := range it.Count {
				at := it.From + it.Join(n)
				if at >= it.To || !r.sleep(ctx, at) {
					return
				}
				r.sending.Go(func() { r.client(ctx, requests, it, n+1, rng(n+1)) })
			}
		})
	}
	r.sending.Wait()
	return r.tally.report(time.Since(r.start), processTime()-busyBefore, ctx.Err() != nil)
}

// stream sends the requests of a stream, each at its time.
func (r *run) stream(ctx, requests context.Context, it *simulate.Item, rng *rand.Rand) {
	var freeAt time.Duration // when the last wait for a slot ended
	next := it.Stream(rng)
	for at, ok := next(); ok && r.sleepExactly(ctx, at); at, ok = next() {
		if time.Since(r.start)-at > maxDelay {
			r.tally.unsent.Add(1)
			continue
		}
		hasWaited, err := r.acquire(ctx)
		if err != nil {
			return
		}
		if hasWaited {
			freeAt = time.Since(r.start)
		}
		s := &sample{target: r.pick(rng), client: r.turn.Add(1)%r.Clients + 1, due: at, planned: at, isQueued: at < freeAt}
		r.sending.Go(func() { r.send(requests, s) })
	}
}

// client sends the requests of a client, each some time after the answer to the one before. If the
// client's own timer is late, this is no latency: the client has only paused for longer.
func (r *run) client(ctx, requests context.Context, it *simulate.Item, client int64, rng *rand.Rand) {
	for at := time.Since(r.start); at < it.To && r.sleep(ctx, at); {
		s := &sample{target: r.pick(rng), client: client, due: at, planned: time.Since(r.start)}
		var err error
		if s.isQueued, err = r.acquire(ctx); err != nil {
			return
		}
		r.send(requests, s)
		pause := it.Think(rng)
		if r.ShouldHonorRetryAfter {
			pause = max(pause, s.answer.RetryAfter)
		}
		at = time.Since(r.start) + pause
	}
}

// sleep waits until a time since the start. It returns false if ctx has ended.
func (r *run) sleep(ctx context.Context, at time.Duration) bool {
	left := at - time.Since(r.start)
	if left <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleepExactly is sleep for a stream, whose requests must not be late.
func (r *run) sleepExactly(ctx context.Context, at time.Duration) bool {
	if !r.sleep(ctx, at-napLength) {
		return false
	}
	if left := at - time.Since(r.start); left > 0 {
		nap(left)
	}
	return r.sleep(ctx, at)
}

// acquire waits until fewer than MaxInFlight requests are in flight. send ends what it begins.
func (r *run) acquire(ctx context.Context) (hasWaited bool, err error) {
	select {
	case r.slots <- struct{}{}:
		return false, nil
	default:
	}
	select {
	case r.slots <- struct{}{}:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// pick chooses a target by its weight.
func (r *run) pick(rng *rand.Rand) int {
	n := rng.IntN(r.weight)
	for i, w := range r.Weights {
		if n -= w; n < 0 {
			return i
		}
	}
	return 0
}

// send sends the request of a sample, and completes the sample.
func (r *run) send(ctx context.Context, s *sample) {
	defer func() { <-r.slots }()
	s.sent = time.Since(r.start)
	s.answer = r.Send(ctx, s.target, s.client)
	if s.answer.Status == 0 && ctx.Err() != nil {
		s.answer.Failure = Interrupted
	}
	s.received = time.Since(r.start)
	r.tally.add(s)
}
