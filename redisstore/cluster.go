package redisstore

import (
	"context"
	"errors"
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

// deniable tells whether a charge can be denied. The others are made last, so that they never have to be undone.
func deniable(m penstock.Mode) bool {
	return m == penstock.Spend || m == penstock.Draw || m == penstock.Peek
}

// decideSpread decides a batch of several keys on a Cluster, one script per key.
func (s *Store) decideSpread(ctx context.Context, c *call, charges []penstock.Charge) (penstock.Decision, error) {
	statuses := make([]penstock.Status, len(charges))
	var made []penstock.Charge
	for _, group := range parts(charges) {
		c.charges = c.charges[:0]
		for _, i := range group {
			c.charges = append(c.charges, charge{&charges[i], c.plans[i]})
		}
		d, err := s.run(ctx, c)
		if err != nil {
			if back := s.giveBack(ctx, made); back != nil {
				err = perhaps(ctx, errors.Join(err, back))
			}
			return penstock.Decision{}, err
		}
		for n, i := range group {
			statuses[i] = d.Status(n)
			// A Refund that was made stays made: refunding it once more would make units of nothing.
			if granted := d.Status(n).Granted; granted > 0 && charges[i].Mode != penstock.Refund {
				back := charges[i]
				back.Mode, back.Cost, back.Patience = penstock.Refund, granted, 0
				made = append(made, back)
			}
		}
		if !d.Allowed {
			return s.denySpread(ctx, c, charges, statuses, group, made)
		}
	}
	return penstock.NewDecision(statuses), nil
}

// denySpread gives back what was made before a group was denied, and asks what is left under the keys that did not deny.
func (s *Store) denySpread(ctx context.Context, c *call, charges []penstock.Charge, statuses []penstock.Status,
	denied []int, made []penstock.Charge,
) (penstock.Decision, error) {
	if err := s.giveBack(ctx, made); err != nil {
		return penstock.Decision{}, perhaps(ctx, err)
	}
	peeks := make([]penstock.Charge, len(charges))
	for i := range charges {
		peeks[i] = charges[i]
		peeks[i].Mode, peeks[i].Cost, peeks[i].Patience = penstock.Peek, 0, 0
	}
	for _, group := range parts(charges) {
		if group[0] == denied[0] {
			continue
		}
		c.charges = c.charges[:0]
		for _, i := range group {
			c.charges = append(c.charges, charge{&peeks[i], c.plans[i]})
		}
		d, err := s.run(ctx, c)
		if err != nil {
			return penstock.Decision{}, err
		}
		for n, i := range group {
			statuses[i] = d.Status(n)
		}
	}
	return penstock.NewDecision(statuses), nil
}

// giveBack refunds charges, and waits for that until ctx ends. Then it goes on in the background, for giveBackTimeout in all, unless as many do.
// What cannot be given back stays charged.
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
func perhaps(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return &Error{Class: Unknown, Cause: err}
}

// parts are the numbers of the charges, grouped by key; a key's charges that cannot be denied are a group of their own at
// the end.
func parts(charges []penstock.Charge) [][]int {
	var groups [][]int
	for _, last := range []bool{false, true} {
		begin := len(groups)
	next:
		for i := range charges {
			if deniable(charges[i].Mode) == last {
				continue
			}
			for g := begin; g < len(groups); g++ {
				if charges[groups[g][0]].Key == charges[i].Key {
					groups[g] = append(groups[g], i)
					continue next
				}
			}
			groups = append(groups, []int{i})
		}
	}
	return groups
}
