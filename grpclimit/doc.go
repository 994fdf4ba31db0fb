// Package grpclimit limits gRPC calls by a policy, on the server and on the client.
//
// On a server, a [Gate] has interceptors for grpc-go:
//
//	controller, err := admission.New(store, watcher, admission.Options{})
//	gate, err := grpclimit.New(controller, grpclimit.Options{})
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(gate.Unary),
//		grpc.ChainStreamInterceptor(gate.Stream))
//
// Rules match calls by their paths, such as /shop.v1.Orders/Create, or /shop.v1.Orders/* for a
// whole service. The method is POST, the host is the authority, and headers are the metadata.
//
// A call over a limit ends with RESOURCE_EXHAUSTED and the details RetryInfo, QuotaFailure and
// ErrorInfo. Its trailer has grpc-retry-pushback-ms, which clients with a retry policy follow. If
// the store gives no answer and a limit fails closed, the call ends with UNAVAILABLE.
//
// On a client, [UnaryClient] and [StreamClient] keep calls within the limits of a
// [penstock.Limiter].
//
// Package connectlimit does the same for connect-go. The page docs/grpc.md has more.
package grpclimit
