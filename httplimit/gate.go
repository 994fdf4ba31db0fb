package httplimit

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
)

// Options of a Gate. Limits come from Rules, or from Name, Key and Limits.
type Options struct {
	// Store counts. memstore.New makes one for this process, redisstore.Open one for many; put
	// guard.Standard around the latter, with the Rules' Settings as its Limits. Without, New puts a
	// guard.Fallback around it, so that limits fail as they say; but as nobody counts the instances
	// then, each has the whole of a local limit. With a memstore, which fails only when it is full,
	// local is as closed.
	Store penstock.Store

	// Rules are those to apply now; they are asked for at every request, as by
	// (*policy.Watcher).Rules.
	Rules func() *policy.Rules

	// Instead of Rules: Limits that every request is charged to, who pays, and a name that tells
	// their counters from others'. A CORS preflight is free, with any header that Key may read
	// other than Authorization, Proxy-Authorization and Cookie.
	Name      string                     // unrelated Gates on one store need different ones, as rules of their policies do
	Key       func(*http.Request) string // default: ByAddress. All for whom it gives "" share one counter
	Limits    []penstock.Limit
	OnFailure guard.Failure     // what happens to requests while the store gives no answer, unless it has guards; default: guard.Local
	HTTP      policy.HTTPConfig // how requests are read and answered

	// Denied, if set, answers requests that are denied, refused or malformed. The fields that tell of
	// limits stand in the response's header already; DenialOf gives the details.
	Denied http.Handler

	// Observe, if set, is told of each decision. It is called by many goroutines at once, and must be
	// quick.
	Observe func(Event)

	// TokenRejected, if set, is told of each request whose token is rejected, and why. Such a
	// request is limited like one without a token. It is called by many goroutines at once, and
	// must be quick.
	TokenRejected func(*policy.TokenError)
}

// A Gate lets requests pass, wait, or turns them away, as its limits say. Make one with New; it may
// be used by many goroutines at once.
type Gate struct {
	store   penstock.Store
	rules   func() *policy.Rules
	denied  http.Handler
	observe func(Event)

	tokenRejected func(*policy.TokenError)

	mu       sync.Mutex            // makes setups one at a time
	setup    atomic.Pointer[setup] // for the rules seen last
	waiting  atomic.Int64          // requests that wait for their turn
	returns  atomic.Int64          // requests that were answered while their slots are given back
	verdicts sync.Pool

	identities *identities // those that are known, whatever the rules
}

// New makes a Gate. An error wraps penstock.ErrInvalid.
func New(o Options) (*Gate, error) {
	if o.Store == nil {
		return nil, fmt.Errorf("%w: httplimit: the store is nil; memstore.New makes one", penstock.ErrInvalid)
	}
	if (o.Rules == nil) == (len(o.Limits) == 0) {
		return nil, fmt.Errorf("%w: httplimit: limits come from Rules or from Limits; set one of the two", penstock.ErrInvalid)
	}
	g := &Gate{rules: o.Rules, denied: o.Denied, observe: o.Observe, identities: newIdentities()}
	if g.tokenRejected = o.TokenRejected; g.tokenRejected == nil {
		g.tokenRejected = func(*policy.TokenError) {}
	}
	g.guard(o.Store)
	if g.observe == nil {
		g.observe = func(Event) {}
	}
	g.verdicts.New = func() any { return new(policy.Verdict) }
	if g.rules == nil {
		rules, err := inCode(o)
		if err != nil {
			return nil, err
		}
		g.rules = func() *policy.Rules { return rules }
	}
	rules := g.rules()
	if rules == nil {
		return nil, fmt.Errorf("%w: httplimit: Rules gives none; load a policy first", penstock.ErrInvalid)
	}
	setup, err := newSetup(rules)
	if err != nil {
		return nil, err
	}
	g.setup.Store(setup)
	return g, nil
}

func inCode(o Options) (*policy.Rules, error) {
	key := o.Key
	if key == nil {
		key = ByAddress
	}
	return policy.New(policy.Spec{
		Name: o.Name, Limits: o.Limits, OnFailure: o.OnFailure, HTTP: o.HTTP,
		Payer: func(a policy.Attributes) string { return key(a.(*attributes).r) },
	})
}

// ByAddress makes callers pay by their address: that of the socket's peer. Behind proxies, where
// all peers are alike, use a policy with trusted_proxies.
func ByAddress(r *http.Request) string {
	return "ip:" + policy.AddressText((&addresses{}).of(r), 32, 64)
}

