package service

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

const (
	testCallerToken   = "caller-0123456789"
	testOperatorToken = "operator-0123456789"
)

// checkPolicy is the policy of the tests of the check API.
const checkPolicy = `
rules:
- {name: search, match: {path: /search}, per: {user: header X-User}, limits: [{name: hour, rate: 3/w}]}
- {name: jobs, match: {path: /jobs}, per: {user: header X-User}, limits: [{in_flight: 2, ttl: 1h}]}
- {name: tokens, match: {path: /tokens}, per: {user: header X-User}, limits: [{name: hour, rate: 100/w}]}
`

// A checkAnswer is an answer of the check API in JSON.
type checkAnswer struct {
	status int
	text   string
	fields map[string]any
}

// callCheckAPI posts a JSON body to a path of the check API.
func callCheckAPI(t *testing.T, r *testService, token, path, body string) checkAnswer {
	t.Helper()
	request, err := http.NewRequest("POST", "http://"+r.API+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + token}}
	if token == "" {
		request.Header.Del("Authorization")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer := checkAnswer{status: response.StatusCode, text: string(text)}
	if err := json.Unmarshal(text, &answer.fields); err != nil {
		t.Fatalf("the response %s is not JSON: %v", text, err)
	}
	return answer
}

func TestCheckAPIDecidesInJSON(t *testing.T) {
	onStores(t, func(t *testing.T, flags map[string]string) {
		all := map[string]string{"api": "127.0.0.1:0", "caller-token": testCallerToken, "operator-token": testOperatorToken, "allow-caller-limits": "true"}
		maps.Copy(all, flags)
		r := startLimited(t, nil, checkPolicy, all)
		for i, c := range []struct {
			token, path, body string
			status            int
			want              string
		}{
			{token: "", path: "/v1/check", body: `{"rule":"search","key":"user:secret-42"}`, status: 401, want: "a token is missing"},
			{token: testCallerToken[1:], path: "/v1/check", body: `{"rule":"search","key":"user:secret-42"}`, status: 401, want: "the token is wrong"},
			{token: testCallerToken, path: "/v1/peek", body: `{"rule":"search","key":"user:secret-42"}`, status: 403, want: "only operators"},
			{token: testCallerToken, path: "/v1/check", body: `{"rule":"search","key":"user:secret-42","cost":3}`, status: 200, want: `"allowed":true`},
			{token: testCallerToken, path: "/v1/check", body: `{"attributes":{"path":"/search","headers":{"X-User":"secret-42"}}}`, status: 200, want: `"allowed":false`},
			{token: testCallerToken, path: "/v1/check?status=429", body: `{"rule":"search","key":"user:secret-42"}`, status: 429, want: `"denied_by":["search.hour"]`},
			{token: testOperatorToken, path: "/v1/peek", body: `{"rule":"search","key":"user:other"}`, status: 200, want: `"remaining":3`},
			{token: testCallerToken, path: "/v1/check", body: `{"key":"secret-42","limits":[{"rate":"1/h"}]}`, status: 200, want: `"allowed":true`},
			{token: testCallerToken, path: "/v1/check", body: `{"key":"secret-42","limits":[{"rate":"1/h"}]}`, status: 200, want: `"allowed":false`},
			{token: testCallerToken, path: "/v1/check", body: `{"rule":"search","key":"user:repeated","request_id":"a"}`, status: 200, want: `"is_repeat":false`},
			{token: testCallerToken, path: "/v1/check", body: `{"rule":"search","key":"user:repeated","request_id":"a"}`, status: 200, want: `"is_repeat":true`},
			{token: testCallerToken, path: "/v1/check", body: `{"ruel":"search"}`, status: 400, want: "did you mean rule?"},
			{token: testCallerToken, path: "/v1/nothing", body: `{}`, status: 404, want: "there is no such path"},
		} {
			if answer := callCheckAPI(t, r, c.token, c.path, c.body); answer.status != c.status || !strings.Contains(answer.text, c.want) {
				t.Errorf("call %d, %s with %s, got %d %s; want %d with %s", i, c.path, c.body, answer.status, answer.text, c.status, c.want)
			}
		}
		if n := r.metric(`rate_limiter_rejected_total{algorithm="token-bucket",limit="hour",rule="search"}`); n != "2" {
			t.Errorf("%q denials are counted; want 2", n)
		}
		if n := r.metric(`rate_limiter_rejected_total{algorithm="token-bucket",limit="penstock.caller-limits",rule="penstock.caller-limits"}`); n != "1" {
			t.Errorf("%q denials by caller limits are counted; want 1", n)
		}
		for reason, want := range map[string]string{"no_token": "1", "wrong_token": "1", "not_operator": "1"} {
			if n := r.metric(`rate_limiter_api_auth_failures_total{reason="` + reason + `"}`); n != want {
				t.Errorf("%q refusals with reason %s are counted; want %s", n, reason, want)
			}
			if lines := r.log.Lines("level=WARN", "a call of the check API was refused", "reason="+reason); len(lines) != 1 {
				t.Errorf("the lines about refusals with reason %s are %q; want one", reason, lines)
			}
		}
		for _, secret := range []string{"secret-42", testCallerToken[1:], testOperatorToken} {
			if strings.Contains(r.log.String(), secret) || strings.Contains(r.mustGet("http://"+r.Admin+"/metrics", 200), secret) {
				t.Errorf("the log or the metrics show the identity or token %q", secret)
			}
		}
	})
}

