// Package calls decides remote procedure calls by a policy. Packages grpclimit and connectlimit
// share it, so it imports neither grpc-go's server nor connect-go.
package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/transport/clientaddress"
	"github.com/penstock/penstock/internal/transport/quotaheaders"
	"github.com/penstock/penstock/policy"
)

// Options are the options of a Gate. Packages grpclimit and connectlimit have the same options, and
// document them.
type Options struct {
	TrustedProxies []string
	AddressHeader  string
	Dialects       []string
	Domain         string
	Exempt         func(method string) bool
	Cost           func(ctx context.Context, method string, message any) int64
	Messages       bool
	MaxMessageWait time.Duration
}

// DefaultDomain is the domain of errors if Options.Domain is empty.
const DefaultDomain = "penstock"

// CostHeader is the header in which rules find the result of Options.Cost.
const CostHeader = "Call-Cost"

// A Gate decides calls. Make one with New.
type Gate struct {
	controller    *admission.Controller
	options       Options
	proxies       *clientaddress.Proxies
	addressHeader string                        // in lower case
	writer        *quotaheaders.Writer          // writes the metadata about limits
	lowerNames    sync.Map                      // from the name of a header in a rule to the same name in lower case
	compiled      atomic.Pointer[compiledRules] // nil until policies is first called
}

// compiledRules are the rules in force, with what a Gate computes from them once.
type compiledRules struct {
	rules    *policy.Rules
	policies quotaheaders.Policies
}

// New makes a Gate. The Controller decides calls. pkg is the name of the caller's package, for
// errors.
func New(pkg string, controller *admission.Controller, o Options) (*Gate, error) {
	var errs []error
	if controller == nil {
		errs = append(errs, errors.New("the controller is nil; admission.New makes one"))
	}
	for _, text := range o.TrustedProxies {
		if _, err := clientaddress.ParseNetwork(text); err != nil && text != "unix" {
			errs = append(errs, fmt.Errorf("TrustedProxies: %.40q %w", text, err))
		}
	}
	if o.AddressHeader == "" {
		o.AddressHeader = "X-Forwarded-For"
	} else if !syntax.IsToken(o.AddressHeader) {
		errs = append(errs, fmt.Errorf("AddressHeader: %.40q cannot be the name of a header; write X-Forwarded-For, Forwarded or X-Real-IP", o.AddressHeader))
	}
	if o.MaxMessageWait < 0 || o.MaxMessageWait > 0 && !o.Messages {
		errs = append(errs, fmt.Errorf("MaxMessageWait is %v; it must not be negative, and needs Messages", o.MaxMessageWait))
	}
	errs = append(errs, checkDialects(o.Dialects))
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", penstock.ErrInvalid, pkg, err)
	}
	o.Domain = cmp.Or(o.Domain, DefaultDomain)
	if o.Exempt == nil {
		o.Exempt = IsInfrastructure
	}
	header := strings.ToLower(o.AddressHeader)
	return &Gate{
		controller: controller, options: o, proxies: clientaddress.New(o.TrustedProxies, header), addressHeader: header,
		writer: quotaheaders.New(quotaheaders.Settings{Dialects: o.Dialects, IsLowerCase: true}),
	}, nil
}

func checkDialects(names []string) error {
	for i, name := range names {
		switch {
		case !slices.Contains(fieldvalues.Headers, name), name == quotaheaders.None && len(names) > 1:
			return fmt.Errorf("Dialects: unknown value %.40q; write draft-11, draft-07, draft-06, x-ratelimit, or none alone", name)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("Dialects: %s is listed twice; keep one", name)
		}
	}
	if slices.Contains(names, quotaheaders.Draft11) && slices.Contains(names, quotaheaders.Draft07) {
		return errors.New("Dialects: draft-11 and draft-07 both write ratelimit; choose one")
	}
	return nil
}

// IsInfrastructure reports whether a method belongs to health checks, reflection or channelz.
func IsInfrastructure(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.") || strings.HasPrefix(method, "/grpc.reflection.") || strings.HasPrefix(method, "/grpc.channelz.")
}

func (g *Gate) Exempts(method string) bool { return g.options.Exempt(method) }

// A Call is one call, or one message of a stream.
type Call struct {
	Method     string // "/package.Service/Method"
	HTTPMethod string // default: POST
	Authority  string
	Peer       clientaddress.Peer
	Metadata   Metadata
	Message    any // nil when a stream begins

	IsPartOfStream bool          // the Call is a further message of a stream that was admitted
	Patience       time.Duration // how long the message may wait; 0: as the max_wait of each limit allows
}

type Metadata interface {
	// Values returns the values of the field with this name, which is in lower case.
	Values(lower string) []string

	// Has reports whether the name of a field passes the test.
	Has(test func(name string) bool) bool
}

// Admit decides a call. It returns an Admission or a Refusal; the other one is nil. The caller must
// call Done of the Admission.
func (g *Gate) Admit(ctx context.Context, c *Call) (*admission.Admission, *Refusal) {
	rules := g.controller.Rules()
	host, ok := syntax.CleanHost(c.Authority)
	if !ok {
		return nil, g.malformed(ctx, "the authority is malformed; send a name or an address, with an optional port")
	}
	path, err := rules.Spec().Paths.Clean(c.Method)
	if err != nil {
		return nil, g.malformed(ctx, "the method is malformed; send /package.Service/Method")
	}
	a := &attributes{gate: g, call: c, ctx: ctx}
	a.single[policy.KindMethod] = cmp.Or(c.HTTPMethod, http.MethodPost)
	a.single[policy.KindHost] = host
	a.single[policy.KindPath] = path
	admitted, outcome, _ := g.controller.Admit(ctx, admission.Request{
		Attributes: a, IsPartOfStream: c.IsPartOfStream, Patience: c.Patience, RequestOptions: admission.RequestOptions{Rules: rules},
	})
	if outcome.IsAdmitted() {
		return admitted, nil
	}
	defer admitted.Done(admission.Result{})
	return nil, g.refusal(ctx, admitted, outcome)
}

