package service

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// An idleList has the idle connections of an http.Server: those that were kept alive after a
// request. If a listener is full, a new connection takes the place of the one that has been idle
// longest.
type idleList struct {
	// hasNew says that connections whose first header has not arrived are idle too. Then a flood of
	// connections cannot fill the listener, but new connections may end each other.
	hasNew bool

	mu    sync.Mutex
	order list.List                  // of net.Conn, the longest idle first
	conns map[net.Conn]*list.Element // by connection
	added chan struct{}              // has an element if a connection has become idle since the last receive
}

func newIdleList() *idleList {
	return &idleList{conns: make(map[net.Conn]*list.Element), added: make(chan struct{}, 1)}
}

// note records the new state of a connection. It is the ConnState of an http.Server.
func (l *idleList) note(conn net.Conn, state http.ConnState) {
	isIdle := state == http.StateIdle || state == http.StateNew && l.hasNew
	l.mu.Lock()
	l.removeLocked(conn)
	if isIdle {
		l.conns[conn] = l.order.PushBack(conn)
	}
	l.mu.Unlock()
	if isIdle {
		select {
		case l.added <- struct{}{}:
		default:
		}
	}
}

func (l *idleList) removeLocked(conn net.Conn) {
	if element, ok := l.conns[conn]; ok {
		l.order.Remove(element)
		delete(l.conns, conn)
	}
}

// closeLongest closes the connection that has been idle longest. It returns false if there is none.
func (l *idleList) closeLongest() bool {
	l.mu.Lock()
	first := l.order.Front()
	if first == nil {
		l.mu.Unlock()
		return false
	}
	conn := first.Value.(net.Conn)
	l.removeLocked(conn)
	l.mu.Unlock()
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn() // tls.Conn.Close would wait until an alert is sent; this Close does not
	}
	conn.Close()
	return true
}
