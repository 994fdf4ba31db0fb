package service

import (
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// While the disk is full, no key is reset. Each line that is written later is whole. The test runs
// in a process of its own, because it limits the size of all files of its process. go test writes
// files too.
func TestFullDiskPreventsResets(t *testing.T) {
	const isChild = "PENSTOCK_TEST_FULL_DISK"
	if os.Getenv(isChild) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), isChild+"=1")
		if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("the test in a process of its own: %v; want that it passes\n%s", err, out)
		}
		return
	}
	file := filepath.Join(t.TempDir(), "audit.json")
	const token = "a-token-of-operators"
	const policy = "rules:\n  - {name: api, per: {key: header X-Key}, limits: [{rate: 2/d}]}\n"
	r := startLimited(t, hello, policy, map[string]string{"admin-listen": "127.0.0.1:0", "operator-token": token, "audit-file": file})
	for range 2 {
		r.mustSend("GET", "/", "X-Key: customer-4711")
	}
	// The largest size of a file cuts writes as a full disk does.
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 100, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if status, answer := r.reset(token); status != 500 || !strings.Contains(answer, "nothing was reset") {
			t.Errorf("with a full disk, a reset returned %d %s; want 500, and that nothing was reset", status, answer)
		}
	}
	admitted := r.mustSend("GET", "/", "X-Key: customer-4711").StatusCode
	ready := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if admitted != 429 {
		t.Errorf("after resets that were refused, a request over the limit returned %d; want 429", admitted)
	}
	if !strings.Contains(ready, "audit cannot be written, so no key is reset: ") {
		t.Errorf("/readyz?verbose is %s; want that no key is reset", ready)
	}
	if status, answer := r.reset(token); status != 200 {
		t.Errorf("with space on the disk, a reset returned %d %s; want 200", status, answer)
	}
	lines := func() []string {
		text, _ := os.ReadFile(file)
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	hasOutcome := func() bool { return strings.Contains(lines()[len(lines())-1], `"result":"ok"`) }
	eventually.True(t, "the outcome in the audit file", hasOutcome)
	results := map[audit.Result]int{}
	cut := 0
	for _, text := range lines() {
		var line audit.Line
		if json.Unmarshal([]byte(text), &line) != nil {
			cut++
			continue
		}
		results[line.Result]++
	}
	if cut != 1 || results[audit.Intent] != 1 || results[audit.OK] != 1 {
		t.Errorf("the file has %d lines that are cut, and the results %v; want one cut line, one intent and its outcome:\n%s", cut, results, strings.Join(lines(), "\n"))
	}
	if ready := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200); strings.Contains(ready, "cannot be written") {
		t.Errorf("/readyz?verbose is %s; want no error", ready)
	}
}
