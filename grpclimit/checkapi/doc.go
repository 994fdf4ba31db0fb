// Package checkapi implements the service of package penstockv1: programs check limits over gRPC,
// or over HTTP as JSON. [Service] implements both.
//
// The page docs/check-api.md describes the API for client programs.
package checkapi
