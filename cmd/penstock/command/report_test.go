package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReportsAreWrittenAsHTML: each command writes a file with its tables, beside its other output.
func TestReportsAreWrittenAsHTML(t *testing.T) {
	rules := writeFile(t, "rules.yaml", "rules: [{name: suggested, per: ip, limits: [{rate: 3/min, burst: 30}]}]\n")
	file := filepath.Join(t.TempDir(), "report.html")
	for args, wanted := range map[string][]string{
		"suggest " + shopLog: {"Demand over time", "<td>2026-11-16 09:10:00</td><td>2506</td>", "Burst against rate", "limits: [{rate: 3/min, burst: 30}]", "<td>ip:203.0.113.0/24</td><td>600</td><td>600</td><td>burst 599 at 2/min</td><td>yes</td>"},
		"suggest " + shopLog + " --algorithm sliding-log --window 10m":  {"The smallest count", "<td>in any 10m</td><td>22</td><td>22</td><td>18</td><td>14</td><td>2507</td>", "limits: [{rate: 30/10m, algorithm: sliding-log}]"},
		"suggest " + shopLog + " --per user -o json":                    {"warning: 10804 requests have no user"},
		"replay " + shopLog + " --config " + rules:                      {"2416 (22.36 %) of the requests denied", "<td>2026-11-16 09:10:00</td><td>2506</td><td>1847</td>", "<td>ip:203.0.113.0/24</td><td>suggested</td><td>1900</td><td>1847</td>"},
		"replay " + shopLog + " --config " + rules + " --diff " + rules: {"The other policy denies 2416 (22.36 %)"},
		"simulate 10/s --arrivals 15@":                                  nil,
		"simulate 10/s --arrivals boundary --algorithm all":             {"second: 10 per 1s (fixed-window)", "<td>sliding-log</td>"},
	} {
		code, out, stderr := command(append(strings.Fields(args), "--html", file)...)
		text, _ := os.ReadFile(file)
		if missing := missingIn(string(text), wanted...); (code != exitOK) != (wanted == nil) || missing != nil || (out == "") != (wanted == nil) {
			t.Errorf("penstock %s: exit status %d, %s; the report lacks %q", args, code, stderr, missing)
		}
		_ = os.Remove(file)
	}
	code, _, stderr := command("suggest", shopLog, "--html", filepath.Join(file, "x.html"))
	if code != exitInternal || !strings.Contains(stderr, "write the name of a file in a folder that exists") {
		t.Errorf("in a folder that does not exist: exit status %d, %s", code, stderr)
	}
}
