package faults

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

const (
	instances = 3
	unbounded = -1
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
	{"open", perDay(12, "open"), guard.Settings{OnFailure: guard.FailOpen}, penstock.FromOpen, unbounded, 4},
	{"ceiling", perDay(12, "ceiling"), guard.Settings{OnFailure: guard.FailOpen, Ceiling: perDay(5, "day").Limit()}, penstock.FromFallback, 5, 4},
	{"closed", perDay(12, "closed"), guard.Settings{OnFailure: guard.FailClosed}, penstock.FromClosed, 0, 4},
	{"local", perDay(12, "local"), guard.Settings{OnFailure: guard.FailLocal}, penstock.FromFallback, 12 / instances, 4},
	{"leased", perDay(120, "leased"), guard.Settings{OnFailure: guard.FailLocal, Lease: 10}, penstock.FromFallback, 120 / instances, 1}, // with a lease
}

// units returns how many units of a key may be admitted.
func (p *policy) units() int { return int(p.limit.Limit().Count) }

// leaseReturns returns how many leased units of a key an instance may hold or be receiving. In a
// fault the instance returns them to its share, which may then admit as many more.
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

func policyOf(limit *penstock.Plan) int {
	for i := range policies {
		if policies[i].name == limit.Name() {
			return i
		}
	}
	return -1
}
