// Package observe counts what package admission, the guards and the stores report. The modules
// observe/prometheus and observe/otel export these counts. A program that uses one of these modules
// needs this package only to name its rules. Requests never create a series, because the program
// sets each Rule. No key is ever part of a series.
package observe

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/policy"
)

// A Histogram records the latencies of one Rule. Many goroutines call Observe at the
// same time.
type Histogram interface {
	Observe(ctx context.Context, latency time.Duration)
}

// Options are for modules that export Counts. The zero value is useful.
type Options struct {
	// Histogram makes the histogram of a Rule, before the Rule's first latency is recorded. It must
	// not call methods of the Counts. Default: latencies are not recorded.
	Histogram func(Rule) Histogram

	// NearPercent defines "near the limit": after a request that the store has allowed, at least this
	// percentage of the limit is used. From 50 to 100; default: 80.
	NearPercent int

	// Removed is called with each removed Rule that has a Histogram. It must not call methods of the
	// Counts. Default: no function is called.
	Removed func(Rule)
}

// Counts are the counts of one process. Make them with New. Many goroutines may use them at
// the same time.
type Counts struct {
	options      Options
	seriesByRule atomic.Pointer[map[Rule]*series]

	mu           sync.Mutex // held while rules change, and while a rule gets its histogram
	rulesByOwner map[string][]Rule

	waitingFuncs atomic.Pointer[[]func() int] // the functions of AddWaiting
	guards       atomic.Pointer[Guards]       // nil until SetGuards

	decisionsBySource      []atomic.Uint64
	errorsByReason         []atomic.Uint64 // by the index of the reason in reasons
	unknownOutcome         atomic.Uint64
	uncounted              atomic.Uint64   // requests that passed although a limit did not count them
	tokensRejectedByReason []atomic.Uint64 // by the index of the reason in tokenReasons
	breakerChangesByState  []atomic.Uint64
}

// series are the numbers of one Rule.
type series struct {
	requestsByOutcome [numOutcomes]atomic.Uint64
	nearLimit         atomic.Uint64             // allowed requests near the limit
	histogram         atomic.Pointer[Histogram] // nil until the first latency
}

// numOutcomes is at least the number of outcomes. It is a constant, so that a series is one block
// of memory.
const numOutcomes = 16

// outcomes, sources, reasons, tokenReasons and breakerStates are the possible values of their
// labels.
var (
	outcomes      = admission.Outcomes()
	sources       = []penstock.Source{penstock.FromStore, penstock.FromDenyCache, penstock.FromLease, penstock.FromFallback, penstock.FromOpen, penstock.FromClosed}
	reasons       = append(storeReasons(), labels.Invalid, labels.Other) // what Reason can return
	tokenReasons  = policy.TokenReasons()
	breakerStates = []guard.State{guard.StateClosed, guard.StateOpen, guard.StateHalfOpen}
)

// reasonCanceled is the Reason of a guard.Event whose caller has left.
const reasonCanceled = "canceled"

func storeReasons() (names []string) {
	for _, r := range penstock.Reasons() {
		names = append(names, r.String())
	}
	return names
}

// New makes Counts without rules.
func New(o Options) *Counts {
	if o.Removed == nil {
		o.Removed = func(Rule) {}
	}
	o.NearPercent = cmp.Or(o.NearPercent, 80)
	c := &Counts{
		options: o, rulesByOwner: make(map[string][]Rule),
		decisionsBySource: make([]atomic.Uint64, len(sources)), errorsByReason: make([]atomic.Uint64, len(reasons)),
		tokensRejectedByReason: make([]atomic.Uint64, len(tokenReasons)), breakerChangesByState: make([]atomic.Uint64, len(breakerStates)),
	}
	c.SetRules(nil)
	return c
}

// ObserveRequest counts a request. It is for the Observe of admission.Options and of all
// transports. A latency of 0 means that no store was called. ObserveRequest counts Event.Err too.
// After SetGuards, it counts only errors of invalid charges, because the guards report all other
// errors to ObserveStoreError.
func (c *Counts) ObserveRequest(e *admission.Event) {
	s := c.count(e.Context, Rule{e.Rule, e.Limit, e.Algorithm}, e.Outcome, e.Latency)
	if c.isNearLimit(e) {
		s.nearLimit.Add(1)
	}
	if e.SkippedRule != "" {
		c.uncounted.Add(1)
	}
	if e.Outcome != admission.Abandoned {
		c.countUnguarded(e.Err)
	}
	switch e.Outcome {
	case admission.ShadowAllowed, admission.ShadowDenied, admission.DeniedNewIdentity:
		return
	}
	hasLimit := e.Rule != ""
	hasFailed := e.Err != nil && e.Source == penstock.FromStore
	if hasLimit && !hasFailed {
		c.countSource(e.Source)
	}
}

// isNearLimit reports whether an allowed request is near the limit that it is counted under. Other
// sources than the store know only a part of the limit.
func (c *Counts) isNearLimit(e *admission.Event) bool {
	hasDecision := e.Decision != nil && len(e.Charges) > 0 && e.Decision.Len() == len(e.Charges)
	if e.Outcome != admission.Allowed || e.Source != penstock.FromStore || !hasDecision {
		return false
	}
	i := e.Decision.Strictest()
	charge := &e.Charges[i]
	isCharged := charge.Cost > 0 && (charge.Mode == penstock.Spend || charge.Mode == penstock.Draw || charge.Mode == penstock.Force)
	return isCharged && labels.IsNear(charge.Plan.Capacity(), e.Decision.Status(i).Remaining, c.options.NearPercent)
}

