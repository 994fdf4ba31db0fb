package faults

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

const (
	instances = 3
	unbounded = -1 // a fallbackBound
)

// A guardedLimit is a limit with its guard settings. The units of the limit do not refill within a
// run, so that the admitted units of a key can be counted.
type guardedLimit struct {
	name          string
	plan          *penstock.Plan
	settings      guard.Settings
	fallback      penstock.Source // the source of its decisions while the store does not decide
	fallbackBound int             // most units of a key that an instance admits without the store
	keys          int64           // keys in use at one time
}

var guardedLimits = [...]guardedLimit{
	{
		name: "open", plan: perDay(12, "open"), settings: guard.Settings{OnFailure: guard.FailOpen},
		fallback: penstock.FromOpen, fallbackBound: unbounded, keys: 4,
	},
	{
		name: "ceiling", plan: perDay(12, "ceiling"), settings: guard.Settings{OnFailure: guard.FailOpen, Ceiling: perDay(5, "day").Limit()},
		fallback: penstock.FromFallback, fallbackBound: 5, keys: 4,
	},
	{
		name: "closed", plan: perDay(12, "closed"), settings: guard.Settings{OnFailure: guard.FailClosed},
		fallback: penstock.FromClosed, fallbackBound: 0, keys: 4,
	},
	{
		name: "local", plan: perDay(12, "local"), settings: guard.Settings{OnFailure: guard.FailLocal},
		fallback: penstock.FromFallback, fallbackBound: 12 / instances, keys: 4,
	},
	{
		name: "leased", plan: perDay(120, "leased"), settings: guard.Settings{OnFailure: guard.FailLocal, Lease: 10},
		fallback: penstock.FromFallback, fallbackBound: 120 / instances, keys: 1,
	},
}

// units returns how many units of a key may be admitted.
func (l *guardedLimit) units() int { return int(l.plan.Limit().Count) }

// leaseReturns returns how many leased units of a key an instance may have: one lease that it
// holds, and one that it is drawing. In a fault the instance returns them to its share. So the
// share may admit as many units more.
func (l *guardedLimit) leaseReturns() int { return 2 * int(l.settings.Lease) }

// perDay compiles a limit of n units per day.
func perDay(n int64, name string) *penstock.Plan {
	limit, err := penstock.PerDay(n).WithName(name).Compile()
	if err != nil {
		panic(err)
	}
	return limit
}

// settingsOf returns the guard settings of a limit.
func settingsOf(plan *penstock.Plan) guard.Settings {
	if i := indexOfLimit(plan); i >= 0 {
		return guardedLimits[i].settings
	}
	return guard.Settings{}
}

// indexOfLimit returns the index of a limit in guardedLimits, or -1.
func indexOfLimit(plan *penstock.Plan) int {
	for i := range guardedLimits {
		if guardedLimits[i].name == plan.Name() {
			return i
		}
	}
	return -1
}
