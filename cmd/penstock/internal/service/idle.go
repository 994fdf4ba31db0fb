package service

import (
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
)

// An idleList has the idle connections of an http.Server: new ones, whose first header has not
// arrived yet, and those that were kept alive after a request. Probes need room at the admin
// address, so a new connection there takes the place of the one that has been idle longest.
type idleList struct {
	mu    sync.Mutex
	conns []net.Conn    // the longest idle first
	added chan struct{} // has an element if a connection has become idle since the last receive
}

func newIdleList() *idleList { return &idleList{added: make(chan struct{}, 1)} }

// note records the new state of a connection. It is the ConnState of an http.Server.
func (l *idleList) note(conn net.Conn, state http.ConnState) {
	isIdle := state == http.StateNew || state == http.StateIdle
	l.mu.Lock()
	if i := slices.Index(l.conns, conn); i >= 0 {
		l.conns = slices.Delete(l.conns, i, i+1)
	}
	if isIdle {
		l.conns = append(l.conns, conn)
	}
	l.mu.Unlock()
	if isIdle {
		select {
		case l.added <- struct{}{}:
		default:
		}
	}
}

// closeLongest closes the connection that has been idle longest. It returns false if there is none.
func (l *idleList) closeLongest() bool {
	l.mu.Lock()
	if len(l.conns) == 0 {
		l.mu.Unlock()
		return false
	}
	conn := l.conns[0]
	l.conns = slices.Delete(l.conns, 0, 1)
	l.mu.Unlock()
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn() // tls.Conn.Close would wait until an alert is sent; this Close does not
	}
	conn.Close()
	return true
}
