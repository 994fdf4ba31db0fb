package checkapi

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/policy"
)

// The bounds of a request, in characters, which have up to four bytes.
const (
	maxKey    = 1024
	maxID     = admission.MaxID / 4
	maxHolder = penstock.MaxHolder / 4
)

// isLonger tells whether a text has more than n characters.
func isLonger(text string, n int) bool { return len(text) > n && utf8.RuneCountInString(text) > n }

// A purpose is what a caller can do about a request after the decision.
type purpose uint8

const (
	deciding  purpose = iota // nothing
	reserving                // it settles the request
	acquiring                // it returns slots
	operating                // Peek, Reset and Explain charge nothing
)

// A question is a request in the form in which it is decided. One of attributes, named and direct
// is set.
type question struct {
	attributes *attributes
	named      *policy.NamedCall
	direct     *policy.DirectCall
	specs      []spec // of the charges of direct
	rules      *policy.Rules
	id         string
	purpose    purpose
}

// read checks a request. field is where it is, for errors: "" or "check.".
func (s *Service) read(r *penstockv1.CheckRequest, field string, p purpose) (*question, error) {
	if r == nil {
		return nil, invalid(fieldName(field), "it is missing")
	}
	q := &question{rules: s.controller.Rules(), id: r.GetRequestId(), purpose: p}
	cost := int64(1)
	if r.Cost != nil {
		cost = r.GetCost()
	}
	hasLimits := len(r.GetLimits()) > 0
	switch {
	case isLonger(q.id, maxID):
		return nil, invalid(field+"request_id", "it is longer than %d characters", maxID)
	case q.id != "" && p == operating:
		return nil, invalid(field+"request_id", "nothing is charged, so nothing is repeated; remove it")
	case r.Attributes != nil && (r.GetRule() != "" || hasLimits || r.GetKey() != ""):
		return nil, invalid(field+"attributes", "with attributes the policy decides; remove rule, key and limits, or the attributes")
	case r.Attributes != nil && r.Cost != nil:
		return nil, invalid(field+"cost", "with attributes the policy says the cost; remove it")
	case r.GetRule() != "" && hasLimits:
		return nil, invalid(field+"limits", "the rule %q has its own; remove one of them", r.GetRule())
	case cost < 0 || cost > penstock.MaxCost:
		return nil, invalid(field+"cost", "write 0 to %d", int64(penstock.MaxCost))
	case isLonger(r.GetKey(), maxKey):
		return nil, invalid(field+"key", "it is longer than %d characters", maxKey)
	}
	var err error
	switch {
	case r.Attributes != nil:
		if q.attributes, err = readAttributes(r.Attributes, q.rules.Paths()); err != nil {
			return nil, prefixed(field, err)
		}
	case r.GetRule() != "":
		if !policy.IsName(r.GetRule()) {
			return nil, invalid(field+"rule", "write the name of a rule: 1 to 64 of a-z, 0-9, '_', '.' and '-'")
		}
		if q.rules.Rule(r.GetRule()) == nil {
			return nil, failf(codes.NotFound, "%srule: the policy has no rule of this name", field)
		}
		q.named = &policy.NamedCall{Rule: r.GetRule(), Key: r.GetKey(), Cost: cost, CanEnd: true}
	case hasLimits:
		if err = s.readLimits(q, r, cost, field); err != nil {
			return nil, err
		}
	default:
		return nil, invalid(fieldName(field), "it asks nothing; write attributes, or a rule and a key, or a key and limits")
	}
	return q, nil
}

// fieldName names the message that has the fields with this prefix.
func fieldName(prefix string) string {
	if prefix == "" {
		return "the request"
	}
	return prefix[:len(prefix)-1]
}

// prefixed says that the field of a failure is in a message.
func prefixed(field string, err error) error {
	if f, ok := errors.AsType[*failure](err); ok && field != "" {
		return &failure{code: f.code, text: field + f.text}
	}
	return err
}

