package service

import (
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// A new connection has time to send its first header, before another one may take its place.
func TestNewConnectionsHaveAGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := func() net.Conn {
			conn, other := net.Pipe()
			t.Cleanup(func() { other.Close() })
			return conn
		}
		idle := newIdleList()
		idle.note(conn(), http.StateNew)
		if isClosed, wait := idle.closeLongest(); isClosed || wait != 0 {
			t.Errorf("a listener without canCloseNew closed a new connection: %v, or waits %v; want neither", isClosed, wait)
		}
		idle.canCloseNew = true
		idle.note(conn(), http.StateNew)
		time.Sleep(graceOfNew / 4)
		kept := conn()
		idle.note(kept, http.StateIdle)
		if isClosed, _ := idle.closeLongest(); !isClosed {
			t.Error("the connection that was kept alive stays open; want it closed before the new one")
		}
		if _, err := kept.Write([]byte("x")); err == nil {
			t.Error("another connection was closed; want the one that was kept alive")
		}
		if isClosed, wait := idle.closeLongest(); isClosed || wait != graceOfNew-graceOfNew/4 {
			t.Errorf("the new connection was closed: %v, or waits for %v; want the rest of %v", isClosed, wait, graceOfNew)
		}
		time.Sleep(graceOfNew)
		if isClosed, _ := idle.closeLongest(); !isClosed {
			t.Error("after its grace, the new connection stays open; want it closed")
		}
		if isClosed, wait := idle.closeLongest(); isClosed || wait != 0 {
			t.Errorf("of no connection, one was closed: %v, or waits for %v", isClosed, wait)
		}
	})
}

// A probe behind many connections whose headers do not arrive is accepted before it times out. The
// default timeout of Kubernetes is one second.
func TestFloodOfHalfHeadersDelaysNoProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		idle := newIdleList()
		idle.canCloseNew = true
		l := limitConnections(nil, 64, func() {})
		l.idle = idle
		begin := time.Now()
		for range 1_200 { // all connected at the same time
			if !l.takePlace() {
				t.Fatal("the listener is closed")
			}
			conn, other := net.Pipe()
			defer conn.Close()
			defer other.Close()
			idle.note(placedConn{conn, l.open}, http.StateNew)
		}
		if !l.takePlace() {
			t.Fatal("the listener is closed")
		}
		if took := time.Since(begin); took > 500*time.Millisecond {
			t.Errorf("the probe is accepted after %v; want at most half a second", took)
		}
	})
}

// A placedConn frees a place when it is closed.
type placedConn struct {
	net.Conn
	places chan struct{}
}

func (c placedConn) Close() error {
	<-c.places
	return c.Conn.Close()
}

// The connection that has been idle longest is closed first. One that served a request in between
// is the last again.
func TestTheLongestIdleIsClosed(t *testing.T) {
	t.Parallel()
	idle := newIdleList()
	conns := make([]net.Conn, 3)
	for i := range conns {
		conn, other := net.Pipe()
		t.Cleanup(func() { other.Close() })
		conns[i] = conn
		idle.note(conn, http.StateIdle)
	}
	idle.note(conns[0], http.StateActive)
	idle.note(conns[0], http.StateIdle)
	for _, i := range []int{1, 2, 0} {
		idle.closeLongest()
		// SetReadDeadline fails on a pipe that is closed.
		if err := conns[i].SetReadDeadline(time.Now()); err == nil {
			t.Fatalf("connection %d is open; want it closed next in the order 1, 2, 0", i)
		}
	}
}
