package service

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// An idleList has the idle connections of an http.Server: those that were kept alive after a
// request. If a listener is full, a new connection takes the place of the one that has been idle
// longest. A connection is idle until the whole header of its next request has arrived. Otherwise a
// client could keep its place by sending one byte.
type idleList struct {
	// canCloseNew says that connections whose first header has not arrived are idle too. Then a flood
	// of connections cannot fill the listener, but new connections may end each other.
	canCloseNew bool

	mu    sync.Mutex
	order list.List                  // of idleConn, the longest idle first
	conns map[net.Conn]*list.Element // by connection
	added chan struct{}              // has an element if a connection has become idle since the last receive
}

type idleConn struct {
	net.Conn
	isNew bool // its first header has not arrived
	since time.Time
}

// graceOfNew is how long a new connection may take to send its first header before another one may
// take its place. Without it, the probe of an orchestrator would lose its connection in a flood. It
// is short, because a probe must wait for the graces of those that came before it: in a flood, a
// listener with 64 places accepts 64 connections per grace, which is 3,200 a second.
const graceOfNew = 20 * time.Millisecond

func newIdleList() *idleList {
	return &idleList{conns: make(map[net.Conn]*list.Element), added: make(chan struct{}, 1)}
}

// note records the new state of a connection. It is the ConnState of an http.Server.
func (l *idleList) note(conn net.Conn, state http.ConnState) {
	isIdle := state == http.StateIdle || state == http.StateNew && l.canCloseNew
	l.mu.Lock()
	l.removeLocked(conn)
	if isIdle {
		l.conns[conn] = l.order.PushBack(idleConn{conn, state == http.StateNew, time.Now()})
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

// closeLongest closes the connection that has been idle longest, except new ones in their grace. If
// there is none, it returns false, and how long to wait for the next end of a grace: 0 if there is
// no such end.
func (l *idleList) closeLongest() (isClosed bool, wait time.Duration) {
	l.mu.Lock()
	for e := l.order.Front(); e != nil; e = e.Next() {
		idle := e.Value.(idleConn)
		if left := graceOfNew - time.Since(idle.since); idle.isNew && left > 0 {
			if wait == 0 {
				wait = left // of the oldest
			}
			continue
		}
		l.removeLocked(idle.Conn)
		l.mu.Unlock()
		conn := idle.Conn
		if secured, ok := conn.(*tls.Conn); ok {
			conn = secured.NetConn() // tls.Conn.Close would wait until an alert is sent; this Close does not
		}
		conn.Close()
		return true, 0
	}
	l.mu.Unlock()
	return false, wait
}
