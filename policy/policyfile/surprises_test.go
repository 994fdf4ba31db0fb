package policyfile

import (
	"fmt"
	"strings"
	"testing"
)

// hasOnly reports whether there is exactly one warning or hint, and it contains want. If want is
// empty, hasOnly reports whether there is none.
func hasOnly(found []*Error, want string) bool {
	if want == "" {
		return len(found) == 0
	}
	return len(found) == 1 && strings.Contains(found[0].Error(), want)
}

func TestWarningsOfSurprises(t *testing.T) {
	const per = "per: global, limits: [{rate: 1/s}]"
	const login = "{name: login, match: {method: POST, path: /login}, per: global, limits: [{rate: 1/s, on_status: 401}]}"
	for _, row := range []struct{ text, want string }{
		{"rules: [{name: a, match: {path: /api/*}, " + per + "}]",
			"1:33: * is one segment here, so /api/a/b is not limited by this rule; write /api/** for everything below, or \"/api/{name}\" in quotes if one segment is intended"},
		{"rules: [{name: a, match: {path: [/a/*, /b/*]}, " + per + "}, {name: b, match: {path: /c/*}, " + per + "}]",
			"1:34: * is one segment here, so /a/a/b is not limited by this rule; write /a/** for everything below, or \"/a/{name}\" in quotes if one segment is intended; this occurs in 3 places"},
		{"rules: [{name: a, match: {path: /api/*}, " + per + "}, {name: b, match: {path: /api/**}, always: true, " + per + "}]", ""},
		{"rules: [{name: a, match: {path: \"/api/{id}\"}, " + per + "}]", ""},
		{"rules: [{name: a, match: {path: /api/*}, unlimited: true}]", ""},
		{"rules: [{name: all, " + per + "}, {name: a, match: {path: /a}, " + per + "}, {name: b, match: {path: /b}, " + per + "}]",
			"1:65: requests of rule a are not counted by rule all, which matches them too: only the more specific one applies; write always: true into all to count them in both, " +
				"or apply: most-specific if this is intended; this occurs in 2 places"},
		{"apply: most-specific\nrules: [{name: all, " + per + "}, {name: a, match: {path: /a}, " + per + "}]", ""},
		{"rules: [{name: all, always: true, " + per + "}, {name: a, match: {path: /a}, " + per + "}]", ""},
		{"rules: [{name: all, " + per + "}, {name: a, match: {path: /a}, unlimited: true}]", ""},
		{"rules: [{name: all, " + per + "}, {name: a, match: {path: /a}, per: global, limits: [{rate: 1/s, shadow: true}, {rate: 1/h, shadow: true}]}]",
			"1:65: no limit is enforced for requests of rule a: all its limits are shadows, and rule all, which matches these requests too, does not apply; " +
				"move shadow: true from the limits of rule a to the rule itself, so that rule all still applies"},
		{"apply: most-specific\nrules: [{name: all, " + per + "}, {name: a, match: {path: /a}, per: global, limits: [{rate: 1/s, shadow: true}]}]", "no limit is enforced for requests of rule a"},
		{"apply: all\nrules: [{name: all, " + per + "}, {name: a, match: {path: /a}, per: global, limits: [{rate: 1/s, shadow: true}]}]", ""},
		{"rules: [{name: all, always: true, " + per + "}, {name: a, match: {path: /a}, per: global, limits: [{rate: 1/s, shadow: true}]}]", ""},
		{"rules: [{name: all, " + per + "}, {name: a, match: {path: /a}, always: true, per: global, limits: [{rate: 1/s, shadow: true}]}]", ""},
		{"rules: [{name: all, " + per + "}, {name: a, match: {path: /a}, shadow: true, " + per + "}]", ""},
		{"rules: [{name: all, per: global, limits: [{rate: 1/s, shadow: true}]}, {name: a, match: {path: /a}, per: global, limits: [{rate: 1/s, shadow: true}]}]", ""},
		{"rules: [{name: all, match: {method: POST}, " + per + "}, {name: a, match: {path: /a}, " + per + "}]", ""},
		{"rules: [{name: all, match: {host: \"*.example.com\"}, " + per + "}, {name: a, match: {host: a.example.com, path: /a}, " + per + "}]", "are not counted by rule"},
		{"rules: [" + login + "]", "1:51: the rule limits only /login, but some servers treat /LOGIN and /login/ as the same path; " +
			"write http: {case_sensitive: false, trailing_slash: ignore}, or {case_sensitive: true, trailing_slash: keep} if yours does not"},
		{"http: {case_sensitive: false}\nrules: [" + login + "]", "the rule limits only /login, but some servers treat /login/ as the same path; write http: {trailing_slash: ignore}, or {trailing_slash: keep} if"},
		{"http: {trailing_slash: keep}\nrules: [" + login + "]", "the rule limits only /login, but some servers treat /LOGIN as the same path; write http: {case_sensitive: false}, or {case_sensitive: true} if"},
		{"http: {case_sensitive: false, trailing_slash: ignore}\nrules: [" + login + "]", ""},
		{"http: {case_sensitive: true, trailing_slash: keep}\nrules: [" + login + "]", ""},
		{"rules: [{name: a, match: {method: [gte, get, PURGE]}, " + per + "}]", "1:36: \"gte\" is not a method of the HTTP registry; did you mean GET?"},
		{"rules: [{name: a, match: {path: '/users/[0-9]+'}, " + per + "}]", "1:33: the segment \"[0-9]+\" is a regular expression, but matches only this text; write path: \"/users/*\", where * is any segment"},
		{"rules: [{name: a, match: {path: ['/a(1)', '/$batch', '/a+b', '/*.*', '/.well-known/x']}, " + per + "}]", ""},
		{"on_failure: closed\nrules: [{name: a, match: {path: /pay}, " + per + "}]", "the rule limits only /pay"},
	} {
		warnings := policyIn(t, "policy.yaml", row.text+"\n").Warnings
		if !hasOnly(warnings, row.want) {
			t.Errorf("%s\nhas the warnings %v; want %q", row.text, warnings, row.want)
		}
	}
}