// readLimits reads the limits that a request states.
func (s *Service) readLimits(q *question, r *penstockv1.CheckRequest, cost int64, field string) error {
	switch {
	case !s.options.AllowStatedLimits:
		return errNoStated
	case len(r.Limits) > maxStated:
		return invalid(field+"limits", "there are %d; the most is %d", len(r.Limits), maxStated)
	case r.GetKey() == "":
		return invalid(field+"key", "it is missing; write whose limits they are, such as user:42")
	}
	q.direct = new(policy.DirectCall)
	for i, l := range r.Limits {
		at := fmt.Sprintf("%slimits[%d]", field, i)
		stated, err := s.stated.of(specOf(l), at)
		if err != nil {
			return err
		}
		if why := q.needs(stated.limit); why != nil {
			return failf(codes.FailedPrecondition, "%s: %v", at, why)
		}
		c := penstock.Charge{Key: r.GetKey(), Plan: stated.plan, Cost: cost}
		if stated.plan.Algorithm().OwnsRefunds() {
			c.Holder = randomName()
		}
		for _, other := range q.direct.Charges {
			if other.Plan.Name() == stated.plan.Name() {
				return conflict(at+".name", "two limits are called %q; give one another name", stated.plan.Name())
			}
		}
		q.direct.Charges = append(q.direct.Charges, c)
		q.direct.Limits = append(q.direct.Limits, stated.limit)
		q.specs = append(q.specs, stated.spec)
	}
	return nil
}

// The reasons why a limit cannot be enforced by a call.
var (
	errSlots  = errors.New("its slot must be returned, as it is an in_flight limit; call Acquire")
	errStatus = errors.New("its on_status needs the status of the response; call Reserve, and state it to Settle")
	errActual = errors.New("its cost.actual is known after the response; call Reserve, and state it to Settle")
	errNoSlot = errors.New("no in_flight limit applies to the request, so there is no slot to hold; call Check")

	errManyLimits = errors.New("the request has so many limits that Settle could not add the one that it needs; call Check")
	errBodySize   = errors.New("it charges by the size of the body; state attributes.body_size")
)

// refuses says why a limit cannot be enforced for the question, or returns nil.
func (q *question) refuses(l *policy.Limit) error {
	if why := q.needs(l); why != nil {
		return fmt.Errorf("limit %s: %w", l.Policy, why)
	}
	return nil
}

// needs says what a limit needs that the question cannot give, or returns nil.
func (q *question) needs(l *policy.Limit) error {
	switch canReturn := q.purpose == acquiring || q.purpose == reserving; {
	case q.purpose == operating:
		return nil
	case l.Variants[0].Algorithm().NeedsHolder() && !canReturn:
		return errSlots
	case l.Status != nil && q.purpose != reserving:
		return errStatus
	case l.CostHeader != "" && q.attributes != nil && q.purpose != reserving:
		return errActual
	case l.Cost.Body > 0 && q.attributes != nil && q.attributes.bodySize < 0:
		return errBodySize
	}
	return nil
}

// checkLimits says why the limits that apply cannot be enforced, or returns nil.
func (q *question) checkLimits(limits []*policy.Limit) error {
	hasSlot := false
	for _, l := range limits {
		if err := q.refuses(l); err != nil {
			return err
		}
		hasSlot = hasSlot || l.Variants[0].Algorithm().NeedsHolder()
	}
	switch {
	case q.purpose == acquiring && !hasSlot:
		return errNoSlot
	case q.purpose == reserving && len(limits) == penstock.MaxCharges:
		return errManyLimits
	}
	return nil
}

// request returns the question for package admission.
func (q *question) request() admission.Request {
	r := admission.Request{Named: q.named, Direct: q.direct, Rules: q.rules, ID: q.id, CheckLimits: q.checkLimits, Peek: q.purpose == operating, RenewsHolds: true}
	if q.attributes != nil {
		r.Attributes = q.attributes
	}
	return r
}
