package outbound

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

// A Transport is an http.RoundTripper that keeps outbound requests within limits: its own, and
// those that servers announce. The zero value has no limit of its own. The fields must not be
// changed once the Transport is in use. Many goroutines may use it concurrently.
//
// A request waits until the Limiter has granted its cost, and until the pause that its server
// demands has ended. A server demands a pause by
//
//   - Retry-After, in seconds or as a date, with status 429 or 503;
//   - RateLimit with nothing remaining and a time until there is more (draft-11: r=0 and t;
//     draft-07: remaining=0 and reset);
//   - RateLimit-Remaining or X-RateLimit-Remaining: 0 with a Reset, in seconds, as Unix time or as
//     a date.
//
// The first of these that gives a time counts, in this order. A date is compared with the server's
// own clock if the server sends Date. In a response from a cache, which has Age, only Retry-After
// counts. A 429 without a time pauses for 1 second. Each further 429 in a row doubles the pause, up
// to MaxPause.
//
// A request that could not be sent in time is not sent at all, and fails with a [NotSentError].
type Transport struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper

	// Limiter limits the requests before they are sent. Over Redis, a Limiter limits all processes
	// together. The limits of a Limiter must not lend slots (Concurrency). Default: none.
	Limiter *penstock.Limiter

	// Key returns the Limiter's key for a request. A pause is for all requests of one key.
	// Default: the URL's host and port, in lower case.
	Key func(*http.Request) string

	// Cost returns how many units of the Limiter a request takes. Default: 1.
	Cost func(*http.Request) int64

	// MaxWait is the longest wait of a request before it is sent, with the waits before retries
	// included. A context that ends earlier ends the wait. Default: 30 seconds. Below 0, a request is
	// sent without a wait, or fails.
	MaxWait time.Duration

	// MaxWaiting is how many requests may wait at the same time. Further requests are sent without a
	// wait, or fail. Default: 1,000.
	MaxWaiting int

	// MaxPause is the longest pause that one response may cause. If the server demands a longer one,
	// requests are sent again after MaxPause. Default: 5 minutes.
	MaxPause time.Duration

	// FailClosed sends no requests while the Limiter's store is unavailable. By default they are sent:
	// the server announces its own limits anyway. A store with guard.Standard around it decides by its
	// own settings instead.
	FailClosed bool

	// Retries is how often a request is sent again after a 429, or after a 503 if the request is
	// idempotent. The response must give a time within MaxWait and have at most 64 KiB. A request with
	// a body needs GetBody, which http.NewRequest sets. If a retry is not possible, the response is
	// returned. Default: 0.
	Retries int

	mu      sync.Mutex
	waiting int
	pauses  map[string]pause
}

// A pause holds back the requests of one key for a time.
type pause struct {
	until   time.Time
	guesses int // how many consecutive responses with 429 gave no time
}

const (
	defaultMaxWait    = 30 * time.Second
	defaultMaxWaiting = 1000 // requests
	defaultMaxPause   = 5 * time.Minute
	refundTimeout     = time.Second // for the refund of a request that is not sent
)

const (
	maxPauses        = 10_000   // keys; if there are more, the pause that ends first is dropped
	maxBufferedBytes = 64 << 10 // bytes of a response that are kept while its request is tried again
)

// A NotSentError is the error of a request that was not sent, because it would have waited for too
// long. The request is safe to repeat.
type NotSentError struct {
	// Key is the request's key.
	Key string

	// RetryAfter is how long to wait before the same request can be sent within MaxWait. RetryAfter is
	// penstock.Never if the cost is larger than the limit, and 0 if the time is unknown.
	RetryAfter time.Duration

	// Err is the reason: a *penstock.DeniedError, an error of the store, or ErrPaused.
	Err error
}

func (e *NotSentError) Error() string {
	return fmt.Sprintf("outbound: request under key %q not sent: %v", e.Key, e.Err)
}

func (e *NotSentError) Unwrap() error { return e.Err }

// ErrPaused in a NotSentError means that the server demands a pause.
var ErrPaused = errors.New("the server demands a pause")

// RoundTrip sends the request as soon as the limits allow it. An error is a *NotSentError, the
// cause of the request's context, or the Base's own.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, cost := t.key(r), int64(1)
	if t.Cost != nil {
		cost = t.Cost(r)
	}
	left := cmp.Or(t.MaxWait, defaultMaxWait) // how long the request may still wait
	waited, err := t.acquire(r.Context(), key, cost, left)
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	for try, sent := 0, r; ; try++ {
		response, err := t.base().RoundTrip(sent)
		if err != nil {
			return nil, err
		}
		pause, hasTime := t.recordPause(key, response)
		left -= waited
		isLastTry := try >= t.Retries || !hasTime || pause > left
		if isLastTry || !canRepeat(r, response.StatusCode) || !bufferBody(response) {
			return response, nil
		}
		waited, err = t.acquire(r.Context(), key, cost, left)
		if r.Context().Err() != nil {
			return nil, context.Cause(r.Context())
		}
		if err != nil {
			return response, nil
		}
		if sent, err = rewind(r); err != nil {
			return response, nil
		}
	}
}

// rewind returns a copy of a request, with its body from the beginning.
func rewind(r *http.Request) (*http.Request, error) {
	again := *r
	if r.Body != nil && r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		again.Body = body
	}
	return &again, nil
}

