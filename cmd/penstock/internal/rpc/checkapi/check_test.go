package checkapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/testing/spellings"
	"github.com/penstock/penstock/memstore"
)

func TestCheckAcceptsThreeForms(t *testing.T) {
	s := newService(t)
	for i, c := range []struct {
		body, outcome string
		limit         string // a limit whose remaining units are compared; "": none
		remaining     int64
	}{
		{body: `{"attributes":{"path":"/search","headers":{"x-user":"42"}}}`, outcome: "allowed", limit: "search.minute", remaining: 2},
		{body: `{"attributes":{"method":"GET","host":"example.com:443","path":"/%73earch","query":"q=1","headers":{"X-User":" 42 "},"address":"192.0.2.7"}}`, outcome: "allowed", limit: "search.minute", remaining: 1},
		{body: `{"rule":"search","key":"user:42","cost":2}`, outcome: "denied", limit: "search.minute", remaining: 1},
		{body: `{"rule":"search","key":"user:42"}`, outcome: "allowed", limit: "search.minute", remaining: 0},
		{body: `{"rule":"search","key":"user:42","cost":0}`, outcome: "allowed", limit: "search.minute", remaining: 0},
		{body: `{"rule":"search","key":"user:43"}`, outcome: "allowed", limit: "search.minute", remaining: 2},
		{body: `{"key":"a","limits":[{"rate":"5/s"},{"name":"hour","rate":"100/h","algorithm":"fixed-window"}],"cost":3}`, outcome: "allowed", limit: "second", remaining: 2},
		{body: `{"key":"a","limits":[{"rate":"5/s"}],"cost":3}`, outcome: "denied", limit: "second", remaining: 2},
		{body: `{"key":"a","limits":[{"rate":"5/s","burst":9}],"cost":3}`, outcome: "allowed", limit: "second", remaining: 3}, // the same counter as for the burst of 5: 9 - 3 - 3
		{body: `{"key":"a","limits":[{"name":"year","rate":"1 per 366d"},{"name":"slow","rate":"1/d","burst":366,"algorithm":"token-bucket"}]}`, outcome: "allowed", limit: "year", remaining: 0},
		{body: `{"key":"\ud83d\ude00","limits":[{"rate":"7/s"}]}`, outcome: "allowed", limit: "second", remaining: 6},
		{body: "{\"key\":\"\U0001F600\",\"limits\":[{\"rate\":\"7/s\"}]}", outcome: "allowed", limit: "second", remaining: 5}, // the same key
		{body: `{"attributes":{"path":"/free"}}`, outcome: "unlimited"},
		{body: `{"attributes":{"path":"/upload","address":"192.0.2.8","body_size":0}}`, outcome: "allowed", limit: "upload.bytes", remaining: 9},
		{body: `{"attributes":{"path":"/search","address":"192.0.2.1"}}`, outcome: "exempt"},
		{body: `{"attributes":{"path":"/search","address":"192.0.2.66"}}`, outcome: "refused"},
		{body: `{"attributes":{"descriptors":{"plan":"pro","tenant":"a b"}}}`, outcome: "allowed", limit: "plans.minute", remaining: 1},
		{body: `{"attributes":{"descriptors":{"plan":"pro","tenant":"c"}}}`, outcome: "allowed", limit: "plans.minute", remaining: 1},
		{body: `{"attributes":{"descriptors":{"plan":"free","tenant":"a b"}}}`, outcome: "unlimited"},
		{body: `{"attributes":{"path":"/upload","address":"192.0.2.7","body_size":4097}}`, outcome: "allowed", limit: "upload.bytes", remaining: 5},
	} {
		answer := s.call("/v1/check", c.body)
		isAllowed := c.outcome != "denied" && c.outcome != "refused"
		if answer["outcome"] != c.outcome || answer["allowed"] != isAllowed {
			t.Errorf("call %d, %s: %v; want the outcome %s", i, c.body, answer, c.outcome)
		}
		if c.limit != "" && answer.remaining(t, c.limit) != c.remaining {
			t.Errorf("call %d, %s: the limit %s has %d units left; want %d", i, c.body, c.limit, answer.remaining(t, c.limit), c.remaining)
		}
		if len(s.events) != i+1 || s.events[i].Outcome.String() != c.outcome {
			t.Errorf("call %d: the events are %v; want one for each call, the last with outcome %s", i, s.events, c.outcome)
		}
	}
}

