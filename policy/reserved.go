package policy

import (
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// Groups of limits that belong to no rule. No rule may have a name with reservedPrefix.
const (
	reservedPrefix = "penstock."

	// OnceGroup is the prefix of groups whose charges make repeats of a request free, until its
	// reservation is settled. While the store gives no answer, these charges are not counted, so
	// repeats are not noticed.
	OnceGroup = reservedPrefix + "once."

	// SettledGroup is the prefix of groups whose charges let a correction be made only once. While the
	// store gives no answer, nothing is corrected.
	SettledGroup = reservedPrefix + "settled."

	// StatedGroup is the group of limits that callers send themselves.
	StatedGroup = reservedPrefix + "stated"
)

// OnceSettings are the settings of limits in a OnceGroup. Their denials are not cached, because a
// reservation that another process settles must not be repeated.
var OnceSettings = guard.Settings{OnFailure: guard.FailOpen, DenyCacheTTL: -1}

// reservedSettings returns the settings of a limit that belongs to no rule.
func reservedSettings(limit *penstock.Plan) guard.Settings {
	switch group := limit.Group(); {
	case strings.HasPrefix(group, OnceGroup):
		return OnceSettings
	case strings.HasPrefix(group, SettledGroup):
		return guard.Settings{OnFailure: guard.FailClosed}
	}
	return guard.Settings{}
}
