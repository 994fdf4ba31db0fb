package fastgrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/internal/panicked"
)

// A conn is a connection. One goroutine reads it, and any goroutine may write.
type conn struct {
	server *Server
	nc     net.Conn
	tls    *tls.ConnectionState // nil without TLS
	ctx    context.Context      // of calls without a deadline; ends with the connection
	cancel context.CancelFunc

	// Only the reader uses these.
	in        input
	framer    *http2.Framer
	headers   headers
	batch     []*stream // requests that have arrived, and are not yet handled
	allowance allowance
	lastRead  time.Time
	readBy    time.Time // the deadline of reads that is set
	isPinged  bool      // a ping was sent since lastRead

	mu           sync.Mutex
	changed      sync.Cond // out was written, a window was opened, or the connection was closed
	streams      map[uint32]*stream
	open         int       // streams that count for MaxStreams: also those cancelled whose handler runs
	public       int       // those of open that need no token
	incomplete   int       // requests that have not arrived
	running      int       // handlers
	buffered     int       // bytes of incomplete messages
	received     int       // bytes that no WINDOW_UPDATE of the connection has returned
	kept         int       // those of received that exchanges have not read
	lastID       uint32    // of the streams that the client has opened
	idleSince    time.Time // when open became 0
	out          []byte    // what the next write sends
	spare        []byte    // for out
	isWriting    bool
	isClosed     bool
	window       int64     // bytes of DATA that the client accepts
	streamWindow int64     // the initial window of streams
	maxList      uint32    // of headers that the client accepts
	mustShrink   bool      // a header block must tell the client that the header table is not used
	hasShrunk    bool      // one has
	blocked      []*stream // responses that wait for a window, in their order
	drainState   drainState
	drainedAt    time.Time // when drainState changed
	drainAt      time.Time // the end of MaxAge; zero: none
	mustTick     bool      // the reader must call tick
	sweptAt      time.Time
}

// A drainState is how far a connection is in its end.
type drainState uint8

const (
	notDraining drainState = iota
	announced              // a GOAWAY that excludes no stream was sent, and a ping after it
	final                  // a GOAWAY was sent that excludes new streams
	ended                  // nothing will be written
)

// Sizes and times of HTTP/2, and bounds of a connection.
const (
	frameHeader   = 9
	maxFrame      = 16 << 10    // bytes of a frame's payload, in both directions; the least that HTTP/2 allows
	initialWindow = 1<<16 - 1   // bytes, of connections and streams, in HTTP/2
	connWindow    = 1 << 20     // bytes that the client may send on a connection
	maxBuffered   = 1 << 20     // bytes of incomplete messages of a connection
	maxOut        = 256 << 10   // bytes that wait to be written before nothing more is read
	maxSpare      = 64 << 10    // bytes of out that are kept
	maxBatch      = 256         // requests that are gathered
	maxListed     = 32          // calls of a list: a client of 64 streams has two, and the store decides one meanwhile
	maxPublic     = 16          // open calls that need no token
	maxParts      = 32          // CONTINUATION frames of a header block
	drainPause    = time.Second // how long an answer to the ping of a drain is waited for
	lingerTime    = time.Second // how long the client may take to read the last frames
	maxLinger     = 1 << 20     // bytes that are discarded meanwhile
)

// goAwayPing is the ping that follows the first GOAWAY.
var goAwayPing = [8]byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', '!'}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{
		server: s, nc: nc, in: input{nc: nc}, streams: make(map[uint32]*stream),
		window: initialWindow, streamWindow: initialWindow, maxList: math.MaxUint32,
	}
	c.changed.L = &c.mu
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.framer = http2.NewFramer(io.Discard, &c.in)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.headers.decoder = hpack.NewDecoder(hpackTable, c.headers.add)
	c.headers.decoder.SetMaxStringLength(s.options.MaxHeaderList)
	c.headers.maxList = s.options.MaxHeaderList
	c.idleSince = time.Now()
	c.lastRead, c.allowance = c.idleSince, allowance{maxAllowance, c.idleSince}
	if age := s.options.MaxAge; age > 0 {
		c.drainAt = c.idleSince.Add(age*9/10 + rand.N(age/5+1))
	}
	return c
}

// serve serves the client until it leaves, does not keep to the protocol or the timeouts, or the
// server is closed.
func (c *conn) serve() {
	defer panicked.Recover("a gRPC client is served")
	c.run()
}

func (c *conn) run() {
	err := c.begin()
	for err == nil {
		if err = c.next(); len(c.batch) >= maxBatch {
			c.dispatch()
		}
	}
	c.dispatch() // what arrived before the end, or before the mistake
	if ce, ok := errors.AsType[connectionError](err); ok {
		c.goAway(ce)
		c.linger()
	}
}

