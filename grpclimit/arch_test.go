package grpclimit_test

import (
	"os/exec"
	"strings"
	"testing"
)

// mayNotImport says what packages of this module must not need, directly or through others.
var mayNotImport = map[string][]string{
	// The files are also read by programs that speak no gRPC.
	"envoyconfig": {"google.golang.org/grpc", "google.golang.org/protobuf", "net/http"},
}

func TestPackagesNeedOnlyWhatTheyMay(t *testing.T) {
	for pkg, forbidden := range mayNotImport {
		out, err := exec.Command("go", "list", "-deps", "./"+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for path := range strings.FieldsSeq(string(out)) {
			for _, other := range forbidden {
				if path == other || strings.HasPrefix(path, other+"/") {
					t.Errorf("package %s needs %s", pkg, path)
				}
			}
		}
	}
}
