// Package connectlimit limits calls to servers of connect-go (connectrpc.com/connect) by a policy.
// Package grpclimit does the same for grpc-go. A [Gate] of connectlimit is an interceptor of
// handlers:
//
//	controller, err := admission.New(store, watcher, admission.Options{})
//	gate, err := connectlimit.New(controller, connectlimit.Options{})
//	path, handler := shopv1connect.NewOrdersHandler(orders, connect.WithInterceptors(gate))
//
// A call over a limit ends with CodeResourceExhausted, the details RetryInfo, QuotaFailure and
// ErrorInfo, and the metadata of grpclimit. With the Connect protocol that is status 429 with
// Retry-After. Interceptors of connect-go do not see the host of a call, so rules for a host do not
// apply.
package connectlimit
