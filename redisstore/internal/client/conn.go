package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock/internal/directsocket"
)

// guardConnections makes the option dial guardedConns. When clientCtx ends, the connections are
// closed, and dials in progress are canceled. Closing the client of rueidis does not end
// connections that it is still opening.
func guardConnections(option *rueidis.ClientOption, clientCtx context.Context) {
	dial := option.DialCtxFn
	if dialFn := option.DialFn; dial == nil && dialFn != nil {
		dial = func(_ context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
			return dialFn(address, dialer, config)
		}
	} else if dial == nil {
		dial = dialTCP
	}
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(clientCtx, cancel)()
		conn, err := dial(ctx, address, dialer, config)
		if err != nil {
			return nil, err
		}
		return guardConn(clientCtx, conn), nil
	}
}

func guardConn(clientCtx context.Context, conn net.Conn) *guardedConn {
	g := &guardedConn{Conn: conn, socket: directsocket.New(conn), readable: make(chan struct{})}
	g.release = context.AfterFunc(clientCtx, func() {
		g.allowReads()
		_ = conn.Close()
	})
	return g
}

func dialTCP(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
}

// A guardedConn reads nothing before something was written. A server with too many clients sends an
// error before any command, and rueidis panics at a reply to no command. Without a guardedConn,
// this can happen if the context of a call ends while rueidis dials, because rueidis then sends no
// command.
//
// If the process was suspended, a read's deadline may have passed although the reply has arrived.
// Then Read tries once more, for lateReadTimeout.
type guardedConn struct {
	net.Conn
	socket  io.ReadWriter // reads and writes Conn
	release func() bool   // after its call, the end of clientCtx no longer closes the connection
	hasRead bool          // only Read uses it; after the first read, rueidis itself closes the connection

	canRead  atomic.Bool
	readable chan struct{} // closed when something is written, or when the connection ends
}

// lateReadTimeout is how long a read may take after its deadline, for data that has arrived.
const lateReadTimeout = time.Millisecond

func (g *guardedConn) Read(b []byte) (int, error) {
	if !g.hasRead {
		<-g.readable
	}
	n, err := g.socket.Read(b)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && g.SetReadDeadline(time.Now().Add(lateReadTimeout)) == nil {
		n, err = g.socket.Read(b)
	}
	if !g.hasRead {
		g.hasRead = true
		g.release()
	}
	return n, err
}

func (g *guardedConn) Write(b []byte) (int, error) {
	g.allowReads()
	return g.socket.Write(b)
}

func (g *guardedConn) Close() error {
	g.allowReads()
	g.release()
	return g.Conn.Close()
}

func (g *guardedConn) allowReads() {
	if !g.canRead.Load() && g.canRead.CompareAndSwap(false, true) {
		close(g.readable)
	}
}
