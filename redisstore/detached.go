package redisstore

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/lazy"
)

// A detached client returns from a call when the call's context ends, even if the client below does
// not: that may be dialing, waiting for a connection that others dial, or closing one. So calls run
// on goroutines of their own, the workers. If its caller goes away, a call goes on without it.
type detached struct {
	next      Client
	calls     *background
	abandoned atomic.Int64 // calls whose callers have gone, and that still run

	mu     sync.Mutex
	idle   []*worker // the last one that was used is the last
	closed bool
}

const (
	// maxAbandoned bounds the calls that go on after their callers have gone. While there are as
	// many, nothing is sent.
	maxAbandoned = 1024

	// idleFor is how long a worker stays without a call. A worker keeps its stack, which a new
	// goroutine would have to grow in each call.
	idleFor = 10 * time.Second

	// abandonedFor is how long such a call may go on: long enough to make a connection that others
	// will use.
	abandonedFor = 5 * time.Second

	// overtime is how long a client may wait for a reply beyond the caller's deadline. Such a call
	// blocks others on its connection.
	overtime = time.Second
)

var errAbandoned = fmt.Errorf("%d calls that were given up still wait for the server", maxAbandoned)

func (d *detached) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return d.run(&remote{Context: ctx, method: evalSha, text: digest, keys: keys, args: args})
}

func (d *detached) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return d.run(&remote{Context: ctx, method: eval, text: script, keys: keys, args: args})
}

func (d *detached) Load(ctx context.Context, key string, scripts []Script) error {
	_, err := d.run(&remote{Context: ctx, method: load, text: key, scripts: scripts})
	return err
}

func (d *detached) Ping(ctx context.Context) error {
	_, err := d.run(&remote{Context: ctx, method: ping})
	return err
}

func (d *detached) Sharded(ctx context.Context) (bool, error) { return d.next.Sharded(ctx) }

// Close ends the calls and their callers' waits. It waits for the calls that end with their
// contexts, for a second at most.
func (d *detached) Close() error {
	d.calls.end()
	d.closeIdle()
	err := d.next.Close()
	ended := make(chan struct{})
	go func() {
		d.calls.wait()
		close(ended)
	}()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
	return err
}

// run returns when the call has ended, when its caller's context ends, or when the client is
// closed.
func (d *detached) run(r *remote) (string, error) {
	if err := r.Context.Err(); err != nil {
		return "", tooLate(err)
	}
	if d.abandoned.Load() >= maxAbandoned {
		return "", notSent(errAbandoned)
	}
	if !d.calls.enter() {
		return "", notSent(errClosed)
	}
	w := d.worker()
	r.done = w.done
	w.calls <- r
	if err := wait(r.Context, w.ended, d.calls.life.Done()); err != nil && r.abandon(d, w) {
		return "", err
	}
	d.keep(w)
	return r.reply, r.err
}

// A worker makes one call after the other.
type worker struct {
	calls chan *remote
	ended chan struct{} // receives once for each call that has ended
	done  chan struct{} // of the contexts of its calls; closed only if its last call was abandoned
}

// worker returns a worker that is idle, or a new one.
func (d *detached) worker() *worker {
	d.mu.Lock()
	if last := len(d.idle) - 1; last >= 0 {
		w := d.idle[last]
		d.idle = d.idle[:last]
		d.mu.Unlock()
		return w
	}
	d.mu.Unlock()
	w := &worker{calls: make(chan *remote, 1), ended: make(chan struct{}, 1), done: make(chan struct{})}
	go w.work(d)
	return w
}

// work ends when calls is closed, or when the worker was idle for idleFor.
func (w *worker) work(d *detached) {
	timer := time.NewTimer(idleFor)
	defer timer.Stop()
	for {
		select {
		case r, ok := <-w.calls:
			if !ok {
				return
			}
			r.run(d)
			w.ended <- struct{}{}
		case <-timer.C:
			if d.drop(w) {
				return
			}
		}
		timer.Reset(idleFor)
	}
}

