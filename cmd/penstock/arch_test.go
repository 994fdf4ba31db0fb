package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestOnlyServiceAndCoreImportTheOthers: of the packages in internal, service and core may import
// every other. The rest may import only those of rpc, and the shared packages.
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
			if isInternal && !mayImportAll && !strings.HasPrefix(imported, "rpc/") && !slices.Contains(shared, imported) {
				t.Errorf("package %s imports %s; only the packages %v may import it", name, imported, importers)
			}
			if path == "testing" {
				t.Errorf("package %s imports testing; only its tests may", name)
			}
		}
	}
}

// rpcMayNotImport lists, for packages of rpc, the imports that they must not have, directly or
// indirectly. Transports do not import each other, except that extauthz imports
// httplimit/forwardauth (docs/decisions/0022).
var rpcMayNotImport = map[string][]string{
	"checkapi": {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit", "github.com/penstock/penstock/cmd/penstock/internal/rpc/extauthz"},
	"envoyrls": {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit", "github.com/penstock/penstock/cmd/penstock/internal/rpc/extauthz"},
	// Commands that read files only import envoyconfig too.
	"envoyconfig": {"google.golang.org/grpc", "google.golang.org/protobuf", "net/http"},
}

func TestTransportsDoNotImportEachOther(t *testing.T) {
	for pkg, forbidden := range rpcMayNotImport {
		out, err := exec.Command("go", "list", "-deps", "./internal/rpc/"+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for path := range strings.FieldsSeq(string(out)) {
			for _, other := range forbidden {
				if path == other || strings.HasPrefix(path, other+"/") {
					t.Errorf("package rpc/%s imports %s, which rpcMayNotImport forbids", pkg, path)
				}
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
