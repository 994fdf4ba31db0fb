package envoyconfig_test

import (
	"slices"
	"strings"
	"testing"
)

func TestMigratedPolicyNamesWhatItLeavesOut(t *testing.T) {
	c := load(t, `
domain: d
descriptors:
- {key: domain, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: a, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}
- {key: "b c", rate_limit: {unit: day, requests_per_unit: 1}}
- {key: wild, value: "x*", rate_limit: {unit: day, requests_per_unit: 1}}
- {key: all, value: "*", share_threshold: true, shadow_mode: true, rate_limit: {unit: month, requests_per_unit: 3}}
- {key: user, value: bad, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: user, value: free, rate_limit: {unlimited: true}}
- {key: Team0-ID, descriptors: [{key: first_of, value: "*", rate_limit: {unit: hour, requests_per_unit: 7}}]}
- key: plan
  value: $pro
  quota_mode: true
  detailed_metric: true
  metadata: {team: web}
  rate_limit: {unit: second, requests_per_unit: 5, replaces: [{name: n}, {name: m}]}
`)
	const want = `# warning: a.yaml:9: requests_per_unit is 0 or missing, so the limit denies everything

# requests_per_unit is 0.
deny:
- {"descriptor domain": "d", "descriptor user": "bad"}

rules:

# a.yaml:9: d.user_bad
# The limit is 0, so it is in deny above.

# a.yaml:10: d.user_free
- name: d.user_free
  match: {"descriptor domain": "d", "descriptor user": "free"}
  unlimited: true

# a.yaml:17: d.plan_$pro
# quota_mode is left out: the limit denies by itself.
# replaces is left out: the limits named n, m apply to other descriptors of a request as well.
# detailed_metric and value_to_metric are left out: metrics have the name of the rule.
# metadata are left out.
- name: d.plan_-pro
  match: {"descriptor domain": "d", "descriptor plan": "$$pro"}
  per: global
  limits:
  - {name: second, rate: 5/s, algorithm: fixed-window}

# a.yaml:7: d.wild_x*
# Left out: a policy has no wildcards inside values; list the values, as in: descriptor wild: [a, b]

# a.yaml:8: d.all_*
- name: d.all_
  match: {"descriptor domain": "d", "descriptor all": "*"}
  per: global
  limits:
  - {name: month, rate: 3/30d, algorithm: fixed-window, shadow: true}

# a.yaml:4: d.domain
# Left out: a key is "domain", and in a policy that is the domain of the request

# a.yaml:6: d.b c
# Left out: a key is empty or has white space

# a.yaml:11: d.Team0-ID.first_of_*
- name: d.team0-id.first_of_
  match: {"descriptor domain": "d", "descriptor Team0-ID": "*", "descriptor first_of": "*"}
  per: {all_of: [{team0-id: "descriptor Team0-ID"}, {entry-2: "descriptor first_of"}]}
  limits:
  - {name: hour, rate: 7/h, algorithm: fixed-window}

# a.yaml:5: d.a.a
# Left out: the key a is used twice
`
	if _, got, _ := strings.Cut(c.Policy(), "has further entries.\n"); got != want { // the head is the same for all files
		t.Errorf("the policy is\n%s\nwant\n%s", got, want)
	}
	leftOut := []string{
		`a.yaml:4: d.domain is left out: a key is "domain", and in a policy that is the domain of the request`,
		"a.yaml:5: d.a.a is left out: the key a is used twice",
		"a.yaml:6: d.b c is left out: a key is empty or has white space",
		"a.yaml:7: d.wild_x* is left out: a policy has no wildcards inside values; list the values, as in: descriptor wild: [a, b]",
	}
	if got := c.LeftOut(); !slices.Equal(got, leftOut) {
		t.Errorf("LeftOut returns\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(leftOut, "\n"))
	}
}
