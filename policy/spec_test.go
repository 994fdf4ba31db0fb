package policy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/reserved"
)

// newTest returns a test that holds if a source has one of certain values. Add describes the
// values.
func newTest(source Source, values ...string) (Test, error) {
	t := Test{Source: source}
	for _, value := range values {
		if err := t.Add(value); err != nil {
			return Test{}, err
		}
	}
	return t, nil
}

// specWithLists makes a Spec with one rule, a tier, an allow list and a deny list.
func specWithLists(t *testing.T) Spec {
	t.Helper()
	byUser := By("user", Header("X-User"))
	spec, err := Simple("search", byUser, guard.FailOpen, penstock.PerSecond(10))
	if err != nil {
		t.Fatal(err)
	}
	list := func(source Source, value string) []Condition {
		test, err := newTest(source, value)
		if err != nil {
			t.Fatal(err)
		}
		return []Condition{{test}}
	}
	spec.Rules[0].Match.Where = list(Header("X-Variant"), "b")[0]
	spec.Allow = list(Header("X-Partner"), "p")
	spec.Deny = list(Source{Kind: KindIdentity, Identity: byUser}, "user:42")
	spec.Tiers = []Tier{{Name: "paid", AnyOf: list(Source{Kind: KindQuery, Name: "X-Plan"}, "paid")}, {Name: "free", IsDefault: true}}
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

func TestMistakesInASpecAreErrors(t *testing.T) {
	t.Parallel()
	const beforeAuth = "BeforeAuth cannot be combined with"
	for _, c := range []struct {
		want   string
		change func(*Spec, *Rule)
	}{
		{want: "is not a name for a rule", change: func(_ *Spec, r *Rule) { r.Name = "A b" }},
		{want: "names that begin with penstock", change: func(_ *Spec, r *Rule) { r.Name = reserved.Prefix + "x" }},
		{want: `two rules are called "search"`, change: func(s *Spec, r *Rule) { s.Rules = append(s.Rules, r) }},
		{want: "a rule has Limits or is Unlimited", change: func(_ *Spec, r *Rule) { r.Unlimited = true }},
		{want: "the most is", change: func(_ *Spec, r *Rule) { r.Limits = slices.Repeat(r.Limits, penstock.MaxCharges+1) }},
		{want: `two limits called "second"`, change: func(_ *Spec, r *Rule) { r.Limits = append(r.Limits, r.Limits[0]) }},
		{want: "rule 2 is nil", change: func(s *Spec, _ *Rule) { s.Rules = append(s.Rules[:1:1], nil) }},
		{want: "a limit is nil", change: func(_ *Spec, r *Rule) { r.Limits = append(r.Limits, nil) }},
		{want: "the last tier, and no other", change: func(s *Spec, _ *Rule) { s.Tiers[0].IsDefault = true }},
		{want: beforeAuth, change: func(_ *Spec, r *Rule) { r.BeforeAuth, r.Shadow = true, true }},
		{want: beforeAuth, change: func(_ *Spec, r *Rule) { r.BeforeAuth, r.Limits[0].Shadow = true, true }},
		{want: beforeAuth, change: func(_ *Spec, r *Rule) { r.BeforeAuth, r.Limits[0].Candidate = true, r.Limits[0] }},
	} {
		spec := specWithLists(t)
		c.change(&spec, spec.Rules[0])
		if _, err := New(spec); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New returns the error %v; want an ErrInvalid with %q", err, c.want)
		}
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
		one.Rules[0].Match.Paths = []string{path}
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

// A segment is read from a canonical path. So its listed values are compared in that form too.
func TestListedSegmentsHaveTheFormOfPaths(t *testing.T) {
	t.Parallel()
	only, err := newTest(Source{Kind: KindSegment, Name: "shop"}, "Café", "a b")
	if err != nil {
		t.Fatal(err)
	}
	byShop := By("shop", only.Source)
	byShop.AllowedValues = &only
	spec, err := Simple("shops", byShop, guard.FailOpen, penstock.PerSecond(10))
	if err != nil {
		t.Fatal(err)
	}
	spec.Rules[0].Match.Paths = []string{"/{shop}"}
	spec.Paths.IgnoreCase = true
	rules, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	for path, isListed := range map[string]bool{"/Café": true, "/caf%C3%A9": true, "/a%20b": true, "/other": false} {
		canonical, err := spec.Paths.Clean(path)
		if err != nil {
			t.Fatal(err)
		}
		var v Evaluation
		rules.Evaluate(fields{KindPath: {"": {canonical}}}, &v)
		if got := v.Charges[0].Key; (got != unknownKey) != isListed {
			t.Errorf("path %s is charged under the key %q; want %q: %t", path, got, unknownKey, !isListed)
		}
	}
	if only.Len() != 2 || !only.has("Café") {
		t.Errorf("New changed the test of its Spec: %q", only.Values())
	}
}

// Nothing passes a rule that always applies. So such a rule is charged for preflights too.
func TestPreflightsAreChargedByRulesThatAlwaysApply(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*Spec)
		want   int
	}{
		{func(*Spec) {}, 0},
		{func(s *Spec) { s.Rules[0].Always = true }, 1},
		{func(s *Spec) { s.Rules[0].BeforeAuth = true }, 0},
		{func(s *Spec) { s.ApplyAll = true }, 0},
	} {
		rules := namesOf(t, c.change)
		var v Evaluation
		rules.Evaluate(fields{KindMethod: {"": {"OPTIONS"}}, KindHeader: {"Origin": {"https://app.example"}, "Access-Control-Request-Method": {"PUT"}}}, &v)
		if len(v.Charges) != c.want {
			t.Errorf("a preflight has %d charges; want %d", len(v.Charges), c.want)
		}
	}
}

// The Spec of Rules makes the same Rules again. A star that is encoded stays a star.
func TestSpecOfRulesMakesTheSameRules(t *testing.T) {
	t.Parallel()
	spec, err := Simple("files", Global(), guard.FailOpen, penstock.PerSecond(10))
	if err != nil {
		t.Fatal(err)
	}
	spec.Rules[0].Match.Paths = []string{"/files/%2a", "/users/{id}", "/caf%c3%a9"}
	for range 2 {
		rules, err := New(spec)
		if err != nil {
			t.Fatal(err)
		}
		for path, isMatched := range map[string]bool{"/files/*": true, "/files/a": false, "/caf%C3%A9": true, "/caf": false, "/users/a": true, "/users/": false} {
			if got := rules.Matching(fields{KindPath: {"": {path}}}); len(got) > 1 || (len(got) == 1) != isMatched {
				t.Errorf("path %s is matched by %d rules; want a match: %v", path, len(got), isMatched)
			}
		}
		if paths := rules.Spec().Rules[0].Match.Paths; !slices.Equal(paths, []string{"/files/%2A", "/users/{id}", "/caf%C3%A9"}) {
			t.Errorf("the paths are %q; want the canonical ones", paths)
		}
		spec = rules.Spec()
	}
	spec.Rules[0].Match.Paths = []string{"files"}
	if _, err := New(spec); err == nil || !strings.Contains(err.Error(), "must begin with a slash") {
		t.Errorf("New of a path without a slash returns the error %v; want one about the slash", err)
	}
}
