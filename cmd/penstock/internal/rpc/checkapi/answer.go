package checkapi

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
)

// never stands for penstock.Never in retry_after_ms.
const never = -1

// inMS returns d in milliseconds. It rounds up, so that no caller retries too early.
func inMS(d time.Duration) int64 {
	switch {
	case d == penstock.Never:
		return never
	case d <= 0:
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}

// randomName returns a name of 26 characters with 130 random bits.
func randomName() string { return strings.ToLower(rand.Text()) }

// admit decides a check. If the error is nil, the caller must call Done of the Admission.
func (s *Service) admit(ctx context.Context, check *validCheck, o admission.RequestOptions) (*admission.Admission, *penstockv1.CheckResponse, error) {
	switch {
	case check.attributes != nil:
		return answerTo(s.controller.Admit(ctx, admission.Request{Attributes: check.attributes, RequestOptions: o}))
	case check.rule != nil:
		call := *check.rule
		call.RequestOptions = o
		return answerTo(s.controller.AdmitRule(ctx, call))
	}
	charges := *check.callerLimits
	charges.RequestOptions = o
	return answerTo(s.controller.AdmitCharges(ctx, charges))
}

// answerTo returns the response to a request that was decided. If there is no decision, it calls
// Done and returns an error.
func answerTo(a *admission.Admission, outcome admission.Outcome, err error) (*admission.Admission, *penstockv1.CheckResponse, error) {
	if err != nil {
		why := a.Rejection()
		a.Done(admission.Result{})
		if outcome == admission.Malformed {
			return nil, nil, failf(codes.FailedPrecondition, "%s", why.Detail)
		}
		return nil, nil, asFailure(err)
	}
	return a, decisionOf(a, outcome), nil
}

func decisionOf(a *admission.Admission, outcome admission.Outcome) *penstockv1.CheckResponse {
	why := a.Rejection()
	r := &penstockv1.CheckResponse{Allowed: outcome.IsAdmitted(), Outcome: outcome.String(), DeniedBy: why.Policies, IsRepeat: a.IsRepeat()}
	if d, ok := a.Decision(); ok {
		r.Source = d.Source.String()
	}
	switch {
	case outcome == admission.Refused:
		r.RetryAfterMs = never
	case !r.Allowed:
		r.RetryAfterMs = inMS(why.RetryAfter)
	}
	var few [4]admission.LimitStatus // more limits are allocated
	for _, l := range a.AppendVisible(few[:0]) {
		r.Limits = append(r.Limits, statusOf(&l))
	}
	return r
}

func statusOf(l *admission.LimitStatus) *penstockv1.LimitStatus {
	return &penstockv1.LimitStatus{
		Limit: l.Limit.FullName, Capacity: l.Plan.Capacity(), Remaining: l.Status.Remaining,
		RetryAfterMs: inMS(l.Status.RetryAfter), ResetAfterMs: inMS(l.Status.ResetAfter),
	}
}

func (s *Service) Check(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.CheckResponse, error) {
	return s.check(ctx, r, deciding)
}

func (s *Service) Peek(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.CheckResponse, error) {
	return s.check(ctx, r, operating)
}

func (s *Service) check(ctx context.Context, r *penstockv1.CheckRequest, p purpose) (*penstockv1.CheckResponse, error) {
	check, err := s.read(r, "", p)
	if err != nil {
		return nil, err
	}
	return s.decide(ctx, check)
}

// decide decides a check that needs no later Settle or Release.
func (s *Service) decide(ctx context.Context, check *validCheck) (*penstockv1.CheckResponse, error) {
	a, answer, err := s.admit(ctx, check, check.options())
	if err != nil {
		return nil, err
	}
	a.Done(admission.Result{})
	return answer, nil
}
