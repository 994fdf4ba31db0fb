package envoyrls_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// An encodedService calls the service of Register as a grpc-go server does.
type encodedService struct {
	t      *testing.T
	desc   *grpc.ServiceDesc
	server any
}

func (s *encodedService) RegisterService(desc *grpc.ServiceDesc, server any) {
	s.desc, s.server = desc, server
}

func (s *encodedService) call(ctx context.Context, m *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	codec := envoyrls.Codec()
	data, err := codec.Marshal(m)
	if err != nil {
		s.t.Fatal(err)
	}
	decode := func(to any) error { return codec.Unmarshal(data, to) }
	out, err := s.desc.Methods[0].Handler(s.server, ctx, decode, recovering)
	if err != nil {
		return nil, err
	}
	if data, err = codec.Marshal(out); err != nil {
		s.t.Fatal(err)
	}
	response := new(rlsv3.RateLimitResponse)
	if err := proto.Unmarshal(data.Materialize(), response); err != nil {
		s.t.Errorf("the response cannot be decoded: %v", err)
	}
	return response, nil
}

// recovering is an interceptor that turns a panic into an error.
func recovering(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = status.Error(codes.Internal, fmt.Sprint(value))
		}
	}()
	return handler(ctx, request)
}

// A heldStore decides nothing until release is closed. The store records the sizes of the lists
// that it gets; the size of a single batch is 1.
type heldStore struct {
	penstock.Store
	release chan struct{}

	mu        sync.Mutex
	listSizes []int
}

func (s *heldStore) decide(ctx context.Context, list []*batches.Batch) {
	if err := s.hold(ctx, len(list)); err != nil {
		batches.Fail(list, err)
		return
	}
	batches.Of(s.Store)(ctx, list)
}

