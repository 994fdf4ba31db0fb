package service

import (
	"net"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/logthrottle"
)

// limitConnections limits how many connections are open at once. At the limit it calls onFull, and
// the next connection waits in the kernel's queue until another one is closed.
func limitConnections(l net.Listener, limit int, onFull func()) net.Listener {
	return &limitedListener{Listener: l, open: make(chan struct{}, limit), onFull: onFull, closed: make(chan struct{})}
}

type limitedListener struct {
	net.Listener
	open   chan struct{} // an element for each open connection
	onFull func()
	close  sync.Once
	closed chan struct{}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.open <- struct{}{}:
	default:
		l.onFull()
		select {
		case l.open <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.open
		return nil, err
	}
	return &limitedConn{TCPConn: conn.(*net.TCPConn), release: sync.OnceFunc(func() { <-l.open })}, nil
}

func (l *limitedListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A limitedConn makes room for another connection when it is closed. It has all methods of a TCP
// connection, because http.Server needs some.
type limitedConn struct {
	*net.TCPConn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}

// connectionsFull returns a function that logs that a listener is at its limit, at most once a
// minute.
func (s *service) connectionsFull(name string, limit int64) func() {
	line := &logthrottle.Line{Every: time.Minute}
	return func() {
		if _, isDue := line.Due(); isDue {
			s.Log.Warn("max_connections is reached; new connections wait until one is closed", "address", name, "limit", limit)
		}
	}
}