func TestHintsOfRequestsThatLimitsMiss(t *testing.T) {
	const per = "per: global, limits: [{rate: 1/s}]"
	const key = "{first_of: [{key: {header X-API-Key: [a, b]}}, ip]}"
	for _, row := range []struct{ text, want string }{
		{"rules: [{name: a, match: {path: /login}, " + per + "}]", "1:33: the rule limits only /login, but some servers treat /LOGIN and /login/ as the same path"},
		{"rules: [{name: a, match: {path: [/a, \"/b/{id}\", /c/**, /D, /4]}, " + per + "}]", "the rule limits only /a, but some servers treat /A and /a/ as the same path; " +
			"write http: {case_sensitive: false, trailing_slash: ignore}, or {case_sensitive: true, trailing_slash: keep} if yours does not; this occurs in 3 places"},
		{"http: {trailing_slash: keep}\nrules: [{name: a, match: {path: /4}, " + per + "}]", ""},
		{"http: {case_sensitive: true, trailing_slash: keep}\nrules: [{name: a, match: {path: /a}, " + per + "}]", ""},
		{"rules: [{name: a, match: {path: /a}, shadow: true, " + per + "}]", ""},

		{"rules: [{name: a, per: ip, limits: [{rate: 1/s}]}]", "1:24: limits by address alone"},
		{"rules: [{name: a, per: {first_of: [ip]}, limits: [{rate: 1/s}]}]", "1:24: limits by address alone"},
		{"rules: [{name: a, per: {all_of: [{first_of: [ip, {key: header X}]}]}, limits: [{rate: 1/s}]}]", "1:24: limits by address alone"},
		{"rules: [{name: a, per: {from: {ip: \"*\"}}, limits: [{rate: 1/s}, {name: b, rate: 1/s, per: ip}]}]", "1:24: limits by address alone are shared by all clients behind one NAT or proxy, " +
			"and clients with many addresses evade them; write {first_of: [...]} with a better identity before ip if there is one, or add a limit per: global; this occurs in 2 places"},
		{"identities: {client: {all_of: [ip]}}\nrules: [{name: a, match: {client: \"ip:192.0.2.1\"}, per: client, limits: [{rate: 1/s}]}]", "2:57: limits by address alone"},
		{"rules: [{name: a, per: {from: {ip: 10.0.0.0/8}}, limits: [{rate: 1/s}]}]", "requests without a listed ip all share one limit"},
		{"rules: [{name: a, per: ip, limits: [{rate: 1/s, on_status: 401}]}]", ""},
		{"rules: [{name: a, per: ip, limits: [{rate: 1/s, shadow: true}]}]", ""},
		{"rules: [{name: a, per: ip, limits: [{rate: 1/s}, {name: all, rate: 9/s, per: global}]}]", ""},
		{"rules: [{name: a, per: ip, limits: [{rate: 1/s}, {name: all, rate: 9/s, per: global, shadow: true}]}]", "limits by address alone"},
		{"rules: [{name: a, always: true, per: ip, limits: [{rate: 1/s}]}, {name: b, per: " + key + ", limits: [{rate: 1/s}]}]", ""},
		{"rules: [{name: a, per: ip, limits: [{rate: 1/s}]}, {name: b, always: true, per: " + key + ", limits: [{rate: 1/s}]}]", ""},
		{"apply: most-specific\nrules: [{name: a, match: {path: \"/x/**\"}, per: ip, limits: [{rate: 1/s}]}, {name: b, per: " + key + ", limits: [{rate: 1/s}]}]", "limits by address alone"},
		{"tokens: {secret: 0123456789abcdef0123456789abcdef, audience: a}\nrules: [{name: a, before_auth: true, per: ip, limits: [{rate: 1/s}]}]", ""},
	} {
		p := policyIn(t, "policy.yaml", row.text+"\n")
		if !hasOnly(p.Hints, row.want) {
			t.Errorf("%s\nhas the hints %v; want %q", row.text, p.Hints, row.want)
		}
		if len(p.Warnings) > 0 {
			t.Errorf("%s\nhas the warnings %v; want none", row.text, p.Warnings)
		}
	}
}

