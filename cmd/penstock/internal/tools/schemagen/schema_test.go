package schemagen

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/policy/policyfile"
)

const repository = "../../../../.."

var updates = flag.Bool("update", false, "write the schemas")

// generated returns what generate makes, after a comparison with a file. With the flag -update, it
// writes the file.
func generated(t *testing.T, file string, generate func() ([]byte, error)) []byte {
	t.Helper()
	text, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	if *updates {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if written, err := os.ReadFile(file); err != nil || !bytes.Equal(text, written) {
		t.Errorf("%s is out of date (%v); run make schema", file, err)
	}
	return text
}

func TestSchemaIsUpToDate(t *testing.T) {
	generated(t, "../../serve/settings/schema.json", generatePolicy)
}

func TestSchemaOfCasesIsUpToDate(t *testing.T) {
	text := generated(t, "../cases/schema.json", generateCases)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("cases.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(repository + "/examples/cases/rides.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for text, isValid := range map[string]bool{
		string(example): true,
		"cases: [{name: a, steps: [{expect: denied, claims: {a: [1]}}]}]":               true,
		"cases: [{name: a, steps: [{expect: denied, headers: [], shadow_denied: []}]}]": true,
		"cases: [{name: a, steps: [{times: 1}]}]":                                       false,
		"cases: [{name: a, steps: [{expect: denied, time: 3}]}]":                        false,
		"rules: []": false,
	} {
		var v any
		if err := yaml.Load([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); (err == nil) != isValid {
			t.Errorf("%s: the schema returns %v; want valid: %v", text, err, isValid)
		}
	}
}

// TestEveryFieldIsDescribed checks that the schema of policies has every field of the structs, with
// a description.
func TestEveryFieldIsDescribed(t *testing.T) {
	fields := 0
	var visit func(at string, typ reflect.Type, s *jsonschema.Schema)
	visit = func(at string, typ reflect.Type, s *jsonschema.Schema) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
			if name == "" || name == "-" {
				continue
			}
			fields++
			property := propertyOf(s, name)
			if property == nil {
				t.Errorf("%s.%s is not in the schema", at, name)
			} else if property.Description == "" {
				t.Errorf("%s.%s has no description", at, name)
			} else {
				visit(at+"."+name, typ.Field(i).Type, property)
			}
		}
	}
	visit("policy", policyfile.Form(), policySchema(t))
	for _, section := range settings.PolicyOptions().Sections {
		name := section.SectionName()
		visit("policy."+name, reflect.TypeOf(section), propertyOf(policySchema(t), name))
	}
	if fields < 80 {
		t.Errorf("the structs of policies have %d fields; want at least 80", fields)
	}
	t.Logf("counted: %d fields described by the schema", fields)
}

// propertyOf finds a property of an object anywhere in a schema.
func propertyOf(s *jsonschema.Schema, name string) *jsonschema.Schema {
	if s == nil {
		return nil
	}
	if found := s.Properties[name]; found != nil {
		return found
	}
	if found := propertyOf(s.Ref, name); found != nil {
		return found
	}
	if items, ok := s.Items.(*jsonschema.Schema); ok {
		if found := propertyOf(items, name); found != nil {
			return found
		}
	}
	for _, one := range slices.Concat(s.AnyOf, s.AllOf) {
		if found := propertyOf(one, name); found != nil {
			return found
		}
	}
	return nil
}

func TestSchemaAcceptsEveryPolicyThatCompiles(t *testing.T) {
	files := policies(t)
	s := policySchema(t)
	for _, file := range files {
		if err := s.Validate(valueOf(read(t, file))); err != nil {
			t.Errorf("%s: the schema rejects it: %v", file, err)
		}
	}
	t.Logf("counted: %d policies accepted by the schema", len(files))
}

// policies returns the files of all valid policies in docs, examples and tests.
func policies(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"examples/*.yaml", "examples/policies/*.yaml", "examples/surge/*.yaml", "policy/policyfile/testdata/golden/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil || found == nil {
			t.Fatalf("%s matches the files %q, error %v; want at least one", pattern, found, err)
		}
		files = append(files, found...)
	}
	return files
}

