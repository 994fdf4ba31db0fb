package envoyrls

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
)

// A Mode is how the descriptors of one request are decided.
type Mode uint8

const (
	// Atomic decides all descriptors of a request together. If one is over its limit, nothing is
	// charged, and the statuses of the others show what is left. Atomic is the default.
	Atomic Mode = iota

	// Exact counts as envoyproxy/ratelimit does: each descriptor is counted separately, and hits
	// above the limit are counted too.
	Exact
)

// ParseMode reads a choice of the setting envoy-mode: "atomic" or "exact".
func ParseMode(text string) Mode {
	if text == "exact" {
		return Exact
	}
	return Atomic
}

// A Failure is what happens to a request while the store gives no answer.
type Failure uint8

const (
	FailDefault Failure = iota // FailLocal in mode Atomic, FailError in mode Exact
	FailLocal                  // this process decides, by its share of each limit
	FailOpen                   // the answer is OK
	FailClosed                 // the answer is OVER_LIMIT
	FailError                  // the call fails with UNAVAILABLE, and Envoy's failure_mode_deny decides
)

var failures = [...]string{"default", "local", "open", "closed", "error"}

// ParseFailure reads a choice of envoy-on-failure: "local", "open", "closed", "error" or "default".
func ParseFailure(text string) Failure { return Failure(max(slices.Index(failures[:], text), 0)) }

// mode returns what the guards do in a failure. FailError is FailClosed for them: applyDecision
// turns it into an error.
func (f Failure) mode() guard.FailureMode {
	switch f {
	case FailOpen:
		return guard.FailOpen
	case FailLocal:
		return guard.FailLocal
	}
	return guard.FailClosed
}

// Options configure an Engine. Algorithm must be set.
type Options struct {
	// Mode is how the descriptors of one request are decided. Default: Atomic.
	Mode Mode

	// Algorithm enforces all limits. Mode Exact supports only fixed windows. Concurrency limits are
	// not possible, because Envoy does not report the end of a request.
	Algorithm *algorithm.Algorithm

	// OnFailure is what happens while the store gives no answer. Default: see FailDefault.
	OnFailure Failure

	// DeniesReports denies a descriptor whose own hits_addend does not fit into the limit, and does
	// not charge it, as for the hits_addend of a request. Default: the descriptor's hits_addend is
	// always charged, because it may report usage that has already happened.
	DeniesReports bool

	// ShadowMode lets every request pass (SHADOW_MODE): the overall code is always OK. The statuses
	// show what would have been enforced.
	ShadowMode bool

	// QuotaMode treats all limits as if they had quota_mode (QUOTA_MODE).
	QuotaMode bool

	// Headers are the formats of rate limit headers in responses. Default: none.
	Headers []Dialect

	// HasMetadata adds dynamic metadata to responses (RESPONSE_DYNAMIC_METADATA).
	HasMetadata bool

	// NewLimit is called with each name that detailed_metric or value_to_metric creates from a
	// request, before the first event with that name. A configuration creates at most 1,000 names.
	// NewLimit must be quick. Default: none.
	NewLimit func(EventName)

	// Policy has the rules that decide requests whose domain is not in the configuration. Only
	// rules with a descriptor apply to them; see NeedsDescriptor and CheckRules. The allow and deny
	// lists apply too. Default: no limit applies to such requests.
	Policy policy.RuleSource

	// Now returns the time. Now is used only for the Reset of a window of which nothing is used.
	// Default: time.Now.
	Now func() time.Time
}

// onFailure returns OnFailure, or its default for the mode.
func (o *Options) onFailure() Failure {
	switch {
	case o.OnFailure != FailDefault:
		return o.OnFailure
	case o.Mode == Exact:
		return FailError
	}
	return FailLocal
}

// setDefaults sets the defaults, and then checks the options. An error wraps penstock.ErrInvalid.
func (o *Options) setDefaults() error {
	o.OnFailure = o.onFailure()
	if o.NewLimit == nil {
		o.NewLimit = func(EventName) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Mode == Exact && o.Algorithm != penstock.FixedWindow:
		return fmt.Errorf("%w: mode exact supports only fixed windows, and the algorithm is %s; omit the mode or the algorithm", penstock.ErrInvalid, o.Algorithm.Title())
	// A leaky bucket owns its refunds: it returns units only to the Holder that took them.
	case o.Algorithm.NeedsHolder() || o.Algorithm.OwnsRefunds() || o.Algorithm.IsCalendar():
		return fmt.Errorf("%w: the algorithm %s cannot enforce Envoy's limits; use token-bucket or a window", penstock.ErrInvalid, o.Algorithm.Title())
	}
	return nil
}

// group is the penstock.Limit.Group of all limits of an engine, except those of a policy.
const group = "envoy.rls"

// Group returns the penstock.Limit.Group of Envoy's limits. No rule may have this name.
func Group() string { return group }

// Settings returns the guard settings of the engine's limits, for guard.Options and
// admission.Options. For other limits it returns the zero value.
func (o Options) Settings(plan *penstock.Plan) guard.Settings {
	if plan.Group() != group {
		return guard.Settings{}
	}
	return guard.Settings{OnFailure: o.onFailure().mode()}
}
