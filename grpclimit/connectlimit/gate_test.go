package connectlimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/connectlimit"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

type text = wrapperspb.StringValue

// ruleOf returns a policy with one rule, which matches all calls. The policies of these tests are
// written in Go, so that this module does not require what policy files need.
func ruleOf(t *testing.T, name string, key *policy.Identity, limits ...penstock.Limit) policy.Spec {
	t.Helper()
	spec, err := policy.Simple(name, key, guard.FailDefault, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// valueOf returns the condition that a header has a value.
func valueOf(t *testing.T, header, value string) policy.Condition {
	t.Helper()
	test := policy.Test{Source: policy.Header(header)}
	if err := test.Add(value); err != nil {
		t.Fatal(err)
	}
	return policy.Condition{test}
}

func gateOf(t *testing.T, store penstock.Store, spec policy.Spec, o connectlimit.Options) *connectlimit.Gate {
	t.Helper()
	rules, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	controller, err := admission.New(store, rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gate, err := connectlimit.New(controller, o)
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

// fixedClockStore returns a memory store whose clock does not advance.
func fixedClockStore() penstock.Store {
	now := time.Unix(1_800_000_000, 0)
	return memstore.New(memstore.Options{Now: func() time.Time { return now }})
}

const buyProcedure, chatProcedure = "/test.Shop/Buy", "/test.Shop/Chat"

// serve serves the two procedures with a Gate until the test ends. The function buy handles Buy. If
// it is nil, Buy returns its message. Chat returns each message. serve returns the URL of the
// server and a client for HTTP/2.
func serve(t *testing.T, gate *connectlimit.Gate, buy func(context.Context, *connect.Request[text]) (*connect.Response[text], error)) (string, *http.Client) {
	t.Helper()
	if buy == nil {
		buy = func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
			return connect.NewResponse(r.Msg), nil
		}
	}
	mux := http.NewServeMux()
	mux.Handle(buyProcedure, connect.NewUnaryHandler(buyProcedure, buy, connect.WithInterceptors(gate)))
	mux.Handle(chatProcedure, connect.NewBidiStreamHandler(chatProcedure, func(_ context.Context, stream *connect.BidiStream[text, text]) error {
		for {
			message, err := stream.Receive()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			}
			if err := stream.Send(message); err != nil {
				return err
			}
		}
	}, connect.WithInterceptors(gate)))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, server.Client()
}

// protocols are the client options for each protocol of connect-go.
var protocols = map[string][]connect.ClientOption{"Connect": nil, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()}}

// field returns the values of a field of an error's metadata. Some protocols send the metadata in
// the header, and others in the trailer.
func field(err error, name string) []string {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return nil
	}
	return failed.Meta().Values(name)
}

func TestCallsOfAllProtocolsAreLimited(t *testing.T) {
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			spec := ruleOf(t, "shop", policy.By("key", policy.Header("X-Key")), penstock.PerHour(2).With(penstock.FixedWindow))
			spec.Rules[0].Match = policy.Match{Paths: []string{"/test.Shop/*"}, Methods: []string{"POST"}}
			gate := gateOf(t, fixedClockStore(), spec, connectlimit.Options{})
			url, client := serve(t, gate, nil)
			buy := connect.NewClient[text, text](client, url+buyProcedure, options...)
			call := func(key string) (*connect.Response[text], error) {
				r := connect.NewRequest(&text{Value: "a"})
				r.Header().Set("X-Key", key)
				return buy.CallUnary(t.Context(), r)
			}
			for _, left := range []string{"1", "0"} {
				answer, err := call("k")
				if err != nil || answer.Header().Get("RateLimit") != `"shop.hour";r=`+left+`;t=3600` {
					t.Fatalf("a call: response %v, error %v; want %s units left", answer, err, left)
				}
			}
			_, err := call("k")
			if connect.CodeOf(err) != connect.CodeResourceExhausted {
				t.Fatalf("the third call: %v; want RESOURCE_EXHAUSTED", err)
			}
			for name, want := range map[string]string{"Retry-After": "3600", "Grpc-Retry-Pushback-Ms": "3600000", "RateLimit": `"shop.hour";r=0;t=3600`} {
				if got := field(err, name); !slices.Equal(got, []string{want}) {
					t.Errorf("the error has %s: %q; want %q", name, got, want)
				}
			}
			var failed *connect.Error
			errors.As(err, &failed)
			var kinds []string
			for _, d := range failed.Details() {
				value, err := d.Value()
				if err != nil {
					t.Fatal(err)
				}
				switch value := value.(type) {
				case *errdetails.RetryInfo:
					if value.RetryDelay.AsDuration() != time.Hour {
						t.Errorf("RetryInfo: %v; want an hour", value)
					}
				case *errdetails.ErrorInfo:
					if value.Reason != "RATE_LIMIT_EXCEEDED" {
						t.Errorf("ErrorInfo: %v; want RATE_LIMIT_EXCEEDED", value)
					}
				}
				kinds = append(kinds, d.Type())
			}
			if len(kinds) != 3 {
				t.Errorf("the error has the details %q; want RetryInfo, QuotaFailure and ErrorInfo", kinds)
			}
			if _, err := call("other"); err != nil {
				t.Errorf("a call with another key: %v; want no error", err)
			}
		})
	}
}

