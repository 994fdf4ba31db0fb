package checkapi

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/grpclimit/penstockv1"
)

// A text that unmarshal accepts is JSON, and marshal writes proto3 JSON of the message.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"rule":"search","key":"user:42","cost":3}`, `{"attributes":{"headers":{"a":"b","c":"\u00e9\ud83d\ude00"}}}`,
		`{"key":"a","limits":[{"rate":"1/s"},{"name":"x","burst":3}]}`, `{"cost":1e3}`, `{"cost":-0}`, `{"a":{"b":[1,2`, "\xff", `{"key":"\ud800"}`,
		`{"rule":"a","rule":"b"}`, `{"rule":"a",}`, ` {"rule" : "a" } `, `{"limits":[,]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var read penstockv1.CheckRequest
		if err := unmarshal(text, &read); err != nil {
			if asFailure(err).code == 0 || err.Error() == "" {
				t.Fatalf("the error %v has no text or no code; want both", err)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatalf("unmarshal accepts %q, which is not JSON", text)
		}
		var again penstockv1.CheckRequest
		if err := protojson.Unmarshal(marshalWithoutMaps(&read), &again); err != nil {
			t.Fatalf("%q: marshal does not write proto3 JSON: %v", text, err)
		}
	})
}

// marshalWithoutMaps marshals a message without the attributes, which contain maps. marshal does
// not support maps, because no response has one.
func marshalWithoutMaps(m *penstockv1.CheckRequest) []byte {
	c := proto.CloneOf(m)
	c.Attributes = nil
	return marshal(nil, c.ProtoReflect())
}

func TestAnswersAreJSON(t *testing.T) {
	m := &penstockv1.CheckResponse{
		Allowed: true, Outcome: "a\"\\\n\u00e9\u2028", RetryAfterMs: 1<<53 - 1, DeniedBy: []string{"x", ""},
		Limits: []*penstockv1.LimitStatus{{Limit: "l", Remaining: -1}, {}},
	}
	text := marshal(nil, m.ProtoReflect())
	var got, expected any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("marshal writes %s, which is not JSON: %v", text, err)
	}
	want := `{"allowed":true,"outcome":"a\"\\\n\u00e9\u2028","source":"","retry_after_ms":9007199254740991,"limits":[
		{"limit":"l","capacity":0,"remaining":-1,"retry_after_ms":0,"reset_after_ms":0},
		{"limit":"","capacity":0,"remaining":0,"retry_after_ms":0,"reset_after_ms":0}],"denied_by":["x",""],"is_repeat":false}`
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, expected) {
		t.Errorf("marshal writes %s; want %s", text, want)
	}
	var read penstockv1.CheckResponse
	if err := protojson.Unmarshal(text, &read); err != nil || !proto.Equal(m, &read) {
		t.Errorf("protojson reads %v, %v; want the message %v", &read, err, m)
	}
}

// Each kind of character that JSON escapes is found in a text that has no other such character.
func TestTextsAreEscaped(t *testing.T) {
	for _, want := range []string{"", "plain", `a\b`, `\`, `"`, "\x00", "\x1f", " ", "\u00e9", "\u2028"} {
		var got string
		if text := appendString(nil, want); json.Unmarshal(text, &got) != nil || got != want {
			t.Errorf("%q is written as %s, and read as %q; want the same text", want, text, got)
		}
	}
}

// The OpenAPI file describes the response to any body, and no response is an internal error.
func FuzzCalls(f *testing.F) {
	for i, body := range []string{
		`{"rule":"search","key":"user:1","cost":1}`, `{"attributes":{"path":"/tokens","headers":{"X-User":"1"}}}`,
		`{"checks":[{"rule":"search","key":"user:1"},{"key":"a","limits":[{"rate":"1/s","burst":3}]}],"all_or_nothing":true,"request_id":"a"}`,
		`{"check":{"key":"a","limits":[{"in_flight":3,"ttl_ms":1000},{"name":"x","rate":"5/7s","algorithm":"sliding-log"}]},"holder":"a"}`,
		`{"check":{"attributes":{"path":"/login","address":"::1"}},"ttl_ms":1000}`, `{"id":"AAAA","actual":3}`, `{"id":"","cancel":true}`,
	} {
		f.Add(uint8(i), []byte(body))
	}
	s := newService(f)
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		m := methods[int(n)%len(methods)]
		w := (&testService{TB: t, Service: s.Service}).send(operatorToken, m.path+"?status=429", string(body))
		switch w.Code {
		case 200, 400, 403, 404, 409, 429:
		default:
			t.Errorf("%s: %d %s; want no internal error", m.path, w.Code, w.Body)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = s.events[:0]
	})
}

// Each beginning of a call is refused, wherever the text ends.
func TestTruncatedJSONIsRefused(t *testing.T) {
	const body = `{"key":"a","cost":3,"attributes":{"method":"GET","headers":{"X-A":"1","X-B":"2"},"body_size":1},"limits":[{"rate":"1/s","burst":2},{"rate":"2/h"}]}`
	if err := unmarshal([]byte(body), new(penstockv1.CheckRequest)); err != nil {
		t.Fatalf("the whole text: %v; want no error", err)
	}
	for i := range body {
		err := unmarshal([]byte(body[:i]), new(penstockv1.CheckRequest))
		if err == nil || asFailure(err).code != codes.InvalidArgument || !strings.HasSuffix(err.Error(), ": the JSON ends too early") {
			t.Errorf("%s: %v; want that the JSON ends too early", body[:i], err)
		}
	}
}

func TestWrongTypesInJSONAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"limits":{}}`:                             "limits: it must be a list",
		`{"limits":3}`:                              "limits: it must be a list",
		`{"limits":[3]}`:                            "limits[0]: it must be an object",
		`{"limits":[{},[]]}`:                        "limits[1]: it must be an object",
		`{"limits":[]}`:                             "limits: it is empty; leave it out",
		`{"attributes":{"headers":[]}}`:             "attributes.headers: it must be an object",
		`{"attributes":{"headers":{"A":{}}}}`:       "attributes.headers: the value of A must be a string",
		`{"attributes":{"headers":{"A":true}}}`:     "attributes.headers: the value of A must be a string",
		`{"key":{}}`:                                "key: it must be a string",
		`{"cost":true}`:                             "cost: it must be a whole number, without quotes",
		`{"cost":{}}`:                               "cost: it must be a whole number, without quotes",
		`{"attributes":{"headers":{}},"nothing":1}`: "the body: there is no field nothing; ",
		`{"attributes":{"nothing":1}}`:              "attributes: there is no field nothing; ",
		`{"key":"\ud800"}`:                          "the body: an escape is half of a surrogate pair",
		`{"cost":1e400}`:                            "cost: it is out of range",
		`{"cost":1e-400}`:                           "cost: it must be a whole number, without quotes",
		`{"cost":-1.5e-99999999999999999999}`:       "cost: it must be a whole number, without quotes",
		`{"cost":1.00000000000000000001}`:           "cost: it must be a whole number, without quotes",
		`{"\u006bey":"a","key":"b"}`:                "key: it is sent twice",
		`{"\u006bez":"a"}`:                          "the body: there is no field kez; ",
		`{"\ud800":"a"}`:                            "the body: there is no field ",
		`{"cost":null}`:                             "cost: it must be a whole number, without quotes",
		`{"key":null}`:                              "key: it must be a string",
		`{"requestId":"a"}`:                         "the body: there is no field requestId; did you mean request_id?",
		`{"rule":"a","rule":"b"}`:                   "rule: it is sent twice",
		`x`:                                         "the body: it is not JSON from byte 0 on",
		`{"key":"a" 3}`:                             "the body: it is not JSON from byte 11 on",
		`{"key":"a"}x`:                              "the body: bytes follow the object; send one object",
	} {
		if err := unmarshal([]byte(text), new(penstockv1.CheckRequest)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	var batch penstockv1.CheckBatchRequest
	for text, want := range map[string]string{`{"all_or_nothing":1}`: "all_or_nothing: it must be true or false", `{"all_or_nothing":"true"}`: "all_or_nothing: it must be true or false", `{"all_or_nothing":false}`: ""} {
		if err := unmarshal([]byte(text), &batch); want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	var escaped penstockv1.CheckRequest
	if err := unmarshal([]byte(`{"\u006bey":"a","lim\u0069ts":[{"rate":"1/s"}]}`), &escaped); err != nil || escaped.Key != "a" || len(escaped.Limits) != 1 {
		t.Errorf("fields with escapes in their names are read as %v, %v; want the key a and a limit", &escaped, err)
	}
	if err := unmarshal([]byte(`{"id":"","actual":3}`), new(penstockv1.SettleRequest)); err == nil || err.Error() != "id: it is empty; write the id of the answer of reserve or acquire" {
		t.Errorf("an empty id: %v; want where an id comes from", err)
	}
	// No request has a list of strings, but unmarshal reads them.
	var answer penstockv1.CheckResponse
	if err := unmarshal([]byte(`{"denied_by":["a","b"]}`), &answer); err != nil || strings.Join(answer.DeniedBy, " ") != "a b" {
		t.Errorf("a list of strings is read as %v, %v; want a and b", answer.DeniedBy, err)
	}
	if err := unmarshal([]byte(`{"denied_by":["a",3]}`), new(penstockv1.CheckResponse)); err == nil || err.Error() != "denied_by[1]: it must be a string" {
		t.Errorf("a number in a list of strings: %v; want that it must be a string", err)
	}
}

func TestNumbersInJSON(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "3": 3, "3.0": 3, "3e0": 3, "-3.0e1": -30, "9007199254740991": 1<<53 - 1, "9007199254740991.0": 1<<53 - 1, "-9007199254740991.0": 1 - 1<<53,
	} {
		var r penstockv1.CheckRequest
		if err := unmarshal([]byte(`{"cost":`+text+`}`), &r); err != nil || r.GetCost() != want {
			t.Errorf("%s is the number %d, error %v; want %d", text, r.GetCost(), err, want)
		}
	}
	for text, want := range map[string]string{
		"1.5": "a whole number", "-0.5": "a whole number", "1e-3": "a whole number", `"3"`: "a whole number", "null": "a whole number",
		"9007199254740992.0": "out of range", "-9007199254740992.0": "out of range", "9007199254740993": "out of range", "99999999999999999999": "out of range", "-1e400": "out of range",
	} {
		if err := unmarshal([]byte(`{"cost":`+text+`}`), new(penstockv1.CheckRequest)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v; want one with %q", text, err, want)
		}
	}
	for _, text := range []string{"2147483648", "-2147483649"} {
		if err := unmarshal([]byte(`{"status":`+text+`}`), new(penstockv1.SettleRequest)); err == nil || err.Error() != "status: it is out of range" {
			t.Errorf("the status %s: the error is %v; want that it is out of range", text, err)
		}
	}
}
