package redisstore

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// A detached client ends its calls with their contexts, whatever the client below does: that may
// have to dial, to wait for a connection that others dial, or to close one before it returns. So
// each call has a goroutine of its own. A caller that goes away leaves its call behind.
type detached struct {
	next      Client
	calls     *background
	abandoned atomic.Int64 // calls whose callers have gone, and that still run
}

const (
	// maxAbandoned bounds the goroutines of calls that were left behind. As long as there are as
	// many, nothing is sent.
	maxAbandoned = 1024

	// abandonedFor is how long a call may go on that was left behind: long enough for a connection
	// that others will use, too.
	abandonedFor = 5 * time.Second

	// overtime is how long a client may wait for a reply beyond the caller's deadline. A call that
	// is left behind blocks others on its connection.
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

// A remote call is one that runs. It is also the context of its own, which differs from the
// caller's: it goes on after the caller has gone, for abandonedFor at most. So a connection that is
// being made for one caller is there for others; and a reply that has come is read, although a
// deadline has passed meanwhile. Its Err is the caller's: once it is gone, nothing is sent any
// more.
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

// Deadline is later than the caller's by so much that it does not matter when this process is late.
// There always is one: otherwise rueidis starts two goroutines for the connection.
func (r *remote) Deadline() (time.Time, bool) {
	at, ok := r.Context.Deadline()
	if !ok {
		at = time.Now().Add(time.Hour)
	}
	return at.Add(overtime), true
}

// A lazy context has a deadline, and no timer for it. The deadline may be put off; when it has
// come, Lazy tells again.
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
