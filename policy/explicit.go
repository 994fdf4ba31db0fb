package policy

import (
	"errors"
	"slices"

	"github.com/penstock/penstock"
)

var errCharges = errors.New("each charge needs a limit with a rule")

// EvaluateCharges sets the charges of the Evaluation to the given ones. There must be at least one
// charge or shadow. Each charge needs a limit, and each limit a Rule. The allow list, the deny list
// and new_identities of the Rules do not apply. The Evaluation has copies of charges, limits and
// shadows, but shares the slices inside each Shadow with the caller.
func (r *Rules) EvaluateCharges(charges []penstock.Charge, limits []*Limit, shadows []Shadow, v *Evaluation) error {
	v.reset(r, noAttributes{})
	if len(charges) > 0 || len(shadows) == 0 {
		if err := checkCharges(charges, limits); err != nil {
			return err
		}
	}
	for i := range shadows {
		if err := checkCharges(shadows[i].Charges, shadows[i].Limits); err != nil {
			return err
		}
	}
	v.Charges = append(v.Charges, charges...)
	v.Limits = append(v.Limits, limits...)
	v.Shadows = append(v.Shadows, shadows...)
	return nil
}

func checkCharges(charges []penstock.Charge, limits []*Limit) error {
	if err := penstock.Check(charges); err != nil {
		return err
	}
	if len(limits) != len(charges) || slices.ContainsFunc(limits, func(l *Limit) bool { return l == nil || l.Rule == nil }) {
		return errCharges
	}
	return nil
}
