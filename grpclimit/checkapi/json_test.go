package checkapi

import (
	"encoding/json"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/grpclimit/penstockv1"
)

// A text that unmarshal accepts is JSON, and protojson reads the same message from it.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"rule":"search","key":"user:42","cost":3}`, `{"attributes":{"headers":{"a":"b","c":"\u00e9\ud83d\ude00"}}}`,
		`{"key":"a","limits":[{"rate":"1/s"},{"name":"x","burst":3}]}`, `{"cost":1e3}`, `{"cost":-0}`, `{"a":{"b":[1,2`, "\xff", `{"key":"\ud800"}`,
		`{"rule":"a","rule":"b"}`, `{"rule":"a",}`, ` {"rule" : "a" } `, `{"limits":[,]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var read, expected penstockv1.CheckRequest
		if err := unmarshal(text, &read); err != nil {
			if asFailure(err).code == 0 || err.Error() == "" {
				t.Fatalf("the error %v has no text or no code; want both", err)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatalf("unmarshal accepts %q, which is not JSON", text)
		}
		if err := protojson.Unmarshal(text, &expected); err != nil || !proto.Equal(&read, &expected) {
			t.Fatalf("unmarshal reads %q as %v; protojson reads it as %v, error %v", text, &read, &expected, err)
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
