package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/policy"
)

// An Admission is a request that has been decided. Only one goroutine at a time may use it. But any
// goroutine may call Settle, MarkStatusUnknown and Decision at any time after Admit.
type Admission struct {
	settlement
	idempotency

	controller *Controller
	ctx        context.Context // of the request
	options    RequestOptions
	attributes policy.Attributes // of a Request; nil for a RuleCall and for ExplicitCharges
	beforeWait func(policy.Attributes)
	denyIf     func([]penstock.Charge, *penstock.Decision) bool // of ExplicitCharges, or nil
	*scratch                                                    // nil after Done

	decision    penstock.Decision
	isLimited   bool // a limit applies, so there is a decision
	isRejected  bool
	skippedRule string // of the first limit that failed open
	shadows     *shadows
}

// scratch is memory that is used for one request after another.
type scratch struct {
	evaluation  policy.Evaluation
	event       Event
	rejection   Rejection
	newIdentity [1]penstock.Charge // the charge in an event of the outcome DeniedNewIdentity
	batch       batches.Batch      // what the store decides
	list        [1]*batches.Batch  // the batch, as a list
}

// A Rejection describes why a request was rejected.
type Rejection struct {
	Rule       string        // empty if no rule rejected it
	Policies   []string      // the FullName of each limit that denied the request
	RetryAfter time.Duration // not rounded; 0 if unknown, penstock.Never if a retry cannot succeed
	Detail     string        // what is wrong with a malformed request, without any text of the client

	hidden uint64 // a bit for each of Policies that clients must not see; a batch has at most 64 limits
}

// VisiblePolicies returns the Policies that clients may see: those of limits with
// policy.Limit.InHeaders.
func (r *Rejection) VisiblePolicies() []string {
	if r.hidden == 0 {
		return r.Policies
	}
	var visible []string
	for i, name := range r.Policies {
		if r.hidden&(1<<i) == 0 {
			visible = append(visible, name)
		}
	}
	return visible
}

// Rejection returns why the request was rejected. It is empty if the request was admitted. Call
// Rejection before Done.
func (a *Admission) Rejection() Rejection { return a.rejection }

// Decision returns the decision about the request's limits. The bool is false if no limit applied.
func (a *Admission) Decision() (penstock.Decision, bool) { return a.decision, a.isLimited }

// ShadowDecision returns the decision about shadow i of ExplicitCharges. The bool is false if the
// store has not decided this shadow. Call ShadowDecision before Done.
func (a *Admission) ShadowDecision(i int) (penstock.Decision, bool) {
	if a.shadows == nil || i >= len(a.shadows.list) || a.shadows.list[i].isUndecided() {
		return penstock.Decision{}, false
	}
	return a.shadows.list[i].Decision, true
}

// A LimitStatus is the state of one limit after a decision.
type LimitStatus struct {
	Limit   *policy.Limit
	Plan    *penstock.Plan // depends on the request: tiers can have different plans of one Limit
	Status  penstock.Status
	IsLocal bool // this process decided alone, by its share of the limit or by the limit's ceiling
}

// AppendVisible appends the limits that clients may know about, in the order of the policy. Call
// AppendVisible before Done.
func (a *Admission) AppendVisible(to []LimitStatus) []LimitStatus {
	if !a.isLimited || a.decision.Source == penstock.FromClosed {
		return to // no counter was charged
	}
	for i, l := range a.evaluation.Limits {
		if !l.InHeaders || isNotCounted(l, a.decision.Source) {
			continue
		}
		to = append(to, LimitStatus{
			Limit: l, Plan: a.evaluation.Charges[i].Plan, Status: a.visibleStatus(i), IsLocal: a.decision.Source == penstock.FromFallback,
		})
	}
	return to
}

// Strictest returns the limit that mattered most: the one that denies for longest, or has the least
// left. It is nil if no limit applied. Call Strictest before Done.
func (a *Admission) Strictest() *policy.Limit {
	if !a.isLimited {
		return nil
	}
	return a.evaluation.Limits[a.decision.Strictest()]
}

// slotRetryAfter is how soon a client should retry to get a slot. The true time is not known: a
// slot may be returned at any time, and the store knows only when its hold expires.
const slotRetryAfter = time.Second

