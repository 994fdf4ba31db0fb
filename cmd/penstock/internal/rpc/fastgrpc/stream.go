package fastgrpc

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A stream is a call on a connection.
type stream struct {
	Call
	id          uint32
	handler     Handler
	listHandler *ListHandler  // nil: each call is handled by itself. A pointer, because functions cannot be compared
	others      []*stream     // the other calls of the list that begins with this one
	fallback    *fallbackCall // of a call that the fallback will serve; else nil
	exchange    *exchange     // of a call that the fallback serves; else nil
	deadline    *deadline     // nil if the call has none
	timeout     time.Duration // negative: none

	// The connection's mutex guards the fields below.
	state           streamState
	isRemoved       bool      // no longer in conn.streams: the response is dropped
	isRunning       bool      // the handler runs or will run
	isRestricted    bool      // conn.restrictedStreams counts it
	hasRequestEnded bool      // the client has sent the whole request
	stateSince      time.Time // when the state arriving or answering began
	sendWindow      int64     // bytes of DATA that the client still accepts on the stream
	receivedBytes   int       // bytes of DATA for which no WINDOW_UPDATE of the stream was sent yet
	creditBytes     int       // those of receivedBytes that an exchange no longer keeps
	prefix          [5]byte   // of the message: a flag, 1 if it is compressed, and four bytes for its size
	prefixLength    int       // bytes of prefix that have arrived
	messageSize     int       // bytes of the message; known when the prefix is complete
	contentLength   int64     // bytes of DATA that the headers announce; negative: none
	dataBytes       int64     // bytes of DATA that have arrived, without padding
	unsent          []byte    // the rest of the response, which waits for a window
}

// A streamState is the phase of a call.
type streamState uint8

const (
	arriving  streamState = iota
	handling              // the request, or the first message for the fallback, has arrived
	answering             // the response waits for a window
)

// maxKeptBytes is the size in bytes of the largest buffer whose memory is reused for another call.
const maxKeptBytes = 4 << 10

var streamPool = sync.Pool{New: func() any { return new(stream) }}

func newStream(c *conn, id uint32) *stream {
	s := streamPool.Get().(*stream)
	request, response := s.Request[:0], s.Response[:0]
	if cap(request) > maxKeptBytes {
		request = nil
	}
	if cap(response) > maxKeptBytes {
		response = nil
	}
	*s = stream{Call: Call{Request: request, Response: response, conn: c}, id: id}
	return s
}

// handleHeaders opens a stream, or handles the trailers of one that is open.
func (c *conn) handleHeaders(f *http2.HeadersFrame) error {
	id, isEnd := f.StreamID, f.StreamEnded()
	block, err := c.wholeBlock(f)
	if err != nil {
		return err
	}
	r, err := c.headers.decode(block)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return net.ErrClosed
	}
	if id%2 == 0 {
		return connectionError{http2.ErrCodeProtocol, "the number of a new stream is even; those of a client are odd"}
	}
	if id <= c.lastID {
		return c.handleTrailersLocked(id, isEnd, r)
	}
	if c.drainState >= final {
		return c.spendAllowance(1) // the GOAWAY has told the client that this stream is not served
	}
	c.lastID = id
	if r.isCorrupt || r.path == "" || r.scheme == "" {
		c.outgoing = appendReset(c.outgoing, id, http2.ErrCodeProtocol)
		return c.spendAllowance(costOfMistake)
	}
	refused := r.check()
	isRestricted := c.server.options.IsRestricted != nil && c.server.options.IsRestricted(r.path)
	hasTooMany := c.openStreams >= c.server.options.MaxStreams || isRestricted && c.restrictedStreams >= maxRestricted
	if refused == nil && hasTooMany {
		c.outgoing = appendReset(c.outgoing, id, http2.ErrCodeRefusedStream)
		return c.spendAllowance(1)
	}
	handler := c.server.options.Methods[r.path]
	isFallback := c.server.options.Fallback != nil && (handler == nil || !r.isPlain() || !r.isProto())
	if refused == nil {
		refused = c.checkCall(r, handler, isFallback)
	}
	if refused != nil {
		c.refuseLocked(id, refused, isEnd)
		return nil
	}
	s := newStream(c, id)
	s.listHandler = c.server.listHandlers[r.path]
	s.handler, s.timeout, s.stateSince, s.sendWindow = handler, -1, c.lastRead, c.initialSendWindow
	s.trace, s.contentLength = r.trace, r.contentLength
	if r.hasTimeout {
		s.timeout = r.timeout
	}
	c.streams[id] = s
	c.openStreams++
	c.incompleteRequests++
	if s.isRestricted = isRestricted; isRestricted {
		c.restrictedStreams++
	}
	if isFallback && !c.keepHeadersLocked(s, r) {
		c.abortLocked(s, http2.ErrCodeRefusedStream)
		return c.spendAllowance(1)
	}
	if isEnd {
		return c.endRequestLocked(s)
	}
	return nil
}