// A connectionError ends the connection, after a GOAWAY with the code and the reason.
type connectionError struct {
	code   http2.ErrCode
	reason string
}

func (e connectionError) Error() string { return e.code.String() + ": " + e.reason }

// begin makes the handshakes of TLS and HTTP/2.
func (c *conn) begin() error {
	o := &c.server.options
	c.nc.SetDeadline(time.Now().Add(o.ReadTimeout))
	if conn, isTLS := c.nc.(interface {
		HandshakeContext(context.Context) error
		ConnectionState() tls.ConnectionState
	}); isTLS {
		if err := conn.HandshakeContext(c.ctx); err != nil {
			return err
		}
		state := conn.ConnectionState()
		if c.tls = &state; state.NegotiatedProtocol != http2.NextProtoTLS {
			return errors.New("the client does not offer the protocol h2")
		}
	}
	c.mu.Lock()
	c.out = appendFrame(c.out, 12, http2.FrameSettings, 0, 0)
	c.out = appendSetting(c.out, http2.SettingMaxConcurrentStreams, uint32(o.MaxStreams))
	c.out = appendSetting(c.out, http2.SettingMaxHeaderListSize, uint32(o.MaxHeaderList))
	c.out = appendWindowUpdate(c.out, 0, connWindow-initialWindow)
	c.mu.Unlock()
	c.flush(false)
	var preface [len(http2.ClientPreface)]byte
	for c.in.buffered() < len(preface) {
		if err := c.in.fill(); err != nil {
			return err
		}
	}
	if c.in.Read(preface[:]); string(preface[:]) != http2.ClientPreface {
		return connectionError{http2.ErrCodeProtocol, "the client does not speak HTTP/2"}
	}
	for !c.in.hasFrame() {
		if err := c.in.fill(); err != nil {
			return err
		}
	}
	f, err := c.readFrame()
	if err != nil {
		return err
	}
	settings, isSettings := f.(*http2.SettingsFrame)
	if !isSettings || settings.IsAck() {
		return connectionError{http2.ErrCodeProtocol, "the first frame is not SETTINGS"}
	}
	return c.settings(settings)
}

