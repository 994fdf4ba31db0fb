package checkapi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/reserved"
)

// The bounds and the default of the time in which a reservation can be settled.
const (
	minReservation     = time.Second
	maxReservation     = 24 * time.Hour
	defaultReservation = 10 * time.Minute
)

// maxClockDifference is how much the clocks of two processes may differ. If they differ by more, a
// reservation may be settled twice around its expiry, once by each process.
const maxClockDifference = time.Minute

func (s *Service) Reserve(ctx context.Context, r *penstockv1.ReserveRequest) (*penstockv1.ReserveResponse, error) {
	ttl := defaultReservation
	if r.GetTtlMs() != 0 {
		ttl = milliseconds(r.GetTtlMs())
	}
	if ttl < minReservation || ttl > maxReservation {
		return nil, invalid("ttl_ms", "write %d to %d", minReservation.Milliseconds(), maxReservation.Milliseconds())
	}
	check, err := s.read(r.GetCheck(), "check.", reserving)
	if err != nil {
		return nil, err
	}
	o := check.options()
	o.IsRefundable = true
	if check.id != "" {
		o.IdempotencyKey, o.Settleable = idOfReservation(check.id, ttl), settleable(ttl)
	}
	a, decision, err := s.admit(ctx, check, o)
	if err != nil {
		return nil, err
	}
	defer a.Done(admission.Result{})
	answer := &penstockv1.ReserveResponse{Decision: decision}
	if !decision.Allowed {
		return answer, nil
	}
	content := s.idContentOf(check, a.TakeGrants())
	if name := a.SharedName(); name != "" {
		content.Name, content.IsNameShared = name, true // a repeat gets the same reservation
	}
	timeLeft := ttl - a.Age() // a repeat expires with the first reservation, which was made Age ago
	content.TTL, content.Expires = ttl.Milliseconds(), time.Now().Add(timeLeft).UnixMilli()
	answer.ExpiresInMs = max(inMS(timeLeft), 0)
	answer.Id, err = s.idCipher.encrypt(reservationKind, content)
	return answer, err
}

// settleable returns the longest time for which any process settles a reservation of this ttl.
func settleable(ttl time.Duration) time.Duration { return ttl + 2*maxClockDifference }

// idOfReservation returns the id by which repeats of a Reserve are found. It contains the ttl, so a
// call with another ttl is not a repeat. Otherwise a repeat with a longer ttl would get the same
// reservation. The reservation could then be settled twice, because the store remembers a Settle
// only for about the first ttl.
func idOfReservation(id string, ttl time.Duration) string {
	return fmt.Sprintf("reserve %d %x", ttl.Milliseconds(), sha256.Sum256([]byte(id)))
}

// Settle sends one batch for each key: the corrections, and a charge that can be made only once. So
// each correction is made only once, even if a repeated call reaches another process.
func (s *Service) Settle(ctx context.Context, r *penstockv1.SettleRequest) (*penstockv1.SettleResponse, error) {
	content, err := s.idCipher.decrypt(reservationKind, r.GetId())
	if err != nil {
		return nil, err
	}
	if err := checkResult(r); err != nil {
		return nil, err
	}
	now := time.Now()
	if content.isExpired(now) {
		return nil, errExpired
	}
	batches, err := s.corrections(content, r)
	if err != nil {
		return nil, err
	}
	isRepeat := len(batches) > 0
	for _, batch := range batches {
		isDone, err := s.correct(ctx, batch)
		if err != nil {
			return nil, err
		}
		isRepeat = isRepeat && !isDone
	}
	return &penstockv1.SettleResponse{IsRepeat: isRepeat}, nil
}

