package redisstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// NewRueidis makes a Client of a rueidis client of the user's own. The user closes it. Dial and Open guard against what rueidis does with new
// connections, and NewRueidis cannot: calls with a deadline cost some microseconds more here, since rueidis may have them wait past it; and it panics
// if a server that is full says so to a connection whose first command was given up. Set the option's DisableRetry, and with Sentinel its
// TopologyRefreshInterval.
func NewRueidis(client rueidis.Client) Client { return rueidisClient{client, nil} }

type rueidisClient struct {
	rueidis.Client
	connecting *connecting
}

func (c rueidisClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	text, err := c.do(ctx, c.B().Evalsha().Sha1(digest).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	if _, replied := err.(ReplyError); err != nil && !replied {
		c.mend(keys[0])
	}
	return text, err
}

func (c rueidisClient) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return c.do(ctx, c.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
}

func (c rueidisClient) Sharded(context.Context) (bool, error) {
	return c.Mode() == rueidis.ClientModeCluster, nil
}

func (c rueidisClient) Ping(ctx context.Context) error {
	_, err := c.do(ctx, c.B().Ping().Build())
	return err
}

func (c rueidisClient) Close() error { return nil }

func (c rueidisClient) do(ctx context.Context, command rueidis.Completed) (string, error) {
	if ctx.Done() == nil || c.connecting.idle() {
		return result(c.Do(ctx, command))
	}
	return c.connecting.leaving(ctx, func() (string, error) { return result(c.Do(ctx, command)) })
}

// mend makes the connection to the server that keeps a key. What it asks changes nothing, and needs no right that the scripts do not.
func (c rueidisClient) mend(key string) {
	key = strings.Clone(key)
	c.connecting.mend(func(ctx context.Context) {
		c.Do(ctx, c.B().Get().Key(key).Build())
	})
}

func result(r rueidis.RedisResult) (string, error) {
	text, err := r.ToString()
	if reply, ok := rueidis.IsRedisErr(err); ok {
		return "", ReplyError(reply.Error())
	}
	return text, err
}

// redialPause is how long a failed connection attempt stands before the next is made.
const redialPause = 100 * time.Millisecond

// Dial makes a Client that connects when it is first used, and tries again until it can. ParseURL makes the option.
func Dial(option rueidis.ClientOption) Client {
	d := &dialed{option: option}
	d.connecting.watch(&d.option)
	return d
}

// dialed is a rueidis client that does not exist before its server does.
type dialed struct {
	option     rueidis.ClientOption
	connecting connecting

	ready atomic.Pointer[rueidisClient] // nil before it was connected, and when it is closed

	mu      sync.Mutex
	attempt *attempt
	closed  bool
}

// An attempt to connect is made once for all who wait for it.
type attempt struct {
	done  chan struct{}
	err   error
	ended time.Time
}

var errClosed = errors.New("the store was closed")

// get returns the client, or waits for it until ctx ends. The attempt goes on for those who come later.
func (d *dialed) get(ctx context.Context) (*rueidisClient, error) {
	if c := d.ready.Load(); c != nil {
		return c, nil
	}
	d.mu.Lock()
	if c := d.ready.Load(); c != nil || d.closed {
		d.mu.Unlock()
		if c == nil {
			return nil, notSent(errClosed)
		}
		return c, nil
	}
	a := d.attempt
	if a == nil || !a.ended.IsZero() && time.Since(a.ended) > redialPause {
		a = &attempt{done: make(chan struct{})}
		d.attempt = a
		d.connecting.work.start(func(context.Context) { d.dial(a) })
	}
	d.mu.Unlock()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, notSent(ctx.Err())
	}
	if a.err != nil {
		return nil, a.err
	}
	return d.get(ctx)
}

func (d *dialed) dial(a *attempt) {
	client, err := rueidis.NewClient(d.option)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.closed {
		client.Close()
		err = errClosed
	} else if err == nil {
		d.ready.Store(&rueidisClient{client, &d.connecting})
	}
	if reply, ok := rueidis.IsRedisErr(err); ok {
		err = ReplyError(reply.Error())
	}
	if err != nil {
		err = notSent(err)
	}
	a.err, a.ended = err, time.Now()
	close(a.done)
}

func (d *dialed) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	c, err := d.get(ctx)
	if err != nil {
		return "", err
	}
	return c.EvalSha(ctx, digest, keys, args)
}

func (d *dialed) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	c, err := d.get(ctx)
	if err != nil {
		return "", err
	}
	return c.Eval(ctx, script, keys, args)
}

func (d *dialed) Sharded(ctx context.Context) (bool, error) {
	c, err := d.get(ctx)
	if err != nil {
		return false, err
	}
	return c.Sharded(ctx)
}

func (d *dialed) Ping(ctx context.Context) error {
	c, err := d.get(ctx)
	if err != nil {
		return err
	}
	return c.Ping(ctx)
}

func (d *dialed) Close() error {
	d.mu.Lock()
	d.closed = true
	c := d.ready.Swap(nil)
	d.mu.Unlock()
	d.connecting.work.end()
	if c != nil {
		c.Client.Close()
	}
	d.connecting.work.wait()
	return nil
}