// TestSchemaAcceptsEveryFormThatTheCompilerDoes tests forms that few policies use.
func TestSchemaAcceptsEveryFormThatTheCompilerDoes(t *testing.T) {
	forms := strings.Split(strings.TrimSpace(goodForms), "\n")
	s := policySchema(t)
	for _, form := range forms {
		text := "{" + form + "}"
		if !strings.Contains(form, "rules:") {
			text = "{" + form + ", " + oneRuleAndEnd
		}
		if err := compile(text); err != nil {
			t.Errorf("%s: not a valid policy: %v", form, err)
		} else if err := s.Validate(valueOf(text)); err != nil {
			t.Errorf("%s: the schema rejects it: %v", form, err)
		}
	}
	t.Logf("counted: %d forms accepted by the schema", len(forms))
}

// Each line is a policy without the braces around it. The test adds a rule to a line without rules.
const goodForms = `
version: "1"
version: "${V:-1}"
apply: "${A:-all}"
identities: {}
identities: {a: ip, b: global, c: a, d-e_F: {first_of: [a, {k: "header X"}]}, g: {all_of: [{k: cookie c}, {l: query q}, {m: host}]}}
identities: {a: {k: {header X: "*"}}, b: {k: {header X: [1, true, x]}}, c: {k: {ip: [10.0.0.0/8, "::1"]}}, d: {k: method}}
identities: {a: "${I:-ip}", b: {k: "${S:-header X}"}, c: {k: " header   X "}}
tiers: {a: {header X-Plan: 1}, b: [{ip: 10.0.0.0/8, method: GET}, {host: [a, b]}], c: "${O:-default}"}
tiers: {}
allow: {ip: 192.0.2.1}
allow: []
deny: [{ip: "2001:db8::/32"}, {ip: "*"}, {query a: b, cookie c: [d]}]
identities: {key: {key: header X}}, deny: {key: ["key:1", "key:2"]}
tiers: {a: {method: GET}, b: default}, deny: {tier: a}
tokens: {secret: 0123456789abcdef0123456789abcdef, algorithms: [HS256], leeway: 1m30s, header: X-Token, cookie: c}
tokens: {secret: "${SECRET:-0123456789abcdef0123456789abcdef}", algorithms: HS256, issuer: 7, audience: true}, deny: {claim a.b: c}
tokens: {jwks_url: "http://localhost/", refresh: 90s, issuer: i, audience: a}
http: {trusted_proxies: [10.0.0.0/8, unix, "::1", "${P:-10.1.0.0/16}"], address_header: Forwarded, ipv4_prefix: 24, ipv6_prefix: "56"}
http: {trusted_proxies: 10.0.0.0/8, headers: x-ratelimit, reset: seconds, retry_jitter: 0}
http: {headers: [draft-07, x-ratelimit], max_waiting: 1_000, denied: {status: "${S:-503}", body: text}}
http: {denied: {status: 420, body: "<p>{{.Status}}</p>", content_type: text/html}, encoded_slash: keep, trailing_slash: ignore, case_sensitive: false, path_parameters: strip}
http: {}
server: {listen: ":1", pprof: true, preserve_host: "false", max_connections: 7, min_body_rate: 240, max_body: 8 MB, max_header: 16KB, drain_delay: 0s, stall_timeout: 0}
server: {log_format: json, log_level: "${L:-warn}", store: memory, key_hash_secret: 123, require_store: "${R:-true}", max_connections: "10"}
rules: [{name: 404, unlimited: true}]
rules: [{name: a, unlimited: "true", limits: []}, {name: b, match: {path: /b}, unlimited: false, per: ip, limits: [{rate: 1/s}]}]
rules: [{name: a, match: {}, per: global, limits: [{rate: 1/s}]}]
rules: [{name: a, match: {method: get, path: ["/b/{c}", "/{c}/d/**"], host: ["*.a.b", "[::1]", "*"]}, per: {k: segment c}, limits: [{rate: 1/s}]}, {name: b, unlimited: true}]
rules: [{name: a, match: {header X-A: [b, c], ip: 10.0.0.0/8, query q: {file: doc.go}}, per: global, limits: [{rate: 1/s}]}]
rules: [{name: a, always: true, shadow: true, per: {all_of: [ip, {m: method}]}, limits: [{rate: 1/s, name: 7, headers: true, on_failure: closed, shadow: false}]}]
rules: [{name: a, per: global, limits: [{rate: "3/s, burst 10"}, {rate: 1_000 PER minute, burst: 10k}, {rate: 10-H, burst: "1,000"}, {rate: 5 writes per 2 days, burst: "${B:-7}"}]}]
rules: [{name: a, per: global, limits: [{rate: "${RATE:-10}/s"}, {rate: 1M per calendar week, timezone: Europe/Berlin}, {rate: 10/1h30m, algorithm: sub-window, sub_windows: 60}]}]
rules: [{name: a, per: global, limits: [{in_flight: 5, ttl: 500ms}, {name: b, in_flight: "10k"}, {name: c, in_flight: "${N:-5}", ttl: 1h0.5m}]}]
rules: [{name: a, per: global, limits: [{rate: 99/s, on_failure: open, ceiling: "${C:-1k/s, burst 5}", deny_cache_ttl: 0}, {rate: 99/m, split_into: "2", deny_cache_ttl: 1h30m}]}]
rules: [{name: a, per: global, limits: [{rate: 99/s, lease: 1_000}, {rate: 99/m, lease: "${L:-2}"}]}]
rules: [{name: a, per: global, limits: [{rate: 10/s, max_wait: 2s}, {rate: 10/m, algorithm: leaky-bucket, burst: 5, max_wait: 0}]}]
rules: [{name: a, per: global, limits: [{rate: 99/s, cost: 2}, {rate: 99/m, cost: "3"}, {rate: 99/h, cost: "${C:-4}"}, {rate: 99/d, cost: {units: 0}}]}]
rules: [{name: a, per: global, limits: [{rate: 99/s, cost: {methods: {get: 1, default: "5"}}}, {rate: 99/m, cost: {header: X-C, min: 0, max: 9, actual: X-D}}, {rate: 99/h, cost: {body: 64 kib}}, {rate: 9/d, cost: {body: 512}}]}]
rules: [{name: a, per: global, limits: [{rate: 10/s, on_status: 401}, {rate: 10/m, on_status: ["401", 5XX, 400-499]}, {rate: 10/h, on_status: "${S:-4xx}"}]}]
rules: [{name: a, per: global, limits: [{rate: 10/s, candidate: {rate: 20/s}}, {rate: 10/m, candidate: {algorithm: gcra, burst: 3}}, {in_flight: 5, candidate: {in_flight: 6}}]}]
tiers: {a: {method: GET}, b: default}, rules: [{name: a, per: global, limits: [{rate: {a: 1/s, default: "${R:-2/s}"}, burst: {b: 3, a: 10k}}, {in_flight: {a: 1, b: 2}}]}]
`

