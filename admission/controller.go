package admission

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// Options configure a Controller. The zero value is useful.
type Options struct {
	// Settings returns how the guards treat a limit, as guard.Options.Limits does. Set it if
	// ExplicitCharges have limits that the rules lack. Default: the settings of the rules in force.
	Settings func(*penstock.Plan) guard.Settings

	// Observe is called with an Event for each decision, by many goroutines at the same time.
	// Observe must be quick, and must not keep the Event. Default: none.
	Observe func(*Event)

	// TokenRejected is called for each request whose token is rejected, by many goroutines at the same
	// time. TokenRejected must be quick. The request is limited as if it had no token. Default: none.
	TokenRejected func(*policy.TokenError)

	// Now is a clock in place of the wall clock, for tests, replay and simulation. It must be the
	// store's Options.Now. If Now is set, Done returns only when all corrections are made. Default:
	// the wall clock.
	Now func() time.Time
}

// A Controller admits requests within the limits of a policy. Make one with New, and give it to all
// transports of the process: it has the known identities, and counts the requests that wait. Many
// goroutines may use one Controller at the same time.
type Controller struct {
	store   batches.Func
	rules   policy.RuleSource
	options Options
	now     func() time.Time

	waiting         atomic.Int64 // how many requests wait
	refundsInFlight atomic.Int64 // how many rejected requests have charges that are being returned
	scratches       sync.Pool    // of *scratch
	identities      *identities  // the known identities; they stay known when the rules are reloaded
}

// New makes a Controller that counts in the store. An error wraps penstock.ErrInvalid.
//
// A store of redisguard.Open or guard.Standard also decides while its server gives no answer; see
// guard.SettingsOf. New puts a guard.Fallback around any other store, so that each limit fails as
// its on_failure says. This fallback does not count instances, so each instance enforces the whole
// of a local limit. A *memstore.Store gets none, because it fails only when it is full. While it is
// full, limits with on_failure local deny new keys.
func New(store penstock.Store, rules policy.RuleSource, o Options) (*Controller, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: admission: the store is nil; memstore.New makes one", penstock.ErrInvalid)
	}
	if rules == nil || rules.Rules() == nil {
		return nil, fmt.Errorf("%w: admission: there are no rules; load a policy first", penstock.ErrInvalid)
	}
	settings := guard.SettingsOf(store)
	if settings != nil {
		if limit := limitUnknownToGuards(rules.Rules(), settings); limit != "" {
			return nil, fmt.Errorf("%w: admission: the guards of the store do not know on_failure, ceiling, lease, split_into and deny_cache_ttl of the limit %s; "+
				"open the store with redisguard.Options{Guard: guard.Options{Limits: settings}}, where settings is the method Settings of these policy.Rules", penstock.ErrInvalid, limit)
		}
	}
	if o.Observe == nil {
		o.Observe = func(*Event) {}
	}
	if o.TokenRejected == nil {
		o.TokenRejected = func(*policy.TokenError) {}
	}
	if o.Settings == nil {
		o.Settings = func(plan *penstock.Plan) guard.Settings { return rules.Rules().Settings(plan) }
	}
	c := &Controller{rules: rules, options: o, identities: newIdentities(o.Now), now: time.Now}
	if o.Now != nil {
		c.now = o.Now
	}
	c.scratches.New = func() any { return new(scratch) }
	// Guards have a fallback, and a store in memory needs none. withLastResort decides the batches for
	// which these stores return an error.
	if _, isMemory := store.(*memstore.Store); isMemory || settings != nil {
		c.store = c.withLastResort(store)
	} else {
		c.store = c.withFallback(store)
	}
	return c, nil
}

// limitUnknownToGuards returns the name of an enforced limit for which the policy has settings of
// guards, but the guards of the store have none. If there is no such limit, it returns "".
func limitUnknownToGuards(rules *policy.Rules, settings func(*penstock.Plan) guard.Settings) string {
	for _, rule := range rules.Spec().Rules {
		for _, l := range rule.Limits {
			s := l.Guard
			if s.OnFailure == guard.FailLocal { // the usual default
				s.OnFailure = guard.FailDefault
			}
			firstTier := l.Variants[0] // the guards treat all tiers of a limit alike
			if !l.Shadow && s != (guard.Settings{}) && settings(firstTier) == (guard.Settings{}) {
				return rule.Name + "." + l.Name
			}
		}
	}
	return ""
}

