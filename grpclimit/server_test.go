package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

func TestDenialsHaveReasonAndRetryTime(t *testing.T) {
	spec := matching(t, ruleOf(t, "shop", byHeader("X-Key"), penstock.PerHour(2).With(penstock.FixedWindow)), "/test.Shop/Buy")
	gate := gateOf(t, fixedClockStore(), spec, grpclimit.Options{Domain: "shop.example"})
	conn := dial(t, serve(t, new(shop), guarded(gate)...))
	for i, left := range []string{"1", "0"} {
		r := buy(t, conn, "Buy", "a", "x-key", "secret-of-a")
		want := metadata.MD{"ratelimit-policy": {`"shop.hour";q=2;w=3600`}, "ratelimit": {`"shop.hour";r=` + left + `;t=3600`}}
		if r.err != nil || r.text != "a" || !slices.Equal(r.header["ratelimit"], want["ratelimit"]) || !slices.Equal(r.header["ratelimit-policy"], want["ratelimit-policy"]) {
			t.Errorf("call %d: %+v; want the header %v", i, r, want)
		}
	}
	r := buy(t, conn, "Buy", "a", "x-key", "secret-of-a")
	if status.Code(r.err) != codes.ResourceExhausted {
		t.Fatalf("the third call: %v; want RESOURCE_EXHAUSTED", r.err)
	}
	if d := detail[*errdetails.RetryInfo](t, r.err); d.RetryDelay.AsDuration() != time.Hour {
		t.Errorf("RetryInfo: %v; want an hour", d)
	}
	info := detail[*errdetails.ErrorInfo](t, r.err)
	if info.Reason != "RATE_LIMIT_EXCEEDED" || info.Domain != "shop.example" || info.Metadata["rule"] != "shop" || info.Metadata["policies"] != "shop.hour" {
		t.Errorf("ErrorInfo: %v; want RATE_LIMIT_EXCEEDED of shop.example, with the rule shop and the policy shop.hour", info)
	}
	quota := detail[*errdetails.QuotaFailure](t, r.err)
	if len(quota.Violations) != 1 || quota.Violations[0].QuotaId != "shop.hour" || quota.Violations[0].QuotaValue != 2 || quota.Violations[0].Subject != "rule:shop" {
		t.Errorf("QuotaFailure: %v; want one violation of shop.hour, with the value 2 and the subject rule:shop", quota)
	}
	for name, want := range map[string]string{"grpc-retry-pushback-ms": "3600000", "retry-after": "3600", "ratelimit": `"shop.hour";r=0;t=3600`} {
		if got := r.trailer[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("the trailer has %s: %q; want %q", name, got, want)
		}
	}
	if text := fmt.Sprint(r.err, status.Convert(r.err).Details(), r.trailer); strings.Contains(text, "secret-of-a") {
		t.Errorf("the response contains the client's key: %s; want that it does not", text)
	}
	if r := buy(t, conn, "Look", "a", "x-key", "secret-of-a"); r.err != nil || r.header["ratelimit"] != nil {
		t.Errorf("another method: %+v; want no error and no metadata about limits", r)
	}
	if r := buy(t, conn, "Buy", "a", "x-key", "b"); r.err != nil {
		t.Errorf("a call with another key: %v; want no error", r.err)
	}
}

// A limit with InHeaders false is not named, in the message, the metadata and the details.
func TestDenialsHideLimitsThatHeadersHide(t *testing.T) {
	spec := matching(t, ruleOf(t, "shop", byHeader("X-Key"), penstock.PerHour(2).With(penstock.FixedWindow).WithName("secret")), "/test.Shop/Buy")
	spec.Rules[0].Limits[0].InHeaders = false
	gate := gateOf(t, fixedClockStore(), spec, grpclimit.Options{Domain: "shop.example"})
	conn := dial(t, serve(t, new(shop), guarded(gate)...))
	for range 2 {
		buy(t, conn, "Buy", "a", "x-key", "a")
	}
	r := buy(t, conn, "Buy", "a", "x-key", "a")
	text := fmt.Sprint(r.err, status.Convert(r.err).Details(), r.header, r.trailer)
	if status.Code(r.err) != codes.ResourceExhausted || strings.Contains(text, "secret") || !strings.Contains(text, "rule:shop") {
		t.Errorf("the third call: %s; want RESOURCE_EXHAUSTED of the rule shop, without the name of its limit", text)
	}
}