// A limit by address bounds the identities that clients can invent, however it is written.
func TestWarningsOfInventedIdentities(t *testing.T) {
	const warning = "clients can write any header X-User-Id, and each new value gets a fresh limit and a key; list the values that were issued, " +
		"add new_identities: 20/min to the rule, or a limit per address beside this"
	const ofShadow = "clients can write any header X-User-Id, and each new value gets a key now, and a fresh limit when this shadow is enforced; list the values that were issued, " +
		"add new_identities: 20/min to the enforced rule, or a limit per address beside this"
	const rule = "rules: [{name: a, per: %s, limits: [{in_flight: 5}%s]%s}]\n"
	for _, row := range []struct{ per, otherLimit, more, want string }{
		{per: "{user: header X-User-Id}", want: warning},
		{per: "{first_of: [{user: header X-User-Id}, ip]}", want: warning},
		{per: "{user: header X-User-Id}", otherLimit: ", {rate: 9/s, per: ip}"},
		{per: "{user: header X-User-Id}", otherLimit: ", {rate: 9/s, per: {first_of: [ip]}}"},
		{per: "{user: header X-User-Id}", more: ", shadow: true", want: ofShadow},
		{per: "{user: header X-User-Id}", otherLimit: ", {rate: 9/s, per: ip}", more: ", shadow: true"},
		{per: "global", otherLimit: ", {rate: 9/s, shadow: true, per: {user: header X-User-Id}}", want: ofShadow},
		{per: "global", otherLimit: ", {rate: 9/s, shadow: true, per: {user: header X-User-Id}}, {name: b, rate: 9/s, shadow: true, per: ip}"},
		{per: "{user: header X-User-Id}", otherLimit: ", {rate: 9/s, shadow: true, per: ip}", want: warning},
		{per: "{user: header X-User-Id}", otherLimit: ", {rate: 9/s, shadow: true}", want: warning},
		{per: "{user: header X-User-Id}", otherLimit: ", {rate: 9/s, per: ip, on_status: 401}", want: warning},
		{per: "global", otherLimit: ", {rate: 9/s, per: {user: header X-User-Id}, on_status: 401}, {name: b, rate: 9/s, per: ip, on_status: 401}"},
	} {
		got := ""
		for _, w := range policyIn(t, "policy.yaml", fmt.Sprintf(rule, row.per, row.otherLimit, row.more)).Warnings {
			got += w.Message
		}
		if got != row.want {
			t.Errorf("per: %s%s%s has the warnings %q; want %q", row.per, row.otherLimit, row.more, got, row.want)
		}
	}
}

