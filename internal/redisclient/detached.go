package redisclient

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/lazy"
)

// WrappedClient is the interface of the client that a Detached wraps, redisstore.Client.
type WrappedClient interface {
	EvalSha(ctx context.Context, digest string, keys, args []string) (string, error)
	Eval(ctx context.Context, script string, keys, args []string) (string, error)
	Load(ctx context.Context, key string, scripts []string) error
	Sharded(ctx context.Context) (bool, error)
	Ping(ctx context.Context) error
	Close() error
}

// A Detached client returns from a call when the call's context ends, even if the wrapped client
// does not. Some clients dial, close or wait for a connection beyond the deadline. So calls run on
// separate goroutines, the workers. A call continues if its caller leaves. A caller whose context
// never ends needs no worker, which would take a third of the time of a call to an idle server.
// Sharded has no worker either: the wrapped client must end it by itself.
type Detached struct {
	next      WrappedClient
	calls     *background.Group
	abandoned atomic.Int64 // calls whose callers have left, and that still run

	mu       sync.Mutex
	idle     []*worker // the one that was used last is at the end
	isClosed bool
}

func Detach(next WrappedClient) *Detached {
	return &Detached{next: next, calls: background.New()}
}

const (
	// maxAbandoned is how many calls may continue after their callers have left. At this number, no
	// further call is sent.
	maxAbandoned = 1024

	// workerIdleTime is how long a worker waits for a call before it ends. A worker keeps its grown
	// stack; a new goroutine would have to grow its stack in each call.
	workerIdleTime = 10 * time.Second

	// maxAbandonedTime is how long a call may continue without its caller: long enough to make a
	// connection that others will use.
	maxAbandonedTime = 5 * time.Second

	// overtime is how long a client may wait for a reply after the caller's deadline. During that
	// time the call blocks other calls on its connection.
	overtime = time.Second
)

var errAbandoned = fmt.Errorf("%d abandoned calls still wait for the server", maxAbandoned)

func (d *Detached) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return d.run(ctx, func(ctx context.Context) (string, error) { return d.next.EvalSha(ctx, digest, keys, args) })
}

func (d *Detached) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return d.run(ctx, func(ctx context.Context) (string, error) { return d.next.Eval(ctx, script, keys, args) })
}

func (d *Detached) Load(ctx context.Context, key string, scripts []string) error {
	_, err := d.run(ctx, func(ctx context.Context) (string, error) { return "", d.next.Load(ctx, key, scripts) })
	return err
}

func (d *Detached) Ping(ctx context.Context) error {
	_, err := d.run(ctx, func(ctx context.Context) (string, error) { return "", d.next.Ping(ctx) })
	return err
}

func (d *Detached) Sharded(ctx context.Context) (bool, error) { return d.next.Sharded(ctx) }

// Close cancels the calls, and their callers return. Close waits up to a second for the calls to
// end.
func (d *Detached) Close() error {
	d.calls.Cancel()
	d.closeIdle()
	err := d.next.Close()
	ended := make(chan struct{})
	go func() {
		d.calls.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
	}
	return err
}

// run returns when the call has ended, when its caller's context ends, or when the client is
// closed. If the context never ends, run returns only when the call has ended.
func (d *Detached) run(ctx context.Context, call func(context.Context) (string, error)) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", TooLate(err)
	}
	if d.abandoned.Load() >= maxAbandoned {
		return "", NotSent(errAbandoned)
	}
	if !d.calls.Enter() {
		return "", NotSent(ErrClosed)
	}
	if _, isLazy := ctx.(lazy.Context); !isLazy && ctx.Done() == nil { // the caller never leaves
		r := &runningCall{Context: ctx, client: d.calls.Context(), done: d.calls.Context().Done(), call: call}
		r.run(d)
		return r.reply, r.err
	}
	w := d.worker()
	r := &runningCall{Context: ctx, client: d.calls.Context(), done: w.canceled, call: call}
	w.calls <- r
	if err := lazy.Await(ctx, w.callEnded, d.calls.Context().Done()); err != nil && r.abandon(d, w) {
		return "", err
	}
	d.addIdle(w)
	return r.reply, r.err
}

