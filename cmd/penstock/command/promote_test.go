package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const policyWithCandidate = "rules:\n  - name: search\n    per: ip\n    limits: [{rate: 20/s, burst: 50, candidate: {rate: 10/s}}]   # ours\n"

func TestPromoteWritesThePolicy(t *testing.T) {
	file := writeFile(t, "rules.yaml", policyWithCandidate)
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := errors.Join(os.Symlink(file, link), os.Chmod(file, 0o640)); err != nil {
		t.Fatal(err)
	}
	code, out, stderr := command("promote", "search", "--config", link, "--dry-run")
	if text, _ := os.ReadFile(file); code != exitOK || string(text) != policyWithCandidate || !strings.Contains(out, "is not written") {
		t.Fatalf("--dry-run: exit status %d, %s\n%s; the file is now\n%s", code, stderr, out, text)
	}
	code, out, stderr = command("promote", "search.second", "--config", link)
	missing := missingIn(out, "-    limits: [{rate: 20/s, burst: 50, candidate: {rate: 10/s}}]   # ours\n+    limits: [{rate: 10/s, burst: 50}]   # ours\n",
		"the limit search.second is 10 per 1s, burst 50 (token-bucket) instead of 20 per 1s, burst 50 (token-bucket)\n", "link.yaml is written")
	text, _ := os.ReadFile(file)
	if want := strings.Replace(policyWithCandidate, "20/s, burst: 50, candidate: {rate: 10/s}", "10/s, burst: 50", 1); code != exitOK || missing != nil || string(text) != want {
		t.Errorf("exit status %d, %s; the output lacks %q:\n%s; the file is\n%s", code, stderr, missing, out, text)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file has the mode %v, %v; want that of the old file", info.Mode(), err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link has the mode %v, %v; want a link", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); left != nil {
		t.Errorf("the files %v are left", left)
	}
}

func TestPromoteExplainsMistakes(t *testing.T) {
	file := writeFile(t, "rules.yaml", policyWithCandidate)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"search"}, exitUsage, "a policy is missing"},
		{[]string{"--config", file}, exitUsage, "an argument is missing"},
		{[]string{"serch", "--config", file}, exitInvalid, "did you mean search?"},
		{[]string{"search", "--config", "/none.yaml"}, exitInvalid, "/none.yaml"},
		{[]string{"search", "--config", writeFile(t, "bad.yaml", "rules: [{name: search}]\n")}, exitInvalid, "limits"},
	} {
		if code, _, stderr := command(append([]string{"promote"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("promote %v: exit status %d, %s; want %d, and %q", c.args, code, stderr, c.code, c.want)
		}
	}
}
