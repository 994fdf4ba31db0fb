package checkapi

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/policy"
)

// The bounds of a request, in characters. A character has up to four bytes.
const (
	maxKey    = 1024
	maxID     = 128 // an IdempotencyKey has at most 512 bytes
	maxHolder = penstock.MaxHolder / 4
)

// isLonger reports whether a text has more than n characters.
func isLonger(text string, n int) bool { return len(text) > n && utf8.RuneCountInString(text) > n }

// A purpose is the kind of call that a check is for.
type purpose uint8

const (
	deciding  purpose = iota // Check and CheckBatch: the call only decides
	reserving                // Reserve: a Settle corrects the charges later
	acquiring                // Acquire: a Release returns the slots later
	operating                // Peek, Reset and Explain: the call charges nothing
)

// A validCheck is a validated CheckRequest. One of attributes, rule and callerLimits is set.
type validCheck struct {
	attributes   *attributes
	rule         *admission.RuleCall
	callerLimits *admission.ExplicitCharges
	specs        []spec // of the charges of callerLimits, in the same order
	rules        *policy.Rules
	id           string // the request_id
	purpose      purpose
}

// read validates a request. In errors, the prefix stands before the name of a field: with the
// prefix "check.", the field key is check.key.
func (s *Service) read(r *penstockv1.CheckRequest, prefix string, p purpose) (*validCheck, error) {
	if r == nil {
		return nil, invalid(fieldName(prefix), "it is missing")
	}
	check := &validCheck{rules: s.controller.Rules(), id: r.GetRequestId(), purpose: p}
	cost := int64(1)
	if r.Cost != nil {
		cost = r.GetCost()
	}
	hasLimits := len(r.GetLimits()) > 0
	switch {
	case isLonger(check.id, maxID):
		return nil, invalid(prefix+"request_id", "it is longer than %d characters", maxID)
	case check.id != "" && p == operating:
		return nil, invalid(prefix+"request_id", "this call charges nothing, so a repeat needs no id; remove it")
	case r.Attributes != nil && (r.GetRule() != "" || hasLimits || r.GetKey() != ""):
		return nil, invalid(prefix+"attributes", "with attributes the policy decides; remove rule, key and limits, or the attributes")
	case r.Attributes != nil && r.Cost != nil:
		return nil, invalid(prefix+"cost", "with attributes the policy sets the cost; remove it")
	case r.GetRule() != "" && hasLimits:
		return nil, invalid(prefix+"limits", "the rule %q has limits already; remove rule or limits", r.GetRule())
	case cost < 0 || cost > penstock.MaxCost:
		return nil, invalid(prefix+"cost", "write 0 to %d", int64(penstock.MaxCost))
	case isLonger(r.GetKey(), maxKey):
		return nil, invalid(prefix+"key", "it is longer than %d characters", maxKey)
	}
	var err error
	switch {
	case r.Attributes != nil:
		if check.attributes, err = readAttributes(r.Attributes, check.rules.Spec().Paths); err != nil {
			return nil, prefixed(prefix, err)
		}
	case r.GetRule() != "":
		if !syntax.IsName(r.GetRule()) {
			return nil, invalid(prefix+"rule", "write the name of a rule: 1 to 64 of a-z, 0-9, '_', '.' and '-'")
		}
		if check.rules.Rule(r.GetRule()) == nil {
			return nil, failf(codes.NotFound, "%srule: %s", prefix, check.rules.NoRule(r.GetRule()))
		}
		check.rule = &admission.RuleCall{Rule: r.GetRule(), Key: r.GetKey(), Cost: cost, CanEnd: true}
	case hasLimits:
		if err = s.readLimits(check, r, cost, prefix); err != nil {
			return nil, err
		}
	default:
		return nil, invalid(fieldName(prefix), "it has nothing to check; write attributes, or a rule and a key, or a key and limits")
	}
	return check, nil
}

// fieldName returns the name of the message whose fields have this prefix.
func fieldName(prefix string) string {
	if prefix == "" {
		return "the request"
	}
	return prefix[:len(prefix)-1]
}

// prefixed puts a prefix before the field in the text of a failure.
func prefixed(prefix string, err error) error {
	if f, ok := errors.AsType[*failure](err); ok && prefix != "" {
		return &failure{code: f.code, text: prefix + f.text}
	}
	return err
}