// TestSchemaRefusesNothingThatCompiles moves parts of policies to other places at random. The
// schema must accept each result that the compiler accepts.
func TestSchemaRefusesNothingThatCompiles(t *testing.T) {
	var originals []*yaml.Node
	for _, file := range policies(t) {
		originals = append(originals, nodeOf(t, read(t, file)))
	}
	for _, form := range strings.Split(strings.TrimSpace(goodForms), "\n") {
		originals = append(originals, nodeOf(t, "{"+form+"}"))
	}
	for _, c := range badCases(t) {
		if n := new(yaml.Node); c.env == nil && yaml.Load([]byte(c.text), n) == nil && len(n.Content) == 1 {
			originals = append(originals, n.Content[0])
		}
	}
	valuesOf := make(map[string][]*yaml.Node) // by the name of the field
	var names, values []*yaml.Node
	for _, n := range originals {
		visitFields(n, func(name, value *yaml.Node) {
			valuesOf[name.Value] = append(valuesOf[name.Value], value)
			names, values = append(names, name), append(values, value)
		})
	}
	t.Chdir(filepath.Join(repository, "examples/policies")) // paths in policies are relative to it
	s := policySchema(t)
	seed := effort.Seed()
	r := rand.New(rand.NewPCG(seed, 1))
	tried, good := 0, 0
	for range effort.Of(3_000, 100_000) {
		n := clone(originals[r.IntN(len(originals))], 0)
		for range 1 + r.IntN(2) { // one or two changes
			var changes []func() // one for each field
			visitFields(n, func(name, value *yaml.Node) {
				changes = append(changes, func() {
					switch same, how := valuesOf[name.Value], r.IntN(8); {
					case how == 0: // another name
						*name = *clone(names[r.IntN(len(names))], 0)
					case how == 1 || len(same) == 0: // the value of another name
						*value = *clone(values[r.IntN(len(values))], 0)
					default: // another value of the same name
						*value = *clone(same[r.IntN(len(same))], 0)
					}
				})
			})
			if len(changes) > 0 {
				changes[r.IntN(len(changes))]()
			}
		}
		text, err := yaml.Dump(n)
		if err != nil {
			continue
		}
		tried++
		if compile(string(text)) != nil {
			continue
		}
		good++
		read := valueOf(string(text))
		delete(read.(map[string]any), "server") // only penstock serve checks the texts of this section
		if err := s.Validate(read); err != nil {
			t.Errorf("seed %d: the schema rejects a policy that compiles:\n%s\n%v", seed, text, err)
		}
	}
	// About 450 of 3,000 compile, with a deviation below 22, so 100 is 15 deviations away.
	if least := tried / 30; good < least {
		t.Errorf("seed %d: %d of %d policies compile; want at least %d", seed, good, tried, least)
	}
	t.Logf("counted: %d policies that compile accepted by the schema (of %d made at random)", good, tried)
}