// With the Connect protocol, a denial has status 429 with Retry-After.
func TestConnectDenialsHaveStatus429(t *testing.T) {
	url, client := serve(t, gateOf(t, fixedClockStore(), ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(1)), connectlimit.Options{}), nil)
	for _, want := range []int{200, 429} {
		response, err := client.Post(url+buyProcedure, "application/json", strings.NewReader(`"a"`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		hasRetryAfter := response.Header.Get("Retry-After") == "3600"
		if err != nil || response.StatusCode != want || response.Header.Get("RateLimit") == "" || hasRetryAfter != (want == 429) {
			t.Errorf("%s %s %v, %v; want %d with RateLimit, and Retry-After: 3600 for a denial", response.Status, body, response.Header, err, want)
		}
	}
}

func TestStreamsAreChargedWhenTheyBegin(t *testing.T) {
	for name, options := range protocols {
		if name == "gRPC-Web" {
			continue // gRPC-Web has no streams in both directions
		}
		t.Run(name, func(t *testing.T) {
			gate := gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "r", policy.ByAddress(), penstock.InFlight(1, time.Minute), penstock.PerHour(3)), connectlimit.Options{})
			url, client := serve(t, gate, nil)
			chat := connect.NewClient[text, text](client, url+chatProcedure, options...)
			begin := func() (*connect.BidiStreamForClient[text, text], error) {
				stream := chat.CallBidiStream(t.Context())
				stream.Send(&text{Value: "a"}) // if it fails, Receive returns the reason
				_, err := stream.Receive()
				return stream, err
			}
			end := func(stream *connect.BidiStreamForClient[text, text]) {
				stream.CloseRequest()
				stream.Receive()
				stream.CloseResponse()
			}
			for range 3 {
				first, err := begin()
				if err != nil || first.ResponseHeader().Get("RateLimit") == "" {
					t.Fatalf("a stream: error %v, header %v; want no error, and the field RateLimit", err, first.ResponseHeader())
				}
				second, err := begin()
				if connect.CodeOf(err) != connect.CodeResourceExhausted {
					t.Errorf("a stream while the slot is taken: %v; want RESOURCE_EXHAUSTED", err)
				}
				end(second)
				end(first)
			}
			last, err := begin()
			if connect.CodeOf(err) != connect.CodeResourceExhausted || field(err, "Retry-After") == nil {
				t.Errorf("the fourth stream of an hour: %v; want RESOURCE_EXHAUSTED with Retry-After", err)
			}
			end(last)
		})
	}
}

// The first message is charged with its stream. Each further message is charged as a separate call.
func TestMessagesOfStreamsAreCharged(t *testing.T) {
	for isCharged, want := range map[bool]int{false: 20, true: 5} {
		gate := gateOf(t, fixedClockStore(), ruleOf(t, "r", policy.ByAddress(), penstock.InFlight(1, time.Minute), penstock.PerHour(5)), connectlimit.Options{Messages: isCharged})
		url, client := serve(t, gate, nil)
		stream := connect.NewClient[text, text](client, url+chatProcedure).CallBidiStream(t.Context())
		count := 0
		var err error
		for range 20 {
			stream.Send(&text{Value: "a"}) // if it fails, Receive returns the reason
			if _, err = stream.Receive(); err != nil {
				break
			}
			count++
		}
		if count != want || want < 20 && connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("messages are charged: %t: %d messages came back, then the error %v; want %d messages", isCharged, count, err, want)
		}
		stream.CloseRequest()
		stream.CloseResponse()
	}
}