// A call has metadata about limits only if the rule matches it.
func TestRulesMatchCalls(t *testing.T) {
	header := func(name, value string) policy.Match {
		return policy.Match{Where: valueOf(t, policy.Header(name), value)}
	}
	address := func(network string) policy.Match {
		return policy.Match{Where: valueOf(t, policy.Source{Kind: policy.KindAddress}, network)}
	}
	for _, c := range []struct {
		paths []string
		match policy.Match
		want  string // the methods that match
	}{
		{paths: []string{"/test.Shop/*"}, want: "Buy Look Chat"},
		{paths: []string{"/test.Shop/Buy"}, want: "Buy"},
		{paths: []string{"/test.Shop/B*"}, want: "Buy"},
		{paths: []string{"/test.Shop/Chat", "/test.Shop/Look"}, want: "Look Chat"},
		{paths: []string{"/**"}, want: "Buy Look Chat"},
		{paths: []string{"/test.*/*"}, want: "Buy Look Chat"},
		{match: policy.Match{Methods: []string{"POST"}}, want: "Buy Look Chat"},
		{match: policy.Match{Methods: []string{"GET"}}, want: ""},
		{match: policy.Match{Hosts: []string{"shop.example"}}, want: "Buy Look Chat"},
		{match: policy.Match{Hosts: []string{"other.example"}}, want: ""},
		{match: header("X-Kind", "big"), want: "Buy Look Chat"},
		{match: header("X-Kind", "small"), want: ""},
		{match: address("127.0.0.0/8"), want: "Buy Look Chat"},
		{match: address("192.0.2.0/24"), want: ""},
		{match: header("X-Data-Bin", "text"), want: ""}, // metadata in -bin are bytes, which rules do not read
	} {
		spec := ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(100))
		spec.Rules[0].Match = c.match
		gate := gateOf(t, fixedClockStore(), matching(t, spec, c.paths...), grpclimit.Options{})
		conn := dial(t, serve(t, new(shop), guarded(gate)...), grpc.WithAuthority("shop.example:443"))
		var matched []string
		for _, method := range []string{"Buy", "Look"} {
			if r := buy(t, conn, method, "a", "x-kind", "big", "x-data-bin", "text"); r.err != nil {
				t.Errorf("%+v: a call of %s: %v; want no error", c, method, r.err)
			} else if r.header["ratelimit"] != nil {
				matched = append(matched, method)
			}
		}
		stream := chat(t, conn, "x-kind", "big", "x-data-bin", "text")
		if answer, err := say(stream, "a"); answer != "a" {
			t.Errorf("%+v: a stream: response %q, error %v; want the message a", c, answer, err)
		}
		if header, err := stream.Header(); err != nil {
			t.Errorf("%+v: the header of a stream: %v; want no error", c, err)
		} else if header["ratelimit"] != nil {
			matched = append(matched, "Chat")
		}
		if got := strings.Join(matched, " "); got != c.want {
			t.Errorf("%+v matches %q; want %q", c, got, c.want)
		}
	}
}