func TestDenialHasRetryAfter(t *testing.T) {
	s := newService(t)
	s.call("/v1/check", `{"rule":"search","key":"user:42","cost":3}`)
	s.clock.advance(time.Second)
	denied := s.call("/v1/check", `{"rule":"search","key":"user:42"}`)
	if denied["retry_after_ms"] != 19_000.0 || fmt.Sprint(denied["denied_by"]) != "[search.minute]" || denied["source"] != "store" {
		t.Errorf("a request that is denied: %v; want that search.minute denied it, with a retry after 19 s", denied)
	}
	for _, l := range denied.list("limits") {
		want := map[string]struct{ retry, reset, capacity float64 }{
			"search.minute": {19_000, 59_000, 3},
			"search.day":    {0, 25_919_000, 10},
		}[l["limit"].(string)]
		if l["retry_after_ms"] != want.retry || l["reset_after_ms"] != want.reset || l["capacity"] != want.capacity {
			t.Errorf("the status of a limit is %v; want %+v", l, want)
		}
	}
	s.clock.advance(19 * time.Second)
	if answer := s.call("/v1/check", `{"rule":"search","key":"user:42"}`); answer["allowed"] != true {
		t.Errorf("after retry_after_ms: %v; want allowed", answer)
	}
	if answer := s.call("/v1/check", `{"rule":"search","key":"user:42","cost":4}`); answer["retry_after_ms"] != -1.0 {
		t.Errorf("a cost above the capacity: %v; want retry_after_ms -1", answer)
	}
}

func TestQueryStatus429SetsStatusAndHeaders(t *testing.T) {
	s := newService(t)
	for _, c := range []struct {
		body                            string
		status                          int
		retryAfter, rateLimit, policies string
	}{
		{body: `{"rule":"search","key":"user:42","cost":3}`, status: 200, rateLimit: `"search.minute";r=0;t=60, "search.day";r=7;t=25920`, policies: `"search.minute";q=3, "search.day";q=10`},
		{body: `{"rule":"search","key":"user:42"}`, status: 429, retryAfter: "20", rateLimit: `"search.minute";r=0;t=20, "search.day";r=7;t=25920`, policies: `"search.minute";q=3, "search.day";q=10`},
		{body: `{"attributes":{"address":"192.0.2.66"}}`, status: 403},
		{body: `{"attributes":{"path":"/free"}}`, status: 200},
	} {
		w := s.send(callerToken, "/v1/check?status=429", c.body)
		h := w.Header()
		if w.Code != c.status || h.Get("Retry-After") != c.retryAfter || h.Get("RateLimit") != c.rateLimit || h.Get("RateLimit-Policy") != c.policies {
			t.Errorf("%s: status %d, header %v; want %+v", c.body, w.Code, h, c)
		}
	}
	if w := s.send(callerToken, "/v1/check", `{"rule":"search","key":"user:42"}`); w.Code != 200 || w.Header().Get("Retry-After") != "" {
		t.Errorf("a denial without status=429 has status %d and header %v; want 200 and no Retry-After", w.Code, w.Header())
	}
}

