//go:build checks

// Package reports opens the HTML reports of penstock in a real Chromium. Some are of a log that
// attackers have written. testdata/reports.mjs has the checks, and writes pictures of the pages to
// bin/dashboard/reports.
package reports

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/scripts/internal/process"
)

const policy = "rules: [{name: api, per: {key: header User-Agent}, limits: [{rate: 3/min, burst: 3}]}]\n"

// hostile are texts that attackers can send as User-Agent or path.
var hostile = []string{
	`</script><script>window.hacked = 1</script>`, `"><img src=x onerror="window.hacked = 1">`, `' autofocus onfocus='window.hacked = 1`,
	`</style><style>*{display:none}</style>`, `<!--`, `]]>&lt;b&gt;`, `javascript:window.hacked=1`, `<svg/onload=window.hacked=1>`,
}

func TestReports(t *testing.T) {
	folder, err := filepath.Abs("../../bin/dashboard")
	if err != nil {
		t.Fatal(err)
	}
	pictures := filepath.Join(folder, "reports")
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	process.Run(t, "npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, "playwright-core@1.65.1", "axe-core@4.14.1")
	penstock, work := process.Penstock(t), t.TempDir()
	rules, log := filepath.Join(work, "rules.yaml"), filepath.Join(work, "<img src=x onerror=alert(1)>.log")
	process.WriteFile(t, rules, policy)
	process.WriteFile(t, log, hostileLog(t))
	shop := "../../examples/logs/shop.log.gz"
	files := make(map[string]string)
	for name, args := range map[string][]string{
		"suggest":           {"suggest", shop},
		"suggest-window":    {"suggest", shop, "--algorithm", "sliding-log", "--window", "10m"},
		"suggest-hostile":   {"suggest", log, "--per", "header User-Agent", "--identities", "full"},
		"suggest-in-flight": {"suggest", log, "--algorithm", "in_flight", "--per", "global"},
		"replay":            {"replay", shop, "--config", rules},
		"replay-hostile":    {"replay", log, "--config", rules, "--identities", "full"},
		"simulate":          {"simulate", "10/s, burst 100", "--arrivals", "150 at 0s; 60 at 5s"},
		"simulate-all":      {"simulate", "100/min", "--algorithm", "all", "--arrivals", "boundary"},
	} {
		files[name] = filepath.Join(work, name+".html")
		process.Run(t, penstock, append(args, "--html", files[name])...)
	}
	config, err := json.Marshal(map[string]any{"modules": folder + "/node_modules", "pictures": pictures, "files": files, "hostile": hostile})
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", "testdata/reports.mjs", string(config))
	node.Stdout, node.Stderr = os.Stdout, os.Stderr
	if err := node.Run(); err != nil {
		t.Error(err)
	}
}

// hostileLog returns a log with 10 requests of each hostile client, and with hostile lines that are
// no requests.
func hostileLog(t *testing.T) string {
	var lines strings.Builder
	for range 10 {
		for _, text := range hostile {
			line, err := json.Marshal(map[string]any{"start_time": "2026-03-04T05:06:07.5Z", "remote_addr": "192.0.2.1", "request_uri": "/" + text, "http_user_agent": text, "duration_ms": 3})
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(line, '\n'))
		}
	}
	for _, text := range hostile[:3] {
		lines.WriteString(text + "\n")
	}
	return lines.String()
}
