package settings

import (
	_ "embed"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy/policyfile"
)

// schema is generated from policyfile.Form, httplimit.Config and Table by tools/schemagen; run make
// schema.
//
//go:embed schema.json
var schema string

// Schema returns the JSON Schema (draft 7) of a policy file, for editors. penstock rejects
// everything that the schema rejects, and more.
func Schema() []byte { return []byte(schema) }

// PolicyOptions returns the options for reading a policy file. The file may name these algorithms
// in addition to the built-in ones.
func PolicyOptions(algorithms ...*algorithm.Algorithm) policyfile.Options {
	return policyfile.Options{Algorithms: algorithms, Sections: []policyfile.Section{httplimit.DefaultConfig(), newSection()}}
}
