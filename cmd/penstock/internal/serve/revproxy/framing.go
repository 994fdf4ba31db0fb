package revproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// A framedConn is a connection to an HTTP/1 upstream. It is not reused after a response with both
// Content-Length and Transfer-Encoding: the upstream and net/http may disagree where such a
// response ends, and the rest would be read as the response to another client's request (RFC 9112,
// 6.1 and 6.3). net/http drops the Content-Length and continues, so the framedConn adds Connection:
// close to such a response.
//
// It also sends no request twice. If a reused connection ends before a response has begun, net/http
// repeats requests without a body, although the upstream may have received them. The framedConn
// cancels such a request, unless nothing of it was written.
type framedConn struct {
	net.Conn

	mu       sync.Mutex
	head     headParser
	pending  []byte                  // changed bytes that Read has not returned yet
	giveUp   context.CancelCauseFunc // cancels the request whose response has not begun; nil if there is none
	isSent   bool                    // part of that request may have been written
	hasEnded bool                    // a read has failed
}

const connectionClose = "Connection: close\r\n"

// expect is called before a request is sent: the next bytes that are read are the head of its
// response. giveUp cancels the request.
func (c *framedConn) expect(giveUp context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.head = headParser{isReading: true, inStatusLine: true}
	c.giveUp, c.isSent = giveUp, false
}

// beginWrite must be called before each write. If it fails, the upstream receives nothing.
func (c *framedConn) beginWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.giveUp == nil {
		return nil
	}
	if c.hasEnded && !c.isSent {
		return net.ErrClosed
	}
	c.isSent = true
	return nil
}

// noteReadLocked must be called with the result of each read from the connection.
func (c *framedConn) noteReadLocked(n int, err error) {
	if n > 0 {
		c.giveUp = nil
	}
	if err == nil {
		return
	}
	c.hasEnded = true
	if c.giveUp != nil && c.isSent {
		c.giveUp(fmt.Errorf("the upstream closed the connection without a response: %w", err))
	}
}

func (c *framedConn) Write(p []byte) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *framedConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	if len(c.pending) > 0 {
		n := copy(p, c.pending)
		c.pending = c.pending[n:]
		c.mu.Unlock()
		return n, nil
	}
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteReadLocked(n, err)
	at := c.head.parse(p[:n])
	if at < 0 {
		return n, err
	}
	changed := append(append(bytes.Clone(p[:at]), connectionClose...), p[at:n]...)
	n = copy(p, changed)
	c.pending = changed[n:] // err is not lost: a later read of the connection returns it again
	return n, nil
}

// ReadFrom implements io.ReaderFrom, so that the kernel can copy directly.
func (c *framedConn) ReadFrom(r io.Reader) (int64, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	return io.Copy(c.Conn, r)
}

// CloseWrite ends one direction of a WebSocket.
func (c *framedConn) CloseWrite() error {
	if conn, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return http.ErrNotSupported
}

// A headParser parses response heads as they arrive: those of interim responses and the final one.
type headParser struct {
	isReading    bool   // false: the next bytes do not belong to a head
	inStatusLine bool   // the line is the status line
	hasLength    bool   // there is a Content-Length
	isChunked    bool   // there is a Transfer-Encoding
	isInterim    bool   // the status is 1xx, and another head follows
	line         []byte // the first bytes of the current line
}

// maxLine is how many bytes of a line are kept: enough for both header names, and some spaces.
const maxLine = 32

// parse parses p. It returns where connectionClose must be inserted, or -1.
func (h *headParser) parse(p []byte) int {
	for i := 0; h.isReading && i < len(p); i++ {
		if h.hasLength && h.isChunked && h.beginsHeader(p[i]) {
			h.isReading = false
			return i
		}
		h.next(p[i])
	}
	return -1
}

// beginsHeader reports whether a header can be inserted before the byte b. A line that begins with
// a space continues the header before it.
func (h *headParser) beginsHeader(b byte) bool { return len(h.line) == 0 && b != ' ' && b != '\t' }

// next parses one byte. It acts at the end of a line.
func (h *headParser) next(b byte) {
	if b != '\n' {
		if len(h.line) < maxLine {
			h.line = append(h.line, b)
		}
		return
	}
	line := bytes.TrimSuffix(h.line, []byte("\r"))
	h.line = h.line[:0]
	switch {
	case h.inStatusLine:
		_, code, _ := bytes.Cut(line, []byte(" "))
		*h = headParser{isReading: true, line: h.line}
		// After 101, no other head follows: the connection has another protocol.
		h.isInterim = len(code) > 0 && code[0] == '1' && !bytes.HasPrefix(code, []byte("101"))
	case len(line) == 0:
		h.isReading = h.isInterim
		h.inStatusLine = true
	default:
		name, _, _ := bytes.Cut(line, []byte(":"))
		name = bytes.TrimSpace(name)
		h.hasLength = h.hasLength || bytes.EqualFold(name, []byte("Content-Length"))
		h.isChunked = h.isChunked || bytes.EqualFold(name, []byte("Transfer-Encoding"))
	}
}
