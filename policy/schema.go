package policy

import _ "embed"

// schema is made of the structs of Config by scripts/schema; make schema makes it anew.
//
//go:embed schema.json
var schema string

// Schema is the JSON Schema (draft 7) of a policy file, for editors. What it refuses Parse or
// Compile refuses, too (in server: penstock serve); they know more.
func Schema() []byte { return []byte(schema) }
