package demopolicy

import (
	"bytes"
	"os"
	"testing"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy/policyfile"
)

func TestDemoHasTheRulesOfTheExample(t *testing.T) {
	example, err := os.ReadFile("../../../../examples/rides.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, example) {
		t.Error("rides.yaml differs from examples/rides.yaml; copy it here")
	}
	if p, err := Load(policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}); err != nil || len(p.Rules.Rules()) != 4 || p.Warnings != nil {
		t.Errorf("%v, with warnings %v; want four rules", err, p.Warnings)
	}
}
