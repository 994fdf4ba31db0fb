// Command grpc is a gRPC server whose calls are limited by a policy, and a client that retries
// after the time that the server returns.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	test "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
)

const rules = `
rules:
  - name: service
    match: {path: /grpc.testing.TestService/*}
    per: {first_of: [{key: header X-API-Key}, ip]}
    limits: [{rate: 10/s, burst: 2}]
`

// A testService is a service whose calls do nothing.
type testService struct {
	test.UnimplementedTestServiceServer
}

func (testService) EmptyCall(context.Context, *test.Empty) (*test.Empty, error) {
	return new(test.Empty), nil
}

func main() {
	loaded, err := policyfile.Parse("rules.yaml", []byte(rules), nil, policyfile.Options{})
	if err != nil {
		log.Fatal(err)
	}

	store := memstore.New(memstore.Options{}) // or a redisstore: then all copies share the limits
	controller, err := admission.New(store, loaded.Rules, admission.Options{})
	if err != nil {
		log.Fatal(err)
	}
	gate, err := grpclimit.New(controller, grpclimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(gate.Unary), grpc.ChainStreamInterceptor(gate.Stream))

	test.RegisterTestServiceServer(server, testService{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()

	fmt.Println("a client that does not retry:")
	call(listener.Addr().String())
	fmt.Println("a client that retries RESOURCE_EXHAUSTED after the time that the server returns:")
	call(listener.Addr().String(), grpc.WithDefaultServiceConfig(retries))
}

// retries is the client's retry policy. The server's pushback replaces the backoff.
const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}]}`

// call makes four calls, one right after the other. The limit has a burst of two.
func call(address string, options ...grpc.DialOption) {
	conn, err := grpc.NewClient(address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range 4 {
		_, err := test.NewTestServiceClient(conn).EmptyCall(ctx, new(test.Empty))
		fmt.Println(" ", status.Code(err), status.Convert(err).Message())
	}
}
