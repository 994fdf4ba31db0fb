package checkapi

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/policy"
)

func (s *Service) Reset(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.ResetResponse, error) {
	_, evaluation, err := s.evaluate(r)
	if err != nil {
		return nil, err
	}
	if len(evaluation.Charges) == 0 {
		return nil, failf(codes.FailedPrecondition, "no limit applies to the request, so nothing can be reset")
	}
	for i := range evaluation.Charges {
		evaluation.Charges[i].Mode, evaluation.Charges[i].Patience = penstock.Reset, 0
	}
	if err := s.changeInStore(ctx, evaluation.Charges); err != nil {
		return nil, err
	}
	return &penstockv1.ResetResponse{}, nil
}

// evaluate returns the limits that apply to an operator's request. It charges nothing.
func (s *Service) evaluate(r *penstockv1.CheckRequest) (*validCheck, *policy.Evaluation, error) {
	check, err := s.read(r, "", operating)
	if err != nil {
		return nil, nil, err
	}
	evaluation := new(policy.Evaluation)
	switch {
	case check.attributes != nil:
		check.rules.Evaluate(check.attributes, evaluation)
		if evaluation.Ambiguous != "" {
			return nil, nil, failf(codes.FailedPrecondition, "%s", evaluation.Ambiguous)
		}
		return check, evaluation, nil
	case check.rule != nil:
		err = check.evaluateRule(check.rules, evaluation)
	default:
		err = check.rules.EvaluateCharges(check.callerLimits.Charges, check.callerLimits.Limits, nil, evaluation)
	}
	if err != nil {
		return nil, nil, failf(codes.FailedPrecondition, "%s", withoutKind(err))
	}
	return check, evaluation, nil
}

func (s *Service) Explain(_ context.Context, r *penstockv1.CheckRequest) (*penstockv1.ExplainResponse, error) {
	check, evaluation, err := s.evaluate(r)
	if err != nil {
		return nil, err
	}
	answer := &penstockv1.ExplainResponse{Tier: evaluation.Tier}
	switch evaluation.ListMatch {
	case policy.AllowListed:
		answer.List = "allow"
	case policy.DenyListed:
		answer.List = "deny"
	}
	answer.Rules = explainRules(check, evaluation)
	add := func(charges []penstock.Charge, limits []*policy.Limit, isShadow bool) {
		for i := range charges {
			c, l := &charges[i], limits[i]
			answer.Charges = append(answer.Charges, &penstockv1.ExplainedCharge{
				Limit: l.FullName, Key: c.Key, Rate: describe.Rate(c.Plan), Algorithm: l.Algorithm, Cost: c.Cost, OnFailure: l.Guard.OnFailure.String(), IsShadow: isShadow,
			})
		}
	}
	add(evaluation.Charges, evaluation.Limits, false)
	for i := range evaluation.Shadows {
		add(evaluation.Shadows[i].Charges, evaluation.Shadows[i].Limits, true)
	}
	return answer, nil
}

// explainRules lists the rules that match, the most specific first.
func explainRules(check *validCheck, evaluation *policy.Evaluation) (all []*penstockv1.ExplainedRule) {
	matching := evaluation.Matched
	if check.attributes != nil {
		matching = check.rules.Matching(check.attributes)
	}
	for _, rule := range matching {
		all = append(all, &penstockv1.ExplainedRule{Name: rule.Name, Applies: slices.Contains(evaluation.Matched, rule)})
	}
	return all
}
