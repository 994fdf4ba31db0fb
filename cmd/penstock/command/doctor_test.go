package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/doctor"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestExitStatusOfDoctor(t *testing.T) {
	good, evicts := redistest.Start(t), redistest.Start(t, "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru")
	if _, err := good.Do("ACL", "SETUSER", "serve", "on", ">hunter2", "~*", "+@all", "-scan"); err != nil {
		t.Fatal(err)
	}
	policy := writeFile(t, "p.yaml", "server: {store: 'redis://:hunter2@127.0.0.1:1', prefix: shop}\nrules: [{name: a, unlimited: true}]\n")
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"--store-timeout 1m --store " + good.URL():                                             {exitOK, "keys ps1"},
		"--store-timeout 1m --store redis://serve:hunter2@" + good.Addr:                        {exitOK, "unknown  keys"},
		"--store-timeout 1m --strict --store redis://serve:hunter2@" + good.Addr:               {exitProblem, "unknown  keys"},
		"--store-timeout 1m --store " + evicts.URL():                                           {exitProblem, "CONFIG SET maxmemory-policy noeviction"},
		"--store redis://user:hunter2@127.0.0.1:1":                                             {exitUnreachable, "store redis://127.0.0.1:1"},
		"--store redis://serve:WRONG@" + good.Addr:                                             {exitProblem, "refuses the user or the password"},
		"--config " + policy:                                                                   {exitUnreachable, "keys shop1"},
		"--store-timeout 1m --config " + policy + " --store " + good.URL() + " --prefix other": {exitOK, "keys other1"},
		"":                                {exitUsage, "no store is named; write --store redis://localhost:6379"},
		"--store memory":                  {exitUsage, "no store is named"},
		"--store redis://u:hunter2@h:1/x": {exitUsage, "redis URL"},
		"--store x -o xml":                {exitUsage, `unknown output "xml"`},
		"extra":                           {exitUsage, "unknown command"},
		"--config /none.yaml":             {exitInvalid, "/none.yaml"},
	} {
		code, out, errors := command(append([]string{"doctor"}, strings.Fields(args)...)...)
		if code != want.code || !strings.Contains(out+errors, want.text) || strings.Contains(out+errors, "hunter2") {
			t.Errorf("penstock doctor %s: exit status %d\n%s%s\nwant %d with %s", args, code, out, errors, want.code, want.text)
		}
	}
	_, out, _ := command("doctor", "-o", "json", "--store", evicts.URL())
	var r struct {
		Status string
		Checks []struct{ Name, Status string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Status != "failed" || len(r.Checks) < 16 {
		t.Errorf("the report is\n%s\n%v; want the status failed and at least 16 checks", out, err)
	}
}

// docs/doctor.md describes each check.
func TestDoctorPageHasAllChecks(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "doctor.md"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "|"); len(cells) == partsOfRow && strings.HasPrefix(cells[1], " `") {
			rows = append(rows, strings.Trim(cells[1], " `"))
		}
	}
	if got, want := strings.Join(rows, " "), strings.Join(doctor.Names, " "); got != want {
		t.Errorf("docs/doctor.md has the checks\n%s\nwant\n%s", got, want)
	}
}

// Two services have different policies and one prefix. doctor reads both digests from the store.
func TestDoctorSeesRunningInstances(t *testing.T) {
	s := redistest.Start(t)
	startProcess(t, "--admin-listen=127.0.0.1:0", "--store="+s.URL())
	other := writeFile(t, "other.yaml", "rules: [{name: a, unlimited: true}]\n")
	startProcess(t, "--admin-listen=127.0.0.1:0", "--store="+s.URL(), "--config="+other)
	eventually.NoError(t, func() error {
		_, out, _ := command("doctor", "--store-timeout", "1m", "--store", s.URL())
		if !strings.Contains(out, "the instances have different policies: ") {
			return fmt.Errorf("doctor does not see two policies:\n%s", out)
		}
		return nil
	})
}
