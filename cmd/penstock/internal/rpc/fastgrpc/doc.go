// Package fastgrpc serves unary gRPC methods with far less CPU time than a general server. Its
// server reads all HTTP/2 frames that have arrived, handles all complete requests in parallel, and
// writes their responses together. So a store gets the charges of many requests at the same time,
// and can decide them in one script call.
//
// Methods without a Handler, and requests that are compressed, go to Options.Fallback. The fallback
// can be a grpc.Server, which then serves streams, reflection and compression on the same
// connections.
package fastgrpc