// A message waits until its limit admits it.
func TestMessagesOfStreamsWait(t *testing.T) {
	gate := gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "r", policy.ByAddress(), penstock.PerSecond(100).WithBurst(1)), connectlimit.Options{Messages: true, MaxMessageWait: time.Minute})
	url, client := serve(t, gate, nil)
	stream := connect.NewClient[text, text](client, url+chatProcedure).CallBidiStream(t.Context())
	begin := time.Now()
	for range 5 {
		stream.Send(&text{Value: "a"})
		if _, err := stream.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	const least = 4 * 10 * time.Millisecond // the first message passes, and each of the others waits 10 ms
	if passed := time.Since(begin); passed < least {
		t.Errorf("five messages at 100/s took %v; want at least %v", passed, least)
	}
	stream.CloseRequest()
	stream.CloseResponse()
}

// unavailable is a store that gives no answer.
type unavailable struct{}

func (unavailable) Decide(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("no server"))
}

func TestOnFailureDecidesWhileTheStoreFails(t *testing.T) {
	for mode, want := range map[guard.FailureMode]connect.Code{guard.FailOpen: 0, guard.FailClosed: connect.CodeUnavailable, guard.FailLocal: 0} { // 0: no error
		spec := ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(1))
		spec.Rules[0].Limits[0].Guard.OnFailure = mode
		url, client := serve(t, gateOf(t, unavailable{}, spec, connectlimit.Options{}), nil)
		_, err := connect.NewClient[text, text](client, url+buyProcedure).CallUnary(t.Context(), connect.NewRequest(&text{}))
		switch {
		case want == 0 && err != nil:
			t.Errorf("OnFailure %v: %v; want no error", mode, err)
		case want != 0 && (connect.CodeOf(err) != want || !slices.Equal(field(err, "Retry-After"), []string{"1"})):
			t.Errorf("OnFailure %v: %v; want %v with Retry-After: 1", mode, err, want)
		}
	}
}

// A limit with Status counts calls by the HTTP status of their code, and handlers may settle.
func TestOnStatusAndSettleCorrectCharges(t *testing.T) {
	var code connect.Code
	handler := func(ctx context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		if _, ok := connectlimit.DecisionOf(ctx); !ok {
			t.Error("DecisionOf returns false in the handler; want true")
		}
		if r.Msg.Value == "settle" {
			return connect.NewResponse(r.Msg), connectlimit.Settle(ctx, 4)
		}
		return nil, connect.NewError(code, errors.New("for the test"))
	}
	spec, settled := ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(1)), ruleOf(t, "s", policy.ByAddress(), penstock.PerHour(4))
	spec.Rules[0].Match.Where, settled.Rules[0].Match.Where = valueOf(t, "X-Kind", "status"), valueOf(t, "X-Kind", "settle")
	spec.Rules[0].Limits[0].Status = new(policy.Statuses)
	spec.Rules[0].Limits[0].Status.Add(401, 401)
	spec.Rules = append(spec.Rules, settled.Rules...)
	url, client := serve(t, gateOf(t, fixedClockStore(), spec, connectlimit.Options{}), handler)
	buy := connect.NewClient[text, text](client, url+buyProcedure)
	call := func(kind string) error {
		r := connect.NewRequest(&text{Value: kind})
		r.Header().Set("X-Kind", kind)
		_, err := buy.CallUnary(t.Context(), r)
		return err
	}
	for _, c := range []struct{ handled, want connect.Code }{ // the codes that the handler returns and that the client gets
		{connect.CodeNotFound, connect.CodeNotFound},
		{connect.CodeInternal, connect.CodeInternal},
		{connect.CodeUnauthenticated, connect.CodeUnauthenticated}, // status 401, which is charged
		{connect.CodeNotFound, connect.CodeResourceExhausted},
	} {
		code = c.handled
		if err := call("status"); connect.CodeOf(err) != c.want {
			t.Errorf("a call that the handler ends with %v: %v; want %v", c.handled, err, c.want)
		}
	}
	if err := call("settle"); err != nil {
		t.Errorf("the first call that settles: %v; want no error", err)
	}
	if err := call("settle"); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a call after one that settled 4 units: %v; want RESOURCE_EXHAUSTED", err)
	}
	if err := connectlimit.Settle(t.Context(), 1); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("Settle outside a call: %v; want ErrInvalid", err)
	}
}

