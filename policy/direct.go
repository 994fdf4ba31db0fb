package policy

import (
	"errors"
	"slices"

	"github.com/penstock/penstock"
)

// A DirectCall states its own charges. A DirectCall is for limits that are not in the Rules. Such
// limits are in another file, or a caller sends them with each call.
type DirectCall struct {
	// Charges are decided as one batch, in the modes and with the Patience that they state. A call has
	// 1 to penstock.MaxCharges charges. With Shadows, it may have none.
	Charges []penstock.Charge

	// Limits has the limit of each charge. Each needs a Rule, which events name, and a Guard, which
	// states what happens while the store gives no answer. guard.Options.Limits must return the same
	// settings for its plan.
	Limits []*Limit

	// Shadows are decided beside the charges, and change nothing for the request.
	Shadows []Shadow
}

var errDirect = errors.New("a direct call needs a limit with a rule for each charge")

// EvaluateDirect sets the charges of the Evaluation to those of the call. The allow list, the deny
// list and new_identities of the Rules do not apply. The Evaluation has copies of Charges, Limits
// and Shadows, but shares the slices inside each Shadow with the caller.
func (r *Rules) EvaluateDirect(c DirectCall, v *Evaluation) error {
	v.reset(r, noAttributes{})
	if len(c.Charges) > 0 || len(c.Shadows) == 0 {
		if err := checkDirect(c.Charges, c.Limits); err != nil {
			return err
		}
	}
	for i := range c.Shadows {
		if err := checkDirect(c.Shadows[i].Charges, c.Shadows[i].Limits); err != nil {
			return err
		}
	}
	v.Charges = append(v.Charges, c.Charges...)
	v.Limits = append(v.Limits, c.Limits...)
	v.Shadows = append(v.Shadows, c.Shadows...)
	return nil
}

func checkDirect(charges []penstock.Charge, limits []*Limit) error {
	if err := penstock.Check(charges); err != nil {
		return err
	}
	if len(limits) != len(charges) || slices.ContainsFunc(limits, func(l *Limit) bool { return l == nil || l.Rule == nil }) {
		return errDirect
	}
	return nil
}
