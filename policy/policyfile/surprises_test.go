package policyfile

import (
	"strings"
	"testing"
)

func TestWhatMayNotBeMeantIsWarnedOfOnce(t *testing.T) {
	const per = "per: global, limits: [{rate: 1/s}]"
	const login = "{name: login, match: {method: POST, path: /login}, per: global, limits: [{rate: 1/s, on_status: 401}]}"
	for _, row := range []struct{ text, says string }{
		{"rules: [{name: a, match: {path: /api/*}, " + per + "}]",
			"1:33: * is one segment here, so /api/a/b is not limited by this rule; write /api/** for everything below, or {name} if one segment is meant"},
		{"rules: [{name: a, match: {path: [/a/*, /b/*]}, " + per + "}, {name: b, match: {path: /c/*}, " + per + "}]",
			"1:34: * is one segment here, so /a/a/b is not limited by this rule; write /a/** for everything below, or {name} if one segment is meant; this occurs in 3 places"},
		{"rules: [{name: a, match: {path: /api/*}, " + per + "}, {name: b, match: {path: /api/**}, always: true, " + per + "}]", ""},
		{"rules: [{name: a, match: {path: \"/api/{id}\"}, " + per + "}]", ""},
		{"rules: [{name: a, match: {path: /api/*}, unlimited: true}]", ""},
		{"rules: [{name: all, " + per + "}, {name: a, match: {path: /a}, " + per + "}, {name: b, match: {path: /b}, " + per + "}]",
			"1:65: rule a takes requests away from rule all, which matches them too: the more specific one applies alone; write always: true into all if both shall count, " +
				"or apply: most-specific if this is meant; this occurs in 2 places"},
		{"apply: most-specific\nrules: [{name: all, " + per + "}, {name: a, match: {path: /a}, " + per + "}]", ""},
		{"rules: [{name: all, always: true, " + per + "}, {name: a, match: {path: /a}, " + per + "}]", ""},
		{"rules: [{name: all, " + per + "}, {name: a, match: {path: /a}, unlimited: true}]", ""},
		{"rules: [{name: all, match: {method: POST}, " + per + "}, {name: a, match: {path: /a}, " + per + "}]", ""},
		{"rules: [{name: all, match: {host: \"*.example.com\"}, " + per + "}, {name: a, match: {host: a.example.com, path: /a}, " + per + "}]", "takes requests away"},
		{"rules: [" + login + "]", "1:51: the rule guards /login, and some servers take it in capitals, or with a slash behind it, for the same; "},
		{"http: {case_sensitive: false}\nrules: [" + login + "]", "the rule guards /login"},
		{"http: {case_sensitive: false, trailing_slash: ignore}\nrules: [" + login + "]", ""},
		{"http: {case_sensitive: true, trailing_slash: keep}\nrules: [" + login + "]", ""},
		{"on_failure: closed\nrules: [{name: a, match: {path: /pay}, " + per + "}]", "the rule guards /pay"},
		{"rules: [{name: a, match: {path: /search}, " + per + "}]", ""},
	} {
		warnings := policyIn(t, "policy.yaml", row.text+"\n").Warnings
		if row.says == "" && len(warnings) > 0 || row.says != "" && (len(warnings) != 1 || !strings.Contains(warnings[0].Error(), row.says)) {
			t.Errorf("%s\nis warned of by %v; want %s", row.text, warnings, row.says)
		}
	}
}
