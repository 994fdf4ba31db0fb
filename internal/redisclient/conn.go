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

// checkConnections makes the option dial checkedConns. When clientCtx ends, the connections are
// closed, and dials in progress are canceled. Closing the client of rueidis does not end
// connections that it is still opening.
func checkConnections(option *rueidis.ClientOption, clientCtx context.Context) {
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
		return checkConn(clientCtx, conn), nil
	}
}

func checkConn(clientCtx context.Context, conn net.Conn) *checkedConn {
	c := &checkedConn{Conn: conn, socket: directsocket.New(conn)}
	c.release = context.AfterFunc(clientCtx, func() { _ = conn.Close() })
	return c
}

func dialTCP(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
}

// A checkedConn returns an error in place of a malformed reply, because rueidis may panic at one.
// An error ends the connection.
//
// If the process was suspended, a read's deadline may have passed although the reply has arrived.
// Then Read tries once more, for lateReadTimeout.
type checkedConn struct {
	net.Conn
	socket   io.ReadWriter // reads and writes Conn
	exchange exchange
	release  func() bool // after its call, the end of clientCtx no longer closes the connection
	hasRead  bool        // only Read uses it; after the first read, rueidis itself closes the connection
}

// lateReadTimeout is how long a read may take after its deadline, for data that has arrived.
const lateReadTimeout = time.Millisecond

func (c *checkedConn) Read(b []byte) (int, error) {
	if c.exchange.err != nil {
		return 0, c.exchange.err
	}
	n, err := c.socket.Read(b)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Now().Add(lateReadTimeout)) == nil {
		n, err = c.socket.Read(b)
	}
	if !c.hasRead {
		c.hasRead = true
		c.release()
	}
	if n > 0 {
		return c.exchange.receive(b[:n]) // an error of the connection returns with the next call
	}
	return 0, err
}

func (c *checkedConn) Write(b []byte) (int, error) {
	c.exchange.send(b)
	return c.socket.Write(b)
}

func (c *checkedConn) Close() error {
	c.release()
	return c.Conn.Close()
}
