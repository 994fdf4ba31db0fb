package service

import (
	"maps"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
)

// extAuthzRequest is the ext_authz call that Envoy sends for a client's GET of a path.
func extAuthzRequest(address, path string) *authv3.CheckRequest {
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Source: &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: address}}}},
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Method: "GET", Path: path, Host: "example.com", Headers: map[string]string{"x-forwarded-for": address},
		}},
	}}
}

// authorize sends the ext_authz call that Envoy sends for a client's GET of a path.
func (r *testService) authorize(address, path string) *authv3.CheckResponse {
	r.Helper()
	answer, err := authv3.NewAuthorizationClient(r.grpcClient(nil)).Check(callContext(r.T), extAuthzRequest(address, path))
	if err != nil {
		r.Fatal(err)
	}
	return answer
}

func TestExtAuthzEnforcesThePolicy(t *testing.T) {
	onStores(t, func(t *testing.T, flags map[string]string) {
		all := map[string]string{"grpc": "127.0.0.1:0"}
		maps.Copy(all, flags)
		r := startLimited(t, nil, oncePerHour, all)
		for _, c := range []struct {
			address, path string
			status        int32 // of the denied response; 0: the request is allowed
		}{
			{address: "192.0.2.1", path: "/api/a", status: 0},
			{address: "192.0.2.1", path: "/api//a", status: 429},
			{address: "192.0.2.2", path: "/api/a", status: 0},
			{address: "192.0.2.1", path: "/other", status: 0},
			{address: "192.0.2.1", path: "/api%2fa", status: 400},
		} {
			answer := r.authorize(c.address, c.path)
			status := int32(answer.GetDeniedResponse().GetStatus().GetCode())
			isAllowed := answer.GetOkResponse() != nil
			if status != c.status || isAllowed != (c.status == 0) {
				t.Errorf("a request of %s for %s got %v; want the status %d (0: allowed)", c.address, c.path, answer, c.status)
			}
		}
		if n := r.metric(`rate_limiter_rejected_total{algorithm="token-bucket",limit="hour",rule="api"}`); n != "1" {
			t.Errorf("%q denials are counted; want 1", n)
		}
	})
}

// The service starts with rules that ext_authz cannot enforce, because other callers may use them.
// Envoy gets an error, and the log has the reason.
func TestRulesThatExtAuthzCannotEnforceAreLogged(t *testing.T) {
	r := startLimited(t, nil, `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: slots, match: {path: /api/**}, per: ip, limits: [{in_flight: 3}]}]
`, map[string]string{"grpc": "127.0.0.1:0"})
	if answer := r.authorize("192.0.2.1", "/api/a"); answer.GetErrorResponse() == nil {
		t.Errorf("Envoy got %v; want an error", answer)
	}
	if lines := r.log.Lines("level=WARN", "ext_authz", "slots", "in_flight"); len(lines) != 1 {
		t.Errorf("the log has %d lines about the rule slots; want one: %s", len(lines), r.log)
	}
}