// hold records the size of a list, and waits for the release.
func (s *heldStore) hold(ctx context.Context, size int) error {
	s.mu.Lock()
	s.listSizes = append(s.listSizes, size)
	s.mu.Unlock()
	select {
	case <-s.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inBubble runs a test of the service with a held store behind guards, under synctest.
func inBubble(t *testing.T, o envoyrls.Options, test func(t *testing.T, service *encodedService, store *heldStore)) {
	synctest.Test(t, func(t *testing.T) {
		store := &heldStore{Store: memstore.New(memstore.Options{}), release: make(chan struct{})}
		g, err := guard.Standard(batches.Func(store.decide), guard.Options{Instances: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		f := newFixture(t, g, "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}\n", o)
		service := &encodedService{t: t}
		envoyrls.Register(service, f.Engine, false)
		test(t, service, store)
	})
}

// Calls that arrive while the store decides two others become one list. Each gets its own response.
func TestWaitingCallsBecomeAList(t *testing.T) {
	inBubble(t, envoyrls.Options{}, func(t *testing.T, service *encodedService, store *heldStore) {
		var (
			done    sync.WaitGroup
			answers [22]rlsv3.RateLimitResponse_Code
		)
		for i := range answers { // each counter is charged twice, and its limit is 1
			done.Go(func() {
				r, err := service.call(t.Context(), message(fmt.Sprint("a=", i/2)))
				if err != nil || len(r.Statuses) != 1 {
					t.Errorf("the response to call %d is %v, %v; want one status", i, r, err)
				}
				answers[i] = r.GetOverallCode()
			})
			synctest.Wait()
		}
		close(store.release)
		done.Wait()
		if got := fmt.Sprint(store.listSizes); got != "[1 1 20]" {
			t.Errorf("the store got lists of %s calls; want [1 1 20]", got)
		}
		for i := 0; i < len(answers); i += 2 {
			if answers[i]+answers[i+1] != rlsv3.RateLimitResponse_OK+rlsv3.RateLimitResponse_OVER_LIMIT {
				t.Errorf("calls %d and %d share a counter and get %v; want one OK and one OVER_LIMIT", i, i+1, answers[i:i+2])
			}
		}
	})
}

// A full list, of 32 calls, does not wait for the two lists in progress.
func TestFullListsDoNotWait(t *testing.T) {
	inBubble(t, envoyrls.Options{}, func(t *testing.T, service *encodedService, store *heldStore) {
		var done sync.WaitGroup
		for i := range 2 + 3*32 {
			done.Go(func() {
				if _, err := service.call(t.Context(), message(fmt.Sprint("a=", i))); err != nil {
					t.Errorf("call %d: %v; want no error", i, err)
				}
			})
			synctest.Wait()
		}
		if got := fmt.Sprint(store.listSizes); got != "[1 1 32 32 32]" {
			t.Errorf("the store got lists of %s calls; want [1 1 32 32 32]", got)
		}
		close(store.release)
		done.Wait()
	})
}

// A call that is canceled while it waits returns immediately, and is not charged.
func TestCanceledCallsLeave(t *testing.T) {
	inBubble(t, envoyrls.Options{}, func(t *testing.T, service *encodedService, store *heldStore) {
		var done sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 5 {
			done.Go(func() {
				callCtx := t.Context()
				if i == 3 {
					callCtx = ctx
				}
				_, err := service.call(callCtx, message(fmt.Sprint("a=", i)))
				want := codes.OK
				if i == 3 {
					want = codes.Canceled
				}
				if status.Code(err) != want {
					t.Errorf("the error of call %d is %v; want %v", i, err, want)
				}
			})
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		close(store.release)
		done.Wait()
		if got := fmt.Sprint(store.listSizes); got != "[1 1 2]" {
			t.Errorf("the store got lists of %s calls; want [1 1 2]", got)
		}
	})
}

// With a store that hangs, each call gets a response before its own deadline.
func TestWaitingCallsMeetTheirDeadlines(t *testing.T) {
	inBubble(t, envoyrls.Options{}, func(t *testing.T, service *encodedService, store *heldStore) {
		var done sync.WaitGroup
		for i := range 100 {
			timeout := []time.Duration{20 * time.Millisecond, time.Second}[i%2]
			done.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				if _, err := service.call(ctx, message(fmt.Sprint("a=", i))); ctx.Err() != nil {
					t.Errorf("call %d ended with %v after its timeout of %v; want a response before", i, err, timeout)
				}
			})
			time.Sleep(100 * time.Microsecond)
		}
		done.Wait()
	})
}

// A panic ends the calls of its list only.
func TestPanicEndsItsListOnly(t *testing.T) {
	panics := func() time.Time { panic("a bug") } // only call 7 reads the clock, because its response shows the reset time of an unused limit
	inBubble(t, envoyrls.Options{Now: panics}, func(t *testing.T, service *encodedService, store *heldStore) {
		var done sync.WaitGroup
		for i := range 10 {
			done.Go(func() {
				m := message(fmt.Sprint("a=", i))
				if i == 7 {
					m.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
				}
				_, err := service.call(t.Context(), m)
				want := codes.OK
				if i >= 2 { // calls 2 to 9 are one list, which has call 7
					want = codes.Internal
				}
				if status.Code(err) != want {
					t.Errorf("the error of call %d is %v; want %v", i, err, want)
				}
			})
			synctest.Wait()
		}
		close(store.release)
		done.Wait()
		for i := range 5 {
			if r, err := service.call(t.Context(), message(fmt.Sprint("a=later", i))); err != nil || r.OverallCode != rlsv3.RateLimitResponse_OK {
				t.Errorf("the response to a call after the panic is %v, %v; want OK", r, err)
			}
		}
	})
}

// The codec encodes and decodes other messages as protobuf's codec does.
func TestCodecKnowsOtherMessages(t *testing.T) {
	data, err := envoyrls.Codec().Marshal(message("a=b"))
	if err != nil {
		t.Fatal(err)
	}
	var m rlsv3.RateLimitRequest
	if err := envoyrls.Codec().Unmarshal(data, &m); err != nil || !proto.Equal(&m, message("a=b")) {
		t.Errorf("the decoded message is %v, %v; want the message that was encoded", &m, err)
	}
	if err := envoyrls.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(strings.Repeat("\xff", 9))}, &m); err == nil {
		t.Error("bytes that are no message are decoded; want an error")
	}
}

// The service has little to collect as garbage for each call.
func TestCallAllocatesLittle(t *testing.T) {
	effort.SkipUnderRace(t)
	f := newFixture(t, memstore.New(memstore.Options{}), "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: hour, requests_per_unit: 4000000000}}\n", envoyrls.Options{})
	service := &encodedService{t: t}
	envoyrls.Register(service, f.Engine, false)
	data, err := envoyrls.Codec().Marshal(message("a=b"))
	if err != nil {
		t.Fatal(err)
	}
	decode := func(to any) error { return envoyrls.Codec().Unmarshal(data, to) }
	const most = 10
	if n := testing.AllocsPerRun(1000, func() { _, _ = service.desc.Methods[0].Handler(service.server, context.Background(), decode, nil) }); n > most {
		t.Errorf("a call makes %.0f allocations; want at most %d", n, most)
	}
}
