package policy

import (
	"reflect"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// specWithLists makes a Spec with one rule, a tier, an allow list and a deny list.
func specWithLists(t *testing.T) Spec {
	t.Helper()
	byUser := By("user", Header("X-User"))
	spec, err := Simple("search", byUser, guard.FailOpen, penstock.PerSecond(10))
	if err != nil {
		t.Fatal(err)
	}
	list := func(source Source, value string) []Condition {
		test, err := Is(source, value)
		if err != nil {
			t.Fatal(err)
		}
		return []Condition{{test}}
	}
	spec.Rules[0].Match.Where = list(Header("X-Variant"), "b")[0]
	spec.Allow = list(Header("X-Partner"), "p")
	spec.Deny = list(Source{Kind: KindIdentity, Identity: byUser}, "user:42")
	spec.Tiers = []Tier{{Name: "paid", AnyOf: list(Query("X-Plan"), "paid")}, {Name: "free", IsDefault: true}}
	return spec
}

func TestNewDoesNotChangeItsSpec(t *testing.T) {
	t.Parallel()
	spec, unchanged := specWithLists(t), specWithLists(t)
	identity := spec.Deny[0][0].Source.Identity
	if _, err := New(spec); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(spec, unchanged) || spec.Deny[0][0].Source.Identity != identity {
		t.Errorf("after New, the Spec is %+v; want it unchanged: %+v", spec, unchanged)
	}
}

// A preflight carries nothing that identifies its client. So a request with such a header is
// limited like any other.
func TestRequestWithAnIdentifyingHeaderIsNoPreflight(t *testing.T) {
	t.Parallel()
	rules, err := New(specWithLists(t))
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]bool{
		"X-User":    false, // of the identity
		"X-Partner": false, // of the allow list
		"X-Variant": true,  // of a rule's Where, which does not identify a client
		"X-Plan":    true,  // the name of a query parameter
		"Cookie":    false,
		"X-Other":   true,
	} {
		preflight := fields{KindMethod: {"": {"OPTIONS"}}, KindHeader: {
			"Origin": {"https://app.example"}, "Access-Control-Request-Method": {"PUT"}, header: {"b"},
		}}
		var v Evaluation
		rules.Evaluate(preflight, &v)
		if v.request.isPreflight != want {
			t.Errorf("whether an OPTIONS request with the header %s is a preflight: %v; want %v", header, v.request.isPreflight, want)
		}
	}
}

func TestKeyByASegmentDependsOnTheRule(t *testing.T) {
	t.Parallel()
	bySegment := By("part", Source{Kind: KindSegment, Name: "part"})
	var spec Spec
	for name, path := range map[string]string{"first": "/{part}/**", "second": "/*/{part}"} {
		one, err := Simple(name, bySegment, guard.FailOpen, penstock.PerSecond(10))
		if err != nil {
			t.Fatal(err)
		}
		one.Rules[0].Match.Paths = []Pattern{pattern(t, path)}
		spec.Rules = append(spec.Rules, one.Rules...)
	}
	spec.ApplyAll = true
	rules, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	var v Evaluation
	rules.Evaluate(fields{KindPath: {"": {"/a/b"}}}, &v)
	keys := make(map[string]string)
	for i, charge := range v.Charges {
		keys[v.Limits[i].Rule.Name] = charge.Key
	}
	if want := map[string]string{"first": "part:a", "second": "part:b"}; !reflect.DeepEqual(keys, want) {
		t.Errorf("the keys by rule are %v; want %v", keys, want)
	}
}