func TestRepeatChargesNothing(t *testing.T) {
	s := newService(t)
	for i, c := range []struct {
		body, header string // header is the Idempotency-Key
		isRepeat     bool
		remaining    int64
	}{
		{body: `{"rule":"search","key":"user:42","request_id":"a"}`, remaining: 2},
		{body: `{"rule":"search","key":"user:42","request_id":"a"}`, isRepeat: true, remaining: 2},
		{body: `{"rule":"search","key":"user:42"}`, header: "a", isRepeat: true, remaining: 2},
		{body: `{"rule":"search","key":"user:42","request_id":"a"}`, header: `"a"`, isRepeat: true, remaining: 2},
		{body: `{"rule":"search","key":"user:42"}`, header: "b", remaining: 1},
	} {
		var headers []string
		if c.header != "" {
			headers = []string{"Idempotency-Key: " + c.header}
		}
		answer := s.call("/v1/check", c.body, headers...)
		if answer["is_repeat"] != c.isRepeat || answer["allowed"] != true || answer.remaining(t, "search.minute") != c.remaining {
			t.Errorf("call %d: %v; want is_repeat %t, and %d units left", i, answer, c.isRepeat, c.remaining)
		}
	}
	const window = 10 * time.Minute // see admission.RequestOptions
	s.clock.advance(window + time.Second)
	if answer := s.call("/v1/check", `{"rule":"search","key":"user:42","request_id":"a"}`); answer["is_repeat"] != false {
		t.Errorf("a call with the same id after %v: %v; want is_repeat false", window, answer)
	}
}

