package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock"
)

// giveBackTimeout bounds the time in which charges of a batch that failed are given back.
const giveBackTimeout = time.Second

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
			return penstock.Decision{}, errors.Join(err, s.giveBack(ctx, made))
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
		return penstock.Decision{}, err
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

// giveBack refunds charges, even if ctx has ended. What cannot be given back stays charged.
func (s *Store) giveBack(ctx context.Context, made []penstock.Charge) error {
	if len(made) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	_, err := s.Decide(ctx, made)
	return err
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
