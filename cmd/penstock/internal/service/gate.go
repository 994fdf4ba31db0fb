package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// A Gate is what requests must pass on their way to the upstream. If it has a method Close, that is
// called after the last request.
type Gate interface {
	Middleware(next http.Handler) http.Handler

	// Trusts tells whether a request comes straight from a proxy that is believed in what it says of
	// the way before it.
	Trusts(r *http.Request) bool
	// AllowOrigin sets the CORS headers of an answer that neither the gate nor the upstream gives.
	AllowOrigin(header http.Header, r *http.Request)
}

// A Builder makes a gate of what the service has. Its context ends with the last request.
type Builder func(ctx context.Context, d Deps) (Gate, Policy, error)

// Deps are what the service has for a gate.
type Deps struct {
	Store         Store
	Load          func(...penstock.Limit) // loads the scripts of limits into the store, before they take effect
	Observe       func(httplimit.Event)
	Waiting       func(now func() int)     // is told who knows how many requests wait for their turn
	TokenRejected func(*policy.TokenError) // is told of each request whose token is rejected
	Reloaded      func(Policy, error)      // is told when the policy file was read again
	Log           *slog.Logger
}

// A Store gives what the service counts in, with guards around it that ask for the settings of each
// limit. It is called once.
type Store func(limits func(*penstock.Limit) guard.Settings) (penstock.Store, error)

// A Policy is what the service needs to know of the rules in force.
type Policy struct {
	File      string
	Digest    string   // as penstock validate shows it
	Rules     []Rule   // a row for each limit
	OnFailure string   // what becomes of requests when the store does not answer
	Warnings  []string // what may not be meant; of a reload, what the rules before did not have
	EmptyDeny []string // files of the list deny without values
	Server    policy.ServerConfig
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

func (noRules) Trusts(*http.Request) bool { return false }

func (noRules) AllowOrigin(http.Header, *http.Request) {}

func (s *service) observe(e httplimit.Event) {
	s.metrics.Check(Rule{Name: e.Rule, Limit: e.Limit, Algorithm: e.Algorithm}, e.Outcome, e.Latency)
	// What guards of Redis find unanswered they tell themselves, but for what cannot be asked.
	if e.Err != nil && e.Outcome != httplimit.Abandoned && (s.Settings.Store == "" || errors.Is(e.Err, penstock.ErrInvalid)) {
		s.unanswered(e.Err)
	}
	undecided := e.Rule == "" || e.Err != nil && e.Source == penstock.FromStore
	if trial := e.Outcome == httplimit.ShadowAllowed || e.Outcome == httplimit.ShadowDenied; trial || undecided || e.Outcome == httplimit.DeniedNew {
		return
	}
	s.metrics.Decided(e.Source)
	switch e.Source {
	case penstock.FromStore:
		s.health.answered()
	case penstock.FromOpen:
		s.alarm.passed(e.Rule)
	}
}

// tokenRejected counts a token that is rejected, and logs one of many.
func (s *service) tokenRejected(e *policy.TokenError) {
	s.metrics.TokenRejected(e.Reason)
	if held, due := s.tokens.Due(); due {
		s.Log.Warn("a token is rejected; its request is limited like one without a token", "reason", e.Reason, "err", e, "unlogged", held)
	}
}

// loaded notes the rules that the gate began with, which may be the former ones already.
func (s *service) loaded(policy Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = policy
	if s.reloads == 0 {
		s.since = time.Now()
		s.metrics.SetRules(policy.Rules)
		s.emptyDeny = policy.EmptyDeny
	}
}

func (s *service) reloaded(policy Policy, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.Reloaded(err, time.Now())
	s.refused = err != nil
	if err != nil {
		s.tellMistakes(policy.File, err)
		return
	}
	for _, file := range policy.EmptyDeny {
		if !slices.Contains(s.emptyDeny, file) {
			s.Log.Error("a deny list has become empty; the clients on it are no longer refused", "policy", policy.File, "list", file)
		}
	}
	s.emptyDeny = policy.EmptyDeny
	s.reloads++
	s.since = time.Now()
	s.metrics.SetRules(policy.Rules)
	s.Log.Info("the policy file was taken up", "policy", policy.File, "digest", policy.Digest, "rules", policy.count())
	s.warn(policy)
	if !reflect.DeepEqual(policy.Server, s.policy.Server) {
		s.Log.Warn("the policy's server section has changed; it counts from the next start on", "policy", policy.File)
	}
}

// mostMistakes of a policy, and most warnings, are logged: whoever mends it has the rest from
// penstock validate.
const mostMistakes = 5

func (s *service) tellMistakes(file string, err error) {
	const line = "the policy file was not taken up; the rules stay as they were"
	var mistakes policy.Errors
	if !errors.As(err, &mistakes) {
		s.Log.Error(line, append([]any{"policy", file, "err", err}, stackOf(err)...)...)
		return
	}
	s.Log.Error(line, "policy", file, "mistakes", len(mistakes))
	for _, mistake := range mistakes[:min(len(mistakes), mostMistakes)] {
		s.Log.Error(mistake.Error())
	}
	if more := len(mistakes) - mostMistakes; more > 0 {
		s.Log.Error(fmt.Sprintf("and %d more; penstock validate shows all", more))
	}
}

// stackOf is an attribute of a log line with the stack of a panic, or none.
func stackOf(err error) []any {
	if panicked := (*policy.PanicError)(nil); errors.As(err, &panicked) {
		return []any{"stack", string(panicked.Stack)}
	}
	return nil
}

// warn tells what may not be meant in a policy.
func (s *service) warn(policy Policy) {
	for _, warning := range policy.Warnings[:min(len(policy.Warnings), mostMistakes)] {
		s.Log.Warn(warning)
	}
	if more := len(policy.Warnings) - mostMistakes; more > 0 {
		s.Log.Warn(fmt.Sprintf("and %d more warnings; penstock validate shows all", more))
	}
}
