package redisclient

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
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
	g := &guardedConn{Conn: conn, socket: directsocket.New(conn)}
	g.release = context.AfterFunc(clientCtx, func() { _ = conn.Close() })
	return g
}

func dialTCP(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
}

// A guardedConn returns an error in place of a malformed reply, because rueidis may panic at one.
// An error ends the connection.
//
// If the process was suspended, a read's deadline may have passed although the reply has arrived.
// Then Read tries once more, for lateReadTimeout.
type guardedConn struct {
	net.Conn
	socket   io.ReadWriter // reads and writes Conn
	exchange exchange
	release  func() bool // after its call, the end of clientCtx no longer closes the connection
	hasRead  bool        // only Read uses it; after the first read, rueidis itself closes the connection
}

// lateReadTimeout is how long a read may take after its deadline, for data that has arrived.
const lateReadTimeout = time.Millisecond

func (g *guardedConn) Read(b []byte) (int, error) {
	if g.exchange.err != nil {
		return 0, g.exchange.err
	}
	n, err := g.socket.Read(b)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && g.SetReadDeadline(time.Now().Add(lateReadTimeout)) == nil {
		n, err = g.socket.Read(b)
	}
	if !g.hasRead {
		g.hasRead = true
		g.release()
	}
	if n > 0 {
		return g.exchange.receive(b[:n]) // an error of the connection returns with the next call
	}
	return 0, err
}

func (g *guardedConn) Write(b []byte) (int, error) {
	g.exchange.send(b)
	return g.socket.Write(b)
}

func (g *guardedConn) Close() error {
	g.release()
	return g.Conn.Close()
}