// The error for an invalid request names the field.
func TestInvalidRequestsAreRefused(t *testing.T) {
	s := newService(t)
	for body, want := range map[string]string{
		``:                                  "the body: the JSON ends too early",
		`[]`:                                "the body: it must be an object",
		`null`:                              "the body: it must be an object",
		`{}`:                                "the request: it has nothing to check; write attributes",
		`{} {}`:                             "the body: bytes follow the object",
		`{"rule":"search","key":"user:42"`:  "the JSON ends too early",
		`{"rule":"search" "key":"user:42"}`: "it is not JSON from byte",
		`{"ruel":"search"}`:                 "there is no field ruel; did you mean rule?",
		`{"requestId":"a"}`:                 "did you mean request_id?",
		`{"attributes":{"metod":"GET"}}`:    "attributes: there is no field metod; did you mean method?",
		`{"rule":"search","rule":"jobs"}`:   "rule: it is sent twice",
		`{"rule":"","key":"a","limits":[{"rate":"1/s"}]}`: "rule: it is empty; leave it out",
		`{"key":"a","limits":[]}`:                         "limits: it is empty; leave it out",
		`{"key":"a","limits":[{"rate":"1/s","burst":0}]}`: "limits[0].burst: it is 0; write another number, or leave it out",
		`{"rule":null}`:                                                         "rule: it must be a string",
		`{"rule":1}`:                                                            "rule: it must be a string",
		`{"rule":"search","cost":"1"}`:                                          "cost: it must be a whole number",
		`{"rule":"search","cost":1.5}`:                                          "cost: it must be a whole number",
		`{"rule":"search","cost":1e-3}`:                                         "cost: it must be a whole number",
		`{"rule":"search","cost":-1}`:                                           "cost: write 0 to",
		`{"rule":"search","cost":9007199254740991}`:                             "cost: write 0 to",
		`{"rule":"search","cost":9007199254740993}`:                             "cost: it is out of range",
		`{"rule":"search","cost":99999999999999999999}`:                         "cost: it is out of range",
		`{"attributes":[]}`:                                                     "attributes: it must be an object",
		`{"attributes":{"headers":{"A":1}}}`:                                    "attributes.headers: the value of A must be a string",
		`{"attributes":{"headers":{"A":"1","A":"2"}}}`:                          "A: it is sent twice",
		`{"attributes":{"headers":{"x-a":"1","X-A":"2"}}}`:                      "attributes.headers: X-A is sent twice",
		`{"attributes":{"headers":{"":"1"}}}`:                                   "a name is malformed",
		`{"attributes":{"headers":{"A":"1\r\n2"}}}`:                             "the value of A is malformed",
		`{"attributes":{"headers":{"Host":"a"}}}`:                               "write the host as attributes.host",
		`{"attributes":{"path":"search"}}`:                                      "attributes.path: write what the client sent",
		`{"attributes":{"path":"/a?b"}}`:                                        "attributes.path: path: \"?\" at offset 2 ends a path",
		`{"attributes":{"path":"/%zz"}}`:                                        "attributes.path: ",
		`{"attributes":{"path":"/a%2f..%2fb"}}`:                                 "attributes.path: ",
		`{"attributes":{"query":"?a"}}`:                                         "attributes.query: ",
		`{"attributes":{"host":"a b"}}`:                                         "attributes.host: it is malformed",
		`{"attributes":{"method":"get"}}`:                                       "attributes.method: write GET in capitals",
		`{"attributes":{"method":"G T"}}`:                                       "attributes.method: it is malformed",
		`{"attributes":{"address":"192.0.2.1:80"}}`:                             "attributes.address: it is not an address",
		`{"attributes":{"descriptors":{"":"a"}}}`:                               "attributes.descriptors: names have 1 to 128 characters",
		`{"attributes":{"body_size":-1}}`:                                       "attributes.body_size: it must not be negative",
		`{"attributes":{},"rule":"search"}`:                                     "attributes: with attributes the policy decides",
		`{"attributes":{},"cost":1}`:                                            "cost: with attributes the policy sets the cost",
		`{"attributes":{"path":"/jobs"}}`:                                       "limit jobs.in-flight: it is an in_flight limit",
		`{"attributes":{"path":"/login"}}`:                                      "limit login.hour: its on_status needs",
		`{"attributes":{"path":"/tokens"}}`:                                     "limit tokens.tokens: its cost.actual is known",
		`{"attributes":{"path":"/upload"}}`:                                     "limit upload.bytes: it charges by the size of the body",
		`{"rule":"jobs","key":"user:42"}`:                                       "whose slot must be returned",
		`{"rule":"nothing"}`:                                                    "the policy has no rule of this name",
		`{"rule":"Search"}`:                                                     "rule: write the name of a rule",
		`{"rule":"search","key":"42"}`:                                          "write one such as user:42",
		`{"rule":"search"}`:                                                     "there is no key, and the limit minute counts by key; write one such as user:42",
		`{"rule":"search","limits":[{"rate":"1/s"}]}`:                           "limits: the rule \"search\" has limits already",
		`{"limits":[{"rate":"1/s"}]}`:                                           "key: it is missing",
		`{"key":"a","limits":[{}]}`:                                             "limits[0].rate: it is missing",
		`{"key":"a","limits":[{"rate":"1/s"},{"rate":"x"}]}`:                    "limits[1].rate: ",
		`{"key":"a","limits":[{"rate":"1/s"},{"rate":"2/s"}]}`:                  "limits[1].name: two limits are called \"second\"",
		`{"key":"a","limits":[{"rate":"1/s","name":"A"}]}`:                      "limits[0].name: write 1 to 64",
		`{"key":"a","limits":[{"rate":"1/s","burst":-1}]}`:                      "limits[0].burst: write 1 to",
		`{"key":"a","limits":[{"rate":"1/s, burst 3","burst":2}]}`:              "limits[0].burst: the text of the rate states another burst",
		`{"key":"a","limits":[{"rate":"1/s","algorithm":"x"}]}`:                 "limits[0].algorithm: it is unknown; write one of token-bucket, fixed-window",
		`{"key":"a","limits":[{"rate":"1/s","algorithm":"gcra"}]}`:              "limits[0].algorithm: gcra is another name of token-bucket; write token-bucket",
		`{"key":"a","limits":[{"rate":"1/s","ttl_ms":5}]}`:                      "limits[0].ttl_ms: only a limit with in_flight has a ttl_ms",
		`{"key":"a","limits":[{"rate":"10001/d","algorithm":"sliding-log"}]}`:   "limits[0]: it keeps an entry for each of 10001 units",
		`{"key":"a","limits":[{"in_flight":10001}]}`:                            "limits[0].in_flight: write 1 to 10000",
		`{"key":"a","limits":[{"in_flight":1}]}`:                                "whose slot must be returned",
		`{"key":"a","limits":[{"rate":"1 per 2900d"}]}`:                         "limits[0].rate: the period is 69600h; the longest of a caller limit is 366 days",
		`{"key":"a","limits":[{"rate":"1/d","burst":367}]}`:                     "limits[0]: a burst of 367 takes longer than 366 days to refill at this rate; the largest is 366",
		`{"key":"a","limits":[{"in_flight":1,"rate":"1/s"}]}`:                   "limits[0]: it has both rate and in_flight",
		`{"key":"` + strings.Repeat("a", 4097) + `","limits":[{"rate":"1/s"}]}`: "key: it is longer than 1024 characters",
		`{"rule":"search","request_id":"` + strings.Repeat("a", 129) + `"}`:     "request_id: it is longer than 128 characters",
		`{"limits":[` + strings.Repeat(`{},`, 1000) + `{}]}`:                    "limits: it has more than 1000 elements",
		"{\"key\":\"\xff\"}":                                                    "the body: it is not UTF-8",
		`{"key":"\ud800"}`:                                                      "half of a surrogate pair",
		`{"key":"\ud800\u0041"}`:                                                "half of a surrogate pair", // the second half is too small
		`{"key":"\ud800\uffff"}`:                                                "half of a surrogate pair", // and too large
		`{"key":"\udc00\ud800"}`:                                                "half of a surrogate pair",
	} {
		w := s.send(callerToken, "/v1/check", body)
		answer := objectOf(t, w.Body.String())
		codesOfStatus := map[int]string{400: "invalid_argument", 404: "not_found", 409: "failed_precondition invalid_argument"}[w.Code]
		if !strings.Contains(answer["detail"].(string), want) || !strings.Contains(codesOfStatus, answer["code"].(string)) {
			t.Errorf("%.200s: %d %v; want the detail %q and a code of %q", body, w.Code, answer, want, codesOfStatus)
		}
	}
	for _, e := range s.events {
		if e.Outcome == admission.Allowed {
			t.Errorf("an invalid request was charged: %+v; want no event", e)
		}
	}
}