// CloseIdleConnections closes the idle connections of the Base. http.Client.CloseIdleConnections
// calls it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// acquire waits until a request may be sent, but no longer than patience, and charges the Limiter.
// It returns how long it has waited.
func (t *Transport) acquire(ctx context.Context, key string, cost int64, patience time.Duration) (waited time.Duration, err error) {
	start := time.Now()
	if patience > 0 && t.enterQueue() {
		defer t.leaveQueue()
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
	isCharged, err := t.charge(ctx, key, cost, end)
	if err != nil {
		return 0, err
	}
	if err := t.waitForServer(ctx, key, end); err != nil { // a response to another request may have paused the key
		if isCharged {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refundTimeout)
			defer cancel()
			t.Limiter.Refund(ctx, key, cost) // if it fails, the cost stays charged, as if sent
		}
		return 0, err
	}
	return time.Since(start), nil
}

// waitForServer waits until no pause of the key is left. It fails if a pause lasts longer than end.
func (t *Transport) waitForServer(ctx context.Context, key string, end time.Time) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause := t.pauseLeft(key)
		if pause <= 0 {
			return nil
		}
		left := time.Until(end)
		spare := left - pause
		if spare < 0 {
			return &NotSentError{key, pause, fmt.Errorf("%w: the pause lasts another %v, and the request may wait for %v",
				ErrPaused, pause.Round(time.Millisecond), max(left, 0).Round(time.Millisecond))}
		}
		// Without jitter, all requests that waited for this pause would be sent together.
		jitter := rand.N(min(pause/10, time.Second, spare) + 1)
		timer := time.NewTimer(pause + jitter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// charge waits for the Limiter to grant the cost, until end at the latest.
func (t *Transport) charge(ctx context.Context, key string, cost int64, end time.Time) (isCharged bool, err error) {
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
	return false, &NotSentError{key, 0, fmt.Errorf("the limiter gave no decision: %w", err)}
}

// recordPause records the pause that a response demands, by its header or by status 429.
func (t *Transport) recordPause(key string, response *http.Response) (wait time.Duration, hasTime bool) {
	now := time.Now()
	wait, hasTime = pauseOf(response.StatusCode, response.Header, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	p, isKnown := t.pauses[key]
	switch {
	case response.StatusCode != http.StatusTooManyRequests || hasTime:
		p.guesses = 0
	case now.Before(p.until): // the request was sent before the pause began, so it is no new guess
		return p.until.Sub(now), true
	default:
		wait, hasTime = firstBackoff<<min(p.guesses, maxDoublings), true
		p.guesses++
	}
	wait = max(min(wait, cmp.Or(t.MaxPause, defaultMaxPause)), 0)
	if until := now.Add(wait); until.After(p.until) {
		p.until = until
	}
	t.storePauseLocked(key, p, isKnown, now)
	return wait, hasTime
}

// The pauses after a 429 without a time.
const (
	firstBackoff = time.Second
	maxDoublings = 30 // 2^30 s still fits into a time.Duration
)

// storePauseLocked stores a pause, or deletes one that has ended.
func (t *Transport) storePauseLocked(key string, p pause, isKnown bool, now time.Time) {
	if p.guesses == 0 && !p.until.After(now) {
		delete(t.pauses, key)
		return
	}
	if !isKnown && len(t.pauses) >= maxPauses {
		t.makeRoomLocked(now)
	}
	if t.pauses == nil {
		t.pauses = make(map[string]pause)
	}
	t.pauses[key] = p
}

// pauseLeft returns how long the pause of a key still lasts. The result is 0 or less if the key has
// no pause.
func (t *Transport) pauseLeft(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.pauses[key]
	if !ok {
		return 0
	}
	left := time.Until(p.until)
	if left <= 0 && p.guesses == 0 {
		delete(t.pauses, key)
	}
	return left
}

// makeRoomLocked drops the pauses that have ended, or else the one that ends first.
func (t *Transport) makeRoomLocked(now time.Time) {
	var firstKey string
	var firstEnd time.Time
	for key, p := range t.pauses {
		if !p.until.After(now) {
			delete(t.pauses, key)
		} else if firstEnd.IsZero() || p.until.Before(firstEnd) {
			firstKey, firstEnd = key, p.until
		}
	}
	if len(t.pauses) >= maxPauses {
		delete(t.pauses, firstKey)
	}
}

// enterQueue counts a request that is about to wait. It returns false if too many requests wait
// already.
func (t *Transport) enterQueue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting >= cmp.Or(t.MaxWaiting, defaultMaxWaiting) {
		return false
	}
	t.waiting++
	return true
}

func (t *Transport) leaveQueue() {
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

func (t *Transport) key(r *http.Request) string {
	if t.Key != nil {
		return t.Key(r)
	}
	if r.URL == nil {
		return "" // the Base returns the error
	}
	return strings.ToLower(r.URL.Host)
}

// canRepeat reports whether a request with such a response can be sent again without harm.
func canRepeat(r *http.Request, status int) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable && isIdempotent(r)
}

// isIdempotent reports whether net/http itself would send the request again.
func isIdempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// bufferBody reads a response's body, so that its connection is free and the response can still be
// returned. It returns false if the body cannot be read or is too long. In this case, the caller
// can still read the whole body.
func bufferBody(response *http.Response) bool {
	if response.Body == nil {
		return true
	}
	read, err := io.ReadAll(io.LimitReader(response.Body, maxBufferedBytes+1))
	if err == nil && len(read) <= maxBufferedBytes {
		response.Body.Close()
		response.Body = io.NopCloser(bytes.NewReader(read))
		return true
	}
	rest := io.Reader(response.Body)
	if err != nil {
		rest = failingReader{err}
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), rest), response.Body}
	return false
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
