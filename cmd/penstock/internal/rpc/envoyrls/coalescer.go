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
func (g *coalescer) newCall() *waitingCall {
	if call, ok := g.calls.Get().(*waitingCall); ok {
		return call
	}
	return &waitingCall{ready: make(chan []*waitingCall, 1)}
}

// release makes the memory of a call free for others. Its channel is empty: a call that waits
// receives what it is sent, unless it leaves before that.
func (g *coalescer) release(call *waitingCall) {
	call.message = Message{}
	g.calls.Put(call)
}

// decide decides an encoded request, and returns the encoded response. The request is not used
// after the return.
func (g *coalescer) decide(ctx context.Context, request []byte) ([]byte, error) {
	if g.isAlone {
		return g.engine.DecideMessage(ctx, request)
	}
	call := g.newCall()
	defer g.release(call)
	call.message.Request = request
	call.deadline, _ = ctx.Deadline()
	list, isWaiting := g.enter(call)
	if isWaiting {
		select {
		case list = <-call.ready:
		case <-ctx.Done():
			if g.leave(call) {
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			list = <-call.ready // the list of the call is in progress, and ends by its deadline
		}
	}
	switch len(list) {
	case 0: // another call has decided this one
	case 1:
		defer g.startNext()
		return g.engine.DecideMessage(ctx, request)
	default:
		g.decideList(list)
	}
	return call.message.Response, call.message.Err
}

// enter returns the list that the call must decide now, or true if it must wait.
func (g *coalescer) enter(call *waitingCall) (list []*waitingCall, isWaiting bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.runningLists >= maxLists && len(g.waitingCalls)+1 < maxCallsPerList {
		g.waitingCalls = append(g.waitingCalls, call)
		return nil, true
	}
	g.runningLists++
	return g.takeLocked(call), false
}

// leave removes a call that waits. It returns false if its list is in progress or has ended.
func (g *coalescer) leave(call *waitingCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waitingCalls, call)
	if i >= 0 {
		g.waitingCalls = slices.Delete(g.waitingCalls, i, i+1)
	}
	return i >= 0
}

// startNext starts the next list after one has ended, if calls wait.
func (g *coalescer) startNext() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waitingCalls) == 0 {
		g.runningLists--
		return
	}
	first := g.waitingCalls[0]
	g.waitingCalls = slices.Delete(g.waitingCalls, 0, 1)
	first.ready <- g.takeLocked(first)
}

// takeLocked makes a list of a call and of all waiting calls with about the same deadline. It
// removes these from g.waitingCalls.
func (g *coalescer) takeLocked(first *waitingCall) []*waitingCall {
	list := append(make([]*waitingCall, 0, 1+len(g.waitingCalls)), first)
	g.waitingCalls = slices.DeleteFunc(g.waitingCalls, func(call *waitingCall) bool {
		isNear := call.deadline.Sub(first.deadline).Abs() <= maxDeadlineSpread
		if isNear {
			list = append(list, call)
		}
		return isNear
	})
	return list
}

// decideList decides a list of calls, and wakes all except the first, which calls decideList.
func (g *coalescer) decideList(list []*waitingCall) {
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
		g.startNext()
	}()
	ctx := context.Background()
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	g.engine.DecideMessages(ctx, messages)
}
