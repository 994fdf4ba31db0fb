package schemagen

import (
	"reflect"
	"strconv"

	"github.com/penstock/penstock/internal/fieldvalues"
)

// Regular expressions for strings.
const (
	variable = `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^${}]*)?\}` // part of the string is ${NAME} or ${NAME:-default}
	digits   = `^[+-]?[0-9_]+$`                           // a whole number in quotes
	token    = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"            // the name of a header, a cookie or a method
)

func ref(name string) *schema { return &schema{Ref: "#/definitions/" + name} }

// nothing accepts no value.
func nothing() *schema { return &schema{Not: &schema{}} }

// anyOf accepts what one of the schemas accepts. If one of them is itself an anyOf, its parts
// become parts of the result.
func anyOf(alternatives ...*schema) *schema {
	s := &schema{}
	for _, one := range alternatives {
		isOnlyAnyOf := reflect.DeepEqual(one, &schema{AnyOf: one.AnyOf})
		if isOnlyAnyOf {
			s.AnyOf = append(s.AnyOf, one.AnyOf...)
		} else {
			s.AnyOf = append(s.AnyOf, one)
		}
	}
	return s
}

// words accepts the listed values. Numbers may be written without quotes. Like matching,
// scalarMatching and number, it also accepts a string with a variable.
func words(list ...string) *schema {
	s := &schema{}
	for _, word := range list {
		if n, err := strconv.Atoi(word); err == nil {
			s.Enum = append(s.Enum, n)
		}
		s.Enum = append(s.Enum, word)
	}
	return anyOf(s, ref("variable"))
}

// matching accepts a string that matches a pattern.
func matching(pattern string, samples ...any) *schema {
	return anyOf(&schema{Type: "string", Pattern: pattern, Examples: samples}, ref("variable"))
}

// scalarMatching accepts a string that matches a pattern. Unlike matching, it also accepts every
// number and boolean, because YAML can read an unquoted text as one.
func scalarMatching(pattern string, samples ...any) *schema {
	return anyOf(&schema{Types: scalars, Pattern: pattern, Examples: samples}, ref("variable"))
}

// scalars are the types that YAML gives to texts without quotes.
var scalars = []string{"string", "number", "boolean"}

func withExamples(s *schema, samples ...any) *schema {
	return &schema{AllOf: []*schema{s}, Examples: samples}
}

// number accepts a whole number within bounds, and any whole number in quotes. The policy's
// compiler checks the bounds of both.
func number(r fieldvalues.Range) *schema {
	return anyOf(&schema{Type: "integer", Minimum: new(float64(r.Least)), Maximum: new(float64(r.Most))}, &schema{Type: "string", Pattern: digits}, ref("variable"))
}

func listOf(item *schema) *schema { return &schema{Type: "array", Items: item} }

func oneOrMore(item *schema) *schema {
	list := listOf(item)
	list.MinItems = new(1)
	return anyOf(item, list)
}

// mapOf accepts an object. names is the schema of its field names, and value that of its values.
func mapOf(names, value *schema) *schema {
	return &schema{Type: "object", PropertyNames: names, AdditionalProperties: value}
}

// nonEmpty makes an object need at least one field.
func nonEmpty(s *schema) *schema {
	s.MinProperties = new(1)
	return s
}

// perTier accepts one value, or one for each tier.
func perTier(value *schema) *schema { return anyOf(value, nonEmpty(mapOf(tierNames(), value))) }

// tierNames accepts the name of a tier, except the reserved names.
func tierNames(reserved ...any) *schema {
	s := &schema{Pattern: "^[a-z][a-z0-9-]{0,19}$"}
	if reserved != nil {
		s.Not = &schema{Enum: reserved}
	}
	return s
}

// identityNames accepts the names that users may give to identities. The other names have a meaning
// of their own in policies.
var identityNames = &schema{Pattern: identifier, Not: &schema{Enum: []any{
	"all_of", "claim", "cookie", "descriptor", "first_of", "global", "header", "host", "ip", "method", "query", "segment", "tier",
}}}

// identifier is the pattern of an identity's name.
const identifier = `^[A-Za-z_-][A-Za-z0-9_-]{0,63}$`

// identity accepts the definition of an identity.
func identity() *schema {
	list := listOf(ref("identity"))
	list.MinItems = new(1)
	listUnder := func(field string) *schema {
		return &schema{Type: "object", Properties: map[string]*schema{field: list}, Required: []string{field}, AdditionalProperties: nothing()}
	}
	name := &schema{Type: "string", Pattern: identifier, Examples: []any{"ip", "global"}}
	// A key begins with its kind, such as user in user:42.
	kind := &schema{Pattern: "^[a-z][a-z0-9-]{0,19}$", Not: &schema{Enum: []any{"first_of", "all_of"}}}
	sourceWithValues := &schema{Type: "object", MinProperties: new(1), MaxProperties: new(1), Properties: map[string]*schema{"ip": ref("addresses")},
		PatternProperties: map[string]*schema{`^\s*((header|cookie|query|descriptor|claim|segment)\s+\S+|host|method|tier)\s*$`: ref("values")}, AdditionalProperties: nothing()}
	return anyOf(name, ref("variable"), listUnder("first_of"), listUnder("all_of"),
		&schema{Type: "object", PropertyNames: kind, AdditionalProperties: anyOf(ref("source"), sourceWithValues), MinProperties: new(1), MaxProperties: new(1)})
}

// values accepts the values that a part of a request may have: one, a list, or the name of a file
// with one on each line.
func values(item *schema) *schema {
	file := &schema{Type: "object", Properties: map[string]*schema{"file": ref("text")}, Required: []string{"file"}, AdditionalProperties: nothing()}
	return anyOf(oneOrMore(item), file)
}

// condition accepts parts of the request, each with its values. plainParts are the parts that are
// written without a name, such as ip; "header X-Plan" is a part with a name. Any other word is the
// name of an identity.
func condition(plainParts ...string) *schema {
	s := &schema{
		Type: "object", MinProperties: new(1), Properties: make(map[string]*schema), PropertyOrder: plainParts,
		PatternProperties: map[string]*schema{
			`^\s*(header|cookie|query|descriptor|claim)\s+\S+\s*$`: ref("values"),
			identifier: ref("values"),
		},
		PropertyNames:        &schema{Not: &schema{Enum: []any{"all_of", "claim", "cookie", "descriptor", "first_of", "global", "header", "query", "segment"}}},
		AdditionalProperties: nothing(),
	}
	for _, part := range plainParts {
		s.Properties[part] = describe(ref("values"), partDescriptions[part])
	}
	s.Properties["ip"] = describe(ref("addresses"), partDescriptions["ip"])
	return s
}

var partDescriptions = map[string]string{
	"ip":     "The client's address. Its values are addresses and networks.",
	"host":   "The host of the request, without its port.",
	"method": "The method of the request.",
	"tier":   "The client's tier.",
}

// conditions accepts one condition, or a list of alternatives.
func conditions() *schema { return anyOf(ref("condition"), listOf(ref("condition"))) }

func tierConditions() *schema {
	list := listOf(ref("condition"))
	list.MinItems = new(1)
	return anyOf(words("default"), ref("condition"), list)
}
