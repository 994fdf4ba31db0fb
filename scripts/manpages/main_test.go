package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/command"
)

func TestEachCommandHasAPageWithItsFlags(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir, "v0.1.0", time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	var check func(c *cobra.Command)
	pages := 0
	check = func(c *cobra.Command) {
		if !c.IsAvailableCommand() && c.HasParent() {
			return
		}
		pages++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(dir, "man", name))
		if err != nil {
			t.Error(err)
			return
		}
		if !bytes.Contains(page, []byte("Penstock v0.1.0")) || !bytes.Contains(page, []byte("Nov 2026")) {
			t.Errorf("%s begins with %.200q; want the version v0.1.0 and the date Nov 2026", name, page)
		}
		for _, f := range strings.Fields(c.LocalFlags().FlagUsages()) {
			if strings.HasPrefix(f, "--") && !bytes.Contains(page, []byte(strings.Trim(f, ",[]"))) {
				t.Errorf("%s has no flag %s", name, f)
			}
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(command.New())
	if pages < 10 {
		t.Errorf("there are %d pages; want at least 10", pages)
	}
	out, err := exec.Command("bash", "-c", `source "$1" && complete -p penstock`, "-", filepath.Join(dir, "completions", "penstock.bash")).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("__start_penstock penstock")) {
		t.Errorf("bash: %v: %s; want __start_penstock as the completion of penstock", err, out)
	}
}
