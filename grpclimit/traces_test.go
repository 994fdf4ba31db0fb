package grpclimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisstore"
)

// For each of many random calls, the Gate decides as a bare store decides the same charges. The
// client gets that decision.
func TestCallsAreDecidedAsTheBareStoreDecides(t *testing.T) {
	seed := effort.Seed()
	r := rand.New(rand.NewPCG(seed, 1))
	now := time.Unix(1_800_000_000, 0)
	clock := memstore.Options{Now: func() time.Time { return now }}
	bare := memstore.New(clock)
	spec := matching(t, ruleOf(t, "shop", byHeader("X-Key"),
		penstock.PerSecond(6).WithBurst(4).WithName("bucket"),
		penstock.PerMinute(50).With(penstock.FixedWindow).WithName("window"),
		penstock.Per(30, 30*time.Second).With(penstock.SlidingLog).WithName("log"),
		penstock.PerMinute(70).With(penstock.SlidingWindow).WithName("sliding"),
	), "/test.Shop/*")
	spec.Rules[0].Limits[0].Cost = policy.Cost{Header: "Call-Cost", Min: 1, Max: 4}
	allowed, denied := 0, 0
	var expected penstock.Decision // of the bare store about the last call
	controller := controllerOf(t, memstore.New(clock), rulesOf(t, spec), admission.Options{
		Observe: func(e *admission.Event) {
			d, err := bare.Decide(context.Background(), slices.Clone(e.Charges))
			if err != nil {
				t.Errorf("the bare store: %v; want a decision", err)
			}
			expected = d
			if d.Allowed != e.Decision.Allowed || d.Len() != e.Decision.Len() {
				t.Errorf("PENSTOCK_SEED=%d: the gate decides %v; want %v as the bare store", seed, *e.Decision, d)
			}
			for i := range d.Len() {
				if d.Status(i) != e.Decision.Status(i) {
					t.Errorf("PENSTOCK_SEED=%d: limit %d: the gate has %+v; want %+v as the bare store", seed, i, e.Decision.Status(i), d.Status(i))
				}
			}
		},
	})
	gate := gateOn(t, controller, grpclimit.Options{
		Cost: func(_ context.Context, _ string, message any) int64 {
			cost, _ := strconv.ParseInt(message.(*wrapperspb.StringValue).Value, 10, 64)
			return cost
		},
	})
	conn := dial(t, serve(t, new(shop), guarded(gate)...))
	for i := range effort.Of(600, 100_000) {
		now = now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
		got := buy(t, conn, "Buy", strconv.Itoa(r.IntN(5)), "x-key", strconv.Itoa(r.IntN(3)))
		fields, want := got.header, codes.OK
		if expected.Allowed {
			allowed++
		} else {
			denied++
			fields, want = got.trailer, codes.ResourceExhausted
		}
		if status.Code(got.err) != want {
			t.Fatalf("PENSTOCK_SEED=%d: call %d: %v; want %v", seed, i, got.err, want)
		}
		for j, name := range []string{"bucket", "window", "log", "sliding"} {
			item := fmt.Sprintf(`"shop.%s";r=%d`, name, max(expected.Status(j).Remaining, 0))
			if !strings.Contains(fields.Get("ratelimit")[0], item) {
				t.Fatalf("PENSTOCK_SEED=%d: call %d has ratelimit: %q; want one that contains %s", seed, i, fields.Get("ratelimit"), item)
			}
		}
	}
	// Each second call or so is denied, so the chance that none is, or that all are, is about 2^-600.
	if allowed == 0 || denied == 0 {
		t.Errorf("%d calls were allowed and %d denied; want some of both", allowed, denied)
	}
	t.Logf("counted: %d calls over gRPC decided as by the bare store", allowed+denied)
}