// malformed returns the Refusal of a call with malformed attributes, and reports the call to
// Observe.
func (g *Gate) malformed(ctx context.Context, detail string) *Refusal {
	g.controller.Observe(&admission.Event{Context: ctx, Outcome: admission.Malformed})
	return &Refusal{Outcome: admission.Malformed, Message: detail}
}

// Fields returns the metadata about the limits of an admitted call, or nil if no limit is visible
// to clients.
func (g *Gate) Fields(a *admission.Admission) map[string][]string { return g.fields(a, false, 0) }

// fields returns the metadata about the limits of a call. retryAfter has an effect only on a
// denial.
func (g *Gate) fields(a *admission.Admission, isDenied bool, retryAfter time.Duration) map[string][]string {
	// With up to 8 limits, which is more than usual, the buffers stay on the stack.
	var statusBuf [8]admission.LimitStatus
	statuses := a.AppendVisible(statusBuf[:0])
	if len(statuses) == 0 {
		return nil
	}
	policies := g.policies()
	var quotaBuf [8]quotaheaders.Quota
	quotas := quotaBuf[:0]
	for i := range statuses {
		quotas = append(quotas, policies.Quota(&statuses[i]))
	}
	fields := make(map[string][]string, 4)
	g.writer.Write(fields, quotas, isDenied, retryAfter)
	return fields
}

// policies returns the policies of the rules in force. It computes them once for each new policy
// file.
func (g *Gate) policies() quotaheaders.Policies {
	c, rules := g.compiled.Load(), g.controller.Rules()
	if c == nil || c.rules != rules {
		c = &compiledRules{rules, quotaheaders.PoliciesOf(rules)}
		g.compiled.Store(c)
	}
	return c.policies
}

// attributes are the attributes of a call, as rules read them.
type attributes struct {
	gate   *Gate
	call   *Call
	ctx    context.Context
	single [policy.KindRawQuery + 1]string // by kind: the value of each kind that has only one
}

// Lookup implements policy.Attributes. Calls have no query and no cookies.
func (a *attributes) Lookup(kind policy.Kind, name string) []string {
	switch kind {
	case policy.KindMethod, policy.KindHost, policy.KindPath:
		if a.single[kind] == "" {
			return nil
		}
		return a.single[kind : kind+1]
	case policy.KindHeader:
		return a.header(name)
	}
	return nil
}

func (a *attributes) header(name string) []string {
	if name == CostHeader && a.gate.options.Cost != nil {
		return []string{strconv.FormatInt(max(a.gate.options.Cost(a.ctx, a.call.Method, a.call.Message), 0), 10)}
	}
	lower := a.gate.lowerName(name)
	if strings.HasSuffix(lower, "-bin") {
		return nil // bytes, not text
	}
	return a.call.Metadata.Values(lower)
}

// HasHeader implements policy.Attributes.
func (a *attributes) HasHeader(test func(name string) bool) bool { return a.call.Metadata.Has(test) }

// lowerName returns the name of a header in lower case. It caches all names, because rules have
// few.
func (g *Gate) lowerName(name string) string {
	if known, ok := g.lowerNames.Load(name); ok {
		return known.(string)
	}
	lower := strings.ToLower(name)
	g.lowerNames.Store(name, lower)
	return lower
}

// Address implements policy.Attributes: it returns the client's address.
func (a *attributes) Address() netip.Addr {
	g, peer := a.gate, a.call.Peer
	if !g.proxies.Trusts(peer) {
		return peer.Address
	}
	return g.proxies.Client(peer, map[string][]string{g.addressHeader: a.call.Metadata.Values(g.addressHeader)})
}

// BodySize implements policy.Attributes: it returns the size of the message in bytes, or 0 when a
// stream begins.
func (a *attributes) BodySize() int64 {
	if message, ok := a.call.Message.(proto.Message); ok {
		return int64(proto.Size(message))
	}
	return 0
}

type admissionKey struct{}

// WithAdmission returns the context of the handler of an admitted call.
func WithAdmission(ctx context.Context, a *admission.Admission) context.Context {
	return context.WithValue(ctx, admissionKey{}, a)
}

func DecisionOf(ctx context.Context) (penstock.Decision, bool) {
	if a, ok := ctx.Value(admissionKey{}).(*admission.Admission); ok {
		return a.Decision()
	}
	return penstock.Decision{}, false
}

// Settle sets the true cost of the call that has this context. pkg is the name of the caller's
// package, for errors.
func Settle(ctx context.Context, pkg string, actual int64) error {
	if a, ok := ctx.Value(admissionKey{}).(*admission.Admission); ok {
		return a.Settle(actual)
	}
	return fmt.Errorf("%w: %s: no limit applies to the call; settle only calls that came through a Gate", penstock.ErrInvalid, pkg)
}
