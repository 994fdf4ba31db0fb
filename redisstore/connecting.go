package redisstore

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

// guardConnections wraps the option's connections. They end with life, also while they are being
// made, which rueidis does not do. A read after its deadline still returns data that has arrived.
// And nothing is read before something was written: see guarded.
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
		g := &guarded{Conn: conn, opened: make(chan struct{})}
		g.unbind = context.AfterFunc(life, func() {
			g.opens()
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

// A guarded connection reads nothing before something was written. A server that is full sends an
// error before any command, and rueidis panics at a reply without a command. It sends no command if
// the call's context ends while it dials.
type guarded struct {
	net.Conn
	unbind func() bool
	old    bool // something was read: from now on rueidis closes it; only for Read

	open   atomic.Bool
	opened chan struct{} // closed once something was written, or the connection has ended
}

// lastLook is how long a read may take after its deadline, for data that has arrived already. A
// process that was stopped finds its deadline passed before it could read.
const lastLook = time.Millisecond

func (g *guarded) Read(b []byte) (int, error) {
	if !g.old {
		<-g.opened
	}
	n, err := g.Conn.Read(b)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && g.SetReadDeadline(time.Now().Add(lastLook)) == nil {
		n, err = g.Conn.Read(b)
	}
	if !g.old {
		g.old = true
		g.unbind()
	}
	return n, err
}

func (g *guarded) Write(b []byte) (int, error) {
	g.opens()
	return g.Conn.Write(b)
}

func (g *guarded) Close() error {
	g.opens()
	g.unbind()
	return g.Conn.Close()
}

func (g *guarded) opens() {
	if !g.open.Load() && g.open.CompareAndSwap(false, true) {
		close(g.opened)
	}
}
