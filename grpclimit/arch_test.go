package grpclimit_test

import (
	"os/exec"
	"strings"
	"testing"
)

// mayNotImport lists, for packages of this module, the imports that they must not have, directly or
// indirectly.
var mayNotImport = map[string][]string{
	// Transports do not import each other, except that extauthz imports httplimit/forwardauth
	// (docs/decisions/0022).
	".":              {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit"},
	"checkapi":       {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit", "github.com/penstock/penstock/grpclimit/extauthz"},
	"envoyrls":       {"github.com/penstock/penstock/httplimit", "github.com/penstock/penstock/resplimit", "github.com/penstock/penstock/grpclimit/extauthz"},
	"connectlimit":   {"google.golang.org/grpc/internal/transport", "github.com/penstock/penstock/httplimit"},
	"internal/calls": {"google.golang.org/grpc/internal/transport", "connectrpc.com/connect", "net/http/httptest"},
	// Programs without gRPC import envoyconfig too.
	"envoyconfig": {"google.golang.org/grpc", "google.golang.org/protobuf", "net/http"},
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
