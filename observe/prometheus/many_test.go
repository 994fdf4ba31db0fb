package penstockprom

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/observe"
)

// With 8,000 rules, only the rules with requests have series.
func TestRulesWithoutTrafficHaveNoSeries(t *testing.T) {
	s := newScrapedMetrics(Options{})
	var rules []observe.Rule
	for i := range 8000 {
		rules = append(rules, observe.Rule{Name: fmt.Sprintf("rule-%d", i), Limit: "second", Algorithm: "token-bucket"})
	}
	s.SetRules(nil)
	_, without := s.sums(t)
	s.SetRules(rules)
	_, idle := s.sums(t)
	for _, rule := range rules[:3] {
		s.count(rule, admission.Allowed, time.Millisecond)
	}
	_, three := s.sums(t)
	if idle != without || three-idle > 3*100 || three == idle {
		t.Errorf("without rules there are %d series, with 8,000 idle ones %d, with traffic of 3 rules %d; want more only for the 3, and at most 100 for each", without, idle, three)
	}
	s.SetRules(rules[:2])
	s.count(rules[2], admission.Allowed, time.Millisecond) // the rule is gone, and must not get a histogram again
	s.SetRules(rules)
	if _, two := s.sums(t); two > three {
		t.Errorf("with traffic of 3 rules there were %d series, and after two rules were set again %d; want no more", three, two)
	}
}

func TestAFewRulesHaveZerosAndNoHistogram(t *testing.T) {
	s := newScrapedMetrics(Options{})
	_, none := s.sums(t)
	s.SetRules([]observe.Rule{search})
	_, one := s.sums(t)
	s.count(search, admission.Allowed, time.Millisecond)
	_, after := s.sums(t)
	if one-none < 5 || one-none > 20 || after-one < 1 {
		t.Errorf("without rules there are %d series, with one %d, with its traffic %d; want 5 to 20 more, then a histogram", none, one, after)
	}
}
