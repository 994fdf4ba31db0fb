// Command grpcclients calls servers with clients of other projects. @grpc/grpc-js, on Node, calls a
// server that has the interceptors of grpclimit. grpcurl calls penstock serve. The argument is a
// folder to install the clients in. The command skips a client that cannot be installed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

const (
	grpcurlModule = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"
	grpcJS        = "@grpc/grpc-js@1.14.7"
	protoLoader   = "@grpc/proto-loader@0.8.1"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("grpcclients: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: grpcclients FOLDER")
	}
	folder, err := filepath.Abs(os.Args[1])
	if err == nil {
		err = run(folder)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return errors.Join(checkNode(folder), checkGrpcurl(folder))
}

// rules grant one short call for each key, and another one after 5 s. Even a busy machine sends the
// second call before that. A call costs one unit per 10 bytes, rounded up. A long call costs more
// than the limit ever allows.
const rules = `rules: [{name: echo, match: {path: /penstock.test.Echo/*}, per: {key: header X-Key}, limits: [{name: calls, rate: 1/5s, cost: {body: 10B}, headers: true}]}]`

// A server serves echo.proto, behind the interceptors of grpclimit.
type server struct {
	address string
	grpc    *grpc.Server

	mu       sync.Mutex
	outcomes map[string][]string // of all attempts of calls, by key
}

func startServer() (*server, error) {
	config, err := policyfile.Parse("rules.yaml", []byte(rules), nil, policyfile.Options{})
	if err != nil {
		return nil, err
	}
	p, err := config.Compile()
	if err != nil {
		return nil, err
	}
	s := &server{outcomes: make(map[string][]string)}
	controller, err := admission.New(memstore.New(memstore.Options{}), policy.Fixed(p.Rules), admission.Options{Observe: s.observe})
	if err != nil {
		return nil, err
	}
	gate, err := grpclimit.New(controller, grpclimit.Options{})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.address, s.grpc = listener.Addr().String(), grpc.NewServer(grpc.ChainUnaryInterceptor(gate.Unary))
	echo := func(_ context.Context, request any) (any, error) { return request, nil }
	handle := func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		request := new(wrapperspb.StringValue) // its encoding is that of message Text in echo.proto
		if err := decode(request); err != nil {
			return nil, err
		}
		return intercept(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/penstock.test.Echo/Say"}, echo)
	}
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: "penstock.test.Echo",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: handle}},
	}, s)
	go s.grpc.Serve(listener)
	return s, nil
}

func (s *server) observe(e *admission.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := strings.TrimPrefix(e.Key, "key:")
	s.outcomes[key] = append(s.outcomes[key], e.Outcome.String())
}

// outcomesOf returns the outcomes of the attempts with a key, separated by spaces.
func (s *server) outcomesOf(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.outcomes[key], " ")
}

// checkNode calls a server of echo.proto with @grpc/grpc-js.
func checkNode(folder string) error {
	if _, err := exec.LookPath("npm"); err != nil {
		fmt.Println("@grpc/grpc-js: skipped, because npm is not installed")
		return nil
	}
	install := exec.Command("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, grpcJS, protoLoader)
	if out, err := install.CombinedOutput(); err != nil {
		fmt.Printf("@grpc/grpc-js: skipped, because npm cannot install it: %v\n%s", err, out)
		return nil
	}
	s, err := startServer()
	if err != nil {
		return err
	}
	defer s.grpc.Stop()
	out, err := exec.Command("node", "grpcclients/client.cjs", s.address, "grpcclients/echo.proto", filepath.Join(folder, "node_modules")).Output()
	if err != nil {
		return fmt.Errorf("node: %w\n%s", err, out)
	}
	type reply struct {
		Key, Code, Text, Ratelimit string
		Details                    bool     // whether the status has details
		Pushback                   []string // values of grpc-retry-pushback-ms
	}
	var replies []reply
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var r reply
		if err := decoder.Decode(&r); err != nil {
			return fmt.Errorf("node printed %s; want lines of JSON: %w", out, err)
		}
		replies = append(replies, r)
	}
	if len(replies) != 5 {
		return fmt.Errorf("@grpc/grpc-js: node printed %s; want the replies of 5 calls", out)
	}
	var failures []error
	expect := func(isTrue bool, format string, args ...any) {
		if !isTrue {
			failures = append(failures, fmt.Errorf("@grpc/grpc-js: "+format, args...))
		}
	}
	first, denied, retried, never := replies[0], replies[1], replies[3], replies[4] // see client.cjs
	expect(first.Code == "OK" && first.Text == "a" && strings.HasPrefix(first.Ratelimit, `"echo.calls";r=0`),
		"the first call got %+v; want OK, the text, and the limit in the header", first)
	expect(denied.Code == "RESOURCE_EXHAUSTED" && denied.Details && len(denied.Pushback) == 1,
		"a denied call got %+v; want RESOURCE_EXHAUSTED with details and a pushback", denied)
	attempts := s.outcomesOf("again") // of replies[2] and replies[3]
	expect(retried.Code == "OK" && attempts == "allowed denied allowed",
		"a call that is retried after its pushback got %+v in the attempts %q; want OK in the second attempt", retried, attempts)
	attempts = s.outcomesOf("never")
	expect(never.Code == "RESOURCE_EXHAUSTED" && slices.Equal(never.Pushback, []string{"-1"}) && attempts == "denied",
		"a call that never fits got %+v in the attempts %q; want RESOURCE_EXHAUSTED, the pushback -1, and no second attempt", never, attempts)
	if failures == nil {
		fmt.Println("@grpc/grpc-js: limits in the header, denials with details, one retry after the pushback, and none if a call never fits")
	}
	return errors.Join(failures...)
}