// ObserveDecision counts a decision as a request, for programs that call a Limiter or a store
// without package admission. It is for guard.Options.Observe and guard.Observe. A decision is
// counted under the Rule that RulesOfPlans returns for the limit. Do not use it together with
// ObserveRequest, which counts the same decisions.
func (c *Counts) ObserveDecision(e guard.Event) {
	var rule Rule
	if e.Plan != nil {
		rule = ruleOf(e.Plan)
	}
	outcome := outcomeOf(&e)
	c.count(e.Context, rule, outcome, e.Latency)
	if outcome == admission.FailedOpen {
		c.uncounted.Add(1)
	}
	if e.Err == nil {
		c.countSource(e.Source)
	} else if outcome != admission.Abandoned {
		c.countUnguarded(e.Err)
	}
}

func outcomeOf(e *guard.Event) admission.Outcome {
	switch {
	case e.Reason == reasonCanceled:
		return admission.Abandoned
	case e.Reason == labels.Invalid:
		return admission.Malformed
	case e.Err != nil:
		return admission.FailedClosed
	case e.Source == penstock.FromClosed && !e.Allowed:
		return admission.FailedClosed
	case !e.Allowed:
		return admission.Denied
	case e.Source == penstock.FromOpen:
		return admission.FailedOpen
	}
	return admission.Allowed
}

// ObserveStoreError counts a call for which the store made no decision, unless the caller canceled
// the call. ObserveStoreError is for guard.Options.OnStoreError.
func (c *Counts) ObserveStoreError(e guard.Event) {
	if e.Reason != reasonCanceled {
		c.CountError(e.Err)
	}
}

// countUnguarded counts an error unless the guards report it. The guards do not report a charge
// that is invalid.
func (c *Counts) countUnguarded(err error) {
	if err != nil && (c.guards.Load() == nil || labels.Reason(err) == labels.Invalid) {
		c.CountError(err)
	}
}

// CountError counts a call of the store that failed. If the call's charges may have been made, it
// is also counted in UnknownOutcomes.
func (c *Counts) CountError(err error) {
	c.errorsByReason[slices.Index(reasons, labels.Reason(err))].Add(1)
	if e := penstock.AsStoreError(err); e != nil && e.MayBeCharged {
		c.unknownOutcome.Add(1)
	}
}

// TokenRejected counts a request whose token was rejected. The method is for the TokenRejected of
// admission.Options and of all transports.
func (c *Counts) TokenRejected(e *policy.TokenError) {
	if i := slices.Index(tokenReasons, e.Reason); i >= 0 {
		c.tokensRejectedByReason[i].Add(1)
	}
}

// BreakerChanged counts a change of a circuit breaker. It is for guard.BreakerOptions.Changed.
func (c *Counts) BreakerChanged(_ string, _, to guard.State) {
	if int(to) < len(c.breakerChangesByState) {
		c.breakerChangesByState[to].Add(1)
	}
}

// AddWaiting adds a function that returns how many requests wait, such as
// (*admission.Controller).Waiting. The method Waiting calls all these functions.
func (c *Counts) AddWaiting(count func() int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []func() int
	if old := c.waitingFuncs.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = append(all, count)
	c.waitingFuncs.Store(&all)
}

// Guards are functions that read the state of guards and of their store. Each may be nil.
type Guards struct {
	Stats      func() guard.Stats                    // the method of a *guard.Guarded
	Instances  func() int                            // the method of a *guard.Guarded
	ClockSteps func() (back, forward int64)          // the method of a *redisstore.Store
	Losses     func() int64                          // the method of a *redisstore.Store
	Scripts    func() (missing, loaded, evals int64) // the numbers that Scripts of a *redisstore.Store returns

	ScriptsInFlight func() (inFlight, queued int) // the method of a *redisstore.Store
}

// SetGuards adds the series of guards. From then on, ObserveRequest and ObserveDecision do not
// count errors of the store. The guards must report them to ObserveStoreError, or the program must
// report them to CountError.
func (c *Counts) SetGuards(g Guards) { c.guards.Store(&g) }

// count counts an outcome of a rule, under Other if the rule is not set. It returns the series.
func (c *Counts) count(ctx context.Context, rule Rule, outcome admission.Outcome, latency time.Duration) *series {
	rules := *c.seriesByRule.Load()
	s := rules[rule]
	if s == nil {
		rule, s = Other, rules[Other]
	}
	if outcome >= numOutcomes {
		return s
	}
	s.requestsByOutcome[outcome].Add(1)
	if latency <= 0 || c.options.Histogram == nil {
		return s
	}
	histogram := s.histogram.Load()
	if histogram == nil {
		if histogram = c.histogram(rule, s); histogram == nil {
			return s
		}
	}
	if ctx == nil {
		ctx = context.Background()
	}
	(*histogram).Observe(ctx, latency)
	return s
}

// histogram returns the histogram of a rule, and makes it if necessary. It returns nil if the rule
// was removed.
func (c *Counts) histogram(rule Rule, s *series) *Histogram {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (*c.seriesByRule.Load())[rule] != s {
		return nil
	}
	if s.histogram.Load() == nil {
		histogram := c.options.Histogram(rule)
		s.histogram.Store(&histogram)
	}
	return s.histogram.Load()
}

func (c *Counts) countSource(s penstock.Source) {
	if int(s) < len(c.decisionsBySource) {
		c.decisionsBySource[s].Add(1)
	}
}
