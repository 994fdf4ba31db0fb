package envoyrls_test

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// dial serves an engine, and returns a client of it.
func dial(t *testing.T, e *envoyrls.Engine) rlsv3.RateLimitServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s := grpc.NewServer(grpc.ForceServerCodecV2(envoyrls.Codec()))
	envoyrls.Register(s, e, true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-ended
	})
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rlsv3.NewRateLimitServiceClient(conn)
}

// message returns a request of domain d. Each entry, such as "user=a", makes a descriptor.
func message(entries ...string) *rlsv3.RateLimitRequest {
	m := &rlsv3.RateLimitRequest{Domain: "d"}
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		m.Descriptors = append(m.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}})
	}
	return m
}

// forEachStore runs a test with a memory store and with a real Redis.
func forEachStore(t *testing.T, test func(t *testing.T, store penstock.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, memstore.New(memstore.Options{})) })
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		test(t, store)
	})
}

func TestAClientOfGRPCGetsEveryField(t *testing.T) {
	forEachStore(t, func(t *testing.T, store penstock.Store) {
		f := newFixture(t, store, limits, envoyrls.Options{Headers: []envoyrls.Dialect{envoyrls.DialectPlain}, HasMetadata: true})
		client := dial(t, f.Engine)
		m := message("better", "free", "other", "new")
		m.Descriptors[3].Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: typev3.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(5)}
		m.HitsAddend = 2
		answer, err := client.ShouldRateLimit(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		better, free, other, override := answer.Statuses[0], answer.Statuses[1], answer.Statuses[2], answer.Statuses[3]
		if answer.OverallCode != rlsv3.RateLimitResponse_OK || len(answer.Statuses) != 4 {
			t.Fatalf("the answer is %v; want OK with four statuses", answer)
		}
		if l := better.CurrentLimit; l.GetName() != "better" || l.GetRequestsPerUnit() != 5 || l.GetUnit() != rlsv3.RateLimitResponse_RateLimit_WEEK || l.UnitMultiplier != nil ||
			better.LimitRemaining != 3 || better.DurationUntilReset.GetSeconds() < 1 || better.DurationUntilReset.GetNanos() != 0 {
			t.Errorf("the status of descriptor better is %v; want 3 of 5 requests a week left", better)
		}
		if free.LimitRemaining != math.MaxUint32 || free.CurrentLimit != nil || free.DurationUntilReset != nil || free.Code != rlsv3.RateLimitResponse_OK {
			t.Errorf("the status of descriptor free is %v; want that it is unlimited", free)
		}
		if other.CurrentLimit != nil || other.Code != rlsv3.RateLimitResponse_OK {
			t.Errorf("the status of descriptor other is %v; want OK without a limit", other)
		}
		if l := override.CurrentLimit; l.GetUnit() != rlsv3.RateLimitResponse_RateLimit_HOUR || l.GetUnitMultiplier().GetValue() != 5 || override.LimitRemaining != 5 {
			t.Errorf("the status of the descriptor with an override is %v; want 5 of 7 requests in 5 hours left", override)
		}
		if len(answer.ResponseHeadersToAdd) != 3 || answer.ResponseHeadersToAdd[1].Key != "RateLimit-Remaining" || answer.ResponseHeadersToAdd[1].Value != "3" {
			t.Errorf("the headers are %v; want three with the numbers of descriptor better, the strictest", answer.ResponseHeadersToAdd)
		}
		if answer.DynamicMetadata.GetFields()["domain"].GetStringValue() != "d" {
			t.Errorf("the metadata are %v; want those of the request", answer.DynamicMetadata)
		}
		m = message("better")
		m.Descriptors[0].HitsAddend = wrapperspb.UInt64(9)
		if answer, err = client.ShouldRateLimit(t.Context(), m); err != nil || answer.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT || answer.Statuses[0].Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("a request over the limit gets %v, %v; want OVER_LIMIT", answer, err)
		}
	})
}

func TestBothStoresGiveTheSameResponses(t *testing.T) {
	for _, mode := range []envoyrls.Mode{envoyrls.Atomic, envoyrls.Exact} {
		var answers []string
		forEachStore(t, func(t *testing.T, store penstock.Store) {
			f := newFixture(t, store, strings.ReplaceAll(limits, "unit: minute", "unit: day"), envoyrls.Options{Mode: mode})
			var all []string
			// The function request documents this notation.
			for _, text := range []string{"small,large", "2: small,large=x", "small +0", "small,small", "small +7,large", "small -3", "small +0,zero", "shared=s1,shared=s2,shared=s3", "shadow,quota1", "shadow,quota1,quota1"} {
				answer := f.send(text)
				// Remove the times until windows end, such as 60s: they depend on the clock.
				for field := range strings.FieldsSeq(answer) {
					if strings.HasSuffix(field, "s") || strings.HasSuffix(field, "s,") {
						answer = strings.Replace(answer, field, "", 1)
					}
				}
				all = append(all, answer)
			}
			answers = append(answers, strings.Join(all, "\n"))
		})
		if answers[0] != answers[1] {
			t.Errorf("in mode %v the responses with Redis are\n%s\nwant, as with the memory store,\n%s", mode, answers[1], answers[0])
		}
	}
}

