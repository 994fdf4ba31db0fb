package checkapi

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

func TestDescriptionOfTheAPINeedsNoToken(t *testing.T) {
	s := newService(t)
	for method, want := range map[string]int{"GET": 200, "POST": 405, "HEAD": 405} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, OpenAPIPath, nil))
		if w.Code != want {
			t.Errorf("%s: %d %.200s; want %d", method, w.Code, w.Body, want)
		}
		h := w.Header()
		if h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: the header is %v; want no-store and nosniff", method, h)
		}
		if want == 405 && (h.Get("Allow") != "GET" || !strings.Contains(w.Body.String(), "send a GET")) {
			t.Errorf("%s: %v %s; want Allow: GET, and a remedy", method, h, w.Body)
		}
		if want == 200 && (w.Body.String() != string(openAPI) || h.Get("Content-Length") != fmt.Sprint(len(openAPI)) || h.Get("Content-Type") != "application/json") {
			t.Errorf("%s: %v %.200s; want the description in JSON, with its length", method, h, w.Body)
		}
	}
}

func TestIdempotencyKeyBecomesTheRequestID(t *testing.T) {
	check := func(id string) *penstockv1.CheckRequest { return &penstockv1.CheckRequest{RequestId: id} }
	for name, c := range map[string]struct {
		values        []string
		request, want proto.Message // want nil: an error
		text          string        // a part of the error
		isConflict    bool
	}{
		"none":                          {values: nil, request: check(""), want: check("")},
		"a check":                       {values: []string{"a"}, request: check(""), want: check("a")},
		"quotes":                        {values: []string{`"a"`}, request: check(""), want: check("a")},
		"equal values":                  {values: []string{"a"}, request: check("a"), want: check("a")},
		"different values":              {values: []string{"a"}, request: check("b"), text: "another value", isConflict: true},
		"a batch":                       {values: []string{"a"}, request: &penstockv1.CheckBatchRequest{}, want: &penstockv1.CheckBatchRequest{RequestId: "a"}},
		"a reservation":                 {values: []string{"a"}, request: &penstockv1.ReserveRequest{Check: check("")}, want: &penstockv1.ReserveRequest{Check: check("a")}},
		"a reservation without a check": {values: []string{"a"}, request: &penstockv1.ReserveRequest{}, want: &penstockv1.ReserveRequest{}},
		"a hold":                        {values: []string{"a"}, request: &penstockv1.AcquireRequest{}, text: "write a holder into the body instead"},
		"a release":                     {values: []string{"a"}, request: &penstockv1.ReleaseRequest{}, want: &penstockv1.ReleaseRequest{}},
		"no characters":                 {values: []string{""}, request: check(""), text: "write one value"},
		"only quotes":                   {values: []string{`""`}, request: check(""), text: "write one value"},
		"one quote":                     {values: []string{`"`}, request: check(""), text: "write one value"},
		"a first quote":                 {values: []string{`"a`}, request: check(""), text: "write one value"},
		"a last quote":                  {values: []string{`a"`}, request: check(""), text: "write one value"},
		"a backslash":                   {values: []string{`a\b`}, request: check(""), text: "write one value"},
		"a space":                       {values: []string{"a b"}, request: check(""), text: "write one value"},
		"two values":                    {values: []string{"a", "a"}, request: check(""), text: "write one value"},
	} {
		err := setRequestID(c.values, c.request)
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), c.text) || asFailure(err).isConflict != c.isConflict {
				t.Errorf("%s: %v; want an error with %q, a conflict: %t", name, err, c.text, c.isConflict)
			}
			continue
		}
		if err != nil || !proto.Equal(c.request, c.want) {
			t.Errorf("%s: %v, error %v; want %v", name, c.request, err, c.want)
		}
	}
}

func TestTimesAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		penstock.Never: -1, -time.Second: 0, -1: 0, 0: 0, 1: 1, time.Millisecond - 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000,
	} {
		if got := inMS(d); got != want {
			t.Errorf("%v are %d ms; want %d", d, got, want)
		}
	}
	for ms, want := range map[int64]int64{0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, 2000: 2, 2500: 3} {
		if got := seconds(ms); got != want {
			t.Errorf("%d ms are %d s; want %d", ms, got, want)
		}
	}
	for ms, want := range map[int64]time.Duration{1: time.Millisecond, 1500: 1500 * time.Millisecond, 1 << 62: 9223372036854 * time.Millisecond, 9223372036854: 9223372036854 * time.Millisecond} {
		if got := milliseconds(ms); got != want {
			t.Errorf("%d ms are %v; want %v", ms, got, want)
		}
	}
}

