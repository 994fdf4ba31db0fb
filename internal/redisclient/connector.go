package redisclient

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/lazy"
	"github.com/redis/rueidis"
)

// redialPause is how long calls fail with the error of a failed attempt to connect. The first call
// after that begins another attempt.
const redialPause = 100 * time.Millisecond

// A Connector makes a rueidis client in the background. If it cannot connect, a later Get makes it
// try again.
type Connector struct {
	option        rueidis.ClientOption
	newReplyError func(text string) error // makes an error of the text of an error reply
	attempts      *background.Group

	ready atomic.Pointer[rueidis.Client] // nil before it has connected, and after Close

	mu       sync.Mutex
	attempt  *attempt
	isClosed bool
}

// An attempt is one attempt to connect, shared by all callers that wait for it.
type attempt struct {
	done    chan struct{}
	err     error
	endedAt time.Time
}

// Connect begins to connect. newReplyError makes an error of the text of an error reply.
func Connect(option rueidis.ClientOption, newReplyError func(text string) error) *Connector {
	c := &Connector{option: option, newReplyError: newReplyError, attempts: background.New()}
	checkConnections(&c.option, c.attempts.Context())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connectLocked()
	return c
}

// Get returns the client, or waits for it until ctx ends. The attempt continues for later callers.
func (c *Connector) Get(ctx context.Context) (rueidis.Client, error) {
	for {
		if client := c.ready.Load(); client != nil {
			return *client, nil
		}
		c.mu.Lock()
		if client := c.ready.Load(); client != nil || c.isClosed {
			c.mu.Unlock()
			if client == nil {
				return nil, NotSent(ErrClosed)
			}
			return *client, nil
		}
		a := c.connectLocked()
		c.mu.Unlock()
		if err := lazy.Await(ctx, a.done, c.attempts.Context().Done()); err != nil {
			return nil, NotSent(err)
		}
		if a.err != nil {
			return nil, a.err
		}
	}
}

// connectLocked begins an attempt to connect, unless there is one, or redialPause is not over.
func (c *Connector) connectLocked() *attempt {
	if a := c.attempt; a != nil && (a.endedAt.IsZero() || time.Since(a.endedAt) <= redialPause) {
		return a
	}
	a := &attempt{done: make(chan struct{})}
	c.attempt = a
	c.attempts.Start(func(context.Context) { c.connect(a) })
	return a
}

func (c *Connector) connect(a *attempt) {
	client, err := rueidis.NewClient(c.option)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.isClosed {
		client.Close()
		err = ErrClosed
	} else if err == nil {
		c.ready.Store(&client)
	}
	if err != nil {
		a.err = NotSent(c.asReplyError(err))
	}
	a.endedAt = time.Now()
	close(a.done)
}

// asReplyError converts an error reply by newReplyError, and returns other errors as they are.
func (c *Connector) asReplyError(err error) error {
	if reply, ok := rueidis.IsRedisErr(err); ok {
		return c.newReplyError(reply.Error())
	}
	return err
}

// Close closes the client, and cancels an attempt to connect.
func (c *Connector) Close() {
	c.mu.Lock()
	c.isClosed = true
	client := c.ready.Swap(nil)
	c.mu.Unlock()
	c.attempts.Cancel()
	if client != nil {
		(*client).Close()
	}
	c.attempts.Wait()
}
