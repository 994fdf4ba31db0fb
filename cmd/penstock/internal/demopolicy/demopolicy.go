// Package demopolicy contains the policy of serve --demo: the rules of a ride-hailing API.
package demopolicy

import (
	_ "embed"

	"github.com/penstock/penstock/policy/policyfile"
)

// text is examples/rides.yaml, byte for byte.
//
//go:embed rides.yaml
var text []byte

// name is the file name in the log.
const name = "examples/rides.yaml (built in)"

// Load compiles the demo policy. The rules need the section http.
func Load(o policyfile.Options) (*policyfile.Policy, error) {
	config, err := policyfile.Parse(name, text, nil, o)
	if err != nil {
		return nil, err
	}
	return config.Compile()
}
