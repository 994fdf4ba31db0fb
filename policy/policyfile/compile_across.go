package policyfile

import (
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/fieldvalues"
)

// An exchangingSection is the section of a program whose regions exchange what they have granted.
// Other programs cannot enforce a limit across regions. RegionBound says how much they admit.
type exchangingSection interface {
	RegionBound(*penstock.Plan) string
}

// checkAcross reports what a limit across regions cannot have. It returns false if the limit has
// fields that others would report too.
func (c *compiler) checkAcross(config *limitConfig) bool {
	if config.Across == "" {
		return true
	}
	c.checkWord(&config.Across, "across", fieldvalues.Across)
	isExchanging := slices.ContainsFunc(c.config.sections, func(s Section) bool { _, ok := s.(exchangingSection); return ok })
	if !isExchanging {
		c.fail(&config.Across, "only penstock serve can enforce one limit in several regions; remove across, so that each region has the limit on its own")
	}
	isValid := true
	for _, field := range []struct {
		name, why string
		at        any
		isSet     bool
	}{
		{"in_flight", "slots are lent for a time, and regions exchange what they have granted for good", &config.InFlight, config.InFlight.isSet()},
		{"max_wait", "a turn in the future cannot be booked in several regions", &config.MaxWait, config.MaxWait != 0},
		{"lease", "units that an instance draws in advance would count in all regions", &config.Lease, config.Lease != 0},
		{"split_into", "a counter across regions is exchanged as a whole", &config.SplitInto, config.SplitInto != 0},
		{"count_denied", "denied requests are not exchanged", &config.CountDenied, config.CountDenied},
	} {
		if field.isSet {
			c.fail(field.at, "a limit across regions cannot have %s: %s; remove %[1]s or across", field.name, field.why)
			isValid = false
		}
	}
	return isValid
}