// If other machines can reach the listener, the check API requires a token.
func TestPublicAddressRequiresAToken(t *testing.T) {
	r := startLimited(t, nil, oncePerHour, map[string]string{"api": ":0", "grpc": "127.0.0.1:0"})
	if answer := callCheckAPI(t, r, "", "/v1/check", `{"rule":"api","key":"ip:192.0.2.1"}`); answer.status != 401 || !strings.Contains(answer.text, "set caller-token") {
		t.Errorf("without a token, the check returned %d %s; want 401", answer.status, answer.text)
	}
	// The listener for gRPC needs none, because only this machine can reach it.
	if _, err := penstockv1.NewLimitServiceClient(r.grpcClient(nil)).Check(callContext(t), &penstockv1.CheckRequest{Rule: "api", Key: "ip:192.0.2.1"}); err != nil {
		t.Errorf("without a token, the check by gRPC returned the error %v; want none", err)
	}
	open := startWithoutLeakCheck(t, nil, limitedBy(t, oncePerHour, map[string]string{"api": ":0", "allow-open-callers": "true"}))
	if answer := callCheckAPI(t, open, "", "/v1/check", `{"rule":"api","key":"ip:192.0.2.1"}`); answer.status != 200 {
		t.Errorf("with allow-open-callers, the check returned %d %s; want 200", answer.status, answer.text)
	}
}

func TestCheckAPIDecidesByGRPC(t *testing.T) {
	onStores(t, func(t *testing.T, flags map[string]string) {
		all := map[string]string{"api": "127.0.0.1:0", "grpc": "127.0.0.1:0", "caller-token": testCallerToken, "operator-token": testOperatorToken}
		maps.Copy(all, flags)
		r := startLimited(t, nil, checkPolicy, all)
		client := penstockv1.NewLimitServiceClient(r.grpcClient(nil))
		search := &penstockv1.CheckRequest{Rule: "search", Key: "user:1", Cost: new(int64(2))}
		for _, want := range []bool{true, false} {
			answer, err := client.Check(metadata.AppendToOutgoingContext(callContext(t), "authorization", "Bearer "+testCallerToken), search)
			if err != nil || answer.Allowed != want {
				t.Errorf("the check returned %v (error %v); want allowed: %t", answer, err, want)
			}
		}
		if answer := callCheckAPI(t, r, testOperatorToken, "/v1/peek", `{"rule":"search","key":"user:1"}`); !strings.Contains(answer.text, `"remaining":1`) {
			t.Errorf("after calls by gRPC, a peek in JSON has %s; want one shared counter with 1 left", answer.text)
		}
		for token, want := range map[string]codes.Code{"": codes.Unauthenticated, testCallerToken: codes.PermissionDenied, testOperatorToken: codes.OK} {
			_, err := client.Reset(metadata.AppendToOutgoingContext(callContext(t), "authorization", "Bearer "+token), search)
			if status.Code(err) != want {
				t.Errorf("a reset with the token %q returned the error %v; want %v", token, err, want)
			}
		}
	})
}

// Two instances, and a third that is started later, share reservations because they have the same
// tokens.
func TestInstancesShareReservations(t *testing.T) {
	flags := limitedBy(t, checkPolicy, map[string]string{
		"api": "127.0.0.1:0", "caller-token": testCallerToken, "operator-token": testOperatorToken, "store": redistest.Start(t).URL(),
	})
	one, two := startWithoutLeakCheck(t, nil, flags), startWithoutLeakCheck(t, nil, flags)
	reserved := callCheckAPI(t, one, testCallerToken, "/v1/reserve", `{"check":{"rule":"tokens","key":"user:1","cost":60}}`)
	id, _ := reserved.fields["id"].(string)
	if id == "" {
		t.Fatalf("reserve returned %d %s; want a reservation", reserved.status, reserved.text)
	}
	one.wait()
	three := startWithoutLeakCheck(t, nil, flags)
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := make(map[string]int) // number of answers by their text
	const settles = 50
	for i := range settles {
		all.Go(func() {
			answer := callCheckAPI(t, []*testService{two, three}[i%2], testCallerToken, "/v1/settle", fmt.Sprintf(`{"id":"%s","actual":10}`, id))
			mu.Lock()
			defer mu.Unlock()
			answers[fmt.Sprintf("%d %s", answer.status, strings.TrimSpace(answer.text))]++
		})
	}
	all.Wait()
	if answers[`200 {"is_repeat":false}`] != 1 || answers[`200 {"is_repeat":true}`] != settles-1 {
		t.Errorf("the answers are %v; want one that is no repeat, and %d repeats", answers, settles-1)
	}
	if left := callCheckAPI(t, two, testOperatorToken, "/v1/peek", `{"rule":"tokens","key":"user:1"}`); !strings.Contains(left.text, `"remaining":90`) {
		t.Errorf("after settle, the peek returned %s; want 90 units left", left.text)
	}
}

