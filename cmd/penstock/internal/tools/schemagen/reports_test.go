package schemagen

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	googleschema "github.com/google/jsonschema-go/jsonschema"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/penstock/penstock/cmd/penstock/command"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/load"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/replay"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simulate"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/suggest"
)

// reports are what commands print with -o json. The schema of doctor is written by hand.
var reports = map[string]reflect.Type{
	"load":     reflect.TypeFor[load.Report](),
	"replay":   reflect.TypeFor[replay.Report](),
	"simulate": reflect.TypeFor[simulate.Report](),
	"suggest":  reflect.TypeFor[suggest.Report](),
}

// generateReport returns the schema of a report. The comments of fields are the descriptions.
func generateReport(name string, comments map[string]string) ([]byte, error) {
	number := &googleschema.Schema{Type: "number"}
	counts := &googleschema.Schema{Type: "object", AdditionalProperties: &googleschema.Schema{Type: "integer"}}
	s, err := googleschema.ForType(reports[name], &googleschema.ForOptions{TypeSchemas: map[reflect.Type]*googleschema.Schema{
		reflect.TypeFor[simulate.Seconds](): number,
		reflect.TypeFor[map[int]int64]():    counts,
	}})
	if err != nil {
		return nil, err
	}
	addComments(s, reports[name], comments)
	s.Schema = draft2020
	s.Title = "What penstock " + name + " -o json prints"
	return indent(s)
}

const draft2020 = "https://json-schema.org/draft/2020-12/schema"

// addComments describes the properties of a struct's schema.
func addComments(s *googleschema.Schema, t reflect.Type, comments map[string]string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		if t.Kind() == reflect.Slice && s.Items != nil {
			s = s.Items
		} else if t.Kind() == reflect.Map {
			s = s.AdditionalProperties
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		property := s.Properties[name]
		if property == nil {
			continue
		}
		owner := t
		for _, i := range f.Index[:len(f.Index)-1] { // the embedded struct that has the field
			owner = owner.Field(i).Type
		}
		if comment := comments[owner.String()+"."+f.Name]; comment != "" {
			property.Description = comment
		}
		addComments(property, f.Type, comments)
	}
}

// readComments returns the comments of the fields of all structs of the tools, by names such as
// "load.Report.Rate".
func readComments(t *testing.T) map[string]string {
	t.Helper()
	comments := make(map[string]string)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
						comments[file.Name.Name+"."+spec.Name.Name+"."+name.Name] = text
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return comments
}

func TestSchemasOfReportsAreUpToDate(t *testing.T) {
	comments := readComments(t)
	for name := range reports {
		generated(t, schemaFile(name), func() ([]byte, error) { return generateReport(name, comments) })
	}
}

func schemaFile(name string) string {
	return repository + "/cmd/penstock/command/schemas/" + name + ".json"
}

// compileReport compiles the schema that penstock schema --report prints.
func compileReport(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(run(t, "schema", "--report", name)))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name+".json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// run runs a command and returns what it printed.
func run(t *testing.T, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	if status := command.Run(t.Context(), args, &out, &errs); status != 0 {
		t.Fatalf("penstock %s ended with the status %d: %s", strings.Join(args, " "), status, &errs)
	}
	return out.Bytes()
}

// Reports of commands obey the schemas, and a report without one of the fields does not.
func TestReportsObeyTheirSchemas(t *testing.T) {
	log := filepath.Join(t.TempDir(), "access.log")
	var lines strings.Builder
	for i := range 60 {
		lines.WriteString("203.0.113.7 - - [10/Oct/2026:13:55:" + string(rune('0'+i/10)) + string(rune('0'+i%10)) + " +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"x\"\n")
	}
	if err := os.WriteFile(log, []byte(lines.String()+"no request\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(policy, []byte("rules: [{name: a, per: ip, limits: [{rate: 10/m}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := newServer(t)
	for name, commands := range map[string][][]string{
		"replay":  {{log, "--config", policy}, {log, "--config", policy, "--diff", policy, "--retry"}},
		"suggest": {{log}, {log, "--algorithm", "fixed-window"}},
		"simulate": {
			{"10/s, burst 100", "--arrivals", "150 at 0s; 60 at 5s", "--algorithm", "all"},
			{"10/s, burst 100", "--arrivals", "150 at 0s", "--regions", "2", "--across", "exchange", "--delay", "80ms"},
		},
		"load": {{"--target", server, "--arrivals", "50/s for 200ms", "--limit", "10/s, burst 2"}, {"--target", server, "--arrivals", "3 at 0s"}},
	} {
		schema := compileReport(t, name)
		for _, args := range commands {
			text := run(t, append(append([]string{name}, args...), "-o", "json")...)
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(value); err != nil {
				t.Errorf("penstock %s %s: the report does not obey the schema: %v\n%s", name, strings.Join(args, " "), err, text)
			}
			report := value.(map[string]any)
			for field, kept := range report {
				report[field] = map[string]any{"unknown": nil}
				var invalid *jsonschema.ValidationError
				if err := schema.Validate(value); !errors.As(err, &invalid) {
					t.Errorf("%s: the schema accepts an object with an unknown field as %s", name, field)
				}
				report[field] = kept
			}
		}
	}
}

func newServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	return s.URL
}
