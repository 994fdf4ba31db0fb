package service

import (
	"fmt"
	"net/http"

	"google.golang.org/grpc"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/checkapi"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/internal/reserved"
)

// openCheck makes the service of the check API. Its listeners share it.
func (s *service) openCheck() error {
	if s.Settings.AllowCallerLimits {
		var rules []metrics.Rule
		for _, a := range checkapi.CallerLimitAlgorithms() {
			rules = append(rules, metrics.Rule{Name: reserved.CallerLimits, Limit: reserved.CallerLimits, Algorithm: a.Title()})
		}
		s.metrics.SetRulesOf("check", rules)
	}
	o := checkapi.Options{
		CallerToken:       s.Settings.CallerToken,
		OperatorToken:     s.Settings.OperatorToken,
		AllowCallerLimits: s.Settings.AllowCallerLimits,
		Secret:            s.sharedSecret,
		Region:            s.Settings.Region,
		Memory:            s.memory,
	}
	if s.Settings.API != "" {
		failed := s.authFailed(metrics.APICallers, "a call of the check API was refused: its token is missing or wrong")
		o.AuthFailed = func(reason string) { failed(reason, nil) }
	}
	if s.Settings.Store == "" {
		o.Parallel = 1 // the memory store has no round trips to overlap
	}
	var err error
	s.check, err = checkapi.New(s.core.Store, s.core.Controller, o)
	return err
}

func (s *service) checkAt(l settings.Listener) *checkapi.Service {
	return s.check.WithAnonymous(s.Settings.AdmitsCallersWithoutToken(l))
}

// registerCheck serves the check API by gRPC. newAuthenticator counts the calls with a missing or
// wrong token.
func (s *service) registerCheck(r grpc.ServiceRegistrar) error {
	s.checkAt(settings.Listener{Name: "grpc", Address: s.Settings.GRPC}).Register(r)
	return nil
}

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
