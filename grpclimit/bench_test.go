package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// BenchmarkUnary measures the time that the interceptor adds to a call, without the network.
func BenchmarkUnary(b *testing.B) {
	for name, spec := range map[string]policy.Spec{
		"no rule":   matching(b, ruleOf(b, "r", policy.ByAddress(), penstock.PerHour(1)), "/other/*"),
		"one limit": matching(b, ruleOf(b, "r", policy.ByAddress(), penstock.PerSecond(1_000_000)), "/test.Shop/*"),
		"denied":    matching(b, ruleOf(b, "r", policy.ByAddress(), penstock.PerHour(1)), "/test.Shop/*"),
	} {
		b.Run(name, func(b *testing.B) {
			gate := gateOf(b, memstore.New(memstore.Options{}), spec, grpclimit.Options{})
			ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}})
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "shop.example", "user-agent", "grpc-go", "content-type", "application/grpc"))
			ctx = grpc.NewContextWithServerTransportStream(ctx, transport{})
			info := &grpc.UnaryServerInfo{FullMethod: "/test.Shop/Buy"}
			request := wrapperspb.String("a")
			handler := func(context.Context, any) (any, error) { return request, nil }
			b.ReportAllocs()
			for b.Loop() {
				gate.Unary(ctx, request, info, handler)
			}
		})
	}
}

// A transport is a grpc.ServerTransportStream that discards the metadata of responses.
type transport struct{}

func (transport) Method() string               { return "/test.Shop/Buy" }
func (transport) SetHeader(metadata.MD) error  { return nil }
func (transport) SendHeader(metadata.MD) error { return nil }
func (transport) SetTrailer(metadata.MD) error { return nil }

func TestCallsAllocateLittle(t *testing.T) {
	effort.SkipUnderRace(t)
	spec := matching(t, ruleOf(t, "r", policy.ByAddress(), penstock.PerSecond(1_000_000)), "/test.Shop/*")
	spec.Rules[0].Limits[0].Adjustable = false // a cost that the handler may correct takes one more allocation
	gate := gateOf(t, memstore.New(memstore.Options{}), spec, grpclimit.Options{})
	ctx := grpc.NewContextWithServerTransportStream(peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}), transport{})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "shop.example"))
	info, request := &grpc.UnaryServerInfo{FullMethod: "/test.Shop/Buy"}, wrapperspb.String("a")
	handler := func(context.Context, any) (any, error) { return request, nil }
	const most = 14 // allocations of a call
	if got := testing.AllocsPerRun(1000, func() { gate.Unary(ctx, request, info, handler) }); got > most {
		t.Errorf("an allowed call takes %v allocations; want at most %d", got, most)
	}
}
