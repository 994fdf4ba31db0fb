package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestOnlyServiceAndCoreImportTheOthers: of the packages in internal, service and core may import
// every other. The rest may import only the shared packages.
func TestOnlyServiceAndCoreImportTheOthers(t *testing.T) {
	const internal = "github.com/penstock/penstock/cmd/penstock/internal/"
	importers := []string{"service", "core"}
	shared := []string{"logthrottle", "redact", "activity", "explain", "keylimits", "adminapi", "audit", "denials", "printable"}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./internal/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		name := strings.TrimPrefix(words[0], internal)
		mayImportAll := slices.Contains(importers, name)
		for _, path := range words[1:] {
			imported, isInternal := strings.CutPrefix(path, internal)
			if isInternal && !mayImportAll && !slices.Contains(shared, imported) {
				t.Errorf("package %s imports %s; only the packages %v may import it", name, imported, importers)
			}
			if path == "testing" {
				t.Errorf("package %s imports testing; only its tests may", name)
			}
		}
	}
}

// TestZonesAndRootsAreInTheBinaryOnly: the binary works in images without time zone data and CA
// roots. Programs that import the library do not become larger.
func TestZonesAndRootsAreInTheBinaryOnly(t *testing.T) {
	for pkg, want := range map[string]bool{".": true, "./command": false, "github.com/penstock/penstock/httplimit": false} {
		out, err := exec.Command("go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, embedded := range []string{"time/tzdata", "golang.org/x/crypto/x509roots/fallback"} {
			if got := slices.Contains(strings.Fields(string(out)), embedded); got != want {
				t.Errorf("package %s links %s: %v; want %v", pkg, embedded, got, want)
			}
		}
	}
}
