package main

import (
	"fmt"
	"math"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A model answers as envoyproxy/ratelimit does, from its published rules. It explains differences
// between real services, and takes the place of a service in the tests of this program.
type model struct {
	domains  map[string]*domain
	counters map[string]uint64 // by their names in Redis
	named    map[string]string // what a name in Redis stands for, or "several"; see shared
}

func newModel(domains ...*domain) *model {
	m := &model{domains: make(map[string]*domain), counters: make(map[string]uint64), named: make(map[string]string)}
	for _, d := range domains {
		m.domains[d.name] = d
	}
	return m
}

// A match is the limit of one descriptor of a request.
type match struct {
	limit         *limit // nil if there is none
	shadow, quota bool
	patterns      []string // what stands for the value of an entry in the counter's name; "" is the value
	isOverride    bool
	isUnlimited   bool
	isReplaced    bool
}

// counts tells whether the match has a counter.
func (m match) counts() bool { return m.limit != nil && !m.isUnlimited && !m.isReplaced }

// find returns the limits of all descriptors.
func (m *model) find(request *rls.RateLimitRequest) []match {
	matches := make([]match, len(request.Descriptors))
	d := m.domains[request.Domain]
	if d == nil {
		return matches
	}
	replaced := make(map[string]bool)
	for i, descriptor := range request.Descriptors {
		matches[i] = d.find(descriptor)
		if l := matches[i].limit; l != nil {
			matches[i].isUnlimited = l.unlimited
			for _, name := range l.replaces {
				replaced[name] = true
			}
		}
	}
	for i := range matches {
		if matches[i].counts() && matches[i].limit.name != "" && replaced[matches[i].limit.name] {
			matches[i].isReplaced = true
		}
	}
	return matches
}

func (d *domain) find(descriptor *ratelimitv3.RateLimitDescriptor) match {
	if o := descriptor.Limit; o != nil {
		return match{limit: &limit{unit: unitNames[o.Unit], count: o.RequestsPerUnit}, isOverride: true}
	}
	patterns := make([]string, len(descriptor.Entries))
	nodes := d.nodes
	for i, entry := range descriptor.Entries {
		n := step(nodes, entry)
		if n == nil {
			return match{}
		}
		// A wildcard that equals the entry is an exact match.
		if n.shared && n.label() != entry.Key+"_"+entry.Value && strings.HasPrefix(entry.Key+"_"+entry.Value, strings.TrimSuffix(n.label(), "*")) {
			patterns[i] = strings.TrimPrefix(n.label(), entry.Key+"_")
		}
		if i == len(descriptor.Entries)-1 {
			return match{limit: n.limit, shadow: n.shadow, quota: n.quota, patterns: patterns}
		}
		nodes = n.nodes
	}
	return match{}
}

// step finds the node of one level: the label of key and value, or the first wildcard, or the key.
func step(nodes []*node, entry *ratelimitv3.RateLimitDescriptor_Entry) *node {
	whole := entry.Key + "_" + entry.Value
	for _, n := range nodes {
		if n.label() == whole {
			return n
		}
	}
	for _, n := range nodes {
		if n.isWildcard() && strings.HasPrefix(whole, strings.TrimSuffix(n.label(), "*")) {
			return n
		}
	}
	for _, n := range nodes {
		if n.label() == entry.Key {
			return n
		}
	}
	return nil
}

// counter is the name of a match's counter in Redis. Different descriptors may have one name.
func (m match) counter(request *rls.RateLimitRequest, i int, now int64) string {
	var b strings.Builder
	b.WriteString(request.Domain + "_")
	for j, entry := range request.Descriptors[i].Entries {
		b.WriteString(entry.Key + "_" + m.value(j, entry) + "_")
	}
	window := seconds[m.limit.unit]
	fmt.Fprint(&b, now/window*window)
	return b.String()
}

// identity is what counter should stand for: the unit, and entries that cannot be taken for others.
func (m match) identity(request *rls.RateLimitRequest, i int) string {
	parts := []string{request.Domain, m.limit.unit}
	for j, entry := range request.Descriptors[i].Entries {
		parts = append(parts, entry.Key, m.value(j, entry))
	}
	return fmt.Sprintf("%q", parts)
}

func (m match) value(j int, entry *ratelimitv3.RateLimitDescriptor_Entry) string {
	if j < len(m.patterns) && m.patterns[j] != "" {
		return m.patterns[j]
	}
	return entry.Value
}

// hits is what a descriptor costs, and whether the descriptor itself says so.
func hits(request *rls.RateLimitRequest, i int) (cost uint64, own bool) {
	if h := request.Descriptors[i].HitsAddend; h != nil {
		return h.Value, true
	}
	return uint64(max(1, request.HitsAddend)), false
}

// shared tells for each descriptor whether its counter has counted for other entries or another
// unit. envoyproxy/ratelimit names counters by plain strings, so a=b_c and a_b=c have one counter.
// The counter of a second and the one of a day have one name in the day's first second. It expires
// with the shorter window, plus a random time.
func (m *model) shared(request *rls.RateLimitRequest, now int64) []bool {
	shared := make([]bool, len(request.Descriptors))
	for i, match := range m.find(request) {
		if !match.counts() {
			continue
		}
		name, identity := match.counter(request, i, now), match.identity(request, i)
		if m.named[name] == "" {
			m.named[name] = identity
		}
		if m.named[name] != identity {
			m.named[name], shared[i] = "several", true
		}
	}
	for i, match := range m.find(request) { // the second of two in one request has changed the first
		shared[i] = shared[i] || match.counts() && m.named[match.counter(request, i, now)] == "several"
	}
	return shared
}

// decide answers as envoyproxy/ratelimit does in a second.
func (m *model) decide(request *rls.RateLimitRequest, now int64) *rls.RateLimitResponse {
	response := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	for i, match := range m.find(request) {
		var status *rls.RateLimitResponse_DescriptorStatus
		switch {
		case match.isUnlimited:
			status = &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK, LimitRemaining: math.MaxUint32}
		case !match.counts():
			status = &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK}
		default:
			status = m.charge(match, request, i, now)
		}
		if status.Code == rls.RateLimitResponse_OVER_LIMIT {
			if match.quota {
				status.Code, status.DurationUntilReset = rls.RateLimitResponse_OK, nil
			} else {
				response.OverallCode = rls.RateLimitResponse_OVER_LIMIT
			}
		}
		response.Statuses = append(response.Statuses, status)
	}
	return response
}

func (m *model) charge(match match, request *rls.RateLimitRequest, i int, now int64) *rls.RateLimitResponse_DescriptorStatus {
	name := match.counter(request, i, now)
	cost, _ := hits(request, i)
	m.counters[name] += cost
	status := match.status(now)
	if used := m.counters[name]; used <= uint64(match.limit.count) {
		status.LimitRemaining = match.limit.count - uint32(used)
	} else if !match.shadow {
		status.Code = rls.RateLimitResponse_OVER_LIMIT
	}
	return status
}

// status is the answer for a limit without room that does not deny.
func (m match) status(now int64) *rls.RateLimitResponse_DescriptorStatus {
	window := seconds[m.limit.unit]
	return &rls.RateLimitResponse_DescriptorStatus{
		Code: rls.RateLimitResponse_OK,
		CurrentLimit: &rls.RateLimitResponse_RateLimit{
			RequestsPerUnit: m.limit.count,
			Unit:            rls.RateLimitResponse_RateLimit_Unit(unitNumber(m.limit.unit)),
			Name:            m.limit.name,
		},
		DurationUntilReset: &durationpb.Duration{Seconds: window - now%window},
	}
}
