// Package checkapi implements the service of package penstockv1: programs ask it for limits, over
// gRPC and as JSON over HTTP. Both are one implementation, [Service].
//
// The page docs/check-api.md describes the API for those who ask.
package checkapi
