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

// A conn is a connection. One goroutine, the reader, reads it. Any goroutine may write.
type conn struct {
	server *Server
	nc     net.Conn             // the network connection
	tls    *tls.ConnectionState // nil without TLS
	ctx    context.Context      // of calls without a deadline; close cancels it
	cancel context.CancelFunc

	// Only the reader uses the fields from here to mu.
	in           input
	framer       *http2.Framer
	headers      headers
	batch        []*stream // requests that have arrived completely and have no handler yet
	allowance    allowance // of frames that carry no part of a request
	lastRead     time.Time
	readDeadline time.Time // the read deadline that the reader has set; zero: none, or it has passed
	isPinged     bool      // whether a ping was sent since lastRead

	mu                 sync.Mutex // guards the fields below
	changed            sync.Cond  // signals that outgoing was written, a window was opened, an exchange changed, or the connection was closed
	streams            map[uint32]*stream
	openStreams        int       // streams that count for MaxStreams, including cancelled ones whose handler still runs
	restrictedStreams  int       // open streams of restricted methods
	incompleteRequests int       // streams in the state arriving
	runningHandlers    int       // handlers that run in other goroutines
	blockedExchanges   int       // exchanges that wait for a window
	bufferedBytes      int       // bytes of incomplete messages, and of headers that are kept for the fallback
	receivedBytes      int       // bytes of DATA for which no WINDOW_UPDATE of the connection was sent yet
	keptBytes          int       // those of receivedBytes that are kept until the fallback reads them
	lastID             uint32    // the largest ID of a stream that the client has opened
	idleSince          time.Time // when openStreams became 0
	outgoing           []byte    // bytes that the next write sends
	spare              []byte    // memory for the next outgoing
	isWriting          bool      // a goroutine writes to nc
	isClosed           bool
	sendWindow         int64     // bytes of DATA that the client still accepts on the connection
	initialSendWindow  int64     // bytes of DATA that the client accepts on a new stream
	maxHeaderList      uint32    // bytes of headers that the client accepts
	mustShrink         bool      // the client has made its header table smaller, so the next header block must begin with the instruction shrink
	hasShrunk          bool      // a header block has begun with shrink, so later blocks do not need it
	blockedStreams     []*stream // streams whose responses wait for a window, the oldest first
	drainState         drainState
	drainStateSince    time.Time // when drainState changed
	drainAt            time.Time // the end of MaxAge; zero: none
	mustTick           bool      // the reader must call tick
	sweptAt            time.Time // when sweepLocked last examined all streams
}

// Sizes and times of HTTP/2, and bounds of a connection.
const (
	frameHeader       = 9           // bytes of a frame's header
	maxFrameBytes     = 16 << 10    // bytes of a frame's payload, in both directions; HTTP/2 allows no smaller bound
	initialWindow     = 1<<16 - 1   // bytes: the window of a connection or a stream at its beginning, in HTTP/2
	connReceiveWindow = 1 << 20     // bytes that the client may send on a connection
	maxBufferedBytes  = 1 << 20     // bytes of incomplete requests of a connection; also of a whole request of the fallback
	maxOutgoingBytes  = 256 << 10   // bytes of outgoing above which nothing more is read
	maxSpareBytes     = 64 << 10    // bytes of the largest outgoing whose memory is reused
	maxWaitingBytes   = 16 << 10    // bytes of an incomplete message with which the fallback begins; a call then takes no more memory than was sent
	maxBatchRequests  = 256         // requests that are handled together
	maxListLength     = 32          // calls of a list. A client with 64 open calls then has two lists: one can arrive while the store decides the other
	maxRestricted     = 16          // open calls of restricted methods
	maxContinuations  = 32          // CONTINUATION frames of a header block
	drainPause        = time.Second // the longest wait for the answer to goAwayPing
	lingerTime        = time.Second // how long the client may take to read the last frames
	maxLingerBytes    = 1 << 20     // bytes that are read and discarded during lingerTime
)

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{
		server: s, nc: nc, in: input{nc: nc}, streams: make(map[uint32]*stream),
		sendWindow: initialWindow, initialSendWindow: initialWindow, maxHeaderList: math.MaxUint32,
	}
	c.changed.L = &c.mu
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.framer = http2.NewFramer(io.Discard, &c.in)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxFrameBytes)
	c.headers.decoder = hpack.NewDecoder(hpackTable, c.headers.add)
	c.headers.decoder.SetMaxStringLength(s.options.MaxHeaderList)
	c.headers.maxHeaderList = s.options.MaxHeaderList
	c.idleSince = time.Now()
	c.lastRead, c.allowance = c.idleSince, allowance{maxAllowance, c.idleSince}
	if age := s.options.MaxAge; age > 0 {
		c.drainAt = c.idleSince.Add(age*9/10 + rand.N(age/5+1)) // MaxAge ± 10 %
	}
	return c
}

