package schemagen

import (
	"reflect"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/cases"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/policy/jwt"
	"github.com/penstock/penstock/policy/policyfile"
)

// typeForms are the forms of types. The decoder reads every scalar as text. So a string field also
// accepts numbers and booleans, and every other field also accepts a text with a variable.
var typeForms = map[reflect.Type]*schema{
	reflect.TypeFor[string]():         ref("text"),
	reflect.TypeFor[bool]():           ref("truth"),
	reflect.TypeFor[int]():            ref("number"),
	reflect.TypeFor[int64]():          ref("number"),
	reflect.TypeFor[time.Duration]():  ref("duration"),
	typeInForm("byteSize"):            ref("size"),
	reflect.TypeFor[[]string]():       oneOrMore(ref("text")),
	reflect.TypeFor[map[string]any](): {Type: "object"},
	typeInForm("identityConfig"):      ref("identity"),
}

// structForms add to a struct's schema what its fields cannot express, such as which fields are
// required.
var structForms = map[reflect.Type]func(*schema) *schema{
	policyfile.Form(): func(s *schema) *schema {
		s.Required = []string{"rules"}
		s.Properties["rules"].MinItems = new(1)
		return s
	},
	reflect.TypeFor[cases.File](): required("cases"),
	reflect.TypeFor[cases.Case](): required("name", "steps"),
	reflect.TypeFor[cases.Step](): required("expect"),
	typeInForm("ruleConfig"): func(s *schema) *schema {
		s.Required = []string{"name"}
		s.AnyOf = []*schema{
			{Required: []string{"limits"}, Properties: map[string]*schema{"limits": {MinItems: new(1)}}},
			{Required: []string{"unlimited"}},
		}
		return s
	},
	typeInForm("limitConfig"): func(s *schema) *schema {
		s.OneOf = []*schema{{Required: []string{"rate"}}, {Required: []string{"in_flight"}}}
		return s
	},
	typeInForm("matchConfig"): func(s *schema) *schema {
		where := condition("ip", "tier")
		s.PatternProperties, s.PropertyNames = where.PatternProperties, where.PropertyNames
		for _, word := range where.PropertyOrder {
			s.Properties[word] = where.Properties[word]
			s.PropertyOrder = append(s.PropertyOrder, word)
		}
		return s
	},
	typeInForm("costConfig"): func(s *schema) *schema {
		s.MinProperties = new(1)
		return anyOf(number(fieldvalues.CostUnits), s)
	},
	reflect.TypeFor[jwt.Config](): func(s *schema) *schema {
		s.AnyOf = []*schema{
			{Required: []string{"secret"}}, {Required: []string{"key_file"}}, {Required: []string{"jwks_file"}}, {Required: []string{"jwks_url"}},
		}
		return s
	},
}