func TestWrongHTTPRequestsAreRefused(t *testing.T) {
	s := newService(t)
	const body = `{"rule":"search","key":"user:42"}`
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
		want   string
	}{
		"an unknown path":    {change: func(r *http.Request) { r.URL.Path = "/v1/other" }, status: 404, want: "there is no such path"},
		"GET":                {change: func(r *http.Request) { r.Method = "GET" }, status: 405, want: "send a POST"},
		"a CORS preflight":   {change: func(r *http.Request) { r.Method = "OPTIONS" }, status: 405, want: "send a POST"},
		"plain text":         {change: func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, status: 415, want: "Content-Type: application/json"},
		"no Content-Type":    {change: func(r *http.Request) { r.Header.Del("Content-Type") }, status: 415, want: "Content-Type: application/json"},
		"two Content-Types":  {change: func(r *http.Request) { r.Header.Add("Content-Type", "application/json") }, status: 415, want: "Content-Type: application/json"},
		"another charset":    {change: func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=latin1") }, status: 415, want: "Content-Type"},
		"a compressed body":  {change: func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, status: 415, want: "Content-Encoding"},
		"a large body":       {change: func(r *http.Request) { *r = *withLargeBody(r) }, status: 413, want: "larger than 1048576 bytes"},
		"a query":            {change: func(r *http.Request) { r.URL.RawQuery = "status=200" }, status: 400, want: "it may only be status=429"},
		"429 for a batch":    {change: func(r *http.Request) { r.URL.Path, r.URL.RawQuery = "/v1/check-batch", "status=429" }, status: 400, want: "the query: status=429 has no effect"},
		"429 for a release":  {change: func(r *http.Request) { r.URL.Path, r.URL.RawQuery = "/v1/release", "status=429" }, status: 400, want: "the query: status=429 has no effect"},
		"two ids":            {change: func(r *http.Request) { r.Header["Idempotency-Key"] = []string{"a", "b"} }, status: 400, want: "write one value"},
		"an id with a quote": {change: func(r *http.Request) { r.Header["Idempotency-Key"] = []string{`"a"b"`} }, status: 400, want: "write one value"},
		"no token":           {change: func(r *http.Request) { r.Header.Del("Authorization") }, status: 401, want: "a token is missing"},
		"a wrong token":      {change: func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+callerToken[1:]) }, status: 401, want: "the token is wrong"},
		"two tokens":         {change: func(r *http.Request) { r.Header.Add("Authorization", "Bearer "+callerToken) }, status: 401, want: "several"},
		"the scheme Basic":   {change: func(r *http.Request) { r.Header.Set("Authorization", "Basic "+callerToken) }, status: 401, want: "not of the form: Bearer TOKEN"},
		"an operator's call": {change: func(r *http.Request) { r.URL.Path = "/v1/peek" }, status: 403, want: "send the operator token"},
		"the charset UTF-8":  {change: func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=UTF-8") }, status: 200},
	} {
		r := httptest.NewRequest("POST", "/v1/check", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+callerToken)
		c.change(r)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s; want status %d with %q", name, w.Code, w.Body, c.status, c.want)
		}
		for _, header := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Headers"} {
			if w.Header().Get(header) != "" {
				t.Errorf("%s: the response has the header %s; want none", name, header)
			}
		}
		if allow := w.Header().Get("Allow"); c.status == 405 && allow != "POST" {
			t.Errorf("%s: Allow is %q; want POST", name, allow)
		}
		if c.status == 401 && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: WWW-Authenticate is %q; want Bearer", name, w.Header().Get("WWW-Authenticate"))
		}
		if strings.Contains(w.Body.String(), callerToken[1:]) {
			t.Errorf("%s: the response contains the token: %s; want that it does not", name, w.Body)
		}
	}
	if len(s.events) != 1 {
		t.Errorf("%d requests were decided; want 1, the one with the charset UTF-8", len(s.events))
	}
}