// checkGrpcurl calls penstock serve with grpcurl, which learns the services by reflection.
func checkGrpcurl(folder string) error {
	install := exec.Command("go", "install", grpcurlModule)
	install.Env = append(os.Environ(), "GOBIN="+folder, "GOWORK=off", "GOFLAGS=")
	install.Dir = folder
	if out, err := install.CombinedOutput(); err != nil {
		fmt.Printf("grpcurl: skipped, because it cannot be installed: %v\n%s", err, out)
		return nil
	}
	program := filepath.Join(folder, "penstock")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "cmd", "penstock")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build penstock: %w\n%s", err, out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	listener.Close()
	service := exec.Command(program, "serve", "--envoy-config", filepath.Join("..", "examples", "envoy"), "--grpc", address, "--admin-listen", "off")
	if err := service.Start(); err != nil {
		return err
	}
	defer func() {
		service.Process.Signal(os.Interrupt)
		service.Wait()
	}()
	grpcurl := func(args ...string) (string, error) {
		out, err := exec.Command(filepath.Join(folder, "grpcurl"), append([]string{"-plaintext"}, args...)...).CombinedOutput()
		return string(out), err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := grpcurl(address, "grpc.health.v1.Health/Check")
		if err == nil && strings.Contains(out, "SERVING") {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("grpcurl: penstock serve was not healthy within a minute: %s", out)
		}
	}
	var failures []error
	expect := func(isTrue bool, format string, args ...any) {
		if !isTrue {
			failures = append(failures, fmt.Errorf("grpcurl: "+format, args...))
		}
	}
	listed, err := grpcurl(address, "list")
	for _, name := range []string{"envoy.service.auth.v3.Authorization", "envoy.service.ratelimit.v3.RateLimitService", "penstock.v1.", "grpc.health.v1.Health"} {
		expect(err == nil && strings.Contains(listed, name), "the list of services has no %s: %s", name, listed)
	}
	// The limit has windows of one minute, and all calls must be in one window.
	nextWindow := time.Now().Truncate(time.Minute).Add(time.Minute)
	if wait := time.Until(nextWindow); wait < 20*time.Second {
		time.Sleep(wait)
	}
	const request = `{"domain": "rides", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]}`
	const limit = 5 // requests a minute, in examples/envoy
	for i := range limit + 1 {
		want := `"overallCode": "OK"`
		if i == limit {
			want = `"overallCode": "OVER_LIMIT"`
		}
		out, err := grpcurl("-d", request, address, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
		expect(err == nil && strings.Contains(out, want), "call %d printed %s (error %v); want %s", i+1, out, err, want)
	}
	if failures == nil {
		fmt.Println("grpcurl: health, reflection, five calls of the rate limit service OK, and the sixth OVER_LIMIT")
	}
	return errors.Join(failures...)
}
