package httplimit

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/transport/clientaddress"
	"github.com/penstock/penstock/internal/transport/quotaheaders"
	"github.com/penstock/penstock/policy"
)

// Options configure a Gate that New makes. The zero value is useful.
type Options struct {
	// Rejected responds to every rejected request. The reason may be a limit, the deny list, a
	// malformed request, or a store that gives no answer. RejectionOf returns the details. The header
	// fields about limits are set already. Default: the body that the policy defines, or else a
	// problem of RFC 9457.
	Rejected http.Handler

	// Check returns an error for rules that the Gate must not use: then New fails, or the Gate keeps
	// its old rules. Check is called when the rules change. Default: the Gate uses all rules.
	Check func(*policy.Rules) error
}

// SimpleOptions configure a Gate that NewSimple makes. The zero value is useful.
type SimpleOptions struct {
	// Key returns the key that a request is charged under. Requests with the key "" share one counter.
	// Default: ByAddress.
	Key func(*http.Request) string

	// OnFailure is what happens while the store gives no answer. If the store has guards of its own,
	// as that of redisguard.Open or guard.Standard, OnFailure must not be set, because
	// guard.Options.OnFailure decides this. Default: guard.FailLocal.
	OnFailure guard.FailureMode

	// Refunds makes Settle with a cost of 0 refund the unit of a request. Such requests are not
	// leased, and take more memory in the store: see penstock.Charge.IsRefundable. Default: the true
	// cost of a request is at least one unit.
	Refunds bool

	HTTP Config // how requests are read and answered

	Rejected http.Handler           // as in Options
	Observe  func(*admission.Event) // as in admission.Options
}

// A Gate admits HTTP requests within limits, lets them wait, or rejects them. Make one with New,
// PerKey or NewSimple. Many goroutines may use it concurrently.
type Gate struct {
	controller *admission.Controller
	rejected   http.Handler
	check      func(*policy.Rules) error

	mu       sync.Mutex                    // held while rules are compiled
	compiled atomic.Pointer[compiledRules] // the rules in force, compiled
	unusable atomic.Pointer[policy.Rules]  // the latest rules that cannot be used
}

// New makes a Gate that applies the rules of a Controller. Other transports may use the same
// Controller. An error wraps penstock.ErrInvalid.
func New(controller *admission.Controller, o Options) (*Gate, error) {
	if controller == nil {
		return nil, fmt.Errorf("%w: httplimit: the controller is nil; admission.New makes one", penstock.ErrInvalid)
	}
	g := &Gate{controller: controller, rejected: o.Rejected, check: o.Check}
	first, err := g.compile(controller.Rules())
	if err != nil {
		return nil, err
	}
	g.compiled.Store(first)
	return g, nil
}

// PerKey makes a Gate that charges each request to one limit, under the key that the function
// returns. Requests with the key "" share one counter. For clients without another key, use
// ByAddress as the function. The name distinguishes the counters: on one store, all names of Gates
// and rules must differ. An error wraps penstock.ErrInvalid.
//
// To limit a handler, call gate.Middleware(handler). NewSimple takes several limits, and options.
func PerKey(store penstock.Store, name string, limit penstock.Limit, key func(*http.Request) string) (*Gate, error) {
	if key == nil {
		return nil, fmt.Errorf("%w: httplimit: the function that returns the key is nil; httplimit.ByAddress is one", penstock.ErrInvalid)
	}
	return NewSimple(store, name, []penstock.Limit{limit}, SimpleOptions{Key: key})
}