// visitFields calls visit for each field of each mapping in a node, except for aliases.
func visitFields(n *yaml.Node, visit func(name, value *yaml.Node)) {
	for i, child := range n.Content {
		// The Content of a mapping is name, value, name, value, and so on.
		if isValue := n.Kind == yaml.MappingNode && i%2 == 1; isValue {
			name := n.Content[i-1]
			if name.Kind == yaml.ScalarNode && child.Kind != yaml.AliasNode {
				visit(name, child)
			}
		}
		visitFields(child, visit)
	}
}

// clone returns a copy in which nothing is an alias. depth is how many nodes are around n. The copy
// ends at a depth of 30, because an alias may be within its own anchor.
func clone(n *yaml.Node, depth int) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	c := *n
	c.Anchor, c.Content = "", nil
	for _, child := range n.Content {
		if depth < 30 {
			c.Content = append(c.Content, clone(child, depth+1))
		}
	}
	return &c
}

// The schema rejects unknown fields and values of the wrong kind. It finds only some of the other
// mistakes that the compiler reports.
func TestSchemaRefusesUnknownFieldsAndWrongTypes(t *testing.T) {
	s := policySchema(t)
	all, refused, ofForm := 0, 0, 0
	for _, c := range badCases(t) {
		var n yaml.Node
		if yaml.Load([]byte(c.text), &n) != nil || len(n.Content) == 0 || c.env != nil || isEndless(&n, nil) {
			continue // the text is not YAML, or it depends on variables, which an editor does not know
		}
		all++
		if s.Validate(valueOf(c.text)) != nil {
			refused++
		} else if mistakeOfForm.MatchString(c.messages) && !unknownToSchema.MatchString(c.messages) {
			t.Errorf("%s: %s: the schema accepts this; want it rejected, because the compiler reports\n%s", c.file, c.name, c.messages)
		}
		if mistakeOfForm.MatchString(c.messages) {
			ofForm++
		}
	}
	if ofForm < 100 {
		t.Errorf("%d bad configurations have a mistake of form; want at least 100", ofForm)
	}
	t.Logf("counted: %d bad configurations refused by the schema (of %d that are YAML; %d have a mistake of form)", refused, all, ofForm)
}

