package envoyrls

// The generated code, with which the tests compare the messages that are read and written without
// it.

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
)

// fromProto reads a message into *r and reuses the memory of *r. *r then refers to the strings of
// the message.
func (r *Request) fromProto(m *rlsv3.RateLimitRequest) {
	r.Domain, r.Hits = m.GetDomain(), m.GetHitsAddend()
	old := r.Descriptors[:cap(r.Descriptors)]
	r.Descriptors = r.Descriptors[:0]
	for i, d := range m.GetDescriptors() {
		var entries []envoyconfig.Entry
		if i < len(old) {
			entries = old[i].Entries[:0]
		}
		r.Descriptors = append(r.Descriptors, descriptorOf(d, entries))
	}
}

func descriptorOf(m *ratelimitv3.RateLimitDescriptor, entries []envoyconfig.Entry) Descriptor {
	for _, e := range m.GetEntries() {
		entries = append(entries, envoyconfig.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	d := Descriptor{Entries: entries, HasHits: m.GetHitsAddend() != nil, Hits: m.GetHitsAddend().GetValue(), IsNegative: m.GetIsNegativeHits()}
	if o := m.GetLimit(); o != nil {
		d.Override = &Override{o.GetRequestsPerUnit(), envoyconfig.Unit(o.GetUnit()), o.GetUnitMultiplier().GetValue()}
	}
	return d
}

// toProto converts a response to a message.
func (r *Response) toProto() (*rlsv3.RateLimitResponse, error) {
	m := &rlsv3.RateLimitResponse{OverallCode: codeOf(r.IsOver), Statuses: make([]*rlsv3.RateLimitResponse_DescriptorStatus, len(r.Statuses))}
	statuses := make([]rlsv3.RateLimitResponse_DescriptorStatus, len(r.Statuses))
	for i := range r.Statuses {
		s := &r.Statuses[i]
		to := &statuses[i]
		to.Code, to.LimitRemaining = codeOf(s.IsOver), s.Remaining
		if s.Limit != nil {
			to.CurrentLimit = s.Limit.toProto()
		}
		if s.Reset > 0 {
			to.DurationUntilReset = &durationpb.Duration{Seconds: int64(s.Reset)}
		}
		m.Statuses[i] = to
	}
	for _, h := range r.Headers {
		m.ResponseHeadersToAdd = append(m.ResponseHeadersToAdd, &corev3.HeaderValue{Key: h.Name, Value: h.Value})
	}
	if r.Metadata != nil {
		metadata, err := structpb.NewStruct(r.Metadata)
		if err != nil {
			return nil, fmt.Errorf("the metadata of a limit cannot be sent: %w", err)
		}
		m.DynamicMetadata = metadata
	}
	return m, nil
}

func (l *CurrentLimit) toProto() *rlsv3.RateLimitResponse_RateLimit {
	m := &rlsv3.RateLimitResponse_RateLimit{Name: l.Name, RequestsPerUnit: l.RequestsPerUnit, Unit: rlsv3.RateLimitResponse_RateLimit_Unit(l.Unit)}
	if l.UnitMultiplier > 0 {
		m.UnitMultiplier = wrapperspb.UInt32(l.UnitMultiplier)
	}
	return m
}
