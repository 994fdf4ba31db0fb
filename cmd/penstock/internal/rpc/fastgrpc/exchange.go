package fastgrpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/internal/panicked"
)

// An exchange is a call that the fallback serves. An exchange is both the body of the http.Request
// and the http.ResponseWriter. The connection's mutex guards it, except the fields that only the
// handler uses.
type exchange struct {
	stream *stream
	cancel context.CancelFunc

	body            []byte // bytes that have arrived and were not read yet
	hasRequestEnded bool   // the client has sent the whole body
	isOver          bool   // the client has cancelled, or the connection has ended

	isBodyClosed bool      // Close was called
	blockedSince time.Time // when the call of Write began to wait for a window; zero: it does not wait

	// Only the handler's goroutine uses the fields below.
	header    http.Header
	trailers  []string // keys of header that are sent after the body
	hasHeader bool     // WriteHeader was called, and has sent the header
	isAborted bool     // the handler has panicked, so end cancels the stream
}

var errCancelled = errors.New("the client has cancelled the call")

// A fallbackCall is what is kept of the headers of a call until the fallback serves it.
type fallbackCall struct {
	method, path, authority string
	fields                  []hpack.HeaderField // without pseudo headers and host
	size                    int                 // bytes that conn.bufferedBytes counts for it
}

// keepHeadersLocked keeps the headers of a call for the fallback, which serves it when its first
// message has arrived. Until then, the call takes neither goroutines nor maps, and less than 1 KB
// besides what was sent. keepHeadersLocked returns false if too much is kept already.
func (c *conn) keepHeadersLocked(s *stream, r *request) bool {
	if c.bufferedBytes+c.headers.size > maxBufferedBytes {
		return false
	}
	call := &fallbackCall{method: r.method, path: r.path, authority: r.authority, size: c.headers.size}
	call.fields = make([]hpack.HeaderField, 0, len(c.headers.fields))
	for _, f := range c.headers.fields {
		if !f.IsPseudo() && f.Name != "host" {
			call.fields = append(call.fields, f)
		}
	}
	c.bufferedBytes += call.size
	s.fallback = call
	return true
}

// startExchangeLocked starts a goroutine in which the fallback serves a stream. If the fallback
// serves too many already, startExchangeLocked refuses the stream.
func (c *conn) startExchangeLocked(s *stream, hasRequestEnded bool) {
	if c.server.exchanges.Add(1) > int64(c.server.options.MaxParallel) {
		c.server.exchanges.Add(-1)
		c.abortLocked(s, http2.ErrCodeRefusedStream)
		return
	}
	c.growAllowance(allowanceOfRequest)
	call := s.fallback
	c.bufferedBytes -= call.size
	ctx, cancel := context.WithCancel(c.ctx)
	e := &exchange{stream: s, cancel: cancel, hasRequestEnded: hasRequestEnded, body: s.Request, header: make(http.Header)}
	s.exchange, s.hasRequestEnded, s.isRunning = e, hasRequestEnded, true
	s.creditBytes = s.receivedBytes - len(s.Request) // the padding
	s.fallback, s.Request = nil, nil
	if hasRequestEnded || s.hasFirstMessage() {
		c.leaveArrivingLocked(s)
	}
	request := &http.Request{
		Method: call.method, URL: &url.URL{Path: call.path}, RequestURI: call.path, Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header),
		Body: e, ContentLength: -1, Host: call.authority, RemoteAddr: c.nc.RemoteAddr().String(), TLS: c.tls,
	}
	for i := range call.fields {
		name := http.CanonicalHeaderKey(call.fields[i].Name)
		request.Header[name] = append(request.Header[name], call.fields[i].Value)
	}
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, c.nc.LocalAddr())
	request = request.WithContext(ctx)
	c.server.goroutines.Add(1) // the reader's goroutine is counted already, so Wait cannot have returned
	go func() {
		defer c.server.goroutines.Done()
		e.serve(c.server.options.Fallback, request)
	}()
}

func (e *exchange) serve(fallback http.Handler, r *http.Request) {
	defer e.end()
	defer func() {
		value := recover()
		if value == nil {
			return
		}
		if value != http.ErrAbortHandler {
			panicked.Report("a gRPC call is handled", value)
		}
		e.isAborted = true
	}()
	fallback.ServeHTTP(e, r)
}

// receiveLocked appends a part of the body.
func (e *exchange) receiveLocked(f *http2.DataFrame) {
	c := e.stream.conn
	data := f.Data()
	if e.isBodyClosed {
		data = nil
	}
	e.body = append(e.body, data...)
	c.keptBytes += len(data)
	e.creditLocked(int(f.Length) - len(data)) // padding, and data that arrived after Close
	c.changed.Broadcast()
}

func (e *exchange) endRequestLocked() {
	e.hasRequestEnded, e.stream.hasRequestEnded = true, true
	e.stream.conn.changed.Broadcast()
}

// creditLocked opens the windows of the stream and of the connection by n bytes that are no longer
// kept. A WINDOW_UPDATE is sent only for more than a quarter of a window, so that few are sent.
func (e *exchange) creditLocked(n int) {
	s := e.stream
	c := s.conn
	if s.creditBytes += n; s.creditBytes > initialWindow/4 && !e.hasRequestEnded && !e.isOver {
		c.outgoing = appendWindowUpdate(c.outgoing, s.id, s.creditBytes)
		s.receivedBytes -= s.creditBytes
		s.creditBytes = 0
	}
	c.creditLocked()
}

func (e *exchange) cancelLocked() {
	e.isOver = true
	e.cancel()
	e.dropBodyLocked()
}