// While Redis is killed or paused, the OnFailure of each limit decides. When Redis works again,
// the store decides.
func TestCallsWhileRedisIsAway(t *testing.T) {
	for _, outage := range []string{"killed", "paused"} {
		t.Run(outage, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			store, err := redisstore.Open(server.URL(), redisstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			spec := matching(t, ruleOf(t, "open", byHeader("X-Key"), penstock.PerHour(2)), "/test.Shop/Buy")
			closed := matching(t, ruleOf(t, "closed", byHeader("X-Key"), penstock.PerHour(2)), "/test.Shop/Look")
			spec.Rules[0].Limits[0].Guard.OnFailure = guard.FailOpen
			closed.Rules[0].Limits[0].Guard.OnFailure = guard.FailClosed
			spec.Rules = append(spec.Rules, closed.Rules...)
			rules := rulesOf(t, spec)
			stack, err := guard.Standard(store, guard.Options{Instances: 1, Limits: rules.Settings, Timeout: guard.TimeoutOptions{After: 250 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stack.Close)
			gate := gateOn(t, controllerOf(t, stack, rules, admission.Options{}), grpclimit.Options{})
			conn := dial(t, serve(t, new(shop), guarded(gate)...))
			expect := func(method, key string, want codes.Code) {
				t.Helper()
				if r := buy(t, conn, method, "a", "x-key", key); status.Code(r.err) != want {
					t.Errorf("while Redis is %s, a call of %s: %v; want %v", outage, method, r.err, want)
				}
			}
			awaitStore(t, conn)
			if outage == "killed" {
				server.Kill()
			} else {
				server.Pause()
			}
			for range 5 {
				expect("Buy", "b", codes.OK)
				expect("Look", "b", codes.Unavailable)
			}
			if outage == "killed" {
				if err := server.Restart(); err != nil {
					t.Fatal(err)
				}
			} else {
				server.Resume()
			}
			awaitStore(t, conn)
		})
	}
}

// awaitStore returns when the store has decided three calls of Look in a row. Each attempt has a
// new key, because a call that got no answer in time may have been charged.
func awaitStore(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	eventually.True(t, "the store decides", func() bool {
		key := fmt.Sprint(rand.Uint64())
		var got []codes.Code
		for range 3 {
			got = append(got, status.Code(buy(t, conn, "Look", "a", "x-key", key).err))
		}
		if slices.Contains(got, codes.Unavailable) {
			return false
		}
		if want := []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted}; !slices.Equal(got, want) {
			t.Errorf("three calls of Look, which 2 per hour limit: %v; want %v", got, want)
		}
		return true
	})
}

// A long stream uses no more memory than a short one.
func TestLongStreams(t *testing.T) {
	messages := effort.Of(5_000, 1_000_000)
	gate := gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "r", policy.ByAddress(), penstock.PerSecond(1_000_000), penstock.InFlight(1, time.Minute)), grpclimit.Options{Messages: true, MaxMessageWait: time.Minute})
	stream := chat(t, dial(t, serve(t, new(shop), guarded(gate)...)))
	received := make(chan error, 1)
	go func() {
		answer := new(wrapperspb.StringValue)
		for i := range messages {
			if err := stream.RecvMsg(answer); err != nil || answer.Value != strconv.Itoa(i) {
				received <- fmt.Errorf("the response to message %d is %q, %v; want its number", i, answer.Value, err)
				return
			}
		}
		received <- nil
	}()
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var before uint64
	for i := range messages {
		if err := stream.SendMsg(wrapperspb.String(strconv.Itoa(i))); err != nil {
			t.Fatal(<-received)
		}
		if i == messages/4 {
			before = heap()
		}
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	const maxGrowth = 8 << 20 // bytes; without a leak, the heap varies by less than this
	if after := heap(); after > before+maxGrowth {
		t.Errorf("the heap has grown from %d to %d bytes; want at most %d more", before, after, maxGrowth)
	}
	t.Logf("counted: %d messages of one stream charged", messages)
}

// With many idle connections open, the server serves calls on them, and on a new one.
func TestManyConnections(t *testing.T) {
	n := effort.Of(200, 10_000)
	gate := gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "r", policy.ByAddress(), penstock.PerSecond(1_000_000)), grpclimit.Options{})
	address := serve(t, new(shop), guarded(gate)...)
	conns := make([]*grpc.ClientConn, n)
	for i := range conns {
		conns[i] = dial(t, address)
		conns[i].Connect()
	}
	for _, conn := range conns {
		for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
			if !conn.WaitForStateChange(patient(t), state) {
				t.Fatalf("a connection stays %v; want READY", state)
			}
		}
	}
	for _, conn := range []*grpc.ClientConn{conns[0], conns[n/2], conns[n-1], dial(t, address)} {
		if r := buy(t, conn, "Buy", "a"); r.err != nil {
			t.Errorf("a call: %v; want no error", r.err)
		}
	}
	t.Logf("counted: %d idle connections", n)
}
