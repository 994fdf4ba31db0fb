// Package slowclient cuts off clients that stall: they send a body or read a response so slowly
// that they only occupy a connection.
package slowclient

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

type Options struct {
	// Stall is how long a client may pause. 0: forever; then Rate has no effect.
	Stall time.Duration

	// Rate is the lowest speed of a request body, in bytes a second. Each body has a time budget, at
	// first Stall. Waiting for the client reduces it, and each byte adds 1/Rate seconds, up to Stall.
	// The body is cut off when the budget is 0. So a body that stays below Rate is cut off, however
	// evenly it arrives. 0: only single pauses are limited.
	Rate int64
}

// Handler passes requests to next. Their body and response fail once the client stalls; reading the
// body then returns os.ErrDeadlineExceeded. Only the time of waiting for the client counts, not the
// time that next takes. So uploads and downloads may last as long as they progress, and event
// streams may be silent.
//
// Once next has hijacked a connection (for a WebSocket), its client may stall.
func Handler(next http.Handler, o Options) http.Handler {
	if o.Stall <= 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		limits := &deadlines{control: control}
		response := &writer{ResponseWriter: w, control: control, deadlines: limits, stall: o.Stall, isHTTP2: r.ProtoMajor == 2}
		defer limits.end() // the transport of a proxy may still be reading the body
		if r.Body != nil && r.Body != http.NoBody {
			if response.isHTTP2 {
				limits.setRead(time.Time{}) // the server's deadline would also count the time of next
			} else {
				// This applies even if next never reads the body: to keep the connection, the server
				// then reads the body before it responds.
				limits.setRead(time.Now().Add(o.Stall))
			}
			r = r.WithContext(r.Context()) // a copy: the server needs the Body of its own request
			r.Body = &body{ReadCloser: r.Body, deadlines: limits, options: o, budget: o.Stall, isHTTP2: response.isHTTP2}
			response.stall *= 2 // before the first write, the server may read the rest of the body
		}
		next.ServeHTTP(response, r)
		if !response.isHijacked {
			response.setDeadline() // the server sends buffered data after next has returned
		}
	})
}

// deadlines sets the deadlines of one request until its handler has returned. After that, calls do
// nothing: for HTTP/2, the server's method would panic, and for HTTP/1.1, it would change the
// deadline of the connection's next request.
type deadlines struct {
	mu       sync.Mutex
	control  *http.ResponseController
	hasEnded bool
}

func (d *deadlines) setRead(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hasEnded {
		d.control.SetReadDeadline(t)
	}
}

func (d *deadlines) setWrite(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hasEnded {
		d.control.SetWriteDeadline(t)
	}
}

// end makes the other methods do nothing. The handler calls it before it returns.
func (d *deadlines) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hasEnded = true
}

// A body is the body of a request. It may be read after the handler has returned: an
// http.Transport that gets a response early ends its own reading later.
type body struct {
	io.ReadCloser
	deadlines *deadlines
	options   Options
	budget    time.Duration // see Options.Rate
	isHTTP2   bool
	hasEnded  bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.hasEnded {
		return b.ReadCloser.Read(p) // the connection may be at the next request, with a deadline of its own
	}
	start := time.Now()
	b.deadlines.setRead(start.Add(b.budget))
	n, err := b.ReadCloser.Read(p)
	b.clearDeadline()
	b.hasEnded = err != nil
	if b.options.Rate > 0 {
		earned := time.Duration(n) * time.Second / time.Duration(b.options.Rate)
		b.budget = min(b.budget-time.Since(start)+earned, b.options.Stall)
	}
	return n, err
}

// clearDeadline removes the deadline for HTTP/2, where it would end a body that nobody reads.
func (b *body) clearDeadline() {
	if b.isHTTP2 {
		b.deadlines.setRead(time.Time{})
	}
}

// A writer is the writer of a response. Each write may last up to stall; the time between writes
// does not count.
type writer struct {
	http.ResponseWriter
	control    *http.ResponseController
	deadlines  *deadlines
	stall      time.Duration
	isHTTP2    bool
	isHijacked bool
}

func (w *writer) setDeadline() { w.deadlines.setWrite(time.Now().Add(w.stall)) }

// clearDeadline removes the deadline for HTTP/2: there, a deadline that passes ends the stream even
// while nothing is written.
func (w *writer) clearDeadline() {
	if w.isHTTP2 {
		w.deadlines.setWrite(time.Time{})
	}
}

func (w *writer) WriteHeader(status int) {
	if status >= 200 { // a final status: the server sends it later, with the body
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.setDeadline()
	w.ResponseWriter.WriteHeader(status)
	w.clearDeadline()
}

func (w *writer) Write(p []byte) (int, error) {
	w.setDeadline()
	n, err := w.ResponseWriter.Write(p)
	w.clearDeadline()
	return n, err
}

// FlushError is the method that http.ResponseController calls for a flush.
func (w *writer) FlushError() error {
	w.setDeadline()
	err := w.control.Flush()
	w.clearDeadline()
	return err
}

func (w *writer) Flush() { w.FlushError() }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.isHijacked = true
	return w.control.Hijack()
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
