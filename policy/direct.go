package policy

import (
	"errors"
	"slices"

	"github.com/penstock/penstock"
)

// A DirectCall states its charges. It is for limits that are not in the Rules: those of another
// file, or those that a caller sends with each call.
type DirectCall struct {
	// Charges are decided as one batch, in the modes and with the Patience that they state. There are
	// 1 to penstock.MaxCharges.
	Charges []penstock.Charge

	// Limits has the limit of each charge. Each needs a Rule and a Guard: events name them, and Guard
	// says what happens while the store gives no answer. The settings of the guards around the store
	// must agree with it.
	Limits []*Limit
}

var errDirect = errors.New("a direct call needs a limit with a rule for each charge")

// EvaluateDirect makes the charges that a call states those of the Evaluation. The lists and
// new_identities of the Rules do not apply. It copies the slices of the call.
func (r *Rules) EvaluateDirect(c DirectCall, v *Evaluation) error {
	v.reset(r, noAttributes{})
	if err := penstock.Check(c.Charges); err != nil {
		return err
	}
	if len(c.Limits) != len(c.Charges) || slices.ContainsFunc(c.Limits, func(l *Limit) bool { return l == nil || l.Rule == nil }) {
		return errDirect
	}
	v.Charges = append(v.Charges, c.Charges...)
	v.Limits = append(v.Limits, c.Limits...)
	return nil
}
