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

// Only the scripts that do not decide are written here; package luagen writes the others.
func TestScriptsAreWritten(t *testing.T) {
	if *luaDir == "" {
		t.Skip("only needed by make lint")
	}
	if err := os.MkdirAll(*luaDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"heartbeat": heartbeatLua, "layout": layoutLua, "info": infoLua, "sample": sampleLua, "write_summary": writeSummaryLua, "read_summaries": readSummariesLua} {
		if err := os.WriteFile(filepath.Join(*luaDir, name+".lua"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
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
