package fastgrpc_test

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// A client of grpc-go sends each request to grpc-go's server and to ours. The answers are equal.
func TestClientOfGRPCGoSeesNoDifference(t *testing.T) {
	standard := dial(t, startStandard(t))
	_, parallel := startFast(t, fastgrpc.Options{})
	_, inTurn := startFast(t, fastgrpc.Options{Parallel: 1})
	for name, address := range map[string]string{"parallel": parallel, "in turn": inTurn} {
		fast := dial(t, address)
		for _, domain := range []string{"", "ok", "fail", "details", "panic", "large"} {
			t.Run(name+"/"+domain, func(t *testing.T) {
				request := &rls.RateLimitRequest{Domain: domain}
				want, wantErr := rls.NewRateLimitServiceClient(standard).ShouldRateLimit(within(t, time.Minute), request)
				got, gotErr := rls.NewRateLimitServiceClient(fast).ShouldRateLimit(within(t, time.Minute), request)
				if got.String() != want.String() || status.Convert(gotErr).Proto().String() != status.Convert(wantErr).Proto().String() {
					t.Errorf("the response is %.200v, %v; want, as from grpc-go, %.200v, %v", got, gotErr, want, wantErr)
				}
			})
		}
	}
}

func TestParallelCallsGetTheirOwnResponses(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	client := rls.NewRateLimitServiceClient(dial(t, address))
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			for j := range 50 {
				domain := fmt.Sprint(i, "/", j)
				answer, err := client.ShouldRateLimit(within(t, time.Minute), &rls.RateLimitRequest{Domain: domain})
				if err != nil || string(answer.GetRawBody()) != domain {
					t.Errorf("domain %q: the answer is %v, %v; want the domain in its body", domain, answer, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// Streams and reflection go to the fallback. These calls share a connection with unary calls.
func TestFallbackServesStreams(t *testing.T) {
	standard := newStandard()
	defer standard.Stop()
	_, address := startFast(t, fastgrpc.Options{Fallback: standard})
	conn := dial(t, address)
	ctx := within(t, time.Minute)
	watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("Watch of the health service: %v, %v; want SERVING", r, err)
	}
	if r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("Check of the health service: %v, %v; want SERVING", r, err)
	}
	services, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := services.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		if r, err := services.Recv(); err != nil || len(r.GetListServicesResponse().GetService()) != 4 {
			t.Fatalf("reflection: %v, %v; want 4 services: rate limits, health, and two versions of reflection", r, err)
		}
	}
	if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rls.RateLimitRequest{}); err != nil {
		t.Errorf("a unary call on the same connection: %v; want no error", err)
	}
}

func TestAbortedFallbackCancelsItsStream(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("part of a response"))
		panic(http.ErrAbortHandler)
	})})
	r := dialRaw(t, address)
	r.call(1, "x", ":path", "/other.Service/Method")
	if got := r.outcome(1); got != "reset INTERNAL_ERROR" {
		t.Errorf("the outcome is %q; want %q", got, "reset INTERNAL_ERROR")
	}
}

// A call of the fallback can send more than the windows of its stream and of the connection.
// Padding counts for these windows too, although no handler reads it.
func TestCallsOfTheFallbackOpenTheirWindows(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", fmt.Sprint(n))
		if err != nil {
			t.Errorf("read the body: %v", err)
		}
	})})
	r := dialRaw(t, address)
	r.headers(1, false, fields(":path", "/other.Service/Method"))
	const rounds, frames, padding = 70, 65, 255        // together 1.2 MB; the window of the connection has 1 MiB
	r.logError(r.WriteData(1, false, make([]byte, 5))) // an empty message, with which the call begins
	for range rounds {
		for range frames {
			r.logError(r.WriteDataPadded(1, false, []byte("x"), make([]byte, padding)))
		}
		r.awaitWindow(1)
	}
	r.logError(r.WriteData(1, true, nil))
	if got, want := r.outcome(1), fmt.Sprintf("200/%d", 5+rounds*frames); got != want {
		t.Errorf("the outcome is %q; want %q, the size of the body", got, want)
	}
}
