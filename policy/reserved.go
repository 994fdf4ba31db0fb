package policy

import (
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/reserved"
)

// reservedSettings returns the settings of a limit that belongs to no rule. Denials of a group with
// the prefix reserved.Once are not cached, because a reservation that another process settles must
// not be repeated.
func reservedSettings(limit *penstock.Plan) guard.Settings {
	switch group := limit.Group(); {
	case strings.HasPrefix(group, reserved.Once):
		return guard.Settings{OnFailure: guard.FailOpen, DenyCacheTTL: -1}
	case strings.HasPrefix(group, reserved.Settled):
		return guard.Settings{OnFailure: guard.FailClosed}
	}
	return guard.Settings{}
}
