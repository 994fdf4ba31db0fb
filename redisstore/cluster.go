package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/lazy"
	"github.com/penstock/penstock/internal/redisclient"
)

const (
	afterCallerTimeout = time.Second // how long a batch may continue after its caller has left
	maxOutliving       = 256         // batches that may continue at the same time after their callers have left
)

var errPanicked = penstock.NewStoreError(penstock.ReasonUnknown, errors.New("the store panicked"))

// hasSeveralKeys reports whether charges have different keys, and so may be in different slots.
func hasSeveralKeys(charges []penstock.Charge) bool {
	for i := 1; i < len(charges); i++ {
		if charges[i].Key != charges[0].Key {
			return true
		}
	}
	return false
}

// decideMultiSlot decides a batch of several keys on a Cluster, with one script for each key. The
// first round sends dry runs to all keys in parallel. If all would grant, the second round charges
// all keys in parallel. So a denial in the first round takes one round trip. It takes one more if a
// limit counts denied requests. If other callers charge a key between the two rounds, the second
// round may deny that key. Then the charges to the other keys are refunded. Charges that cannot be
// denied are made last.
func (s *Store) decideMultiSlot(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	deniable, undeniable := groupByKey(charges)
	statuses := make([]penstock.Status, len(charges)) // of a denial
	isSpendOrDraw := func(c penstock.Charge) bool { return c.Mode == penstock.Spend || c.Mode == penstock.Draw }
	hasFirstRound := len(deniable) > 1 && slices.ContainsFunc(charges, isSpendOrDraw)
	if hasFirstRound {
		if err := s.runEach(ctx, append(slices.Clip(deniable), undeniable...), toDryRun(charges), statuses); err != nil {
			return penstock.Decision{}, err
		}
		if isDenied(statuses) {
			s.countDenied(ctx, charges, deniable, statuses)
			return penstock.NewDecision(statuses), nil
		}
	}

	refundable := toRefundable(charges)
	secondRound, err := s.chargeMultiSlot(ctx, deniable, undeniable, refundable)
	if err != nil {
		return penstock.Decision{}, err
	}
	for i := range charges {
		if !charges[i].IsRefundable {
			secondRound[i].Receipt = 0
		}
	}
	if !isDenied(secondRound) {
		return penstock.NewDecision(secondRound), nil
	}
	// The batch is denied, so each status reports how much its limit has left. The number comes from a
	// dry run, or from the charges of the second round.
	if !hasFirstRound {
		if err := s.runEach(ctx, undeniable, toDryRun(refundable), statuses); err != nil {
			return penstock.Decision{}, err
		}
	}
	// For each key that the second round denied, take the statuses of that round. If there was no
	// first round, take them for all keys.
	var granted [][]int // the keys whose charges were refunded
	for _, group := range deniable {
		isKeyDenied := slices.ContainsFunc(group, func(i int) bool { return secondRound[i].RetryAfter > 0 })
		if !hasFirstRound || isKeyDenied {
			for _, i := range group {
				statuses[i] = secondRound[i]
			}
		}
		if !isKeyDenied {
			granted = append(granted, group)
		}
	}
	s.countDenied(ctx, refundable, granted, statuses)
	return deniedDecision(statuses), nil
}

// countDenied counts those charges of a denied batch that count if they are denied, in the groups
// whose scripts have not counted them. The denial stands even if that fails. A limit that has
// denied a charge keeps its RetryAfter if the charge would fit now.
func (s *Store) countDenied(ctx context.Context, charges []penstock.Charge, groups [][]int, statuses []penstock.Status) {
	var counting [][]int
	for _, group := range groups {
		indexes := slices.DeleteFunc(slices.Clone(group), func(i int) bool { return !charges[i].CountsDenial() })
		if len(indexes) > 0 {
			counting = append(counting, indexes)
		}
	}
	if len(counting) == 0 {
		return
	}
	charges = toDryRun(charges)
	for i := range charges {
		charges[i].Mode += counted
	}
	before := slices.Clone(statuses)
	_ = s.runEach(ctx, counting, charges, statuses) // a group that fails leaves its statuses as they are
	for i := range statuses {
		if statuses[i].RetryAfter == 0 {
			statuses[i].RetryAfter = before[i].RetryAfter
		}
	}
}

