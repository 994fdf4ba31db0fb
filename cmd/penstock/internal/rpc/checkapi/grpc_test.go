package checkapi

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/memstore"
)

// dial serves a service over gRPC, and returns a client of it.
func dial(t testing.TB, s *Service) penstockv1.LimitServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	s.Register(server)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return penstockv1.NewLimitServiceClient(conn)
}

// withToken returns a context that sends a token, and ends with the test.
func withToken(t testing.TB, token string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
}

func TestAllCallsWorkOverGRPC(t *testing.T) {
	client := dial(t, newService(t).Service)
	ctx := withToken(t, operatorToken)
	search := &penstockv1.CheckRequest{Rule: "search", Key: "user:1"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	decision, err := client.Check(ctx, search)
	if must(err); !decision.Allowed || decision.Limits[0].Remaining != 2 {
		t.Errorf("Check: %v; want that it is allowed, and 2 units left", decision)
	}
	batch, err := client.CheckBatch(ctx, &penstockv1.CheckBatchRequest{Checks: []*penstockv1.CheckRequest{search, {Rule: "nothing"}}})
	if must(err); !batch.Answers[0].Decision.Allowed || batch.Answers[1].Error.Code != "not_found" {
		t.Errorf("CheckBatch: %v; want the first request allowed, and not_found for the second", batch)
	}
	reservation, err := client.Reserve(ctx, &penstockv1.ReserveRequest{Check: search})
	must(err)
	for _, want := range []bool{false, true} {
		settled, err := client.Settle(ctx, &penstockv1.SettleRequest{Id: reservation.Id, Cancel: true})
		if must(err); settled.IsRepeat != want {
			t.Errorf("Settle: %v; want is_repeat %t", settled, want)
		}
	}
	hold, err := client.Acquire(ctx, &penstockv1.AcquireRequest{Check: &penstockv1.CheckRequest{Rule: "jobs", Key: "user:1"}})
	must(err)
	renewed, err := client.Renew(ctx, &penstockv1.RenewRequest{Id: hold.Id})
	if must(err); !renewed.IsHeld {
		t.Errorf("Renew: %v; want that the slot is held", renewed)
	}
	_, err = client.Release(ctx, &penstockv1.ReleaseRequest{Id: hold.Id})
	must(err)
	peeked, err := client.Peek(ctx, search)
	if must(err); peeked.Limits[0].Remaining != 1 {
		t.Errorf("Peek: %v; want 1 unit left", peeked)
	}
	_, err = client.Reset(ctx, search)
	must(err)
	explained, err := client.Explain(ctx, search)
	if must(err); len(explained.Charges) != 2 {
		t.Errorf("Explain: %v; want 2 charges, one for each limit", explained)
	}
}

func TestEachGRPCCallNeedsItsToken(t *testing.T) {
	s := newService(t)
	client := dial(t, s.Service)
	check := func(ctx context.Context) error {
		_, err := client.Check(ctx, &penstockv1.CheckRequest{Rule: "search", Key: "user:1"})
		return err
	}
	operatorCalls := map[string]func(context.Context) error{
		"Peek": func(ctx context.Context) error { _, err := client.Peek(ctx, &penstockv1.CheckRequest{}); return err },
		"Reset": func(ctx context.Context) error {
			_, err := client.Reset(ctx, &penstockv1.CheckRequest{})
			return err
		},
		"Explain": func(ctx context.Context) error {
			_, err := client.Explain(ctx, &penstockv1.CheckRequest{})
			return err
		},
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		want codes.Code
	}{
		"no token":           {t.Context(), codes.Unauthenticated},
		"a wrong token":      {withToken(t, "wrong"), codes.Unauthenticated},
		"two tokens":         {metadata.AppendToOutgoingContext(withToken(t, callerToken), "authorization", "Bearer "+callerToken), codes.Unauthenticated},
		"the caller's token": {withToken(t, callerToken), codes.OK},
	} {
		if err := check(c.ctx); status.Code(err) != c.want {
			t.Errorf("Check with %s: %v; want %v", name, err, c.want)
		}
	}
	for name, call := range operatorCalls {
		if err := call(withToken(t, callerToken)); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s with the caller's token: %v; want PERMISSION_DENIED", name, err)
		}
		if err := call(withToken(t, operatorToken)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s of an empty request with the operator's token: %v; want INVALID_ARGUMENT", name, err)
		}
	}
	if len(s.events) != 1 {
		t.Errorf("%d requests were decided; want 1, the one with the caller's token", len(s.events))
	}
}

