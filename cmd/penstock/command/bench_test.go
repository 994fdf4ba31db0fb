package command

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestBenchFeedsSize(t *testing.T) {
	server := redistest.Start(t)
	args := []string{"bench", "--store", server.URL(), "--callers", "1,8", "--duration", "100ms", "--max-rate", "1000"}
	if code, out, stderr := command(args...); code != exitUsage || out != "" || !strings.Contains(stderr, "so nothing was measured; write --yes") {
		t.Errorf("without --yes: exit status %d, %s%s; want %d with %q", code, out, stderr, exitUsage, "write --yes")
	}
	args = append(args, "--yes")
	code, out, stderr := command(args...)
	if missing := missingIn(out, "1 server", "a round trip takes", "callers  decisions/s  p50 us  p99 us  script us  processor us"); code != exitOK || missing != nil {
		t.Errorf("exit status %d, %s; the output lacks %q:\n%s", code, stderr, missing, out)
	}
	code, out, stderr = command(append(args, "-o", "json")...)
	if code != exitOK || !strings.Contains(out, `"script_us"`) || !strings.Contains(out, `"store": "`+server.URL()+`"`) {
		t.Errorf("exit status %d, %s\n%s", code, stderr, out)
	}
	rides := []string{"size", "--config", "../../../examples/rides.yaml", "--rule", "ride-request", "--measured"}
	if code, _, stderr = command(append(rides, writeFile(t, "real.json", out))...); code != exitOK {
		t.Errorf("size with what bench wrote: exit status %d, %s", code, stderr)
	}
	doctor := []string{"doctor", "--store", server.URL(), "--measured"}
	if _, found, stderr := command(append(doctor, writeFile(t, "real.json", out))...); !strings.Contains(found, "; earlier, bench measured ") {
		t.Errorf("doctor with what bench wrote: %s%s", found, stderr)
	}
	for text, want := range map[string]string{"{}": "is no report of bench", `{"script_us": 9}`: "has no step with one caller"} {
		if code, _, stderr := command(append(doctor, writeFile(t, "bad.json", text))...); code != exitInvalid || !strings.Contains(stderr, want) {
			t.Errorf("doctor with %s: exit status %d, %s; want %d with %q", text, code, stderr, exitInvalid, want)
		}
	}
	code, out, stderr = command(append(rides, writeFile(t, "slow.json", `{"script_us": 35}`))...)
	if missing := missingIn(out, "decision     35.0 us", "at most 20000 decisions/s"); code != exitOK || missing != nil {
		t.Errorf("size for a store that is ten times slower: exit status %d, %s; the output lacks %q:\n%s", code, stderr, missing, out)
	}
	for text, want := range map[string]string{"{}": "is no report of bench; write it by: penstock bench", "x": "is no report", `{"script_us": 1e9}`: "is no report"} {
		if code, _, stderr := command(append(rides, writeFile(t, "bad.json", text))...); code != exitInvalid || !strings.Contains(stderr, want) {
			t.Errorf("size with %s: exit status %d, %s; want %d with %q", text, code, stderr, exitInvalid, want)
		}
	}
}

func TestBenchExplainsMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"":                       "no store is named; write --store",
		"--store http://a --yes": "redis",
		"--callers 0":            "--callers has 0; write 1 to",
		"--duration 1h":          "--duration is 1h; write 100ms to 1m",
		"--max-rate 0":           "--max-rate is 0; write 1 to",
		"--max-rate NaN":         "--max-rate is NaN",
		"-o yaml":                "unknown output",
		"redis://127.0.0.1:1":    "is one too many",
	} {
		if code, out, stderr := command(append([]string{"bench"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(stderr, want) || out != "" {
			t.Errorf("bench %s: exit status %d, %s%s; want 2, and an error with %q", args, code, out, stderr, want)
		}
	}
	if code, _, stderr := command("bench", "--yes", "--store", "redis://:hunter2@127.0.0.1:1"); code != exitUnreachable || strings.Contains(stderr, "hunter2") {
		t.Errorf("bench of a store that does not answer: exit status %d, %s; want %d without the password", code, stderr, exitUnreachable)
	}
}
