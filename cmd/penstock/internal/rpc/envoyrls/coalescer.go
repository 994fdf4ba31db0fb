package envoyrls

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/internal/panicked"
)

const (
	// maxLists is how many lists are in progress before further calls wait. While the store decides
	// one list, the other can be prepared.
	maxLists = 2

	// maxCallsPerList is the largest number of calls in a list.
	maxCallsPerList = 32

	// maxDeadlineSpread bounds how far the deadline of a call may be from that of the first call of
	// its list. The earliest deadline of a list applies to all its calls.
	maxDeadlineSpread = 2 * time.Millisecond
)

// A coalescer makes lists of calls that wait at the same time. A call is decided immediately if
// fewer than maxLists lists are in progress, or if it is the last of maxCallsPerList calls that
// wait. If neither holds, the call waits until a list has ended. If the store hangs, the lists in
// progress end before the deadlines of their calls. Waiting calls arrived later, so they still have
// time for a decision of the fallback.
type coalescer struct {
	engine  *Engine
	isAlone bool      // each call is decided alone, in its own context
	calls   sync.Pool // of *waitingCall that are free

	mu           sync.Mutex
	runningLists int            // lists in progress
	waitingCalls []*waitingCall // in the order of their arrival
}

type waitingCall struct {
	message  Message
	deadline time.Time // zero: none

	// ready receives the list that this call must decide, and of which it is the first. After another
	// call has decided this one, ready receives nil.
	ready chan []*waitingCall
}

// newCall returns a call for release.
func (c *coalescer) newCall() *waitingCall {
	if call, ok := c.calls.Get().(*waitingCall); ok {
		return call
	}
	return &waitingCall{ready: make(chan []*waitingCall, 1)}
}

// release makes the memory of a call free for others. Its channel is empty: a call that waits
// receives what it is sent, unless it leaves before that.
func (c *coalescer) release(call *waitingCall) {
	call.message = Message{}
	c.calls.Put(call)
}

// decide decides an encoded request, and returns the encoded response. The request is not used
// after the return.
func (c *coalescer) decide(ctx context.Context, request []byte) ([]byte, error) {
	if c.isAlone {
		return c.engine.DecideMessage(ctx, request)
	}
	call := c.newCall()
	defer c.release(call)
	call.message.Request = request
	call.deadline, _ = ctx.Deadline()
	list, isWaiting := c.enter(call)
	if isWaiting {
		select {
		case list = <-call.ready:
		case <-ctx.Done():
			if c.leave(call) {
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			list = <-call.ready // the list of the call is in progress, and ends by its deadline
		}
	}
	switch len(list) {
	case 0: // another call has decided this one
	case 1:
		defer c.startNext()
		return c.engine.DecideMessage(ctx, request)
	default:
		c.decideList(list)
	}
	return call.message.Response, call.message.Err
}

// enter returns the list that the call must decide now, or true if it must wait.
func (c *coalescer) enter(call *waitingCall) (list []*waitingCall, isWaiting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runningLists >= maxLists && len(c.waitingCalls)+1 < maxCallsPerList {
		c.waitingCalls = append(c.waitingCalls, call)
		return nil, true
	}
	c.runningLists++
	return c.takeLocked(call), false
}

// leave removes a call that waits. It returns false if its list is in progress or has ended.
func (c *coalescer) leave(call *waitingCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waitingCalls, call)
	if i >= 0 {
		c.waitingCalls = slices.Delete(c.waitingCalls, i, i+1)
	}
	return i >= 0
}

// startNext starts the next list after one has ended, if calls wait.
func (c *coalescer) startNext() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waitingCalls) == 0 {
		c.runningLists--
		return
	}
	first := c.waitingCalls[0]
	c.waitingCalls = slices.Delete(c.waitingCalls, 0, 1)
	first.ready <- c.takeLocked(first)
}

// takeLocked makes a list of a call and of all waiting calls with about the same deadline. It
// removes these from c.waitingCalls.
func (c *coalescer) takeLocked(first *waitingCall) []*waitingCall {
	list := append(make([]*waitingCall, 0, 1+len(c.waitingCalls)), first)
	c.waitingCalls = slices.DeleteFunc(c.waitingCalls, func(call *waitingCall) bool {
		isNear := call.deadline.Sub(first.deadline).Abs() <= maxDeadlineSpread
		if isNear {
			list = append(list, call)
		}
		return isNear
	})
	return list
}

// decideList decides a list of calls, and wakes all except the first, which calls decideList.
func (c *coalescer) decideList(list []*waitingCall) {
	messages := make([]Message, len(list))
	deadline := list[0].deadline
	for i, call := range list {
		messages[i] = call.message
		if call.deadline.Before(deadline) {
			deadline = call.deadline
		}
	}
	defer func() {
		value := recover()
		if value != nil {
			panicked.Report("a gRPC call is handled", value)
		}
		for i, call := range list {
			if call.message = messages[i]; value != nil {
				call.message = Message{Err: errPanic}
			}
			if i > 0 {
				call.ready <- nil
			}
		}
		c.startNext()
	}()
	ctx := context.Background()
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	c.engine.DecideMessages(ctx, messages)
}
