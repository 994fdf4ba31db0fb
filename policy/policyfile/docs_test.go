package policyfile

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/policy/jwt"
	"github.com/penstock/penstock/internal/syntax"
)

// configurationPages returns the text of docs/configuration.md and of all pages of
// docs/configuration.
func configurationPages(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../../docs/configuration/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("docs/configuration has %d pages, and Glob returns %v; want at least one page", len(files), err)
	}
	var all strings.Builder
	for _, name := range append(files, "../../docs/configuration.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
		all.WriteString("\n")
	}
	return all.String()
}

// The columns of the tables of fields.
const (
	columnField   = 0
	columnDefault = 2
	columnExample = 3
)

// tablesOf returns the rows of a page's tables. A row is the list of its cells. The map's key is
// the first cell of the table's head. Tables with equal keys are merged.
func tablesOf(page string) map[string][][]string {
	tables := make(map[string][][]string)
	head := ""
	for line := range strings.Lines(page) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "| ")
		cells := strings.Split(strings.TrimSuffix(strings.ReplaceAll(line, "| |", "|  |"), " |"), " | ")
		switch {
		case !ok:
			head = ""
		case head == "":
			head = cells[0]
		case cells[0] != "---":
			tables[head] = append(tables[head], cells)
		}
	}
	return tables
}

// structsOfPage are the structs that the tables of a page describe. head is the first cell of the
// table's head. The example of each row fits into at least one of the templates, in place of %s.
var structsOfPage = []struct {
	head       string
	structType reflect.Type
	templates  []string
}{
	{head: "field", structType: reflect.TypeFor[policyConfig](), templates: []string{
		"%s\n" + aRule,
		"%s",
		"%s\ntokens: {jwks_url: 'https://a/'}\n" + aRule,
	}},
	{head: "field of a rule", structType: reflect.TypeFor[ruleConfig](), templates: []string{
		"rules: [{name: a, per: client, limits: [{rate: 1/s}], %s}]",
		"rules: [{per: client, limits: [{rate: 1/s}], %s}]",
		"rules: [{name: a, limits: [{rate: 1/s}], %s}]",
		"rules: [{name: a, per: client, %s}]",
		"tokens: {jwks_url: 'https://a/'}\nrules: [{name: a, per: ip, limits: [{rate: 1/s}], %s}]",
	}},
	{head: "field of `match`", structType: reflect.TypeFor[matchConfig](), templates: []string{"rules: [{name: a, match: {%s}, per: client, limits: [{rate: 1/s}]}]"}},
	{head: "field of a limit", structType: reflect.TypeFor[limitConfig](), templates: []string{
		"rules: [{name: a, per: client, limits: [{rate: 100/s, %s}]}]",
		"rules: [{name: a, per: client, limits: [{%s}]}]",
		"rules: [{name: a, per: client, limits: [{in_flight: 5, %s}]}]",
		"rules: [{name: a, per: client, limits: [{rate: 100/s, algorithm: sub-window, %s}]}]",
		"rules: [{name: a, per: client, limits: [{rate: 100 per calendar month, %s}]}]",
		"rules: [{name: a, per: client, limits: [{rate: 100/s, on_failure: open, %s}]}]",
	}},
	{head: "field of `cost`", structType: reflect.TypeFor[costConfig](), templates: []string{
		"rules: [{name: a, per: client, limits: [{rate: 100/s, cost: {%s}}]}]",
		"rules: [{name: a, per: client, limits: [{rate: 100/s, cost: {header: X, %s}}]}]",
		"rules: [{name: a, per: client, limits: [{rate: 100/s, cost: {max: 10, %s}}]}]",
		"rules: [{name: a, per: client, limits: [{rate: 100/s, cost: {body: 1KB, %s}}]}]",
	}},
	{head: "field of `http`", structType: reflect.TypeFor[httplimit.Config](), templates: []string{
		"http: {%s}\n" + aRule,
		"http: {trusted_proxies: [10.0.0.0/8], %s}\n" + aRule,
	}},
	{head: "field of `denied`", structType: reflect.TypeFor[httplimit.DeniedConfig](), templates: []string{
		"http: {denied: {%s}}\n" + aRule,
		"http: {denied: {body: '<p>', %s}}\n" + aRule,
	}},
	{head: "field of `cors`", structType: reflect.TypeFor[httplimit.CORSConfig](), templates: []string{
		"http: {cors: {%s}}\n" + aRule,
		"http: {cors: {origins: https://a.example, %s}}\n" + aRule,
	}},
	{head: "field of `tokens`", structType: reflect.TypeFor[jwt.Config](), templates: []string{
		"tokens: {%s}\n" + aRule,
		"tokens: {jwks_url: 'https://a/', %s}\n" + aRule,
	}},
}