// isEndless reports whether an alias is inside its own anchor.
func isEndless(n *yaml.Node, within []*yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if slices.Contains(within, n) {
		return true
	}
	within = append(within, n)
	return slices.ContainsFunc(n.Content, func(child *yaml.Node) bool { return isEndless(child, within) })
}

var (
	// mistakeOfForm matches the messages about unknown fields and values of a wrong kind.
	mistakeOfForm = regexp.MustCompile(`(?m)there is no field|does not belong|expected |unknown value|is neither true nor false|is not a duration|is not a size|` +
		`is not a whole number below 2.52|the list is empty|there is no algorithm|nothing stands here|the text is empty`)

	// unknownToSchema matches the message about a mistake that a schema cannot find: 1.0 is a whole
	// number in JSON, and none in a policy.
	unknownToSchema = regexp.MustCompile(`"1\.0" is not a whole number`)
)

type badCase struct {
	file, name, text, messages string
	env                        []string // the lines ":env NAME=value"
}

// badCases returns the configurations in policy/policyfile/testdata/bad. The type badCase in
// policy/policyfile/badconfig_test.go describes the form of these files.
func badCases(t *testing.T) (list []badCase) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, "policy/policyfile/testdata/bad/*.txt"))
	if err != nil || files == nil {
		t.Fatal("no bad configurations were found:", err)
	}
	for _, file := range files {
		for _, written := range strings.Split("\n"+read(t, file), "\n==== ")[1:] {
			name, rest, _ := strings.Cut(written, "\n")
			c := badCase{file: filepath.Base(file), name: name}
			for strings.HasPrefix(rest, ":") {
				var line string
				if line, rest, _ = strings.Cut(rest, "\n"); line != ":escaped" {
					c.env = append(c.env, line)
				}
			}
			c.text, c.messages, _ = strings.Cut(rest, "\n----\n")
			list = append(list, c)
		}
	}
	return list
}

// TestSchemaHasTheWordsOfTheCompiler compiles each word that the schema accepts for a field. It
// also compares these words with the compiler's error message about an unknown word, which lists
// them.
func TestSchemaHasTheWordsOfTheCompiler(t *testing.T) {
	s := policySchema(t)
	compared := 0
	for _, row := range []struct{ path, policy string }{
		{"apply", "{apply: %s, " + oneRuleAndEnd},
		{"on_failure", "{on_failure: %s, " + oneRuleAndEnd},
		{"http.encoded_slash", "{http: {encoded_slash: %s}, " + oneRuleAndEnd},
		{"http.trailing_slash", "{http: {trailing_slash: %s}, " + oneRuleAndEnd},
		{"http.path_parameters", "{http: {path_parameters: %s}, " + oneRuleAndEnd},
		{"http.reset", "{http: {reset: %s}, " + oneRuleAndEnd},
		{"http.reset_until", "{http: {reset_until: %s}, " + oneRuleAndEnd},
		{"http.headers", "{http: {headers: %s}, " + oneRuleAndEnd},
		{"tokens.algorithms", "{tokens: {jwks_url: 'https://a/', algorithms: [%s]}, " + oneRuleAndEnd},
		{"rules.limits.on_failure", "{rules: [{name: a, per: global, limits: [{rate: 1/s, on_failure: %s}]}]}"},
		{"rules.limits.across", "{rules: [{name: a, per: global, limits: [{rate: 1/s, across: %s}]}]}"},
		{"rules.limits.algorithm", "{rules: [{name: a, per: global, limits: [{rate: 10/s, algorithm: %s}]}]}"},
		{"rules.limits.candidate.algorithm", "{rules: [{name: a, per: global, limits: [{rate: 10/s, candidate: {rate: 20/s, algorithm: %s}}]}]}"},
	} {
		property := s
		for _, name := range strings.Split(row.path, ".") {
			property = propertyOf(property, name)
		}
		var known []string
		walk(property, func(s *jsonschema.Schema) {
			if s.Enum != nil {
				for _, word := range s.Enum.Values {
					known = append(known, fmt.Sprint(word))
				}
			}
		})
		slices.Sort(known)
		known = slices.Compact(known)
		compared += len(known)
		for _, word := range known {
			err := compile(fmt.Sprintf(row.policy, word))
			// The compiler knows the word HS256, but rejects it beside jwks_url.
			isKnown := err == nil || strings.Contains(err.Error(), "the keys here are public")
			if !isKnown {
				t.Errorf("%s: the schema accepts %q, and the compiler reports %v; want no error", row.path, word, err)
			}
		}
		err := compile(fmt.Sprintf(row.policy, "qqqqqqqqqqqq"))
		if err == nil {
			t.Fatalf("%s: the compiler accepts an unknown word; want an error", row.path)
		}
		_, hint, _ := strings.Cut(err.Error(), "; ")
		list := strings.NewReplacer("there are ", "", "there is ", "", " and ", " ", "write some of ", "").Replace(hint)
		listed := regexp.MustCompile(`[A-Za-z0-9-]+`).FindAllString(list, -1)
		slices.Sort(listed)
		if !slices.Equal(listed, known) {
			t.Errorf("%s: the schema has the words %q, and the compiler %q; want the same", row.path, known, listed)
		}
	}
	t.Logf("counted: %d words of the schema known to the compiler", compared)
}

