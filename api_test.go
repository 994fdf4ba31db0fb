package penstock_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

var updatesAPI = flag.Bool("api", false, "write the public names to docs/api.txt")

// docs/api.txt has every public name of the modules that users import. A change of the file is a
// change of what users can rely on.
func TestPublicNamesAreThoseOfTheFile(t *testing.T) {
	effort.SkipUnderRace(t)
	const path = "docs/api.txt"
	got := publicNames(t)
	if *updatesAPI {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for _, line := range gotLines {
		if !slices.Contains(wantLines, line) {
			t.Errorf("%s has no line for %s", path, line)
		}
	}
	for _, line := range wantLines {
		if !slices.Contains(gotLines, line) {
			t.Errorf("%s has a line for %s, which is no longer public", path, line)
		}
	}
	if t.Failed() {
		t.Logf("if users shall see this change, run go test . -run PublicNames -api, and write it into CHANGELOG.md")
	} else if got != string(want) {
		t.Errorf("the lines of %s are not in order; run go test . -run PublicNames -api", path)
	}
	t.Logf("counted: %d public names", len(gotLines)-1)
}

// publicNames returns a line for each public name of the modules that users import, with its
// declaration. The packages of generated code are left out.
func publicNames(t *testing.T) string {
	t.Helper()
	folders := []string{"."}
	here := strings.TrimSpace(output(t, "go", "list", "-f", "{{.Dir}}", "."))
	for _, dir := range strings.Fields(output(t, "go", "list", "-m", "-f", "{{.Dir}}")) {
		folder, err := filepath.Rel(here, dir)
		if err != nil {
			t.Fatal(err)
		}
		if folder != "." && !slices.Contains(neverTagged, folder) && !strings.HasPrefix(folder, "cmd") {
			folders = append(folders, folder)
		}
	}
	var lines []string
	for _, folder := range folders {
		cmd := exec.Command("go", "list", "-f", "{{.Dir}}\t{{.ImportPath}}\t{{join .GoFiles \" \"}}", "./...")
		cmd.Dir = folder
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.SplitN(strings.TrimSpace(line), "\t", 3)
			name := pathInModule(fields[1])
			if !strings.HasPrefix(name, "internal/") && !strings.Contains(name, "/internal/") {
				lines = append(lines, namesOfPackage(t, name, fields[0], strings.Fields(fields[2]))...)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// namesOfPackage returns the lines of one package. A line begins with the package's path in the
// module, or with penstock.
func namesOfPackage(t *testing.T, name, dir string, names []string) (lines []string) {
	t.Helper()
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, file := range names {
		f, err := parser.ParseFile(files, filepath.Join(dir, file), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if !ast.IsGenerated(f) {
			parsed = append(parsed, f)
		}
	}
	if len(parsed) == 0 {
		return nil
	}
	d, err := doc.NewFromFiles(files, parsed, name)
	if err != nil {
		t.Fatal(err)
	}
	add := func(format string, args ...any) {
		lines = append(lines, strings.Replace(name, ".", "penstock", 1)+": "+fmt.Sprintf(format, args...))
	}
	addFuncs := func(list []*doc.Func) {
		for _, f := range list {
			f.Decl.Body, f.Decl.Doc = nil, nil
			add("%s", textOf(t, f.Decl))
		}
	}
	addValues := func(lists ...[]*doc.Value) {
		for _, v := range slices.Concat(lists...) {
			for _, one := range v.Names {
				if ast.IsExported(one) {
					add("%s %s", v.Decl.Tok, one)
				}
			}
		}
	}
	addValues(d.Consts, d.Vars)
	addFuncs(d.Funcs)
	for _, typ := range d.Types {
		addValues(typ.Consts, typ.Vars)
		addFuncs(typ.Funcs)
		addFuncs(typ.Methods)
		spec := typ.Decl.Specs[0].(*ast.TypeSpec)
		kind := "type " + typ.Name
		var fields *ast.FieldList
		switch s := spec.Type.(type) {
		case *ast.StructType:
			add("%s struct", kind)
			fields = s.Fields
		case *ast.InterfaceType:
			add("%s interface", kind)
			fields = s.Methods
		default:
			add("type %s", textOf(t, &ast.TypeSpec{Name: spec.Name, TypeParams: spec.TypeParams, Assign: spec.Assign, Type: spec.Type}))
			continue
		}
		for _, f := range fields.List {
			for _, one := range f.Names {
				if one.IsExported() {
					add("%s, %s %s", kind, one.Name, textOf(t, f.Type))
				}
			}
			if len(f.Names) == 0 {
				add("%s, embedded %s", kind, textOf(t, f.Type))
			}
		}
	}
	return lines
}

// textOf returns a node as Go code on one line.
func textOf(t *testing.T, node any) string {
	t.Helper()
	var text bytes.Buffer
	if err := printer.Fprint(&text, token.NewFileSet(), node); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(text.String()), " ")
}