// Rules returns the rules in force.
func (c *Controller) Rules() *policy.Rules { return c.rules.Rules() }

// Waiting returns how many requests wait.
func (c *Controller) Waiting() int { return int(c.waiting.Load()) }

// Observe calls Options.Observe. It is for requests that a transport answers without Admit, such as
// malformed ones.
func (c *Controller) Observe(e *Event) { c.options.Observe(e) }

// A Request is a request that attributes describe. The policy decides which rules apply to it.
type Request struct {
	// Attributes describe the request. They must be set. Admit does not use them after it has
	// returned.
	Attributes policy.Attributes

	// BeforeWait is called with Attributes while the request waits. An HTTP transport reads the body
	// there: net/http notices that a client has left only after the body is read. Default: none.
	BeforeWait func(policy.Attributes)

	// IsPartOfStream means that the request is a further part of an earlier request that was admitted
	// and still runs, such as another message of a stream. The further part takes no slots, because
	// the earlier request holds them.
	IsPartOfStream bool

	// Patience is the longest time that the request may wait for its turn. Limits that cannot let
	// requests wait ignore it. Default: each limit's max_wait.
	Patience time.Duration

	RequestOptions
}

// A RuleCall calls one rule by its name. It is for callers that state the key and the cost
// themselves, and have no attributes. The allow list, the deny list and new_identities do not
// apply, and the tier is the last one. A RuleCall never waits.
type RuleCall struct {
	// Rule is the name of the rule. What the rule matches does not matter.
	Rule string

	// Key is the key to charge, such as "user:42". Each limit of the rule must accept keys of this
	// kind ("user"). Requests by other transports that have this key share its counters. A limit whose
	// identity is Global ignores this key.
	Key string

	// Cost is charged to each limit of the rule, whatever cost the rule sets.
	Cost int64

	// CanEnd means that the caller will report how its request ends: it returns slots of in_flight
	// limits, and reports the status for on_status. Without CanEnd, a rule with such limits cannot be
	// called.
	CanEnd bool

	RequestOptions
}

// ExplicitCharges are charges of limits that are not in the Rules. Such limits are in another file,
// or a caller sends them with each call. The allow list, the deny list and new_identities of the
// Rules do not apply.
type ExplicitCharges struct {
	// Charges are decided as one batch, in the modes and with the Patience that they state. There are
	// 1 to penstock.MaxCharges. With Shadows, there may be none.
	Charges []penstock.Charge

	// Limits has the limit of each charge. Each needs a Rule, which events name, and a Guard, which
	// states what happens while the store gives no answer. guard.Options.Limits must return the same
	// settings for its plan.
	Limits []*policy.Limit

	// Shadows are decided beside the charges, and change nothing for the request.
	Shadows []policy.Shadow

	// DenyIf lets a transport deny a request, or a shadow, whose charges were all granted. DenyIf is
	// for charges of mode Force, which are granted even beyond their limits. If DenyIf returns true,
	// the outcome is Denied, but the charges are not refunded. DenyIf is not called if no counter was
	// charged. Default: a request whose charges were granted is admitted.
	DenyIf func([]penstock.Charge, *penstock.Decision) bool

	RequestOptions
}

