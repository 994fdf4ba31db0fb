package service

import (
	"google.golang.org/grpc"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/grpclimit/checkapi"
	"github.com/penstock/penstock/policy"
)

// newCheck makes the check service of a listener. authFailed may be nil.
func (s *service) newCheck(l settings.Listener, authFailed func(checkapi.AuthFailure)) (*checkapi.Service, error) {
	if s.checkController == nil {
		controller, err := admission.New(s.core.Store, s.core.Rules, admission.Options{
			HasFallback: true, Settings: s.core.LimitSettings, Observe: s.core.Observe, TokenRejected: s.core.TokenRejected,
		})
		if err != nil {
			return nil, err
		}
		s.checkController = controller
		s.metrics.AddWaiting(controller.Waiting)
		if s.Settings.AllowStatedLimits {
			for _, a := range checkapi.StatedAlgorithms() {
				s.metrics.AddRule(metrics.Rule{Name: policy.StatedGroup, Limit: policy.StatedGroup, Algorithm: a.Title()})
			}
		}
	}
	o := checkapi.Options{
		CallerToken:       s.Settings.CallerToken,
		OperatorToken:     s.Settings.OperatorToken,
		AllowAnonymous:    s.Settings.AdmitsOpenCallers(l),
		AllowStatedLimits: s.Settings.AllowStatedLimits,
		Secret:            s.sharedSecret,
		AuthFailed:        authFailed,
	}
	if s.Settings.Store == "" {
		o.Parallel = 1 // the memory store has no round trips to overlap
	}
	return checkapi.New(s.core.Store, s.checkController, o)
}

// apiAuthFailed returns a function that counts JSON calls with a missing or wrong token, and logs
// each reason at most once per refusalLogInterval.
func (s *service) apiAuthFailed() func(checkapi.AuthFailure) {
	count := s.metrics.AddAPI()
	lines := make([]logthrottle.Line, len(checkapi.AuthFailures()))
	for i := range lines {
		lines[i].Every = refusalLogInterval
	}
	return func(f checkapi.AuthFailure) {
		count(f)
		if skipped, isDue := lines[f].Due(); isDue {
			s.Log.Warn("a call of the check API was refused: its token is missing or wrong", "reason", f.String(), "unlogged", skipped)
		}
	}
}

// registerCheck serves the check API by gRPC.
func (s *service) registerCheck(r grpc.ServiceRegistrar) error {
	// authFailed is nil, because newAuthenticator counts the gRPC calls with a missing or wrong token.
	check, err := s.newCheck(settings.Listener{Name: "grpc", Address: s.Settings.GRPC}, nil)
	if err == nil {
		check.Register(r)
	}
	return err
}
