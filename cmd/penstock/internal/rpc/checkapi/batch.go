package checkapi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

const maxBatch = 1000

func (s *Service) CheckBatch(ctx context.Context, r *penstockv1.CheckBatchRequest) (*penstockv1.CheckBatchResponse, error) {
	n := len(r.GetChecks())
	switch {
	case isLonger(r.GetRequestId(), maxID):
		return nil, invalid("request_id", "it is longer than %d characters", maxID)
	case n == 0 || n > maxBatch:
		return nil, invalid("checks", "there are %d; write 1 to %d", n, maxBatch)
	case r.GetAllOrNothing():
		return s.checkTogether(ctx, r)
	case r.GetRequestId() != "":
		return nil, invalid("request_id", "requests that are decided separately have ids of their own; write a request_id into each element of checks")
	}
	checks := make([]readCheck, n)
	for i, request := range r.GetChecks() {
		check, err := s.read(request, fmt.Sprintf("checks[%d].", i), deciding)
		if err != nil {
			if f := asFailure(err); f.code == codes.InvalidArgument && !f.isConflict {
				return nil, err // the calling program has a bug; nothing has been charged
			}
		}
		checks[i] = readCheck{check, err}
	}
	return s.checkEach(ctx, checks), nil
}

// A readCheck is a valid request of a batch, or the error of an invalid one.
type readCheck struct {
	check *validCheck
	err   error
}

// checkEach decides each request separately: several at the same time, and in any order.
func (s *Service) checkEach(ctx context.Context, checks []readCheck) *penstockv1.CheckBatchResponse {
	answers := make([]*penstockv1.CheckBatchAnswer, len(checks))
	var next atomic.Int64
	decideRest := func() {
		for {
			i := int(next.Add(1)) - 1
			if i >= len(answers) {
				return
			}
			answers[i] = s.checkOne(ctx, checks[i])
		}
	}
	var workers sync.WaitGroup
	for range min(len(answers), s.options.Parallel) - 1 {
		if s.parallel.Add(1) > int64(s.options.MaxParallel) {
			s.parallel.Add(-1)
			break
		}
		workers.Go(func() {
			defer s.parallel.Add(-1)
			decideRest()
		})
	}
	decideRest()
	workers.Wait()
	all := &penstockv1.CheckBatchResponse{Allowed: true, Answers: answers}
	for _, a := range answers {
		all.Allowed = all.Allowed && a.GetDecision().GetAllowed()
	}
	return all
}

// checkOne decides one request of a batch. If that panics, the answer is an internal error.
func (s *Service) checkOne(ctx context.Context, r readCheck) (answer *penstockv1.CheckBatchAnswer) {
	// This is the answer if s.decide panics.
	answer = &penstockv1.CheckBatchAnswer{Error: &penstockv1.Error{Code: codeNames[codes.Internal], Message: panicked.Message, MayBeCharged: true}}
	defer panicked.Recover("a request of a batch is decided")
	var decision *penstockv1.CheckResponse
	err := r.err
	if err == nil {
		decision, err = s.decide(ctx, r.check)
	}
	if err != nil {
		f := asFailure(err)
		return &penstockv1.CheckBatchAnswer{Error: &penstockv1.Error{Code: codeNames[f.code], Message: f.text, MayBeCharged: f.mayBeCharged}}
	}
	return &penstockv1.CheckBatchAnswer{Decision: decision}
}

// checkTogether decides all requests as one batch of charges.
func (s *Service) checkTogether(ctx context.Context, r *penstockv1.CheckBatchRequest) (*penstockv1.CheckBatchResponse, error) {
	if len(r.Checks) > penstock.MaxCharges {
		return nil, invalid("checks", "there are %d; with all_or_nothing, write at most %d", len(r.Checks), penstock.MaxCharges)
	}
	together := new(admission.ExplicitCharges)
	ends := make([]int, len(r.Checks)) // where the charges of each request end
	var rules *policy.Rules
	for i, request := range r.Checks {
		prefix := fmt.Sprintf("checks[%d].", i)
		check, err := s.read(request, prefix, deciding)
		switch {
		case err != nil:
			return nil, err
		case check.id != "":
			return nil, invalid(prefix+"request_id", "a batch that is all or nothing has one request_id; write it beside checks")
		case check.attributes != nil:
			return nil, invalid(prefix+"attributes", "with all_or_nothing, write a rule and a key, or a key and limits")
		}
		if rules == nil {
			rules = check.rules
		}
		if err := check.appendTo(together, rules); err != nil {
			return nil, failf(codes.FailedPrecondition, "%s: %v", fieldName(prefix), err)
		}
		ends[i] = len(together.Charges)
	}
	if n := len(together.Charges); n > penstock.MaxCharges {
		return nil, conflict("checks", "together they have %d charges; at most %d are allowed", n, penstock.MaxCharges)
	}
	if err := penstock.Check(together.Charges); err != nil {
		return nil, conflict("checks", "%s", withoutKind(err))
	}
	together.Rules, together.IdempotencyKey = rules, r.GetRequestId()
	a, decision, err := answerTo(s.controller.AdmitCharges(ctx, *together))
	if err != nil {
		return nil, err
	}
	defer a.Done(admission.Result{})
	all := &penstockv1.CheckBatchResponse{Allowed: decision.Allowed}
	// visible has the limits that callers may see, in the order of the charges.
	visible, begin := a.AppendVisible(nil), 0
	for _, end := range ends {
		part := &penstockv1.CheckResponse{Allowed: decision.Allowed, Outcome: decision.Outcome, Source: decision.Source, IsRepeat: decision.IsRepeat}
		for _, l := range together.Limits[begin:end] {
			if len(visible) == 0 || visible[0].Limit != l {
				continue // a limit that callers may not see
			}
			status := statusOf(&visible[0])
			visible = visible[1:]
			part.Limits = append(part.Limits, status)
			if status.RetryAfterMs != 0 {
				part.DeniedBy = append(part.DeniedBy, status.Limit)
			}
		}
		if !part.Allowed {
			part.RetryAfterMs = decision.RetryAfterMs
		}
		begin = end
		all.Answers = append(all.Answers, &penstockv1.CheckBatchAnswer{Decision: part})
	}
	return all, nil
}

func (check *validCheck) evaluateRule(rules *policy.Rules, v *policy.Evaluation) error {
	return rules.EvaluateRule(check.rule.Rule, check.rule.Key, check.rule.Cost, check.rule.CanEnd, v)
}

// appendTo adds the charges of a check without attributes to c.
func (check *validCheck) appendTo(c *admission.ExplicitCharges, rules *policy.Rules) error {
	if check.callerLimits != nil {
		c.Charges, c.Limits = append(c.Charges, check.callerLimits.Charges...), append(c.Limits, check.callerLimits.Limits...)
		return nil
	}
	var evaluation policy.Evaluation
	if err := check.evaluateRule(rules, &evaluation); err != nil {
		return err
	}
	for _, l := range evaluation.Limits {
		if err := check.checkLimit(l); err != nil {
			return err
		}
	}
	c.Charges, c.Limits = append(c.Charges, evaluation.Charges...), append(c.Limits, evaluation.Limits...)
	return nil
}
