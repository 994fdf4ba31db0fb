package redisstore

import (
	"flag"
	"go/build"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var luaDir = flag.String("lua", "", "directory in which TestScriptsAreWritten writes the scripts for luacheck")

// Packages luagen and redisops write the other scripts.
func TestScriptsAreWritten(t *testing.T) {
	if *luaDir == "" {
		t.Skip("only needed by make lint")
	}
	if err := os.MkdirAll(*luaDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*luaDir, "layout.lua"), []byte(layoutLua), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Regular expressions would be slow, also at the start of each process.
func TestStoreHasNoRegularExpressions(t *testing.T) {
	pkg, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(pkg.Imports, "regexp") {
		t.Errorf("the package imports %v; want no regexp", pkg.Imports)
	}
}
