package service

import (
	"net"
	"sync"
)

// limitConnections lets so many connections be open at once. When all places are taken, full is
// called, and the next connection is accepted when one is free; until then it waits in the kernel's
// queue.
func limitConnections(l net.Listener, places int, full func()) net.Listener {
	return &limited{Listener: l, places: make(chan struct{}, places), full: full, closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	places chan struct{}
	full   func()
	close  sync.Once
	closed chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	default:
		l.full()
		select {
		case l.places <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &placed{TCPConn: conn.(*net.TCPConn), leave: sync.OnceFunc(func() { <-l.places })}, nil
}

func (l *limited) Close() error {
	l.close.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A placed connection gives its place back when it is closed. It has all methods of a TCP
// connection: http.Server needs some.
type placed struct {
	*net.TCPConn
	leave func()
}

func (c *placed) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}
