// Command bareserver sends a constant response to each call, and makes no decisions. The services
// section of the bench program starts it, to show how much time a protocol takes at least.
//
//	PENSTOCK_LISTEN=ADDRESS bareserver grpc-go|http|resp
package main

import (
	"context"
	"log"
	"net"
	"net/http"
	"os"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

// servers are the servers by their names on the command line.
var servers = map[string]func(net.Listener) error{
	"grpc-go": serveGRPC,
	"http":    serveHTTP,
	"resp":    serveRESP,
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 || servers[os.Args[1]] == nil {
		log.Fatal("name one server: grpc-go, http or resp")
	}
	l, err := net.Listen("tcp", os.Getenv("PENSTOCK_LISTEN"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(servers[os.Args[1]](l))
}

var response = &rls.RateLimitResponse{
	OverallCode: rls.RateLimitResponse_OK,
	Statuses: []*rls.RateLimitResponse_DescriptorStatus{{
		Code:         rls.RateLimitResponse_OK,
		CurrentLimit: &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 1_000_000, Unit: rls.RateLimitResponse_RateLimit_HOUR}, LimitRemaining: 999_999,
	}},
}

type rateLimits struct {
	rls.UnimplementedRateLimitServiceServer
}

func (rateLimits) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return response, nil
}

func serveGRPC(l net.Listener) error {
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, rateLimits{})
	return s.Serve(l)
}

func serveHTTP(l net.Listener) error {
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"allowed":true}` + "\n"))
	}))
}

// serveRESP replies to every command as if it were an allowed CL.THROTTLE.
func serveRESP(l net.Listener) error {
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
