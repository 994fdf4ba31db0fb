package policyfile

import (
	"strings"
	"testing"
)

// A rule has a warning if clients can invent its identities, and also if new_identities has no
// effect on it.
func TestWarningsOfIdentitiesThatClientsCanInvent(t *testing.T) {
	for _, c := range []struct{ policy, warning string }{ // the warning has this beginning; "": there is none
		{"rules: [{name: a, per: {k: header X-Key}, limits: [{rate: 1/s}]}]",
			"clients can write any header X-Key, and each new value gets a fresh limit"},
		{"rules: [{name: a, per: {k: header x-key}, limits: [{rate: 1/s}]}]",
			"clients can write any header x-key, and each new value gets a fresh limit"},
		{"rules: [{name: a, per: {k: query k}, limits: [{rate: 1/s}]}]",
			"clients can write any query k, and each new value gets a fresh limit"},
		{"rules: [{name: a, per: {k: cookie k}, limits: [{rate: 1/s}]}]",
			"clients can write any cookie k, and each new value gets a fresh limit"},
		{"rules: [{name: a, match: {path: \"/{k}\"}, per: {k: segment k}, limits: [{rate: 1/s}]}]",
			"clients can write any segment k, and each new value gets a fresh limit"},
		{"rules: [{name: a, per: {k: {header X-Key: \"*\"}}, limits: [{rate: 1/s}]}]",
			"clients can write any header X-Key, and each new value gets a fresh limit"},
		{"rules: [{name: a, per: {all_of: [{k: header X-Key}, ip]}, limits: [{rate: 1/s}]}]",
			"clients can write any header X-Key, and each new value gets a fresh limit"},
		{"rules: [{name: a, per: {first_of: [{k: header X-Key}, ip]}, limits: [{rate: 1/s}]}]",
			"clients can write any header X-Key, and each new value gets a fresh limit"},
		{"rules: [{name: a, limits: [{rate: 1/s, per: {k: header X-Key}}, {name: b, rate: 1/s, per: global}]}]",
			"clients can write any header X-Key, and each new value gets a fresh limit"},
		{"rules: [{name: a, per: {k: {header X-Key: [a]}}, new_identities: 1/s, limits: [{rate: 1/s}]}]",
			"clients cannot invent identities of this rule, so new_identities has no effect"},
		{"rules: [{name: a, per: {k: {header X-Key: [a]}}, limits: [{rate: 1/s}]}]",
			""},
		{"rules: [{name: a, per: {k: header X-Key}, new_identities: 20/min, limits: [{rate: 1/s}]}]",
			""},
		{"rules: [{name: a, per: global, limits: [{rate: 1/s}]}]",
			""},
		{"rules: [{name: a, limits: [{rate: 1/s, per: {k: header X-Key}}, {name: b, rate: 9/s, per: ip}]}]",
			""},
		{"rules: [{name: a, per: {k: header X-Key}, limits: [{rate: 1/s}]}, {name: b, always: true, per: ip, limits: [{rate: 9/s}]}]",
			""},
	} {
		var found []string
		for _, w := range policyIn(t, "policy.yaml", c.policy+"\n").Warnings {
			if strings.HasPrefix(w.Message, "clients ") {
				found = append(found, w.Message)
			}
		}
		isWanted := len(found) == 0
		if c.warning != "" {
			isWanted = len(found) == 1 && strings.HasPrefix(found[0], c.warning)
		}
		if !isWanted {
			t.Errorf("%s\nhas the warnings %q; want one that begins with %q, or none if this is empty", c.policy, found, c.warning)
		}
	}
}