func TestErrorsHaveTheirCodes(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	client := dial(t, newFixture(t, broken, limits, envoyrls.Options{Mode: envoyrls.Exact}).Engine)
	withoutUnit := message("small")
	withoutUnit.Descriptors[0].Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}
	for _, row := range []struct {
		request *rlsv3.RateLimitRequest
		code    codes.Code
		text    string
	}{
		{request: &rlsv3.RateLimitRequest{}, code: codes.InvalidArgument, text: "rate limit domain must not be empty"},
		{request: &rlsv3.RateLimitRequest{Domain: "d"}, code: codes.InvalidArgument, text: "rate limit descriptor list must not be empty"},
		{request: withoutUnit, code: codes.InvalidArgument, text: "the limit of a descriptor has the unit UNKNOWN; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"},
		{request: message("small"), code: codes.Unavailable, text: "the store gives no answer, and on_failure is error"},
	} {
		_, err := client.ShouldRateLimit(t.Context(), row.request)
		if status.Code(err) != row.code || status.Convert(err).Message() != row.text {
			t.Errorf("the error for %v is %v; want %v with the text %q", row.request, err, row.code, row.text)
		}
	}
}

func TestJSONEndpointsEqualThoseOfEnvoysService(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{})
	isHealthy := true
	server := httptest.NewServer(envoyrls.NewHandler(f.Engine, envoyrls.HandlerOptions{IsHealthy: func() bool { return isHealthy }, MaxBody: 1000}))
	defer server.Close()
	send := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	for _, row := range []struct {
		name, method, body string
		code               int    // the HTTP status
		want               string // a part of the response
	}{
		{name: "within", method: "POST", body: `{"domain": "d", "descriptors": [{"entries": [{"key": "large"}]}]}`, code: 200, want: `"limitRemaining":9`},
		{name: "snake_case, and a number as a text", method: "GET", body: `{"domain": "d", "hits_addend": 1, "descriptors": [{"entries": [{"key": "large"}], "hits_addend": "2"}]}`, code: 200, want: `"limitRemaining":7`},
		{name: "a unit by its name", method: "POST", body: `{"domain": "d", "descriptors": [{"entries": [{"key": "a"}], "limit": {"requests_per_unit": 3, "unit": "HOUR"}}]}`, code: 200, want: `"unit":"HOUR"`},
		{name: "over", method: "PUT", body: `{"domain": "d", "hitsAddend": 8, "descriptors": [{"entries": [{"key": "large"}]}]}`, code: 429, want: `"overallCode":"OVER_LIMIT"`},
		{name: "an unknown field", method: "POST", body: `{"domain": "d", "foo": 1}`, code: 400, want: `Bad Request: the body is not a RateLimitRequest in JSON: (line 1:17): unknown field "foo"`},
		{name: "a long field", method: "POST", body: `{"` + strings.Repeat("ü", 300) + `": 1}`, code: 400, want: "unknown field"},
		{name: "no JSON", method: "POST", body: `x`, code: 400, want: "(line 1:1): invalid value x"},
		{name: "nothing", method: "POST", body: ``, code: 400, want: "unexpected token"},
		{name: "no domain", method: "POST", body: `{}`, code: 400, want: "rate limit domain must not be empty"},
		{name: "no unit", method: "POST", body: `{"domain": "d", "descriptors": [{"entries": [{"key": "a"}], "limit": {"requests_per_unit": 3}}]}`, code: 400, want: "the unit UNKNOWN"},
		{name: "too large", method: "POST", body: `{"domain": "` + strings.Repeat("d", 1000) + `"}`, code: 413, want: "too large"},
	} {
		code, text := send(row.method, "/json", row.body)
		compact := strings.ReplaceAll(text, " ", "") // protojson varies white space between builds
		if code != row.code || !strings.Contains(compact, strings.ReplaceAll(row.want, " ", "")) {
			t.Errorf("%s: the response is %d %s; want %d and a text that contains %s", row.name, code, text, row.code, row.want)
		}
		if code == 200 && !json.Valid([]byte(text)) {
			t.Errorf("%s: the response %s is not valid JSON", row.name, text)
		}
	}
	if code, text := send("GET", "/healthcheck", ""); code != 200 || text != "OK" {
		t.Errorf("/healthcheck of a healthy service returns %d %q; want 200 OK", code, text)
	}
	isHealthy = false
	if code, text := send("GET", "/healthcheck", ""); code != 500 || text != "" {
		t.Errorf("/healthcheck of an unhealthy service returns %d %q; want 500 and no text", code, text)
	}
	if code, text := send("GET", "/rlconfig", ""); code != 200 || !strings.HasPrefix(text, "d.small: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false\n") {
		t.Errorf("/rlconfig returns %d %q; want 200 and the limits", code, text)
	}
}

func BenchmarkDecide(b *testing.B) {
	f := newFixture(b, memstore.New(memstore.Options{}), limits+"\n- {key: big, rate_limit: {unit: hour, requests_per_unit: 4000000000}}", envoyrls.Options{})
	for _, text := range []string{"big=1", "big=1,big=2,other"} {
		b.Run(text, func(b *testing.B) {
			r := request(text)
			var to envoyrls.Response
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Decide(context.Background(), r, &to); err != nil || to.IsOver {
					b.Fatalf("the response is %s, %v; want OK", responseText(&to), err)
				}
			}
		})
	}
}

func TestBytesThatAreNoMessage(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{})
	if _, err := f.Engine.DecideMessage(t.Context(), []byte{0xff}); status.Code(err) != codes.Internal {
		t.Errorf("for bytes that are not a message the error is %v; want INTERNAL as from grpc-go", err)
	}
}
