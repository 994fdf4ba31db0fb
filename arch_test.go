package penstock_test

import (
	"encoding/json"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

const module = "github.com/penstock/penstock"

// mayImport lists what each package may import besides the standard library and leaves. Packages of
// this module have their path in the module ("." is the root). Other packages have their full path.
// A package may import only packages of earlier rows.
//
// Two kinds of packages have no rows:
//   - The leaves are in internal. They import the root, algorithm and other leaves only. A leaf
//     that imports a package of another module has a row.
//   - Those in internal/testing may import all others, and only tests may import them.
var mayImport = []struct{ pkg, imports string }{
	{"algorithm", ""},
	{".", "algorithm"},
	{"storetest", ". algorithm"},
	{"memstore", ". algorithm"},
	{"internal/redisclient", ". algorithm github.com/redis/rueidis"},
	{"redisstore/internal/coalesce", "."},
	{"redisstore", ". algorithm redisstore/internal/coalesce"},
	{"guard/internal/split", "."},
	{"guard", ". algorithm guard/internal/split memstore"},
	{"redisguard", ". guard redisstore"},
	{"internal/filewatch", "github.com/fsnotify/fsnotify"},
	{"policy", ". guard"},
	{"internal/policy/jwt", "policy github.com/golang-jwt/jwt/v5 github.com/MicahParks/jwkset"},
	{"internal/policy/describe", ". algorithm guard policy"},
	{"policy/policyfile", ". algorithm guard policy internal/policy/jwt internal/policy/describe go.yaml.in/yaml/v4"},
	{"admission", ". algorithm memstore guard policy"},
	{"observe", ". admission guard policy"},
	{"internal/transport/clientaddress", ""},
	{"internal/transport/quotaheaders", ". algorithm admission policy"},
	{"httplimit", ". admission guard internal/transport/clientaddress internal/transport/quotaheaders policy"},
	{"httplimit/forwardauth", ". admission httplimit policy"},
	{"resplimit", ". algorithm admission policy"},
	{"httplimit/outbound", ". github.com/dunglas/httpsfv"},
}

// isLeaf reports whether a package is a leaf. The packages in internal/policy are not leaves,
// because they import package policy. Nor are the packages in internal/transport, because they may
// import package admission.
func isLeaf(name string) bool {
	isAbove := strings.HasPrefix(name, "internal/policy/") || strings.HasPrefix(name, "internal/transport/")
	return strings.HasPrefix(name, "internal/") && !isAbove && !isForTests(name)
}

// isForTests reports whether a package exists for tests, and so may import package testing.
func isForTests(name string) bool {
	return name == "storetest" || strings.HasPrefix(name, "internal/testing/")
}

// mayRequire are the modules that go.mod may require directly. Each of them becomes a dependency of
// every program that imports this module. So a new one needs a reason in docs/decisions.
var mayRequire = []string{
	"github.com/redis/rueidis",          // the default client
	"go.yaml.in/yaml/v4",                // policy/policyfile: YAML
	"github.com/golang-jwt/jwt/v5",      // internal/policy/jwt: tokens
	"github.com/MicahParks/jwkset",      // internal/policy/jwt: sets of keys
	"github.com/fsnotify/fsnotify",      // internal/filewatch: changes of files
	"github.com/dunglas/httpsfv",        // httplimit/outbound: headers of servers
	"github.com/anishathalye/porcupine", // tests: linearizability
	"pgregory.net/rapid",                // tests: random inputs
}

// A listedPackage has fields that go list prints about a package.
type listedPackage struct {
	Dir, ImportPath, Doc string
	GoFiles              []string
	Imports, Deps        []string
}

// pathInModule returns a package's path in this module: "." for the root. For a package of another
// module it returns the whole path.
func pathInModule(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

// packages returns the packages of this module by their path in it.
func packages(t *testing.T) map[string]listedPackage {
	t.Helper()
	out := output(t, "go", "list", "-json=Dir,ImportPath,Doc,GoFiles,Imports,Deps", "./...")
	found := make(map[string]listedPackage)
	for decoder := json.NewDecoder(strings.NewReader(out)); ; {
		var p listedPackage
		if err := decoder.Decode(&p); err == io.EOF {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			found[pathInModule(p.ImportPath)] = p
		}
	}
}

// skipIfShort skips a test of the docs or of the whole tree. make quick does not need it.
func skipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("with -short, the docs and the tree are not tested")
	}
}

