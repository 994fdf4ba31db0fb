package fastgrpc

import (
	"context"
	"encoding/binary"
	"log"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A stream is a call on a connection.
type stream struct {
	Call
	id       uint32
	handler  Handler
	list     *ListHandler // nil: each call is handled by itself
	others   []*stream    // that are handled in a list with this one
	exchange *exchange    // of a call that the fallback serves; else nil
	deadline *deadline    // nil if the call has none
	timeout  time.Duration

	// The connection's mutex guards the rest, but for what the reader alone uses.
	state        streamState
	isRemoved    bool // from conn.streams: the response is dropped
	isRunning    bool
	isPublic     bool      // conn.public counts it
	hasEnded     bool      // the client has sent all
	since        time.Time // when the request began to arrive, or the response to wait
	window       int64     // bytes of DATA that the client accepts
	received     int       // bytes that no WINDOW_UPDATE of the stream has returned
	credit       int       // those of received that an exchange no longer keeps
	prefix       [5]byte   // of the message: flag and size
	prefixLength int
	size         int    // of the message, once the prefix is complete
	rest         []byte // of the response, that waits for a window
}

// A streamState is how far a unary call is.
type streamState uint8

const (
	arriving  streamState = iota
	decided               // the handler runs, or will
	answering             // the response waits for a window
)

// maxKept is how many bytes of a message or of a response a stream keeps for the next call.
const maxKept = 4 << 10

var streamPool = sync.Pool{New: func() any { return new(stream) }}

func newStream(c *conn, id uint32) *stream {
	s := streamPool.Get().(*stream)
	request, response := s.Request[:0], s.Response[:0]
	if cap(request) > maxKept {
		request = nil
	}
	if cap(response) > maxKept {
		response = nil
	}
	*s = stream{Call: Call{Request: request, Response: response, conn: c}, id: id}
	return s
}

// requestHeaders opens a stream, or ends one with its trailers.
func (c *conn) requestHeaders(f *http2.HeadersFrame) error {
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
		return connectionError{http2.ErrCodeProtocol, "a client opens streams with odd numbers"}
	}
	if id <= c.lastID {
		return c.trailersLocked(id, isEnd)
	}
	if c.drainState == final {
		return c.spend(1) // the client knows that it is not served
	}
	c.lastID = id
	if r.isCorrupt || r.path == "" || r.scheme == "" {
		c.out = appendReset(c.out, id, http2.ErrCodeProtocol)
		return c.spend(costOfMistake)
	}
	refused := r.check()
	isPublic := c.server.options.IsPublic != nil && c.server.options.IsPublic(r.path)
	if refused == nil && (c.open >= c.server.options.MaxStreams || isPublic && c.public >= maxPublic) {
		c.out = appendReset(c.out, id, http2.ErrCodeRefusedStream)
		return c.spend(1)
	}
	if refused == nil {
		refused = c.authorize(r)
	}
	if refused == nil && r.hasTimeout && r.timeout == 0 {
		refused = &refusal{200, status.New(codes.DeadlineExceeded, context.DeadlineExceeded.Error())}
	}
	handler := c.server.options.Methods[r.path]
	isFallback := c.server.options.Fallback != nil && (handler == nil || !r.isPlain() || !r.isProto())
	if refused == nil && !isFallback {
		switch {
		case handler == nil:
			refused = &refusal{200, status.Newf(codes.Unimplemented, "unknown method %s", r.path)}
		case !r.isPlain():
			refused = &refusal{200, status.Newf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", r.encoding)}
		}
	}
	if refused != nil {
		c.refuseLocked(id, refused, isEnd)
		return nil
	}
	s := newStream(c, id)
	s.list = c.server.lists[r.path]
	s.handler, s.timeout, s.since, s.window = handler, -1, c.lastRead, c.streamWindow
	s.trace = r.trace
	if r.hasTimeout {
		s.timeout = r.timeout
	}
	c.streams[id] = s
	c.open++
	if s.isPublic = isPublic; isPublic {
		c.public++
	}
	if isFallback {
		c.exchangeLocked(s, r, isEnd)
		return nil
	}
	c.incomplete++
	if isEnd {
		c.completeLocked(s)
	}
	return nil
}

// wholeBlock returns the header block of a request. It is valid until the next call.
func (c *conn) wholeBlock(f *http2.HeadersFrame) ([]byte, error) {
	block := f.HeaderBlockFragment()
	if f.HeadersEnded() {
		return block, nil
	}
	h := &c.headers
	h.block = append(h.block[:0], block...)
	for parts := 0; ; parts++ {
		if parts == maxParts || len(h.block) > h.maxList+maxFrame {
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
	if cap(h.block) > maxKept {
		h.block = nil
	}
	return block, nil
}

// trailersLocked ends a request whose headers came before.
func (c *conn) trailersLocked(id uint32, isEnd bool) error {
	s := c.streams[id]
	switch {
	case s == nil, s.hasEnded:
		c.out = appendReset(c.out, id, http2.ErrCodeStreamClosed)
		if s != nil {
			c.removeLocked(s)
		}
		return c.spend(costOfMistake)
	case !isEnd:
		c.abortLocked(s, http2.ErrCodeProtocol)
		return c.spend(costOfMistake)
	case s.exchange != nil:
		s.exchange.endLocked()
		return nil
	}
	c.completeLocked(s)
	return nil
}

func (c *conn) authorize(r *request) *refusal {
	if c.server.options.Authorize == nil {
		return nil
	}
	err := c.server.options.Authorize(Caller{Method: r.path, Authorization: r.authorization, Addr: c.nc.RemoteAddr()})
	if err == nil {
		return nil
	}
	return &refusal{200, statusOf(err)}
}

// refuseLocked answers a request before its message has been read.
func (c *conn) refuseLocked(id uint32, r *refusal, hasEnded bool) {
	block := appendStatus(c.blockLocked(), r.httpStatus)
	block = appendField(block, "content-type", grpcContentType)
	block = appendStatusFields(block, r.status, c.maxList)
	c.out = appendHeaders(c.out, block, id, true)
	if !hasEnded {
		c.out = appendReset(c.out, id, http2.ErrCodeNo)
	}
}

// blockLocked returns the beginning of a header block.
func (c *conn) blockLocked() []byte {
	block := make([]byte, 0, 128)
	if c.mustShrink && !c.hasShrunk {
		c.hasShrunk = true
		block = append(block, shrink)
	}
	return block
}

// data takes over a part of a message.
func (c *conn) data(f *http2.DataFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int(f.Length)
	if c.received += n; c.received > connWindow {
		return connectionError{http2.ErrCodeFlowControl, "more DATA than the window of the connection"}
	}
	s := c.streams[f.StreamID]
	if s == nil || s.exchange == nil {
		c.creditLocked()
	}
	switch {
	case s == nil && (f.StreamID > c.lastID || f.StreamID%2 == 0):
		return connectionError{http2.ErrCodeProtocol, "DATA is of a stream that was not opened"}
	case s == nil:
		return c.spend(1) // it was refused or cancelled
	case s.hasEnded:
		c.abortLocked(s, http2.ErrCodeStreamClosed)
		return c.spend(costOfMistake)
	}
	if s.received += n; s.received > initialWindow {
		c.abortLocked(s, http2.ErrCodeFlowControl)
		return c.spend(costOfMistake)
	}
	if s.exchange != nil {
		s.exchange.receiveLocked(f)
		if n == 0 && !f.StreamEnded() {
			return c.spend(1)
		}
		return nil
	}
	if refused := c.gatherLocked(s, f.Data()); refused != nil {
		c.refuseLocked(s.id, &refusal{200, refused}, f.StreamEnded())
		c.removeLocked(s)
		return nil
	}
	if f.StreamEnded() {
		c.completeLocked(s)
		return nil
	}
	if s.received > initialWindow/2 {
		c.out = appendWindowUpdate(c.out, s.id, s.received)
		s.received = 0
	}
	if n < smallData {
		return c.spend(1)
	}
	return nil
}

// creditLocked returns to the connection's window what was received, except for the bytes that
// exchanges keep.
func (c *conn) creditLocked() {
	if n := c.received - c.kept; n > connWindow/4 {
		c.out = appendWindowUpdate(c.out, 0, n)
		c.received -= n
	}
}

// gatherLocked adds a part of a message. It returns why the message is refused, or nil.
func (c *conn) gatherLocked(s *stream, data []byte) *status.Status {
	if missing := len(s.prefix) - s.prefixLength; missing > 0 {
		n := copy(s.prefix[s.prefixLength:], data)
		s.prefixLength += n
		data = data[n:]
		if s.prefixLength < len(s.prefix) {
			return nil
		}
		s.size = int(binary.BigEndian.Uint32(s.prefix[1:]))
		if limit := c.server.options.MaxMessage; s.size > limit {
			return status.Newf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", s.size, limit)
		}
		switch s.prefix[0] {
		case 0:
		case 1:
			return status.New(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
		default:
			return status.Newf(codes.Internal, "grpc: received unexpected payload format %d", s.prefix[0])
		}
	}
	if len(s.Request)+len(data) > s.size {
		return status.New(codes.Internal, "a unary call has one message; there are more bytes than it has")
	}
	if c.buffered += len(data); c.buffered > maxBuffered {
		c.buffered -= len(data)
		return status.Newf(codes.ResourceExhausted, "messages of more than %d bytes are arriving on the connection at once", maxBuffered)
	}
	s.Request = append(s.Request, data...)
	return nil
}

// completeLocked is called when a request has arrived.
func (c *conn) completeLocked(s *stream) {
	s.hasEnded = true
	if s.prefixLength < len(s.prefix) || len(s.Request) < s.size {
		text := "the message of the call is cut off"
		if s.prefixLength == 0 {
			text = "a unary call needs a message"
		}
		c.refuseLocked(s.id, &refusal{200, status.New(codes.Internal, text)}, true)
		c.removeLocked(s)
		return
	}
	c.leaveArrivingLocked(s)
	s.state, s.isRunning = decided, true
	c.earn(allowanceOfRequest)
	c.batch = append(c.batch, s)
}

// leaveArrivingLocked is called when a request has arrived or never will.
func (c *conn) leaveArrivingLocked(s *stream) {
	if s.state == arriving && s.exchange == nil {
		c.incomplete--
		c.buffered -= len(s.Request)
	}
}

// abortLocked cancels a stream.
func (c *conn) abortLocked(s *stream, code http2.ErrCode) {
	c.out = appendReset(c.out, s.id, code)
	c.removeLocked(s)
}

// removeLocked ends a stream. If its handler runs, it counts for MaxStreams until that returns.
func (c *conn) removeLocked(s *stream) {
	delete(c.streams, s.id)
	s.isRemoved = true
	if s.exchange != nil {
		s.exchange.cancelLocked()
		return
	}
	c.leaveArrivingLocked(s)
	if s.state == answering {
		if i := slices.Index(c.blocked, s); i >= 0 {
			c.blocked = slices.Delete(c.blocked, i, i+1)
		}
	}
	if !s.isRunning {
		c.releaseLocked(s)
	}
}

// releaseLocked is called when nobody uses a stream any more.
func (c *conn) releaseLocked(s *stream) {
	if s.isPublic {
		c.public--
	}
	if c.open--; c.open == 0 {
		c.idleSince = time.Now()
	}
	if s.exchange == nil {
		streamPool.Put(s)
	}
}

// dispatch has the requests handled that have arrived.
func (c *conn) dispatch() {
	if len(c.batch) == 0 {
		return
	}
	o := &c.server.options
	var shared *deadline
	for _, s := range c.batch {
		if s.timeout < 0 {
			continue
		}
		if shared == nil || shared.timeout != s.timeout {
			shared = newDeadline(c.ctx, s.timeout)
		}
		s.deadline = shared
		shared.calls.Add(1)
	}
	if o.Parallel > 1 {
		c.gatherLists()
	}
	for i, s := range c.batch {
		c.batch[i] = nil
		if s == nil || o.Parallel > 1 && c.start(s) {
			continue
		}
		s.run()
		c.mu.Lock()
		s.answerLocked()
		c.mu.Unlock()
	}
	c.batch = c.batch[:0]
}

// gatherLists makes lists of the calls that arrived together: of one method, with one deadline. The
// first call of a list has the others, which leave the batch.
func (c *conn) gatherLists() {
	var first *stream
	for i, s := range c.batch {
		switch {
		case s.list == nil:
		case first == nil || first.list != s.list || first.deadline != s.deadline || len(first.others)+1 >= min(maxListed, c.server.options.Parallel):
			first = s
		case c.server.listed.Add(1) > int64(c.server.options.MaxParallel):
			c.server.listed.Add(-1)
		default:
			first.others = append(first.others, s)
			c.batch[i] = nil
		}
	}
}

// start has another goroutine handle the stream, or its list, unless too many do.
func (c *conn) start(s *stream) bool {
	n := 1 + len(s.others)
	c.mu.Lock()
	if c.running > 0 && c.running+n > c.server.options.Parallel {
		c.mu.Unlock()
		return false
	}
	c.running += n
	c.mu.Unlock()
	c.server.goroutines.Add(1) // the reader is one of them
	if !c.server.workers.Start(s) {
		c.server.goroutines.Done()
		c.mu.Lock()
		c.running -= n
		c.mu.Unlock()
		return false
	}
	return true
}

// handle runs the handler in a goroutine of its own, and sends the response.
func (s *stream) handle() {
	c := s.conn
	s.run()
	c.mu.Lock()
	c.running -= 1 + len(s.others)
	s.answerLocked()
	isLast := c.running == 0
	c.mu.Unlock()
	c.flush(!isLast)
}

// run calls the handler, and sets Err of the call, or of all calls of the list. A panic becomes an
// error.
func (s *stream) run() {
	ctx := s.conn.ctx
	if s.deadline != nil {
		ctx = s.deadline
		defer s.deadline.end(1 + len(s.others))
	}
	defer func() {
		if value := recover(); value != nil {
			log.Printf("penstock: panic while a gRPC call is handled: %v\n%s", value, debug.Stack())
			err := status.Error(codes.Internal, "the service made a mistake; its log has more")
			s.Err = err
			for _, other := range s.others {
				other.Err = err
			}
		}
	}()
	if len(s.others) == 0 {
		s.Err = s.handler(ctx, &s.Call)
		return
	}
	calls := make([]*Call, 1, 1+len(s.others))
	calls[0] = &s.Call
	for _, other := range s.others {
		calls = append(calls, &other.Call)
	}
	(*s.list)(ctx, calls)
}

// answerLocked sends the response, or those of the list.
func (s *stream) answerLocked() {
	c, others := s.conn, s.others
	c.server.listed.Add(-int64(len(others)))
	c.answerLocked(s, s.Err) // may reuse s
	for _, other := range others {
		c.answerLocked(other, other.Err)
	}
}

// A deadline is the context of calls that arrived together and have one timeout.
type deadline struct {
	context.Context
	cancel  context.CancelFunc
	timeout time.Duration
	calls   atomic.Int32
}

func newDeadline(parent context.Context, timeout time.Duration) *deadline {
	d := &deadline{timeout: timeout}
	d.Context, d.cancel = context.WithTimeout(parent, timeout)
	return d
}

// end is called when some of the calls have ended.
func (d *deadline) end(calls int) {
	if d.calls.Add(-int32(calls)) == 0 {
		d.cancel()
	}
}

// answerLocked sends the response of a handler that has returned.
func (c *conn) answerLocked(s *stream, err error) {
	s.isRunning = false
	if s.isRemoved || c.isClosed {
		c.releaseLocked(s)
		return
	}
	if err != nil {
		c.refuseLocked(s.id, &refusal{200, statusOf(err)}, true)
		delete(c.streams, s.id)
		c.releaseLocked(s)
		return
	}
	c.appendBlockLocked(s.id, headersOfSuccess, http2.FlagHeadersEndHeaders)
	n := int64(len(s.prefix) + len(s.Response))
	if len(c.blocked) == 0 && n <= min(c.window, s.window, maxFrame) {
		c.out = appendFrame(c.out, int(n), http2.FrameData, 0, s.id)
		c.out = binary.BigEndian.AppendUint32(append(c.out, 0), uint32(len(s.Response)))
		c.out = append(c.out, s.Response...)
		c.window -= n
		c.endLocked(s)
		return
	}
	s.rest = append(binary.BigEndian.AppendUint32(make([]byte, 1, n), uint32(len(s.Response))), s.Response...)
	s.state, s.since = answering, time.Now()
	c.blocked = append(c.blocked, s)
	if c.unblockLocked(); len(c.blocked) == 1 {
		c.interruptLocked() // tick cancels it if it waits for too long
	}
}

// appendBlockLocked sends HEADERS with a block that never changes.
func (c *conn) appendBlockLocked(id uint32, block []byte, flags http2.Flags) {
	if c.mustShrink && !c.hasShrunk {
		block = append(c.blockLocked(), block...)
	}
	c.out = append(appendFrame(c.out, len(block), http2.FrameHeaders, flags, id), block...)
}

// endLocked sends the trailers of a response.
func (c *conn) endLocked(s *stream) {
	c.appendBlockLocked(s.id, trailersOfSuccess, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream)
	delete(c.streams, s.id)
	c.releaseLocked(s)
}

// unblockLocked sends what the windows of responses that wait have room for.
func (c *conn) unblockLocked() {
	c.changed.Broadcast() // for exchanges
	if len(c.blocked) == 0 {
		return
	}
	c.blocked = slices.DeleteFunc(c.blocked, func(s *stream) bool {
		s.rest = c.appendDataLocked(s, s.rest)
		if len(s.rest) > 0 {
			return false
		}
		c.endLocked(s)
		return true
	})
}

// appendDataLocked sends as much as the windows have room for, and returns the rest.
func (c *conn) appendDataLocked(s *stream, data []byte) []byte {
	for len(data) > 0 {
		n := min(int64(len(data)), c.window, s.window, maxFrame)
		if n <= 0 {
			break
		}
		c.out = append(appendFrame(c.out, int(n), http2.FrameData, 0, s.id), data[:n]...)
		c.window -= n
		s.window -= n
		data = data[n:]
	}
	return data
}

// flush writes what is to be sent. If another goroutine is writing, that one writes it too. With
// mayWait other goroutines that are about to send something may do so first.
func (c *conn) flush(mayWait bool) {
	c.mu.Lock()
	if c.isWriting || len(c.out) == 0 && !c.isDoneLocked() {
		c.mu.Unlock()
		return
	}
	c.isWriting = true
	if mayWait {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for len(c.out) > 0 && !c.isClosed {
		out := c.out
		c.out = c.spare[:0]
		c.spare = nil
		c.mu.Unlock()
		c.nc.SetWriteDeadline(time.Now().Add(c.server.options.WriteTimeout))
		_, err := c.nc.Write(out)
		c.mu.Lock()
		if cap(out) <= maxSpare {
			c.spare = out
		}
		if err != nil && !c.isClosed {
			c.out = nil
			c.drainState, c.drainedAt = ended, time.Time{} // so tick ends the reader
			c.interruptLocked()
		}
		c.changed.Broadcast()
	}
	c.isWriting = false
	if c.isDoneLocked() && !c.isClosed {
		c.drainState, c.drainedAt = ended, time.Now()
		if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
		}
		c.interruptLocked()
	}
	c.mu.Unlock()
}

// isDoneLocked tells whether nothing remains to be sent on a connection that drains.
func (c *conn) isDoneLocked() bool {
	return c.drainState == final && c.open == 0 && len(c.out) == 0
}

// unlockAndFlush ends a section that may have appended to out.
func (c *conn) unlockAndFlush() {
	mustFlush := len(c.out) > 0 || c.isDoneLocked()
	c.mu.Unlock()
	if mustFlush {
		c.flush(false)
	}
}

// waitForWrites returns when not too much waits to be written.
func (c *conn) waitForWrites() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > maxOut && !c.isClosed && c.isWriting {
		c.changed.Wait()
	}
}
