package faults

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

const (
	instances = 3
	unbounded = -1 // a fallbackBound
)

// A policy is a limit with its own failure mode. Its units do not refill within a run, so that the
// admitted units of a key can be counted.
type policy struct {
	name          string
	limit         *penstock.Plan
	settings      guard.Settings
	fallback      penstock.Source // source of decisions without the store
	fallbackBound int             // most units of a key that an instance admits without the store
	keys          int64           // keys in use at one time
}

var policies = [...]policy{
	{
		name: "open", limit: perDay(12, "open"), settings: guard.Settings{OnFailure: guard.FailOpen},
		fallback: penstock.FromOpen, fallbackBound: unbounded, keys: 4,
	},
	{
		name: "ceiling", limit: perDay(12, "ceiling"), settings: guard.Settings{OnFailure: guard.FailOpen, Ceiling: perDay(5, "day").Limit()},
		fallback: penstock.FromFallback, fallbackBound: 5, keys: 4,
	},
	{
		name: "closed", limit: perDay(12, "closed"), settings: guard.Settings{OnFailure: guard.FailClosed},
		fallback: penstock.FromClosed, fallbackBound: 0, keys: 4,
	},
	{
		name: "local", limit: perDay(12, "local"), settings: guard.Settings{OnFailure: guard.FailLocal},
		fallback: penstock.FromFallback, fallbackBound: 12 / instances, keys: 4,
	},
	{
		name: "leased", limit: perDay(120, "leased"), settings: guard.Settings{OnFailure: guard.FailLocal, Lease: 10},
		fallback: penstock.FromFallback, fallbackBound: 120 / instances, keys: 1,
	},
}

// units returns how many units of a key may be admitted.
func (p *policy) units() int { return int(p.limit.Limit().Count) }

// leaseReturns returns how many leased units of a key an instance may have: one lease that it
// holds, and one that it is drawing. In a fault the instance returns them to its share. So the
// share may admit as many units more.
func (p *policy) leaseReturns() int { return 2 * int(p.settings.Lease) }

// perDay compiles a limit of n units per day.
func perDay(n int64, name string) *penstock.Plan {
	limit, err := penstock.PerDay(n).WithName(name).Compile()
	if err != nil {
		panic(err)
	}
	return limit
}

// settingsOf returns the guard settings of a limit.
func settingsOf(limit *penstock.Plan) guard.Settings {
	if i := policyOf(limit); i >= 0 {
		return policies[i].settings
	}
	return guard.Settings{}
}

// policyOf returns the index of the policy with this limit, or -1.
func policyOf(limit *penstock.Plan) int {
	for i := range policies {
		if policies[i].name == limit.Name() {
			return i
		}
	}
	return -1
}