// visibleStatus returns what a client may know about the status of charge i.
func (a *Admission) visibleStatus(i int) penstock.Status {
	s := a.decision.Status(i)
	if isSlot(&a.evaluation.Charges[i]) {
		s.ResetAfter = min(s.ResetAfter, slotRetryAfter)
		if s.RetryAfter != penstock.Never {
			s.RetryAfter = min(s.RetryAfter, slotRetryAfter)
		}
	}
	return s
}

// admit evaluates and decides a request with attributes. It waits for a later turn.
func (a *Admission) admit(r *Request) (Outcome, error) {
	rules := a.options.Rules
	if hasAllCharges := rules.EvaluateBeforeAuth(r.Attributes, &a.evaluation); !hasAllCharges {
		r.adjust(&a.evaluation)
		if outcome, err := a.decideBeforeAuth(); !outcome.IsAdmitted() {
			return outcome, err
		}
		rules.EvaluateAfterAuth(r.Attributes, &a.evaluation)
	}
	r.adjust(&a.evaluation)
	return a.admitCharges(nil)
}

// admitCharges decides the charges of the Evaluation. err is the error of the Evaluation. If the
// turn of the request comes later, admitCharges waits for the turn.
func (a *Admission) admitCharges(err error) (Outcome, error) {
	if outcome, err, isDecided := a.decideWithoutCharging(err); isDecided {
		return outcome, err
	}
	a.shadows = a.beginShadows()
	defer a.shadows.end()
	if len(a.evaluation.Charges) == 0 {
		return a.observe(Unlimited), nil
	}
	return a.decide(a.shadows)
}

// evaluateCharges sets the Evaluation of charges that the caller states. It returns an error if the
// charges or their limits are invalid.
func (a *Admission) evaluateCharges(r *ExplicitCharges) error {
	a.denyIf = r.DenyIf
	return a.options.Rules.EvaluateCharges(r.Charges, r.Limits, r.Shadows, &a.evaluation)
}

// decideWithoutCharging decides the requests that charge nothing: those that are rejected or
// admitted without the store, and peeks. For other requests isDecided is false, and their charges
// are ready for the store. err is the error of the Evaluation.
func (a *Admission) decideWithoutCharging(err error) (outcome Outcome, _ error, isDecided bool) {
	v := &a.evaluation
	if err != nil {
		outcome, err = a.rejectMalformed(err)
		return outcome, err, true
	}
	a.options.setHolder(v.Charges)
	if check := a.options.CheckLimits; check != nil && v.Ambiguous == "" {
		if err := check(v.Limits); err != nil {
			outcome, err = a.rejectMalformed(err)
			return outcome, err, true
		}
	}
	if v.TokenError != nil && !a.options.Peek {
		a.controller.options.TokenRejected(v.TokenError)
	}
	switch {
	case v.Ambiguous != "":
		a.rejection.Detail = v.Ambiguous
		return a.observe(Malformed), fmt.Errorf("%w: %s", penstock.ErrInvalid, v.Ambiguous), true
	case v.ListMatch == policy.AllowListed:
		return a.observe(Exempt), nil, true
	case v.ListMatch == policy.DenyListed:
		return a.observe(Refused), nil, true
	case a.options.Peek:
		if len(v.Charges) == 0 {
			return Unlimited, nil, true
		}
		outcome, err = a.decide(nil)
		return outcome, err, true
	case !a.admitsIdentities():
		return DeniedNewIdentity, nil, true
	}
	a.options.markRefundable(v.Charges, v.Limits)
	if err := a.addIdempotencyCharges(&a.evaluation, &a.options); err != nil {
		outcome, err = a.rejectMalformed(err)
		return outcome, err, true
	}
	return outcome, nil, false
}

// adjust applies IsPartOfStream and Patience to the charges.
func (r *Request) adjust(v *policy.Evaluation) {
	if r.IsPartOfStream {
		v.Charges, v.Limits = withoutSlots(v.Charges, v.Limits)
		kept := v.Shadows[:0]
		for _, s := range v.Shadows {
			if s.Charges, s.Limits = withoutSlots(s.Charges, s.Limits); len(s.Charges) > 0 {
				kept = append(kept, s)
			}
		}
		v.Shadows = kept
	}
	if r.Patience > 0 {
		for i := range v.Charges {
			c := &v.Charges[i]
			c.Patience = min(r.Patience, c.Plan.MaxPatience())
		}
	}
}