// withLargeBody returns the request with a body larger than MaxBody.
func withLargeBody(r *http.Request) *http.Request {
	changed := httptest.NewRequest("POST", "/v1/check", strings.NewReader(`{"key":"`+strings.Repeat("a", MaxBody)+`"}`))
	changed.Header = r.Header
	return changed
}

func TestTokensAndOptionsDecideWhoMayCall(t *testing.T) {
	const body = `{"rule":"search","key":"user:42"}`
	failures := ""
	anonymous := newService(t, func(o *Options) {
		o.CallerToken, o.OperatorToken, o.AllowAnonymous = nil, nil, true
		o.AuthFailed = func(reason string) { failures += reason }
	})
	for _, c := range []struct {
		path    string
		header  string
		status  int
		want    string
		failure string // the call of AuthFailed; "": none
	}{
		{path: "/v1/check", header: "X: y", status: 200},
		{path: "/v1/peek", header: "X: y", status: 403, want: "set operator-token there", failure: "not_operator"},
		{path: "/v1/check", header: "Origin: https://example.com", status: 403, want: "web pages may not call this", failure: "no_token"},
		{path: "/v1/check", header: "Authorization: Bearer " + callerToken, status: 401, want: "this service has no tokens", failure: "wrong_token"},
	} {
		failures = ""
		if w := anonymous.send("", c.path, body, c.header); w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || failures != c.failure {
			t.Errorf("AllowAnonymous: %s with the header %s: %d %s, failure %q; want status %d with %q, failure %q", c.path, c.header, w.Code, w.Body, failures, c.status, c.want, c.failure)
		}
	}
	withoutTokens := newService(t, func(o *Options) { o.CallerToken, o.OperatorToken = nil, nil })
	if w := withoutTokens.send("", "/v1/check", body); w.Code != 401 || !strings.Contains(w.Body.String(), "set caller-token there") {
		t.Errorf("a service without tokens: %d %s; want 401 and the remedy", w.Code, w.Body)
	}
	if w := withoutTokens.send(callerToken, "/v1/check", body); w.Code != 401 {
		t.Errorf("a service without tokens, called with a token: %d %s; want 401", w.Code, w.Body)
	}
	withoutCallerLimits := newService(t, func(o *Options) { o.AllowCallerLimits = false })
	if w := withoutCallerLimits.send(operatorToken, "/v1/check", `{"key":"a","limits":[{"rate":"1/s"}]}`); w.Code != 403 || !strings.Contains(w.Body.String(), "start the service with allow-caller-limits") {
		t.Errorf("caller limits without AllowCallerLimits: %d %s; want 403 and the remedy", w.Code, w.Body)
	}
}