// Regions have the same tokens, so each can read the ids of the others.
func TestReservationsAreSettledInTheirRegion(t *testing.T) {
	in := func(region string) *testService {
		return startWithoutLeakCheck(t, nil, limitedBy(t, checkPolicy, map[string]string{
			"api": "127.0.0.1:0", "caller-token": testCallerToken, "operator-token": testOperatorToken, "region": region, "store": redistest.Start(t).URL(),
		}))
	}
	eu, us := in("eu"), in("us")
	id, _ := callCheckAPI(t, eu, testCallerToken, "/v1/reserve", `{"check":{"rule":"tokens","key":"user:1","cost":60}}`).fields["id"].(string)
	settle := `{"id":"` + id + `","actual":0}`
	if answer := callCheckAPI(t, us, testCallerToken, "/v1/settle", settle); answer.status != 409 || !strings.Contains(answer.text, "send the call to region eu") {
		t.Errorf("settle in another region returned %d %s; want 409, and the region to call", answer.status, answer.text)
	}
	if answer := callCheckAPI(t, eu, testCallerToken, "/v1/settle", settle); answer.text != `{"is_repeat":false}`+"\n" {
		t.Errorf("settle in the region of the reservation returned %d %s; want no repeat", answer.status, answer.text)
	}
}

// The check API responds as docs/failure-modes.md describes while Redis is killed or paused, and
// after Redis is up again.
func TestCheckAPIFallsBackWithoutRedis(t *testing.T) {
	t.Parallel() // it waits most of the time
	const policy = `
rules:
- {name: open, match: {path: /open}, per: {user: header X-User}, limits: [{name: hour, rate: 100/h, on_failure: open}]}
- {name: closed, match: {path: /closed}, per: {user: header X-User}, limits: [{name: hour, rate: 100/h, on_failure: closed}]}
- {name: local, match: {path: /local}, per: {user: header X-User}, limits: [{name: hour, rate: 100/h}]}
`
	for _, fault := range []string{"killed", "paused"} {
		t.Run(fault, func(t *testing.T) {
			server := redistest.Start(t)
			flags := limitedBy(t, policy, map[string]string{
				"api": "127.0.0.1:0", "caller-token": testCallerToken, "operator-token": testOperatorToken, "store": server.URL(), "store-timeout": "250ms",
			})
			r := startWithoutLeakCheck(t, nil, flags)
			reserved := callCheckAPI(t, r, testCallerToken, "/v1/reserve", `{"check":{"rule":"closed","key":"user:1","cost":9}}`)
			id, _ := reserved.fields["id"].(string)
			if id == "" {
				t.Fatalf("reserve returned %s; want a reservation", reserved.text)
			}
			if fault == "killed" {
				server.Kill()
			} else {
				server.Pause()
			}
			for rule, want := range map[string]struct {
				text   string
				status int // of /v1/check?status=429
			}{
				"open":   {`"allowed":true,"outcome":"failed_open","source":"open","retry_after_ms":0,"limits":[]`, 200},
				"closed": {`"allowed":false,"outcome":"failed_closed","source":"closed","retry_after_ms":1000,"limits":[]`, 503},
				"local":  {`"allowed":true,"outcome":"allowed","source":"fallback"`, 200},
			} {
				body := `{"rule":"` + rule + `","key":"user:1"}`
				if answer := callCheckAPI(t, r, testCallerToken, "/v1/check", body); answer.status != 200 || !strings.Contains(answer.text, want.text) {
					t.Errorf("with the store %s, a check of rule %s returned %d %s; want 200 with %s", fault, rule, answer.status, answer.text, want.text)
				}
				if answer := callCheckAPI(t, r, testCallerToken, "/v1/check?status=429", body); answer.status != want.status {
					t.Errorf("with the store %s and status=429, a check of rule %s returned %d %s; want %d", fault, rule, answer.status, answer.text, want.status)
				}
			}
			for path, body := range map[string]string{
				"/v1/settle": `{"id":"` + id + `","cancel":true}`, "/v1/reset": `{"rule":"local","key":"user:1"}`,
			} {
				if answer := callCheckAPI(t, r, testOperatorToken, path, body); answer.status != 503 || !strings.Contains(answer.text, "send the call again") {
					t.Errorf("with the store %s, %s returned %d %s; want 503 with \"send the call again\"", fault, path, answer.status, answer.text)
				}
			}
			if fault == "killed" {
				if err := server.Restart(); err != nil {
					t.Fatal(err)
				}
			} else {
				server.Resume()
			}
			eventually.True(t, "settle to work again", func() bool {
				return callCheckAPI(t, r, testCallerToken, "/v1/settle", `{"id":"`+id+`","cancel":true}`).status == 200
			})
			eventually.True(t, "Redis to decide again", func() bool {
				return strings.Contains(callCheckAPI(t, r, testCallerToken, "/v1/check", `{"rule":"closed","key":"user:1"}`).text, `"source":"store"`)
			})
		})
	}
}
