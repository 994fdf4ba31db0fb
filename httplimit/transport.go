package httplimit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// A Transport is an http.RoundTripper that keeps outbound requests within limits and heeds what
// servers say of theirs. Its zero value has no limit of its own and heeds servers. Its fields must
// not be changed once it is in use; it may be used by many goroutines at once.
//
// A request is sent when the server that it goes to has not asked to be left alone, and the Limiter
// has granted its cost; it waits for both. A server asks to be left alone by
//
//   - Retry-After, in seconds or as a date, with status 429 or 503;
//   - RateLimit with nothing remaining and a time until there is more (draft-11: r=0 and t;
//     draft-07: remaining=0 and reset);
//   - RateLimit-Remaining or X-RateLimit-Remaining: 0 with a Reset, in seconds, as Unix time or as
//     a date.
//
// The first of these that says for how long counts, in this order. A date is understood by the
// server's own clock if it sends Date. Only Retry-After counts in an answer that a cache has kept
// (Age). A 429 that says none of this is taken for 1 second, and for twice as long each time that
// the next request gets such a 429 too, up to MaxPause.
//
// A request whose turn would not come in time is not sent, and fails with a [NotSentError].
type Transport struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper

	// Limiter limits the requests, before they are sent; over Redis it does so for all processes
	// together. Its limits must not lend slots (Concurrency). Default: none.
	Limiter *penstock.Limiter

	// Key says which requests belong together: they share the Limiter's key, and wait together if a
	// server asks them to. Default: the URL's host and port, in lower case.
	Key func(*http.Request) string

	// Cost is how many units of the Limiter a request takes. Default: 1.
	Cost func(*http.Request) int64

	// MaxWait is how long a request may wait to be sent, all its tries together. Default: 30 seconds;
	// below 0 none waits: it is sent at once or fails. A context that ends earlier ends the wait.
	MaxWait time.Duration

	// MaxWaiting is how many requests may wait at once. Those beyond it do not wait: they are sent at
	// once or fail. Default: 1,000.
	MaxWaiting int

	// MaxPause is how long a server may keep requests waiting by one answer; if it asks for longer, it
	// is asked again then. Default: 5 minutes.
	MaxPause time.Duration

	// FailClosed says not to send requests while the Limiter's store is unavailable. By default they
	// are sent: what they need from the server matters more than that the limit is kept exactly, and
	// the server says by itself when it has enough. A store with guard.Standard around it decides by
	// its own settings instead.
	FailClosed bool

	// Retries is how often a request is sent again that was answered with 429, or 503 if it is
	// idempotent, and the time that the server wants. It needs GetBody if it has a body, as
	// http.NewRequest sets it; the answer must have at most 64 KiB and the time lie within MaxWait.
	// Otherwise, and if its turn does not come, that answer is returned. Default: 0.
	Retries int

	mu      sync.Mutex
	waiting int
	pauses  map[string]pause
}

// A pause is how long a key's server wants no requests.
type pause struct {
	until  time.Time // when it wants requests again
	silent int       // how many answers with 429 in a row did not say for how long
}

const (
	maxPauses = 10_000   // keys whose servers asked to wait; the one that may go soonest makes room for the next
	maxKept   = 64 << 10 // bytes of an answer that is kept while its request is tried again
)

// A NotSentError says that a request was not sent, because its turn would not have come in time. It
// is safe to repeat.
type NotSentError struct {
	// Key is what the Transport's Key said of the request.
	Key string

	// RetryAfter is how long from now the same request would be sent, perhaps after waiting for up to
	// MaxWait. It is penstock.Never if the cost is larger than the limit, and 0 if that is unknown.
	RetryAfter time.Duration

	// Err is the reason: a *penstock.DeniedError, an error of the store, or that the server asked to
	// wait.
	Err error
}

func (e *NotSentError) Error() string {
	return fmt.Sprintf("httplimit: request under key %q not sent: %v", e.Key, e.Err)
}

func (e *NotSentError) Unwrap() error { return e.Err }

// ErrPaused in a NotSentError says that the server has asked to be left alone for a time.
var ErrPaused = errors.New("the server asked to wait")

// RoundTrip sends the request when its turn has come. An error is a *NotSentError, the cause of the
// request's context, or the Base's own.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, cost := t.key(r), int64(1)
	if t.Cost != nil {
		cost = t.Cost(r)
	}
	left := cmp.Or(t.MaxWait, 30*time.Second)
	waited, err := t.turn(r.Context(), key, cost, left)
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	for try, sent := 0, r; ; try++ {
		answer, err := t.base().RoundTrip(sent)
		if err != nil {
			return nil, err
		}
		pause, said := t.heed(key, answer)
		left -= waited
		if try >= t.Retries || !said || pause > left || !mayRepeat(r, answer.StatusCode) || !keep(answer) {
			return answer, nil
		}
		waited, err = t.turn(r.Context(), key, cost, left)
		if r.Context().Err() != nil {
			return nil, context.Cause(r.Context())
		}
		if err != nil {
			return answer, nil
		}
		again := *r
		if r.Body != nil && r.GetBody != nil {
			if again.Body, err = r.GetBody(); err != nil {
				return answer, nil
			}
		}
		sent = &again
	}
}