// output returns what a command writes to its standard output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	skipIfShort(t)
	var stderr strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the command %s %s failed: %v; its standard error is\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

func TestImportsOnlyPointDown(t *testing.T) {
	allowed := make(map[string][]string) // of the rows so far
	for _, row := range mayImport {
		imports := strings.Fields(row.imports)
		for _, path := range imports {
			if _, isEarlier := allowed[path]; isOfThisModule(path) && !isEarlier {
				t.Errorf("mayImport lets %s import %s, which has no earlier row; move the row of %[2]s up", row.pkg, path)
			}
		}
		allowed[row.pkg] = imports
	}
	for name, p := range packages(t) {
		may, hasRow := allowed[name]
		switch {
		case isLeaf(name) && !hasRow:
			may = []string{".", "algorithm"}
		case strings.HasPrefix(name, "internal/testing/"):
			continue
		case !hasRow:
			t.Errorf("package %s has no row in mayImport; add what it may import", name)
			continue
		}
		hasLeaves := name != "." && name != "algorithm" // leaves stand above these two
		for _, path := range p.Imports {
			firstElement, _, _ := strings.Cut(path, "/")
			isStandard := !strings.Contains(firstElement, ".") // other paths begin with a host
			path = pathInModule(path)
			if !isStandard && !slices.Contains(may, path) && !(hasLeaves && isLeaf(path)) {
				t.Errorf("package %s imports %s; it may import the standard library, leaves and %v", name, path, may)
			}
		}
	}
}

// A type of rueidis in a public signature would make each new version of rueidis one of this
// module.
func TestOnlyInternalPackagesImportRueidis(t *testing.T) {
	for name, p := range packages(t) {
		if slices.Contains(p.Imports, "github.com/redis/rueidis") && !strings.Contains("/"+name+"/", "/internal/") {
			t.Errorf("package %s imports rueidis; only internal packages may", name)
		}
	}
}

// isOfThisModule reports whether a path of mayImport is in this module. Paths of other modules
// begin with a host, which has a dot.
func isOfThisModule(path string) bool { return path == "." || !strings.Contains(path, ".") }

// Package admission knows no protocol, so any transport can use it. The same holds for the packages
// that HTTP and gRPC share.
func TestAdmissionKnowsNoProtocol(t *testing.T) {
	effort.SkipUnderRace(t)
	if slices.Contains(packages(t)["admission"].Imports, "net/http") {
		t.Error("package admission imports net/http; it must not, because transports of other protocols use it too")
	}
	for _, name := range []string{"internal/transport/clientaddress", "internal/transport/quotaheaders"} {
		if slices.Contains(packages(t)[name].Imports, "net/http") {
			t.Errorf("package %s imports net/http; it must not, because transports of other protocols use it too", name)
		}
	}
}

// fileFormatModules are modules that only policy files need. Programs that make their rules in Go
// do not compile them.
var fileFormatModules = []string{"go.yaml.in/yaml/v4", "github.com/golang-jwt/jwt/v5", "github.com/MicahParks/jwkset", "github.com/fsnotify/fsnotify"}

func TestRulesInGoNeedNoFileFormat(t *testing.T) {
	all := packages(t)
	for _, name := range []string{"policy", "internal/policy/describe", "admission", "httplimit", "httplimit/forwardauth", "resplimit"} {
		for _, path := range all[name].Deps {
			if slices.Contains(fileFormatModules, path) {
				t.Errorf("package %s imports %s, directly or not; only policy/policyfile and internal/policy/jwt may", name, path)
			}
		}
	}
	if slices.Contains(all["policy"].Deps, "net/http") {
		t.Error("package policy imports net/http, directly or not; it must not, because only transports know HTTP")
	}
}

func TestProductionCodeDoesNotLinkTesting(t *testing.T) {
	for name, p := range packages(t) {
		if slices.Contains(p.Deps, "testing") && !isForTests(name) {
			t.Errorf("package %s imports testing, directly or not; only packages for tests may", name)
		}
	}
}

