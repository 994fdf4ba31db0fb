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
)

func TestCheckAcceptsThreeForms(t *testing.T) {
	s := newService(t)
	for i, c := range []struct {
		body, outcome string
		limit         string // "": not compared
		remaining     int64  // of the limit
	}{
		{`{"attributes":{"path":"/search","headers":{"x-user":"42"}}}`, "allowed", "search.minute", 2},
		{`{"attributes":{"method":"GET","host":"example.com:443","path":"/%73earch","query":"q=1","headers":{"X-User":" 42 "},"address":"192.0.2.7"}}`, "allowed", "search.minute", 1},
		{`{"rule":"search","key":"user:42","cost":2}`, "denied", "search.minute", 1},
		{`{"rule":"search","key":"user:42"}`, "allowed", "search.minute", 0},
		{`{"rule":"search","key":"user:42","cost":0}`, "allowed", "search.minute", 0},
		{`{"rule":"search","key":"user:43"}`, "allowed", "search.minute", 2},
		{`{"key":"a","limits":[{"rate":"5/s"},{"name":"hour","rate":"100/h","algorithm":"fixed-window"}],"cost":3}`, "allowed", "second", 2},
		{`{"key":"a","limits":[{"rate":"5/s"}],"cost":3}`, "denied", "second", 2},
		{`{"key":"a","limits":[{"rate":"5/s","burst":9}],"cost":3}`, "allowed", "second", 3}, // one counter, whatever the numbers are
		{`{"attributes":{"path":"/free"}}`, "unlimited", "", 0},
		{`{"attributes":{"path":"/search","address":"192.0.2.1"}}`, "exempt", "", 0},
		{`{"attributes":{"path":"/search","address":"192.0.2.66"}}`, "refused", "", 0},
		{`{"attributes":{"descriptors":{"plan":"pro","tenant":"a b"}}}`, "allowed", "plans.minute", 1},
		{`{"attributes":{"descriptors":{"plan":"pro","tenant":"c"}}}`, "allowed", "plans.minute", 1},
		{`{"attributes":{"descriptors":{"plan":"free","tenant":"a b"}}}`, "unlimited", "", 0},
		{`{"attributes":{"path":"/upload","address":"192.0.2.7","body_size":4097}}`, "allowed", "upload.bytes", 5},
	} {
		answer := s.call("/v1/check", c.body)
		isAllowed := c.outcome != "denied" && c.outcome != "refused"
		if answer["outcome"] != c.outcome || answer["allowed"] != isAllowed {
			t.Errorf("%d: %s: %v; want %s", i, c.body, answer, c.outcome)
		}
		if c.limit != "" && answer.remaining(t, c.limit) != c.remaining {
			t.Errorf("%d: %s: %d left of %s; want %d", i, c.body, answer.remaining(t, c.limit), c.limit, c.remaining)
		}
		if len(s.events) != i+1 || s.events[i].Outcome.String() != c.outcome {
			t.Errorf("%d: the events are %v; want one for each call", i, s.events)
		}
	}
}

