package main

import (
	"math/rand/v2"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A requester makes random requests for a domain. Most match a limit.
type requester struct {
	random *rand.Rand
	domain *domain
	past   []*rls.RateLimitRequest // all different requests so far
}

// next returns a request. Two of three times it is an earlier one again, with the same or other
// hits.
func (q *requester) next() *rls.RateLimitRequest {
	r := q.random
	if len(q.past) > 0 && !chance(r, 3) {
		again := proto.CloneOf(pick(r, q.past))
		if chance(r, 4) {
			q.setHits(again)
		}
		return again
	}
	request := &rls.RateLimitRequest{Domain: q.domain.name}
	if chance(r, 60) {
		request.Domain += "-unknown"
	}
	for range 1 + r.IntN(4) {
		if len(request.Descriptors) > 0 && chance(r, 8) {
			request.Descriptors = append(request.Descriptors, proto.CloneOf(pick(r, request.Descriptors)))
			continue
		}
		request.Descriptors = append(request.Descriptors, q.descriptor())
	}
	q.setHits(request)
	q.past = append(q.past, request)
	return request
}

// descriptor returns a descriptor whose entries mostly follow a path in the tree of the domain.
// They may leave the tree, stop early, or continue below a leaf.
func (q *requester) descriptor() *ratelimitv3.RateLimitDescriptor {
	r := q.random
	d := &ratelimitv3.RateLimitDescriptor{}
	if chance(r, 60) {
		return d // without entries
	}
	for nodes := q.domain.nodes; ; {
		if len(nodes) == 0 || chance(r, 12) {
			isLeaf := len(nodes) == 0 && len(d.Entries) > 0
			if isLeaf && !chance(r, 10) {
				break
			}
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: pick(r, keys), Value: pick(r, values)})
			break
		}
		n := pick(r, nodes)
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: q.key(n), Value: q.value(n)})
		if n.limit != nil && chance(r, 2) {
			break
		}
		nodes = n.nodes
	}
	if chance(r, 10) {
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: pick(r, counts),
			Unit:            typev3.RateLimitUnit(1 + r.IntN(len(unitNames)-1)),
		}
	}
	return d
}

// key returns the key of an entry for a node. A random text replaces an asterisk at its end.
func (q *requester) key(n *node) string {
	if last := len(n.key) - 1; n.value == "" && n.key[last] == '*' {
		return n.key[:last] + pick(q.random, []string{"", "1", "_x", "*"})
	}
	return n.key
}

// value returns the value of an entry for a node. Sometimes the value does not match the node.
func (q *requester) value(n *node) string {
	r := q.random
	if chance(r, 15) || n.value == "" {
		return pick(r, values)
	}
	if last := len(n.value) - 1; n.value[last] == '*' {
		return n.value[:last] + pick(r, []string{"", "1", "2", "*", "v1/users", "x"})
	}
	return n.value
}

func (q *requester) setHits(request *rls.RateLimitRequest) {
	r := q.random
	request.HitsAddend = pick(r, []uint32{0, 0, 0, 0, 1, 1, 2, 3, 5, 100, 1_000_000_000})
	if chance(r, 200) {
		request.HitsAddend = 1<<32 - 1
	}
	for _, d := range request.Descriptors {
		d.HitsAddend = nil
		if chance(r, 4) {
			d.HitsAddend = wrapperspb.UInt64(pick(r, []uint64{0, 0, 0, 1, 1, 2, 3, 10, 1000, 1_000_000_000}))
		}
		if chance(r, 300) {
			d.HitsAddend = wrapperspb.UInt64(pick(r, []uint64{1 << 31, 1 << 32, 1 << 40}))
		}
	}
}
