package keylimits

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// A Reset lists the limits of a key that were reset, with their states before and after.
type Reset struct {
	Reset  []string `json:"reset" doc:"limits, as RULE.LIMIT, that counted something before"`
	Before []Limit  `json:"before"`
	After  []Limit  `json:"after"`
}

type Change struct {
	Before Limit
	After  *Limit // nil: the store did not reply, so it is unknown whether the limit was reset
}

const maxReason = 200 // letters

// CheckReason checks the reason that an operator gives for a reset.
func CheckReason(reason string) error {
	isHidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if strings.TrimSpace(reason) == "" || len([]rune(reason)) > maxReason || strings.ContainsFunc(reason, isHidden) {
		return fmt.Errorf("the reason must have 1 to %d letters, on one line; it is for the audit", maxReason)
	}
	return nil
}

// Resettable returns the limits of this name, or all if name is "". An in_flight limit must be
// named, because its slots may still be in use.
func Resettable(limits []Limit, name string) (found []Limit) {
	for _, l := range limits {
		if l.Limit == name || name == "" && !l.needsHolder() {
			found = append(found, l)
		}
	}
	return found
}

// Held returns the in_flight limits whose slots were in use when they were read. Without a name,
// Resettable omits them.
func Held(limits []Limit) (found []Limit) {
	for _, l := range limits {
		if l.needsHolder() && l.IsInUse() {
			found = append(found, l)
		}
	}
	return found
}

// needsHolder reports whether this is an in_flight limit. A limit from JSON has only the name of
// its algorithm.
func (l *Limit) needsHolder() bool {
	if l.plan == nil {
		return l.Algorithm == algorithm.Concurrency.Title()
	}
	return l.plan.Algorithm().NeedsHolder()
}

// ReadStates reads limits as Read does, and returns each state once. If several tiers share a
// state, it returns the tier with the most used units. It fails unless the store itself answers.
func (r *Reader) ReadStates(ctx context.Context, limits []Limit) (states []Limit, err error) {
	if err := r.readStored(ctx, limits); err != nil {
		return nil, err
	}
	for _, l := range limits {
		i := slices.IndexFunc(states, func(other Limit) bool { return l.sharesState(&other) })
		switch {
		case i < 0:
			states = append(states, l)
		case l.Used > states[i].Used:
			states[i] = l
		}
	}
	return states, nil
}

// Clear resets the states that are in use. Its store makes the resets. It resets one at a time, so
// that a missing right does not hide what was reset. It reports each reset, even a failed one, and
// ends after the first failure.
func (r *Reader) Clear(ctx context.Context, store penstock.Store, states []Limit, report func(Change)) (*Reset, error) {
	result := &Reset{Reset: []string{}, Before: states, After: slices.Clone(states)}
	for i := range result.After {
		before, after := states[i], result.After[i:i+1]
		if !before.IsInUse() {
			continue
		}
		d, err := store.Decide(ctx, []penstock.Charge{{Key: before.key, Plan: before.plan, Mode: penstock.Reset}})
		if err == nil {
			err = checkStored(d.Source)
		}
		if err == nil {
			err = r.readStored(ctx, after)
		}
		if err != nil {
			report(Change{Before: before})
			return result, fmt.Errorf("reset %s: %w", before.Name(), err)
		}
		report(Change{before, &after[0]})
		result.Reset = append(result.Reset, before.Name())
	}
	return result, nil
}

// readStored reads limits. It fails unless the store itself answers.
func (r *Reader) readStored(ctx context.Context, limits []Limit) error {
	alone := *r
	alone.DecideWithoutStore = nil
	source, err := alone.Read(ctx, limits)
	if err != nil {
		return err
	}
	return checkStored(source)
}

// checkStored returns an error unless a decision came from the store. Denials of the deny cache and
// leased units have come from the store too.
func checkStored(s penstock.Source) error {
	if s == penstock.FromStore || s == penstock.FromDenyCache || s == penstock.FromLease {
		return nil
	}
	return fmt.Errorf("%w: the answer is from %s, and not from the store", penstock.ErrUnavailable, s)
}