func TestPeekChargesNothing(t *testing.T) {
	s := newService(t)
	s.call("/v1/check", `{"rule":"search","key":"user:42"}`)
	for _, body := range []string{`{"rule":"search","key":"user:42","cost":2}`, `{"attributes":{"path":"/search","headers":{"X-User":"42"}}}`, `{"rule":"search","key":"user:42","cost":0}`} {
		if answer := s.call("/v1/peek", body); answer["allowed"] != true || answer.remaining(t, "search.minute") != 2 {
			t.Errorf("a peek with %s: %v; want that it is allowed, and 2 units left", body, answer)
		}
	}
	if answer := s.call("/v1/peek", `{"rule":"search","key":"user:42","cost":3}`); answer["allowed"] != false {
		t.Errorf("a peek for 3 units when 2 are left: %v; want a denial", answer)
	}
	s.call("/v1/peek", `{"rule":"jobs","key":"user:42"}`)
	if len(s.events) != 1 {
		t.Errorf("the peeks caused %d events; want none", len(s.events)-1)
	}
}

// While the store gives no answer, the on_failure of each limit decides.
func TestOnFailureDecidesWhileTheStoreFails(t *testing.T) {
	for onFailure, want := range map[string]struct {
		outcome, source string
		retryAfterMs    float64
		status          int // with the query status=429
		limits          int // in the response
	}{
		"open":   {outcome: "failed_open", source: "open", status: 200},
		"closed": {outcome: "failed_closed", source: "closed", retryAfterMs: 1000, status: 503},
		"local":  {outcome: "allowed", source: "fallback", status: 200, limits: 1},
	} {
		s := newServiceOf(t, "rules: [{name: search, per: {user: header X-User}, limits: [{name: minute, rate: 3/min, on_failure: "+onFailure+"}]}]", failingStore(penstock.ReasonTimeout))
		const body = `{"rule":"search","key":"user:42"}`
		answer := s.call("/v1/check", body)
		if answer["outcome"] != want.outcome || answer["source"] != want.source || answer["retry_after_ms"] != want.retryAfterMs || len(answer.list("limits")) != want.limits {
			t.Errorf("on_failure %s: %v; want %+v", onFailure, answer, want)
		}
		if w := s.send(callerToken, "/v1/check?status=429", body); w.Code != want.status {
			t.Errorf("on_failure %s with status=429: status %d; want %d", onFailure, w.Code, want.status)
		}
		if answer := s.call("/v1/check", `{"rule":"search","key":"user:42","request_id":"a"}`); answer["is_repeat"] != false || answer["outcome"] != want.outcome {
			t.Errorf("on_failure %s with a request_id: %v; want is_repeat false and the outcome %s", onFailure, answer, want.outcome)
		}
	}
	local := newServiceOf(t, rules, failingStore(penstock.ReasonUnreachable))
	for i, want := range []bool{true, true, true, false} {
		if answer := local.call("/v1/check", `{"key":"a","limits":[{"rate":"3/min"}]}`); answer["allowed"] != want || answer["source"] != "fallback" {
			t.Errorf("call %d with a caller limit: %v; want allowed %t by the fallback", i, answer, want)
		}
	}
}

func TestCancelledCallMayBeCharged(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := newServiceOn(t, penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
		cancel()
		return penstock.Decision{}, ctx.Err()
	}), newClock())
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/check", strings.NewReader(`{"rule":"search","key":"user:42"}`))
	r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + callerToken}}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if answer := objectOf(t, w.Body.String()); w.Code != 503 || answer["code"] != "canceled" || answer["may_be_charged"] != true {
		t.Errorf("a call that is canceled: %d %v; want 503 with the code canceled and may_be_charged", w.Code, answer)
	}
}

func TestEndsOfContextsSayThatTheChargeMayHaveBeenMade(t *testing.T) {
	for _, err := range []error{context.DeadlineExceeded, context.Canceled} {
		f := asFailure(err)
		if !f.mayBeCharged || !strings.Contains(f.text, "the charge may have been made") {
			t.Errorf("%v becomes %q, may be charged: %t; want both to say that the charge may have been made", err, f.text, f.mayBeCharged)
		}
	}
}

