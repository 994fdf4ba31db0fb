package penstock_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var drawsImports = flag.Bool("imports", false, "write the picture of the imports to docs/architecture.md")

// A box of the picture of imports stands for a package and the packages in its folder.
type box struct{ folder, caption string }

// boxes are from top to bottom. Leaves and packages for tests have no box.
var boxes = []box{
	{"cmd/penstock", "the service and the command line"},
	{"httplimit", "HTTP"},
	{"grpclimit", "gRPC"},
	{"resplimit", "Redis clients"},
	{"observe", "metrics"},
	{"admission", "one request through policy and store"},
	{"policy", "which limits apply to a request"},
	{"redisguard", "Redis with all guards"},
	{"guard", "stores that wrap stores"},
	{"redisstore", "state in Redis"},
	{"memstore", "state in memory"},
	{".", "Limit, Charge, Decision, Store, Limiter"},
	{"algorithm", "the arithmetic, in Go and Lua"},
}

// The picture in docs/architecture.md shows what the code imports. An import that other arrows
// imply has no arrow.
func TestPictureShowsTheImports(t *testing.T) {
	reaches := importsOfBoxes(t)
	for via := range boxes {
		for from := range boxes {
			for to := range boxes {
				if reaches[from][via] && reaches[via][to] {
					reaches[from][to] = true
				}
			}
		}
	}
	var picture strings.Builder
	picture.WriteString("```mermaid\nflowchart TB\n")
	for n, box := range boxes {
		name := box.folder
		if name == "." {
			name = "penstock"
		}
		fmt.Fprintf(&picture, "  b%d[\"%s<br/>%s\"]\n", n, name, box.caption)
	}
	for from := range boxes {
		if reaches[from][from] {
			t.Errorf("%s imports itself by way of other boxes; want no circle", boxes[from].folder)
		}
		for to := range boxes {
			isImplied := false
			for via := range boxes {
				isImplied = isImplied || reaches[from][via] && reaches[via][to]
			}
			if reaches[from][to] && !isImplied {
				fmt.Fprintf(&picture, "  b%d --> b%d\n", from, to)
			}
		}
	}
	picture.WriteString("```\n")

	const path, begin, end = "docs/architecture.md", "<!-- imports -->\n", "<!-- end of imports -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, hasBegin := strings.Cut(string(text), begin)
	shown, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s has no lines %q and %q", path, begin, end)
	}
	if *drawsImports {
		if err := os.WriteFile(path, []byte(before+begin+picture.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if shown != picture.String() {
		t.Errorf("the picture of %s differs from the imports; run go test -run Picture -imports .\nwant\n%s", path, &picture)
	}
}

// importsOfBoxes returns which box imports which, by their numbers.
func importsOfBoxes(t *testing.T) [][]bool {
	boxOf := func(pkg string) int {
		if pkg == "." {
			return slices.IndexFunc(boxes, func(b box) bool { return b.folder == "." })
		}
		return slices.IndexFunc(boxes, func(b box) bool {
			return b.folder == pkg || strings.HasPrefix(pkg, b.folder+"/")
		})
	}
	imports := make([][]bool, len(boxes))
	for n := range imports {
		imports[n] = make([]bool, len(boxes))
	}
	lines := output(t, "go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./...", "./grpclimit/...", "./cmd/penstock/...")
	for line := range strings.Lines(lines) {
		paths := strings.Fields(line)
		from := boxOf(pathInModule(paths[0]))
		for _, path := range paths[1:] {
			isOurs := path == module || strings.HasPrefix(path, module+"/")
			if to := boxOf(pathInModule(path)); isOurs && from >= 0 && to >= 0 && from != to {
				imports[from][to] = true
			}
		}
	}
	return imports
}
