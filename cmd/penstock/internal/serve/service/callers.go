package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/slowclient"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/resplimit"
)

// maxMessage is the largest body that a caller may send, in bytes.
const maxMessage = 1 << 20

// refusalLogInterval is the time between two log lines about refused calls with the same reason.
const refusalLogInterval = 10 * time.Second

// throttleName is the name of the limit that CL.THROTTLE charges, and of its rule in the metrics.
const throttleName = "cl.throttle"

// checkRules returns an error if a listener for callers cannot enforce one of the rules, or if a
// rule has the name of a listener's own counters.
func (s *service) checkRules(rules *policy.Rules) error {
	canEnvoyCall := s.Settings.GRPC != "" || s.Settings.API != ""
	for _, rule := range rules.Spec().Rules {
		if rule.Name == envoyrls.Group() && canEnvoyCall {
			return fmt.Errorf("%w: rule %s: Envoy's limits count under this name; rename the rule", penstock.ErrInvalid, rule.Name)
		}
		if rule.Name == throttleName && s.Settings.RESP != "" {
			return fmt.Errorf("%w: rule %s: CL.THROTTLE counts under this name; rename the rule", penstock.ErrInvalid, rule.Name)
		}
	}
	if s.Settings.HasEnvoyLimits() { // else a call of Envoy to which such a rule applies fails, and other callers can use the rule
		if err := envoyrls.CheckRules(rules); err != nil {
			return err
		}
	}
	if s.Settings.API == "" {
		return nil
	}
	return forwardauth.Check(rules)
}

// newCallers makes the server of a listener where callers get decisions.
func (s *service) newCallers(runCtx context.Context, l settings.Listener, maxConnections int64) (*server, error) {
	files := tlsFiles{cert: s.Settings.CallerTLSCert, key: s.Settings.CallerTLSKey, clientCA: s.Settings.CallerClientCA, prefix: "caller-tls", caName: "caller-client-ca"}
	if l.Name == "api" && s.Settings.APIWithoutTLS {
		files = tlsFiles{}
	}
	config, err := s.tlsConfig(l.Name, files)
	if err != nil {
		return nil, err
	}
	switch l.Name {
	case "resp":
		return s.newRESP(l, config, maxConnections)
	case "grpc":
		return s.newGRPC(l, config)
	}
	handler, err := s.newAPI(l)
	if err != nil {
		return nil, err
	}
	handler = s.telemetry.Handler(handler)
	handler = http.MaxBytesHandler(handler, maxMessage)
	handler = s.countInFlight(handler)
	handler = slowclient.Handler(handler, slowclient.Options{Stall: s.Settings.StallTimeout, Rate: s.Settings.MinRate})
	handler = s.limitMemory(memoryOfCall, 1, handler)
	return newServer(l.Name, s.newHTTP(runCtx, handler, config)), nil
}

func (s *service) newRESP(l settings.Listener, config *tls.Config, maxConnections int64) (*server, error) {
	var controller *admission.Controller // nil: there is no policy
	if s.Settings.Config != "" || s.Settings.Demo {
		controller = s.core.Controller
	}
	o := resplimit.Options{
		LimitName:      throttleName,
		AllowAnonymous: s.Settings.AdmitsCallersWithoutToken(l),
		MaxConnections: int(maxConnections),
		IdleTimeout:    s.Settings.IdleTimeout,
		ReadTimeout:    s.Settings.HeaderTimeout,
		Observe:        s.core.Observe,
		AuthFailed:     s.authFailed(metrics.RESPCallers, "a Redis client was refused: its caller_token is missing or wrong"),
	}
	if len(s.Settings.CallerToken) > 0 {
		o.Credentials = []resplimit.Credential{{Password: string(s.Settings.CallerToken)}}
	}
	if s.Settings.Store == "" {
		o.Parallel = 1 // the memory store has no round trips to overlap
	}
	resp, err := resplimit.New(s.core.Store, controller, o)
	if err != nil {
		return nil, err
	}
	// Callers of CL.THROTTLE send their own rates. The Recorder counts all of them as one limit, which
	// it finds by the plan's name and algorithm. So the rate of this plan has no effect.
	s.core.Activity.Keep(penstock.PerSecond(1).WithName(throttleName).MustCompile())
	s.metrics.SetRulesOf("resp", []metrics.Rule{{Name: throttleName, Limit: throttleName, Algorithm: algorithm.TokenBucket.Title()}})
	s.metrics.AddRESP(resp.Connections)
	return &server{
		setting: l.Name,
		serve: func(l net.Listener) error {
			if config != nil {
				l = tls.NewListener(l, config)
			}
			if err := resp.Serve(l); !errors.Is(err, resplimit.ErrServerClosed) {
				return err
			}
			return nil
		},
		shutdown: func(ctx context.Context) { resp.Shutdown(ctx) },
		stop:     func() { resp.Close() },
	}, nil
}

// authFailed returns a function that counts callers with a missing or wrong token or password. It
// logs a line for each reason at most once per refusalLogInterval.
func (s *service) authFailed(callers metrics.Callers, line string) func(reason string, peer net.Addr) {
	count := s.metrics.AddAuthFailures(callers)
	lines := make(map[string]*logthrottle.Line)
	for _, reason := range callers.Reasons {
		lines[reason] = &logthrottle.Line{Every: refusalLogInterval}
	}
	return func(reason string, peer net.Addr) {
		count(reason)
		if peer != nil {
			s.Log.Debug(line, "reason", reason, "client", peer.String())
		}
		lines[reason].Log(s.Log.Warn, line, "reason", reason)
	}
}
