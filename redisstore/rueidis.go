package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// NewRueidis makes a Client of a rueidis client of the user's own. The user closes it. rueidis
// panics if a server that is full says so before the first command of a connection. Dial and Open
// guard against that, NewRueidis cannot. Set the option's DisableRetry, and with Sentinel its
// TopologyRefreshInterval.
func NewRueidis(client rueidis.Client) Client { return rueidisClient{client} }

type rueidisClient struct{ rueidis.Client }

func (c rueidisClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return result(c.Do(ctx, c.B().Evalsha().Sha1(digest).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()))
}

func (c rueidisClient) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return result(c.Do(ctx, c.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()))
}

func (c rueidisClient) Sharded(context.Context) (bool, error) {
	return c.Mode() == rueidis.ClientModeCluster, nil
}

func (c rueidisClient) Ping(ctx context.Context) error {
	_, err := result(c.Do(ctx, c.B().Ping().Build()))
	return err
}

func (c rueidisClient) Close() error { return nil }

func result(r rueidis.RedisResult) (string, error) {
	text, err := r.ToString()
	if reply, ok := rueidis.IsRedisErr(err); ok {
		return "", ReplyError(reply.Error())
	}
	return text, err
}

// redialPause is how long a failed connection attempt stands before the next is made.
const redialPause = 100 * time.Millisecond

// Dial makes a Client that connects in the background. If it cannot, it tries again when it is
// used. ParseURL makes the option.
func Dial(option rueidis.ClientOption) Client {
	d := &dialed{option: option, work: newBackground()}
	guardConnections(&d.option, d.work.life)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connectLocked()
	return d
}

// dialed is a rueidis client that does not exist before its server does.
type dialed struct {
	option rueidis.ClientOption
	work   *background // where it connects

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

// get returns the client, or waits for it until ctx ends. The attempt goes on for those who come
// later.
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
	a := d.connectLocked()
	d.mu.Unlock()
	if err := wait(ctx, a.done, d.work.life.Done()); err != nil {
		return nil, notSent(err)
	}
	if a.err != nil {
		return nil, a.err
	}
	return d.get(ctx)
}

// connectLocked begins an attempt to connect, unless there is one, or was just now.
func (d *dialed) connectLocked() *attempt {
	if a := d.attempt; a != nil && (a.ended.IsZero() || time.Since(a.ended) <= redialPause) {
		return a
	}
	a := &attempt{done: make(chan struct{})}
	d.attempt = a
	d.work.start(func(context.Context) { d.dial(a) })
	return a
}

func (d *dialed) dial(a *attempt) {
	client, err := rueidis.NewClient(d.option)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.closed {
		client.Close()
		err = errClosed
	} else if err == nil {
		d.ready.Store(&rueidisClient{client})
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
	return d.do(ctx, func(c *rueidisClient) (string, error) { return c.EvalSha(ctx, digest, keys, args) })
}

func (d *dialed) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return d.do(ctx, func(c *rueidisClient) (string, error) { return c.Eval(ctx, script, keys, args) })
}

func (d *dialed) Ping(ctx context.Context) error {
	_, err := d.do(ctx, func(c *rueidisClient) (string, error) { return "", c.Ping(ctx) })
	return err
}

// do calls the client once it is connected.
func (d *dialed) do(ctx context.Context, call func(*rueidisClient) (string, error)) (string, error) {
	c, err := d.get(ctx)
	if err != nil {
		return "", err
	}
	return call(c)
}

func (d *dialed) Sharded(ctx context.Context) (bool, error) {
	c, err := d.get(ctx)
	if err != nil {
		return false, err
	}
	return c.Sharded(ctx)
}

func (d *dialed) Close() error {
	d.mu.Lock()
	d.closed = true
	c := d.ready.Swap(nil)
	d.mu.Unlock()
	d.work.end()
	if c != nil {
		c.Client.Close()
	}
	d.work.wait()
	return nil
}
