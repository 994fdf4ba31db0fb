package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/penstock/penstock/cmd/penstock/"

// mayImport lists, for each folder of this module, the folders whose packages it may import. Their
// names are without internal/. Imports point in one direction: to folders of earlier rows.
var mayImport = []struct{ folder, imports string }{
	{"text", ""},                                // makes texts fit to be shown
	{"rpc", ""},                                 // servers that gateways and programs call
	{"console", "text rpc"},                     // what operators see and change
	{"serve", "text rpc console"},               // what penstock serve runs
	{"tools", "text console serve"},             // commands that need no running instance
	{"testing", "rpc"},                          // what only tests and the bench program need
	{"command", "text rpc console serve tools"}, // a file for each command
	{"main", "command"},
}

func TestImportsOnlyPointDown(t *testing.T) {
	allowed := make(map[string][]string)
	for _, row := range mayImport {
		for folder := range strings.FieldsSeq(row.imports) {
			if allowed[folder] == nil {
				t.Errorf("mayImport lets %s import %s, which has no earlier row", row.folder, folder)
			}
		}
		allowed[row.folder] = append(strings.Fields(row.imports), row.folder)
	}
	// Each line has the path of a package, and those of its imports.
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		folder := folderOf(words[0])
		for _, path := range words[1:] {
			if imported := folderOf(path); imported != "" && !slices.Contains(allowed[folder], imported) {
				t.Errorf("package %s imports %s; packages of %s may import only %v", words[0], path, folder, allowed[folder])
			}
			isForTests := path == "testing" || strings.HasPrefix(path, "github.com/penstock/penstock/internal/testing/")
			if isForTests && folder != "testing" {
				t.Errorf("package %s imports %s; only its tests may", words[0], path)
			}
		}
	}
}

// folderOf returns the folder of a package of this module, as mayImport names it. It returns "" for
// packages of other modules.
func folderOf(path string) string {
	if path+"/" == module {
		return "main"
	}
	inModule, isOfThisModule := strings.CutPrefix(path, module)
	if !isOfThisModule {
		return ""
	}
	folder, _, _ := strings.Cut(strings.TrimPrefix(inModule, "internal/"), "/")
	return folder
}

// rpcMayNotImport lists, for packages of rpc, the imports that they must not have, directly or
// indirectly. Transports do not import each other, except that extauthz imports
// httplimit/forwardauth (docs/decisions/0022).
var rpcMayNotImport = map[string][]string{
	"checkapi": {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit", module + "internal/rpc/extauthz"},
	"envoyrls": {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit", module + "internal/rpc/extauthz"},
	// Commands that only read files import envoyconfig too. They need neither gRPC nor HTTP.
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
