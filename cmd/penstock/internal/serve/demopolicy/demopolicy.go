// Package demopolicy contains the policy of serve --demo: the rules of a ride-hailing API.
package demopolicy

import (
	_ "embed"
	"slices"

	"github.com/penstock/penstock/policy/policyfile"
)

// text is examples/rides.yaml, byte for byte.
//
//go:embed rides.yaml
var text []byte

// traffic has more rules, for serve --demo-traffic. They follow those of rides.yaml.
//
//go:embed traffic.yaml
var traffic []byte

// The file names in the log, without and with the rules for --demo-traffic.
const (
	name        = "examples/rides.yaml (built in)"
	trafficName = "examples/rides.yaml, with rules for demo-traffic (built in)"
)

// Load compiles the demo policy, with the rules for --demo-traffic if hasTraffic is true. The rules
// need the section http.
func Load(o policyfile.Options, hasTraffic bool) (*policyfile.Policy, error) {
	file, all := name, text
	if hasTraffic {
		file, all = trafficName, slices.Concat(text, traffic)
	}
	return policyfile.Parse(file, all, nil, o)
}