// Parts of policies, which make an example complete.
const (
	aRule  = "rules: [{name: a, per: global, limits: [{rate: 10/s}]}]"
	client = "identities: {client: {key: header X-API-Key}}\n"
)

func TestConfigurationPageHasAllFields(t *testing.T) {
	tables := tablesOf(configurationPages(t))
	compared := 0
	for _, s := range structsOfPage {
		var listed []string
		for _, row := range tables[s.head] {
			field := row[columnField]
			if field == "not in the file" {
				continue
			}
			listed = append(listed, strings.Trim(field, "`"))
			if !strings.HasPrefix(field, "`") {
				t.Errorf("the table %q has a row for %s, which is not a field", s.head, field)
			}
		}
		slices.Sort(listed)
		fields := slices.Collect(maps.Keys(fieldsOf(s.structType)))
		if s.structType == reflect.TypeFor[policyConfig]() {
			for _, section := range allSections.Sections {
				fields = append(fields, section.SectionName())
			}
		}
		if slices.Sort(fields); !slices.Equal(listed, fields) {
			t.Errorf("docs/configuration, the table %q has\n\t%v\nwant\n\t%v", s.head, listed, fields)
		}
		compared += len(listed)
	}
	t.Logf("counted: %d fields in tables of the docs", compared)
}

// wordsOf returns the words of a cell, without quotes and punctuation.
func wordsOf(cell string) []string {
	return strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune(" `,;:()", r) })
}

// The defaults of the page must be those of the schema.
func TestConfigurationPageHasTheDefaults(t *testing.T) {
	// Some fields have no value as their default, but a text, such as "none". The texts begin with:
	notValues := []string{"after", "all", "anything", "as", "needed", "none", "what", "one", "the"}
	pattern := regexp.MustCompile(`Default: ([a-zA-Z0-9/_.:-]*[a-zA-Z0-9/_-])|(\S+) \(default`)
	tables := tablesOf(configurationPages(t))
	compared := 0
	for _, s := range structsOfPage {
		for name, i := range fieldsOf(s.structType) {
			m := pattern.FindStringSubmatch(s.structType.Field(i).Tag.Get("jsonschema"))
			if m == nil || slices.Contains(notValues, m[1]) {
				continue
			}
			want := m[1] + m[2] // one of the two is empty
			if want == "0" {
				want = "0s" // a duration
			}
			compared++
			for _, row := range tables[s.head] {
				if row[columnField] == "`"+name+"`" && !slices.Contains(wordsOf(row[columnDefault]), want) {
					t.Errorf("docs/configuration: the page has the default %q for %s; want %q", row[columnDefault], name, want)
				}
			}
		}
	}
	if compared < 20 {
		t.Errorf("%d defaults were compared; want at least 20. The pattern may be wrong", compared)
	}
	t.Logf("counted: %d defaults compared with the docs", compared)
}