// The headers of a decision have the form of structured fields, whose integers have 15 digits.
func TestHeadersOfDecisions(t *testing.T) {
	for name, c := range map[string]struct {
		decision                    *penstockv1.CheckResponse
		status                      int
		policies, states, retryWait string
	}{
		"allowed":     {decision: &penstockv1.CheckResponse{Allowed: true, RetryAfterMs: 5, Limits: []*penstockv1.LimitStatus{{Limit: "a", Capacity: 1e15, Remaining: 1e15, ResetAfterMs: 1001}}}, status: 200, policies: `"a";q=999999999999999`, states: `"a";r=999999999999999;t=2`},
		"denied":      {decision: &penstockv1.CheckResponse{Outcome: "denied", RetryAfterMs: 1, Limits: []*penstockv1.LimitStatus{{Limit: "a", Capacity: 12, Remaining: 11, ResetAfterMs: 5000, RetryAfterMs: 1}, {Limit: "b", Capacity: 10, ResetAfterMs: 61000}}}, status: 429, policies: `"a";q=12, "b";q=10`, states: `"a";r=11;t=1, "b";r=0;t=61`, retryWait: "1"},
		"never":       {decision: &penstockv1.CheckResponse{Outcome: "denied", RetryAfterMs: -1, Limits: []*penstockv1.LimitStatus{{Limit: "a", Capacity: 1, RetryAfterMs: -1, ResetAfterMs: 2000}}}, status: 429, policies: `"a";q=1`, states: `"a";r=0`},
		"11 seconds":  {decision: &penstockv1.CheckResponse{Outcome: "denied", RetryAfterMs: 11_000}, status: 429, retryWait: "11"},
		"deny list":   {decision: &penstockv1.CheckResponse{Outcome: "refused", RetryAfterMs: -1}, status: 403},
		"without one": {decision: &penstockv1.CheckResponse{Outcome: "failed_closed", RetryAfterMs: 1000}, status: 503, retryWait: "1"},
	} {
		w := httptest.NewRecorder()
		h := w.Header()
		if status := statusFor(h, c.decision); status != c.status || h.Get("RateLimit-Policy") != c.policies || h.Get("RateLimit") != c.states || h.Get("Retry-After") != c.retryWait {
			t.Errorf("%s: status %d, header %v; want %+v", name, status, h, c)
		}
	}
}

