package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

const (
	giveBackTimeout = time.Second // in which charges of a batch that failed are given back
	maxGivingBack   = 256         // batches that may outlast their calls at once
)

// spread tells whether charges have different keys, and so may be kept on different servers.
func spread(charges []penstock.Charge) bool {
	for i := 1; i < len(charges); i++ {
		if charges[i].Key != charges[0].Key {
			return true
		}
	}
	return false
}

// decideSpread decides a batch of several keys on a Cluster, one script per key. First all keys are
// asked at once, by dry runs. If all would grant, all are charged at once. So a denial charges
// nothing and takes one round trip. If others charge a key between the two rounds, it may deny
// after all; then what the other keys were charged is given back. Charges that cannot be denied are
// made last.
func (s *Store) decideSpread(ctx context.Context, plans []*penstock.Plan, charges []penstock.Charge) (penstock.Decision, error) {
	deniable, others := groups(charges)
	statuses := make([]penstock.Status, len(charges))
	asked := len(deniable) > 1 && slices.ContainsFunc(charges, func(c penstock.Charge) bool { return c.Mode == penstock.Spend || c.Mode == penstock.Draw })
	if asked {
		if err := s.runEach(ctx, append(deniable[:len(deniable):len(deniable)], others...), plans, dryRun(charges), statuses); err != nil {
			return penstock.Decision{}, err
		}
		if denied(statuses) {
			return penstock.NewDecision(statuses), nil
		}
	}

	charges = owned(charges, plans)
	answers := make([]penstock.Status, len(charges))
	err := s.runEach(ctx, deniable, plans, charges, answers)
	if err == nil && !denied(answers) {
		if err = s.runEach(ctx, others, plans, charges, answers); err == nil {
			return penstock.NewDecision(answers), nil
		}
	}
	if back := s.giveBack(ctx, made(charges, answers)); back != nil {
		return penstock.Decision{}, indeterminate(ctx, errors.Join(err, back))
	}
	if err != nil {
		return penstock.Decision{}, err
	}
	if !asked {
		if err := s.runEach(ctx, others, plans, dryRun(charges), statuses); err != nil {
			return penstock.Decision{}, err
		}
	}
	for _, group := range deniable {
		if !asked || slices.ContainsFunc(group, func(i int) bool { return answers[i].RetryAfter > 0 }) {
			for _, i := range group {
				statuses[i] = answers[i]
			}
		}
	}
	return denial(statuses), nil
}

// runEach decides groups of charges, each in a script of its own and all at once, and writes their
// statuses. It returns when all have ended. If several fail, it returns an error after which
// charges may have been made, if there is one.
func (s *Store) runEach(ctx context.Context, groups [][]int, plans []*penstock.Plan, charges []penstock.Charge, statuses []penstock.Status) error {
	errs := make([]error, len(groups))
	var all sync.WaitGroup
	for n, group := range groups {
		run := func() { errs[n] = s.runGroup(ctx, group, plans, charges, statuses) }
		if n == len(groups)-1 {
			run()
		} else {
			all.Go(run)
		}
	}
	all.Wait()
	var worst error
	for _, err := range errs {
		if worst == nil || mayBeCharged(err) && !mayBeCharged(worst) {
			worst = err
		}
	}
	return worst
}

func (s *Store) runGroup(ctx context.Context, group []int, plans []*penstock.Plan, charges []penstock.Charge, statuses []penstock.Status) error {
	c := s.calls.Get().(*call)
	c.charges = c.charges[:0]
	for _, i := range group {
		c.charges = append(c.charges, charge{&charges[i], plans[i]})
	}
	d, err := s.run(ctx, c)
	if err != nil {
		return err
	}
	for n, i := range group {
		statuses[i] = d.Status(n)
	}
	c.forget()
	s.calls.Put(c)
	return nil
}

// mayBeCharged tells whether charges may have been made despite an error.
func mayBeCharged(err error) bool {
	e := penstock.AsStoreError(err)
	return err != nil && (e == nil || e.MayBeCharged)
}

// dryRun asks for charges and makes none.
func dryRun(charges []penstock.Charge) []penstock.Charge {
	asks := slices.Clone(charges)
	for i := range asks {
		asks[i].Mode += dry
	}
	return asks
}

// owned are the charges, with a random Holder where they could not be given back without one.
func owned(charges []penstock.Charge, plans []*penstock.Plan) []penstock.Charge {
	charges = slices.Clone(charges)
	for i := range charges {
		c := &charges[i]
		if plans[i].Limit.Algorithm.Owned && c.Holder == "" && (c.Mode == penstock.Spend || c.Mode == penstock.Draw || c.Mode == penstock.Force) {
			c.Holder = rand.Text()
		}
	}
	return charges
}

// made are the refunds of what was charged. A Refund that was made stays made: refunding it once
// more would make units of nothing.
func made(charges []penstock.Charge, answers []penstock.Status) []penstock.Charge {
	var back []penstock.Charge
	for i, c := range charges {
		if granted := answers[i].Granted; granted > 0 && c.Mode != penstock.Refund {
			c.Mode, c.Cost, c.Patience = penstock.Refund, granted, 0
			back = append(back, c)
		}
	}
	return back
}

func denied(statuses []penstock.Status) bool {
	return slices.ContainsFunc(statuses, func(s penstock.Status) bool { return s.RetryAfter > 0 })
}

// denial is the decision of a batch that was denied. A charge that alone would be granted says what
// is left.
func denial(statuses []penstock.Status) penstock.Decision {
	for i := range statuses {
		if statuses[i].RetryAfter == 0 {
			statuses[i].Granted, statuses[i].Wait = 0, 0
		}
	}
	return penstock.NewDecision(statuses)
}

// giveBack refunds charges, and waits for that until ctx ends. Then it goes on in the background,
// for giveBackTimeout in all, unless as many do. What cannot be given back stays charged.
func (s *Store) giveBack(ctx context.Context, made []penstock.Charge) error {
	if len(made) == 0 {
		return nil
	}
	refund := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
		defer cancel()
		_, err := s.Decide(ctx, made)
		return err
	}
	done := make(chan error, 1)
	if s.givingBack.Add(1) > maxGivingBack || !s.work.start(func(life context.Context) {
		defer s.givingBack.Add(-1)
		err := refund(life)
		if err != nil && life.Err() != nil {
			err = errClosed
		}
		done <- err
	}) {
		s.givingBack.Add(-1)
		return refund(ctx)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// perhaps is the error of a batch that is charged in part, perhaps.
func indeterminate(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return penstock.NewStoreError(penstock.ReasonUnknown, err)
}

// groups are the indexes of the charges, grouped by key: of those that can be denied, and of the
// others.
func groups(charges []penstock.Charge) (deniable, others [][]int) {
	for i := range charges {
		list := &others
		if mode := charges[i].Mode; mode == penstock.Spend || mode == penstock.Draw || mode == penstock.Peek {
			list = &deniable
		}
		n := slices.IndexFunc(*list, func(group []int) bool { return charges[group[0]].Key == charges[i].Key })
		if n < 0 {
			n = len(*list)
			*list = append(*list, nil)
		}
		(*list)[n] = append((*list)[n], i)
	}
	return deniable, others
}
