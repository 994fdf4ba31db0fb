package service

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/redisstore"
)

// A Gate is what requests must pass on their way to the upstream. If it has a method Close, that is called after the last request.
type Gate interface {
	Middleware(next http.Handler) http.Handler
}

// A Builder makes a gate of what the service has. Its context ends with the last request.
type Builder func(ctx context.Context, d Deps) (Gate, Policy, error)

// Deps are what the service has for a gate.
type Deps struct {
	Store    penstock.Store
	Observe  func(Event)         // is told of each check
	Waiting  func(n int)         // is told 1 when a request begins to wait, -1 when it ends to
	Reloaded func(Policy, error) // is told when the policy file was read again
	Log      *slog.Logger
}

// An Event is a check of a request by a rule.
type Event struct {
	Rule, Limit, Algorithm string
	Outcome                string // allowed, denied, error_open, error_closed, exempt or refused
	Latency                time.Duration
	Err                    error // the store's, if it had no answer
	Shadow                 bool  // the rule is on trial: the request goes on, whatever the outcome
}

// A Policy is what the service needs to know of the rules in force.
type Policy struct {
	File      string
	Rules     []Rule // a row for each pair of a rule and an algorithm of its limits
	OnFailure string // what becomes of requests when the store does not answer
}

// A Rule is what checks are counted by.
type Rule = metrics.Rule

// count is how many rules there are.
func (p Policy) count() int {
	names := make(map[string]bool)
	for _, rule := range p.Rules {
		names[rule.Name] = true
	}
	return len(names)
}

// noRules is a gate that lets everything pass.
type noRules struct{}

func (noRules) Middleware(next http.Handler) http.Handler { return next }

func (s *service) observe(e Event) {
	s.metrics.Check(Rule{Name: e.Rule, Algorithm: e.Algorithm}, outcome(e), e.Latency)
	switch {
	case e.Err == nil:
		s.health.answered()
	case !errors.Is(e.Err, context.Canceled): // by the client, who went away
		s.metrics.Error(reason(e.Err))
		s.health.failed(e.Err, e.Outcome)
	}
}

func (s *service) reloaded(policy Policy, err error) {
	s.metrics.Reloaded(err, time.Now())
	if err != nil {
		s.Log.Error("the policy file was not taken up; the rules stay as they were", "policy", policy.File, "err", err)
		return
	}
	s.metrics.SetRules(policy.Rules)
	s.Log.Info("the policy file was taken up", "policy", policy.File, "rules", policy.count())
}

func outcome(e Event) metrics.Outcome {
	switch {
	case e.Outcome == "allowed":
		return metrics.Allowed
	case e.Outcome == "exempt":
		return metrics.Exempt
	case e.Outcome == "error_open", e.Outcome == "error_closed" && e.Shadow:
		return metrics.ErrorOpen
	case e.Outcome == "error_closed":
		return metrics.ErrorClosed
	case e.Shadow:
		return metrics.ShadowDenied
	case e.Outcome == "denied":
		return metrics.Denied
	}
	return metrics.Refused
}

// reason is the kind of an error, of which there are few.
func reason(err error) string {
	var failure *redisstore.Error
	known := errors.As(err, &failure)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && (!known || failure.Class == redisstore.Unknown):
		return "timeout"
	case known:
		return failure.Class.String()
	case errors.Is(err, penstock.ErrInvalid):
		return "invalid"
	}
	return "other"
}