func TestPoliciesOfDocsCompile(t *testing.T) {
	policies := 0
	err := filepath.WalkDir("../../docs", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".md" {
			return err
		}
		page, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, block := range regexp.MustCompile("(?s)(<!-- from examples/policies/\\S+ -->\n)?```yaml\n(.*?)```\n").FindAllStringSubmatch(string(page), -1) {
			if block[1] != "" {
				continue // a part of a policy that is tested as a whole
			}
			text := block[2]
			if strings.HasPrefix(text, "cases:") { // for penstock test, which CI runs
				continue
			}
			policies++
			if !regexp.MustCompile(`(?m)^rules:`).MatchString(text) {
				text += aRule
			}
			if err := compileText(text); err != nil {
				t.Errorf("%s: a policy does not compile: %v\nThe policy is\n%s", name, err, text)
			}
		}
		return nil
	})
	if err != nil || policies == 0 {
		t.Errorf("%d policies were found in the docs, and WalkDir returns %v; want at least one, and no error", policies, err)
	}
	t.Logf("counted: %d policies of the docs", policies)
}

func TestExamplesOfConfigurationPageCompile(t *testing.T) {
	tables := tablesOf(configurationPages(t))
	tried := 0
	for _, s := range structsOfPage {
		for _, row := range tables[s.head] {
			example := strings.Trim(row[columnExample], "`")
			if name := strings.Trim(row[columnField], "`"); !strings.HasPrefix(example, name+": ") {
				t.Errorf("docs/configuration: %q is not an example of %s", example, name)
			}
			var errs []error
			for _, template := range s.templates {
				text := fmt.Sprintf(template, example)
				if !strings.Contains(strings.ReplaceAll(text, "new_identities:", ""), "identities:") {
					text = client + text
				}
				err := compileText(text)
				if err == nil || strings.Contains(err.Error(), "no such file") {
					errs = nil
					break
				}
				errs = append(errs, fmt.Errorf("%w\nin %s", err, text))
			}
			for _, err := range errs {
				t.Errorf("docs/configuration: the example %s does not compile: %v", example, err)
			}
			tried++
		}
	}
	t.Logf("counted: %d examples of fields", tried)
}

// compileText compiles a policy of the docs as if it were in the folder of the example policies. No
// environment variable is set.
func compileText(text string) error {
	return mistakesOf("../../examples/policies/page.yaml", text, func(string) (string, bool) { return "", false })
}

func TestConfigurationPageHasTheBounds(t *testing.T) {
	var rows []string
	for _, row := range tablesOf(configurationPages(t))["bound"] {
		rows = append(rows, strings.Join(row, " | "))
	}
	want := []string{
		"the file | " + formatSize(boundedfile.MaxPolicy),
		"levels of nesting, also by identities that refer to others | " + formatNumber(maxDepth),
		"values and names in the file; those of an anchor count again for each alias | " + formatNumber(maxNodes),
		"rules | " + formatNumber(maxRules),
		"pairs of a path and a host, in all rules | " + formatNumber(maxCombinations),
		"limits that can apply to one request | " + formatNumber(penstock.MaxCharges),
		"parts of an identity | " + formatNumber(maxParts),
		"a part of a key; a longer one becomes its SHA-256 | " + formatNumber(syntax.MaxKeyValue) + " bytes",
		"files of values, each counted as often as it is named | " + formatNumber(maxListFiles),
		"all files of values together | " + formatSize(maxListBytes),
		"lines of all files of values | " + formatNumber(maxListLines),
		"a value in a file | " + formatSize(maxListValueBytes),
		"keys of tokens in a file or a set | " + formatNumber(jwt.MaxKeys),
		"keys that are tried for a token without a key ID | " + formatNumber(jwt.MaxKeysTried),
		"a token | " + formatSize(syntax.MaxToken),
	}
	if !slices.Equal(rows, want) {
		t.Errorf("docs/configuration: the table of bounds is\n| %s |\nwant\n| %s |", strings.Join(rows, " |\n| "), strings.Join(want, " |\n| "))
	}
}

// formatSize writes a number of bytes in KiB or MiB.
func formatSize(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// formatNumber writes a number with commas between groups of three digits.
func formatNumber(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return formatNumber(n/1000) + fmt.Sprintf(",%03d", n%1000)
}

// fieldsOf returns the indices of the fields of a struct by their names in YAML.
func fieldsOf(t reflect.Type) map[string]int {
	known := make(map[string]int)
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); name != "" && name != "-" {
			known[name] = i
		}
	}
	return known
}
