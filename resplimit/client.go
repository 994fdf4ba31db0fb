package resplimit

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/panicked"
)

// A client is a connection. Only its own goroutine uses its fields.
type client struct {
	server *Server
	conn   net.Conn
	reader *reader
	id     int64

	respVersion     int // the version of RESP: 2 or 3
	name, user      string
	isAuthenticated bool
	authDeadline    time.Time // when the client must have authenticated
	wrongPasswords  int       // how many the client has sent

	commandDeadline time.Time // when the command that is arriving must be complete; zero: it has just begun
}

func newClient(s *Server, conn net.Conn) *client {
	c := &client{server: s, conn: conn, reader: newReader(conn), id: s.lastID.Add(1)}
	c.setAuthDeadline()
	c.reset()
	return c
}

func (c *client) setAuthDeadline() { c.authDeadline = time.Now().Add(c.server.options.ReadTimeout) }

// reset puts the client into the state of a new one. A client that has not authenticated keeps its
// deadline for AUTH.
func (c *client) reset() {
	if c.isAuthenticated {
		c.setAuthDeadline()
	}
	c.respVersion, c.name = 2, ""
	c.setUser(defaultUser, c.server.options.AllowAnonymous)
}

func (c *client) setUser(name string, isAuthenticated bool) {
	c.user, c.isAuthenticated = name, isAuthenticated
	c.reader.most = maxBeforeAuth
	if isAuthenticated {
		c.reader.most = maxBuffer
	}
}

// The bounds of what is kept for a client while its commands are executed. While the client does
// not read its replies, no further command is executed.
const (
	maxJobs       = 256      // jobs that are collected before they are decided
	maxReplyBytes = 16 << 10 // bytes of replies that wait to be written, besides the reply to one command
)

// serve executes the client's commands until it leaves, breaks the protocol or exceeds a timeout,
// or until the server is closed.
func (c *client) serve() {
	defer panicked.Recover("a RESP client is served")
	if c.handshake() != nil {
		return
	}
	for c.receive() == nil {
		b := batchPool.Get().(*batch)
		isOpen := c.answer(b)
		err := c.send(b)
		b.release()
		if !isOpen || err != nil {
			return
		}
	}
}

// handshake makes the handshake of a TLS connection within ReadTimeout. Without this call, the
// first read would make it, within IdleTimeout.
func (c *client) handshake() error {
	conn, isTLS := c.conn.(*tls.Conn)
	if !isTLS {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.server.ctx, c.server.options.ReadTimeout)
	defer cancel()
	return conn.HandshakeContext(ctx)
}

// receive reads once. While a command arrives, its deadline does not move. So a client cannot keep
// its connection by sending a byte now and then.
func (c *client) receive() error {
	o := &c.server.options
	deadline := c.authDeadline
	if c.isAuthenticated && !c.reader.isPartial() {
		deadline = time.Now().Add(o.IdleTimeout)
	} else if c.isAuthenticated {
		if c.commandDeadline.IsZero() {
			c.commandDeadline = time.Now().Add(o.ReadTimeout)
		}
		deadline = c.commandDeadline
	}
	c.conn.SetReadDeadline(deadline)
	if c.server.isClosing.Load() { // checked after SetReadDeadline, which may have overwritten the deadline of Shutdown
		return ErrServerClosed
	}
	return c.reader.fill()
}

// answer executes all commands that have arrived. It returns false if the connection must be
// closed.
func (c *client) answer(b *batch) (isOpen bool) {
	for {
		args, err := c.reader.next()
		if err != nil {
			c.decide(b)
			if _, ok := errors.AsType[protocolError](err); ok {
				b.fail(err.Error())
			}
			return false
		}
		if args == nil {
			c.decide(b)
			return true
		}
		c.commandDeadline = time.Time{}
		if !c.command(b, args) {
			return false
		}
		if len(b.jobs) == maxJobs || len(b.bytes) >= maxReplyBytes {
			c.decide(b)
			if c.send(b) != nil {
				return false
			}
		}
	}
}

func (c *client) send(b *batch) error {
	if len(b.bytes) == 0 {
		return nil
	}
	c.conn.SetWriteDeadline(time.Now().Add(c.server.options.writeTimeout))
	_, err := c.conn.Write(b.bytes)
	b.bytes = b.bytes[:0]
	return err
}

// A client takes a batch from batchPool only while it executes commands.
var batchPool = sync.Pool{New: func() any { return &batch{lastByKey: make(map[string]int)} }}

// A Credential authenticates clients that send it by AUTH or HELLO.
type Credential struct {
	// User is the name that AUTH must state. An AUTH without a name is for the user "default". If
	// User is empty, the Password is a token: AUTH may state any name with the token, or none.
	User string

	// Password must not be empty.
	Password string
}

// Why a client is rejected.
const (
	wrongPassword = "wrong_password"
	noPassword    = "no_password"
)

func (c *client) reportAuthFailure(reason string) {
	if report := c.server.options.AuthFailed; report != nil {
		report(reason, c.conn.RemoteAddr())
	}
}

// defaultUser is the user of an AUTH without a name.
const defaultUser = "default"

// credentials are the hashes of credentials. A comparison of hashes takes a time that reveals
// nothing about a password, not even its length.
type credentials []credential

type credential struct {
	isToken        bool
	user, password [sha256.Size]byte
}

func hashCredentials(list []Credential) (all credentials) {
	for _, c := range list {
		all = append(all, credential{c.User == "", sha256.Sum256([]byte(c.User)), sha256.Sum256([]byte(c.Password))})
	}
	return all
}

// hasMatch reports whether a credential has this user and password. All credentials are compared,
// so the time does not depend on which of them matches.
func (all credentials) hasMatch(user, password []byte) bool {
	userHash, passwordHash := sha256.Sum256(user), sha256.Sum256(password)
	found := 0
	for i := range all {
		c := &all[i]
		userMatch := subtle.ConstantTimeCompare(c.user[:], userHash[:]) // 1 or 0
		if c.isToken {
			userMatch = 1
		}
		found |= userMatch & subtle.ConstantTimeCompare(c.password[:], passwordHash[:])
	}
	return found == 1
}
