package service

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/internal/directsocket"
)

// limitConnections limits how many connections are open at the same time. At the limit it calls
// onFull, and the next connection waits in the kernel's queue until another one is closed.
func limitConnections(l net.Listener, limit int, onFull func()) *limitedListener {
	return &limitedListener{Listener: l, open: make(chan struct{}, limit), onFull: onFull, closed: make(chan struct{})}
}

type limitedListener struct {
	net.Listener
	open   chan struct{} // an element for each open connection
	idle   *idleList     // connections that may be closed to make room for new ones; nil: none
	onFull func()
	inUse  atomic.Int64 // open connections that Accept has returned
	close  sync.Once
	closed chan struct{}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	if l.idle != nil { // accept first, so that idle connections are only closed for a new one
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if !l.takePlace() {
			conn.Close()
			return nil, net.ErrClosed
		}
		return l.wrap(conn)
	}
	if !l.takePlace() {
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.open
		return nil, err
	}
	return l.wrap(conn)
}

// takePlace reserves a place for one connection, and waits until one is free. It returns false if
// the listener is closed.
func (l *limitedListener) takePlace() bool {
	var becameIdle chan struct{} // nil without an idleList, so it never receives
	if l.idle != nil {
		becameIdle = l.idle.added
	}
	isLogged := false
	for {
		select {
		case l.open <- struct{}{}:
			return true
		default:
		}
		var endOfGrace <-chan time.Time // nil: there is none to wait for
		if l.idle != nil {
			isClosed, wait := l.idle.closeLongest()
			if isClosed {
				continue
			}
			if wait > 0 {
				endOfGrace = time.After(wait)
			}
		}
		if !isLogged {
			l.onFull()
			isLogged = true
		}
		select {
		case l.open <- struct{}{}:
			return true
		case <-becameIdle:
		case <-endOfGrace:
		case <-l.closed:
			return false
		}
	}
}

func (l *limitedListener) wrap(conn net.Conn) (net.Conn, error) {
	l.inUse.Add(1)
	release := sync.OnceFunc(func() {
		l.inUse.Add(-1)
		<-l.open
	})
	switch conn := conn.(type) {
	case *net.TCPConn:
		return &limitedTCP{TCPConn: conn, socket: directsocket.New(conn), release: release}, nil
	case *net.UnixConn:
		return &limitedUnix{UnixConn: conn, socket: directsocket.New(conn), release: release}, nil
	}
	return nil, fmt.Errorf("unknown type of connection %T", conn)
}

func (l *limitedListener) connections() int { return int(l.inUse.Load()) }

func (l *limitedListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A limitedTCP makes room for another connection when it is closed. It has all methods of a TCP
// connection, because http.Server needs some.
type limitedTCP struct {
	*net.TCPConn
	heldMemory
	socket  io.ReadWriter // reads and writes the connection with less CPU; see package directsocket
	release func()
}

func (c *limitedTCP) Read(b []byte) (int, error)  { return c.readFrom(c.socket, b) }
func (c *limitedTCP) Write(b []byte) (int, error) { return c.socket.Write(b) }

func (c *limitedTCP) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}

type limitedUnix struct {
	*net.UnixConn
	heldMemory
	socket  io.ReadWriter // reads and writes the connection with less CPU; see package directsocket
	release func()
}

func (c *limitedUnix) Read(b []byte) (int, error)  { return c.readFrom(c.socket, b) }
func (c *limitedUnix) Write(b []byte) (int, error) { return c.socket.Write(b) }

func (c *limitedUnix) Close() error {
	defer c.release()
	return c.UnixConn.Close()
}

// openListener listens on host:port, or on unix:/path. It replaces an abandoned socket.
func openListener(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return config.Listen(ctx, "tcp", address)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return config.Listen(ctx, "unix", path) // fails if the path has another kind of file
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return nil, fmt.Errorf("another process listens on %s", path)
	}
	if !isAbandoned(err) {
		return nil, fmt.Errorf("another process may listen on %s: %w; if none does, remove the file", path, err)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return config.Listen(ctx, "unix", path)
}

// connectionsFull returns a function that logs, at most once a minute, that a listener is full.
func (s *service) connectionsFull(name string, limit int64) func() {
	line := &logthrottle.Line{Every: time.Minute}
	return func() {
		if _, isDue := line.Due(); isDue {
			s.Log.Warn("max_connections is reached; new connections wait until one is closed", "address", name, "limit", limit)
		}
	}
}