// RequestOptions are options of requests of all kinds. The zero value is useful.
type RequestOptions struct {
	// IdempotencyKey makes repeats of the request free. After the request is granted, a request
	// with the same IdempotencyKey and the same charges is admitted and charges nothing, for ten
	// minutes. A request with an IdempotencyKey never waits, and may have at most 63 charges. A
	// repeat is charged again in three cases. The store gave no answer to one of the two requests,
	// or the store has lost its data, or an error interrupted a batch over several servers of a
	// Cluster. Rules with before_auth, new_identities and shadows count repeats too. Repeats are
	// free, so the IdempotencyKey must not come from the client that is limited. It has at most 512
	// bytes. Default: none.
	IdempotencyKey string

	// Settleable makes a request with an IdempotencyKey a reservation, whose charges the caller
	// corrects with a SettledCharge for this long. Repeats are free for this long too, but after
	// the SettledCharge the outcome is Malformed. A reservation may have at most 62 charges.
	// Default: no reservation.
	Settleable time.Duration

	// Holder names the holder of the slots that the request takes. A request with the same Holder
	// renews these slots, and takes no others. Default: a random name.
	Holder string

	// CheckLimits is called with the enforced limits that apply, before anything is charged.
	// CheckLimits must not keep the slice. If it returns an error, the outcome is Malformed. The error
	// says why the transport cannot enforce the limits, and what to do. Default: the transport can
	// enforce all limits.
	CheckLimits func([]*policy.Limit) error

	// Rules decide the request. Set them if the transport has already used certain rules for this
	// request, such as for its path. Default: the rules in force.
	Rules *policy.Rules

	// Peek only reports what would be decided now. Nothing is charged or observed. A request that
	// would have to wait is denied.
	Peek bool

	// IsRefundable must be set if TakeGrants will be called. The store then gives each charge a
	// Receipt, so that it can be refunded. Default: it does so for requests that may wait, and for
	// limits with on_status or a true cost.
	IsRefundable bool

	// Reuse is memory for the Admission. It must be a zero Admission. Do not use it for a second
	// request, because goroutines of the first may still use it after Done. Default: new memory.
	Reuse *Admission
}

// Admit decides a request by the rules that apply to it. If the request has to wait, Admit returns
// at its turn, or when ctx ends.
//
// The Admission is never nil. Its Done must be called, whatever the outcome is. If the
// outcome is Malformed, the error wraps penstock.ErrInvalid, and contains nothing that the client
// sent. If the outcome is Abandoned, the error is the cause of ctx. For all other outcomes the
// error is nil.
func (c *Controller) Admit(ctx context.Context, r Request) (*Admission, Outcome, error) {
	a := c.begin(ctx, r.RequestOptions)
	a.attributes, a.beforeWait = r.Attributes, r.BeforeWait
	outcome, err := a.admit(&r)
	return a, a.end(outcome), err
}

// AdmitRule decides a call of one rule, as Admit decides a request. If the rule cannot be called in
// this way, the outcome is Malformed.
func (c *Controller) AdmitRule(ctx context.Context, r RuleCall) (*Admission, Outcome, error) {
	a := c.begin(ctx, r.RequestOptions)
	err := a.options.Rules.EvaluateRule(r.Rule, r.Key, r.Cost, r.CanEnd, &a.evaluation)
	outcome, err := a.admitCharges(err)
	return a, a.end(outcome), err
}

// AdmitCharges decides charges that the caller states, as Admit decides a request. If the charges
// or their limits are invalid, the outcome is Malformed.
func (c *Controller) AdmitCharges(ctx context.Context, r ExplicitCharges) (*Admission, Outcome, error) {
	a := c.begin(ctx, r.RequestOptions)
	err := a.evaluateCharges(&r)
	outcome, err := a.admitCharges(err)
	return a, a.end(outcome), err
}

// begin returns an Admission for a request that is not decided yet.
func (c *Controller) begin(ctx context.Context, o RequestOptions) *Admission {
	a := o.Reuse
	if a == nil {
		a = new(Admission)
	}
	if o.Rules == nil {
		o.Rules = c.Rules()
	}
	a.controller, a.ctx, a.options = c, ctx, o
	a.scratch = c.scratches.Get().(*scratch)
	return a
}

// end makes the Admission of a decided request ready for its caller. It returns the outcome.
func (a *Admission) end(outcome Outcome) Outcome {
	a.isRejected = !outcome.IsAdmitted()
	if !a.isRejected {
		a.start()
	}
	return outcome
}
