package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestServersAndSentinelsRunTheChosenProgram(t *testing.T) {
	real, err := exec.LookPath(Program())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	chosen, starts := filepath.Join(dir, "other-server"), filepath.Join(dir, "starts")
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%q\nexec %q \"$@\"\n", starts, real)
	if err := os.WriteFile(chosen, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PENSTOCK_TEST_SERVER", chosen)

	s := Start(t)
	s.Kill()
	restart(t, s)
	StartSentinel(t)
	StartCluster(t)

	text, err := os.ReadFile(starts)
	if err != nil {
		t.Fatal("the chosen program was not run:", err)
	}
	// The server starts twice. A primary, its replica and 3 Sentinels start, and 6 nodes of a Cluster.
	// Each start writes its arguments in a line.
	for argument, want := range map[string]int{"\n": 2 + (2 + 3) + 6, " --sentinel ": 3, " --cluster-enabled ": 6} {
		if n := strings.Count(string(text), argument); n != want {
			t.Errorf("the arguments of the chosen program have %q %d times; want %d", argument, n, want)
		}
	}
	if want := filepath.Join(dir, "other-cli"); CLI() != want {
		t.Errorf("the client is %s; want %s", CLI(), want)
	}
}
