package simulation

import (
	"github.com/penstock/penstock"
)

// A breakage is what is wrong with the guards of a run, on purpose.
type breakage struct {
	replays   bool // a client sends again what had no answer
	undivided bool // the instances do not know of each other
	staysOpen bool // a breaker that has opened pauses for an hour
	answers   func([]penstock.Charge, penstock.Decision) penstock.Decision
}

// falsify is what a guard is told instead of the store's answer.
func (b *breakage) falsify(charges []penstock.Charge, d penstock.Decision) penstock.Decision {
	if b.answers == nil {
		return d
	}
	return b.answers(charges, d)
}
