package envoyconfig_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
)

func load(t *testing.T, contents ...string) *envoyconfig.Config {
	t.Helper()
	c, err := envoyconfig.Load(files(contents...), envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func files(contents ...string) (files []envoyconfig.File) {
	for i, content := range contents {
		files = append(files, envoyconfig.File{Name: fmt.Sprintf("%c.yaml", 'a'+i), Content: []byte(content)})
	}
	return files
}

// The error for each file begins with want, which has the line. The error also contains the remedy.
func TestErrorsHaveALineAndARemedy(t *testing.T) {
	for _, row := range []struct{ name, file, want, remedy string }{
		{name: "an empty file", file: "", want: "a.yaml: the file has no domain", remedy: "write domain: NAME"},
		{name: "no domain", file: "descriptors: []", want: "a.yaml:1: the file has no domain", remedy: "write domain: NAME"},
		{name: "an empty domain", file: "domain: ''", want: "a.yaml:1: the file has no domain", remedy: "write domain: NAME"},
		{name: "a list instead of a map", file: "- a", want: "a.yaml:1: cannot unmarshal !!seq", remedy: "correct the file"},
		{name: "broken syntax", file: "domain: a\n  b: c", want: "a.yaml:2: mapping values are not allowed in this context", remedy: "correct the file"},
		{name: "an unknown key", file: "domain: a\ndescriptors:\n- key: k\n  algorithm: x", want: "a.yaml:4: unknown key 'algorithm'", remedy: "write one of domain"},
		{name: "a key that is no string", file: "domain: a\n1: b", want: "a.yaml:1: the key 1 is not a string", remedy: "put it in quotes"},
		{name: "a list of texts", file: "domain: a\ndescriptors:\n- k", want: "a.yaml:3: the list has \"k\", which is not a map", remedy: "write a map"},
		{name: "a list in a list", file: "domain: a\ndescriptors:\n- - key: k", want: "a.yaml:3: the list has", remedy: "write a map"},
		{name: "a number with a fraction", file: "domain: a\ndescriptors:\n- key: k\n  value: 1.5", want: "a.yaml:4: 1.5 has a type that no key takes", remedy: "put it in quotes"},
		{name: "a very large number", file: "domain: a\ndescriptors:\n- key: k\n  value: 18446744073709551615", want: "a.yaml:4: 18446744073709551615 has a type", remedy: "put it in quotes"},
		{name: "no key", file: "domain: a\ndescriptors:\n- value: k", want: "a.yaml:3: a descriptor has no key", remedy: "write key: NAME"},
		{name: "the same key twice", file: "domain: a\ndescriptors:\n- key: k\n- key: k", want: "a.yaml:4: duplicate descriptor composite key 'a.k' (the other one is at a.yaml:3)", remedy: "remove or rename"},
		{name: "the same composite key twice", file: "domain: a\ndescriptors:\n- {key: k, value: v}\n- {key: k_v}", want: "a.yaml:4: duplicate descriptor composite key 'a.k_v'", remedy: "remove or rename"},
		{name: "no unit", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    requests_per_unit: 1", want: "a.yaml:5: invalid rate limit unit ''", remedy: "write second"},
		{name: "an unknown unit", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: fortnight\n    requests_per_unit: 1", want: "a.yaml:5: invalid rate limit unit 'fortnight'", remedy: "write second"},
		{name: "the unit unknown", file: "domain: a\ndescriptors: [{key: k, rate_limit: {unit: unknown, requests_per_unit: 1}}]", want: "a.yaml:2: invalid rate limit unit 'unknown'", remedy: "write second"},
		{name: "unlimited with a unit", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unlimited: true\n    unit: day", want: "a.yaml:6: an unlimited rate_limit has a unit", remedy: "remove the unit"},
		{name: "a negative count", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: -1", want: "a.yaml:6: cannot unmarshal !!int `-1` into uint32", remedy: "correct"},
		{name: "a count of 2^32", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: 4294967296", want: "a.yaml:6: cannot unmarshal", remedy: "correct"},
		{name: "a bool in quotes", file: "domain: a\ndescriptors:\n- key: k\n  shadow_mode: 'true'", want: "a.yaml:4: cannot unmarshal !!str `true` into bool", remedy: "correct"},
		{name: "replaces without a name", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    replaces:\n    - {}", want: "a.yaml:7: an entry of replaces has no name", remedy: "write - name"},
		{name: "replaces itself", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    name: n\n    replaces: [{name: n}]", want: "a.yaml:7: the limit 'n' replaces itself", remedy: "name another"},
		{name: "share_threshold without a wildcard", file: "domain: a\ndescriptors:\n- key: k\n  value: v\n  share_threshold: true", want: "a.yaml:5: share_threshold needs a value with *", remedy: "write a value with *"},
		{name: "an unknown key with an anchor", file: "x: &x\n  unit: eon", want: "a.yaml:1: unknown key 'x'", remedy: "write one of"},
		{name: "an error in a map with an anchor", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit: &l\n    unit: eon\n- key: m\n  rate_limit: *l", want: "a.yaml:5: invalid rate limit unit 'eon'", remedy: "write second"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := envoyconfig.Load(files(row.file), envoyconfig.Options{})
			if !errors.Is(err, envoyconfig.ErrInvalid) || !strings.HasPrefix(err.Error(), row.want) || !strings.Contains(err.Error(), row.remedy) {
				t.Errorf("the error is\n%v\nwant one that begins with %q and contains %q", err, row.want, row.remedy)
			}
		})
	}
}

func TestAllErrorsOfAllFilesAreReported(t *testing.T) {
	_, err := envoyconfig.Load(files(
		"domain: a\ndescriptors:\n- key: k\n  rate_limit: {unit: eon}\n- value: v",
		"domain: b\nfoo: 1\nbar: 2",
	), envoyconfig.Options{})
	all, _ := errors.AsType[envoyconfig.Errors](err)
	var got []string
	for _, e := range all {
		got = append(got, fmt.Sprintf("%s:%d %s", e.File, e.Line, e.What))
	}
	want := []string{"a.yaml:4 invalid rate limit unit 'eon'", "a.yaml:5 a descriptor has no key", "b.yaml:3 unknown key 'bar'", "b.yaml:2 unknown key 'foo'"}
	if !slices.Equal(got, want) {
		t.Errorf("the errors are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDomainInTwoFilesNeedsMergeDomains(t *testing.T) {
	two := files("domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]",
		"domain: a\ndescriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]")
	_, err := envoyconfig.Load(two, envoyconfig.Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "b.yaml:1: domain 'a' is in a.yaml already") {
		t.Errorf("without MergeDomains the error is %v; want one that names both files", err)
	}
	c, err := envoyconfig.Load(two, envoyconfig.Options{MergeDomains: true})
	if err != nil || len(c.Limits()) != 2 {
		t.Fatalf("with MergeDomains Load returns %v, %v; want two limits", c, err)
	}
	two[1].Content = two[0].Content
	if _, err = envoyconfig.Load(two, envoyconfig.Options{MergeDomains: true}); err == nil || !strings.Contains(err.Error(), "duplicate descriptor composite key 'a.k' (the other one is at a.yaml:2)") {
		t.Errorf("for two equal files the error is %v; want one about a duplicate key", err)
	}
}

// A value that YAML 1.1 could read as a number, a bool or a time keeps its text.
func TestScalarsKeepTheirSpelling(t *testing.T) {
	for _, text := range []string{"7", "true", "on", "No", "010", "0x1F", "1_000", "2001-01-01", "1:30", "'quoted'", "\"1.5\""} {
		c := load(t, "domain: a\ndescriptors: [{key: k, value: "+text+", rate_limit: {unit: DAY, requests_per_unit: 1}}]")
		var m envoyconfig.Match
		c.Domain("a").Match([]envoyconfig.Entry{{Key: "k", Value: strings.Trim(text, "'\"")}}, &m)
		if m.Limit == nil {
			t.Errorf("the descriptor with value: %s does not match an entry with this text; want a match", text)
		}
	}
	c := load(t, "domain: a\ndescriptors: [{key: k, value: ~, rate_limit: {unit: Second, requests_per_unit: 010}}]")
	if l := c.Limits()[0]; l.Path != "a.k" || l.RequestsPerUnit != 8 || l.Unit != envoyconfig.Second {
		t.Errorf("the limit is %+v; want 8 per second (octal 010), for any value", l)
	}
}

func TestAnchorsAndMergeKeysWork(t *testing.T) {
	c := load(t, `
domain: a
descriptors:
- key: k
  rate_limit: &base {unit: minute, requests_per_unit: 3, name: base}
- key: l
  rate_limit: *base
- key: m
  rate_limit:
    <<: *base
    requests_per_unit: 5
`)
	limits := c.Limits()
	if len(limits) != 3 || limits[1].RequestsPerUnit != 3 || limits[2].RequestsPerUnit != 5 || limits[2].Unit != envoyconfig.Minute || limits[2].Name != "base" {
		t.Errorf("the limits are\n%v\nwant 3, 3 and 5 a minute, the last with the name base", c)
	}
}

func TestStringListsLimitsLikeRlconfig(t *testing.T) {
	c := load(t, "domain: d\ndescriptors:\n- {key: nest, value: a, descriptors: [{key: k, value: x, rate_limit: {unit: day, requests_per_unit: 4}}]}\n- {key: s, shadow_mode: true, quota_mode: true, rate_limit: {unit: week, requests_per_unit: 1}}")
	want := "d.nest_a.k_x: unit=DAY requests_per_unit=4, shadow_mode: false, quota_mode: false\n" +
		"d.s: unit=WEEK requests_per_unit=1, shadow_mode: true, quota_mode: true\n"
	if c.String() != want {
		t.Errorf("the list is\n%swant\n%s", c, want)
	}
}

func TestSettingsWithoutEffectCauseWarnings(t *testing.T) {
	for _, row := range []struct {
		name, file string
		want       string // how the first warning begins
		count      int    // of warnings
	}{
		{name: "shadow_mode in rate_limit", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    shadow_mode: true",
			want: "a.yaml:7: shadow_mode has no effect in rate_limit; write it in a descriptor", count: 1},
		{name: "unit in a descriptor", file: "domain: a\ndescriptors:\n- key: k\n  unit: day", want: "a.yaml:4: unit has no effect in a descriptor; write it in rate_limit", count: 1},
		{name: "several documents", file: "domain: a\n---\ndomain: b", want: "a.yaml:1: the file has several documents", count: 1},
		{name: "no count", file: "domain: a\ndescriptors:\n- key: k\n  rate_limit: {unit: day}", want: "a.yaml:4: requests_per_unit is 0 or missing", count: 1},
		{name: "a collision", file: "domain: a\ndescriptors:\n- key: a\n  value: b_c\n- key: a_b\n  value: x",
			want: "a.yaml:3: the descriptor 'a_b_c' also matches requests with key 'a_b' and value 'c'", count: 2}, // and a_b_x matches key a
	} {
		t.Run(row.name, func(t *testing.T) {
			warnings := load(t, row.file).Warnings()
			if len(warnings) != row.count || !strings.HasPrefix(warnings[0].String(), row.want) {
				t.Errorf("the warnings are %v; want %d, and that the first begins with %q", warnings, row.count, row.want)
			}
		})
	}
	if w := load(t, "domain: a\ndescriptors: [{key: user_id, value: x_y}, {key: path, value: a_b, metadata: {owner: {team: web, n: 1.5}}}]").Warnings(); len(w) > 0 {
		t.Errorf("a correct file has the warnings %v; want none", w)
	}
}

func TestLargeFilesAndFoldersAreRefused(t *testing.T) {
	dir := t.TempDir()
	const maxFile, maxFolder = 2 << 20, 64 << 20 // bytes
	// commented returns a valid file with a comment of size bytes.
	commented := func(size int) []byte { return append([]byte("domain: a #"), bytes.Repeat([]byte("-"), size)...) }
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.yaml", commented(maxFile))
	if _, err := envoyconfig.LoadDir(dir, envoyconfig.Options{}); err == nil || !strings.Contains(err.Error(), "a.yaml") || !strings.Contains(err.Error(), "longer than 2097152 bytes") {
		t.Errorf("for a large file the error is %v; want one with the file and the bound", err)
	}
	const size = maxFile - 100
	for i := range maxFolder/size + 1 {
		write(fmt.Sprint(i, ".yaml"), commented(size))
	}
	write("a.yaml", commented(0))
	if _, err := envoyconfig.ReadDir(dir); err == nil || !strings.Contains(err.Error(), "more than 64 MB together") {
		t.Errorf("for a large folder the error is %v; want one with the bound of 64 MB", err)
	}
}

// Some small files would need gigabytes of memory. Load refuses them, or bounds how many warnings
// it keeps.
func TestHostileFilesNeedLittleMemory(t *testing.T) {
	children, aliases, collisions := new(strings.Builder), new(strings.Builder), new(strings.Builder)
	fmt.Fprintf(children, "domain: d\ndescriptors:\n- key: %s\n  descriptors:\n", strings.Repeat("k", 500_000))
	fmt.Fprintf(aliases, "domain: d\ndescriptors:\n- key: a\n  value: &v %s\n", strings.Repeat("v", 500_000))
	for i := range 1000 {
		fmt.Fprintf(children, "  - {key: c%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
		fmt.Fprintf(aliases, "- {key: c%d, value: *v}\n", i)
	}
	for name, file := range map[string]string{"a long key above many keys": children.String(), "aliases of a long value": aliases.String()} {
		if _, err := envoyconfig.Load(files(file), envoyconfig.Options{}); !errors.Is(err, envoyconfig.ErrInvalid) || !strings.Contains(err.Error(), "have more than 128 MB") {
			t.Errorf("for %s the error is %.200v; want that the names have more than 128 MB", name, err)
		}
	}
	collisions.WriteString("domain: d\ndescriptors:\n")
	for i := range 120 {
		fmt.Fprintf(collisions, "- {key: k%s}\n", strings.Repeat("_a", i))
	}
	fmt.Fprintf(collisions, "- {key: x, value: %s}\n", strings.Repeat("_", 1_000_000))
	warnings := load(t, collisions.String()).Warnings()
	if len(warnings) != 1000 {
		t.Errorf("there are %d warnings; want the first 1000", len(warnings))
	}
}

func TestMetadataThatNoResponseCanHaveAreRejected(t *testing.T) {
	for metadata, want := range map[string]string{
		"1.2.3.4":                      "cannot unmarshal",
		"''":                           "cannot unmarshal",
		"[a]":                          "cannot unmarshal",
		"{a: [b, {c: !!binary /w==}]}": "not UTF-8",
		"{!!binary /w==: a}":           "not UTF-8",
	} {
		text := "domain: a\ndescriptors:\n- key: k\n  metadata: " + metadata + "\n  rate_limit: {unit: day, requests_per_unit: 1}\n"
		_, err := envoyconfig.Load([]envoyconfig.File{{Name: "a.yaml", Content: []byte(text)}}, envoyconfig.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "a.yaml:4") {
			t.Errorf("with the metadata %s, the error is %v; want one with %q and a.yaml:4", metadata, err, want)
		}
	}
	if c := load(t, "domain: a\ndescriptors: [{key: k, metadata: , rate_limit: {unit: day, requests_per_unit: 1}}]"); c.Limits()[0].Metadata != nil {
		t.Errorf("without a value, the metadata are %v; want none", c.Limits()[0].Metadata)
	}
}

func TestMetadataMayHaveAnyKeys(t *testing.T) {
	c := load(t, "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {owner: {team: web}, list: [1, {a: b}], ratio: 1.5}}]")
	m := c.Limits()[0].Metadata
	if owner, ok := m["owner"].(map[string]any); !ok || owner["team"] != "web" || m["ratio"] != 1.5 {
		t.Errorf("the metadata are %#v; want those of the file", m)
	}
}

// Load neither panics nor hangs, whatever a file contains.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "domain: a\ndescriptors: [{key: k, value: '*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]",
		"domain: a\ndescriptors: &d [{key: k, descriptors: *d}]", "a: &a [*a]", "<<: [{domain: a}]", "domain: a\nx: &x {<<: *x}", "---\n---\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		c, err := envoyconfig.Load(files(content), envoyconfig.Options{})
		if err != nil {
			if !errors.Is(err, envoyconfig.ErrInvalid) || !strings.HasPrefix(err.Error(), "a.yaml") {
				t.Errorf("the error is %v; want one that names the file", err)
			}
			return
		}
		var m envoyconfig.Match
		for _, l := range c.Limits() {
			name, _, _ := strings.Cut(l.Path, ".")
			if d := c.Domain(name); d != nil {
				d.Match([]envoyconfig.Entry{{Key: "k", Value: "v"}}, &m)
			}
		}
	})
}
