package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// guardConnections wraps the option's connections. All of them are closed when the context life
// ends, also those that are still being dialed. rueidis alone does not do that. See guardedConn
// for the rest.
func guardConnections(option *rueidis.ClientOption, life context.Context) {
	dial := option.DialCtxFn
	if before := option.DialFn; dial == nil && before != nil {
		dial = func(_ context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
			return before(address, dialer, config)
		}
	} else if dial == nil {
		dial = dialTCP
	}
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		conn, err := dial(ctx, address, dialer, config)
		if err != nil {
			return nil, err
		}
		g := &guardedConn{Conn: conn, opened: make(chan struct{})}
		g.release = context.AfterFunc(life, func() {
			g.open()
			_ = conn.Close()
		})
		return g, nil
	}
}

func dialTCP(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
}

// A guardedConn reads nothing before something was written. A full server sends an error before any
// command, and rueidis panics at a reply without a command: it sends no command if the context of
// the call ends while it dials.
//
// If the process was suspended, a read's deadline may have passed although the reply has arrived.
// Then Read tries once more, for lateReadTimeout.
type guardedConn struct {
	net.Conn
	release func() bool // stops closing the connection with the context of guardConnections
	hasRead bool        // from the first read on, rueidis closes the connection itself; only Read uses it

	isOpen atomic.Bool
	opened chan struct{} // closed when something is written, or when the connection ends
}

// lateReadTimeout is how long a read may take after its deadline, for data that has arrived.
const lateReadTimeout = time.Millisecond

func (g *guardedConn) Read(b []byte) (int, error) {
	if !g.hasRead {
		<-g.opened
	}
	n, err := g.Conn.Read(b)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && g.SetReadDeadline(time.Now().Add(lateReadTimeout)) == nil {
		n, err = g.Conn.Read(b)
	}
	if !g.hasRead {
		g.hasRead = true
		g.release()
	}
	return n, err
}

func (g *guardedConn) Write(b []byte) (int, error) {
	g.open()
	return g.Conn.Write(b)
}

func (g *guardedConn) Close() error {
	g.open()
	g.release()
	return g.Conn.Close()
}

func (g *guardedConn) open() {
	if !g.isOpen.Load() && g.isOpen.CompareAndSwap(false, true) {
		close(g.opened)
	}
}
