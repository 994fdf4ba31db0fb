package envoyrls

import (
	"reflect"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
)

// messages are requests that together have all fields.
var messages = []*rlsv3.RateLimitRequest{
	{},
	{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "remote_address", Value: "10.0.0.1"}}}}},
	{Domain: "ü", HitsAddend: 7, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{},
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{}, {Key: "a"}, {Value: "b"}}, HitsAddend: wrapperspb.UInt64(1 << 63), IsNegativeHits: true},
		{HitsAddend: wrapperspb.UInt64(0), Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: 1<<32 - 1, Unit: typev3.RateLimitUnit_MONTH, UnitMultiplier: wrapperspb.UInt32(3),
		}},
		{Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: -1}},
	}},
}

// FuzzRequest decodes any bytes. The request or the error equals that of the generated code.
func FuzzRequest(f *testing.F) {
	for _, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...))
		f.Add(append(b, 0x92, 0x01, 0)) // an unknown field
	}
	f.Add([]byte{0x0a, 1, 0xff})                                // not UTF-8
	f.Add([]byte{0x08, 1, 0x13, 0x08, 1, 0x14, 0x1a, 1, 0})     // other types, and a group
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x10, 1})              // a number that is too large
	f.Add([]byte(strings.Repeat("\x12\x00", MaxDescriptors+1))) // too many descriptors
	var used Request
	f.Fuzz(func(t *testing.T, message []byte) {
		var m rlsv3.RateLimitRequest
		wantErr := proto.Unmarshal(message, &m)
		var want Request
		want.fromProto(&m)
		err := used.unmarshal(message)
		if isTooMany := len(m.GetDescriptors()) > MaxDescriptors; isTooMany && wantErr == nil {
			wantErr = errNoDescriptors // any error: unmarshal refuses the request
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%x: the error is %v; want %v as from the generated code", message, err, wantErr)
		}
		if cap(used.Descriptors) > 2*MaxDescriptors {
			t.Errorf("%d descriptors are kept; want at most %d", cap(used.Descriptors), 2*MaxDescriptors)
		}
		if err == nil && !reflect.DeepEqual(normal(used), normal(want)) {
			t.Errorf("%x is\n%+v; want, as from the generated code,\n%+v", message, used, want)
		}
	})
}

// normal returns a request with nil instead of empty slices.
func normal(r Request) Request {
	all := r.Descriptors
	r.Descriptors = nil
	for _, d := range all {
		if len(d.Entries) == 0 {
			d.Entries = nil
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// FuzzResponse encodes any response. The size and the content equal those of the generated code.
func FuzzResponse(f *testing.F) {
	f.Add(true, uint32(5), uint32(60), "name", uint32(10), int32(2), uint32(3), "ratelimit-limit", "10")
	f.Add(false, uint32(0), uint32(0), "", uint32(0), int32(0), uint32(0), "", "")
	f.Add(false, uint32(1<<32-1), uint32(1<<32-1), "\xff", uint32(1<<32-1), int32(-1), uint32(1<<32-1), "a", "\xff")
	f.Fuzz(func(t *testing.T, isOver bool, remaining, reset uint32, name string, perUnit uint32, unit int32, multiplier uint32, header, value string) {
		limit := &CurrentLimit{Name: name, RequestsPerUnit: perUnit, Unit: envoyconfig.Unit(unit), UnitMultiplier: multiplier}
		r := Response{IsOver: isOver, Statuses: []Status{{}, {IsOver: isOver, Limit: limit, Remaining: remaining, Reset: reset}, {Remaining: remaining}}}
		if header != "" {
			r.Headers = append(r.Headers, Header{header, value}, Header{value, header})
		}
		if multiplier%2 == 1 {
			r.Metadata = map[string]any{"domain": "d", "hitsAddend": float64(remaining)}
		}
		m, err := r.toProto()
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		got, err := r.appendTo([]byte("before"))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("the error is %v; want %v as from the generated code", err, wantErr)
		}
		if err != nil {
			return
		}
		var again rlsv3.RateLimitResponse
		if err := proto.Unmarshal(got[len("before"):], &again); err != nil {
			t.Fatal(err)
		}
		if len(got) != len("before")+len(want) || !proto.Equal(&again, m) {
			t.Errorf("%d bytes: %v; want, as from the generated code, %d bytes: %v", len(got)-len("before"), &again, len(want), m)
		}
	})
}

func BenchmarkUnmarshal(b *testing.B) {
	message, err := proto.Marshal(messages[1])
	if err != nil {
		b.Fatal(err)
	}
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		var r Request
		for b.Loop() {
			if err := r.unmarshal(message); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		var r Request
		for b.Loop() {
			var m rlsv3.RateLimitRequest
			if err := proto.Unmarshal(message, &m); err != nil {
				b.Fatal(err)
			}
			r.fromProto(&m)
		}
	})
}
