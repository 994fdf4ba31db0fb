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
	_, withoutRules := s.sums(t)
	s.SetRules(rules)
	_, withIdleRules := s.sums(t)
	for _, rule := range rules[:3] {
		s.count(rule, admission.Allowed, time.Millisecond)
	}
	_, withThree := s.sums(t)
	if withIdleRules != withoutRules {
		t.Errorf("there are %d series without rules, and %d with 8,000 rules without requests; want the same number", withoutRules, withIdleRules)
	}
	if added := withThree - withIdleRules; added < 1 || added > 3*100 {
		t.Errorf("3 rules with requests have %d series; want 1 to 300", added)
	}
	s.SetRules(rules[:2])
	s.count(rules[2], admission.Allowed, time.Millisecond) // this rule was removed, and must not get a histogram again
	s.SetRules(rules)
	if _, after := s.sums(t); after > withThree {
		t.Errorf("there were %d series with 3 rules, and there are %d after one of these was removed and set again; want no more", withThree, after)
	}
}

func TestAFewRulesHaveZerosAndNoHistogram(t *testing.T) {
	s := newScrapedMetrics(Options{})
	_, withoutRules := s.sums(t)
	s.SetRules([]observe.Rule{search})
	_, withOne := s.sums(t)
	s.count(search, admission.Allowed, time.Millisecond)
	_, withRequest := s.sums(t)
	if added := withOne - withoutRules; added < 5 || added > 20 {
		t.Errorf("a rule without requests has %d series; want 5 to 20", added)
	}
	if withRequest <= withOne {
		t.Errorf("there are %d series before the rule's first request, and %d after it; want more, because of the histogram", withOne, withRequest)
	}
}