// The rules of a policy read every kind of attribute.
func TestRulesReadAllKindsOfAttributes(t *testing.T) {
	s := newServiceOf(t, `
deny: [{ip: 192.0.2.66}]
tiers: {gold: {header X-Tier: gold}, others: default}
rules:
- {name: cookies, match: {path: /cookie}, per: {session: cookie session}, limits: [{rate: 3/min}]}
- {name: queries, match: {path: /query}, per: {key: query key}, limits: [{rate: 3/min}]}
- {name: descriptors, match: {path: /descriptor}, per: {tenant: descriptor tenant}, limits: [{rate: 3/min}]}
- {name: hosts, match: {host: api.example.com}, per: ip, limits: [{rate: 3/min}]}
- {name: tiers, match: {path: /tier}, per: ip, limits: [{rate: {gold: 9/min, others: 3/min}}]}
- {name: bodies, match: {path: /body}, per: ip, limits: [{rate: 9/min, cost: {body: 1KB}}]}
`, memstore.New(memstore.Options{}))
	for attributes, want := range map[string]struct {
		limit, key string
		cost       float64
	}{
		`"path":"/cookie","headers":{"cookie":"a=b; session=s1"}`:             {"cookies.minute", "session:s1", 1},
		`"path":"/query","query":"a=b&key=k1"`:                                {"queries.minute", "key:k1", 1},
		`"path":"/descriptor","descriptors":{"tenant":"t1"}`:                  {"descriptors.minute", "tenant:t1", 1},
		`"host":"API.example.com:443","address":"::ffff:192.0.2.7"`:           {"hosts.minute", "ip:192.0.2.7", 1},
		`"path":"/body","address":"192.0.2.7","body_size":2049`:               {"bodies.minute", "ip:192.0.2.7", 3},
		`"path":"/body","address":"192.0.2.7","method":"QUERY","body_size":1`: {"bodies.minute", "ip:192.0.2.7", 1},
		`"path":"/body","address":"192.0.2.7","method":"brew","body_size":0`:  {"bodies.minute", "ip:192.0.2.7", 1},
	} {
		charges := s.call("/v1/explain", `{"attributes":{`+attributes+`}}`).list("charges")
		if len(charges) != 1 || charges[0]["limit"] != want.limit || charges[0]["key"] != want.key || charges[0]["cost"] != want.cost {
			t.Errorf("%s: the charges are %v; want %+v", attributes, charges, want)
		}
	}
	for header, want := range map[string]struct {
		tier     string
		capacity int64
	}{"gold": {"gold", 9}, "other": {"others", 3}} {
		check := `{"attributes":{"path":"/tier","address":"192.0.2.7","headers":{"X-Tier":"` + header + `"}}}`
		if answer := s.call("/v1/explain", check); answer["tier"] != want.tier {
			t.Errorf("a client with the header X-Tier: %s: %v; want the tier %s", header, answer, want.tier)
		}
		reservation, err := s.idCipher.decrypt(reservationKind, s.reserve(`{"check":`+check+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if grants := s.grantsOf(reservation); len(grants) != 1 || grants[0].Charge.Plan.Capacity() != want.capacity {
			t.Errorf("a reservation with the header X-Tier: %s has the grants %+v; want one with the capacity %d", header, grants, want.capacity)
		}
	}
	for attributes, want := range map[string]string{
		`"address":"fe80::1%eth0"`: "attributes.address: ", `"address":"x"`: "attributes.address: ", `"method":"post"`: "write POST in capitals", `"method":"Trace"`: "write TRACE in capitals",
		`"headers":{"x-a":"1","X-A":"2"}`: "X-A is sent twice", `"headers":{"hOST":"a"}`: "write the host as attributes.host", `"path":"a"`: "attributes.path: ", `"path":"*"`: "attributes.path: ",
	} {
		if w := s.send(operatorToken, "/v1/peek", `{"attributes":{`+attributes+`}}`); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s; want 400 with %q", attributes, w.Code, w.Body, want)
		}
	}
}

func TestOperatorsCallsSayWhyTheyFail(t *testing.T) {
	s := newServiceOf(t, `
allow: [{ip: 192.0.2.1}]
rules:
- {name: search, match: {path: /search}, per: {user: header X-User}, limits: [{name: minute, rate: 3/min}, {name: wide, rate: 9/h, shadow: true}]}
- {name: all, per: ip, limits: [{rate: 100/h}]}
`, memstore.New(memstore.Options{}))
	for _, path := range []string{"/v1/explain", "/v1/reset"} {
		for body, want := range map[string]struct {
			status int
			text   string
		}{
			`{}`: {400, "the request: it has nothing to check"},
			`{"rule":"search","key":"user:1","request_id":"a"}`:                       {400, "request_id: this call charges nothing"},
			`{"rule":"search","key":"nobody"}`:                                        {409, "write one such as user:42"},
			`{"attributes":{"path":"/search","headers":{"X-User":"1","x_user":"2"}}}`: {409, "X-User"},
		} {
			if w := s.send(operatorToken, path, body); w.Code != want.status || !strings.Contains(w.Body.String(), want.text) || strings.Contains(w.Body.String(), "penstock: ") {
				t.Errorf("%s %s: %d %s; want %d with %q", path, body, w.Code, w.Body, want.status, want.text)
			}
		}
	}
	explained := s.call("/v1/explain", `{"attributes":{"path":"/search","address":"192.0.2.7","headers":{"X-User":"1"}}}`)
	rules, charges := explained.list("rules"), explained.list("charges")
	if len(rules) != 2 || rules[0]["name"] != "search" || rules[0]["applies"] != true || rules[1]["name"] != "all" || rules[1]["applies"] != false || explained["list"] != "" {
		t.Errorf("the explanation is %v; want the rules search, which applies, and all, which does not, and no list", explained)
	}
	if len(charges) != 2 || charges[0]["is_shadow"] != false || charges[1]["limit"] != "search.wide" || charges[1]["is_shadow"] != true {
		t.Errorf("the charges are %v; want the second one in the shadow search.wide", charges)
	}
	if answer := s.call("/v1/explain", `{"attributes":{"path":"/search","address":"192.0.2.1"}}`); answer["list"] != "allow" || len(answer.list("charges")) != 0 {
		t.Errorf("a client on the allow list: %v; want list allow, and no charges", answer)
	}
	callerLimit := `{"key":"a","limits":[{"rate":"9/h"}],"cost":4}`
	if charges := s.call("/v1/explain", callerLimit).list("charges"); len(charges) != 1 || charges[0]["limit"] != "hour" || charges[0]["key"] != "a" || charges[0]["cost"] != 4.0 {
		t.Errorf("a caller limit has the charges %v; want 4 units of hour under the key a", charges)
	}
	s.call("/v1/check", callerLimit)
	s.call("/v1/reset", callerLimit)
	if n := s.left(callerLimit, "hour"); n != 9 {
		t.Errorf("after a reset of a caller limit, %d units are left; want 9", n)
	}
	named := s.call("/v1/explain", `{"rule":"search","key":"user:1"}`)
	if rules := named.list("rules"); len(rules) != 1 || rules[0]["name"] != "search" || rules[0]["applies"] != true {
		t.Errorf("the rules of a request that names one are %v; want search, which applies", rules)
	}
}

// A reset is not delayed by the max_wait of its limits.
func TestResetHasNoPatience(t *testing.T) {
	inner := memstore.New(memstore.Options{})
	var sent []penstock.Charge
	s := newServiceOf(t, `rules: [{name: queue, per: {user: header X-User}, limits: [{rate: 3/min, algorithm: leaky-bucket, burst: 3, max_wait: 2s}]}]`, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		sent = append([]penstock.Charge(nil), charges...)
		return inner.Decide(ctx, charges)
	}))
	s.call("/v1/reset", `{"attributes":{"path":"/","headers":{"X-User":"1"}}}`)
	if len(sent) != 1 || sent[0].Mode != penstock.Reset || sent[0].Patience != 0 {
		t.Errorf("a reset sends %+v; want one charge with the mode Reset and without patience", sent)
	}
}

