package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/admission"
)

// Of 8,000 rules, only those with traffic have series.
func TestRulesWithoutTrafficHaveNoSeries(t *testing.T) {
	m := New("")
	var rules []Rule
	for i := range 8000 {
		rules = append(rules, Rule{fmt.Sprintf("rule-%d", i), "second", "token-bucket"})
	}
	m.SetRules(nil)
	_, without := sums(t, m)
	m.SetRules(rules)
	_, idle := sums(t, m)
	for _, rule := range rules[:3] {
		m.CountRequest(rule, admission.Allowed, time.Millisecond)
	}
	_, three := sums(t, m)
	if idle != without || three-idle > 3*100 || three == idle {
		t.Errorf("without rules there are %d series, with 8,000 idle ones %d, with traffic of 3 rules %d", without, idle, three)
	}
	m.SetRules(rules[:2])
	m.CountRequest(rules[2], admission.Allowed, time.Millisecond) // the rule is gone, and must not get a histogram again
	m.SetRules(rules)
	if _, two := sums(t, m); two > three {
		t.Errorf("%d series became %d", three, two)
	}
}

func TestAFewRulesHaveZerosAndNoHistogram(t *testing.T) {
	m := New("")
	_, none := sums(t, m)
	m.SetRules([]Rule{{"a", "second", "token-bucket"}})
	_, one := sums(t, m)
	m.CountRequest(Rule{"a", "second", "token-bucket"}, admission.Allowed, time.Millisecond)
	_, after := sums(t, m)
	if one-none < 5 || one-none > 20 || after-one < 1 {
		t.Errorf("without rules there are %d series, with one %d, with its traffic %d", none, one, after)
	}
}
