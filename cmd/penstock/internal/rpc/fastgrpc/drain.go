package fastgrpc

import (
	"io"
	"math"
	"time"

	"golang.org/x/net/http2"
)

// A drainState is the phase of the graceful end of a connection.
type drainState uint8

const (
	notDraining drainState = iota
	announced              // a GOAWAY that excludes no stream was sent, and then a ping
	final                  // a GOAWAY that excludes new streams was sent
	ended                  // nothing more is written
)

// goAwayPing is the ping that follows the first GOAWAY.
var goAwayPing = [8]byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', '!'}

// drain begins the graceful end of the connection: it sends GOAWAY. The connection is closed after
// its last call.
func (c *conn) drain() {
	c.mu.Lock()
	if c.drainState == notDraining {
		c.announceLocked(time.Now())
	}
	c.interruptLocked()
	c.mu.Unlock()
	c.flush()
}

// announceLocked sends the first GOAWAY. Requests that the client has already sent are still
// served.
func (c *conn) announceLocked(now time.Time) {
	c.drainState, c.drainStateSince = announced, now
	c.outgoing = appendGoAway(c.outgoing, math.MaxInt32, http2.ErrCodeNo, "")
	c.outgoing = appendPing(c.outgoing, 0, goAwayPing)
}

// finalizeLocked sends the second GOAWAY. Streams after lastID are not served.
func (c *conn) finalizeLocked(now time.Time) {
	c.drainState, c.drainStateSince = final, now
	c.outgoing = appendGoAway(c.outgoing, c.lastID, http2.ErrCodeNo, "")
}

// goAway sends a GOAWAY with an error of the client, and drops all streams.
func (c *conn) goAway(e connectionError) {
	c.mu.Lock()
	c.outgoing = appendGoAway(c.outgoing, c.lastID, e.code, e.reason)
	for _, s := range c.streams {
		c.removeLocked(s)
	}
	c.mu.Unlock()
	c.flush()
}

// linger gives the client time to read the last frames. If the connection were closed immediately,
// the client could lose them.
func (c *conn) linger() {
	if halfCloser, ok := c.nc.(interface{ CloseWrite() error }); ok {
		halfCloser.CloseWrite()
	}
	c.nc.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, c.nc, maxLingerBytes)
}