// oneRuleAndEnd ends a policy that begins with a brace.
const oneRuleAndEnd = "rules: [{name: a, per: global, limits: [{rate: 10/s}]}]}"

func TestSchemaHasTheBoundsOfTheCompiler(t *testing.T) {
	s := policySchema(t)
	compared := 0
	for _, row := range []struct{ path, policy string }{
		{"http.ipv4_prefix", "{http: {ipv4_prefix: %d}, " + oneRuleAndEnd},
		{"http.ipv6_prefix", "{http: {ipv6_prefix: %d}, " + oneRuleAndEnd},
		{"http.max_waiting", "{http: {max_waiting: %d}, " + oneRuleAndEnd},
		{"http.denied.status", "{http: {denied: {status: %d}}, " + oneRuleAndEnd},
		{"rules.limits.sub_windows", "{rules: [{name: a, per: global, limits: [{rate: 10/m, algorithm: sub-window, sub_windows: %d}]}]}"},
		{"rules.limits.split_into", "{rules: [{name: a, per: global, limits: [{rate: 99/m, split_into: %d}]}]}"},
		{"rules.limits.lease", "{rules: [{name: a, per: global, limits: [{rate: 99/m, lease: %d}]}]}"},
		{"rules.limits.cost.units", "{rules: [{name: a, per: global, limits: [{rate: 2251799813685248/d, algorithm: fixed-window, cost: {units: %d}}]}]}"},
		{"rules.limits.cost.methods", "{rules: [{name: a, per: global, limits: [{rate: 2251799813685248/d, algorithm: fixed-window, cost: {methods: {GET: %d}}}]}]}"},
		{"rules.limits.cost.min", "{rules: [{name: a, per: global, limits: [{rate: 2251799813685248/d, algorithm: fixed-window, cost: {header: X, min: %d, max: 2251799813685248}}]}]}"},
		{"rules.limits.cost.max", "{rules: [{name: a, per: global, limits: [{rate: 10/s, cost: {header: X, max: %d}}]}]}"},
		{"rules.limits.burst", "{rules: [{name: a, per: global, limits: [{rate: 1/us, burst: %d}]}]}"},
		{"rules.limits.in_flight", "{rules: [{name: a, per: global, limits: [{in_flight: %d}]}]}"},
	} {
		property := s
		for _, name := range strings.Split(row.path, ".") {
			property = propertyOf(property, name)
		}
		bounds := 0
		walk(property, func(s *jsonschema.Schema) {
			if s.Minimum == nil || s.Maximum == nil {
				return
			}
			least, most := s.Minimum.Num().Int64(), s.Maximum.Num().Int64()
			for _, n := range []int64{least - 1, least, most, most + 1} {
				bounds++
				if err := compile(fmt.Sprintf(row.policy, n)); (err == nil) != (n >= least && n <= most) {
					t.Errorf("%s: the schema allows %d to %d; want the compiler to do the same, but for %d it returns the error %v", row.path, least, most, n, err)
				}
			}
		})
		if bounds == 0 {
			t.Errorf("%s: the schema has no bounds; want the compiler's bounds", row.path)
		}
		compared += bounds
	}
	t.Logf("counted: %d numbers at the bounds of the schema", compared)
}

