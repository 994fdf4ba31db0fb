package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// namedRules makes Rules with one rule, "search", which has a limit by user and a limit for all. If
// change is not nil, it changes the Spec first.
func namedRules(t *testing.T, change func(*Spec)) *Rules {
	t.Helper()
	byUser := ByFunc(func(Attributes) string { panic("a call by rule name has no attributes") })
	spec, err := Simple("search", byUser, guard.FailOpen, penstock.PerSecond(10), penstock.PerDay(1000))
	if err != nil {
		t.Fatal(err)
	}
	limits := spec.Rules[0].Limits
	limits[0].Patience, limits[0].Cost = time.Second, Cost{Units: 7}
	limits[1].Key = Global()
	spec.Rules[0].Match.Hosts = []string{"elsewhere.example"}
	spec.Deny = []Condition{{}} // it holds for every request
	if change != nil {
		change(&spec)
	}
	rules, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestCallByRuleNameChargesItsOwnKeyAndCost(t *testing.T) {
	t.Parallel()
	rules := namedRules(t, nil)
	var v Evaluation
	if err := rules.EvaluateRule("search", "user:42", 3, false, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Charges) != 2 || len(v.Limits) != 2 || v.ListMatch != NotListed {
		t.Fatalf("the evaluation is %+v; want two charges and no list", v)
	}
	for i, key := range []string{"user:42", "global"} {
		c := v.Charges[i]
		if c.Key != key || c.Cost != 3 || c.Patience != 0 || c.Plan != v.Limits[i].Variants[0] {
			t.Errorf("charge %d is %+v; want key %q, cost 3 and no patience", i, c, key)
		}
	}
}

func TestCallByRuleNameHasTheLastTier(t *testing.T) {
	t.Parallel()
	rules := namedRules(t, func(s *Spec) {
		s.Tiers = []Tier{{Name: "paid", AnyOf: []Condition{{}}}, {Name: "free", IsDefault: true}}
		for _, l := range s.Rules[0].Limits {
			larger := l.Variants[0].Limit()
			larger.Count, larger.Burst = 10*larger.Count, 0
			l.Variants = append([]*penstock.Plan{larger.MustCompile()}, l.Variants...)
		}
	})
	var v Evaluation
	if err := rules.EvaluateRule("search", "user:42", 1, false, &v); err != nil {
		t.Fatal(err)
	}
	if n := v.Charges[0].Plan.Limit().Count; n != 10 {
		t.Errorf("the limit is %d per second; want the 10 of the last tier", n)
	}
}

func TestErrorsOfCallsByRuleName(t *testing.T) {
	t.Parallel()
	makeInFlight := func(s *Spec) {
		l := s.Rules[0].Limits[0]
		l.Variants = []*penstock.Plan{penstock.InFlight(3, time.Minute).MustCompile()}
	}
	setStatus := func(s *Spec) { s.Rules[0].Limits[1].Status = new(Statuses) }
	addCandidateWithStatus := func(s *Spec) {
		candidate := *s.Rules[0].Limits[0]
		candidate.Name, candidate.Status = "tried", new(Statuses)
		s.Rules[0].Limits[0].Candidate = &candidate
	}
	for _, c := range []struct {
		rule   string
		key    string
		cost   int64
		change func(*Spec) // of the Spec that namedRules makes; nil: none
		want   string      // a part of the error
	}{
		{rule: "other", key: "a", cost: 1, want: "the policy has no rule of this name"},
		{rule: "serch", key: "a", cost: 1, want: "the policy has no rule of this name; did you mean search?"},
		{rule: "search", key: "a", cost: -1, want: "cost"},
		{rule: "search", key: "a", cost: penstock.MaxCost + 1, want: "cost"},
		{rule: "search", key: strings.Repeat("a", penstock.MaxKey+1), cost: 1, want: "key"},
		{rule: "search", key: "a", cost: 1, change: makeInFlight, want: "in_flight"},
		{rule: "search", key: "a", cost: 1, change: setStatus, want: "on_status"},
		{rule: "search", key: "a", cost: 1, change: addCandidateWithStatus, want: "on_status"},
	} {
		var v Evaluation
		err := namedRules(t, c.change).EvaluateRule(c.rule, c.key, c.cost, false, &v)
		if err == nil || !strings.Contains(err.Error(), c.want) || len(v.Charges) != 0 {
			t.Errorf("rule %s, key %.9q, cost %d: the error is %v with %d charges; want an error with %q, and no charge", c.rule, c.key, c.cost, err, len(v.Charges), c.want)
		}
	}
}

func TestCallerThatReportsEndsCanCallAnyRule(t *testing.T) {
	t.Parallel()
	rules := namedRules(t, func(s *Spec) { s.Rules[0].Limits[1].Status = new(Statuses) })
	var v Evaluation
	if err := rules.EvaluateRule("search", "user:42", 1, false, &v); err == nil {
		t.Error("a call without canEnd of a rule with on_status succeeds; want an error")
	}
	if err := rules.EvaluateRule("search", "user:42", 1, true, &v); err != nil || len(v.Charges) != 2 {
		t.Errorf("a call with canEnd of a rule with on_status has %d charges and the error %v; want 2 charges and no error", len(v.Charges), err)
	}
}

// A key that a caller states has the counter of the same client over HTTP, whatever its value has.
func TestKeysOfNamedCallsAreThoseOfHTTP(t *testing.T) {
	t.Parallel()
	rules := namedRules(t, func(s *Spec) { s.Rules[0].Limits[0].Key = &Identity{Kind: "user", Source: Header("X-User")} })
	for _, value := range []string{"42", "Jörg", "a b", "a,b", "a#1", "100%25", strings.Repeat("z", 140), "a:b", "\xff"} {
		var v Evaluation
		if err := rules.EvaluateRule("search", "user:"+value, 1, true, &v); err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		plain := strings.ReplaceAll(value, "%25", "%")
		for _, c := range v.Charges {
			if want := "user:" + escape(plain); c.Key != want && c.Key != "global" {
				t.Errorf("%q is charged under %q; want %q", value, c.Key, want)
			}
		}
	}
}

// An address stands for the client that has it: an IPv6 client is its network.
func TestAddressesOfNamedCallsAreThoseOfClients(t *testing.T) {
	t.Parallel()
	for _, identity := range []*Identity{ByAddress(), {FirstOf: []*Identity{By("key", Header("X-Key")), ByAddress()}}} {
		rules := namedRules(t, func(s *Spec) { s.Rules[0].Limits[0].Key = identity })
		for key, want := range map[string]string{
			"ip:192.0.2.7": "ip:192.0.2.7", "ip:::ffff:192.0.2.7": "ip:192.0.2.7", "ip:2001:DB8::1": "ip:2001:db8::/64", "ip:2001:db8::2": "ip:2001:db8::/64",
			"ip:2001:db8::/64": "ip:2001:db8::/64", "ip:unix": "ip:unix", "ip:garbage": "", "ip:127.000.0.1": "", "ip:": "",
		} {
			var v Evaluation
			err := rules.EvaluateRule("search", key, 1, true, &v)
			switch {
			case want == "" && (err == nil || !strings.Contains(err.Error(), "write one such as ip:192.0.2.7")):
				t.Errorf("%s: %v; want an error with an example", key, err)
			case want != "" && (err != nil || v.Charges[0].Key != want):
				t.Errorf("%s: %v, %+v; want a charge under %s", key, err, v.Charges, want)
			}
		}
	}
}
