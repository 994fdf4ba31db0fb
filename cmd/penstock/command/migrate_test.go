package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The names of files cannot control the terminal.
func TestMigratePrintsNothingHostile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a\x1b[2J\r\nFORGED.yaml"), []byte("domain: a\ndescriptors: [{key: k, value: a*, rate_limit: {unit: day, requests_per_unit: 1}}]\n"), 0o600); err != nil {
		t.Skip("the file system accepts no such name: ", err)
	}
	code, out, errors := command("migrate", "envoy-ratelimit", dir)
	if code != exitOK || !strings.Contains(errors, "is left out: ") {
		t.Errorf("migrate: exit status %d, %q; want %d with a limit that is left out", code, errors, exitOK)
	}
	checkPrintable(t, "migrate", out)
	checkPrintable(t, "migrate: errors", errors)
}

// validate accepts the policy that migrate prints.
func TestMigratedFilesAreAValidPolicy(t *testing.T) {
	code, out, err := command("migrate", "envoy-ratelimit", "../../../examples/envoy")
	if code != exitOK || !strings.Contains(out, "- name: rides.remote_address\n") || !strings.Contains(out, "Left out: a policy has no wildcards") {
		t.Fatalf("migrate: exit status %d, %s; want a policy with a comment on what is left out:\n%s", code, err, out)
	}
	if strings.Count(err, "\n") != 1 || !strings.Contains(err, ": rides.model_large-* is left out: ") {
		t.Fatalf("migrate prints %q to standard error; want one line, about rides.model_large-*", err)
	}
	rules := writeFile(t, "rules.yaml", out)
	if code, out, err := command("validate", rules); code != exitOK {
		t.Errorf("validate: exit status %d, %s%s; want %d", code, out, err, exitOK)
	}
	if code, out, _ := command("explain", "--config", rules, "--descriptor", "domain=rides", "--descriptor", "remote_address=192.0.2.7", "/"); code != exitOK || !strings.Contains(out, "remote-address:192.0.2.7") {
		t.Errorf("explain: exit status %d; want the key of the address:\n%s", code, out)
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "a.yaml"), []byte("domain: a\nfoo: bar\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, err := command("migrate", "envoy-ratelimit", broken); code != exitInvalid || out != "" || !strings.Contains(err, "a.yaml:2: unknown key 'foo'") {
		t.Errorf("migrate of broken files: exit status %d, %s%s; want %d and the mistake", code, out, err, exitInvalid)
	}
	if code, _, err := command("migrate", "envoyratelimit"); code != exitUsage || !strings.Contains(err, `unknown command "envoyratelimit"`) {
		t.Errorf("migrate from an unknown limiter: exit status %d, %s; want %d", code, err, exitUsage)
	}
	if code, _, err := command("migrate"); code != exitUsage || !strings.Contains(err, "no limiter is named") {
		t.Errorf("migrate without a limiter: exit status %d, %s; want %d", code, err, exitUsage)
	}
	if code, _, _ := command("migrate", "envoy-ratelimit"); code != exitUsage {
		t.Errorf("migrate without a folder: exit status %d; want %d", code, exitUsage)
	}
}
