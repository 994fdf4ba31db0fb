// Package checkapi implements the service of package penstockv1. Programs call it to check limits,
// over gRPC or as JSON over HTTP. A [Service] serves both.
//
// The page docs/check-api.md describes the API for client programs.
package checkapi
