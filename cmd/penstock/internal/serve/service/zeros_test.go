package service

import (
	"net/http"
	"regexp"
	"slices"
	"testing"
)

// Before the first request, the metrics have a series at zero for each limit, each candidate, each
// limit of new identities, and for requests without a rule.
func TestEveryLimitHasItsSeriesFromTheStart(t *testing.T) {
	r := startLimited(t, http.NotFoundHandler(), `
rules:
  - name: a
    match: {path: /a}
    per: {key: header X-API-Key}
    new_identities: 20/min
    limits:
      - {name: second, rate: 10/s, candidate: {rate: 20/s}}
      - {name: day, rate: 1000/day, algorithm: fixed-window}
      - {name: slots, in_flight: 5}
  - name: b
    match: {path: /b}
    per: global
    limits: [{name: second, rate: 10/s, shadow: true}]
`, nil)
	page := r.mustGet("http://"+r.Admin+"/metrics", 200)
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^rate_limiter_allowed_total\{.*limit="([^"]*)",rule="(\w+)"\} (.*)$`).FindAllStringSubmatch(page, -1) {
		limit, rule, value := m[1], m[2], m[3]
		got = append(got, rule+"/"+limit+" "+value)
	}
	slices.Sort(got)
	if want := []string{"a/day 0", "a/new-identities 0", "a/second 0", "a/second.candidate 0", "a/slots 0", "b/second 0", "other/other 0"}; !slices.Equal(got, want) {
		t.Errorf("the series are %q; want %q", got, want)
	}
	// Outcomes that are decided before any rule is matched have no series of a rule.
	before := regexp.MustCompile(`(?m)^rate_limiter_requests_total\{.*outcome="(unlimited|exempt|refused|malformed)",rule="(.*)"\} 0$`).FindAllStringSubmatch(page, -1)
	if len(before) == 0 {
		t.Error("the metrics have no series for outcomes that are decided before a rule is matched")
	}
	for _, m := range before {
		outcome, rule := m[1], m[2]
		if rule == "a" || rule == "b" {
			t.Errorf("rule %s has a series with outcome %s; want none", rule, outcome)
		}
	}
}