// Nothing that bounds invented identities gives each client without an identity a limit of its own.
func TestHintsOfClientsThatShareTheKeyUnknown(t *testing.T) {
	const address = "; write {first_of: [..., ip]} to count them by address"
	const ofKey = "requests without header X-API-Key all share one limit, under the key \"unknown\"" + address +
		", or match: {header X-API-Key: \"*\"} if the rule is only for requests with it"
	const ofListedKey = "requests without a listed header X-API-Key all share one limit, under the key \"unknown\"" + address
	const ofParts = "requests without any part of the identity all share one limit, under the key \"unknown\"" + address
	const ofDescriptor = "requests without descriptor user all share one limit, under the key \"unknown\"; write {first_of: [..., {other: descriptor OTHER}]} with an entry that each of them has, " +
		"or match: {descriptor user: \"*\"} if the rule is only for requests with it"
	const identities = "identities: {client: {key: header X-API-Key}}\n"
	const tokens = "tokens: {secret: 0123456789abcdef0123456789abcdef, audience: a}\n"
	for _, row := range []struct{ before, rule, want string }{
		{rule: "per: {key: header X-API-Key}, limits: [{rate: 5/s}]", want: ofKey},
		{rule: "per: {key: header X-API-Key}, new_identities: 20/min, limits: [{rate: 5/s}]", want: ofKey},
		{rule: "per: {key: header X-API-Key}, limits: [{rate: 5/s}, {name: b, rate: 100/min, per: ip}]", want: ofKey},
		{rule: "per: {key: {header X-API-Key: [a, b]}}, limits: [{rate: 5/s}]", want: ofListedKey},
		{rule: "per: {key: header X-API-Key}, limits: [{rate: 5/s}, {name: b, rate: 9/s}]", want: ofKey + "; this occurs in 2 places"},
		{rule: "per: ip, limits: [{rate: 5/s}, {name: b, rate: 9/s, per: {key: header X-API-Key}}]", want: ofKey},
		{before: identities, rule: "per: client, limits: [{rate: 5/s}]", want: ofKey},
		{before: tokens, rule: "per: {user: claim sub}, limits: [{rate: 5/s}]", want: strings.ReplaceAll(ofKey, "header X-API-Key", "claim sub")},
		{rule: "per: {first_of: [{user: header X-User}, {key: {header X-API-Key: [a]}}]}, limits: [{rate: 5/s}]", want: ofParts},
		{rule: "per: {all_of: [{user: header X-User}, {key: header X-API-Key}]}, limits: [{rate: 5/s}]", want: ofParts},
		{rule: "match: {header X-Other: '*'}, per: {key: header X-API-Key}, limits: [{rate: 5/s}]", want: ofKey},
		{rule: "match: {query X-API-Key: '*'}, per: {key: header X-API-Key}, limits: [{rate: 5/s}]", want: ofKey},
		{rule: "match: {header X-API-Key: '*'}, per: {key: {header X-API-Key: [a, b]}}, limits: [{rate: 5/s}]", want: ofListedKey},

		{rule: "per: {first_of: [{key: header X-API-Key}, ip]}, limits: [{rate: 5/s}]"},
		{rule: "per: {all_of: [{key: header X-API-Key}, ip]}, limits: [{rate: 5/s}]"},
		{rule: "match: {header X-API-Key: '*'}, per: {key: header X-API-Key}, limits: [{rate: 5/s}]"},
		{rule: "match: {header x-api-key: [a, b]}, per: {key: header X-API-Key}, limits: [{rate: 5/s}]"},
		{rule: "match: {header X-API-Key: a}, per: {key: {header X-API-Key: [a, b]}}, limits: [{rate: 5/s}]"},
		{rule: "match: {header X-API-Key: '*'}, per: {first_of: [{user: header X-User}, {key: header X-API-Key}]}, limits: [{rate: 5/s}]"},
		{before: identities, rule: "match: {client: '*'}, per: client, limits: [{rate: 5/s}]"},
		{rule: "per: {user: descriptor user}, limits: [{rate: 5/s}]", want: ofDescriptor},
		{rule: "match: {descriptor path: '*'}, per: {user: descriptor user}, limits: [{rate: 5/s}]", want: ofDescriptor},
		{rule: "match: {descriptor user: '*'}, per: {user: descriptor user}, limits: [{rate: 5/s}]"},
		{rule: "match: {descriptor user: '*'}, per: {first_of: [{user: descriptor user}, {path: descriptor path}]}, limits: [{rate: 5/s}]"},
		{rule: "per: {host: host}, limits: [{rate: 5/s}]"},
		{rule: "per: global, limits: [{rate: 5/s}]"},
		{rule: "shadow: true, per: {key: header X-API-Key}, limits: [{rate: 5/s}]"},
		{rule: "per: {key: header X-API-Key}, limits: [{rate: 5/s, shadow: true}]"},
	} {
		text := row.before + "rules: [{name: a, " + row.rule + "}]\n"
		var got []string
		for _, h := range policyIn(t, "policy.yaml", text).Hints {
			if strings.Contains(h.Message, "unknown") {
				got = append(got, h.Message)
			}
		}
		if strings.Join(got, "\n") != row.want {
			t.Errorf("%s\nhas the hints %q; want %q", text, got, row.want)
		}
	}
}