// walk visits a schema, its alternatives, and the schemas of its elements and fields.
func walk(s *jsonschema.Schema, visit func(*jsonschema.Schema)) {
	if s == nil {
		return
	}
	visit(s)
	walk(s.Ref, visit)
	for _, one := range slices.Concat(s.AnyOf, s.AllOf) {
		walk(one, visit)
	}
	if items, ok := s.Items.(*jsonschema.Schema); ok {
		walk(items, visit)
	}
	if more, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		walk(more, visit)
	}
}

// policySchema returns the schema of policies.
func policySchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(settings.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("policy.json", value); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// compile parses and compiles a policy, as policyfile.Load does. The environment has no variables.
func compile(text string) error {
	rules, err := policyfile.Parse("policy.yaml", []byte(text), func(string) (string, bool) { return "", false }, settings.PolicyOptions())
	if err == nil {
		rules.Close()
	}
	return err
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func nodeOf(t *testing.T, text string) *yaml.Node {
	t.Helper()
	var n yaml.Node
	if err := yaml.Load([]byte(text), &n); err != nil {
		t.Fatalf("%v in\n%s\nwant YAML", err, text)
	}
	return n.Content[0]
}

// valueOf returns the value of a YAML text, as an editor reads it to compare it with a schema.
func valueOf(text string) any {
	var n yaml.Node
	if err := yaml.Load([]byte(text), &n); err != nil || len(n.Content) == 0 {
		return nil
	}
	return value(n.Content[0], 0)
}

// value returns the value of a node. depth is how many nodes are around it.
func value(n *yaml.Node, depth int) any {
	if depth > 100 {
		return nil // an alias within its own anchor
	}
	switch n.Kind {
	case yaml.AliasNode:
		return value(n.Alias, depth+1)
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			list = append(list, value(item, depth+1))
		}
		return list
	case yaml.MappingNode:
		object := make(map[string]any)
		for i := 0; i+1 < len(n.Content); i += 2 {
			object[n.Content[i].Value] = value(n.Content[i+1], depth+1)
		}
		return object
	}
	switch digits := strings.ReplaceAll(n.Value, "_", ""); n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		return n.Value == "true"
	case "!!int", "!!float":
		if _, err := strconv.ParseFloat(digits, 64); err == nil {
			return json.Number(digits)
		}
	}
	return n.Value
}

// The tables of docs/configuration have the bounds of numbers that the schema has.
func TestDocsHaveTheBounds(t *testing.T) {
	pages, err := filepath.Glob(repository + "/docs/configuration/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs/configuration has the pages %q, %v; want some", pages, err)
	}
	var text strings.Builder
	for _, page := range pages {
		text.WriteString(read(t, page))
	}
	bounds := regexp.MustCompile(`"(\w+)": \{\s+"description": "[^"]* Bounds: ([0-9]+ to [0-9]+)\.`).FindAllStringSubmatch(string(settings.Schema()), -1)
	compared := 0
	for _, m := range bounds {
		name, want := m[1], m[2]
		row := regexp.MustCompile("(?m)^\\| `" + name + "` .*$").FindString(strings.ReplaceAll(text.String(), ",", ""))
		switch {
		case name == "on_status" || strings.Contains(text.String(), "\n### "+name+"\n"): // a setting of serve
		case !strings.Contains(row, want):
			t.Errorf("docs/configuration has the row %q; want the bounds %s of %s in it", row, want, name)
		default:
			compared++
		}
	}
	if compared < 6 {
		t.Errorf("%d bounds were compared; want at least 6", compared)
	}
	t.Logf("counted: %d bounds compared with the docs", compared)
}
