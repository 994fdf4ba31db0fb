package service

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

const (
	testCallerToken   = "caller-0123456789"
	testOperatorToken = "operator-0123456789"
)

// checked has rules that programs ask for.
const checked = `
rules:
- {name: search, match: {path: /search}, per: {user: header X-User}, limits: [{name: hour, rate: 3/h}]}
- {name: jobs, match: {path: /jobs}, per: {user: header X-User}, limits: [{in_flight: 2, ttl: 1h}]}
- {name: tokens, match: {path: /tokens}, per: {user: header X-User}, limits: [{name: hour, rate: 100/h}]}
`

// A checkAnswer is the answer to a call in JSON.
type checkAnswer struct {
	status int
	text   string
	fields map[string]any
}

// check sends a call in JSON.
func check(t *testing.T, r *running, token, path, body string) checkAnswer {
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
		t.Fatalf("%s: %v", text, err)
	}
	return answer
}

func TestProgramsAskInJSON(t *testing.T) {
	onStores(t, func(t *testing.T, flags map[string]string) {
		all := map[string]string{"api": "127.0.0.1:0", "caller-token": testCallerToken, "operator-token": testOperatorToken, "allow-stated-limits": "true"}
		for name, text := range flags {
			all[name] = text
		}
		r := startLimited(t, nil, checked, all)
		for i, c := range []struct {
			token, path, body string
			status            int
			want              string
		}{
			{"", "/v1/check", `{"rule":"search","key":"user:secret-42"}`, 401, "a token is missing"},
			{testCallerToken[1:], "/v1/check", `{"rule":"search","key":"user:secret-42"}`, 401, "the token is wrong"},
			{testCallerToken, "/v1/peek", `{"rule":"search","key":"user:secret-42"}`, 403, "only operators"},
			{testCallerToken, "/v1/check", `{"rule":"search","key":"user:secret-42","cost":3}`, 200, `"allowed":true`},
			{testCallerToken, "/v1/check", `{"attributes":{"path":"/search","headers":{"X-User":"secret-42"}}}`, 200, `"allowed":false`},
			{testCallerToken, "/v1/check?status=429", `{"rule":"search","key":"user:secret-42"}`, 429, `"denied_by":["search.hour"]`},
			{testOperatorToken, "/v1/peek", `{"rule":"search","key":"user:other"}`, 200, `"remaining":3`},
			{testCallerToken, "/v1/check", `{"key":"secret-42","limits":[{"rate":"1/h"}]}`, 200, `"allowed":true`},
			{testCallerToken, "/v1/check", `{"key":"secret-42","limits":[{"rate":"1/h"}]}`, 200, `"allowed":false`},
			{testCallerToken, "/v1/check", `{"rule":"search","key":"user:repeated","request_id":"a"}`, 200, `"is_repeat":false`},
			{testCallerToken, "/v1/check", `{"rule":"search","key":"user:repeated","request_id":"a"}`, 200, `"is_repeat":true`},
			{testCallerToken, "/v1/check", `{"ruel":"search"}`, 400, "did you mean rule?"},
			{testCallerToken, "/v1/nothing", `{}`, 404, "there is no such path"},
		} {
			if answer := check(t, r, c.token, c.path, c.body); answer.status != c.status || !strings.Contains(answer.text, c.want) {
				t.Errorf("call %d, %s %s: %d %s; want %d with %s", i, c.path, c.body, answer.status, answer.text, c.status, c.want)
			}
		}
		if n := r.metric(`rate_limiter_rejected_total{algorithm="token-bucket",limit="hour",rule="search"}`); n != "2" {
			t.Errorf("%q denials are counted, want 2", n)
		}
		if n := r.metric(`rate_limiter_rejected_total{algorithm="token-bucket",limit="penstock.stated",rule="penstock.stated"}`); n != "1" {
			t.Errorf("%q denials by stated limits are counted, want 1", n)
		}
		for _, secret := range []string{"secret-42", testCallerToken[1:], testOperatorToken} {
			if strings.Contains(r.log.String(), secret) || strings.Contains(r.mustGet("http://"+r.Admin+"/metrics", 200), secret) {
				t.Errorf("the log or the metrics show %q", secret)
			}
		}
	})
}

// A listener that other machines reach answers programs only with a token. Forward-auth is still
// for trusted proxies.
func TestNoDecisionWithoutATokenAtAnOpenAddress(t *testing.T) {
	r := startLimited(t, nil, oncePerHour, map[string]string{"api": ":0"})
	if answer := check(t, r, "", "/v1/check", `{"rule":"api","key":"ip:192.0.2.1"}`); answer.status != 401 || !strings.Contains(answer.text, "set caller-token") {
		t.Errorf("%d %s; want 401", answer.status, answer.text)
	}
	if answer := check(t, startBeside(t, nil, limitedBy(t, oncePerHour, map[string]string{"api": ":0", "allow-open-callers": "true"})), "", "/v1/check", `{"rule":"api","key":"ip:192.0.2.1"}`); answer.status != 200 {
		t.Errorf("with allow-open-callers: %d %s", answer.status, answer.text)
	}
}
