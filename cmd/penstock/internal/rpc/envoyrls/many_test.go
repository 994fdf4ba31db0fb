package envoyrls_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// Messages of a list get the same responses as single messages, and cause the same events.
func TestListsGetTheResponsesOfSingleMessages(t *testing.T) {
	const yaml = `
domain: d
descriptors:
- {key: small, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: large, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
`
	keys := []string{"small", "large", "zero", "free", "shadow", "quota", "unknown"}
	for _, mode := range []envoyrls.Mode{envoyrls.Atomic, envoyrls.Exact} {
		seed := effort.Seed()
		synctest.Test(t, func(t *testing.T) {
			o := envoyrls.Options{Mode: mode}
			memory, listedBatches := batches.Of(memstore.New(memstore.Options{})), 0 // counts the batches in lists of several
			store := batches.Func(func(ctx context.Context, list []*batches.Batch) {
				if len(list) > 1 {
					listedBatches += len(list)
				}
				memory(ctx, list)
			})
			g, err := guard.Standard(store, guard.Options{Instances: 1, Limits: o.Settings})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			listed, single := newFixture(t, g, yaml, o), newFixture(t, memstore.New(memstore.Options{}), yaml, o)
			random := rand.New(rand.NewPCG(seed, 0))
			events := 0
			for round := range 100 {
				time.Sleep(time.Duration(random.IntN(20)) * time.Second)
				list := make([]envoyrls.Message, 1+random.IntN(30))
				for i := range list {
					r := &rlsv3.RateLimitRequest{Domain: "d", HitsAddend: random.Uint32N(3)}
					for range random.IntN(4) { // a request without descriptors is an error
						d := &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
							{Key: keys[random.IntN(len(keys))], Value: fmt.Sprint(i)}, // no two messages of a list share a counter
						}}
						if random.IntN(8) == 0 {
							d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(random.Uint64N(3)), random.IntN(3) == 0
						}
						r.Descriptors = append(r.Descriptors, d)
					}
					if list[i].Request, err = proto.Marshal(r); err != nil {
						t.Fatal(err)
					}
				}
				listed.DecideMessages(t.Context(), list)
				for i := range list {
					m := &list[i]
					want, wantErr := single.DecideMessage(t.Context(), m.Request)
					if status.Convert(m.Err).String() != status.Convert(wantErr).String() || m.Err == nil && string(m.Response) != string(want) {
						t.Fatalf("PENSTOCK_SEED=%d, mode %v, round %d, message %d: %x, %v; want %x, %v as for a single message", seed, mode, round, i, m.Response, m.Err, want, wantErr)
					}
				}
				events += len(single.events)
				slices.Sort(listed.events) // the order within a list is not defined
				slices.Sort(single.events)
				if !slices.Equal(listed.events, single.events) {
					t.Fatalf("PENSTOCK_SEED=%d, mode %v, round %d: the events are %q; want %q as for single messages", seed, mode, round, listed.events, single.events)
				}
				listed.events, single.events = nil, nil
			}
			// One list in 30 has one message. That all 100 have one has a chance of 30^-100.
			if listedBatches == 0 {
				t.Errorf("mode %v: the store got no list; want at least one", mode)
			}
			if events == 0 {
				t.Errorf("mode %v: there are no events; want some", mode)
			}
		})
	}
}

// A message that cannot be decoded does not affect the other messages.
func TestInvalidMessageDoesNotAffectItsList(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}\n", envoyrls.Options{})
	valid, err := proto.Marshal(&rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "a", Value: "b"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	list := []envoyrls.Message{{Request: []byte{0xff}}, {Request: valid}, {Request: valid[:len(valid)-1]}, {Request: valid}}
	f.DecideMessages(t.Context(), list)
	for i, m := range list {
		if isValid := i%2 == 1; isValid != (m.Err == nil) || isValid != (len(m.Response) > 0) {
			t.Errorf("the response to message %d is %x, %v; want an error for messages 0 and 2, and a response for the others", i, m.Response, m.Err)
		}
	}
}
