package service

import (
	"fmt"
	"net/http"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/httplimit/forwardauth"
)

// newAPI makes the handler of a listener for forward-auth, the check API and Envoy's JSON calls.
func (s *service) newAPI(l settings.Listener) (http.Handler, error) {
	check := s.checkAt(l)
	forward, err := forwardauth.New(s.core.Controller, forwardauth.Options{Misused: s.misused})
	if err != nil {
		return nil, fmt.Errorf("api answers forward-auth too, because the policy has trusted_proxies: %w", err)
	}
	var envoy http.Handler
	if s.envoy != nil {
		envoy = s.envoy.handler(l)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if envoy != nil && envoyrls.IsEndpoint(r.URL.Path) {
			envoy.ServeHTTP(w, r)
			return
		}
		if forwardauth.IsEndpoint(r.URL.Path) {
			forward.ServeHTTP(w, r)
			return
		}
		check.ServeHTTP(w, r)
	}), nil
}

// misused logs why forward-auth or ext_authz did not decide, at most once per refusalLogInterval.
func (s *service) misused(err error) {
	s.misusedLine.Log(s.Log.Warn, "forward-auth refused to decide; the proxy or the policy must change", "err", err)
}
