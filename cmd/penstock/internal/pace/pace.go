// Package pace cuts off clients that stall: that send a body, or take a response, so slowly that
// they only hold a place.
package pace

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"
)

// Options of a Handler.
type Options struct {
	// Stall is how long a client may pause. 0: forever, and Rate means nothing.
	Stall time.Duration

	// Rate, in bytes a second, is what a client must send to earn back the time that it was waited
	// for. A body that comes more slowly is cut off once Stall is used up, however evenly it drips. 0:
	// every pause shorter than Stall is forgiven.
	Rate int64
}

// Handler gives next a request whose body and response fail once the client has stalled. Reading
// the body then returns os.ErrDeadlineExceeded. Only waiting for the client counts, and not the
// time that next takes: uploads and downloads may last as long as they move, and event streams may
// be silent.
//
// A connection that next takes over (a WebSocket) is not watched any more.
func Handler(next http.Handler, o Options) http.Handler {
	if o.Stall <= 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		pw := &writer{ResponseWriter: w, control: control, stall: o.Stall, http2: r.ProtoMajor == 2}
		if r.Body != nil && r.Body != http.NoBody {
			if pw.http2 {
				control.SetReadDeadline(time.Time{}) // the server's own would run while next does other things
			} else {
				// Even if next never reads the body: the server does before it answers, to keep the connection.
				control.SetReadDeadline(time.Now().Add(o.Stall))
			}
			r = r.WithContext(r.Context()) // a copy: the server looks at its own request's Body
			r.Body = &body{ReadCloser: r.Body, control: control, pace: o, left: o.Stall, http2: pw.http2}
			pw.stall *= 2 // the first write may begin with that reading
		}
		next.ServeHTTP(pw, r)
		if !pw.taken {
			pw.start() // what is left to be sent goes when next has returned
		}
	})
}

// A body is a request's. The time left for waiting shrinks by waiting, and grows with what comes.
type body struct {
	io.ReadCloser
	control *http.ResponseController
	pace    Options
	left    time.Duration
	http2   bool
	ended   bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.ended {
		return b.ReadCloser.Read(p) // what the connection reads now is not the body; the deadline is the server's
	}
	start := time.Now()
	b.control.SetReadDeadline(start.Add(b.left))
	n, err := b.ReadCloser.Read(p)
	b.stop()
	b.ended = err != nil
	if b.pace.Rate > 0 {
		earned := time.Duration(n) * time.Second / time.Duration(b.pace.Rate)
		b.left = min(b.left-time.Since(start)+earned, b.pace.Stall)
	}
	return n, err
}

// stop matters to HTTP/2 only, where a deadline that passes ends the body for good even while
// nobody waits for it.
func (b *body) stop() {
	if b.http2 {
		b.control.SetReadDeadline(time.Time{})
	}
}

// A writer is a response's. Each write may take so long; between writes no time runs.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	http2   bool
	taken   bool // by Hijack
}

func (w *writer) start() { w.control.SetWriteDeadline(time.Now().Add(w.stall)) }

// stop matters to HTTP/2 only, where a deadline that passes ends the stream even while nothing is
// being written.
func (w *writer) stop() {
	if w.http2 {
		w.control.SetWriteDeadline(time.Time{})
	}
}

func (w *writer) WriteHeader(status int) {
	if status >= 200 { // it is sent with the body
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.start()
	w.ResponseWriter.WriteHeader(status)
	w.stop()
}

func (w *writer) Write(p []byte) (int, error) {
	w.start()
	n, err := w.ResponseWriter.Write(p)
	w.stop()
	return n, err
}

// FlushError is what http.ResponseController calls.
func (w *writer) FlushError() error {
	w.start()
	err := w.control.Flush()
	w.stop()
	return err
}

func (w *writer) Flush() { w.FlushError() }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.taken = true
	return w.control.Hijack()
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
