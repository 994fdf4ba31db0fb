package envoyconfig_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/grpclimit/envoyconfig"
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

// The error for each file begins with want, which names the line. It also contains the remedy.
func TestErrorsHaveALineAndARemedy(t *testing.T) {
	for _, row := range []struct{ name, file, want, remedy string }{
		{"an empty file", "", "a.yaml: the file has no domain", "write domain: NAME"},
		{"no domain", "descriptors: []", "a.yaml:1: the file has no domain", "write domain: NAME"},
		{"an empty domain", "domain: ''", "a.yaml:1: the file has no domain", "write domain: NAME"},
		{"no map", "- a", "a.yaml:1: cannot unmarshal !!seq", "correct the file"},
		{"broken syntax", "domain: a\n  b: c", "a.yaml:2: mapping values are not allowed in this context", "correct the file"},
		{"an unknown key", "domain: a\ndescriptors:\n- key: k\n  algorithm: x", "a.yaml:4: unknown key 'algorithm'", "write one of domain"},
		{"a key that is no string", "domain: a\n1: b", "a.yaml:1: the key 1 is not a string", "put it in quotes"},
		{"a list of texts", "domain: a\ndescriptors:\n- k", "a.yaml:3: the list has \"k\", which is not a map", "write a map"},
		{"a list in a list", "domain: a\ndescriptors:\n- - key: k", "a.yaml:3: the list has", "write a map"},
		{"a number with a fraction", "domain: a\ndescriptors:\n- key: k\n  value: 1.5", "a.yaml:4: 1.5 has a type that no key takes", "put it in quotes"},
		{"a very large number", "domain: a\ndescriptors:\n- key: k\n  value: 18446744073709551615", "a.yaml:4: 18446744073709551615 has a type", "put it in quotes"},
		{"no key", "domain: a\ndescriptors:\n- value: k", "a.yaml:3: a descriptor has no key", "write key: NAME"},
		{"two of one key", "domain: a\ndescriptors:\n- key: k\n- key: k", "a.yaml:4: duplicate descriptor composite key 'a.k' (the other one is at a.yaml:3)", "remove or rename"},
		{"two of one composite key", "domain: a\ndescriptors:\n- {key: k, value: v}\n- {key: k_v}", "a.yaml:4: duplicate descriptor composite key 'a.k_v'", "remove or rename"},
		{"no unit", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    requests_per_unit: 1", "a.yaml:5: invalid rate limit unit ''", "write second"},
		{"an unknown unit", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: fortnight\n    requests_per_unit: 1", "a.yaml:5: invalid rate limit unit 'fortnight'", "write second"},
		{"the unit unknown", "domain: a\ndescriptors: [{key: k, rate_limit: {unit: unknown, requests_per_unit: 1}}]", "a.yaml:2: invalid rate limit unit 'unknown'", "write second"},
		{"unlimited with a unit", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unlimited: true\n    unit: day", "a.yaml:6: an unlimited rate_limit has a unit", "remove the unit"},
		{"a negative count", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: -1", "a.yaml:6: cannot unmarshal !!int `-1` into uint32", "correct"},
		{"a count of 2^32", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: 4294967296", "a.yaml:6: cannot unmarshal", "correct"},
		{"a bool in quotes", "domain: a\ndescriptors:\n- key: k\n  shadow_mode: 'true'", "a.yaml:4: cannot unmarshal !!str `true` into bool", "correct"},
		{"replaces without a name", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    replaces:\n    - {}", "a.yaml:7: an entry of replaces has no name", "write - name"},
		{"replaces itself", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    name: n\n    replaces: [{name: n}]", "a.yaml:7: the limit 'n' replaces itself", "name another"},
		{"share_threshold without a wildcard", "domain: a\ndescriptors:\n- key: k\n  value: v\n  share_threshold: true", "a.yaml:5: share_threshold needs a value with *", "write a value with *"},
		{"a mistake in a merged map", "x: &x\n  unit: eon", "a.yaml:1: unknown key 'x'", "write one of"},
		{"a mistake behind an anchor", "domain: a\ndescriptors:\n- key: k\n  rate_limit: &l\n    unit: eon\n- key: m\n  rate_limit: *l", "a.yaml:5: invalid rate limit unit 'eon'", "write second"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := envoyconfig.Load(files(row.file), envoyconfig.Options{})
			if !errors.Is(err, envoyconfig.ErrInvalid) || !strings.HasPrefix(err.Error(), row.want) || !strings.Contains(err.Error(), row.remedy) {
				t.Errorf("the error is\n%v\nwant %s…; …%s…", err, row.want, row.remedy)
			}
		})
	}
}

func TestAllErrorsOfAllFilesAreReported(t *testing.T) {
	_, err := envoyconfig.Load(files(
		"domain: a\ndescriptors:\n- key: k\n  rate_limit: {unit: eon}\n- value: v",
		"domain: b\nfoo: 1\nbar: 2",
	), envoyconfig.Options{})
	all, ok := errors.AsType[envoyconfig.Errors](err)
	if !ok || len(all) != 4 {
		t.Errorf("the errors are\n%v\nwant four", err)
	}
}

func TestDomainInTwoFilesNeedsMergeDomains(t *testing.T) {
	two := files("domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]",
		"domain: a\ndescriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]")
	_, err := envoyconfig.Load(two, envoyconfig.Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "b.yaml:1: domain 'a' is in a.yaml already") {
		t.Errorf("the error is %v; want one that names both files", err)
	}
	c, err := envoyconfig.Load(two, envoyconfig.Options{MergeDomains: true})
	if err != nil || len(c.Limits()) != 2 {
		t.Fatalf("with MergeDomains Load returns %v, %v; want two limits", c, err)
	}
	two[1].Content = two[0].Content
	if _, err = envoyconfig.Load(two, envoyconfig.Options{MergeDomains: true}); err == nil || !strings.Contains(err.Error(), "duplicate descriptor composite key 'a.k' (the other one is at a.yaml:2)") {
		t.Errorf("for a file that is merged with itself the error is %v; want a duplicate", err)
	}
}

// A scalar that YAML 1.1 could read as a number or a bool keeps the text of the file.
func TestScalarsKeepTheirSpelling(t *testing.T) {
	for _, text := range []string{"7", "true", "on", "No", "010", "0x1F", "1_000", "2001-01-01", "1:30", "'quoted'", "\"1.5\""} {
		c := load(t, "domain: a\ndescriptors: [{key: k, value: "+text+", rate_limit: {unit: DAY, requests_per_unit: 1}}]")
		var m envoyconfig.Match
		c.Domain("a").Match([]envoyconfig.Entry{{Key: "k", Value: strings.Trim(text, "'\"")}}, &m)
		if m.Limit == nil {
			t.Errorf("the descriptor with value: %s does not match an entry with that text", text)
		}
	}
	c := load(t, "domain: a\ndescriptors: [{key: k, value: ~, rate_limit: {unit: Second, requests_per_unit: 010}}]")
	if l := c.Limits()[0]; l.Path != "a.k" || l.RequestsPerUnit != 8 || l.Unit != envoyconfig.Second {
		t.Errorf("the limit is %+v; want 8 per second, for any value", l)
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
		t.Errorf("the limits are\n%v\nwant 3, 3 and 5 a minute", c)
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
	for _, row := range []struct{ name, file, want string }{
		{"shadow_mode in rate_limit", "domain: a\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    shadow_mode: true",
			"a.yaml:7: shadow_mode has no effect in rate_limit; write it in a descriptor"},
		{"unit in a descriptor", "domain: a\ndescriptors:\n- key: k\n  unit: day", "a.yaml:4: unit has no effect in a descriptor; write it in rate_limit"},
		{"several documents", "domain: a\n---\ndomain: b", "a.yaml:1: the file has several documents"},
		{"no count", "domain: a\ndescriptors:\n- key: k\n  rate_limit: {unit: day}", "a.yaml:4: requests_per_unit is 0 or missing"},
		{"a collision", "domain: a\ndescriptors:\n- key: a\n  value: b_c\n- key: a_b\n  value: x", "a.yaml:3: the descriptor 'a_b_c' also matches requests with key 'a_b' and value 'c'"},
	} {
		t.Run(row.name, func(t *testing.T) {
			warnings := load(t, row.file).Warnings()
			wantCount := max(1, strings.Count(row.file, "value: ")) // each value of the collision causes one
			if len(warnings) != wantCount || !strings.HasPrefix(warnings[0].String(), row.want) {
				t.Errorf("the warnings are %v; want %d, the first of them %s", warnings, wantCount, row.want)
			}
		})
	}
	if w := load(t, "domain: a\ndescriptors: [{key: user_id, value: x_y}, {key: path, value: a_b, metadata: {owner: {team: web, n: 1.5}}}]").Warnings(); len(w) > 0 {
		t.Errorf("a file without errors has the warnings %v; want none", w)
	}
}

func TestLargeFilesAndFoldersAreRefused(t *testing.T) {
	dir := t.TempDir()
	const file, folder = 2 << 20, 64 << 20
	comment := func(size int) []byte { return append([]byte("domain: a #"), bytes.Repeat([]byte("-"), size)...) }
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.yaml", comment(file))
	if _, err := envoyconfig.LoadDir(dir, envoyconfig.Options{}); err == nil || !strings.Contains(err.Error(), "a.yaml") || !strings.Contains(err.Error(), "longer than 2097152 bytes") {
		t.Errorf("the error for a large file is %v; want one with the file and the bound", err)
	}
	for i := range folder/(file-100) + 1 {
		write(fmt.Sprint(i, ".yaml"), comment(file-100))
	}
	write("a.yaml", comment(0))
	if _, err := envoyconfig.ReadDir(dir); err == nil || !strings.Contains(err.Error(), "more than 64 MB together") {
		t.Errorf("the error for a large folder is %v; want one with the bound", err)
	}
}

// Small files could need many gigabytes of memory. They are refused, or the number of warnings is
// bounded.
func TestHostileFilesNeedLittleMemory(t *testing.T) {
	children, aliases, nested := new(strings.Builder), new(strings.Builder), new(strings.Builder)
	fmt.Fprintf(children, "domain: d\ndescriptors:\n- key: %s\n  descriptors:\n", strings.Repeat("k", 500_000))
	fmt.Fprintf(aliases, "domain: d\ndescriptors:\n- key: a\n  value: &v %s\n", strings.Repeat("v", 500_000))
	for i := range 1000 {
		fmt.Fprintf(children, "  - {key: c%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
		fmt.Fprintf(aliases, "- {key: c%d, value: *v}\n", i)
	}
	for name, file := range map[string]string{"a long key above many": children.String(), "aliases of a long value": aliases.String()} {
		if _, err := envoyconfig.Load(files(file), envoyconfig.Options{}); !errors.Is(err, envoyconfig.ErrInvalid) || !strings.Contains(err.Error(), "have more than 128 MB") {
			t.Errorf("the error for %s is %.200v; want that the paths are too long", name, err)
		}
	}
	nested.WriteString("domain: d\ndescriptors:\n")
	for i := range 120 {
		fmt.Fprintf(nested, "- {key: k%s}\n", strings.Repeat("_a", i))
	}
	fmt.Fprintf(nested, "- {key: x, value: %s}\n", strings.Repeat("_", 1_000_000))
	warnings := load(t, nested.String()).Warnings()
	if len(warnings) != 1000 {
		t.Errorf("there are %d warnings; want the first 1000", len(warnings))
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