// Limits with headers: false are counted, but responses do not show them.
func TestHiddenLimitsOfABatchAreNotShown(t *testing.T) {
	s := newServiceOf(t, `
rules: [{name: search, per: {user: header X-User}, limits: [{name: secret, rate: 1/h, headers: false}, {name: minute, rate: 3/min}]}]
`, memstore.New(memstore.Options{}))
	const body = `{"all_or_nothing":true,"checks":[{"rule":"search","key":"user:1"},{"rule":"search","key":"user:2"}]}`
	for _, isAllowed := range []bool{true, false} {
		answer := s.call("/v1/check-batch", body)
		for i, a := range answer.list("answers") {
			d := a.object("decision")
			if limits := d.list("limits"); len(limits) != 1 || limits[0]["limit"] != "search.minute" || d["allowed"] != isAllowed {
				t.Errorf("request %d: %v; want allowed %t, and only search.minute", i, d, isAllowed)
			}
			if wait := d["retry_after_ms"].(float64); (wait == 0) != isAllowed {
				t.Errorf("request %d: %v; want a retry_after_ms only if it is denied", i, d)
			}
		}
	}
}

// The cache of caller limits stays within its bound, and returns the same limit again.
func TestCacheOfCallerLimitsHasABound(t *testing.T) {
	s := newCallerLimits()
	for i := range 1500 {
		wanted := spec{Name: fmt.Sprint("l", i), Rate: "1/s"}
		first, err := s.limitOf(wanted, "limits[0]")
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.limitOf(wanted, "limits[0]"); err != nil || again != first {
			t.Fatalf("the limit %d is %p, and later %p, %v; want the same", i, first, again, err)
		}
		if n := s.compiled.Len(); n != min(i+1, 1024) {
			t.Fatalf("after %d limits, the cache has %d; want at most 1024", i+1, n)
		}
	}
}

// The store knows only when a hold expires, after a minute. The hold may be released at any time.
func TestTimesOfSlotsAreAtMostASecond(t *testing.T) {
	s := newService(t)
	for cost, retryAfter := range map[int]float64{1: 1000, 2: -1} {
		s.call("/v1/acquire", `{"check":{"key":"full","limits":[{"in_flight":1}]}}`)
		denied := s.call("/v1/acquire", fmt.Sprintf(`{"check":{"key":"full","cost":%d,"limits":[{"in_flight":1}]}}`, cost))
		l := denied.object("decision").list("limits")[0]
		if l["retry_after_ms"] != retryAfter || l["reset_after_ms"] != 1000.0 {
			t.Errorf("acquire of %d at a full limit: %v; want a retry after %v and a reset after 1000", cost, l, retryAfter)
		}
	}
}

