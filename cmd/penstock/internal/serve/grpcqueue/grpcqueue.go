// Package grpcqueue bounds the queues of gRPC connections. Import it for its effect.
//
// For each call that a client resets, grpc-go queues frames, which keep the memory of the call. By
// default, grpc-go stops to read from a connection when 10,000 are queued, which is 11 MB. It has
// no option for this number. It reads an environment variable when its packages are initialized.
//
// Go initializes packages in the order of their import paths, after those that they import. The
// path of this package comes before google.golang.org, and it only imports os, so it comes first.
package grpcqueue

import "os"

const (
	variable = "GRPC_GO_EXPERIMENTAL_CONTROL_BUFFER_THROTTLE_LIMIT"
	frames   = "100"
)

func init() {
	if _, isSet := os.LookupEnv(variable); !isSet {
		os.Setenv(variable, frames)
	}
}
