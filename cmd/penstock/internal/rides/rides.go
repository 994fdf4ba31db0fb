// Package rides has the demo's rules built in: those of a ride-hailing API.
package rides

import (
	_ "embed"

	"github.com/penstock/penstock/policy"
)

// text is examples/rides.yaml, byte for byte.
//
//go:embed rides.yaml
var text []byte

// name stands for a file where the rules are told of.
const name = "examples/rides.yaml (built in)"

// Rules compiles them.
func Rules() (*policy.Rules, error) {
	config, err := policy.Parse(name, text, nil)
	if err != nil {
		return nil, err
	}
	return config.Compile()
}