// Read reads the body.
func (e *exchange) Read(p []byte) (int, error) {
	c := e.stream.conn
	c.mu.Lock()
	for len(e.body) == 0 && !e.hasRequestEnded && !e.isOver && !e.isBodyClosed {
		c.changed.Wait()
	}
	if e.isOver || e.isBodyClosed {
		defer c.mu.Unlock()
		if e.isBodyClosed {
			return 0, http.ErrBodyReadAfterClose
		}
		return 0, errCancelled
	}
	n := copy(p, e.body)
	if n == 0 && len(p) > 0 {
		c.mu.Unlock()
		return 0, io.EOF
	}
	if e.body = e.body[n:]; len(e.body) == 0 {
		e.body = nil
	}
	c.keptBytes -= n
	e.creditLocked(n)
	c.unlockAndFlush()
	return n, nil
}

// Close discards the body. Later calls of Read fail immediately.
func (e *exchange) Close() error {
	c := e.stream.conn
	c.mu.Lock()
	defer c.unlockAndFlush()
	e.isBodyClosed = true
	e.dropBodyLocked()
	return nil
}

func (e *exchange) dropBodyLocked() {
	c := e.stream.conn
	c.keptBytes -= len(e.body)
	e.body = nil
	c.creditLocked()
	c.changed.Broadcast()
}

// Header returns the header of the response. Trailers are set in it after WriteHeader.
func (e *exchange) Header() http.Header { return e.header }

// WriteHeader sends the status and the header of the response.
func (e *exchange) WriteHeader(code int) {
	if e.hasHeader {
		return
	}
	e.hasHeader = true
	for _, names := range e.header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			e.trailers = append(e.trailers, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	c := e.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.isOver {
		return
	}
	block := appendStatus(c.newBlockLocked(), code)
	for name, values := range e.header {
		if name != "Trailer" && !e.isTrailer(name) {
			block = appendFields(block, name, values)
		}
	}
	c.outgoing = appendHeaders(c.outgoing, block, e.stream.id, false)
}

func (e *exchange) isTrailer(name string) bool {
	if strings.HasPrefix(name, http.TrailerPrefix) {
		return true
	}
	for _, declared := range e.trailers {
		if declared == name {
			return true
		}
	}
	return false
}

func appendFields(block []byte, name string, values []string) []byte {
	name = strings.ToLower(name)
	switch name {
	case "connection", "keep-alive", "transfer-encoding", "upgrade":
		return block
	}
	for _, value := range values {
		block = appendField(block, name, value)
	}
	return block
}

// Write sends a part of the response. Write waits until the client's windows have room for this
// part, for WriteTimeout at most.
func (e *exchange) Write(p []byte) (int, error) {
	e.WriteHeader(http.StatusOK)
	c := e.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	defer e.unblockLocked()
	for rest := p; ; {
		if e.isOver {
			return len(p) - len(rest), errCancelled
		}
		if !c.isFullLocked() {
			rest = c.appendDataLocked(e.stream, rest)
		}
		if len(rest) == 0 {
			return len(p), nil
		}
		c.mu.Unlock()
		c.flush()
		c.mu.Lock()
		if c.sendWindow <= 0 || e.stream.sendWindow <= 0 || c.isFullLocked() {
			e.blockLocked()
			c.changed.Wait()
		}
	}
}

// blockLocked notes that Write waits for a window: sweepLocked cancels a call that waits for too
// long.
func (e *exchange) blockLocked() {
	c := e.stream.conn
	if !e.blockedSince.IsZero() {
		return
	}
	e.blockedSince = time.Now()
	if c.blockedExchanges++; c.blockedExchanges == 1 {
		c.interruptLocked() // so that tick learns of it
	}
}

// isBlockedFor reports whether Write has waited for a window this long. e may be nil.
func (e *exchange) isBlockedFor(now time.Time, long time.Duration) bool {
	return e != nil && !e.blockedSince.IsZero() && now.Sub(e.blockedSince) >= long
}

// unblockLocked notes that Write does not wait any more.
func (e *exchange) unblockLocked() {
	if !e.blockedSince.IsZero() {
		e.blockedSince = time.Time{}
		e.stream.conn.blockedExchanges--
	}
}

// Flush sends the header, and the parts of the response that Write has appended.
func (e *exchange) Flush() {
	e.WriteHeader(http.StatusOK)
	e.stream.conn.flush()
}

// end sends the trailers, and ends the stream.
func (e *exchange) end() {
	s := e.stream
	c := s.conn
	if !e.isAborted {
		e.WriteHeader(http.StatusOK)
	}
	c.server.exchanges.Add(-1)
	c.mu.Lock()
	defer c.unlockAndFlush()
	s.isRunning = false
	e.cancel()
	if !e.isOver {
		if e.isAborted {
			c.outgoing = appendReset(c.outgoing, s.id, http2.ErrCodeInternal)
		} else {
			e.sendTrailersLocked()
			if !e.hasRequestEnded { // the client need not send the rest
				c.outgoing = appendReset(c.outgoing, s.id, http2.ErrCodeNo)
			}
		}
		c.removeLocked(s)
	}
	c.releaseLocked(s)
}

// sendTrailersLocked ends the stream with the trailers, or with an empty DATA if there are none.
func (e *exchange) sendTrailersLocked() {
	c := e.stream.conn
	block := c.newBlockLocked()
	for name, values := range e.header {
		if e.isTrailer(name) {
			block = appendFields(block, strings.TrimPrefix(name, http.TrailerPrefix), values)
		}
	}
	if len(block) == 0 {
		c.outgoing = appendFrame(c.outgoing, 0, http2.FrameData, http2.FlagDataEndStream, e.stream.id)
		return
	}
	c.outgoing = appendHeaders(c.outgoing, block, e.stream.id, true)
}
