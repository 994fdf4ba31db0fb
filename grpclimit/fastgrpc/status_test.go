package fastgrpc

import (
	"bytes"
	"testing"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The message of a status is sent if all fields of the response fit the list that the client
// accepts, and not otherwise.
func TestMessagesOfErrorsFitTheHeadersOfTheClient(t *testing.T) {
	s := status.New(codes.Unauthenticated, "why")
	size := uint32(0)
	for _, f := range []hpack.HeaderField{
		{Name: ":status", Value: "200"}, {Name: "content-type", Value: grpcContentType}, {Name: "grpc-status", Value: "16"}, {Name: "grpc-message", Value: "why"},
	} {
		size += f.Size()
	}
	for limit, want := range map[uint32]bool{size: true, size - 1: false} {
		if got := bytes.Contains(appendStatusFields(nil, s, limit), []byte("why")); got != want {
			t.Errorf("with room for %d bytes, the message of %d bytes of headers is sent: %t; want %t", limit, size, got, want)
		}
	}
}
