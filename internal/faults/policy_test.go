package faults

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// Of every key, in every run.
const (
	units     = 12 // may be admitted
	ceiling   = 5  // may be admitted by an instance without the store, where that has a ceiling
	instances = 3
	share     = units / instances
)

// A policy is a limit that fails in its own way. Its units do not come back within a run, so that what was admitted of a key can be counted.
type policy struct {
	name     string
	limit    penstock.Limit
	settings guard.Settings
	answers  penstock.Source // who answers for it without the store
	mints    int             // how many units of a key an instance admits without the store, at most
}

const unbounded = -1

var policies = [...]policy{
	{"open", perDay(units, "open"), guard.Settings{OnFailure: guard.Open}, penstock.FromOpen, unbounded},
	{"ceiling", perDay(units, "ceiling"), guard.Settings{OnFailure: guard.Open, Ceiling: perDay(ceiling, "day")}, penstock.FromFallback, ceiling},
	{"closed", perDay(units, "closed"), guard.Settings{OnFailure: guard.Closed}, penstock.FromClosed, 0},
	{"local", perDay(units, "local"), guard.Settings{OnFailure: guard.Local}, penstock.FromFallback, share},
}

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
