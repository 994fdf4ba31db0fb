package redisstore

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// A detached client returns from a call when the call's context ends, even if the client below does
// not: that may be dialing, waiting for a connection that others dial, or closing one. So each call
// has a goroutine of its own. If its caller goes away, the call goes on without it.
type detached struct {
	next      Client
	calls     *background
	abandoned atomic.Int64 // calls whose callers have gone, and that still run
}

const (
	// maxAbandoned bounds the calls that go on after their callers have gone. While there are as
	// many, nothing is sent.
	maxAbandoned = 1024

	// abandonedFor is how long such a call may go on: long enough to make a connection that others
	// will use.
	abandonedFor = 5 * time.Second

	// overtime is how long a client may wait for a reply beyond the caller's deadline. Such a call
	// blocks others on its connection.
	overtime = time.Second
)

var errAbandoned = fmt.Errorf("%d calls that were given up still wait for the server", maxAbandoned)

func (d *detached) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return d.run(ctx, func(ctx context.Context) (string, error) { return d.next.EvalSha(ctx, digest, keys, args) })
}

func (d *detached) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return d.run(ctx, func(ctx context.Context) (string, error) { return d.next.Eval(ctx, script, keys, args) })
}

func (d *detached) Load(ctx context.Context, key string, scripts []Script) error {
	_, err := d.run(ctx, func(ctx context.Context) (string, error) { return "", d.next.Load(ctx, key, scripts) })
	return err
}

func (d *detached) Ping(ctx context.Context) error {
	_, err := d.run(ctx, func(ctx context.Context) (string, error) { return "", d.next.Ping(ctx) })
	return err
}

func (d *detached) Sharded(ctx context.Context) (bool, error) { return d.next.Sharded(ctx) }

// Close ends the calls, and waits for those that end with their contexts.
func (d *detached) Close() error {
	d.calls.end()
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

// run returns when the call has ended, or when ctx ends.
func (d *detached) run(ctx context.Context, call func(context.Context) (string, error)) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", tooLate(err)
	}
	if d.abandoned.Load() >= maxAbandoned {
		return "", notSent(errAbandoned)
	}
	if !d.calls.enter() {
		return "", notSent(errClosed)
	}
	r := &remote{Context: ctx, ended: make(chan struct{})}
	if _, ok := ctx.(lazy); ok || ctx.Done() != nil {
		r.done = make(chan struct{})
	}
	go r.run(d, call)
	if err := wait(ctx, r.ended); err != nil && r.abandon(d) {
		return "", err
	}
	return r.text, r.err
}

// A remote is a running call, and also the context of that call. This context lasts longer than the
// caller's: for abandonedFor at most after the caller has gone. So a connection that is made for
// one caller serves others too, and a reply that has arrived is read although a deadline has
// passed. Its Err is the caller's: once the caller has gone, nothing more is sent.
type remote struct {
	context.Context               // the caller's
	done            chan struct{} // nil: the caller never goes

	state atomic.Int32 // running, hasEnded or wasAbandoned
	ended chan struct{}
	text  string
	err   error
}

const (
	running int32 = iota
	hasEnded
	wasAbandoned
)

func (r *remote) run(d *detached, call func(context.Context) (string, error)) {
	defer d.calls.leave()
	defer close(r.ended)
	defer func() {
		if p := recover(); p != nil {
			r.text, r.err = "", fmt.Errorf("the client panicked: %v\n%s", p, debug.Stack())
		}
		if !r.state.CompareAndSwap(running, hasEnded) {
			d.abandoned.Add(-1)
		}
	}()
	r.text, r.err = call(r)
}

// abandon leaves the call to itself, unless it has ended.
func (r *remote) abandon(d *detached) bool {
	d.abandoned.Add(1)
	if !r.state.CompareAndSwap(running, wasAbandoned) {
		d.abandoned.Add(-1)
		<-r.ended
		return false
	}
	go func() {
		timer := time.NewTimer(abandonedFor)
		defer timer.Stop()
		select {
		case <-r.ended:
			return
		case <-timer.C:
		case <-d.calls.life.Done():
		}
		close(r.done)
	}()
	return true
}

func (r *remote) Done() <-chan struct{} { return r.done }

// Deadline is the caller's and overtime, so that it does not matter if this process is late. There
// always is one: otherwise rueidis starts two goroutines for the connection.
func (r *remote) Deadline() (time.Time, bool) {
	at, ok := r.Context.Deadline()
	if !ok {
		at = time.Now().Add(time.Hour)
	}
	return at.Add(overtime), true
}

// A lazy context has a deadline, but no timer for it: those of package guard are lazy. The deadline
// may be extended: when it has come, Lazy must be called again.
type lazy interface {
	Lazy() (done <-chan struct{}, deadline time.Time)
}

// wait waits until something is done, and returns nil; or until ctx ends, and returns why.
func wait(ctx context.Context, done <-chan struct{}) error {
	l, ok := ctx.(lazy)
	if !ok {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
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
