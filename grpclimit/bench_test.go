package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// BenchmarkUnary measures the time that the interceptor adds to a call, without the network.
func BenchmarkUnary(b *testing.B) {
	for name, rules := range map[string]string{
		"no rule":   `rules: [{name: r, match: {path: /other/*}, per: ip, limits: [{rate: 1/h}]}]`,
		"one limit": `rules: [{name: r, match: {path: /test.Shop/*}, per: ip, limits: [{rate: 1M/s}]}]`,
		"denied":    `rules: [{name: r, match: {path: /test.Shop/*}, per: ip, limits: [{rate: 1/h}]}]`,
	} {
		b.Run(name, func(b *testing.B) {
			gate := gateOf(b, memstore.New(memstore.Options{}), rules, grpclimit.Options{})
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
	gate := gateOf(t, memstore.New(memstore.Options{}), `rules: [{name: r, match: {path: /test.Shop/*}, per: ip, limits: [{rate: 1M/s}]}]`, grpclimit.Options{})
	ctx := grpc.NewContextWithServerTransportStream(peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}), transport{})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "shop.example"))
	info, request := &grpc.UnaryServerInfo{FullMethod: "/test.Shop/Buy"}, wrapperspb.String("a")
	handler := func(context.Context, any) (any, error) { return request, nil }
	const most = 14 // allocations of a call
	if got := testing.AllocsPerRun(1000, func() { gate.Unary(ctx, request, info, handler) }); got > most {
		t.Errorf("an allowed call takes %v allocations; want at most %d", got, most)
	}
}
