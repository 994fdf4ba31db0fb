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

// guardConnections has the option's connections end with life, also while they are being made,
// which rueidis does not do; and has each of them read what has come before it says that it was
// late, and hear nothing before it has said something.
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

// A guarded connection hears nothing before something was said: a server that is full says so
// before it is asked, and rueidis panics at an answer to no question. It asks none where the call's
// context ends with the dialing.
type guarded struct {
	net.Conn
	unbind func() bool
	old    bool // something was heard, so that rueidis ends it by itself; only for Read

	open   atomic.Bool
	opened chan struct{} // closed once something was said, or the connection has ended
}

// lastLook is for how long a read goes on after its deadline: what is there already is read at
// once. A process that was stopped finds its deadline passed before it could read.
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