func (s *Service) readLimits(check *validCheck, r *penstockv1.CheckRequest, cost int64, prefix string) error {
	switch {
	case !s.options.AllowCallerLimits:
		return errCallerLimits
	case len(r.Limits) > maxCallerLimits:
		return invalid(prefix+"limits", "there are %d; at most %d are allowed", len(r.Limits), maxCallerLimits)
	case r.GetKey() == "":
		return invalid(prefix+"key", "it is missing; name the client whom the limits are for, such as user:42")
	}
	check.callerLimits = new(admission.ExplicitCharges)
	for i, l := range r.Limits {
		at := fmt.Sprintf("%slimits[%d]", prefix, i)
		own, err := s.callerLimits.limitOf(specOf(l), at)
		if err != nil {
			return err
		}
		if why := check.obstacleTo(own.limit); why != nil {
			return failf(codes.FailedPrecondition, "%s: %v", at, why)
		}
		c := penstock.Charge{Key: r.GetKey(), Plan: own.plan, Cost: cost}
		if own.plan.Algorithm().OwnsRefunds() {
			c.Holder = randomName()
		}
		for _, other := range check.callerLimits.Charges {
			if other.Plan.Name() == own.plan.Name() {
				return conflict(at+".name", "two limits are called %q; give one another name", own.plan.Name())
			}
		}
		check.callerLimits.Charges = append(check.callerLimits.Charges, c)
		check.callerLimits.Limits = append(check.callerLimits.Limits, own.limit)
		check.specs = append(check.specs, own.spec)
	}
	return nil
}

// The reasons why a call cannot enforce a limit.
var (
	errInFlight   = errors.New("it is an in_flight limit, whose slot must be returned; call Acquire")
	errOnStatus   = errors.New("its on_status needs the status of the response; call Reserve, and send the status with Settle")
	errCostActual = errors.New("its cost.actual is known after the response; call Reserve, and send the actual cost with Settle")
	errCostBody   = errors.New("it charges by the size of the body; write attributes.body_size")

	errNoSlot     = errors.New("no in_flight limit applies to the request, so there is no slot to hold; call Check")
	errManyLimits = fmt.Errorf("%d limits apply to the request, so a batch has no room for the extra charge of Settle; call Check", penstock.MaxCharges)
)

// checkLimit returns an error that names the limit if the call cannot enforce it.
func (check *validCheck) checkLimit(l *policy.Limit) error {
	if why := check.obstacleTo(l); why != nil {
		return fmt.Errorf("limit %s: %w", l.FullName, why)
	}
	return nil
}

// obstacleTo returns the reason why the call cannot enforce a limit, or nil if it can.
func (check *validCheck) obstacleTo(l *policy.Limit) error {
	if check.purpose == operating {
		return nil
	}
	canSettle := check.purpose == reserving
	canReturnSlots := canSettle || check.purpose == acquiring
	switch {
	case l.Variants[0].Algorithm().NeedsHolder() && !canReturnSlots:
		return errInFlight
	case l.Status != nil && !canSettle:
		return errOnStatus
	case check.attributes == nil: // the caller states the cost
		return nil
	case l.CostHeader != "" && !canSettle:
		return errCostActual
	case l.Cost.Body > 0 && check.attributes.bodySize < 0:
		return errCostBody
	}
	return nil
}

// checkLimits returns an error if the call cannot enforce all limits that apply to the request.
func (check *validCheck) checkLimits(limits []*policy.Limit) error {
	hasSlot := false
	for _, l := range limits {
		if err := check.checkLimit(l); err != nil {
			return err
		}
		hasSlot = hasSlot || l.Variants[0].Algorithm().NeedsHolder()
	}
	switch {
	case check.purpose == acquiring && !hasSlot:
		return errNoSlot
	case check.purpose == reserving && len(limits) == penstock.MaxCharges:
		return errManyLimits
	}
	return nil
}

func (check *validCheck) options() admission.RequestOptions {
	return admission.RequestOptions{
		Rules: check.rules, IdempotencyKey: check.id, CheckLimits: check.checkLimits, Peek: check.purpose == operating,
	}
}
