package faults

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

const (
	instances = 3
	unbounded = -1
)

// A policy is a limit that fails in its own way. Its units do not come back within a run, so that
// what was admitted of a key can be counted.
type policy struct {
	name     string
	limit    penstock.Limit
	settings guard.Settings
	answers  penstock.Source // who answers for it without the store
	mints    int             // how many units of a key an instance admits without the store, at most
	keys     int64           // that are asked for at a time
}

var policies = [...]policy{
	{"open", perDay(12, "open"), guard.Settings{OnFailure: guard.Open}, penstock.FromOpen, unbounded, 4},
	{"ceiling", perDay(12, "ceiling"), guard.Settings{OnFailure: guard.Open, Ceiling: perDay(5, "day")}, penstock.FromFallback, 5, 4},
	{"closed", perDay(12, "closed"), guard.Settings{OnFailure: guard.Closed}, penstock.FromClosed, 0, 4},
	{"local", perDay(12, "local"), guard.Settings{OnFailure: guard.Local}, penstock.FromFallback, 12 / instances, 4},
	{"leased", perDay(120, "leased"), guard.Settings{OnFailure: guard.Local, Lease: 10}, penstock.FromFallback, 120 / instances, 1}, // and drawn in advance
}

// units of a key may be admitted.
func (p *policy) units() int { return int(p.limit.Count) }

// returns is how many units of a key an instance may have drawn in advance, beyond what its share
// remembers, and give back to it in a fault: what it holds and what is on its way.
func (p *policy) returns() int { return 2 * int(p.settings.Lease) }

// perDay is a limit as a Limiter has it.
func perDay(n int64, name string) penstock.Limit {
	limit, err := penstock.PerDay(n).WithName(name).Ready()
	if err != nil {
		panic(err)
	}
	return limit
}

// settingsOf are the guard's.
func settingsOf(limit *penstock.Limit) guard.Settings {
	if i := policyOf(limit); i >= 0 {
		return policies[i].settings
	}
	return guard.Settings{}
}

func policyOf(limit *penstock.Limit) int {
	for i := range policies {
		if policies[i].name == limit.Name {
			return i
		}
	}
	return -1
}