// keep takes back a worker whose call has ended.
func (d *detached) keep(w *worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		close(w.calls)
		return
	}
	d.idle = append(d.idle, w)
}

// drop removes a worker that is idle, and returns false if it is not.
func (d *detached) drop(w *worker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.idle, w)
	if i < 0 {
		return false
	}
	d.idle = slices.Delete(d.idle, i, i+1)
	return true
}

func (d *detached) closeIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, w := range d.idle {
		close(w.calls)
	}
	d.idle = nil
}

// A remote is a running call, and also the context of that call. This context lasts longer than the
// caller's: for abandonedFor at most after the caller has gone. So a connection that is made for
// one caller serves others too, and a reply that has arrived is read although a deadline has
// passed. Its Err is the caller's: once the caller has gone, nothing more is sent.
type remote struct {
	context.Context               // the caller's
	done            chan struct{} // the worker's

	method     method
	text       string // the digest, the script, or the key
	keys, args []string
	scripts    []Script

	state atomic.Int32 // running, hasEnded or wasAbandoned
	reply string
	err   error
}

// A method is one of a Client.
type method int

const (
	evalSha method = iota
	eval
	load
	ping
)

const (
	running int32 = iota
	hasEnded
	wasAbandoned
)

func (r *remote) run(d *detached) {
	defer d.calls.leave()
	defer func() {
		if p := recover(); p != nil {
			r.reply, r.err = "", fmt.Errorf("the client panicked: %v\n%s", p, debug.Stack())
		}
		if !r.state.CompareAndSwap(running, hasEnded) {
			d.abandoned.Add(-1)
		}
	}()
	switch r.method {
	case evalSha:
		r.reply, r.err = d.next.EvalSha(r, r.text, r.keys, r.args)
	case eval:
		r.reply, r.err = d.next.Eval(r, r.text, r.keys, r.args)
	case load:
		r.err = d.next.Load(r, r.text, r.scripts)
	case ping:
		r.err = d.next.Ping(r)
	}
}

// abandon leaves the call to itself, unless it has ended. Its worker ends with it.
func (r *remote) abandon(d *detached, w *worker) bool {
	d.abandoned.Add(1)
	if !r.state.CompareAndSwap(running, wasAbandoned) {
		d.abandoned.Add(-1)
		<-w.ended
		return false
	}
	close(w.calls)
	go func() {
		timer := time.NewTimer(abandonedFor)
		defer timer.Stop()
		select {
		case <-w.ended:
			return
		case <-timer.C:
		case <-d.calls.life.Done():
		}
		close(w.done)
	}()
	return true
}

func (r *remote) Done() <-chan struct{} { return r.done }

// Err is not nil once nobody waits for the call.
func (r *remote) Err() error {
	if err := r.Context.Err(); err != nil || r.state.Load() != wasAbandoned {
		return err
	}
	return context.Canceled // the store was closed
}

// Deadline is the caller's and overtime, so that it does not matter if this process is late. There
// always is one: otherwise rueidis starts two goroutines for the connection.
func (r *remote) Deadline() (time.Time, bool) {
	at, ok := r.Context.Deadline()
	if !ok {
		at = time.Now().Add(time.Hour)
	}
	return at.Add(overtime), true
}

// wait waits until something is done, and returns nil; or until ctx ends or the store is closed,
// and returns why.
func wait(ctx context.Context, done, closed <-chan struct{}) error {
	l, ok := ctx.(lazy.Context)
	if !ok {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-closed:
			return errClosed
		}
	}
	gone, at := l.Lazy()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-gone:
			return ctx.Err()
		case <-closed:
			return errClosed
		case <-timer.C:
		}
		_, at = l.Lazy()
		left := time.Until(at)
		if left <= 0 {
			return context.DeadlineExceeded
		}
		timer.Reset(left)
	}
}
