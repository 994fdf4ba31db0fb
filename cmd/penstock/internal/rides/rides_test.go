package rides

import (
	"bytes"
	"os"
	"testing"
)

func TestDemoHasTheRulesOfTheExample(t *testing.T) {
	example, err := os.ReadFile("../../../../examples/rides.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, example) {
		t.Error("rides.yaml is not examples/rides.yaml; copy that here")
	}
	if rules, err := Rules(); err != nil || len(rules.Rules()) != 4 || rules.Warnings() != nil {
		t.Errorf("%v, with warnings %v; want four rules", err, rules.Warnings())
	}
}