// endRequestLocked is called when the client has ended a request.
func (c *conn) endRequestLocked(s *stream) error {
	switch {
	case s.contentLength >= 0 && s.dataBytes != s.contentLength:
		c.abortLocked(s, http2.ErrCodeProtocol)
		return c.spendAllowance(costOfMistake)
	case s.exchange != nil:
		c.leaveArrivingLocked(s)
		s.exchange.endRequestLocked()
	case s.fallback != nil:
		c.startExchangeLocked(s, true)
	default:
		c.completeLocked(s)
	}
	return nil
}

// checkCall returns why a well-formed request is refused before its message is read, or nil.
func (c *conn) checkCall(r *request, handler Handler, isFallback bool) *refusal {
	if refused := c.authorize(r); refused != nil {
		return refused
	}
	switch {
	case r.hasTimeout && r.timeout == 0:
		return &refusal{http.StatusOK, status.New(codes.DeadlineExceeded, context.DeadlineExceeded.Error())}
	case isFallback:
		return nil
	case handler == nil:
		return &refusal{http.StatusOK, status.Newf(codes.Unimplemented, "unknown method %s", r.path)}
	case !r.isPlain():
		return &refusal{http.StatusOK, status.Newf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", r.encoding)}
	}
	return nil
}

// wholeBlock reads the CONTINUATION frames of a header block and returns the whole block, which is
// valid until the next call.
func (c *conn) wholeBlock(f *http2.HeadersFrame) ([]byte, error) {
	block := f.HeaderBlockFragment()
	if f.HeadersEnded() {
		return block, nil
	}
	h := &c.headers
	h.block = append(h.block[:0], block...)
	for parts := 0; ; parts++ {
		if parts == maxContinuations || len(h.block) > h.maxHeaderList+maxFrameBytes {
			return nil, connectionError{http2.ErrCodeEnhanceYourCalm, "a header block is too large"}
		}
		if err := c.wait(); err != nil {
			return nil, err
		}
		f, err := c.readFrame() // fails if it is not a CONTINUATION of the block
		if err != nil {
			return nil, err
		}
		next, isContinuation := f.(*http2.ContinuationFrame)
		if !isContinuation {
			return nil, connectionError{http2.ErrCodeProtocol, "a header block is interrupted"}
		}
		h.block = append(h.block, next.HeaderBlockFragment()...)
		if next.HeadersEnded() {
			break
		}
	}
	block = h.block
	if cap(h.block) > maxKeptBytes {
		h.block = nil
	}
	return block, nil
}

// handleTrailersLocked handles a further header block of a stream, which must end the request.
func (c *conn) handleTrailersLocked(id uint32, isEnd bool, trailers *request) error {
	s := c.streams[id]
	switch {
	case s == nil, s.hasRequestEnded:
		c.outgoing = appendReset(c.outgoing, id, http2.ErrCodeStreamClosed)
		if s != nil {
			c.removeLocked(s)
		}
		return c.spendAllowance(costOfMistake)
	case !isEnd || trailers.isCorrupt || trailers.hasPseudo:
		c.abortLocked(s, http2.ErrCodeProtocol)
		return c.spendAllowance(costOfMistake)
	}
	return c.endRequestLocked(s)
}

// authorize returns why Options.Authorize refuses a request, or nil.
func (c *conn) authorize(r *request) *refusal {
	if c.server.options.Authorize == nil {
		return nil
	}
	err := c.server.options.Authorize(Caller{Method: r.path, Authorization: r.authorization, Addr: c.nc.RemoteAddr()})
	if err == nil {
		return nil
	}
	return &refusal{http.StatusOK, statusOf(err)}
}

// handleData handles a DATA frame.
func (c *conn) handleData(f *http2.DataFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int(f.Length)
	if c.receivedBytes += n; c.receivedBytes > connReceiveWindow {
		return connectionError{http2.ErrCodeFlowControl, "there is more DATA than the window of the connection allows"}
	}
	s := c.streams[f.StreamID]
	if s == nil || s.exchange == nil && s.fallback == nil {
		c.creditLocked()
	}
	switch {
	case s == nil && c.isUnopenedLocked(f.StreamID):
		return connectionError{http2.ErrCodeProtocol, "DATA has the number of a stream that was not opened"}
	case s == nil:
		return c.spendAllowance(1) // the stream was refused or cancelled, or the GOAWAY excludes it
	case s.hasRequestEnded:
		c.abortLocked(s, http2.ErrCodeStreamClosed)
		return c.spendAllowance(costOfMistake)
	}
	if s.receivedBytes += n; s.receivedBytes > initialWindow {
		c.abortLocked(s, http2.ErrCodeFlowControl)
		return c.spendAllowance(costOfMistake)
	}
	if s.dataBytes += int64(len(f.Data())); s.contentLength >= 0 && s.dataBytes > s.contentLength {
		c.abortLocked(s, http2.ErrCodeProtocol)
		return c.spendAllowance(costOfMistake)
	}
	if s.exchange != nil {
		if s.dataBytes > maxBufferedBytes+int64(len(s.prefix)) {
			c.abortLocked(s, http2.ErrCodeEnhanceYourCalm)
			return c.spendAllowance(costOfMistake)
		}
		s.exchange.receiveLocked(f)
		if s.hasFirstMessage() {
			c.leaveArrivingLocked(s)
		}
		switch {
		case f.StreamEnded():
			return c.endRequestLocked(s)
		case n == 0:
			return c.spendAllowance(1)
		}
		return nil
	}
	if refused := c.appendRequestLocked(s, f.Data()); refused != nil {
		c.refuseLocked(s.id, &refusal{http.StatusOK, refused}, f.StreamEnded())
		c.removeLocked(s)
		return nil
	}
	if f.StreamEnded() {
		return c.endRequestLocked(s)
	}
	kept := 0
	if s.fallback != nil {
		if s.hasFirstMessage() || len(s.Request) >= maxWaitingBytes {
			c.startExchangeLocked(s, false)
			return nil
		}
		kept = len(s.Request)
	}
	if n := s.receivedBytes - kept; n > initialWindow/2 {
		c.outgoing = appendWindowUpdate(c.outgoing, s.id, n)
		s.receivedBytes -= n
	}
	if n < smallData {
		return c.spendAllowance(1)
	}
	return nil
}

// isUnopenedLocked reports whether the client has certainly not opened a stream. After the second
// GOAWAY this is not known: lastID does not grow, and the client may have opened streams that the
// GOAWAY excludes.
func (c *conn) isUnopenedLocked(id uint32) bool {
	return id%2 == 0 || id > c.lastID && c.drainState < final
}

// creditLocked opens the connection's window by the bytes that were received, except those that
// exchanges keep. The window is opened only by more than a quarter of its size, so that few
// WINDOW_UPDATEs are sent.
func (c *conn) creditLocked() {
	if n := c.receivedBytes - c.keptBytes; n > connReceiveWindow/4 {
		c.outgoing = appendWindowUpdate(c.outgoing, 0, n)
		c.receivedBytes -= n
	}
}

// appendRequestLocked appends a part of a message to s.Request, for the fallback with its prefix.
// The result is why the message is refused, or nil.
func (c *conn) appendRequestLocked(s *stream, data []byte) *status.Status {
	rest := data
	if missing := len(s.prefix) - s.prefixLength; missing > 0 {
		n := copy(s.prefix[s.prefixLength:], data)
		s.prefixLength += n
		rest = data[n:]
		if s.prefixLength == len(s.prefix) {
			if refused := c.readPrefixLocked(s); refused != nil {
				return refused
			}
		}
	}
	if s.fallback != nil {
		c.keptBytes += len(data) // the windows bound them
		s.Request = append(s.Request, data...)
		c.creditLocked() // the padding
		return nil
	}
	if data = rest; len(s.Request)+len(data) > s.messageSize {
		return status.New(codes.Internal, "bytes follow the message; a unary call has one message")
	}
	if c.bufferedBytes += len(data); c.bufferedBytes > maxBufferedBytes {
		c.bufferedBytes -= len(data)
		return status.Newf(codes.ResourceExhausted, "the incomplete messages of the connection exceed %d bytes", maxBufferedBytes)
	}
	s.Request = append(s.Request, data...)
	return nil
}

// hasFirstMessage reports whether the first message of a call for the fallback has arrived.
func (s *stream) hasFirstMessage() bool {
	return s.prefixLength == len(s.prefix) && s.dataBytes >= int64(len(s.prefix)+s.messageSize)
}

// readPrefixLocked reads the complete prefix of a message. The result is why the message is
// refused, or nil.
func (c *conn) readPrefixLocked(s *stream) *status.Status {
	s.messageSize = int(binary.BigEndian.Uint32(s.prefix[1:]))
	limit, flag := c.server.options.MaxMessage, s.prefix[0]
	switch {
	case s.messageSize > limit:
		return status.Newf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", s.messageSize, limit)
	case s.fallback != nil || flag == 0:
		return nil
	case flag == 1:
		return status.New(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
	}
	return status.Newf(codes.Internal, "grpc: received unexpected payload format %d", flag)
}

// completeLocked is called when the client has ended a request. completeLocked adds the request to
// the batch, or refuses a request whose message is incomplete.
func (c *conn) completeLocked(s *stream) {
	s.hasRequestEnded = true
	if s.prefixLength < len(s.prefix) || len(s.Request) < s.messageSize {
		text := "the message of the call is cut off"
		if s.prefixLength == 0 {
			text = "a unary call needs a message"
		}
		c.refuseLocked(s.id, &refusal{http.StatusOK, status.New(codes.Internal, text)}, true)
		c.removeLocked(s)
		return
	}
	c.leaveArrivingLocked(s)
	s.isRunning = true
	c.growAllowance(allowanceOfRequest)
	c.batch = append(c.batch, s)
}

// leaveArrivingLocked ends the state arriving: the request has arrived, or it was cancelled.
func (c *conn) leaveArrivingLocked(s *stream) {
	if s.state != arriving {
		return
	}
	s.state = handling
	c.incompleteRequests--
	switch {
	case s.exchange != nil: // it counts its bytes itself
	case s.fallback != nil:
		c.bufferedBytes -= s.fallback.size
		c.keptBytes -= len(s.Request)
		c.creditLocked()
	default:
		c.bufferedBytes -= len(s.Request)
	}
}

// abortLocked sends RST_STREAM and removes the stream.
func (c *conn) abortLocked(s *stream, code http2.ErrCode) {
	c.outgoing = appendReset(c.outgoing, s.id, code)
	c.removeLocked(s)
}

// removeLocked removes a stream. While its handler runs, the stream still counts for MaxStreams.
func (c *conn) removeLocked(s *stream) {
	delete(c.streams, s.id)
	s.isRemoved = true
	c.leaveArrivingLocked(s)
	if s.exchange != nil {
		s.exchange.cancelLocked()
		return
	}
	if s.state == answering {
		if i := slices.Index(c.blockedStreams, s); i >= 0 {
			c.blockedStreams = slices.Delete(c.blockedStreams, i, i+1)
		}
	}
	if !s.isRunning {
		c.releaseLocked(s)
	}
}

// releaseLocked stops counting a stream, and returns it to the pool. Nothing may use the stream
// afterwards.
func (c *conn) releaseLocked(s *stream) {
	if s.isRestricted {
		c.restrictedStreams--
	}
	if c.openStreams--; c.openStreams == 0 {
		c.idleSince = time.Now()
	}
	if s.exchange == nil {
		streamPool.Put(s)
	}
}
