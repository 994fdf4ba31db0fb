package checkapi

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
)

func (s *Service) Acquire(ctx context.Context, r *penstockv1.AcquireRequest) (*penstockv1.AcquireResponse, error) {
	switch {
	case isLonger(r.GetHolder(), maxHolder):
		return nil, invalid("holder", "it is longer than %d characters", maxHolder)
	case r.GetCheck().GetRequestId() != "":
		return nil, invalid("check.request_id", "write a holder instead: a repeated call with the same holder takes no more slots")
	}
	check, err := s.read(r.GetCheck(), "check.", acquiring)
	if err != nil {
		return nil, err
	}
	if r.GetCheck().Cost != nil && r.GetCheck().GetCost() == 0 {
		return nil, conflict("check.cost", "the cost is the number of slots; write at least 1")
	}
	o := check.options()
	if o.Holder = r.GetHolder(); o.Holder == "" {
		o.Holder = randomName()
	}
	a, decision, err := s.admit(ctx, check, o)
	if err != nil {
		return nil, err
	}
	defer a.Done(admission.Result{})
	answer := &penstockv1.AcquireResponse{Decision: decision}
	if !decision.Allowed {
		return answer, nil
	}
	grants := slices.DeleteFunc(a.TakeGrants(), func(g admission.Grant) bool { return !g.Charge.Plan.Algorithm().NeedsHolder() })
	content := s.idContentOf(check, grants)
	if answer.Id, err = s.idCipher.encrypt(holdKind, content); err != nil {
		return nil, err
	}
	answer.ExpiresInMs = inMS(s.slots(content).life())
	return answer, nil
}

func (s *Service) Renew(ctx context.Context, r *penstockv1.RenewRequest) (*penstockv1.RenewResponse, error) {
	content, err := s.idCipher.decrypt(holdKind, r.GetId())
	if err != nil {
		return nil, err
	}
	held := s.slots(content)
	if len(held) == 0 {
		return nil, errNoSlots
	}
	for i := range held {
		held[i].Serial = renewalSerial
	}
	d, err := s.store.Decide(ctx, held)
	switch {
	case err != nil:
		return nil, notCorrected(asFailure(err))
	case d.Source == penstock.FromClosed, d.Source == penstock.FromOpen:
		return nil, notCorrected(&failure{code: codes.Unavailable})
	case !d.Allowed:
		return &penstockv1.RenewResponse{}, nil
	}
	return &penstockv1.RenewResponse{IsHeld: true, ExpiresInMs: inMS(held.life())}, nil
}

func (s *Service) Release(ctx context.Context, r *penstockv1.ReleaseRequest) (*penstockv1.ReleaseResponse, error) {
	content, err := s.idCipher.decrypt(holdKind, r.GetId())
	if err != nil {
		return nil, err
	}
	held := s.slots(content)
	if len(held) == 0 {
		return &penstockv1.ReleaseResponse{}, nil
	}
	for i := range held {
		held[i].Mode = penstock.Refund
	}
	if err := s.changeInStore(ctx, held); err != nil {
		return nil, err
	}
	return &penstockv1.ReleaseResponse{}, nil
}

// renewalSerial is the Serial of a Renew. It is lower than that of any Acquire, which is a time. So
// after a Renew of unknown outcome, its instance does not return a slot that another instance has
// acquired.
const renewalSerial = 1

var errNoSlots = failf(codes.FailedPrecondition, "the policy does not have the limit of this hold any more; acquire again")

type slots []penstock.Charge

// slots returns those charges of a hold whose limits the policy still has.
func (s *Service) slots(content *idContent) (held slots) {
	for _, g := range s.grantsOf(content) {
		if g.Charge.Plan.Algorithm().NeedsHolder() {
			held = append(held, g.Charge)
		}
	}
	return held
}

// life returns how long all slots are held once acquired or renewed: the shortest of their periods.
func (held slots) life() (life time.Duration) {
	for i := range held {
		if period := held[i].Plan.Limit().Period; life == 0 || period < life {
			life = period
		}
	}
	return life
}
