package redisstore

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// connecting is what rueidis leaves open about connections. It makes them within the call that finds that there is none, and has all others
// wait for that one, whatever their contexts say. So while a connection is being made, calls are sent on goroutines of their own, and left behind
// when their context ends; and since one that ends takes the half-made connection with it, a failed call has it made once more with more time.
//
// A nil one knows nothing of connections, and makes none.
type connecting struct {
	making  atomic.Int64 // connections that are dialed, or have not had their first answer
	mending atomic.Bool
	work    *background // where they are made, outside calls
}

// mendingTime is how long a connection may take that is made outside any call, and no longer than rueidis's Dialer.Timeout.
const mendingTime = 5 * time.Second

// watch has the option's connections counted, and ended with the background while they are being made: rueidis does not end those.
func (c *connecting) watch(option *rueidis.ClientOption) {
	c.work = newBackground()
	dial := option.DialCtxFn
	if before := option.DialFn; dial == nil && before != nil {
		dial = func(_ context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
			return before(address, dialer, config)
		}
	} else if dial == nil {
		dial = dialTCP
	}
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		c.making.Add(1)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.work.life, cancel)()
		conn, err := dial(ctx, address, dialer, config)
		if err != nil {
			c.making.Add(-1)
			return nil, err
		}
		f := &fresh{Conn: conn, opened: make(chan struct{})}
		unbind := context.AfterFunc(c.work.life, func() {
			f.opens()
			_ = conn.Close()
		})
		f.made = sync.OnceFunc(func() {
			unbind()
			c.making.Add(-1)
		})
		return f, nil
	}
}

func dialTCP(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
}

// A fresh connection is made once it has had an answer, or has ended. Nothing is heard before something was said: a server that is full says so
// before it is asked, and rueidis panics at an answer to no question. It asks none where the call's context ends with the dialing.
type fresh struct {
	net.Conn
	made func()
	old  bool // something was heard; only for Read

	open   atomic.Bool
	opened chan struct{} // closed once something was said, or the connection has ended
}

func (f *fresh) Read(b []byte) (int, error) {
	if f.old {
		return f.Conn.Read(b)
	}
	<-f.opened
	n, err := f.Conn.Read(b)
	f.old = true
	f.made()
	return n, err
}

func (f *fresh) Write(b []byte) (int, error) {
	f.opens()
	return f.Conn.Write(b)
}

func (f *fresh) Close() error {
	f.opens()
	f.made()
	return f.Conn.Close()
}

func (f *fresh) opens() {
	if !f.open.Load() && f.open.CompareAndSwap(false, true) {
		close(f.opened)
	}
}

// idle tells whether no connection is being made, so that calls end with their context by themselves.
func (c *connecting) idle() bool { return c != nil && c.making.Load() == 0 }

// leaving runs send, and leaves it to the background when ctx ends.
func (c *connecting) leaving(ctx context.Context, send func() (string, error)) (string, error) {
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	run := func(context.Context) {
		text, err := send()
		answered <- answer{text, err}
	}
	if c == nil {
		go run(ctx) // its owner closes the client
	} else if !c.work.start(run) {
		return "", notSent(errClosed)
	}
	select {
	case a := <-answered:
		return a.text, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// mend runs touch, which makes the connection that a call may have lacked, unless it runs already.
func (c *connecting) mend(touch func(context.Context)) {
	if c == nil || !c.mending.CompareAndSwap(false, true) {
		return
	}
	c.work.start(func(ctx context.Context) {
		defer c.mending.Store(false)
		ctx, cancel := context.WithTimeout(ctx, mendingTime)
		defer cancel()
		touch(ctx)
	})
}