// CloseIdleConnections closes those of the Base, as http.Client.CloseIdleConnections asks for.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// turn waits until a request may be sent, at most for patience, and charges the Limiter. It tells
// how long that took.
func (t *Transport) turn(ctx context.Context, key string, cost int64, patience time.Duration) (waited time.Duration, err error) {
	start := time.Now()
	if patience > 0 && t.join() {
		defer t.leave()
	} else {
		patience = 0
	}
	end := start.Add(patience)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	if err := t.waitForServer(ctx, key, end); err != nil {
		return 0, err
	}
	charged, err := t.charge(ctx, key, cost, end)
	if err != nil {
		return 0, err
	}
	if err := t.waitForServer(ctx, key, end); err != nil { // it may have asked while the Limiter was waited for
		if charged {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			t.Limiter.Refund(ctx, key, cost) // if it fails, the cost stays charged, as if sent
		}
		return 0, err
	}
	return time.Since(start), nil
}

// waitForServer returns when the key's server has not asked to wait, or cannot be waited for until
// end.
func (t *Transport) waitForServer(ctx context.Context, key string, end time.Time) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause := t.pause(key)
		if pause <= 0 {
			return nil
		}
		spare := time.Until(end) - pause
		if spare < 0 {
			return &NotSentError{key, pause, fmt.Errorf("%w: another %v, and the request may wait for %v",
				ErrPaused, pause.Round(time.Millisecond), max(pause+spare, 0).Round(time.Millisecond))}
		}
		// Those who waited together do not all come back together.
		timer := time.NewTimer(pause + rand.N(min(pause/10, time.Second, spare)+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// charge has the Limiter grant the cost, at the latest at end.
func (t *Transport) charge(ctx context.Context, key string, cost int64, end time.Time) (charged bool, err error) {
	if t.Limiter == nil {
		return false, nil
	}
	if time.Until(end) > 0 {
		bounded, cancel := context.WithDeadline(ctx, end)
		defer cancel()
		err = t.Limiter.WaitN(bounded, key, cost)
	} else {
		var d penstock.Decision
		if d, err = t.Limiter.AllowN(ctx, key, cost); err == nil && !d.Allowed {
			err = &penstock.DeniedError{Decision: d}
		}
	}
	var denied *penstock.DeniedError
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.As(err, &denied):
		return false, &NotSentError{key, denied.Decision.RetryAfter(), err}
	case errors.Is(err, penstock.ErrUnavailable) && !t.FailClosed:
		return false, nil
	}
	return false, &NotSentError{key, 0, fmt.Errorf("its turn did not come: %w", err)}
}

// heed remembers for how long the server wants no more requests: if it says so, or answers 429.
func (t *Transport) heed(key string, answer *http.Response) (wait time.Duration, said bool) {
	now := time.Now()
	wait, said = serverSays(answer.StatusCode, answer.Header, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	p, known := t.pauses[key]
	switch {
	case answer.StatusCode != http.StatusTooManyRequests || said:
		p.silent = 0
	case now.Before(p.until): // sent before the answer that said so
		return p.until.Sub(now), true
	default:
		wait, said = firstBackoff<<min(p.silent, maxDoublings), true
		p.silent++
	}
	wait = max(min(wait, cmp.Or(t.MaxPause, 5*time.Minute)), 0)
	if until := now.Add(wait); until.After(p.until) {
		p.until = until
	}
	t.keepLocked(key, p, known, now)
	return wait, said
}

// How long the server of a 429 without a time is left alone: at first, and how often that is
// doubled at most.
const (
	firstBackoff = time.Second
	maxDoublings = 30
)

// keepLocked remembers a pause, unless there is nothing in it.
func (t *Transport) keepLocked(key string, p pause, known bool, now time.Time) {
	if p.silent == 0 && !p.until.After(now) {
		delete(t.pauses, key)
		return
	}
	if !known && len(t.pauses) >= maxPauses {
		t.makeRoomLocked(now)
	}
	if t.pauses == nil {
		t.pauses = make(map[string]pause)
	}
	t.pauses[key] = p
}

// pause is how long the key's server wants no more requests.
func (t *Transport) pause(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.pauses[key]
	if !ok {
		return 0
	}
	left := time.Until(p.until)
	if left <= 0 && p.silent == 0 {
		delete(t.pauses, key)
	}
	return left
}

// makeRoomLocked forgets the pauses that are over, or else the one that ends first.
func (t *Transport) makeRoomLocked(now time.Time) {
	var first string
	var ends time.Time
	for key, p := range t.pauses {
		if !p.until.After(now) {
			delete(t.pauses, key)
		} else if ends.IsZero() || p.until.Before(ends) {
			first, ends = key, p.until
		}
	}
	if len(t.pauses) >= maxPauses {
		delete(t.pauses, first)
	}
}

func (t *Transport) join() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting >= cmp.Or(t.MaxWaiting, 1000) {
		return false
	}
	t.waiting++
	return true
}

func (t *Transport) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting--
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// key is what the Key option says, or the host.
func (t *Transport) key(r *http.Request) string {
	if t.Key != nil {
		return t.Key(r)
	}
	if r.URL == nil {
		return "" // the Base says what is wrong
	}
	return strings.ToLower(r.URL.Host)
}

// mayRepeat tells whether a request that was answered so can be sent again and does no harm twice.
func mayRepeat(r *http.Request, status int) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable && idempotent(r)
}

// idempotent tells what net/http itself would send again.
func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// keep reads an answer's body, so that its connection is free for others and the answer can still
// be returned. It is false if the body cannot be read or is too long; then nothing of it is lost.
func keep(answer *http.Response) bool {
	if answer.Body == nil {
		return true
	}
	read, err := io.ReadAll(io.LimitReader(answer.Body, maxKept+1))
	if err == nil && len(read) <= maxKept {
		answer.Body.Close()
		answer.Body = io.NopCloser(bytes.NewReader(read))
		return true
	}
	rest := io.Reader(answer.Body)
	if err != nil {
		rest = failing{err}
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), rest), answer.Body}
	return false
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
