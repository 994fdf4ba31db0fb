package fastgrpc

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
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

func TestDetailsOfErrorsFitTheHeadersOfTheClient(t *testing.T) {
	s, err := status.New(codes.Unauthenticated, "why").WithDetails(wrapperspb.String(strings.Repeat("x", 100)))
	if err != nil {
		t.Fatal(err)
	}
	var fields []hpack.HeaderField
	decoder := hpack.NewDecoder(hpackTable, func(f hpack.HeaderField) { fields = append(fields, f) })
	if _, err := decoder.Write(appendStatusFields(append([]byte{status200}, headersOfSuccess[1:]...), s, 1<<20)); err != nil {
		t.Fatal(err)
	}
	size := uint32(0)
	for _, f := range fields {
		size += f.Size()
	}
	for limit, want := range map[uint32]bool{size: true, size - 1: false} {
		if got := bytes.Contains(appendStatusFields(nil, s, limit), []byte("grpc-status-details-bin")); got != want {
			t.Errorf("with room for %d bytes, the details are sent: %t; want %t", limit, got, want)
		}
	}
}
