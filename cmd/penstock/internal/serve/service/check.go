package service

import (
	"google.golang.org/grpc"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/checkapi"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/reserved"
)

// openCheck makes the service of the check API. Its listeners share it.
func (s *service) openCheck() error {
	if s.Settings.AllowStatedLimits {
		var rules []metrics.Rule
		for _, a := range checkapi.StatedAlgorithms() {
			rules = append(rules, metrics.Rule{Name: reserved.Stated, Limit: reserved.Stated, Algorithm: a.Title()})
		}
		s.metrics.SetRulesOf("check", rules)
	}
	o := checkapi.Options{
		CallerToken:       s.Settings.CallerToken,
		OperatorToken:     s.Settings.OperatorToken,
		AllowStatedLimits: s.Settings.AllowStatedLimits,
		Secret:            s.sharedSecret,
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
