package envoyrls

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that Codec extends
	"google.golang.org/grpc/mem"
)

// An encodedMessage is a request or a response as protobuf encodes it.
type encodedMessage struct{ bytes []byte }

var encodedRequests = sync.Pool{New: func() any { return new(encodedMessage) }}

// Codec returns grpc-go's codec of protobuf messages, except that it neither decodes nor encodes
// the messages of [Register].
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, to any) error {
	m, ok := to.(*encodedMessage)
	if !ok {
		return c.CodecV2.Unmarshal(data, to)
	}
	n := data.Len()
	if cap(m.bytes) < n {
		m.bytes = make([]byte, n)
	}
	m.bytes = m.bytes[:n]
	data.CopyTo(m.bytes)
	return nil
}

func (c codec) Marshal(from any) (mem.BufferSlice, error) {
	m, ok := from.(*encodedMessage)
	if !ok {
		return c.CodecV2.Marshal(from)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.bytes)}, nil
}

const ServiceName = "envoy.service.ratelimit.v3.RateLimitService"

// Register registers the service of an engine with a server that has the option
// grpc.ForceServerCodecV2(Codec()). Calls that arrive while the store decides others are decided
// together, in one context. If isAlone is true, each call is decided in its own context, so that it
// has a trace. Interceptors cannot read the messages.
func Register(to grpc.ServiceRegistrar, e *Engine, isAlone bool) {
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName, HandlerType: (*any)(nil), Metadata: "envoy/service/ratelimit/v3/rls.proto",
		Methods: []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: handleEncoded}},
	}, &coalescer{engine: e, isAlone: isAlone})
}

func handleEncoded(server any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	request := encodedRequests.Get().(*encodedMessage)
	if err := decode(request); err != nil {
		return nil, err
	}
	handler := func(ctx context.Context, _ any) (any, error) {
		response, err := server.(*coalescer).decide(ctx, request.bytes)
		encodedRequests.Put(request)
		if err != nil {
			return nil, err
		}
		return &encodedMessage{response}, nil
	}
	if interceptor == nil {
		return handler(ctx, request)
	}
	return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: server, FullMethod: methodName}, handler)
}
