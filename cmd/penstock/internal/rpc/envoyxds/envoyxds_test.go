package envoyxds_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyxds"
)

// patience is the longest time that a test waits for a request of the client.
const patience = time.Minute

// A controlPlane passes the requests of the client to the test, and the responses of the test to
// the client.
type controlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	requests  chan *discoveryv3.DiscoveryRequest
	responses chan *discoveryv3.DiscoveryResponse // nil ends the stream
	ended     chan struct{}
}

func (p *controlPlane) StreamAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case p.requests <- r:
			case <-p.ended:
				return
			}
		}
	}()
	for {
		select {
		case r := <-p.responses:
			if r == nil {
				return errors.New("the control plane restarts")
			}
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// nextRequest waits for a request of the client.
func (p *controlPlane) nextRequest(t *testing.T) *discoveryv3.DiscoveryRequest {
	t.Helper()
	select {
	case r := <-p.requests:
		return r
	case <-time.After(patience):
		t.Fatalf("the client sent no request within %v; want one", patience)
		return nil
	}
}

// send sends the client a response with a version and its configurations.
func (p *controlPlane) send(t *testing.T, version string, configs ...*configv3.RateLimitConfig) {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{VersionInfo: version, Nonce: "nonce-" + version, TypeUrl: envoyxds.TypeURL}
	for _, c := range configs {
		resource, err := anypb.New(c)
		if err != nil {
			t.Fatal(err)
		}
		r.Resources = append(r.Resources, resource)
	}
	p.responses <- r
}

// start serves a controlPlane until the test ends. It also returns the address.
func start(t *testing.T) (*controlPlane, string) {
	t.Helper()
	p := &controlPlane{requests: make(chan *discoveryv3.DiscoveryRequest), responses: make(chan *discoveryv3.DiscoveryResponse), ended: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		close(p.ended)
		s.Stop()
		<-served
	})
	return p, l.Addr().String()
}

// configOf returns a configuration with a limit of count requests a week, and under it an unlimited
// descriptor.
func configOf(domain, key string, count uint32) *configv3.RateLimitConfig {
	return &configv3.RateLimitConfig{Name: "config of " + domain, Domain: domain, Descriptors: []*configv3.RateLimitDescriptor{{
		Key: key, Value: "1.5", ShadowMode: true,
		RateLimit:   &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_WEEK, RequestsPerUnit: count, Name: "n", Replaces: []*configv3.RateLimitReplace{{Name: "m"}}},
		Descriptors: []*configv3.RateLimitDescriptor{{Key: "free", RateLimit: &configv3.RateLimitPolicy{Unlimited: true}}},
	}}}
}

func TestClientUsesAndAcknowledgesConfigurations(t *testing.T) {
	p, target := start(t)
	used, reports := make(chan *envoyconfig.Config, 10), make(chan error, 100)
	client, err := envoyxds.Follow(envoyxds.Options{
		Target: target, NodeID: "envoy-ratelimit", NodeMetadata: map[string]string{"zone": "a"}, MinPause: time.Millisecond,
		Use: func(c *envoyconfig.Config) error { used <- c; return nil }, Report: func(err error) { reports <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if r := p.nextRequest(t); r.GetNode().GetId() != "envoy-ratelimit" || r.GetNode().GetMetadata().GetFields()["zone"].GetStringValue() != "a" || r.TypeUrl != envoyxds.TypeURL || r.VersionInfo != "" {
		t.Errorf("the first request is %v; want one with the node and without a version", r)
	}
	p.send(t, "1", configOf("a", "k", 4), configOf("b", "k", 5))
	if r := p.nextRequest(t); r.VersionInfo != "1" || r.ResponseNonce != "nonce-1" || r.ErrorDetail != nil {
		t.Errorf("after version 1 the request is %v; want its ACK", r)
	}
	c := <-used
	want := "a.k_1.5: unit=WEEK requests_per_unit=4, shadow_mode: true, quota_mode: false\na.k_1.5.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n"
	if text := c.String(); !strings.HasPrefix(text, want) || len(c.Limits()) != 4 || c.Limits()[0].Replaces[0] != "m" {
		t.Errorf("the configuration is\n%swant\n%sand the same of domain b", text, want)
	}

	p.send(t, "2", configOf("a", "k", 4), configOf("a", "k", 5))
	if r := p.nextRequest(t); r.VersionInfo != "1" || r.ResponseNonce != "nonce-2" || !strings.Contains(r.GetErrorDetail().GetMessage(), "domain 'a' is in config of a already") {
		t.Errorf("after version 2, which has a domain twice, the request is %v; want its NACK, with the error", r)
	}
	p.responses <- &discoveryv3.DiscoveryResponse{VersionInfo: "3", Nonce: "nonce-3", TypeUrl: envoyxds.TypeURL, Resources: []*anypb.Any{{TypeUrl: "x", Value: []byte("y")}}}
	if r := p.nextRequest(t); r.VersionInfo != "1" || r.GetErrorDetail() == nil {
		t.Errorf("after version 3, which has a resource of another type, the request is %v; want its NACK", r)
	}

	p.responses <- nil
	if r := p.nextRequest(t); r.VersionInfo != "" || r.GetNode() == nil {
		t.Errorf("the first request on a new connection is %v; want one with the node and without a version", r)
	}
	p.send(t, "4")
	if r := p.nextRequest(t); r.VersionInfo != "4" || r.ErrorDetail != nil {
		t.Errorf("after version 4, which has no resources, the request is %v; want its ACK", r)
	}
	if c := <-used; len(c.Limits()) != 0 {
		t.Errorf("the configuration of version 4 is\n%swant no limits", c)
	}
	var failures int
	for range 5 { // two used and two refused configurations, and the end of the connection
		if err := <-reports; err != nil {
			failures++
		}
	}
	if failures != 3 || len(used) != 0 {
		t.Errorf("%d failures were reported, and %d more configurations were used; want 3 failures (two refused configurations and the end of the connection) and no more configurations", failures, len(used))
	}
}

func TestClientRetriesUntilItIsClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // no server listens on the address now
	reports := make(chan error, 100)
	client, err := envoyxds.Follow(envoyxds.Options{
		Target: l.Addr().String(), MinPause: time.Millisecond, MaxPause: 2 * time.Millisecond,
		Use: func(*envoyconfig.Config) error { return nil }, Report: func(err error) {
			select {
			case reports <- err:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-reports; err == nil {
			t.Error("Report got nil; want the error of the connection")
		}
	}
	client.Close()
}
