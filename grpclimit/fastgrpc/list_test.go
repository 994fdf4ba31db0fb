package fastgrpc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/grpclimit/fastgrpc"
)

// A lister handles lists, and records how long they were.
type lister struct {
	mu      sync.Mutex
	longest int
	calls   int
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
		parallel, maxParallel int // Options; 0: the default
		longest               int // the most calls that a list may have
	}{
		{0, 0, 32},
		{8, 0, 8},
		{0, 5, 6}, // MaxParallel does not count the first call of a connection
	} {
		var l lister
		testLists(t, &l, fastgrpc.Options{Parallel: row.parallel, MaxParallel: row.maxParallel})
		l.mu.Lock()
		t.Logf("%d calls were in lists, at most %d in one", l.calls, l.longest)
		if l.calls == 0 || l.longest > row.longest {
			t.Errorf("%d calls were in lists, at most %d in one; want some calls, at most %d in one", l.calls, l.longest, row.longest)
		}
		l.mu.Unlock()
	}
}

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
				case code == codes.Internal && domain != "fail": // a call of its list may have panicked
				case domain == "fail" && code != codes.InvalidArgument && code != codes.Internal, domain == "panic":
					t.Errorf("domain %s: the error is %v; want INVALID_ARGUMENT for fail and INTERNAL for panic", domain, err)
				case domain != "fail" && (err != nil || string(answer.GetRawBody()) != domain):
					t.Errorf("domain %s: the answer is %v, %v; want the domain in its body", domain, answer, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestListsNeedAHandlerForOneCall(t *testing.T) {
	if _, err := fastgrpc.New(fastgrpc.Options{Lists: map[string]fastgrpc.ListHandler{method: new(lister).handle}}); err == nil {
		t.Error("New returns no error; want that the method has no Handler")
	}
}