func TestClientAddressComesFromTrustedProxies(t *testing.T) {
	byAddress := ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(1))
	noOptions := grpclimit.Options{}
	trusting := grpclimit.Options{TrustedProxies: []string{"127.0.0.0/8", "unix"}}
	realIP := grpclimit.Options{TrustedProxies: []string{"127.0.0.1"}, AddressHeader: "X-Real-IP"}
	forwarded := func(addresses string) []string { return []string{"x-forwarded-for", addresses} }
	for _, c := range []struct {
		name          string
		options       grpclimit.Options
		isUnix        bool     // the server listens on a unix socket
		first, second []string // metadata of the two calls
		isSame        bool     // the two calls are of one client, so the second is denied
	}{
		{name: "an untrusted peer", options: noOptions, first: forwarded("192.0.2.1"), second: forwarded("192.0.2.2"), isSame: true},
		{name: "a trusted proxy", options: trusting, first: forwarded("192.0.2.1"), second: forwarded("192.0.2.2")},
		{name: "a list whose first part is forged", options: trusting, first: forwarded("192.0.2.1, 203.0.113.7"), second: forwarded("192.0.2.2, 203.0.113.7"), isSame: true},
		{name: "the header X-Real-IP", options: realIP, first: []string{"x-real-ip", "192.0.2.1"}, second: []string{"x-real-ip", "192.0.2.2"}},
		{name: "another header than AddressHeader", options: realIP, first: forwarded("192.0.2.1"), second: forwarded("192.0.2.2"), isSame: true},
		{name: "a trusted unix socket", options: trusting, isUnix: true, first: forwarded("192.0.2.1"), second: forwarded("192.0.2.2")},
		{name: "an untrusted unix socket", options: noOptions, isUnix: true, first: forwarded("192.0.2.1"), second: forwarded("192.0.2.2"), isSame: true},
	} {
		gate := gateOf(t, fixedClockStore(), byAddress, c.options)
		var target string
		if c.isUnix {
			path := filepath.Join(t.TempDir(), "s")
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			serveOn(t, listener, new(shop), guarded(gate)...)
			target = "unix:" + path
		} else {
			target = serve(t, new(shop), guarded(gate)...)
		}
		conn := dial(t, target, grpc.WithAuthority("shop"))
		if r := buy(t, conn, "Buy", "a", c.first...); r.err != nil {
			t.Errorf("%s: the first call: %v; want no error", c.name, r.err)
		}
		if r := buy(t, conn, "Buy", "a", c.second...); (status.Code(r.err) == codes.ResourceExhausted) != c.isSame {
			t.Errorf("%s: the second call: %v; want that it is denied: %t", c.name, r.err, c.isSame)
		}
	}
}

func TestHealthChecksAreNotLimited(t *testing.T) {
	oneCall := ruleOf(t, "r", policy.Global(), penstock.PerHour(1))
	conn := dial(t, serve(t, new(shop), guarded(gateOf(t, fixedClockStore(), oneCall, grpclimit.Options{}))...))
	for range 3 {
		if _, err := healthpb.NewHealthClient(conn).Check(patient(t), new(healthpb.HealthCheckRequest)); err != nil {
			t.Errorf("a health check: %v; want no error", err)
		}
	}
	onlyLook := func(method string) bool { return method == "/test.Shop/Look" }
	conn = dial(t, serve(t, new(shop), guarded(gateOf(t, fixedClockStore(), oneCall, grpclimit.Options{Exempt: onlyLook}))...))
	for range 3 {
		if r := buy(t, conn, "Look", "a"); r.err != nil {
			t.Errorf("an exempt method: %v; want no error", r.err)
		}
	}
	healthpb.NewHealthClient(conn).Check(patient(t), new(healthpb.HealthCheckRequest)) // takes the only unit
	if _, err := healthpb.NewHealthClient(conn).Check(patient(t), new(healthpb.HealthCheckRequest)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a health check that is not exempt: %v; want RESOURCE_EXHAUSTED", err)
	}
}

