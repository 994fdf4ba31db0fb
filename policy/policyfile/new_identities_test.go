package policyfile

import (
	"strings"
	"testing"
)

func TestWarningsOfIdentitiesThatClientsCanInvent(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{name: a, per: {k: header X-Key}, limits: [{rate: 1/s}]}]":                                                          "header X-Key",
		"rules: [{name: a, per: {k: header x-key}, limits: [{rate: 1/s}]}]":                                                          "header x-key",
		"rules: [{name: a, per: {k: query k}, limits: [{rate: 1/s}]}]":                                                               "query k",
		"rules: [{name: a, per: {k: cookie k}, limits: [{rate: 1/s}]}]":                                                              "cookie k",
		"rules: [{name: a, match: {path: \"/{k}\"}, per: {k: segment k}, limits: [{rate: 1/s}]}]":                                    "segment k",
		"rules: [{name: a, per: {k: {header X-Key: \"*\"}}, limits: [{rate: 1/s}]}]":                                                 "header X-Key",
		"rules: [{name: a, per: {all_of: [{k: header X-Key}, ip]}, limits: [{rate: 1/s}]}]":                                          "header X-Key",
		"rules: [{name: a, per: {first_of: [{k: header X-Key}, ip]}, limits: [{rate: 1/s}]}]":                                        "header X-Key",
		"rules: [{name: a, limits: [{rate: 1/s, per: {k: header X-Key}}, {name: b, rate: 1/s, per: global}]}]":                       "header X-Key",
		"rules: [{name: a, per: {k: {header X-Key: [a]}}, new_identities: 1/s, limits: [{rate: 1/s}]}]":                              "cannot",
		"rules: [{name: a, per: {k: {header X-Key: [a]}}, limits: [{rate: 1/s}]}]":                                                   "",
		"rules: [{name: a, per: {k: header X-Key}, new_identities: 20/min, limits: [{rate: 1/s}]}]":                                  "",
		"rules: [{name: a, per: global, limits: [{rate: 1/s}]}]":                                                                     "",
		"rules: [{name: a, limits: [{rate: 1/s, per: {k: header X-Key}}, {name: b, rate: 9/s, per: ip}]}]":                           "",
		"rules: [{name: a, per: {k: header X-Key}, limits: [{rate: 1/s}]}, {name: b, always: true, per: ip, limits: [{rate: 9/s}]}]": "",
	} {
		var found []string
		for _, w := range policyIn(t, "policy.yaml", text+"\n").Warnings {
			if text, ok := strings.CutPrefix(w.Message, "clients "); ok {
				found = append(found, strings.TrimPrefix(text, "can write any "))
			}
		}
		isWanted := len(found) == 0
		if want != "" {
			isWanted = len(found) == 1 && (strings.HasPrefix(found[0], want+", and each new value gets a fresh limit") || strings.HasPrefix(found[0], want+" invent"))
		}
		if !isWanted {
			t.Errorf("%s\nhas the warnings %q; want %q", text, found, want)
		}
	}
}