// forms returns the forms of fields, by "Struct.field". These fields accept only some values of
// their type, a list, or a value for each tier.
func forms() map[string]*schema {
	byField := map[string]*schema{
		"policyConfig.version":    words("1"),
		"policyConfig.apply":      words(fieldvalues.Apply...),
		"policyConfig.on_failure": words(fieldvalues.OnFailure...),
		"policyConfig.identities": mapOf(identityNames, ref("identity")),
		"policyConfig.tiers":      mapOf(tierNames("default"), tierConditions()),
		"policyConfig.allow":      conditions(),
		"policyConfig.deny":       conditions(),

		"ruleConfig.name": ref("name"),

		"matchConfig.method": oneOrMore(scalarMatching(token, "GET", "POST")),
		"matchConfig.path":   oneOrMore(matching(`^/`, "/api/**", "/users/{id}", "/files/*.zip")),
		"matchConfig.host":   oneOrMore(scalarMatching(`^[^/ ?#@]+$`, "api.example.com", "*.example.com")),

		"limitConfig.name":       ref("name"),
		"limitConfig.on_status":  oneOrMore(anyOf(number(fieldvalues.Range{Least: 100, Most: 599}), matching(`^[1-5]([xX]{2}|[0-9]{2}(-[1-5][0-9]{2})?)$`, "401", "5xx", "400-499"))),
		"limitConfig.on_failure": words(fieldvalues.OnFailure...),
		"limitConfig.across":     words(fieldvalues.Across...),
		"limitConfig.ceiling":    ref("rate"),
		"limitConfig.lease":      number(fieldvalues.Lease),
		"limitConfig.split_into": number(fieldvalues.SplitInto),

		"costConfig.units":   number(fieldvalues.CostUnits),
		"costConfig.methods": nonEmpty(mapOf(&schema{Pattern: token}, number(fieldvalues.CostUnits))),
		"costConfig.header":  scalarMatching(token),
		"costConfig.min":     number(fieldvalues.CostUnits),
		"costConfig.max":     number(fieldvalues.Range{Least: 1, Most: penstock.MaxCost}),
		"costConfig.actual":  scalarMatching(token),

		"http.trusted_proxies": oneOrMore(matching(`^(unix|[0-9A-Fa-f:.]+(/[0-9]+)?)$`, "10.0.0.0/8", "unix")),
		"http.address_header":  scalarMatching(token, "X-Forwarded-For", "Forwarded", "X-Real-IP"),
		"http.ipv4_prefix":     number(fieldvalues.IPv4Prefix),
		"http.ipv6_prefix":     number(fieldvalues.IPv6Prefix),
		"http.encoded_slash":   words(fieldvalues.EncodedSlash...),
		"http.trailing_slash":  words(fieldvalues.TrailingSlash...),
		"http.path_parameters": words(fieldvalues.PathParameters...),
		"http.headers":         oneOrMore(words(fieldvalues.Headers...)),
		"http.reset":           words(fieldvalues.Reset...),
		"http.reset_until":     words(fieldvalues.ResetUntil...),
		"http.max_waiting":     number(fieldvalues.MaxWaiting),
		"DeniedConfig.status":  number(fieldvalues.DeniedStatus),
		"CORSConfig.origins":   oneOrMore(matching(`^(\*|[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]-]+)$`, "https://app.example.com", "*")),
		"CORSConfig.expose":    oneOrMore(scalarMatching(token, "X-Request-Id")),

		"tokens.header":     scalarMatching(token, "Authorization"),
		"tokens.cookie":     scalarMatching(token),
		"tokens.algorithms": oneOrMore(words(jwt.Algorithms()...)),
	}
	for _, in := range []string{"limitConfig.", "candidateConfig."} {
		byField[in+"rate"] = perTier(ref("rate"))
		byField[in+"burst"] = perTier(ref("count"))
		byField[in+"in_flight"] = perTier(ref("count"))
		byField[in+"algorithm"] = algorithmWords()
		byField[in+"sub_windows"] = number(fieldvalues.SubWindows)
		byField[in+"timezone"] = withExamples(ref("text"), "UTC", "Europe/Berlin")
	}
	return byField
}

// algorithmWords accepts the algorithms of rates. gcra is another name of token-bucket.
func algorithmWords() *schema {
	list := []string{"gcra", algorithm.SubWindow(1).Title()}
	for _, a := range algorithm.All() {
		if !a.NeedsHolder() { // not in_flight
			list = append(list, a.Title())
		}
	}
	return words(list...)
}

// definitions returns the forms that others refer to by their name, with ref.
func definitions() map[string]*schema {
	return map[string]*schema{
		"text":     {Types: scalars, MinLength: new(1)},
		"variable": {Type: "string", Pattern: variable},
		"truth":    anyOf(&schema{Type: "boolean"}, &schema{Enum: []any{"true", "false"}}, ref("variable")),
		"number":   anyOf(&schema{Type: "integer"}, &schema{Type: "string", Pattern: digits}, ref("variable")),
		"count":    anyOf(&schema{Type: "integer", Minimum: new(1.), Maximum: new(float64(penstock.MaxCost))}, matching(`^[0-9][0-9_,]*[kM]?$`, "50", "10k")),
		"rate":     matching(`^\s*[0-9].*(/|-|\b[pP][eE][rR]\b)`, "100/s", "5 per minute", "10k/day", "1000 per calendar month"),
		"duration": anyOf(matching(`^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`, "500ms", "30s", "5m", "1h"),
			&schema{Enum: []any{0, "0"}}),
		"size":      anyOf(&schema{Type: "integer", Minimum: new(1.)}, matching(`^[0-9]+ *([bB]|[kKmMgG]([iI]?[bB])?)? *$`, "64KB", "10MB")),
		"bytes":     anyOf(&schema{Type: "integer", Minimum: new(0.)}, matching(`^ *[0-9]+ *([kKmMgG]?[bB])?$`, "512", "16KB", "8MB")),
		"name":      scalarMatching(`^[a-z0-9_.-]{1,64}$`),
		"values":    values(ref("text")),
		"addresses": values(matching(`^(\*|[0-9A-Fa-f:.]+(/[0-9]+)?)$`, "192.0.2.1", "10.0.0.0/8", "2001:db8::/32")),
		"condition": condition("ip", "host", "method", "tier"),
		"identity":  identity(),
		"source":    matching(`^\s*((header|cookie|query|descriptor|claim|segment)\s+\S+|ip|host|method|tier)\s*$`, "header X-API-Key", "claim sub", "ip"),
	}
}

// required returns a function that makes these fields of a struct required.
func required(names ...string) func(*schema) *schema {
	return func(s *schema) *schema {
		s.Required = names
		return s
	}
}