// checkResult returns an error if a SettleRequest does not say how its request ended.
func checkResult(r *penstockv1.SettleRequest) error {
	hasResult := r.Actual != nil || r.GetStatus() != 0
	switch {
	case !r.GetCancel() && !hasResult:
		return invalid("actual", "write how the request ended: actual, status, or cancel: true")
	case r.GetCancel() && hasResult:
		return invalid("cancel", "a request that was not served has no actual cost and no status; remove them")
	case r.GetActual() < 0 || r.GetActual() > penstock.MaxCost:
		return invalid("actual", "write 0 to %d", int64(penstock.MaxCost))
	case r.GetStatus() != 0 && (r.GetStatus() < 100 || r.GetStatus() > 599):
		return invalid("status", "write the status of the response, 100 to 599")
	}
	return nil
}

// corrections returns the batches that correct a reservation, one for each key. The first charge of
// each batch can be made only once.
func (s *Service) corrections(content *idContent, r *penstockv1.SettleRequest) (batches [][]penstock.Charge, err error) {
	byKey := make(map[string]int) // the index in batches of each key's batch
	addBatch := func(key string, more ...penstock.Charge) error {
		once, err := s.onlyOnce(content, key)
		byKey[key] = len(batches)
		batches = append(batches, append([]penstock.Charge{once}, more...))
		return err
	}
	if content.IsNameShared && len(content.Charges) > 0 {
		// The first batch is sent even if the policy does not have its limits any more.
		key := content.Charges[0].Key
		settled, err := admission.SettledCharge(content.Name, key, settleable(content.ttl()))
		if err != nil {
			return nil, err
		}
		if err := addBatch(key, settled); err != nil {
			return nil, err
		}
	}
	grants := s.grantsOf(content)
	for i := range grants {
		key := grants[i].Charge.Key
		if _, hasBatch := byKey[key]; hasBatch {
			continue
		}
		if err := addBatch(key); err != nil {
			return nil, err
		}
	}
	corrections := admission.Corrections(grants, int(r.GetStatus()), r.Actual)
	if r.GetCancel() {
		corrections = admission.Refunds(grants)
	}
	for _, c := range corrections {
		batches[byKey[c.Key]] = append(batches[byKey[c.Key]], c)
	}
	return batches, nil
}

// onlyOnce returns a charge that only the first Settle of a reservation can make. The store
// remembers the charge until no process accepts the id of the reservation any more.
func (s *Service) onlyOnce(content *idContent, key string) (penstock.Charge, error) {
	plan, err := penstock.Limit{Group: reserved.Settled + content.Name, Name: "once", Count: 1, Period: settleable(content.ttl()), Burst: 1}.Compile()
	return penstock.Charge{Key: key, Plan: plan, Cost: 1}, err
}

const correctTimeout = 2 * time.Second

// correct sends a batch that can be made only once. isDone is false if the batch was made before.
func (s *Service) correct(ctx context.Context, batch []penstock.Charge) (isDone bool, err error) {
	d, err := s.decideToTheEnd(ctx, batch)
	if err != nil {
		return false, err
	}
	switch d.Source {
	case penstock.FromStore, penstock.FromDenyCache, penstock.FromLease:
		return d.Allowed, nil
	}
	return false, notCorrected(&failure{code: codes.Unavailable})
}

// changeInStore sends Refunds or Resets. Unless the store itself makes them, it fails.
func (s *Service) changeInStore(ctx context.Context, charges []penstock.Charge) error {
	d, err := s.decideToTheEnd(ctx, charges)
	if err == nil && d.Source != penstock.FromStore {
		err = notCorrected(&failure{code: codes.Unavailable})
	}
	return err
}

// decideToTheEnd sends a correction. It goes on if the caller cancels, for up to correctTimeout.
func (s *Service) decideToTheEnd(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), correctTimeout)
	defer cancel()
	d, err := s.store.Decide(ctx, charges)
	if err != nil {
		err = notCorrected(asFailure(err))
	}
	return d, err
}

// notCorrected returns the failure of a call that the store has not answered, or whose state in the
// store is malformed. The call may be repeated, because it has an effect only once.
func notCorrected(f *failure) *failure {
	return &failure{code: f.code, text: "the store gave no answer, or the stored state is malformed; send the call again: it has an effect only once; if that never helps, run penstock status with the key", retryAfter: unavailableRetry, mayBeCharged: f.mayBeCharged}
}
