package envoyrls

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
)

// A Mode is how the descriptors of one request are decided.
type Mode uint8

const (
	// Atomic decides all descriptors of a request together. If one is over its limit, nothing is
	// charged, and the statuses of the others show what is left. It is the default.
	Atomic Mode = iota

	// Exact does as envoyproxy/ratelimit does: each descriptor is counted for itself, hits beyond the
	// limit too.
	Exact
)

func (m Mode) String() string {
	if m == Exact {
		return "exact"
	}
	return "atomic"
}

// ParseMode reads "atomic" or "exact".
func ParseMode(text string) (Mode, error) {
	for _, m := range []Mode{Atomic, Exact} {
		if m.String() == text {
			return m, nil
		}
	}
	return Atomic, fmt.Errorf("%q is no mode; write atomic or exact", text)
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

func (f Failure) String() string {
	if int(f) < len(failures) {
		return failures[f]
	}
	return fmt.Sprintf("Failure(%d)", uint8(f))
}

// ParseFailure reads "local", "open", "closed", "error" or "default".
func ParseFailure(text string) (Failure, error) {
	for f, name := range failures {
		if name == text {
			return Failure(f), nil
		}
	}
	return FailDefault, fmt.Errorf("%q is no way to fail; write local, open, closed, error or default", text)
}

func (f Failure) mode() guard.FailureMode {
	switch f {
	case FailOpen:
		return guard.FailOpen
	case FailLocal:
		return guard.FailLocal
	}
	return guard.FailClosed
}

// Options configure an Engine. The zero value is useful.
type Options struct {
	Mode Mode

	// Algorithm enforces all limits. Mode Exact has fixed windows only. Algorithms with slots cannot
	// be used, because nobody returns them. Default: penstock.FixedWindow, with windows that begin
	// when those of envoyproxy/ratelimit do.
	Algorithm *algorithm.Algorithm

	// OnFailure is what happens while the store gives no answer. Default: see FailDefault.
	OnFailure Failure

	// SpendsReports charges hits of a descriptor like those of a request: only if they fit. By
	// default they are charged in any case, because they may report what has been used already.
	SpendsReports bool

	// ShadowMode answers OK to every request (SHADOW_MODE). The statuses tell what would be.
	ShadowMode bool

	// QuotaMode treats all limits as if they had quota_mode (QUOTA_MODE).
	QuotaMode bool

	// Headers are the dialects of header fields about limits in responses. Default: none.
	Headers []Dialect

	// HeaderNames are the names of the fields of DialectPlain. Default: RateLimit-Limit,
	// RateLimit-Remaining and RateLimit-Reset.
	HeaderNames HeaderNames

	// HasMetadata adds dynamic metadata to responses (RESPONSE_DYNAMIC_METADATA).
	HasMetadata bool

	// NewLimit is called for each name that detailed_metric and value_to_metric make of requests,
	// before the first event with it. There are at most 1,000 for a configuration. It must be quick.
	// Default: none.
	NewLimit func(EventName)

	// Rules returns the policy that decides requests of domains that the configuration does not have.
	// Only rules with a descriptor apply to them; see NeedsDescriptor and CheckRules. The allow and
	// deny lists apply too. Default: no limit applies to such requests.
	Rules func() *policy.Rules

	// Observe is called with the event of each request that no limit applies to. The controller
	// reports the others. Many goroutines call it at once. It must be quick, and must not keep the
	// event. Default: none.
	Observe func(*admission.Event)

	// Now tells the time, for windows in which nothing is used yet. Default: time.Now.
	Now func() time.Time
}

func (o *Options) setDefaults() error {
	if o.Algorithm == nil {
		o.Algorithm = penstock.FixedWindow
	}
	if o.OnFailure == FailDefault {
		if o.OnFailure = FailLocal; o.Mode == Exact {
			o.OnFailure = FailError
		}
	}
	if o.NewLimit == nil {
		o.NewLimit = func(EventName) {}
	}
	if o.Observe == nil {
		o.Observe = func(*admission.Event) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.HeaderNames.setDefaults()
	switch {
	case o.Mode == Exact && o.Algorithm != penstock.FixedWindow:
		return fmt.Errorf("%w: mode exact has fixed windows only, and the algorithm is %s; omit one of them", penstock.ErrInvalid, o.Algorithm.Title())
	case o.Algorithm.NeedsHolder() || o.Algorithm.OwnsRefunds() || o.Algorithm.IsCalendar():
		return fmt.Errorf("%w: the algorithm %s cannot enforce Envoy's limits; write fixed-window, token-bucket, sliding-window or sliding-log",
			penstock.ErrInvalid, o.Algorithm.Title())
	}
	for _, d := range o.Headers {
		if !d.isValid() {
			return fmt.Errorf("%w: %q is no dialect of headers; write %s", penstock.ErrInvalid, d, dialectList())
		}
	}
	return nil
}

// group is the Group of all limits of an engine, and so a part of the names of their counters. No
// rule of a policy may have this name.
const group = "envoy.rls"

// Group returns the name that counters of Envoy's limits are kept under. No rule of a policy may
// have it.
func Group() string { return group }

// Settings returns how guards treat the engine's limits, for guard.Options and admission.Options.
// Other limits have none.
func (o Options) Settings(plan *penstock.Plan) guard.Settings {
	if plan.Group() != group {
		return guard.Settings{}
	}
	if o.OnFailure == FailDefault {
		o.OnFailure = FailLocal
		if o.Mode == Exact {
			o.OnFailure = FailError
		}
	}
	return guard.Settings{OnFailure: o.OnFailure.mode()}
}