// NewSimple makes a Gate with limits that every request is charged to. The name distinguishes their
// counters: on one store, all names of Gates and rules must differ. An error wraps
// penstock.ErrInvalid.
//
// CORS preflights are not charged. A request with Authorization, Proxy-Authorization or Cookie is
// not a preflight.
func NewSimple(store penstock.Store, name string, limits []penstock.Limit, o SimpleOptions) (*Gate, error) {
	key := o.Key
	if key == nil {
		key = ByAddress
	}
	if o.OnFailure != guard.FailDefault && guard.SettingsOf(store) != nil {
		return nil, fmt.Errorf("%w: httplimit: SimpleOptions.OnFailure has no effect, because the store has a fallback of its own; "+
			"set redisguard.Options{Guard: guard.Options{OnFailure: guard.%s}} instead, or the guard.Options of guard.Standard", penstock.ErrInvalid, constantOf(o.OnFailure))
	}
	config := o.HTTP
	if err := config.finish(); err != nil {
		return nil, err
	}
	byKey := policy.ByFunc(func(a policy.Attributes) string { return key(a.(*attributes).request) })
	spec, err := policy.Simple(name, byKey, o.OnFailure, limits...)
	if err != nil {
		return nil, err
	}
	for _, limit := range spec.Rules[0].Limits {
		limit.IsMinimum = !o.Refunds
	}
	spec.Sections = []any{&config}
	config.setSpec(&spec)
	rules, err := policy.New(spec)
	if err != nil {
		return nil, err
	}
	controller, err := admission.New(store, rules, admission.Options{Observe: o.Observe})
	if err != nil {
		return nil, err
	}
	return New(controller, Options{Rejected: o.Rejected})
}

// constantOf returns the name of a failure mode in Go, such as FailClosed.
func constantOf(m guard.FailureMode) string {
	name := m.String()
	return "Fail" + strings.ToUpper(name[:1]) + name[1:]
}

// ByAddress returns the key of the connection's remote address. Behind proxies, where all
// connections come from few addresses, use a policy with trusted_proxies.
func ByAddress(r *http.Request) string {
	return "ip:" + syntax.AddressText(clientaddress.PeerOf(r.RemoteAddr).Address, defaultIPv4Prefix, defaultIPv6Prefix)
}

// compiledRules are what a Gate needs of rules, computed once.
type compiledRules struct {
	rules         *policy.Rules
	paths         policy.Paths
	headers       *quotaheaders.Writer
	bodies        *bodies // of rejections
	cors          *cors   // nil: no page of another origin may read the Gate's own responses
	deniedStatus  int     // of the response to a denied request
	proxies       *clientaddress.Proxies
	addressHeader string                // where proxies name the client
	policies      quotaheaders.Policies // the contents of RateLimit-Policy
}

func compile(rules *policy.Rules) (*compiledRules, error) {
	config, err := configOf(rules)
	if err != nil {
		return nil, err
	}
	c := &compiledRules{rules: rules, paths: rules.Spec().Paths, deniedStatus: config.Denied.Status, policies: quotaheaders.PoliciesOf(rules)}
	c.headers = quotaheaders.New(quotaheaders.Settings{
		Dialects:         config.Headers,
		IsResetInSeconds: config.Reset == "seconds",
		IsResetWhenFull:  config.ResetUntil == "full",
		Jitter:           config.RetryJitter,
	})
	c.cors = newCORS(config.CORS, config.Headers)
	body := bodySettings{}
	if config.Denied.isTemplate() {
		body = bodySettings{template: config.Denied.Body, contentType: config.Denied.ContentType}
	} else {
		body.isText = config.Denied.Body == "text"
	}
	c.bodies = newBodies(body)
	c.proxies, c.addressHeader = clientaddress.New(config.TrustedProxies, config.AddressHeader), config.AddressHeader
	return c, nil
}

// current returns the compiled rules in force. If new rules cannot be used, the old ones stay.
func (g *Gate) current() *compiledRules {
	c, rules := g.compiled.Load(), g.controller.Rules()
	if c.rules == rules || rules == nil || g.unusable.Load() == rules {
		return c
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if c = g.compiled.Load(); c.rules == rules || g.unusable.Load() == rules {
		return c
	}
	next, err := g.compile(rules)
	if err != nil {
		g.unusable.Store(rules)
		return c
	}
	g.compiled.Store(next)
	return next
}

func (g *Gate) compile(rules *policy.Rules) (*compiledRules, error) {
	if g.check != nil {
		if err := g.check(rules); err != nil {
			return nil, err
		}
	}
	return compile(rules)
}

// IsTrustedProxy reports whether a request comes straight from one of the policy's trusted proxies.
func (g *Gate) IsTrustedProxy(r *http.Request) bool {
	return g.current().proxies.Trusts(clientaddress.PeerOf(r.RemoteAddr))
}

// ReadsHeader reports whether the policy reads the header with this name. Do not send a trailer
// with such a name to an application: it may treat trailers like headers.
func (g *Gate) ReadsHeader(name string) bool {
	c := g.current()
	return strings.EqualFold(name, c.addressHeader) || c.rules.ReadsHeader(name)
}
