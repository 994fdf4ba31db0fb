package grpclimit_test

import (
	"os/exec"
	"strings"
	"testing"
)

// mayNotImport lists, for packages of this module, the imports that they must not have, directly or
// indirectly.
var mayNotImport = map[string][]string{
	// Programs with an interceptor compile no other transport, control plane, YAML or file watcher.
	"...": {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit", "github.com/penstock/penstock/policy/policyfile",
		"github.com/envoyproxy", "github.com/cncf", "go.yaml.in", "github.com/fsnotify"},
	"connectlimit":   {"google.golang.org/grpc/internal/transport"},
	"internal/calls": {"google.golang.org/grpc/internal/transport", "connectrpc.com/connect", "net/http/httptest"},
}

func TestPackagesAvoidForbiddenImports(t *testing.T) {
	for pkg, forbidden := range mayNotImport {
		out, err := exec.Command("go", "list", "-deps", "./"+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for path := range strings.FieldsSeq(string(out)) {
			for _, other := range forbidden {
				if path == other || strings.HasPrefix(path, other+"/") {
					t.Errorf("package %s imports %s, which mayNotImport forbids", pkg, path)
				}
			}
		}
	}
}
