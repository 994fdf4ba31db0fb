package fastgrpc_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// A lister handles lists of calls, and records how long they were.
type lister struct {
	mu      sync.Mutex
	longest int // calls of the longest list
	calls   int // calls of all lists
}

func (l *lister) handle(ctx context.Context, calls []*fastgrpc.Call) {
	l.mu.Lock()
	l.longest, l.calls = max(l.longest, len(calls)), l.calls+len(calls)
	l.mu.Unlock()
	for _, call := range calls {
		call.Err = handle(ctx, call)
	}
}

// Each call of a list gets its own response or error. A panic ends the calls of its list only.
func TestCallsThatArriveTogetherAreHandledAsLists(t *testing.T) {
	for _, row := range []struct {
		options fastgrpc.Options
		longest int // the most calls that a list may have
	}{
		{options: fastgrpc.Options{}, longest: 32},
		{options: fastgrpc.Options{Parallel: 8}, longest: 8},
		{options: fastgrpc.Options{MaxParallel: 5}, longest: 6}, // MaxParallel does not count the first call of a list
	} {
		var l lister
		testLists(t, &l, row.options)
		l.mu.Lock()
		t.Logf("%d calls were in lists, and at most %d in one list", l.calls, l.longest)
		if l.calls == 0 || l.longest > row.longest {
			t.Errorf("%d calls were in lists, and at most %d in one list; want some calls, and at most %d in one list", l.calls, l.longest, row.longest)
		}
		l.mu.Unlock()
	}
}

// testLists sends calls in parallel to a server with the lister, and compares the responses.
func testLists(t *testing.T, l *lister, o fastgrpc.Options) {
	o.Methods, o.Lists = map[string]fastgrpc.Handler{method: handle}, map[string]fastgrpc.ListHandler{method: l.handle}
	_, address := startFast(t, o)
	client := rls.NewRateLimitServiceClient(dial(t, address))
	ctx := t.Context() // calls with different deadlines make no list
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			for j := range 12 {
				domain := fmt.Sprint(i, "/", j)
				if i == 7 && j%5 == 0 {
					domain = "fail"
				}
				if i == 8 && j == 10 {
					domain = "panic"
				}
				answer, err := client.ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: domain})
				switch code := status.Code(err); {
				case code == codes.Internal: // another call of its list may have panicked
				case domain == "panic":
					t.Errorf("domain %q: the error is %v; want INTERNAL", domain, err)
				case domain == "fail":
					if code != codes.InvalidArgument {
						t.Errorf("domain %q: the error is %v; want INVALID_ARGUMENT, or INTERNAL", domain, err)
					}
				case err != nil || string(answer.GetRawBody()) != domain:
					t.Errorf("domain %q: the answer is %v, %v; want the domain in its body", domain, answer, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestListsNeedAHandlerForOneCall(t *testing.T) {
	if _, err := fastgrpc.New(fastgrpc.Options{Lists: map[string]fastgrpc.ListHandler{method: new(lister).handle}}); err == nil {
		t.Error("New returns no error; want an error, because the method has no Handler")
	}
}

// All calls of a list count for Parallel. The connection's goroutine handles one list more.
func TestCallsOfListsCountForParallel(t *testing.T) {
	const parallel, calls = 4, 24
	var running, most atomic.Int64
	var release chan struct{} // made in the bubble
	o := fastgrpc.Options{Parallel: parallel, Methods: map[string]fastgrpc.Handler{method: handle}, Lists: map[string]fastgrpc.ListHandler{
		method: func(ctx context.Context, list []*fastgrpc.Call) {
			now := running.Add(int64(len(list)))
			most.Store(max(most.Load(), now)) // lists are only started one after another
			<-release
			running.Add(-int64(len(list)))
			for _, call := range list {
				call.Err = handle(ctx, call)
			}
		},
	}}
	inBubble(t, o, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
		release = make(chan struct{})
		r.begin()
		var together bytes.Buffer // all calls arrive in one read
		framer := http2.NewFramer(&together, nil)
		for i := range uint32(calls) {
			id := 1 + 2*i
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(fields()), EndHeaders: true})
			framer.WriteData(id, true, message("x"))
		}
		if together.Len() > 4<<10 { // the size of the server's first buffer
			t.Fatalf("the calls have %d bytes; want at most 4 KiB, so that they arrive in one read", together.Len())
		}
		r.write(together.Bytes())
		synctest.Wait()
		if got := running.Load(); got <= parallel || got > 2*parallel {
			t.Errorf("%d calls are handled at the same time; want more than %d, and at most %d", got, parallel, 2*parallel)
		}
		close(release)
		if got := r.outcome(2*calls - 1); got != good {
			t.Errorf("the outcome of the last call is %q; want %q", got, good)
		}
		if got := most.Load(); got > 2*parallel {
			t.Errorf("%d calls were handled at the same time; want at most %d", got, 2*parallel)
		}
	})
}
