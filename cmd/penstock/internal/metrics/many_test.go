package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/httplimit"
)

// The metrics of 8,000 rules are those of the rules that have traffic.
func TestRulesWithoutTrafficTakeLittleRoom(t *testing.T) {
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
		m.Check(rule, httplimit.Allowed, time.Millisecond)
	}
	_, three := sums(t, m)
	if idle != without || three-idle > 3*100 || three == idle {
		t.Errorf("without rules there are %d series, with 8,000 idle ones %d, with traffic of 3 rules %d", without, idle, three)
	}
	m.SetRules(rules[:2])
	m.Check(rules[2], httplimit.Allowed, time.Millisecond) // is gone, and has no histogram of its own again
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
	m.Check(Rule{"a", "second", "token-bucket"}, httplimit.Allowed, time.Millisecond)
	_, after := sums(t, m)
	if one-none < 5 || one-none > 20 || after-one < 1 {
		t.Errorf("without rules there are %d series, with one %d, with its traffic %d", none, one, after)
	}
}
