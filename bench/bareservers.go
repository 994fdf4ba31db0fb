package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/grpclimit/fastgrpc"
)

const rlsMethod = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// bareServers send a constant response and make no decisions. In the services section they show how
// much time a protocol takes at least.
var bareServers = map[string]func(net.Listener) error{
	"grpc-go":  serveBareGRPC,
	"fastgrpc": serveBareFast,
	"http":     serveBareHTTP,
	"resp":     serveBareRESP,
}

// serveBare runs one of the bareServers at $PENSTOCK_LISTEN.
func serveBare(name string) error {
	serve := bareServers[name]
	if serve == nil {
		return fmt.Errorf("there is no bare server %q; write grpc-go, fastgrpc, http or resp", name)
	}
	l, err := net.Listen("tcp", os.Getenv("PENSTOCK_LISTEN"))
	if err != nil {
		return err
	}
	return serve(l)
}

var bareAnswer = &rls.RateLimitResponse{
	OverallCode: rls.RateLimitResponse_OK,
	Statuses: []*rls.RateLimitResponse_DescriptorStatus{{
		Code:         rls.RateLimitResponse_OK,
		CurrentLimit: &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 1_000_000, Unit: rls.RateLimitResponse_RateLimit_HOUR}, LimitRemaining: 999_999,
	}},
}

type bareRateLimits struct {
	rls.UnimplementedRateLimitServiceServer
}

func (bareRateLimits) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return bareAnswer, nil
}

func serveBareGRPC(l net.Listener) error {
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, bareRateLimits{})
	return s.Serve(l)
}

func serveBareFast(l net.Listener) error {
	answer, err := proto.Marshal(bareAnswer)
	if err != nil {
		return err
	}
	s, err := fastgrpc.New(fastgrpc.Options{Methods: map[string]fastgrpc.Handler{rlsMethod: func(_ context.Context, call *fastgrpc.Call) error {
		call.Response = append(call.Response, answer...)
		return nil
	}}})
	if err != nil {
		return err
	}
	return s.Serve(l)
}

func serveBareHTTP(l net.Listener) error {
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"allowed":true}` + "\n"))
	}))
}

// serveBareRESP replies to every command as if it were an allowed CL.THROTTLE.
func serveBareRESP(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			var out []byte
			in, incomplete := make([]byte, 64<<10), 0 // incomplete: bytes of a command at the start of in
			for {
				n, err := c.Read(in[incomplete:])
				if err != nil {
					return
				}
				out = out[:0]
				rest := in[:incomplete+n]
				for {
					length := lengthOfCommand(rest)
					if length == 0 {
						break
					}
					rest = rest[length:]
					out = append(out, "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n"...)
				}
				if _, err := c.Write(out); err != nil {
					return
				}
				incomplete = copy(in, rest)
			}
		}()
	}
}

// lengthOfCommand returns the number of bytes of the first command, an array of bulk strings, or 0
// if the command is not complete.
func lengthOfCommand(b []byte) int {
	// readNumber reads the number that follows the type byte at i. next is the position after its
	// line.
	readNumber := func(i int) (n, next int) {
		for i++; i < len(b) && b[i] != '\r'; i++ {
			n = 10*n + int(b[i]-'0')
		}
		return n, i + len("\r\n")
	}
	if len(b) == 0 {
		return 0
	}
	words, end := readNumber(0) // end: of the words that were read
	for range words {
		if end >= len(b) {
			return 0
		}
		length, start := readNumber(end)
		end = start + length + len("\r\n")
	}
	if end > len(b) {
		return 0
	}
	return end
}
