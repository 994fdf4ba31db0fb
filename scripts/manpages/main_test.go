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
	if err := writePages(dir, "v0.1.0", time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	var checkPage func(c *cobra.Command) // also checks the pages of all subcommands
	pages := 0
	checkPage = func(c *cobra.Command) {
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
		for _, word := range strings.Fields(c.LocalFlags().FlagUsages()) {
			if strings.HasPrefix(word, "--") && !bytes.Contains(page, []byte(strings.Trim(word, ",[]"))) {
				t.Errorf("the man page %s does not have the flag %s, which the command has", name, word)
			}
		}
		for _, sub := range c.Commands() {
			checkPage(sub)
		}
	}
	checkPage(command.New())
	if pages < 10 {
		t.Errorf("there are %d man pages; want at least 10", pages)
	}
	script := filepath.Join(dir, "completions", "penstock.bash")
	out, err := exec.Command("bash", "-c", `source "$1" && complete -p penstock`, "-", script).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("__start_penstock penstock")) {
		t.Errorf("bash prints %s (error %v); want __start_penstock as the completion of penstock", out, err)
	}
}