// chargeMultiSlot makes the charges of a batch: those that can be denied, then the others. If not
// all are granted, it refunds them.
//
// If ctx ends before that, chargeMultiSlot returns. The calls that it made then continue in the
// background for at most afterCallerTimeout, and what they charged is refunded. If maxOutliving
// batches already continue in the background, the calls are canceled, and what they charged may
// stay charged.
func (s *Store) chargeMultiSlot(ctx context.Context, deniable, undeniable [][]int, charges []penstock.Charge) ([]penstock.Status, error) {
	const (
		running int32 = iota
		ended
		abandoned // the caller has left
	)
	var (
		state    atomic.Int32
		statuses = make([]penstock.Status, len(charges))
		err      = error(errPanicked) // stays if chargeOrRefund panics
		done     = make(chan struct{})
	)
	ownCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	chargeOrRefund := func(storeCtx context.Context) { // storeCtx ends when the store is closed
		defer close(done)
		defer cancel()
		defer context.AfterFunc(storeCtx, cancel)()
		defer func() { // also after a panic
			if !state.CompareAndSwap(running, ended) && state.Load() == abandoned {
				s.outliving.Add(-1)
			}
		}()
		chargeErr := s.runEach(ownCtx, deniable, charges, statuses)
		if chargeErr == nil && !isDenied(statuses) {
			chargeErr = s.runEach(ownCtx, undeniable, charges, statuses)
		}
		isGranted := chargeErr == nil && !isDenied(statuses)
		if isGranted && state.CompareAndSwap(running, ended) {
			err = nil
			return
		}
		refundErr := s.refund(ownCtx, refundsOf(charges, statuses))
		err = chargeErr
		switch {
		case storeCtx.Err() != nil && errors.Join(chargeErr, refundErr) != nil:
			err = penstock.NewStoreError(penstock.ReasonUnknown, redisclient.ErrClosed)
		case refundErr != nil:
			err = penstock.NewStoreError(penstock.ReasonUnknown, errors.Join(chargeErr, refundErr))
		}
	}
	if !s.work.Start(chargeOrRefund) {
		cancel()
		return nil, s.unavailable(ctx, redisclient.NotSent(redisclient.ErrClosed))
	}
	if ctxErr := lazy.Await(ctx, done, nil); ctxErr != nil && state.CompareAndSwap(running, abandoned) {
		if s.outliving.Add(1) > maxOutliving {
			cancel()
		} else {
			time.AfterFunc(afterCallerTimeout, cancel)
		}
		if errors.Is(ctxErr, context.Canceled) {
			return nil, ctxErr
		}
		return nil, penstock.NewStoreError(penstock.ReasonUnknown, ctxErr)
	}
	<-done
	return statuses, err
}

// runEach decides groups of charges concurrently, each in a script of its own, and writes their
// statuses to statuses. It returns when all groups have ended. If several fail, it prefers
// an error after which charges may have been made.
func (s *Store) runEach(ctx context.Context, groups [][]int, charges []penstock.Charge, statuses []penstock.Status) error {
	errs := make([]error, len(groups))
	var started sync.WaitGroup
	for n, group := range groups {
		run := func() { errs[n] = s.runGroup(ctx, group, charges, statuses) }
		if n == len(groups)-1 { // the last one runs on this goroutine
			run()
		} else {
			started.Go(run)
		}
	}
	started.Wait()
	var worst error
	for _, err := range errs {
		if worst == nil || mayBeCharged(err) && !mayBeCharged(worst) {
			worst = err
		}
	}
	return worst
}