// retrying is a service config for clients: three attempts, and a short backoff. A pushback of the
// server replaces the backoff.
const retrying = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}]}`

func TestClientsFollowThePushbackOfTheTrailer(t *testing.T) {
	oneEachTwoSeconds := ruleOf(t, "r", policy.Global(), penstock.PerMinute(30).WithBurst(1))
	tooDear := ruleOf(t, "r", policy.Global(), penstock.PerHour(2))
	tooDear.Rules[0].Limits[0].Cost = policy.Cost{Body: 1, Min: 1}
	failClosed := ruleOf(t, "r", policy.Global(), penstock.PerHour(100))
	failClosed.Rules[0].Limits[0].Guard.OnFailure = guard.FailClosed
	failing := &shop{buy: func(context.Context, string) (string, error) { return "", status.Error(codes.Unavailable, "busy") }}
	for _, c := range []struct {
		name     string
		spec     policy.Spec
		shop     *shop
		isUsedUp bool       // an earlier call has used up the limit
		isNested bool       // there are two gates, one inside the other
		isBroken bool       // the store gives no answer
		want     string     // the outcomes of all attempts
		code     codes.Code // the code that the call ends with
	}{
		{
			name: "a denied call is retried when the limit has room", spec: oneEachTwoSeconds,
			shop: new(shop), isUsedUp: true, want: "denied allowed", code: codes.OK,
		},
		{
			name: "a call denied by one of two nested gates is retried too", spec: oneEachTwoSeconds,
			shop: new(shop), isUsedUp: true, isNested: true, want: "denied allowed", code: codes.OK,
		},
		{
			name: "a call that costs more than the limit is not retried", spec: tooDear,
			shop: new(shop), want: "denied", code: codes.ResourceExhausted,
		},
		{
			name: "a call that the handler fails is retried", spec: ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(100)),
			shop: failing, want: "allowed allowed allowed", code: codes.Unavailable,
		},
		{
			name: "a call whose limits cannot be checked is retried", spec: failClosed,
			shop: new(shop), isBroken: true, want: "failed_closed failed_closed failed_closed", code: codes.Unavailable,
		},
	} {
		for _, method := range []string{"Buy", "Chat"} {
			if method == "Chat" && (c.shop == failing || c.spec.Rules[0].Limits[0].Cost.Body > 0) {
				continue // failing fails only Buy, and a stream has no body when it begins
			}
			t.Run(c.name+" "+method, func(t *testing.T) {
				t.Parallel()
				var seen events
				store := penstock.Store(memstore.New(memstore.Options{}))
				if c.isBroken {
					store = unavailable{}
				}
				gates := []*grpclimit.Gate{gateOn(t, controllerOf(t, store, rulesOf(t, c.spec), admission.Options{Observe: seen.observe}), grpclimit.Options{})}
				if c.isNested {
					gates = append(gates, gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "inner", policy.Global(), penstock.PerSecond(1000)), grpclimit.Options{}))
					slices.Reverse(gates)
				}
				address := serve(t, c.shop, guarded(gates...)...)
				if c.isUsedUp {
					if r := buy(t, dial(t, address), "Look", "a"); r.err != nil {
						t.Fatal(r.err)
					}
					seen.outcomes = nil
				}
				conn := dial(t, address, grpc.WithDefaultServiceConfig(retrying))
				var err error
				if method == "Chat" {
					// If the server ends the last attempt before the message is sent, grpc-go returns
					// io.EOF in place of the status. So the message is sent after all attempts.
					stream, received := chat(t, conn), make(chan error, 1)
					go func() { received <- stream.RecvMsg(new(wrapperspb.StringValue)) }()
					eventually.True(t, "the attempts have the outcomes "+c.want, func() bool { return seen.String() == c.want })
					if c.code == codes.OK {
						stream.SendMsg(wrapperspb.String("a")) // if it fails, RecvMsg returns the reason
					}
					err = <-received
				} else {
					err = buy(t, conn, "Buy", "a").err
				}
				if got := seen.String(); got != c.want || status.Code(err) != c.code {
					t.Errorf("%s: outcomes %q, error %v; want %q, %v", method, got, err, c.want, c.code)
				}
			})
		}
	}
}

// unavailable is a store that gives no answer.
type unavailable struct{}

func (unavailable) Decide(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, errors.New("no server"))
}

func TestOnFailureDecidesWhileTheStoreFails(t *testing.T) {
	for mode, want := range map[guard.FailureMode]codes.Code{guard.FailOpen: codes.OK, guard.FailClosed: codes.Unavailable, guard.FailLocal: codes.OK} {
		spec := ruleOf(t, "r", policy.Global(), penstock.PerHour(1))
		spec.Rules[0].Limits[0].Guard.OnFailure = mode
		gate := gateOf(t, unavailable{}, spec, grpclimit.Options{})
		conn := dial(t, serve(t, new(shop), guarded(gate)...))
		r := buy(t, conn, "Buy", "a")
		if status.Code(r.err) != want {
			t.Errorf("OnFailure %v: %v; want %v", mode, r.err, want)
		}
		if mode == guard.FailClosed {
			if info := detail[*errdetails.ErrorInfo](t, r.err); info.Reason != "RATE_LIMITS_UNAVAILABLE" {
				t.Errorf("ErrorInfo: %v; want RATE_LIMITS_UNAVAILABLE", info)
			}
			if r.trailer["grpc-retry-pushback-ms"] == nil {
				t.Errorf("the trailer is %v; want one with the pushback", r.trailer)
			}
		}
		if mode == guard.FailLocal {
			if r := buy(t, conn, "Buy", "a"); status.Code(r.err) != codes.ResourceExhausted {
				t.Errorf("OnFailure local: the second call: %v; want RESOURCE_EXHAUSTED", r.err)
			}
		}
	}
}

func TestDeniedAndMalformedCallsAreRefused(t *testing.T) {
	spec := ruleOf(t, "r", byHeader("X-Key"), penstock.PerHour(1))
	spec.Deny = []policy.Condition{valueOf(t, policy.Header("X-Key"), "bad")}
	gate := gateOf(t, fixedClockStore(), spec, grpclimit.Options{})
	conn := dial(t, serve(t, new(shop), guarded(gate)...))
	if r := buy(t, conn, "Buy", "a", "x-key", "bad"); status.Code(r.err) != codes.PermissionDenied {
		t.Errorf("a client on the deny list: %v; want PERMISSION_DENIED", r.err)
	}
	if r := buy(t, conn, "Buy", "a", "x-key", "one", "x-key", "two"); status.Code(r.err) != codes.InvalidArgument {
		t.Errorf("a call with two keys: %v; want INVALID_ARGUMENT", r.err)
	}
	bad := dial(t, serve(t, new(shop), guarded(gate)...), grpc.WithAuthority("a b"))
	if r := buy(t, bad, "Buy", "a"); status.Code(r.err) != codes.InvalidArgument && status.Code(r.err) != codes.Internal {
		t.Errorf("a malformed authority: %v; want INVALID_ARGUMENT, or INTERNAL from grpc-go", r.err)
	}
}

// A limit with Status counts only calls whose code has a listed HTTP status.
func TestOnStatusCountsCodes(t *testing.T) {
	code := codes.OK
	s := &shop{buy: func(context.Context, string) (string, error) { return "", status.Error(code, "for the test") }}
	spec := ruleOf(t, "r", policy.Global(), penstock.PerHour(1))
	charged := new(policy.Statuses)
	charged.Add(401, 401)
	charged.Add(500, 599)
	spec.Rules[0].Limits[0].Status = charged
	gate := gateOf(t, fixedClockStore(), spec, grpclimit.Options{})
	conn := dial(t, serve(t, s, guarded(gate)...))
	for _, free := range []codes.Code{codes.OK, codes.NotFound, codes.InvalidArgument, codes.AlreadyExists, codes.PermissionDenied, codes.Canceled} {
		code = free
		for range 2 {
			if r := buy(t, conn, "Buy", "a"); status.Code(r.err) != free {
				t.Errorf("calls that end with %v are charged: %v; want no charge", free, r.err)
			}
		}
	}
	code = codes.Unauthenticated
	if r := buy(t, conn, "Buy", "a"); status.Code(r.err) != codes.Unauthenticated {
		t.Fatalf("a call that is charged: %v; want UNAUTHENTICATED", r.err)
	}
	if r := buy(t, conn, "Buy", "a"); status.Code(r.err) != codes.ResourceExhausted {
		t.Errorf("after a call that is charged: %v; want RESOURCE_EXHAUSTED", r.err)
	}
}

func TestSlotsAreReturnedWhenTheHandlerReturns(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := &shop{
		buy: func(_ context.Context, text string) (string, error) {
			if text == "panic" {
				panic("no")
			}
			entered <- struct{}{}
			<-leave
			return text, nil
		},
		chat: func(grpc.ServerStream) error {
			entered <- struct{}{}
			<-leave
			return nil
		},
	}
	gate := gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "r", policy.Global(), penstock.InFlight(1, time.Minute)), grpclimit.Options{})
	recovers := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return handler(ctx, request)
	}
	conn := dial(t, serve(t, s, append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(recovers)}, guarded(gate)...)...))
	call := func() <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- buy(t, conn, "Buy", "a").err }()
		return ended
	}
	for range 2 {
		first := call()
		<-entered
		if r := buy(t, conn, "Look", "a"); status.Code(r.err) != codes.ResourceExhausted {
			t.Errorf("a call while the slot is taken: %v; want RESOURCE_EXHAUSTED", r.err)
		}
		leave <- struct{}{}
		if err := <-first; err != nil {
			t.Errorf("the call that has the slot: %v; want no error", err)
		}
		if r := buy(t, conn, "Buy", "panic"); status.Code(r.err) != codes.Internal {
			t.Errorf("a call whose handler panics: %v; want INTERNAL", r.err)
		}
	}
	stream := chat(t, conn)
	<-entered
	if r := buy(t, conn, "Look", "a"); status.Code(r.err) != codes.ResourceExhausted {
		t.Errorf("a call while a stream has the slot: %v; want RESOURCE_EXHAUSTED", r.err)
	}
	leave <- struct{}{}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
		t.Errorf("the stream ended with %v; want no error", err)
	}
	last := call()
	<-entered
	leave <- struct{}{}
	if err := <-last; err != nil {
		t.Errorf("a call after the stream: %v; want that it gets the slot", err)
	}
}

func TestMessagesOfStreams(t *testing.T) {
	fivePerHour := ruleOf(t, "r", policy.Global(), penstock.PerHour(5).With(penstock.FixedWindow), penstock.InFlight(1, time.Minute))
	for isCharged, want := range map[bool]int{false: 20, true: 5} {
		var seen events
		controller := controllerOf(t, fixedClockStore(), rulesOf(t, fivePerHour), admission.Options{Observe: seen.observe})
		gate := gateOn(t, controller, grpclimit.Options{Messages: isCharged})
		stream := chat(t, dial(t, serve(t, new(shop), guarded(gate)...)))
		passed := 0
		var err error
		for range 20 {
			if _, err = say(stream, "a"); err != nil {
				break
			}
			passed++
		}
		if passed != want {
			t.Errorf("messages are charged: %t: %d messages passed, %v; want %d", isCharged, passed, err, want)
		}
		if isCharged {
			if status.Code(err) != codes.ResourceExhausted || !slices.Equal(stream.Trailer()["grpc-retry-pushback-ms"], []string{"3600000"}) {
				t.Errorf("the stream ended with %v, %v; want RESOURCE_EXHAUSTED and a pushback of an hour", err, stream.Trailer())
			}
			detail[*errdetails.RetryInfo](t, err)
			continue
		}
		if err := stream.CloseSend(); err != nil {
			t.Errorf("CloseSend: %v; want no error", err)
		}
		if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
			t.Errorf("the stream ended with %v; want no error", err)
		}
	}
}

// A handler that receives more messages after a denial gets more denials. The client gets only one
// pushback, because a client that gets two does not retry.
func TestOnePushbackForAStream(t *testing.T) {
	s := &shop{chat: func(stream grpc.ServerStream) error {
		for range 5 {
			stream.RecvMsg(new(wrapperspb.StringValue))
		}
		return status.Error(codes.ResourceExhausted, "enough")
	}}
	gate := gateOf(t, fixedClockStore(), ruleOf(t, "r", policy.Global(), penstock.PerHour(2)), grpclimit.Options{Messages: true})
	stream := chat(t, dial(t, serve(t, s, guarded(gate, gate)...)))
	for range 5 {
		stream.SendMsg(wrapperspb.String("a"))
	}
	stream.RecvMsg(new(wrapperspb.StringValue))
	if got := stream.Trailer()["grpc-retry-pushback-ms"]; len(got) != 1 {
		t.Errorf("the trailer has the pushbacks %q; want exactly one", got)
	}
}

// All messages arrive after their waits: under a token bucket, which makes reservations, and under
// algorithms that make none.
func TestMessagesWait(t *testing.T) {
	for name, limit := range map[string]penstock.Limit{
		"token bucket": penstock.PerSecond(200).WithBurst(1),
		"fixed window": penstock.Per(10, 50*time.Millisecond).With(penstock.FixedWindow),
		"sliding log":  penstock.Per(10, 50*time.Millisecond).With(penstock.SlidingLog),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "r", policy.Global(), limit), grpclimit.Options{Messages: true, MaxMessageWait: time.Minute})
			stream := chat(t, dial(t, serve(t, new(shop), guarded(gate)...)))
			for i := range 60 {
				if answer, err := say(stream, fmt.Sprint(i)); answer != fmt.Sprint(i) {
					t.Fatalf("the response to message %d is %q, error %v; want the same message", i, answer, err)
				}
			}
		})
	}
}

// A message that would wait for longer than MaxMessageWait is refused without a wait.
func TestMessagesWaitOnlySoLong(t *testing.T) {
	for _, limit := range []penstock.Limit{penstock.PerHour(1), penstock.PerHour(1).With(penstock.FixedWindow)} {
		gate := gateOf(t, fixedClockStore(), ruleOf(t, "r", policy.Global(), limit), grpclimit.Options{Messages: true, MaxMessageWait: time.Minute})
		stream := chat(t, dial(t, serve(t, new(shop), guarded(gate)...)))
		if _, err := say(stream, "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := say(stream, "a"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%+v: the second message: %v; want RESOURCE_EXHAUSTED", limit, err)
		}
	}
	// A message stops waiting when its client cancels the stream.
	controller := controllerOf(t, memstore.New(memstore.Options{}), rulesOf(t, ruleOf(t, "r", policy.Global(), penstock.PerHour(1))), admission.Options{})
	gate := gateOn(t, controller, grpclimit.Options{Messages: true, MaxMessageWait: 2 * time.Hour})
	ended := make(chan error, 1)
	s := &shop{chat: func(stream grpc.ServerStream) error {
		stream.RecvMsg(new(wrapperspb.StringValue))
		err := stream.RecvMsg(new(wrapperspb.StringValue))
		ended <- err
		return err
	}}
	conn := dial(t, serve(t, s, guarded(gate)...))
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Shop/Chat")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.SendMsg(wrapperspb.String("a")); err != nil {
			t.Fatal(err)
		}
	}
	eventually.True(t, "the message waits", func() bool { return controller.Waiting() > 0 })
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("a message that waited while its client left: %v; want CANCELLED", err)
	}
}

func TestCostsComeFromAFunction(t *testing.T) {
	cost := func(_ context.Context, method string, message any) int64 {
		if message, ok := message.(*wrapperspb.StringValue); ok {
			return int64(len(message.Value))
		}
		return 1
	}
	spec := ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(10))
	spec.Rules[0].Limits[0].Cost = policy.Cost{Header: "Call-Cost", Min: 1, Max: 8}
	gate := gateOf(t, fixedClockStore(), spec, grpclimit.Options{Cost: cost, Messages: true})
	conn := dial(t, serve(t, new(shop), guarded(gate)...))
	for _, c := range []struct{ text, left string }{{"12345", "5"}, {"1234", "1"}} {
		if r := buy(t, conn, "Buy", c.text, "call-cost", "0"); r.err != nil || !strings.Contains(strings.Join(r.header["ratelimit"], ""), ";r="+c.left+";") {
			t.Errorf("a call that costs %d units: %+v; want %s units left", len(c.text), r, c.left)
		}
	}
	stream := chat(t, conn)
	if _, err := say(stream, "the first is charged with the stream"); err != nil {
		t.Errorf("the first message: %v; want no error", err)
	}
	if _, err := say(stream, "1"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message that costs a unit when none is left: %v; want RESOURCE_EXHAUSTED", err)
	}
}

func TestHandlersSettleAndSeeTheDecision(t *testing.T) {
	s := &shop{buy: func(ctx context.Context, text string) (string, error) {
		d, ok := grpclimit.DecisionOf(ctx)
		if text == "settle" {
			if err := grpclimit.Settle(ctx, 5); err != nil {
				return "", err
			}
		}
		return fmt.Sprint(ok, d.Remaining()), nil
	}}
	spec := matching(t, ruleOf(t, "r", policy.Global(), penstock.PerHour(10)), "/test.Shop/Buy")
	gate := gateOf(t, fixedClockStore(), spec, grpclimit.Options{})
	conn := dial(t, serve(t, s, guarded(gate)...))
	// want is whether a limit applied, and the units left when the handler runs.
	for _, c := range []struct{ text, want string }{{"settle", "true 9"}, {"", "true 4"}} {
		if r := buy(t, conn, "Buy", c.text); r.text != c.want {
			t.Errorf("the handler sees the decision %q, error %v; want %q", r.text, r.err, c.want)
		}
	}
	if r := buy(t, conn, "Look", "settle"); r.err == nil {
		t.Error("Settle of a call without limits returns no error; want one")
	}
	if err := grpclimit.Settle(t.Context(), 1); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("Settle outside a call: %v; want ErrInvalid", err)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	controller := controllerOf(t, fixedClockStore(), rulesOf(t, ruleOf(t, "r", policy.Global(), penstock.PerHour(1))), admission.Options{})
	for _, c := range []struct {
		options grpclimit.Options
		want    string
	}{
		{grpclimit.Options{TrustedProxies: []string{"10.0.0.1/8"}}, "is an address within a network"},
		{grpclimit.Options{TrustedProxies: []string{"nobody"}}, "is not a network"},
		{grpclimit.Options{AddressHeader: "a b"}, "cannot be the name of a header"},
		{grpclimit.Options{Dialects: []string{"draft-12"}}, `unknown value "draft-12"`},
		{grpclimit.Options{Dialects: []string{"none", "draft-11"}}, "none alone"},
		{grpclimit.Options{Dialects: []string{"draft-11", "draft-07"}}, "choose one"},
		{grpclimit.Options{Dialects: []string{"draft-11", "draft-11"}}, "twice"},
		{grpclimit.Options{Messages: true, MaxMessageWait: -1}, "must not be negative"},
		{grpclimit.Options{MaxMessageWait: time.Second}, "needs Messages"},
	} {
		if _, err := grpclimit.New(controller, c.options); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New with %+v returns %v; want ErrInvalid with %q", c.options, err, c.want)
		}
	}
	if _, err := grpclimit.New(nil, grpclimit.Options{}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("New without a controller returns %v; want ErrInvalid", err)
	}
	gate := gateOf(t, fixedClockStore(), ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(1)), grpclimit.Options{Dialects: []string{"x-ratelimit", "draft-06"}})
	if r := buy(t, dial(t, serve(t, new(shop), guarded(gate)...)), "Buy", "a"); r.header["x-ratelimit-limit"] == nil || r.header["ratelimit-limit"] == nil || r.header["ratelimit"] != nil {
		t.Errorf("the metadata is %v; want that of the dialects x-ratelimit and draft-06", r.header)
	}
}

// A server may pass metadata on to an application that reads some names as another one.
func TestNamesThatSomeServersReadAsOthersAreMalformed(t *testing.T) {
	spec := ruleOf(t, "r", byHeader("X-API-Key"), penstock.PerHour(1000))
	spec.Deny = []policy.Condition{valueOf(t, policy.Header("X-API-Key"), "banned")}
	gate := gateOf(t, fixedClockStore(), spec, grpclimit.Options{})
	conn := dial(t, serve(t, new(shop), guarded(gate)...))
	for name, want := range map[string]codes.Code{
		"x_api_key": codes.InvalidArgument, "x.api.key": codes.InvalidArgument, "x-api_key": codes.InvalidArgument, "x-api-key": codes.PermissionDenied, "x_other": codes.OK,
	} {
		if r := buy(t, conn, "Buy", "a", name, "banned"); status.Code(r.err) != want {
			t.Errorf("a call with %s: %v; want %v", name, r.err, want)
		}
		stream := chat(t, conn, name, "banned")
		if _, err := say(stream, "a"); status.Code(err) != want {
			t.Errorf("a stream with %s: %v; want %v", name, err, want)
		}
	}
}