// serve serves the client until the client leaves, violates the protocol or exceeds a timeout, or
// until the server is closed.
func (c *conn) serve() {
	defer panicked.Recover("a gRPC client is served")
	c.run()
}

// run serves like serve, and lets a panic through. Tests call it.
func (c *conn) run() {
	err := c.handshake()
	for err == nil {
		if err = c.handleNext(); len(c.batch) >= maxBatchRequests {
			c.dispatch()
		}
	}
	c.dispatch() // requests that arrived before the error
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

// tlsConn has methods of tls.Conn.
type tlsConn interface {
	HandshakeContext(context.Context) error
	ConnectionState() tls.ConnectionState
}

// handshake performs the handshakes of TLS and HTTP/2.
func (c *conn) handshake() error {
	o := &c.server.options
	c.nc.SetDeadline(time.Now().Add(o.ReadTimeout))
	if conn, isTLS := c.nc.(tlsConn); isTLS {
		if err := conn.HandshakeContext(c.ctx); err != nil {
			return err
		}
		state := conn.ConnectionState()
		if c.tls = &state; state.NegotiatedProtocol != http2.NextProtoTLS {
			return errors.New("the client does not offer the protocol h2")
		}
	}
	c.mu.Lock()
	c.outgoing = appendFrame(c.outgoing, 2*6, http2.FrameSettings, 0, 0) // two settings of 6 bytes
	c.outgoing = appendSetting(c.outgoing, http2.SettingMaxConcurrentStreams, uint32(o.MaxStreams))
	c.outgoing = appendSetting(c.outgoing, http2.SettingMaxHeaderListSize, uint32(o.MaxHeaderList))
	c.outgoing = appendWindowUpdate(c.outgoing, 0, connReceiveWindow-initialWindow)
	c.mu.Unlock()
	c.flush()
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
	return c.handleSettings(settings)
}

// handleNext reads and handles one frame.
func (c *conn) handleNext() error {
	if err := c.wait(); err != nil {
		return err
	}
	f, err := c.readFrame()
	if se, ok := errors.AsType[http2.StreamError](err); ok {
		return c.handleStreamError(se)
	}
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return c.handleHeaders(f)
	case *http2.DataFrame:
		return c.handleData(f)
	case *http2.SettingsFrame:
		if f.IsAck() {
			return c.spendAllowance(1)
		}
		return c.handleSettings(f)
	case *http2.WindowUpdateFrame:
		return c.handleWindowUpdate(f)
	case *http2.PingFrame:
		return c.handlePing(f)
	case *http2.RSTStreamFrame:
		return c.handleReset(f)
	case *http2.PushPromiseFrame:
		return connectionError{http2.ErrCodeProtocol, "a client cannot push"}
	}
	return c.spendAllowance(1) // GOAWAY, PRIORITY, PRIORITY_UPDATE and unknown frames
}

// readFrame reads a frame. The frame is valid until the next call.
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
		// The header block is lost. The block might have changed the header table, so later blocks could
		// not be decoded, and the whole connection must end.
		return nil, connectionError{http2.ErrCodeProtocol, "the padding of HEADERS is too long"}
	}
	return nil, err
}

// wait waits until a whole frame has arrived. If none has arrived yet, wait first dispatches the
// batch. While it waits, it calls tick whenever timeouts or pings are due.
func (c *conn) wait() error {
	if c.in.hasFrame() {
		return nil
	}
	c.dispatch()
	c.flush()
	c.waitForWrites()
	began := time.Now() // not later than the arrival of the frame's first byte
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
		if c.clearInterrupt() {
			continue
		}
		err = c.in.fill()
		switch {
		case err == nil:
			c.lastRead, c.isPinged = time.Now(), false
			if c.in.hasFrame() {
				return nil
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.readDeadline = time.Time{}
			if n > 0 && time.Since(began) >= c.server.options.ReadTimeout {
				return err
			}
		default:
			return err
		}
	}
}

