package service

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyxds"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// A controlPlane is a control plane for tests. It sends its configurations to each client, and
// keeps the client's replies.
type controlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	configs chan *configv3.RateLimitConfig     // to send
	replies chan *discoveryv3.DiscoveryRequest // that the client has sent
}

func (p *controlPlane) StreamAggregatedResources(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.ResponseNonce != "" {
			p.replies <- r
		}
		select {
		case config := <-p.configs:
			resource, err := anypb.New(config)
			if err != nil {
				return err
			}
			if err := stream.Send(&discoveryv3.DiscoveryResponse{VersionInfo: config.Name, Nonce: config.Name, TypeUrl: envoyxds.TypeURL, Resources: []*anypb.Any{resource}}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// xdsConfig makes a configuration of one limit. The control plane sends its name as the version.
func xdsConfig(name string, unit configv3.RateLimitUnit, count uint32) *configv3.RateLimitConfig {
	return &configv3.RateLimitConfig{Name: name, Domain: "web", Descriptors: []*configv3.RateLimitDescriptor{
		{Key: "remote_address", RateLimit: &configv3.RateLimitPolicy{Unit: unit, RequestsPerUnit: count}},
	}}
}

// startControlPlane starts a control plane, and returns its address.
func startControlPlane(t *testing.T, options ...grpc.ServerOption) (*controlPlane, string) {
	p := &controlPlane{configs: make(chan *configv3.RateLimitConfig), replies: make(chan *discoveryv3.DiscoveryRequest, 10)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, p)
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return p, l.Addr().String()
}

func TestEnvoysLimitsComeFromAControlPlane(t *testing.T) {
	p, address := startControlPlane(t)
	r := startWithoutLeakCheck(t, nil, map[string]string{"grpc": "127.0.0.1:0", "envoy-xds": address})
	client := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil))
	if _, err := client.ShouldRateLimit(callContext(t), envoyRequest("a")); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("before the first configuration, the error is %v; want FailedPrecondition", err)
	}
	p.configs <- xdsConfig("1", configv3.RateLimitUnit_DAY, 5)
	if reply := <-p.replies; reply.VersionInfo != "1" || reply.ErrorDetail != nil {
		t.Errorf("the client's reply is %v; want an ACK of version 1", reply)
	}
	answer, err := client.ShouldRateLimit(callContext(t), envoyRequest("a"))
	if err != nil || answer.Statuses[0].LimitRemaining != 4 {
		t.Errorf("the decision is %v (error %v); want 4 units left", answer, err)
	}
	p.configs <- xdsConfig("2", configv3.RateLimitUnit_UNKNOWN, 9)
	if reply := <-p.replies; reply.VersionInfo != "1" || !strings.Contains(reply.GetErrorDetail().GetMessage(), "invalid rate limit unit") {
		t.Errorf("the client's reply is %v; want a NACK with the mistake, and version 1 still in force", reply)
	}
	eventually.True(t, "the failed reload in the log", func() bool {
		return strings.Contains(r.log.String(), "reload of Envoy's rate limits failed") && strings.Contains(r.log.String(), "invalid rate limit unit")
	})
	if answer, err = client.ShouldRateLimit(callContext(t), envoyRequest("a")); err != nil || answer.Statuses[0].LimitRemaining != 3 {
		t.Errorf("the decision is %v (error %v); want 3 units left by the old limits", answer, err)
	}
}

// An instance that has no limits yet gets no requests. With limits, it counts each request under
// the name of its limit, from the first one on.
func TestInstanceIsReadyWhenTheControlPlaneHasSentLimits(t *testing.T) {
	p, address := startControlPlane(t)
	r := startWithoutLeakCheck(t, nil, map[string]string{"grpc": "127.0.0.1:0", "api": "127.0.0.1:0", "admin-listen": "127.0.0.1:0", "envoy-xds": address})
	conn := r.grpcClient(nil)
	healthOf := func(name string) healthpb.HealthCheckResponse_ServingStatus {
		answer, err := healthpb.NewHealthClient(conn).Check(callContext(t), &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status
	}
	names := []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"}
	for _, name := range names {
		if got := healthOf(name); got != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("without limits, the health of %q is %v; want NOT_SERVING", name, got)
		}
	}
	if got := healthOf("penstock.v1.LimitService"); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("without limits, the health of the check API is %v; want SERVING", got)
	}
	r.mustGet("http://"+r.API+"/healthcheck", 500)
	if text := r.mustGet("http://"+r.Admin+"/readyz?verbose", 503); !strings.Contains(text, "envoy down: "+address+" has sent no limits yet\n") || !strings.HasSuffix(text, "\ndown: envoy\n") {
		t.Errorf("without limits, /readyz is\n%s\nwant down, and the control plane", text)
	}

	p.configs <- xdsConfig("1", configv3.RateLimitUnit_DAY, 5)
	<-p.replies
	for _, name := range names {
		if got := healthOf(name); got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("with limits, the health of %q is %v; want SERVING", name, got)
		}
	}
	r.mustGet("http://"+r.API+"/healthcheck", 200)
	r.mustGet("http://"+r.Admin+"/readyz", 200)
	if _, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(callContext(t), envoyRequest("a")); err != nil {
		t.Fatal(err)
	}
	if got := r.metric(`rate_limiter_allowed_total{algorithm="fixed-window",limit="day",rule="web.remote_address"}`); got != "1" {
		t.Errorf("the metric of the limit is %q after one request; want 1", got)
	}
}

func TestInstanceWithAnOptionalControlPlaneIsReady(t *testing.T) {
	_, address := startControlPlane(t)
	r := startWithoutLeakCheck(t, nil, map[string]string{"grpc": "127.0.0.1:0", "api": "127.0.0.1:0", "admin-listen": "127.0.0.1:0", "envoy-xds": address, "envoy-xds-optional": "true"})
	r.mustGet("http://"+r.API+"/healthcheck", 200)
	r.mustGet("http://"+r.Admin+"/readyz", 200)
}

// Both sides present certificates. The control plane has certificate 1. The client's files have
// certificate 2.
func TestConnectionToAControlPlaneUsesTLS(t *testing.T) {
	a := newAuthority(t)
	certificate := a.issue(1)
	p, address := startControlPlane(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil },
		ClientAuth:     tls.RequireAnyClientCert,
		VerifyConnection: func(s tls.ConnectionState) error {
			if serial := s.PeerCertificates[0].SerialNumber; serial.Int64() != 2 {
				return fmt.Errorf("the client's certificate has the serial number %v", serial)
			}
			return nil
		},
	})))
	a.issue(2)
	startWithoutLeakCheck(t, nil, map[string]string{
		"grpc": "127.0.0.1:0", "envoy-xds": address,
		"envoy-xds-ca": a.path("ca.pem"), "envoy-xds-cert": a.path("cert.pem"), "envoy-xds-key": a.path("key.pem"),
	})
	p.configs <- xdsConfig("1", configv3.RateLimitUnit_DAY, 5)
	if reply := <-p.replies; reply.VersionInfo != "1" || reply.ErrorDetail != nil {
		t.Errorf("the client's reply is %v; want an ACK of version 1", reply)
	}

	stranger := newAuthority(t)
	r := startWithoutLeakCheck(t, nil, map[string]string{"grpc": "127.0.0.1:0", "envoy-xds": address, "envoy-xds-ca": stranger.path("ca.pem")})
	eventually.True(t, "the rejected certificate in the log", func() bool { return strings.Contains(r.log.String(), "certificate signed by unknown authority") })
}