// The error of a wrong token says whether the service has tokens at all.
func TestWrongTokensGetTheReason(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{CallerToken: []byte(callerToken)}, "send the caller token or the operator token"},
		{Options{OperatorToken: []byte(operatorToken)}, "send the caller token or the operator token"},
		{Options{}, "this service has no tokens"},
	} {
		tokens := newTokens(c.o)
		if err := tokens.authorize([]string{"Bearer another-0123456789"}, caller); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("the error of a wrong token is %v; want one with %q", err, c.want)
		}
	}
}

// The caller describes a request with all its names. An application may read some names as another
// one.
func TestNamesThatSomeServersReadAsOthersAreMalformed(t *testing.T) {
	s := newServiceOf(t, `
deny: [{header X-API-Key: banned}, {query key: banned}]
rules: [{name: a, per: ip, limits: [{rate: 1000/h}]}]
`, memstore.New(memstore.Options{}))
	for path, body := range map[string]string{"/v1/check": "%s", "/v1/peek": "%s", "/v1/reserve": `{"check":%s}`} {
		for _, name := range spellings.Header("X-API-Key") {
			w := s.send(operatorToken, path, fmt.Sprintf(body, `{"attributes":{"path":"/","headers":{"`+name+`":"banned"}}}`))
			if w.Code != 409 || !strings.Contains(w.Body.String(), "X-API-Key") {
				t.Errorf("%s with the header %s: %d %s; want 409 and the name X-API-Key", path, name, w.Code, w.Body)
			}
		}
		if w := s.send(operatorToken, path, fmt.Sprintf(body, `{"attributes":{"path":"/","query":"key%00=banned"}}`)); w.Code != 409 {
			t.Errorf("%s with a NUL in the name of a parameter: %d %s; want 409", path, w.Code, w.Body)
		}
	}
}

// The method of a request is an attribute that rules match and that sets costs.
func TestMethodsAreMatchedAndSetCosts(t *testing.T) {
	const text = `
rules:
- {name: writes, match: {method: POST}, per: ip, limits: [{name: hour, rate: 100/h, cost: {methods: {POST: 7}}}]}
- {name: reads, match: {method: [GET, HEAD]}, per: ip, limits: [{name: hour, rate: 100/h, cost: {methods: {GET: 2}}}]}
`
	for _, c := range []struct {
		method, limit string // limit "": none applies
		cost          int64
	}{
		{"POST", "writes.hour", 7}, {"GET", "reads.hour", 2}, {"HEAD", "reads.hour", 2}, {"DELETE", "", 0}, {"", "", 0},
	} {
		s := newServiceOf(t, text, memstore.New(memstore.Options{}))
		request := `{"attributes":{"method":"` + c.method + `","address":"192.0.2.7"}}`
		if c.method == "" {
			request = `{"attributes":{"address":"192.0.2.7"}}`
		}
		explained := s.call("/v1/explain", request).list("charges")
		if c.limit == "" {
			if answer := s.call("/v1/check", request); answer["outcome"] != "unlimited" || len(explained) != 0 {
				t.Errorf("method %q: %v, with the charges %v; want unlimited, without charges", c.method, answer, explained)
			}
			continue
		}
		if len(explained) != 1 || explained[0]["limit"] != c.limit || explained[0]["cost"] != float64(c.cost) {
			t.Errorf("method %q has the charges %v; want one of %d units for %s", c.method, explained, c.cost, c.limit)
		}
		s.call("/v1/check", request)
		if n := s.left(request, c.limit); n != 100-c.cost {
			t.Errorf("method %q: after a check, %d units of %s are left; want %d", c.method, n, c.limit, 100-c.cost)
		}
		s.call("/v1/settle", `{"id":"`+s.reserve(`{"check":`+request+`}`)+`","cancel":true}`)
		s.reserve(`{"check":` + request + `}`)
		if n := s.left(request, c.limit); n != 100-2*c.cost {
			t.Errorf("method %q: after a check and a reserve, %d units of %s are left; want %d", c.method, n, c.limit, 100-2*c.cost)
		}
	}
}
