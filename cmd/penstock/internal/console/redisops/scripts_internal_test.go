package redisops

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var luaDir = flag.String("lua", "", "directory in which TestScriptsAreWritten writes the scripts for luacheck")

func TestScriptsAreWritten(t *testing.T) {
	if *luaDir == "" {
		t.Skip("only needed by make lint")
	}
	if err := os.MkdirAll(*luaDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"info": infoLua, "sample": sampleLua, "write_summary": writeSummaryLua, "read_summaries": readSummariesLua} {
		if err := os.WriteFile(filepath.Join(*luaDir, name+".lua"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
