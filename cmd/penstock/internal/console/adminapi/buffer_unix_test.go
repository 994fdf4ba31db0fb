//go:build unix

package adminapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptest"
	"syscall"
	"testing"
)

// The kernel holds little for a reader that reads nothing, so that its writes soon block.
func TestStreamsHaveASmallSendBuffer(t *testing.T) {
	for _, withTLS := range []bool{false, true} {
		conns := make(chan net.Conn, 1)
		server := httptest.NewUnstartedServer(newFixture(t, nil))
		server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
			conns <- conn
			return WithConn(ctx, conn)
		}
		if withTLS {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		response, err := server.Client().Get(server.URL + Prefix + "events")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		conn := <-conns
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		var sizeErr error
		err = raw.Control(func(fd uintptr) {
			size, sizeErr = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF)
		})
		if err != nil || sizeErr != nil || size > 2*sendBuffer {
			t.Errorf("with TLS %v: the send buffer has %d bytes (%v, %v); want at most %d", withTLS, size, err, sizeErr, 2*sendBuffer)
		}
	}
}