// next reads a frame and acts on it.
func (c *conn) next() error {
	if err := c.wait(); err != nil {
		return err
	}
	f, err := c.readFrame()
	if se, ok := errors.AsType[http2.StreamError](err); ok {
		return c.streamError(se)
	}
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return c.requestHeaders(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.SettingsFrame:
		if f.IsAck() {
			return c.spend(1)
		}
		return c.settings(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.PingFrame:
		return c.ping(f)
	case *http2.RSTStreamFrame:
		return c.reset(f)
	case *http2.PushPromiseFrame:
		return connectionError{http2.ErrCodeProtocol, "a client cannot push"}
	}
	return c.spend(1) // GOAWAY, PRIORITY, PRIORITY_UPDATE and unknown frames
}

// readFrame reads a frame. What it returns is valid until the next call.
func (c *conn) readFrame() (http2.Frame, error) {
	header, err := c.framer.ReadFrameHeader()
	if err == nil {
		var f http2.Frame
		if f, err = c.framer.ReadFrameForHeader(header); err == nil {
			return f, nil
		}
	}
	if errors.Is(err, http2.ErrFrameTooLarge) {
		return nil, connectionError{http2.ErrCodeFrameSize, "the frame is too large"}
	}
	if ce, ok := errors.AsType[http2.ConnectionError](err); ok {
		reason := "the frame is malformed"
		if detail := c.framer.ErrorDetail(); detail != nil {
			reason = detail.Error()
		}
		return nil, connectionError{http2.ErrCode(ce), reason}
	}
	if _, ok := errors.AsType[http2.StreamError](err); ok && header.Type == http2.FrameHeaders {
		return nil, connectionError{http2.ErrCodeProtocol, "the padding of HEADERS is too long"} // the block is not decoded
	}
	return nil, err
}

// wait waits for a whole frame. Before that it has the requests handled that have arrived.
// Meanwhile it does what is due.
func (c *conn) wait() error {
	if c.in.hasFrame() {
		return nil
	}
	c.dispatch()
	c.flush(false)
	c.waitForWrites()
	began := time.Now() // when a frame may have begun to arrive
	for {
		now := time.Now()
		due, err := c.tick(now)
		if err != nil {
			return err
		}
		n := c.in.buffered()
		if n == 0 {
			began = now
		} else {
			due = earlier(due, began.Add(c.server.options.ReadTimeout))
		}
		c.setReadDeadline(now, due)
		if c.isInterrupted() {
			continue
		}
		err = c.in.fill()
		switch {
		case err == nil:
			if c.lastRead, c.isPinged = now, false; c.in.hasFrame() {
				return nil
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.readBy = time.Time{}
			if n > 0 && time.Since(began) >= c.server.options.ReadTimeout {
				return err
			}
		default:
			return err
		}
	}
}

// setReadDeadline sets the deadline of reads, unless the one that is set ends at most an eighth
// earlier: then wait only takes another turn.
func (c *conn) setReadDeadline(now, due time.Time) {
	if c.readBy.After(due) || c.readBy.Sub(now) < due.Sub(now)*7/8 {
		c.readBy = due
		c.nc.SetReadDeadline(due)
	}
}

// interruptLocked has the reader call tick, which then says until when it reads.
func (c *conn) interruptLocked() {
	c.mustTick = true
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// isInterrupted tells whether tick must be called again.
func (c *conn) isInterrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.mustTick
	c.mustTick = false
	return was
}

var (
	errSilent  = errors.New("the client does not answer a ping")
	errDrained = errors.New("the connection was drained")
)

// tick does what is due by now, and returns when the next thing is due.
func (c *conn) tick(now time.Time) (due time.Time, err error) {
	o := &c.server.options
	c.mu.Lock()
	defer c.unlockAndFlush()
	if c.isClosed {
		return due, net.ErrClosed
	}
	switch c.drainState {
	case notDraining:
		if c.open == 0 {
			due = c.idleSince.Add(o.IdleTimeout)
		}
		due = earlier(due, c.drainAt)
		if !due.IsZero() && !now.Before(due) {
			c.announceLocked(now)
			due = now.Add(drainPause)
		}
	case announced:
		if due = c.drainedAt.Add(drainPause); !now.Before(due) {
			c.finalizeLocked(now)
			due = time.Time{}
		}
	case final:
		if due = c.drainedAt.Add(o.MaxAgeGrace); !now.Before(due) {
			return due, errDrained
		}
	case ended:
		if due = c.drainedAt.Add(lingerTime); !now.Before(due) {
			return due, errDrained
		}
	}
	if c.open > 0 {
		silent := c.lastRead.Add(o.KeepAlive)
		if c.isPinged {
			silent = silent.Add(o.ReadTimeout)
		}
		if !now.Before(silent) {
			if c.isPinged {
				return due, errSilent
			}
			c.isPinged = true
			c.out = appendPing(c.out, 0, [8]byte{})
			silent = now.Add(o.ReadTimeout)
		}
		due = earlier(due, silent)
		due = earlier(due, c.sweepLocked(now))
	}
	if due.IsZero() {
		due = now.Add(o.KeepAlive)
	}
	return due, nil
}

// earlier returns the earlier time that is not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// sweepLocked cancels requests that have not arrived in time, and responses that the client does
// not accept. It returns when it is due again; zero: nothing waits.
func (c *conn) sweepLocked(now time.Time) time.Time {
	o := &c.server.options
	if c.incomplete == 0 && len(c.blocked) == 0 {
		return time.Time{}
	}
	every := min(o.ReadTimeout, o.WriteTimeout) / 4
	if now.Sub(c.sweptAt) < every {
		return c.sweptAt.Add(every)
	}
	c.sweptAt = now
	for _, s := range c.streams {
		isLate := s.state == arriving && now.Sub(s.since) >= o.ReadTimeout || s.state == answering && now.Sub(s.since) >= o.WriteTimeout
		if isLate && s.exchange == nil {
			c.abortLocked(s, http2.ErrCodeCancel)
		}
	}
	return now.Add(every)
}

// drain tells the client to go, and ends the connection after its last call.
func (c *conn) drain() {
	c.mu.Lock()
	if c.drainState == notDraining {
		c.announceLocked(time.Now())
	}
	c.interruptLocked()
	c.mu.Unlock()
	c.flush(false)
}

// announceLocked sends the first GOAWAY. Requests that are on their way are still served.
func (c *conn) announceLocked(now time.Time) {
	c.drainState, c.drainedAt = announced, now
	c.out = appendGoAway(c.out, math.MaxInt32, http2.ErrCodeNo, "")
	c.out = appendPing(c.out, 0, goAwayPing)
}

// finalizeLocked sends the GOAWAY that ends the list of requests that are served.
func (c *conn) finalizeLocked(now time.Time) {
	c.drainState, c.drainedAt = final, now
	c.out = appendGoAway(c.out, c.lastID, http2.ErrCodeNo, "")
}

// goAway ends the connection because of a mistake of the client.
func (c *conn) goAway(e connectionError) {
	c.mu.Lock()
	c.out = appendGoAway(c.out, c.lastID, e.code, e.reason)
	for _, s := range c.streams {
		c.removeLocked(s)
	}
	c.mu.Unlock()
	c.flush(false)
}

// linger gives the client time to read the last frames. Closing at once could discard them.
func (c *conn) linger() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
	c.nc.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, c.nc, maxLinger)
}