func withoutSlots(charges []penstock.Charge, limits []*policy.Limit) ([]penstock.Charge, []*policy.Limit) {
	n := 0
	for i := range charges {
		if !isSlot(&charges[i]) {
			charges[n], limits[n] = charges[i], limits[i]
			n++
		}
	}
	return charges[:n], limits[:n]
}

func (a *Admission) rejectMalformed(err error) (Outcome, error) {
	a.rejection.Detail = strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": ")
	return a.observe(Malformed), fmt.Errorf("%w: %s", penstock.ErrInvalid, a.rejection.Detail)
}

// setHolder sets the holder of slots to RequestOptions.Holder. The charges get the time as their
// Serial. So a late Refund of this instance does not end a later hold of the same Holder that
// another instance has granted.
func (o *RequestOptions) setHolder(charges []penstock.Charge) {
	if o.Holder == "" {
		return
	}
	serial := time.Now().UnixMicro()
	for i := range charges {
		if c := &charges[i]; isSlot(c) {
			c.Holder, c.Serial = o.Holder, serial
		}
	}
}

// decideBeforeAuth decides the charges of the rules with before_auth. If they are granted, they
// stay charged. Clients do not see these limits.
func (a *Admission) decideBeforeAuth() (Outcome, error) {
	latency := a.decideInStore(nil)
	d, err := a.batch.Decision, a.batch.Err
	if err != nil {
		if outcome, err := a.applyError(err, latency); !outcome.IsAdmitted() {
			return outcome, err
		}
	} else {
		a.decision, a.isLimited = d, true
		if !d.Allowed {
			return a.deny(latency), nil
		}
		a.noteSkipped(d.Source)
	}
	a.decision, a.isLimited = penstock.Decision{}, false // the method Decision does not report these rules
	return Allowed, nil
}

// decideInStore sends the charges to the store, with shadows that it may decide in the same call.
// For a peek, it makes them charges of mode Peek.
func (a *Admission) decideInStore(shadows []*batches.Batch) (latency time.Duration) {
	charges := a.evaluation.Charges
	if a.options.Peek {
		for i := range charges {
			charges[i].Mode, charges[i].Patience = penstock.Peek, 0
		}
	}
	a.batch, a.list[0] = batches.Batch{Charges: charges, Shadows: shadows}, &a.batch
	start := time.Now()
	a.controller.store(a.ctx, a.list[:])
	return time.Since(start)
}

// decide sends the charges to the store. It waits for a later turn.
func (a *Admission) decide(s *shadows) (Outcome, error) {
	var sharing []*batches.Batch
	if s != nil {
		sharing = s.sharing
	}
	latency := a.decideInStore(sharing)
	s.endSharing()
	return a.applyDecision(latency)
}

// applyDecision finds the outcome that follows from the store's decision about the batch.
func (a *Admission) applyDecision(latency time.Duration) (Outcome, error) {
	d, err := a.batch.Decision, a.batch.Err
	switch {
	case a.addedCharges > 0 && err == nil:
		a.removeIdempotencyCharges(&a.evaluation, &d)
	case a.addedCharges > 0:
		a.removeIdempotencyCharges(&a.evaluation, nil)
	}
	if a.isSettled {
		return a.rejectMalformed(errSettled)
	}
	if err != nil {
		return a.applyError(err, latency)
	}
	a.decision, a.isLimited = d, true
	if !d.Allowed {
		return a.deny(latency), nil
	}
	a.noteSkipped(d.Source)
	if !a.isRepeat { // the charges of a repeat are corrected with the first request
		a.noteGrants(a.evaluation.Charges, a.evaluation.Limits, &d)
	}
	if d.Source == penstock.FromOpen {
		return a.observeDecision(FailedOpen, latency), nil
	}
	if a.denyIf != nil && a.denyIf(a.evaluation.Charges, &a.decision) {
		return a.observeDecision(Denied, latency), nil
	}
	if wait := d.Wait(); wait > 0 {
		return a.wait(wait, latency)
	}
	return a.observeDecision(Allowed, latency), nil
}