func TestGRPCCallWithoutDecisionIsUnavailable(t *testing.T) {
	s := newServiceOf(t, rules, failingStore(penstock.ReasonTimeout))
	_, err := dial(t, s.Service).Reset(withToken(t, operatorToken), &penstockv1.CheckRequest{Rule: "search", Key: "user:1"})
	if st := status.Convert(err); st.Code() != codes.Unavailable || len(st.Details()) != 2 {
		t.Errorf("Reset returns %v with the details %v; want UNAVAILABLE with ErrorInfo and RetryInfo", err, st.Details())
	}
}

// Check over gRPC and as JSON, and CheckBatch over gRPC, give the same decisions as a bare store.
func TestCallsGiveTheDecisionsOfTheStore(t *testing.T) {
	s := newService(t)
	client := dial(t, s.Service)
	bare := memstore.New(memstore.Options{Now: s.clock.Now})
	plans := s.controller.Rules().Plans()[:2] // of rule search
	ctx := withToken(t, callerToken)
	random := rand.New(rand.NewPCG(1, 2))
	denied := 0
	const callCount = 800
	for i := range callCount {
		s.clock.advance(time.Duration(random.Int64N(int64(20 * time.Second))))
		key, cost := []string{"user:1", "user:2", "user:3"}[random.IntN(3)], int64(random.IntN(5))
		want, err := bare.Decide(context.Background(), []penstock.Charge{{Key: key, Plan: plans[0], Cost: cost}, {Key: key, Plan: plans[1], Cost: cost}})
		if err != nil {
			t.Fatal(err)
		}
		request := &penstockv1.CheckRequest{Rule: "search", Key: key, Cost: &cost}
		var got *penstockv1.CheckResponse
		switch random.IntN(4) {
		case 0:
			got, err = client.Check(ctx, request)
		case 1:
			body, _ := json.Marshal(map[string]any{"rule": request.Rule, "key": key, "cost": cost})
			got = new(penstockv1.CheckResponse)
			err = protojson.Unmarshal(s.send(callerToken, "/v1/check", string(body)).Body.Bytes(), got)
		case 2:
			got, err = batchOf(client.CheckBatch(ctx, &penstockv1.CheckBatchRequest{Checks: []*penstockv1.CheckRequest{request}}))
		case 3:
			got, err = batchOf(client.CheckBatch(ctx, &penstockv1.CheckBatchRequest{Checks: []*penstockv1.CheckRequest{request}, AllOrNothing: true}))
		}
		if err != nil {
			t.Fatal(err)
		}
		if !want.Allowed {
			denied++
		}
		if got.Allowed != want.Allowed || got.RetryAfterMs != inMS(want.RetryAfter()) || len(got.Limits) != len(plans) {
			t.Fatalf("call %d: the service decides %v; the bare store decides %v", i, got, want)
		}
		for j, l := range got.Limits {
			wantStatus := want.Status(j)
			if l.Remaining != wantStatus.Remaining || l.RetryAfterMs != inMS(wantStatus.RetryAfter) || l.ResetAfterMs != inMS(wantStatus.ResetAfter) {
				t.Fatalf("call %d: limit %d has the status %v; the bare store has %+v", i, j, l, wantStatus)
			}
		}
	}
	if least := callCount / 10; denied < least || denied > callCount-least {
		t.Errorf("%d of %d calls were denied; want at least %d denied and as many allowed", denied, callCount, least)
	}
}

// batchOf returns the decision of a batch of one request.
func batchOf(r *penstockv1.CheckBatchResponse, err error) (*penstockv1.CheckResponse, error) {
	if err != nil {
		return nil, err
	}
	return proto.CloneOf(r.Answers[0].Decision), nil
}
