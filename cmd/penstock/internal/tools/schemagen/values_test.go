package schemagen

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

// TestSchemaOfValues checks that the schema is up to date, and that it accepts values.yaml and the
// chart's test values in ci.
func TestSchemaOfValues(t *testing.T) {
	text := generated(t, chart+"values.schema.json", generateValues)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("values.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("values.json")
	if err != nil {
		t.Fatal(err)
	}

	load := func(text []byte) (v any) {
		if err := yaml.Load(text, &v); err != nil {
			t.Fatalf("%v in\n%s\nwant YAML", err, text)
		}
		return v
	}
	testValues, err := filepath.Glob(chart + "ci/*.yaml")
	if err != nil || len(testValues) < 6 {
		t.Fatalf("found the files of test values %q, error %v; want at least 6 files", testValues, err)
	}
	for _, path := range append(testValues, chart+"values.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if v := load(text); v != nil {
			if err := schema.Validate(v); err != nil {
				t.Errorf("%s: the schema rejects it: %v", path, err)
			}
		}
	}
	for _, bad := range []string{
		"replicas: '2'", "replicas: 0", "replica: 2", "listeners: {api: {enabled: 'false'}}", "listeners: {api: {port: 80}}", "settings: {upstrem: http://a}",
		"settings: {listen: ':80'}", "settings: {log_format: xml}", "settings: {log_format: '${FORMAT}'}", "image: {digest: sha256:1}", "valkey: {maxmemory: 75%}",
		"drain: {delaySeconds: 5s}", "store: {url: redis://a}",
	} {
		if schema.Validate(load([]byte(bad))) == nil {
			t.Errorf("the schema accepts %s; want an error", bad)
		}
	}

	for _, row := range settings.Table {
		isInSettings := schema.Properties["settings"].Properties[row.Key()] != nil
		isElsewhere := slices.Contains(setFromOtherValues, row.Key())
		if !row.IsNotInFile && isInSettings == isElsewhere {
			t.Errorf("the setting %s: in the schema of settings: %v, in setFromOtherValues: %v; want exactly one of them", row.Name, isInSettings, isElsewhere)
		}
	}
}