// close closes the connection at once.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return
	}
	c.isClosed = true
	c.cancel()
	c.nc.Close()
	for _, s := range c.streams {
		c.abortLocked(s, http2.ErrCodeCancel)
	}
	c.changed.Broadcast()
}

// settings takes over the client's settings, and acknowledges them.
func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.HasDuplicates() || f.NumSettings() > maxSettings {
		return connectionError{http2.ErrCodeEnhanceYourCalm, "there are too many settings"}
	}
	c.mu.Lock()
	err := f.ForeachSetting(c.setLocked)
	c.out = appendFrame(c.out, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	c.mu.Unlock()
	if ce, ok := errors.AsType[http2.ConnectionError](err); ok {
		return connectionError{http2.ErrCode(ce), "a setting is out of range"}
	}
	if err != nil {
		return err
	}
	return c.spend(costOfSettings)
}

// maxSettings is above how many settings there are.
const maxSettings = 32

func (c *conn) setLocked(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingInitialWindowSize:
		change := int64(s.Val) - c.streamWindow
		c.streamWindow = int64(s.Val)
		for _, s := range c.streams {
			if s.window += change; s.window > math.MaxInt32 {
				return connectionError{http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE makes the window of a stream too large"}
			}
		}
		c.unblockLocked()
	case http2.SettingHeaderTableSize:
		c.mustShrink = c.mustShrink || s.Val < hpackTable
	case http2.SettingMaxHeaderListSize:
		c.maxList = s.Val
	}
	return nil
}

func (c *conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.window += int64(f.Increment); c.window > math.MaxInt32 {
			return connectionError{http2.ErrCodeFlowControl, "the window of the connection is too large"}
		}
		c.unblockLocked()
		return c.spend(1)
	}
	s := c.streams[f.StreamID]
	if s == nil {
		if f.StreamID > c.lastID || f.StreamID%2 == 0 {
			return connectionError{http2.ErrCodeProtocol, "WINDOW_UPDATE is of a stream that was not opened"}
		}
		return c.spend(1)
	}
	if s.window += int64(f.Increment); s.window > math.MaxInt32 {
		c.abortLocked(s, http2.ErrCodeFlowControl)
	}
	c.unblockLocked()
	return c.spend(1)
}

func (c *conn) ping(f *http2.PingFrame) error {
	c.mu.Lock()
	switch {
	case !f.IsAck():
		c.out = appendPing(c.out, http2.FlagPingAck, f.Data)
	case c.drainState == announced && f.Data == goAwayPing:
		c.finalizeLocked(time.Now())
	}
	c.mu.Unlock()
	return c.spend(1)
}

// reset cancels a stream. Its handler continues, and its response is dropped.
func (c *conn) reset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[f.StreamID]; s != nil {
		c.removeLocked(s)
	} else if f.StreamID > c.lastID || f.StreamID%2 == 0 {
		return connectionError{http2.ErrCodeProtocol, "RST_STREAM is of a stream that was not opened"}
	}
	return c.spend(1)
}

// streamError cancels the stream that a malformed frame is of.
func (c *conn) streamError(e http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[e.StreamID]; s != nil {
		c.abortLocked(s, e.Code)
	} else {
		c.out = appendReset(c.out, e.StreamID, e.Code)
	}
	return c.spend(costOfMistake)
}

// An allowance bounds frames that do nothing for a request. It grows with time and with each
// request.
type allowance struct {
	left int
	at   time.Time // when it last grew with time
}

const (
	maxAllowance       = 10_000
	allowancePerSecond = 100
	allowanceOfRequest = 10
	costOfSettings     = 10
	costOfMistake      = 10
	smallData          = 256 // bytes of a DATA frame that costs something unless it ends a request
)

// spend charges frames.
func (c *conn) spend(cost int) error {
	a := &c.allowance
	if a.left -= cost; a.left >= 0 {
		return nil
	}
	now := time.Now()
	gained := min(now.Sub(a.at), time.Hour) * allowancePerSecond / time.Second
	if a.at = now; gained == 0 {
		return connectionError{http2.ErrCodeEnhanceYourCalm, "there are too many frames that make no request"}
	}
	a.left = min(int(gained), maxAllowance)
	return nil
}

func (c *conn) earn(n int) { c.allowance.left = min(c.allowance.left+n, maxAllowance) }