func TestDenialHasRetryAfter(t *testing.T) {
	s := newService(t)
	s.call("/v1/check", `{"rule":"search","key":"user:42","cost":3}`)
	s.clock.advance(time.Second)
	denied := s.call("/v1/check", `{"rule":"search","key":"user:42"}`)
	if denied["retry_after_ms"] != 19_000.0 || fmt.Sprint(denied["denied_by"]) != "[search.minute]" || denied["source"] != "store" {
		t.Errorf("%v; want a retry after 19 s, because of search.minute", denied)
	}
	for _, l := range denied.list("limits") {
		want := map[string]struct{ retry, reset, capacity float64 }{
			"search.minute": {19_000, 59_000, 3},
			"search.day":    {0, 25_919_000, 10},
		}[l["limit"].(string)]
		if l["retry_after_ms"] != want.retry || l["reset_after_ms"] != want.reset || l["capacity"] != want.capacity {
			t.Errorf("%v; want %+v", l, want)
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
		{`{"rule":"search","key":"user:42","cost":3}`, 200, "", `"search.minute";r=0;t=60, "search.day";r=7;t=25920`, `"search.minute";q=3, "search.day";q=10`},
		{`{"rule":"search","key":"user:42"}`, 429, "20", `"search.minute";r=0;t=20, "search.day";r=7;t=25920`, `"search.minute";q=3, "search.day";q=10`},
		{`{"attributes":{"address":"192.0.2.66"}}`, 403, "", "", ""},
		{`{"attributes":{"path":"/free"}}`, 200, "", "", ""},
	} {
		w := s.send(callerToken, "/v1/check?status=429", c.body)
		h := w.Header()
		if w.Code != c.status || h.Get("Retry-After") != c.retryAfter || h.Get("RateLimit") != c.rateLimit || h.Get("RateLimit-Policy") != c.policies {
			t.Errorf("%s: %d %v; want %+v", c.body, w.Code, h, c)
		}
	}
	if w := s.send(callerToken, "/v1/check", `{"rule":"search","key":"user:42"}`); w.Code != 200 || w.Header().Get("Retry-After") != "" {
		t.Errorf("without status=429 a denial is %d %v; want 200", w.Code, w.Header())
	}
}

func TestRepeatChargesNothing(t *testing.T) {
	s := newService(t)
	for i, c := range []struct {
		body, header string // header is the Idempotency-Key
		isRepeat     bool
		remaining    int64
	}{
		{`{"rule":"search","key":"user:42","request_id":"a"}`, "", false, 2},
		{`{"rule":"search","key":"user:42","request_id":"a"}`, "", true, 2},
		{`{"rule":"search","key":"user:42"}`, "a", true, 2},
		{`{"rule":"search","key":"user:42","request_id":"a"}`, `"a"`, true, 2},
		{`{"rule":"search","key":"user:42"}`, "b", false, 1},
	} {
		var headers []string
		if c.header != "" {
			headers = []string{"Idempotency-Key: " + c.header}
		}
		answer := s.call("/v1/check", c.body, headers...)
		if answer["is_repeat"] != c.isRepeat || answer["allowed"] != true || answer.remaining(t, "search.minute") != c.remaining {
			t.Errorf("%d: %v; want repeat %t, %d left", i, answer, c.isRepeat, c.remaining)
		}
	}
	s.clock.advance(admission.OnceFor + time.Second)
	if answer := s.call("/v1/check", `{"rule":"search","key":"user:42","request_id":"a"}`); answer["is_repeat"] != false {
		t.Errorf("after the time in which repeats are free: %v; want a new charge", answer)
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
		`{"attributes":{"headers":{"A":"1","A":"2"}}}`:                          "attributes.headers: A is sent twice",
		`{"attributes":{"headers":{"x-a":"1","X-A":"2"}}}`:                      "attributes.headers: X-A is sent twice",
		`{"attributes":{"headers":{"":"1"}}}`:                                   "a name is malformed",
		`{"attributes":{"headers":{"A":"1\r\n2"}}}`:                             "the value of A is malformed",
		`{"attributes":{"headers":{"Host":"a"}}}`:                               "write the host as attributes.host",
		`{"attributes":{"path":"search"}}`:                                      "attributes.path: write what the client sent",
		`{"attributes":{"path":"/a?b"}}`:                                        "",
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
		`{"rule":"search","limits":[{"rate":"1/s"}]}`:                           "limits: the rule \"search\" has limits already",
		`{"limits":[{"rate":"1/s"}]}`:                                           "key: it is missing",
		`{"key":"a","limits":[{}]}`:                                             "limits[0].rate: it is missing",
		`{"key":"a","limits":[{"rate":"1/s"},{"rate":"x"}]}`:                    "limits[1].rate: ",
		`{"key":"a","limits":[{"rate":"1/s"},{"rate":"2/s"}]}`:                  "limits[1].name: two limits are called \"second\"",
		`{"key":"a","limits":[{"rate":"1/s","name":"A"}]}`:                      "limits[0].name: write 1 to 64",
		`{"key":"a","limits":[{"rate":"1/s","burst":-1}]}`:                      "limits[0].burst: write 1 to",
		`{"key":"a","limits":[{"rate":"1/s, burst 3","burst":2}]}`:              "limits[0].burst: the rate has another burst",
		`{"key":"a","limits":[{"rate":"1/s","algorithm":"x"}]}`:                 "limits[0].algorithm: it is unknown; write one of token-bucket, fixed-window",
		`{"key":"a","limits":[{"rate":"1/s","ttl_ms":5}]}`:                      "limits[0].ttl_ms: only in_flight has it",
		`{"key":"a","limits":[{"rate":"10001/d","algorithm":"sliding-log"}]}`:   "limits[0]: it keeps an entry for each of 10001 units",
		`{"key":"a","limits":[{"in_flight":10001}]}`:                            "limits[0].in_flight: write 1 to 10000",
		`{"key":"a","limits":[{"in_flight":1}]}`:                                "whose slot must be returned",
		`{"key":"a","limits":[{"in_flight":1,"rate":"1/s"}]}`:                   "limits[0]: it has a rate and in_flight",
		`{"key":"` + strings.Repeat("a", 4097) + `","limits":[{"rate":"1/s"}]}`: "key: it is longer than 1024 characters",
		`{"rule":"search","request_id":"` + strings.Repeat("a", 129) + `"}`:     "request_id: it is longer than 128 characters",
		`{"limits":[` + strings.Repeat(`{},`, 1000) + `{}]}`:                    "limits: it has more than 1000 elements",
		"{\"key\":\"\xff\"}":                                                    "the body: it is not UTF-8",
		`{"key":"\ud800"}`:                                                      "half of a surrogate pair",
		`{"key":"\udc00\ud800"}`:                                                "half of a surrogate pair",
	} {
		w := s.send(callerToken, "/v1/check", body)
		if want == "" { // only that it does not panic
			continue
		}
		answer := objectOf(t, w.Body.String())
		codes := map[int]string{400: "invalid_argument", 404: "not_found", 409: "failed_precondition invalid_argument"}[w.Code]
		if !strings.Contains(answer["detail"].(string), want) || !strings.Contains(codes, answer["code"].(string)) {
			t.Errorf("%.200s: %d %v; want %q", body, w.Code, answer, want)
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
		"another path":       {func(r *http.Request) { r.URL.Path = "/v1/other" }, 404, "there is no such path"},
		"GET":                {func(r *http.Request) { r.Method = "GET" }, 405, "send a POST"},
		"a preflight":        {func(r *http.Request) { r.Method = "OPTIONS" }, 405, "send a POST"},
		"a form":             {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415, "Content-Type: application/json"},
		"no type":            {func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "Content-Type: application/json"},
		"two types":          {func(r *http.Request) { r.Header.Add("Content-Type", "application/json") }, 415, "Content-Type: application/json"},
		"another charset":    {func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=latin1") }, 415, "Content-Type"},
		"a compressed body":  {func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, 415, "Content-Encoding"},
		"a large body":       {func(r *http.Request) { *r = *withLargeBody(r) }, 413, "larger than 1048576 bytes"},
		"a query":            {func(r *http.Request) { r.URL.RawQuery = "status=200" }, 400, "it may only be status=429"},
		"two ids":            {func(r *http.Request) { r.Header["Idempotency-Key"] = []string{"a", "b"} }, 400, "write one value"},
		"an id with a quote": {func(r *http.Request) { r.Header["Idempotency-Key"] = []string{`"a"b"`} }, 400, "write one value"},
		"no token":           {func(r *http.Request) { r.Header.Del("Authorization") }, 401, "a token is missing"},
		"a wrong token":      {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+callerToken[1:]) }, 401, "the token is wrong"},
		"two tokens":         {func(r *http.Request) { r.Header.Add("Authorization", "Bearer "+callerToken) }, 401, "several"},
		"Basic":              {func(r *http.Request) { r.Header.Set("Authorization", "Basic "+callerToken) }, 401, "not of the form: Bearer TOKEN"},
		"an operator's call": {func(r *http.Request) { r.URL.Path = "/v1/peek" }, 403, "send the operator token"},
		"the charset UTF-8":  {func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=UTF-8") }, 200, ""},
	} {
		r := httptest.NewRequest("POST", "/v1/check", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+callerToken)
		c.change(r)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s; want %d with %q", name, w.Code, w.Body, c.status, c.want)
		}
		for _, header := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Headers"} {
			if w.Header().Get(header) != "" {
				t.Errorf("%s: the response has the header %s; want none", name, header)
			}
		}
		if c.status == 401 && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: WWW-Authenticate is missing", name)
		}
		if strings.Contains(w.Body.String(), callerToken[1:]) {
			t.Errorf("%s: the response contains the token: %s; want none", name, w.Body)
		}
	}
	if len(s.events) != 1 {
		t.Errorf("%d requests were decided; want 1", len(s.events))
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
	open := newService(t, func(o *Options) { o.CallerToken, o.OperatorToken, o.AllowAnonymous = nil, nil, true })
	for _, c := range []struct {
		path   string
		header string
		status int
		want   string
	}{
		{"/v1/check", "X: y", 200, ""},
		{"/v1/peek", "X: y", 403, "set operator-token there"},
		{"/v1/check", "Origin: https://example.com", 403, "web pages may not call this"},
		{"/v1/check", "Authorization: Bearer " + callerToken, 401, "this service has no tokens"},
	} {
		if w := open.send("", c.path, body, c.header); w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s with %s: %d %s; want %d with %q", c.path, c.header, w.Code, w.Body, c.status, c.want)
		}
	}
	closed := newService(t, func(o *Options) { o.CallerToken, o.OperatorToken = nil, nil })
	if w := closed.send("", "/v1/check", body); w.Code != 401 || !strings.Contains(w.Body.String(), "set caller-token there") {
		t.Errorf("a service without tokens: %d %s; want that it refuses the call", w.Code, w.Body)
	}
	if w := closed.send(callerToken, "/v1/check", body); w.Code != 401 {
		t.Errorf("a service without tokens, called with a token: %d %s; want that it refuses the call", w.Code, w.Body)
	}
	stated := newService(t, func(o *Options) { o.AllowStatedLimits = false })
	if w := stated.send(operatorToken, "/v1/check", `{"key":"a","limits":[{"rate":"1/s"}]}`); w.Code != 403 || !strings.Contains(w.Body.String(), "start the service with allow-stated-limits") {
		t.Errorf("stated limits without AllowStatedLimits: %d %s; want that they are refused", w.Code, w.Body)
	}
}

