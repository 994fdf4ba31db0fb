package fastgrpc_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// awaitGoAways reads until the server has sent n GOAWAY frames. It answers no ping.
func (r *rawClient) awaitGoAways(n int) {
	for n > 0 {
		f, err := r.ReadFrame()
		if err != nil {
			r.Fatalf("waiting for GOAWAY: %v", err)
		}
		if _, ok := f.(*http2.GoAwayFrame); ok {
			n--
		}
	}
}

// A client that does not answer the ping gets the second GOAWAY after a pause. Until the client has
// read this GOAWAY, it may send calls that the GOAWAY excludes. The server ignores all frames of
// these calls, because the client may send the calls again on another connection.
func TestCallsAfterTheLastGoAwayAreIgnored(t *testing.T) {
	for name, hasOpenCall := range map[string]bool{"with an open call": true, "without an open call": false} {
		t.Run(name, func(t *testing.T) {
			var handled atomic.Int64
			var release chan struct{} // made in the bubble
			options := fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: func(ctx context.Context, call *fastgrpc.Call) error {
				handled.Add(1)
				<-release
				return handle(ctx, call)
			}}}
			inBubble(t, options, func(t *testing.T, server *fastgrpc.Server, r *rawClient) {
				release = make(chan struct{})
				r.begin()
				if hasOpenCall {
					r.call(1, "x")
				}
				synctest.Wait()
				go server.Shutdown(context.Background())
				r.awaitGoAways(2)
				r.call(3, "x")
				r.logError(r.WriteWindowUpdate(3, 1))
				r.logError(r.WriteRSTStream(3, http2.ErrCodeCancel))
				synctest.Wait()
				close(release)
				if hasOpenCall {
					if got := r.outcome(1); got != good {
						t.Errorf("the outcome of the open call is %q; want %q", got, good)
					}
				}
				if got := r.outcome(3); got != "closed" {
					t.Errorf("the outcome of the call after the last GOAWAY is %q; want %q", got, "closed")
				}
			})
			want := int64(0)
			if hasOpenCall {
				want = 1
			}
			if got := handled.Load(); got != want {
				t.Errorf("%d calls were handled; want %d", got, want)
			}
		})
	}
}
