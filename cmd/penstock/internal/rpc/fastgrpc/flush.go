package fastgrpc

import (
	"runtime"
	"time"
)

// flush writes the outgoing bytes to the connection. If another goroutine is writing already, that
// goroutine also writes the bytes that are outgoing now.
func (c *conn) flush() { c.write(false) }

// flushLater lets other goroutines run and then does what flush does, so that one write can carry
// their responses too.
func (c *conn) flushLater() { c.write(true) }

// write writes the outgoing bytes to the connection. With shouldYield, other goroutines run first.
func (c *conn) write(shouldYield bool) {
	c.mu.Lock()
	if c.isWriting || len(c.outgoing) == 0 && !c.isDoneLocked() {
		c.mu.Unlock()
		return
	}
	c.isWriting = true
	if shouldYield {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for len(c.outgoing) > 0 && !c.isClosed {
		out := c.outgoing
		c.outgoing = c.spare[:0]
		c.spare = nil
		c.mu.Unlock()
		c.nc.SetWriteDeadline(time.Now().Add(c.server.options.WriteTimeout))
		_, err := c.nc.Write(out)
		c.mu.Lock()
		if cap(out) <= maxSpareBytes {
			c.spare = out
		}
		if err != nil && !c.isClosed {
			c.outgoing = nil
			c.drainState, c.drainStateSince = ended, time.Time{} // long ago, so that tick ends the reader
			c.interruptLocked()
		}
		c.changed.Broadcast()
	}
	c.isWriting = false
	if c.isDoneLocked() && !c.isClosed {
		c.drainState, c.drainStateSince = ended, time.Now()
		if halfCloser, ok := c.nc.(interface{ CloseWrite() error }); ok {
			halfCloser.CloseWrite()
		}
		c.interruptLocked()
	}
	c.mu.Unlock()
}

// isDoneLocked reports whether the connection was drained and all outgoing bytes were written, so
// that nothing more will be sent.
func (c *conn) isDoneLocked() bool {
	return c.drainState == final && c.openStreams == 0 && len(c.outgoing) == 0
}

// unlockAndFlush unlocks mu, and flushes if there are outgoing bytes.
func (c *conn) unlockAndFlush() {
	mustFlush := len(c.outgoing) > 0 || c.isDoneLocked()
	c.mu.Unlock()
	if mustFlush {
		c.flush()
	}
}

// isFullLocked reports whether so many bytes are outgoing that nothing should be added.
func (c *conn) isFullLocked() bool { return len(c.outgoing) > maxOutgoingBytes }

// waitForWrites waits while too many bytes are outgoing and another goroutine writes.
func (c *conn) waitForWrites() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.isFullLocked() && !c.isClosed && c.isWriting {
		c.changed.Wait()
	}
}
