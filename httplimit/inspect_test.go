package httplimit_test

import (
	"net/http/httptest"
	"testing"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

func TestAttributesSeparateDescriptorsFromHeaders(t *testing.T) {
	rules := rulesOf(t, `
rules:
- {name: by-entry, per: {user: descriptor user}, limits: [{rate: 1/s}], always: true}
- {name: by-header, per: {team: header X-Team}, limits: [{rate: 1/s}], always: true}
`)
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Team", "t")
	attributes, err := httplimit.AttributesOf(rules, r, map[string][]string{"user": {"u"}, "X-Team": {"wrong"}})
	if err != nil {
		t.Fatal(err)
	}
	var evaluation policy.Evaluation
	rules.Evaluate(attributes, &evaluation)
	keys := make(map[string]string)
	for i, charge := range evaluation.Charges {
		keys[evaluation.Limits[i].Rule.Name] = charge.Key
	}
	if keys["by-entry"] != "user:u" || keys["by-header"] != "team:t" {
		t.Errorf("the keys by rule are %v; want \"user:u\" by the entry and \"team:t\" by the header", keys)
	}
}