// A hold lasts as long as the shortest of its slots.
func TestHoldsLastAsLongAsTheirShortestSlot(t *testing.T) {
	s := newService(t)
	for i, ttls := range [][2]int{{5000, 9000}, {9000, 5000}} {
		hold := s.call("/v1/acquire", fmt.Sprintf(`{"check":{"key":"k%d","limits":[{"name":"a","in_flight":1,"ttl_ms":%d},{"name":"b","in_flight":1,"ttl_ms":%d}]}}`, i, ttls[0], ttls[1]))
		if hold["expires_in_ms"] != 5000.0 {
			t.Errorf("a hold with slots of %v ms expires after %v ms; want 5000", ttls, hold["expires_in_ms"])
		}
		if renewed := s.call("/v1/renew", `{"id":"`+hold["id"].(string)+`"}`); renewed["expires_in_ms"] != 5000.0 || renewed["is_held"] != true {
			t.Errorf("a renewed hold with slots of %v ms: %v; want held for 5000 ms", ttls, renewed)
		}
	}
	if hold := s.call("/v1/acquire", `{"check":{"key":"default","limits":[{"in_flight":1}]}}`); hold["expires_in_ms"] != 60_000.0 {
		t.Errorf("a hold of a limit without ttl_ms expires after %v ms; want 60000", hold["expires_in_ms"])
	}
}

// Each limit needs a kind of call that can enforce it.
func TestCallsThatCannotEnforceALimit(t *testing.T) {
	s := newService(t)
	for _, c := range []struct{ path, check, want string }{ // want "": the call can
		{"/v1/check", `{"rule":"jobs","key":"user:1"}`, "call Acquire"},
		{"/v1/reserve", `{"rule":"jobs","key":"user:1"}`, ""},
		{"/v1/acquire", `{"rule":"jobs","key":"user:1"}`, ""},
		{"/v1/acquire", `{"attributes":{"path":"/login","address":"192.0.2.7"}}`, "send the status with Settle"},
		{"/v1/acquire", `{"attributes":{"path":"/tokens","headers":{"X-User":"1"}}}`, "send the actual cost with Settle"},
		{"/v1/acquire", `{"attributes":{"path":"/upload","address":"192.0.2.7"}}`, "write attributes.body_size"},
		{"/v1/reserve", `{"attributes":{"path":"/upload","address":"192.0.2.7"}}`, "write attributes.body_size"},
		{"/v1/reserve", `{"attributes":{"path":"/upload","address":"192.0.2.7","body_size":0}}`, ""},
		{"/v1/acquire", `{"key":"a","limits":[{"rate":"9/s"}]}`, "no in_flight limit applies"},
		{"/v1/acquire", `{"key":"a","limits":[{"rate":"9/s"},{"in_flight":1}]}`, ""},
		{"/v1/acquire", `{"key":"b","limits":[{"in_flight":1},{"rate":"9/s"}]}`, ""},
	} {
		body := c.check
		if c.path != "/v1/check" {
			body = `{"check":` + body + `}`
		}
		w := s.send(callerToken, c.path, body)
		if c.want == "" && w.Code != 200 || c.want != "" && (w.Code != 409 || !strings.Contains(w.Body.String(), c.want)) {
			t.Errorf("%s %s: %d %s; want 409 with %q, or 200 if that is empty", c.path, c.check, w.Code, w.Body, c.want)
		}
	}
	// A batch of 64 limits has no room for the charge of a Settle.
	for n, want := range map[int]error{63: nil, 64: errManyLimits} {
		limits := make([]*policy.Limit, n)
		for i := range limits {
			limits[i] = s.controller.Rules().Limit("search", "minute")
		}
		if err := (&validCheck{purpose: reserving}).checkLimits(limits); err != want {
			t.Errorf("a Reserve with %d limits: %v; want %v", n, err, want)
		}
		if err := (&validCheck{purpose: deciding}).checkLimits(limits); err != nil {
			t.Errorf("a Check with %d limits: %v; want no error", n, err)
		}
	}
}

// A denial by the deny list lasts for ever.
func TestRefusedClientsNeverRetry(t *testing.T) {
	s := newService(t)
	answer := s.call("/v1/check", `{"attributes":{"path":"/search","address":"192.0.2.66"}}`)
	if answer["retry_after_ms"] != -1.0 || answer["outcome"] != admission.Refused.String() || answer["source"] != "" {
		t.Errorf("a client on the deny list: %v; want retry_after_ms -1, and no source", answer)
	}
}