// A setup is what a Gate makes of Rules, once.
type setup struct {
	rules      *policy.Rules
	paths      policy.Paths
	headers    *headers
	bodies     *bodies
	cors       *cors // nil: no page may read the Gate's own answers
	status     int   // of a denial
	addresses  *addresses
	maxWaiting int64
	policies   map[*policy.Limit][]*quotaPolicy // by form
}

func newSetup(rules *policy.Rules) (*setup, error) {
	h := rules.HTTP()
	s := &setup{rules: rules, paths: rules.Paths(), status: h.Denied.Status, maxWaiting: int64(h.MaxWaiting), policies: make(map[*policy.Limit][]*quotaPolicy)}
	dialects := []Dialect{}
	for _, name := range h.Headers {
		if name != "none" {
			dialects = append(dialects, Dialect(name))
		}
	}
	var err error
	if s.headers, err = newHeaders(headerSettings{dialects: dialects, resetSeconds: h.Reset == "seconds", jitter: h.RetryJitter}); err != nil {
		return nil, fmt.Errorf("%w: httplimit: %w", penstock.ErrInvalid, err)
	}
	s.cors = newCORS(h.CORS, dialects)
	body := bodySettings{}
	switch h.Denied.Body {
	case "problem":
	case "text":
		body.text = true
	default:
		body = bodySettings{template: h.Denied.Body, contentType: h.Denied.ContentType}
	}
	if s.bodies, err = newBodies(body); err != nil {
		return nil, fmt.Errorf("%w: httplimit: %w", penstock.ErrInvalid, err)
	}
	header := h.AddressHeader
	if len(h.TrustedProxies) == 0 {
		header = "" // nobody is believed
	}
	if s.addresses, err = newAddresses(h.TrustedProxies, header); err != nil {
		return nil, fmt.Errorf("%w: httplimit: %w", penstock.ErrInvalid, err)
	}
	for _, rule := range rules.Rules() {
		for _, limit := range rule.Limits {
			for _, form := range limit.Forms() {
				plan, err := form.Plan()
				if err != nil {
					return nil, err
				}
				s.policies[limit] = append(s.policies[limit], newQuotaPolicy(limit.Policy, plan))
			}
		}
	}
	return s, nil
}

// now is the setup for the rules of now. If they cannot be used, those of before go on.
func (g *Gate) now() *setup {
	s, rules := g.setup.Load(), g.rules()
	if s.rules == rules {
		return s
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s = g.setup.Load(); s.rules == rules {
		return s
	}
	if next, err := newSetup(rules); err == nil {
		s = next
		g.setup.Store(s)
	}
	return s
}

// Trusts tells whether a request comes straight from one of the policy's trusted proxies.
func (g *Gate) Trusts(r *http.Request) bool { return g.now().addresses.trustsPeer(r) }

// Waiting is how many requests wait for their turn.
func (g *Gate) Waiting() int { return int(g.waiting.Load()) }

// An Event tells of a decision.
type Event struct {
	Rule      string // the one that mattered most: that denied for longest, or has the least left
	Limit     string // within the rule
	Algorithm string
	Outcome   Outcome
	Source    penstock.Source // who decided: with FromFallback, Allowed and Denied are by this process alone; FromStore with an Err is nobody
	Latency   time.Duration   // of the decision
	Err       error           // of the store, if it gave no answer. A store with guards tells guard.Options.Unanswered instead
}

// An Outcome is what became of a request.
type Outcome uint8

const (
	Allowed       Outcome = iota // within all limits
	Denied                       // over a limit
	FailedOpen                   // let pass and not counted: the store gave no answer
	FailedClosed                 // turned away: the store gave no answer
	Unlimited                    // no limit applies; no rule
	Exempt                       // on the list of those who are never limited; no rule
	Refused                      // on the list of those who are always refused; no rule
	Malformed                    // its path cannot be read; no rule
	Abandoned                    // its caller went away before it was decided, or while it waited
	DeniedNew                    // its address brought too many new identities; decided by this process alone
	ShadowAllowed                // by a limit that is a shadow or a candidate; the request went on
	ShadowDenied                 // would have been denied by such a limit; the request went on
	outcomes
)

var outcomeNames = [outcomes]string{"allowed", "denied", "failed_open", "failed_closed", "unlimited", "exempt", "refused", "malformed", "abandoned", "denied_new_identity", "shadow_allowed", "shadow_denied"}

func (o Outcome) String() string { return outcomeNames[o] }

// Outcomes are all there are.
func Outcomes() []Outcome {
	all := make([]Outcome, outcomes)
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}
