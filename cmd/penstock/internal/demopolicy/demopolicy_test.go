package demopolicy

import (
	"bytes"
	"os"
	"strings"
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
		p, err := Load(policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}, hasTraffic)
		if err != nil {
			t.Fatalf("with traffic %v, Load returns %v; want no error", hasTraffic, err)
		}
		if n := len(p.Rules.Rules()); n != rules || p.Warnings != nil {
			t.Errorf("with traffic %v, there are %d rules and the warnings %v; want %d rules and no warnings", hasTraffic, n, p.Warnings, rules)
		}
		if namesTraffic := strings.Contains(p.Files[0], "demo-traffic"); namesTraffic != hasTraffic {
			t.Errorf("with traffic %v, the name in the log is %q; want demo-traffic in it only with traffic", hasTraffic, p.Files[0])
		}
	}
}
