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
	for hasTraffic, rules := range map[bool]int{false: 4, true: 6} {
		if p, err := Load(policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}, hasTraffic); err != nil || len(p.Rules.Rules()) != rules || p.Warnings != nil {
			t.Errorf("with traffic %v: %v, with warnings %v; want %d rules", hasTraffic, err, p.Warnings, rules)
		}
	}
}