func (a *Admission) deny(latency time.Duration) Outcome {
	if isWithoutStore(a.decision.Source) {
		a.noteHolds(a.evaluation.Charges, a.evaluation.Limits)
	}
	if a.decision.Source == penstock.FromClosed {
		a.rejection = closedBy(a.Strictest())
		return a.observeDecision(FailedClosed, latency)
	}
	for i, l := range a.evaluation.Limits {
		if s := a.visibleStatus(i); s.RetryAfter > 0 {
			a.rejection.add(l, s.RetryAfter)
		}
	}
	return a.observeDecision(Denied, latency)
}

func (r *Rejection) add(l *policy.Limit, retryAfter time.Duration) {
	r.Rule, r.RetryAfter = l.Rule.Name, max(r.RetryAfter, retryAfter)
	if !l.InHeaders {
		r.hidden |= 1 << len(r.Policies)
	}
	r.Policies = append(r.Policies, l.FullName)
}

// applyError finds the outcome of a request that has no decision. If the request's context has
// ended, the request is abandoned. If the store failed and no fallback decided, the request is
// admitted only if all of its limits fail open.
func (a *Admission) applyError(err error, latency time.Duration) (Outcome, error) {
	v, ctx := &a.evaluation, a.ctx
	a.noteHolds(v.Charges, v.Limits)
	a.isLimited = true
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		a.decision = penstock.Decision{Source: penstock.FromClosed}
		return a.observeUndecided(Abandoned, 0, penstock.FromStore, latency, err), context.Cause(ctx)
	}
	for i, l := range v.Limits {
		if !failsOpen(l) {
			a.decision = penstock.Decision{Source: penstock.FromClosed}
			a.rejection = closedBy(l)
			return a.observeUndecided(FailedClosed, i, penstock.FromClosed, latency, err), nil
		}
	}
	a.decision = penstock.Decision{Allowed: true, Source: penstock.FromOpen}
	a.noteSkipped(penstock.FromOpen)
	return a.observeUndecided(FailedOpen, 0, penstock.FromOpen, latency, err), nil
}

// noteSkipped notes the first limit that failed open in an admitting decision from the source.
func (a *Admission) noteSkipped(s penstock.Source) {
	if a.skippedRule != "" || !isWithoutStore(s) {
		return
	}
	for _, l := range a.evaluation.Limits {
		if isNotCounted(l, s) {
			a.skippedRule = l.Rule.Name
			return
		}
	}
}

// closedRetryAfter is how soon a client should retry while the store gives no answer.
const closedRetryAfter = time.Second

// closedBy returns the Rejection of a request because a limit fails closed.
func closedBy(l *policy.Limit) Rejection {
	var r Rejection
	r.add(l, closedRetryAfter)
	return r
}

// observe emits an event without a limit.
func (a *Admission) observe(o Outcome) Outcome {
	a.event = Event{Outcome: o}
	return a.emit()
}

// observeDecision emits an event of the decision, with the limit that mattered most.
func (a *Admission) observeDecision(o Outcome, latency time.Duration) Outcome {
	i := a.decision.Strictest()
	a.event = eventOf(a.evaluation.Limits[i], &a.evaluation.Charges[i])
	e := &a.event
	e.Outcome, e.Source, e.Latency, e.Err = o, a.decision.Source, latency, a.batch.Cause
	e.Decision, e.Charges = &a.decision, a.evaluation.Charges
	return a.emit()
}

// observeUndecided emits an event without a decision. The event names the limit of charge i.
func (a *Admission) observeUndecided(o Outcome, i int, source penstock.Source, latency time.Duration, err error) Outcome {
	a.event = eventOf(a.evaluation.Limits[i], &a.evaluation.Charges[i])
	e := &a.event
	e.Outcome, e.Source, e.Latency, e.Err = o, source, latency, err
	return a.emit()
}

// emit reports a.event to the observer, unless the request is a peek. It returns its outcome.
func (a *Admission) emit() Outcome {
	o := a.event.Outcome
	a.event.Context = a.ctx
	if o.IsAdmitted() {
		a.event.SkippedRule = a.skippedRule
	}
	if !a.options.Peek {
		a.controller.options.Observe(&a.event)
	}
	a.event = Event{}
	return o
}

func eventOf(l *policy.Limit, c *penstock.Charge) Event {
	return Event{Rule: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm, Key: c.Key}
}