// A handler may return one error for several calls. So the metadata about limits is in a copy of
// the error: each client gets its own, and other interceptors still find the handler's error.
func TestErrorsOfHandlersAreNotChanged(t *testing.T) {
	shared := connect.NewError(connect.CodeNotFound, errors.New("no such item"))
	shared.Meta().Set("X-Kind", "item")
	detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "NO_ITEM"})
	if err != nil {
		t.Fatal(err)
	}
	shared.AddDetail(detail)
	var seen error // by an interceptor outside the gate
	observe := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			answer, err := next(ctx, r)
			seen = err
			return answer, err
		}
	})
	for name, returned := range map[string]error{"the error": shared, "a wrapper": fmt.Errorf("buy: %w", shared)} {
		gate := gateOf(t, fixedClockStore(), ruleOf(t, "r", policy.ByAddress(), penstock.PerHour(5).With(penstock.FixedWindow)), connectlimit.Options{})
		handler := connect.NewUnaryHandler(buyProcedure, func(context.Context, *connect.Request[text]) (*connect.Response[text], error) { return nil, returned },
			connect.WithInterceptors(observe, gate))
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		_, err := connect.NewClient[text, text](server.Client(), server.URL+buyProcedure).CallUnary(t.Context(), connect.NewRequest(&text{}))
		var failed *connect.Error
		if !errors.As(err, &failed) || failed.Code() != connect.CodeNotFound || failed.Message() != "no such item" || len(failed.Details()) != 1 {
			t.Fatalf("%s: the client gets %v; want the handler's error with its detail", name, err)
		}
		if !slices.Equal(field(err, "X-Kind"), []string{"item"}) || !slices.Equal(field(err, "RateLimit"), []string{`"r.hour";r=4;t=3600`}) {
			t.Errorf("%s: the client gets the metadata %v; want X-Kind of the handler, and RateLimit", name, failed.Meta())
		}
		if len(shared.Meta()) != 1 {
			t.Errorf("%s: the handler's error has the metadata %v; want only X-Kind", name, shared.Meta())
		}
		if !errors.Is(seen, returned) || seen.Error() != returned.Error() {
			t.Errorf("%s: the other interceptor gets %v; want an error that is %v", name, seen, returned)
		}
	}
}

// A slot is returned if the handler panics.
func TestPanicsReturnSlots(t *testing.T) {
	handler := func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		if r.Msg.Value == "panic" {
			panic(http.ErrAbortHandler)
		}
		return connect.NewResponse(r.Msg), nil
	}
	url, client := serve(t, gateOf(t, memstore.New(memstore.Options{}), ruleOf(t, "r", policy.ByAddress(), penstock.InFlight(1, time.Minute)), connectlimit.Options{}), handler)
	buy := connect.NewClient[text, text](client, url+buyProcedure)
	for range 3 {
		if _, err := buy.CallUnary(t.Context(), connect.NewRequest(&text{Value: "panic"})); err == nil {
			t.Error("the call whose handler panics returns no error; want one")
		}
		if _, err := buy.CallUnary(t.Context(), connect.NewRequest(&text{Value: "a"})); err != nil {
			t.Errorf("a call after the panic: %v; want that it gets the slot", err)
		}
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	if _, err := connectlimit.New(nil, connectlimit.Options{Dialects: []string{"draft-12"}}); !errors.Is(err, penstock.ErrInvalid) ||
		!strings.Contains(err.Error(), "connectlimit") {
		t.Errorf("New with an unknown dialect returns %v; want ErrInvalid with the name of the package", err)
	}
}

// A server may pass headers on to an application that reads some names as another one.
func TestNamesThatSomeServersReadAsOthersAreMalformed(t *testing.T) {
	spec := ruleOf(t, "r", policy.By("key", policy.Header("X-API-Key")), penstock.PerHour(1000))
	spec.Deny = []policy.Condition{valueOf(t, "X-API-Key", "banned")}
	url, client := serve(t, gateOf(t, fixedClockStore(), spec, connectlimit.Options{}), nil)
	for name, want := range map[string]int{"X_API_Key": 400, "X.API.Key": 400, "X~API!Key": 400, "X-API-Key": 403, "X_Other": 200} {
		r, err := http.NewRequest("POST", url+buyProcedure, strings.NewReader(`"a"`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(name, "banned")
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("a call with %s got %s; want %d", name, response.Status, want)
		}
	}
}