func TestHintOfSharesOfSlowBuckets(t *testing.T) {
	for limit, want := range map[string]string{
		"rate: 1000/day, across: share":                          "cannot lend its burst to other regions",
		"rate: \"10/s, burst 1000\", across: share":              "cannot lend its burst to other regions",
		"rate: 100/s, across: share":                             "",
		"rate: 1000/day, algorithm: fixed-window, across: share": "",
		"rate: 1000/day, across: exchange":                       "",
	} {
		text := "rules: [{name: a, per: global, limits: [{" + limit + "}]}]\n"
		if p := policyIn(t, "policy.yaml", text); !hasOnly(p.Hints, want) {
			t.Errorf("%s\nhas the hints %v; want %q", text, p.Hints, want)
		}
	}
}

func TestErrorsShowHowToWriteWhatWasMeant(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{name: a, match: {path: /users/{id}}, per: ip, limits: [{rate: 1/s}]}]":      `a text with { needs quotes within the bracket that opens in line 1, column 26; write "/users/{id}", with the quotes`,
		"rules:\n  - {path: [/a, /users/{id}/x/{b}], per: ip}":                                `2:24: a text with { needs quotes within the bracket that opens in line 2, column 12; write "/users/{id}/x/{b}", with the quotes`,
		"rules:\n  - name: a\n    match:\n      path: {id}/x\n":                               `4:17: more text follows a bracket or a quote; put the whole text into quotes, as in "{id}/x"`,
		"rules:\n  - name: a\n    match: {path: [/v1/a\n    per: ip\n":                        "3:25: the [ that opens in line 3, column 19 is not closed; write ] after its last value",
		"rules:\n  - name: a\n    limits: [{rate: 1/s}  # é ]\n\n  - name: b\n":               "3:25: the [ that opens in line 3, column 13 is not closed; write ]",
		"rules: [{name: a, match: {path: [/a, /b}}]":                                          "the [ that opens in line 1, column 33 is not closed; write ] after its last value, or a comma if another value follows",
		"rules:\n  - {name: a, limits: [\"a\"\n    \"b\"]}\n":                                 "2:27: the [ that opens in line 2, column 23 is not closed; write ] after its last value, or a comma",
		"rules: [{name: a, match: {path: '^/v2/.*$'}, per: ip, limits: [{rate: 1/s}]}]":       `write "/v2/**"`,
		"rules: [{name: a, match: {path: '^/v2/[^/]+/x/(.*)'}, per: ip, limits: [{}]}]":       `write "/v2/*/x/**"`,
		"rules: [{name: a, per: header X-API-Key, limits: [{rate: 1/s}]}]":                    "write {key: header X-API-Key}",
		"rules: [{name: a, per: X-API-Key, limits: [{rate: 1/s}]}]":                           "for a header of the request write {key: header X-API-Key}",
		"rules: [{name: a, match: {header: {X-Plan: gold}}, per: ip, limits: [{rate: 1/s}]}]": `1:27: the name belongs beside header; write "header X-Plan" with its value, as in {header X-Plan: premium}`,
		"rules: [{name: a, per: caller, limits: [{rate: 1/s}]}]":                              "there are ip and global, or write a part of the request, as in {key: header X-API-Key}",
		"rules: [{name: a, per: {key: X-API-Key}, limits: [{rate: 1/s}]}]":                    `"X-API-Key" is not a part of a request; write header X-API-Key`,
		"rules: [{name: Search API, per: ip, limits: [{rate: 1/s}]}]":                         "as in search-api",
		"rules: [{name: a, path: /a, per: ip, limits: [{rate: 1/s}]}]":                        "it belongs in match, as in match: {path: ...}",
		"rules: [{name: a, per: ip, rate: 1/s}]":                                              "it belongs in limits, as in limits: [{rate: ...}]",
		"rules: [{name: a, match: {path: a.example/v1/*}, per: ip, limits: [{rate: 1/s}]}]":   `write host: a.example and path: "/v1/*"`,
		"rules: [{name: a, match: {path: '/a?x=1'}, per: ip, limits: [{rate: 1/s}]}]":         `write "/a", and beside it query NAME: VALUE`,
		"rules: [{name: a, per: ip, limits: [{rate: 100rpm}]}]":                               "write 100/min",
	} {
		config, err := parse("policy.yaml", []byte(text), nil, Options{})
		if err == nil {
			_, err = config.compile()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nhas the errors %v; want one with %q", text, err, want)
		}
	}
}
