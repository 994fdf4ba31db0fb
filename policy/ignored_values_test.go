package policy

import (
	"slices"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

func TestIgnoredValuesAreThoseThatThePolicyDoesNotList(t *testing.T) {
	t.Parallel()
	is := func(source Source, values ...string) Test {
		test, err := newTest(source, values...)
		if err != nil {
			t.Fatal(err)
		}
		return test
	}
	users := is(Header("X-User"), "u1", "u2")
	byUser, byKey := By("user", Header("X-User")), By("key", Header("X-Key"))
	byUser.AllowedValues = &users
	// rules makes Rules whose two limits have one plan each, or one for each tier.
	rules := func(hasPlanForEachTier bool) *Rules {
		spec, err := Simple("search", firstOf(byKey, byUser), guard.FailOpen, penstock.PerSecond(10), penstock.PerDay(1000))
		if err != nil {
			t.Fatal(err)
		}
		spec.Tiers = []Tier{
			{Name: "gold", AnyOf: []Condition{{is(Header("X-Plan"), "gold")}}},
			{Name: "silver", AnyOf: []Condition{{is(Header("X-Plan"), "silver")}}},
			{Name: "free", IsDefault: true},
		}
		for _, l := range spec.Rules[0].Limits {
			if hasPlanForEachTier {
				l.Variants = slices.Repeat(l.Variants, len(spec.Tiers))
			}
		}
		r, err := New(spec)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	withTiers, withoutTiers := rules(true), rules(false)
	for _, c := range []struct {
		name   string
		rules  *Rules
		header map[string][]string
		want   []string
	}{
		{name: "no header", rules: withTiers},
		{name: "listed values", rules: withTiers, header: map[string][]string{"X-User": {"u1"}, "X-Plan": {"gold"}}},
		{
			name: "unlisted user", rules: withTiers, header: map[string][]string{"X-User": {"u3"}},
			want: []string{"header X-User is not accepted: its value is not one of the 2 in the policy"},
		},
		{name: "unlisted user with a key", rules: withTiers, header: map[string][]string{"X-User": {"u3"}, "X-Key": {"k"}}},
		{
			name: "unlisted plan", rules: withTiers, header: map[string][]string{"X-Plan": {"bronze"}},
			want: []string{"header X-Plan has a value that no tier lists, so the tier is free"},
		},
		{
			name: "plan of a later tier", rules: withTiers, header: map[string][]string{"X-Plan": {"silver"}},
			want: []string{"header X-Plan has a value that the tier gold does not list"},
		},
		{name: "unlisted plan, but limits without tiers", rules: withoutTiers, header: map[string][]string{"X-Plan": {"bronze"}}},
	} {
		var v Evaluation
		c.rules.Evaluate(fields{KindHeader: c.header}, &v)
		if got := v.IgnoredValues(); !slices.Equal(got, c.want) {
			t.Errorf("%s: the ignored values are %q; want %q", c.name, got, c.want)
		}
	}
}