func (s *Store) runGroup(ctx context.Context, group []int, charges []penstock.Charge, statuses []penstock.Status) error {
	c := s.calls.Get().(*call)
	c.ownCharges = c.ownCharges[:0]
	for _, i := range group {
		c.ownCharges = append(c.ownCharges, charges[i])
	}
	c.ownBatch = batches.Batch{Charges: c.ownCharges}
	c.batches = append(c.batches, &c.ownBatch)
	s.run(ctx, c, true)
	if c.ownBatch.Err != nil {
		return c.ownBatch.Err
	}
	for n, i := range group {
		statuses[i] = c.ownBatch.Decision.Status(n)
	}
	c.forget()
	s.calls.Put(c)
	return nil
}

// mayBeCharged reports whether charges may have been made before err occurred.
func mayBeCharged(err error) bool {
	e := penstock.AsStoreError(err)
	return err != nil && (e == nil || e.MayBeCharged)
}

// toDryRun returns a copy of the charges that only reports what they would do.
func toDryRun(charges []penstock.Charge) []penstock.Charge {
	charges = slices.Clone(charges)
	for i := range charges {
		charges[i].Mode += dryRun
	}
	return charges
}

// toRefundable returns a copy of the charges that can be refunded. Each charge that could not be
// refunded without a Holder has a random one.
func toRefundable(charges []penstock.Charge) []penstock.Charge {
	charges = slices.Clone(charges)
	for i := range charges {
		c := &charges[i]
		isSpending := c.Mode == penstock.Spend || c.Mode == penstock.Draw || c.Mode == penstock.Force
		c.IsRefundable = c.IsRefundable || isSpending
		if isSpending && c.Plan.Algorithm().OwnsRefunds() && c.Holder == "" {
			c.Holder = rand.Text()
		}
	}
	return charges
}

// refundsOf returns charges that refund what was granted. Charges of mode Refund are left out,
// because the refund of a refund would create units.
func refundsOf(charges []penstock.Charge, statuses []penstock.Status) []penstock.Charge {
	var refunds []penstock.Charge
	for i, c := range charges {
		if granted := statuses[i].Granted; granted > 0 && c.Mode != penstock.Refund {
			c.Mode, c.Cost, c.Patience, c.Receipt = penstock.Refund, granted, 0, statuses[i].Receipt
			refunds = append(refunds, c)
		}
	}
	return refunds
}

func isDenied(statuses []penstock.Status) bool {
	return slices.ContainsFunc(statuses, func(s penstock.Status) bool { return s.RetryAfter > 0 })
}

// deniedDecision returns the decision of a batch that was denied. For a charge that was not itself
// denied, the status only reports how much is left.
func deniedDecision(statuses []penstock.Status) penstock.Decision {
	for i := range statuses {
		if statuses[i].RetryAfter == 0 {
			statuses[i].Granted, statuses[i].Wait, statuses[i].Receipt = 0, 0, 0
		}
	}
	return penstock.NewDecision(statuses)
}

// refund makes refunds. What cannot be refunded within afterCallerTimeout stays charged.
func (s *Store) refund(ctx context.Context, refunds []penstock.Charge) error {
	ctx, cancel := context.WithTimeout(ctx, afterCallerTimeout)
	defer cancel()
	_, groups := groupByKey(refunds) // no refund is denied
	return s.runEach(ctx, groups, refunds, make([]penstock.Status, len(refunds)))
}

// groupByKey returns the indexes of the charges, grouped by key. deniable has the groups of those
// charges that can be denied, and undeniable has the groups of the others.
func groupByKey(charges []penstock.Charge) (deniable, undeniable [][]int) {
	for i := range charges {
		groups := &undeniable
		if mode := charges[i].Mode; mode == penstock.Spend || mode == penstock.Draw || mode == penstock.Peek {
			groups = &deniable
		}
		n := slices.IndexFunc(*groups, func(group []int) bool { return charges[group[0]].Key == charges[i].Key })
		if n < 0 {
			n = len(*groups)
			*groups = append(*groups, nil)
		}
		(*groups)[n] = append((*groups)[n], i)
	}
	return deniable, undeniable
}