func TestRequirementsStayFew(t *testing.T) {
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal([]byte(output(t, "go", "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains(mayRequire, r.Path) {
			t.Errorf("go.mod requires %s; give the reason in docs/decisions, and add it to mayRequire", r.Path)
		}
	}
}

// neverTagged are the modules of the workspace that are neither installed nor imported by users.
var neverTagged = []string{"bench", "cmd/penstock/internal/tools/schemagen", "examples", "internal/testing/faults", "scripts"}

// "go install PACKAGE@VERSION" rejects a module that replaces anything. The module's go.mod names a
// version of the root, and the command downloads this version from the module proxy.
func TestTaggedModulesCanBeInstalled(t *testing.T) {
	here := strings.TrimSpace(output(t, "go", "list", "-f", "{{.Dir}}", "."))
	for dir := range strings.Lines(output(t, "go", "list", "-m", "-f", "{{.Dir}}")) {
		folder, err := filepath.Rel(here, strings.TrimSpace(dir))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(neverTagged, folder) {
			continue
		}
		var mod struct {
			Require []struct{ Path, Version string }
			Replace []any
		}
		if err := json.Unmarshal([]byte(output(t, "go", "mod", "edit", "-json", filepath.Join(folder, "go.mod"))), &mod); err != nil {
			t.Fatal(err)
		}
		if len(mod.Replace) > 0 {
			t.Errorf("%s/go.mod replaces %v; remove that, because go.work joins the modules of this tree", folder, mod.Replace)
		}
		for _, r := range mod.Require {
			isOurs := pathInModule(r.Path) != r.Path
			if isOurs && strings.HasPrefix(r.Version, "v0.0.0") {
				t.Errorf("%s/go.mod requires %s %s; require the version with which both will be tagged", folder, r.Path, r.Version)
			}
		}
	}
}

func TestEveryPackageHasADoc(t *testing.T) {
	for name, p := range packages(t) {
		if p.Doc == "" {
			t.Errorf("package %s has no doc comment", name)
		}
	}
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	effort.SkipUnderRace(t)
	for name, p := range packages(t) {
		if strings.HasPrefix(name, "internal/") || strings.Contains(name, "/internal/") {
			continue
		}
		files := token.NewFileSet()
		var parsed []*ast.File
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, file), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		d, err := doc.NewFromFiles(files, parsed, p.ImportPath)
		if err != nil {
			t.Fatal(err)
		}
		for _, missing := range undocumented(d) {
			t.Errorf("package %s: %s has no doc comment", name, missing)
		}
	}
}

// undocumented returns the exported names of a package that have no comment.
func undocumented(p *doc.Package) (names []string) {
	addFuncs := func(prefix string, list []*doc.Func) {
		for _, f := range list {
			if f.Doc == "" && !slices.Contains(documentedElsewhere, f.Name) {
				names = append(names, prefix+f.Name)
			}
		}
	}
	addValues := func(lists ...[]*doc.Value) {
		for _, v := range slices.Concat(lists...) {
			for _, spec := range v.Decl.Specs {
				s := spec.(*ast.ValueSpec)
				if v.Doc == "" && s.Doc == nil && s.Comment == nil {
					names = append(names, s.Names[0].Name)
				}
			}
		}
	}
	addValues(p.Consts, p.Vars)
	addFuncs("", p.Funcs)
	for _, t := range p.Types {
		if t.Doc == "" {
			names = append(names, t.Name)
		}
		addValues(t.Consts, t.Vars)
		addFuncs("", t.Funcs)
		addFuncs(t.Name+".", t.Methods)
	}
	return names
}

// documentedElsewhere are the names of methods that the standard library documents.
var documentedElsewhere = []string{"Error", "Unwrap", "String"}

// make test runs some tests without the race detector. It finds them by their first line,
// effort.SkipUnderRace(t).
func TestTestsWithoutRaceAreFound(t *testing.T) {
	effort.SkipUnderRace(t)
	skipIfShort(t)
	firstStatement := regexp.MustCompile(`(?m)^func Test\w+\(t \*testing\.T\) \{\n\teffort\.SkipUnderRace\(t\)\n`)
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || path == "arch_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if used, found := strings.Count(string(text), "effort.SkipUnderRace("), len(firstStatement.FindAll(text, -1)); used != found {
			t.Errorf("%s calls effort.SkipUnderRace %d times, but only %d of them are the first statement of a test; want all", path, used, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
