package admission_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

// A refundSetup has a Controller over a store whose clock is set by the test.
type refundSetup struct {
	*testing.T
	now        time.Time
	controller *admission.Controller
}

func newRefundSetup(t *testing.T, rules string) *refundSetup {
	s := &refundSetup{T: t, now: time.Unix(1_700_000_000, 0)}
	compiled := rulesOf(t, rules)
	store := memstore.New(memstore.Options{Now: func() time.Time { return s.now }})
	var err error
	s.controller, err = admission.New(store, compiled, admission.Options{Now: func() time.Time { return s.now }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *refundSetup) admit(r admission.RuleCall) (*admission.Admission, int64) {
	s.Helper()
	a, outcome, err := s.controller.AdmitRule(s.Context(), r)
	if outcome != admission.Allowed || err != nil {
		s.Fatalf("a request is %v, error %v; want it allowed", outcome, err)
	}
	d, _ := a.Decision()
	return a, d.Remaining()
}

func tokens(cost int64) admission.RuleCall {
	return admission.RuleCall{Rule: "tokens", Key: "user:1", Cost: cost, CanEnd: true}
}

// left returns how many units are left of the strictest limit.
func (s *refundSetup) left() int64 {
	s.Helper()
	r := tokens(0)
	r.Peek = true
	_, left := s.admit(r)
	return left
}

// 16,000 tokens are reserved, and 100 are used a minute later. The surplus comes back if others
// have kept the bucket nearly empty, and not if it was full since.
func TestActualCostOfALongRequestIsExact(t *testing.T) {
	for _, row := range []struct {
		name   string
		isBusy bool
		want   int64 // tokens that come back
	}{{"others keep the bucket nearly empty", true, 15_900}, {"the bucket was full since", false, 0}} {
		t.Run(row.name, func(t *testing.T) {
			s := newRefundSetup(t, `rules: [{name: tokens, per: {user: header X-User}, limits: [{rate: 100k/min, cost: {units: 1, actual: X-Tokens}}]}]`)
			busy, _ := s.admit(tokens(80_000))
			busy.Done(admission.Result{})
			a, _ := s.admit(tokens(16_000))
			for range 60 {
				s.now = s.now.Add(time.Second)
				if row.isBusy {
					other, _ := s.admit(tokens(1666))
					other.Done(admission.Result{})
				}
			}
			before := s.left()
			if err := a.Settle(100); err != nil {
				t.Fatal(err)
			}
			a.Done(admission.Result{})
			if back := s.left() - before; back != row.want {
				t.Errorf("%d tokens came back; want %d", back, row.want)
			}
		})
	}
}

// 95 of 100 reserved tokens are refilled and spent by another request. So the first one returns 5.
func TestLateRefundReturnsNoRefilledTokens(t *testing.T) {
	const rules = `rules: [{name: tokens, per: {user: header X-User}, limits: [{rate: 50/s, burst: 100, on_status: [401], cost: {units: 1, actual: X-Tokens}}]}]`
	for name, end := range map[string]func(a *admission.Admission){
		"on_status":      func(a *admission.Admission) { a.Done(admission.Result{Status: 200}) },
		"RefundByStatus": func(a *admission.Admission) { a.RefundByStatus(200); a.Done(admission.Result{}) },
		"Settle":         func(a *admission.Admission) { _ = a.Settle(0); a.Done(admission.Result{}) },
		"actual": func(a *admission.Admission) {
			a.Done(admission.Result{Cost: func(string) (int64, bool) { return 0, true }})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRefundSetup(t, rules)
			first, _ := s.admit(tokens(100))
			s.now = s.now.Add(1900 * time.Millisecond)
			second, _ := s.admit(tokens(95))
			end(first)
			if left := s.left(); left != 5 {
				t.Errorf("%d tokens are left; want 5, so that at most 100 pass in this moment", left)
			}
			second.Done(admission.Result{Status: 401})
		})
	}
}

// The grants of a repeat have the receipts of the first request, whatever the algorithm is.
func TestRepeatGetsTheReceiptsOfTheFirstRequest(t *testing.T) {
	s := newRefundSetup(t, `rules: [{name: tokens, per: {user: header X-User}, limits: [
  {name: bucket, rate: 100/h}, {name: fixed, rate: 100/h, algorithm: fixed-window}, {name: anchored, rate: 100/h, algorithm: anchored-window},
  {name: day, rate: 100 per calendar day, timezone: UTC}, {name: sliding, rate: 100/h, algorithm: sliding-window},
  {name: sub, rate: 100/h, algorithm: sub-window, sub_windows: 7}, {name: log, rate: 100/h, algorithm: sliding-log}]}]`)
	request := tokens(10)
	request.IdempotencyKey, request.IsRefundable = "a", true
	receipts := func() (all []int64) {
		a, _ := s.admit(request)
		for _, g := range a.TakeGrants() {
			all = append(all, g.Charge.Receipt)
		}
		a.Done(admission.Result{})
		return all
	}
	s.now = s.now.Truncate(time.Hour).Add(time.Minute)
	first := receipts()
	other, _ := s.admit(tokens(5))
	other.Done(admission.Result{})
	s.now = s.now.Add(9*time.Minute + 123*time.Microsecond)
	repeat := receipts()
	if len(first) != 7 || len(repeat) != 7 {
		t.Fatalf("the requests have %d and %d grants; want 7", len(first), len(repeat))
	}
	for i := range first {
		if first[i] == 0 || first[i] != repeat[i] {
			t.Errorf("grant %d has the receipt %d, and that of the repeat %d; want them equal, and not 0", i, first[i], repeat[i])
		}
	}
}
