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

// A framed connection to an HTTP/1 upstream is not used again after a response with both
// Content-Length and Transfer-Encoding. Its end may be where the upstream did not mean it, and what
// follows it would be taken for the answer to somebody else's request (RFC 9112, 6.1 and 6.3).
// net/http drops the Content-Length and goes on; so the connection adds Connection: close to such a
// response.
//
// A framed connection sends nothing twice. When a reused connection ends before a response has
// begun, net/http repeats requests without a body, although the upstream may have got them. So the
// connection then gives the request up, unless nothing of it was written.
type framed struct {
	net.Conn

	mu     sync.Mutex
	head   head
	unread []byte                  // of what was read and changed
	giveUp context.CancelCauseFunc // ends the request whose response has not begun; nil if there is none
	sent   bool                    // something of that request may have been written
	ended  bool                    // reading has failed
}

const closing = "Connection: close\r\n"

// expect is called when a request is about to be sent: the next bytes are the head of its response.
// It is ended by giveUp.
func (c *framed) expect(giveUp context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.head = head{reading: true, status: true}
	c.giveUp, c.sent = giveUp, false
}

// beginWrite must be called before anything is written. After an error the upstream gets nothing of
// the request.
func (c *framed) beginWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.giveUp == nil {
		return nil
	}
	if c.ended && !c.sent {
		return net.ErrClosed
	}
	c.sent = true
	return nil
}

// noteReadLocked is called with what each read from the connection returned.
func (c *framed) noteReadLocked(n int, err error) {
	if n > 0 {
		c.giveUp = nil
	}
	if err == nil {
		return
	}
	c.ended = true
	if c.giveUp != nil && c.sent {
		c.giveUp(fmt.Errorf("the upstream's connection ended without an answer: %w", err))
	}
}

func (c *framed) Write(p []byte) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *framed) Read(p []byte) (int, error) {
	c.mu.Lock()
	if len(c.unread) > 0 {
		n := copy(p, c.unread)
		c.unread = c.unread[n:]
		c.mu.Unlock()
		return n, nil
	}
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteReadLocked(n, err)
	at := c.head.read(p[:n])
	if at < 0 {
		return n, err
	}
	changed := append(append(bytes.Clone(p[:at]), closing...), p[at:n]...)
	n = copy(p, changed)
	c.unread = changed[n:] // and an error comes again at the next Read
	return n, nil
}

// ReadFrom lets the kernel copy where it can.
func (c *framed) ReadFrom(r io.Reader) (int64, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	return io.Copy(c.Conn, r)
}

// CloseWrite is for WebSockets.
func (c *framed) CloseWrite() error {
	if conn, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return http.ErrNotSupported
}

// A head is read as it arrives: the heads of interim responses, and that of the final one.
type head struct {
	reading bool
	status  bool // the line is the status line
	length  bool // there is a Content-Length
	chunked bool // there is a Transfer-Encoding
	interim bool // the status is 1xx, and another head follows
	line    []byte
}

// maxName is how much of a line is kept: the longer of both names, and space.
const maxName = 32

// read reads on, and returns where closing belongs, or -1.
func (h *head) read(p []byte) int {
	for i := 0; h.reading && i < len(p); i++ {
		if h.length && h.chunked && len(h.line) == 0 && p[i] != ' ' && p[i] != '\t' { // else the line before goes on
			h.reading = false
			return i
		}
		h.next(p[i])
	}
	return -1
}

func (h *head) next(b byte) {
	if b != '\n' {
		if len(h.line) < maxName {
			h.line = append(h.line, b)
		}
		return
	}
	line := bytes.TrimSuffix(h.line, []byte("\r"))
	h.line = h.line[:0]
	switch {
	case h.status:
		_, code, _ := bytes.Cut(line, []byte(" "))
		*h = head{reading: true, line: h.line}
		h.interim = len(code) > 0 && code[0] == '1' && !bytes.HasPrefix(code, []byte("101"))
	case len(line) == 0:
		h.reading = h.interim
		h.status = true
	default:
		name, _, _ := bytes.Cut(line, []byte(":"))
		name = bytes.TrimSpace(name)
		h.length = h.length || bytes.EqualFold(name, []byte("Content-Length"))
		h.chunked = h.chunked || bytes.EqualFold(name, []byte("Transfer-Encoding"))
	}
}