// A worker makes one call after the other.
type worker struct {
	calls     chan *runningCall
	callEnded chan struct{} // receives once for each call that has ended
	canceled  chan struct{} // the Done channel of the contexts of its calls; closed only if the last call was abandoned
}

func (d *Detached) worker() *worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := len(d.idle) - 1; last >= 0 {
		w := d.idle[last]
		d.idle = d.idle[:last]
		return w
	}
	w := &worker{calls: make(chan *runningCall, 1), callEnded: make(chan struct{}, 1), canceled: make(chan struct{})}
	go w.work(d)
	return w
}

// work ends when calls is closed, or when the worker was idle for workerIdleTime.
func (w *worker) work(d *Detached) {
	timer := time.NewTimer(workerIdleTime) // reset for each call, because a new timer would be allocated
	for {
		select {
		case r, ok := <-w.calls:
			if !ok {
				return
			}
			r.run(d)
			w.callEnded <- struct{}{}
		case <-timer.C:
			if d.removeIdle(w) {
				return
			}
		}
		timer.Reset(workerIdleTime)
	}
}

// addIdle makes a worker idle after its call. If the client was closed, the worker ends.
func (d *Detached) addIdle(w *worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isClosed {
		close(w.calls)
		return
	}
	d.idle = append(d.idle, w)
}

func (d *Detached) removeIdle(w *worker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.idle, w)
	if i < 0 {
		return false
	}
	d.idle = slices.Delete(d.idle, i, i+1)
	return true
}

func (d *Detached) closeIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isClosed = true
	for _, w := range d.idle {
		close(w.calls)
	}
	d.idle = nil
}

// A runningCall is a call of the wrapped client, and also the context of that call. This context
// outlasts the caller by maxAbandonedTime at most. So a connection that was begun for one caller
// serves others too, and a reply that has arrived is read although a deadline has passed. Once the
// caller has left, Err returns an error, so the client sends nothing more.
type runningCall struct {
	context.Context                 // the caller's
	client          context.Context // ends with Close
	done            <-chan struct{} // the worker's; without a worker, that of client

	call func(context.Context) (string, error)

	state atomic.Int32 // callRuns, callEnded or callAbandoned
	reply string       // with err, the result once the call has ended
	err   error
}

// The states of a runningCall.
const (
	callRuns int32 = iota
	callEnded
	callAbandoned
)

func (r *runningCall) run(d *Detached) {
	defer d.calls.Leave()
	defer func() {
		if p := recover(); p != nil {
			r.reply, r.err = "", fmt.Errorf("the client panicked: %v\n%s", p, debug.Stack())
		}
		if !r.state.CompareAndSwap(callRuns, callEnded) {
			d.abandoned.Add(-1)
		}
	}()
	r.reply, r.err = r.call(r)
}

// abandon lets the call continue without its caller, and its worker ends after the call. If the
// call has already ended, abandon returns false.
func (r *runningCall) abandon(d *Detached, w *worker) bool {
	d.abandoned.Add(1)
	if !r.state.CompareAndSwap(callRuns, callAbandoned) {
		d.abandoned.Add(-1)
		<-w.callEnded
		return false
	}
	close(w.calls)
	go func() {
		select {
		case <-w.callEnded:
			return
		case <-time.After(maxAbandonedTime):
		case <-d.calls.Context().Done():
		}
		close(w.canceled)
	}()
	return true
}

func (r *runningCall) Done() <-chan struct{} { return r.done }

// Err is not nil once the caller has left, or the client was closed.
func (r *runningCall) Err() error {
	if err := cmp.Or(r.Context.Err(), r.client.Err()); err != nil || r.state.Load() != callAbandoned {
		return err
	}
	return context.Canceled
}

// Deadline is the caller's deadline plus overtime, so that a reply is read even if this process is
// late. For a caller without a deadline it is in an hour: if a context has no deadline, rueidis
// starts two goroutines for the call.
func (r *runningCall) Deadline() (time.Time, bool) {
	at, ok := r.Context.Deadline()
	if !ok {
		at = time.Now().Add(time.Hour)
	}
	return at.Add(overtime), true
}
