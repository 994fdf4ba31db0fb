package fastgrpc

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/internal/panicked"
)

// dispatch starts the handlers of the requests in the batch. A handler that cannot run in another
// goroutine runs in this one.
func (c *conn) dispatch() {
	if len(c.batch) == 0 {
		return
	}
	o := &c.server.options
	var shared *deadline // of successive requests with one timeout
	for _, s := range c.batch {
		if s.timeout < 0 {
			continue
		}
		if shared == nil || shared.timeout != s.timeout {
			shared = newDeadline(c.ctx, s.timeout)
		}
		s.deadline = shared
		shared.calls.Add(1)
	}
	if o.Parallel > 1 {
		c.gatherLists()
	}
	for i, s := range c.batch {
		c.batch[i] = nil
		if s == nil {
			continue // this call is in the list of an earlier one
		}
		if o.Parallel > 1 && c.start(s) {
			continue
		}
		s.run()
		c.mu.Lock()
		s.answerLocked()
		c.mu.Unlock()
	}
	c.batch = c.batch[:0]
}

// gatherLists makes lists of calls that arrived together and have the same method and deadline. The
// first call of a list keeps the others, which leave the batch.
func (c *conn) gatherLists() {
	longest := min(maxListLength, c.server.options.Parallel)
	var first *stream
	for i, s := range c.batch {
		switch {
		case s.listHandler == nil: // the call is handled by itself
		case first == nil || first.listHandler != s.listHandler || first.deadline != s.deadline || 1+len(first.others) >= longest:
			first = s
		case c.server.listedCalls.Add(1) > int64(c.server.options.MaxParallel):
			c.server.listedCalls.Add(-1) // too many calls are in lists, so this one stays in the batch
		default:
			first.others = append(first.others, s)
			c.batch[i] = nil
		}
	}
}

// start handles a stream and its list in another goroutine. It returns false if too many handlers
// run.
func (c *conn) start(s *stream) bool {
	n := 1 + len(s.others)
	c.mu.Lock()
	if c.runningHandlers > 0 && c.runningHandlers+n > c.server.options.Parallel {
		c.mu.Unlock()
		return false
	}
	c.runningHandlers += n
	c.mu.Unlock()
	c.server.goroutines.Add(1) // the reader's goroutine is counted already, so Wait cannot have returned
	if !c.server.workers.Start(s) {
		c.server.goroutines.Done()
		c.mu.Lock()
		c.runningHandlers -= n
		c.mu.Unlock()
		return false
	}
	return true
}

// handle calls the handler and sends the response. A goroutine of Server.workers calls it.
func (s *stream) handle() {
	c := s.conn
	s.run()
	c.mu.Lock()
	c.runningHandlers -= 1 + len(s.others)
	s.answerLocked()
	isLast := c.runningHandlers == 0
	c.mu.Unlock()
	if isLast {
		c.flush()
	} else {
		c.flushLater()
	}
}

// run calls the handler, which sets the Err of each call. A panic becomes the error of all calls of
// the list.
func (s *stream) run() {
	ctx := s.conn.ctx
	if s.deadline != nil {
		ctx = s.deadline
		defer s.deadline.end(1 + len(s.others))
	}
	defer func() {
		if value := recover(); value != nil {
			panicked.Report("a gRPC call is handled", value)
			err := status.Error(codes.Internal, panicked.Message)
			s.Err = err
			for _, other := range s.others {
				other.Err = err
			}
		}
	}()
	if len(s.others) == 0 {
		s.Err = statusError(s.handler(ctx, &s.Call))
		return
	}
	calls := make([]*Call, 1+len(s.others))
	calls[0] = &s.Call
	for i, other := range s.others {
		calls[1+i] = &other.Call
	}
	(*s.listHandler)(ctx, calls)
	for _, call := range calls {
		call.Err = statusError(call.Err)
	}
}

// statusError returns an error of a handler as an error of package status. It calls methods of the
// error, so it must be called where a panic is recovered from.
func statusError(err error) error {
	if err == nil {
		return nil
	}
	return statusOf(err).Err()
}

// A deadline is the context of calls that arrived together and have the same timeout.
type deadline struct {
	context.Context
	cancel  context.CancelFunc
	timeout time.Duration
	calls   atomic.Int32 // calls that have not ended
}

func newDeadline(parent context.Context, timeout time.Duration) *deadline {
	d := &deadline{timeout: timeout}
	d.Context, d.cancel = context.WithTimeout(parent, timeout)
	return d
}

// end releases the context after the last of the calls has ended.
func (d *deadline) end(calls int) {
	if d.calls.Add(-int32(calls)) == 0 {
		d.cancel()
	}
}