// setReadDeadline sets the deadline of reads to due. A present deadline that is earlier than due by
// at most an eighth of the time left stays. Setting a deadline is expensive, and an early timeout
// only makes wait try again.
func (c *conn) setReadDeadline(now, due time.Time) {
	if c.readDeadline.After(due) || c.readDeadline.Sub(now) < due.Sub(now)*7/8 {
		c.readDeadline = due
		c.nc.SetReadDeadline(due)
	}
}

// interruptLocked makes the reader call tick, which returns a new deadline.
func (c *conn) interruptLocked() {
	c.mustTick = true
	c.nc.SetReadDeadline(time.Now()) // a deadline that has passed ends a Read immediately
}

// clearInterrupt returns whether tick must be called again, and sets mustTick to false.
func (c *conn) clearInterrupt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	mustTick := c.mustTick
	c.mustTick = false
	return mustTick
}

var (
	errSilent  = errors.New("the client does not answer a ping")
	errDrained = errors.New("the connection was drained")
)

// tick does what is due by now: it drains, sends pings and cancels late streams. tick returns the
// time at which it must be called again.
func (c *conn) tick(now time.Time) (due time.Time, err error) {
	o := &c.server.options
	c.mu.Lock()
	defer c.unlockAndFlush()
	if c.isClosed {
		return due, net.ErrClosed
	}
	switch c.drainState {
	case notDraining:
		if c.openStreams == 0 {
			due = c.idleSince.Add(o.IdleTimeout)
		}
		due = earlier(due, c.drainAt)
		if !due.IsZero() && !now.Before(due) {
			c.announceLocked(now)
			due = now.Add(drainPause)
		}
	case announced:
		if due = c.drainStateSince.Add(drainPause); !now.Before(due) {
			c.finalizeLocked(now)
			due = now.Add(o.MaxAgeGrace)
		}
	case final:
		if due = c.drainStateSince.Add(o.MaxAgeGrace); !now.Before(due) {
			return due, errDrained
		}
	case ended:
		if due = c.drainStateSince.Add(lingerTime); !now.Before(due) {
			return due, errDrained
		}
	}
	if c.openStreams > 0 {
		silentAt := c.lastRead.Add(o.KeepAlive) // when the client has been silent for too long
		if c.isPinged {
			silentAt = silentAt.Add(o.ReadTimeout)
		}
		if !now.Before(silentAt) {
			if c.isPinged {
				return due, errSilent
			}
			c.isPinged = true
			c.outgoing = appendPing(c.outgoing, 0, [8]byte{})
			silentAt = now.Add(o.ReadTimeout)
		}
		due = earlier(due, silentAt)
		due = earlier(due, c.sweepLocked(now))
	}
	if due.IsZero() {
		due = now.Add(o.KeepAlive)
	}
	return due, nil
}

// earlier returns the earlier of two times. The zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// sweepLocked cancels requests that have not arrived in time, and responses that the client does
// not accept in time. sweepLocked returns the time at which it must be called again. This is the
// zero time if all requests are complete and no response waits.
func (c *conn) sweepLocked(now time.Time) time.Time {
	o := &c.server.options
	if c.incompleteRequests == 0 && len(c.blockedStreams) == 0 && c.blockedExchanges == 0 {
		return time.Time{}
	}
	every := min(o.ReadTimeout, o.WriteTimeout) / 4
	if now.Sub(c.sweptAt) < every {
		return c.sweptAt.Add(every)
	}
	c.sweptAt = now
	for _, s := range c.streams {
		waited := now.Sub(s.stateSince)
		isRequestLate := s.state == arriving && waited >= o.ReadTimeout
		isResponseLate := s.state == answering && waited >= o.WriteTimeout || s.exchange.isBlockedFor(now, o.WriteTimeout)
		if isRequestLate || isResponseLate {
			c.abortLocked(s, http2.ErrCodeCancel)
		}
	}
	return now.Add(every)
}

// close closes the connection immediately, and sends nothing more.
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