func TestPeekChargesNothing(t *testing.T) {
	s := newService(t)
	s.call("/v1/check", `{"rule":"search","key":"user:42"}`)
	for _, body := range []string{`{"rule":"search","key":"user:42","cost":2}`, `{"attributes":{"path":"/search","headers":{"X-User":"42"}}}`, `{"rule":"search","key":"user:42","cost":0}`} {
		if answer := s.call("/v1/peek", body); answer["allowed"] != true || answer.remaining(t, "search.minute") != 2 {
			t.Errorf("%s: %v; want 2 left", body, answer)
		}
	}
	if answer := s.call("/v1/peek", `{"rule":"search","key":"user:42","cost":3}`); answer["allowed"] != false {
		t.Errorf("3 of 2 units: %v; want a denial", answer)
	}
	s.call("/v1/peek", `{"rule":"jobs","key":"user:42"}`)
	if len(s.events) != 1 {
		t.Errorf("peeks have %d events; want none", len(s.events)-1)
	}
}

// While the store gives no answer, the on_failure of each limit decides.
func TestOnFailureDecidesWhileTheStoreFails(t *testing.T) {
	for onFailure, want := range map[string]struct {
		outcome, source string
		retry           float64
		status          int // with status=429
		limits          int
	}{
		"open":   {"failed_open", "open", 0, 200, 0},
		"closed": {"failed_closed", "closed", 1000, 503, 0},
		"local":  {"allowed", "fallback", 0, 200, 1},
	} {
		s := newServiceOf(t, "rules: [{name: search, per: {user: header X-User}, limits: [{name: minute, rate: 3/min, on_failure: "+onFailure+"}]}]", failingStore(penstock.ReasonTimeout))
		const body = `{"rule":"search","key":"user:42"}`
		answer := s.call("/v1/check", body)
		if answer["outcome"] != want.outcome || answer["source"] != want.source || answer["retry_after_ms"] != want.retry || len(answer.list("limits")) != want.limits {
			t.Errorf("%s: %v; want %+v", onFailure, answer, want)
		}
		if w := s.send(callerToken, "/v1/check?status=429", body); w.Code != want.status {
			t.Errorf("%s: status %d; want %d", onFailure, w.Code, want.status)
		}
		if answer := s.call("/v1/check", `{"rule":"search","key":"user:42","request_id":"a"}`); answer["is_repeat"] != false || answer["outcome"] != want.outcome {
			t.Errorf("%s, with an id: %v; want no repeat and outcome %s", onFailure, answer, want.outcome)
		}
	}
	local := newServiceOf(t, rules, failingStore(penstock.ReasonUnreachable))
	for i, want := range []bool{true, true, true, false} {
		if answer := local.call("/v1/check", `{"key":"a","limits":[{"rate":"3/min"}]}`); answer["allowed"] != want || answer["source"] != "fallback" {
			t.Errorf("call %d with a limit of its own: %v; want allowed %t by the fallback", i, answer, want)
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
		t.Errorf("%d %v; want 503, and that the charge may have been made", w.Code, answer)
	}
}
