//go:build checks

// Package grpcclients calls servers with clients of other projects. @grpc/grpc-js, on Node, calls a
// server that has the interceptors of grpclimit. grpcurl calls penstock serve. A client that cannot
// be installed is skipped.
package grpcclients

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/scripts/internal/process"
)

const folder = "../../bin/grpc-clients" // the clients are installed here

// rules grant one short call for each key, and another one after 5 s. Even a busy machine sends the
// second call before that. A call costs one unit per 10 bytes, rounded up. A long call costs more
// than the limit ever allows.
const rules = `rules: [{name: echo, match: {path: /penstock.test.Echo/*}, per: {key: header X-Key}, limits: [{name: calls, rate: 1/5s, cost: {body: 10B}, headers: true}]}]`

// outcomes are those of all attempts of calls, by key.
type outcomes struct {
	mu    sync.Mutex
	byKey map[string][]string
}

func (o *outcomes) observe(e *admission.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := strings.TrimPrefix(e.Key, "key:")
	o.byKey[key] = append(o.byKey[key], e.Outcome.String())
}

// of returns the outcomes of the attempts with a key, separated by spaces.
func (o *outcomes) of(key string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.byKey[key], " ")
}

// serveEcho serves echo.proto, behind the interceptors of grpclimit.
func serveEcho(t *testing.T) (address string, seen *outcomes) {
	p, err := policyfile.Parse("rules.yaml", []byte(rules), nil, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen = &outcomes{byKey: make(map[string][]string)}
	controller, err := admission.New(memstore.New(memstore.Options{}), p.Rules, admission.Options{Observe: seen.observe})
	if err != nil {
		t.Fatal(err)
	}
	gate, err := grpclimit.New(controller, grpclimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(gate.Unary))
	t.Cleanup(server.Stop)
	echo := func(_ context.Context, request any) (any, error) { return request, nil }
	handle := func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		request := new(wrapperspb.StringValue) // its encoding is that of message Text in echo.proto
		if err := decode(request); err != nil {
			return nil, err
		}
		return intercept(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/penstock.test.Echo/Say"}, echo)
	}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "penstock.test.Echo",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: handle}},
	}, seen)
	go server.Serve(listener)
	return listener.Addr().String(), seen
}

func TestNode(t *testing.T) {
	if _, err := process.Try("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, "@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1"); err != nil {
		t.Skip("npm cannot install @grpc/grpc-js: ", err)
	}
	modules, err := filepath.Abs(folder + "/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	address, seen := serveEcho(t)
	out := process.Run(t, "node", "testdata/client.cjs", address, "testdata/echo.proto", modules)
	type reply struct {
		Key, Code, Text, Ratelimit string
		Details                    bool     // whether the status has details
		Pushback                   []string // values of grpc-retry-pushback-ms
	}
	var replies []reply
	for decoder := json.NewDecoder(strings.NewReader(out)); decoder.More(); {
		var r reply
		if err := decoder.Decode(&r); err != nil {
			t.Fatalf("node printed %s; want lines of JSON: %v", out, err)
		}
		replies = append(replies, r)
	}
	if len(replies) != 5 {
		t.Fatalf("node printed %s; want the replies of 5 calls", out)
	}
	first, denied, retried, never := replies[0], replies[1], replies[3], replies[4] // see client.cjs
	if first.Code != "OK" || first.Text != "a" || !strings.HasPrefix(first.Ratelimit, `"echo.calls";r=0`) {
		t.Errorf("the first call got %+v; want OK, the text, and the limit in the header", first)
	}
	if denied.Code != "RESOURCE_EXHAUSTED" || !denied.Details || len(denied.Pushback) != 1 {
		t.Errorf("a denied call got %+v; want RESOURCE_EXHAUSTED with details and a pushback", denied)
	}
	if attempts := seen.of("again"); retried.Code != "OK" || attempts != "allowed denied allowed" { // of replies[2] and replies[3]
		t.Errorf("a call that is retried after its pushback got %+v in the attempts %q; want OK in the second attempt", retried, attempts)
	}
	if attempts := seen.of("never"); never.Code != "RESOURCE_EXHAUSTED" || !slices.Equal(never.Pushback, []string{"-1"}) || attempts != "denied" {
		t.Errorf("a call that never fits got %+v in the attempts %q; want RESOURCE_EXHAUSTED, the pushback -1, and no second attempt", never, attempts)
	}
}

// grpcurl learns the services of penstock serve by reflection.
func TestGrpcurl(t *testing.T) {
	bin, err := filepath.Abs(folder)
	if err != nil {
		t.Fatal(err)
	}
	install := exec.Command("go", "install", "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4")
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOWORK=off", "GOFLAGS=")
	install.Dir = t.TempDir()
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("grpcurl cannot be installed: %v\n%s", err, out)
	}
	service := process.Serve(t, "--envoy-config=../../examples/envoy", "--grpc=127.0.0.1:0")
	grpcurl := func(args ...string) string {
		t.Helper()
		return process.Run(t, bin+"/grpcurl", append([]string{"-plaintext"}, args...)...)
	}
	if out := grpcurl(service.GRPC, "grpc.health.v1.Health/Check"); !strings.Contains(out, "SERVING") {
		t.Errorf("the health check printed %s; want SERVING", out)
	}
	listed := grpcurl(service.GRPC, "list")
	for _, name := range []string{"envoy.service.auth.v3.Authorization", "envoy.service.ratelimit.v3.RateLimitService", "penstock.v1.", "grpc.health.v1.Health"} {
		if !strings.Contains(listed, name) {
			t.Errorf("the list of services has no %s: %s", name, listed)
		}
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
		if out := grpcurl("-d", request, service.GRPC, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"); !strings.Contains(out, want) {
			t.Errorf("call %d printed %s; want %s", i+1, out, want)
		}
	}
}
