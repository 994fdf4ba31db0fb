package promote

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/policy/policyfile"
)

func compile(text []byte) (*policyfile.Policy, error) {
	return policyfile.Parse("rules.yaml", text, func(string) (string, bool) { return "v", true }, policyfile.Options{})
}

// TestEditChangesOnlyWhatIsPromoted: the new text is exactly this one, with comments, blank lines
// and order. | is a line end, and one with CR if CR follows.
func TestEditChangesOnlyWhatIsPromoted(t *testing.T) {
	const head = "# ours ü|rules:|"
	for _, c := range []struct{ name, before, after, change string }{
		{"a", "- name: a|  per: ip|  shadow: true   # until May|  # how many|  limits: [{rate: 5/s}]|", "- name: a|  per: ip|  # how many|  limits: [{rate: 5/s}]|", "the rule a is enforced"},
		{"a", "- {name: a, per: ip, shadow: true, limits: [{rate: 5/s}]} # x|", "- {name: a, per: ip, limits: [{rate: 5/s}]} # x|", "the rule a is enforced"},
		{"a", "- {name: a, per: ip, limits: [{rate: 5/s}], shadow: true}", "- {name: a, per: ip, limits: [{rate: 5/s}]}", "the rule a is enforced"},
		{"a", "- shadow: true|  name: a|  per: ip|  limits: [{rate: 5/s}]|", "- name: a|  per: ip|  limits: [{rate: 5/s}]|", "the rule a is enforced"},
		{"a.second", "- name: a|  per: ip|  limits:|    - rate: 5/s|      shadow: true|    - {rate: 9/min, shadow: true}", "- name: a|  per: ip|  limits:|    - rate: 5/s|    - {rate: 9/min, shadow: true}", "the limit a.second is enforced"},
		{"a", "- {name: a, per: ip, limits: [{rate: 5/s, candidate: {rate: 3/s}, burst: 9}]}|", "- {name: a, per: ip, limits: [{rate: 3/s, burst: 9}]}|", "the limit a.second is 3 per 1s, burst 9 (token-bucket) instead of 5 per 1s, burst 9 (token-bucket)"},
		{"a", "- {name: a, per: ip, limits: [{rate: 5/s, burst: 9, candidate: {algorithm: sliding-log}}]}|", "- {name: a, per: ip, limits: [{rate: 5/s, algorithm: sliding-log}]}|", "(sliding-log) instead of"},
		{"a", "- {name: a, per: ip, limits: [{rate: 5/s, burst: 9, candidate: {burst: 7}}]}|", "- {name: a, per: ip, limits: [{rate: 5/s, burst: 7}]}|", "burst 7"},
		{"a", "- name: a|  per: ip|  limits:|    - rate: '5/s' # now|      # next|      candidate:|        rate: \"3/min\" # slower||        burst: 8|      max_wait: 1s|", "- name: a|  per: ip|  limits:|    - rate: \"3/min\" # now|      # next|      burst: 8|      max_wait: 1s|", "the limit a.second is named a.minute now"},
		{"a", "- name: a|  per: ip|  limits:|    - candidate: {rate: 3/s}|      rate: 5/s|", "- name: a|  per: ip|  limits:|    - rate: 3/s|", "instead of"},
		{"a", "- name: a|  per: ip|  limits:|    - rate:|        gold: 9/s|        free: 5/s|      candidate:|        rate:|          gold: 8/s|          free: 3/s, burst 4|      headers: true|tiers: {gold: {header X: [a]}, free: default}|", "- name: a|  per: ip|  limits:|    - rate: {gold: 8/s, free: \"3/s, burst 4\"}|      headers: true|tiers: {gold: {header X: [a]}, free: default}|", "instead of"},
		{"a", "- {name: a, per: ip, limits: [{in_flight: 5, ttl: 30s, candidate: {in_flight: 4}}]}|", "- {name: a, per: ip, limits: [{in_flight: 4, ttl: 30s}]}|", "instead of"},
		{"a", "- {name: a, per: ip, limits: [{rate: 5 per calendar day, timezone: Europe/Berlin, candidate: {rate: 5/s}}]}|", "- {name: a, per: ip, limits: [{rate: 5/s}]}|", "instead of"},
		{"a", "- {name: a, per: ip, limits: [{rate: 5/s, burst: 9, algorithm: token-bucket, candidate: {rate: 50 per calendar day}}]}|", "- {name: a, per: ip, limits: [{rate: 50 per calendar day}]}|", "instead of"},
		{"b", "- {name: a, per: ip, shadow: true, limits: [{rate: 5/s}]}|\r- {name: b, per: ip, shadow: true, match: {path: /b}, limits: [{rate: 5/s}]}\r|", "- {name: a, per: ip, shadow: true, limits: [{rate: 5/s}]}|\r- {name: b, per: ip, match: {path: /b}, limits: [{rate: 5/s}]}\r|", "the rule b"},
	} {
		lines := strings.NewReplacer("|\r", "\r\n", "|", "\n")
		before, after := lines.Replace(head+c.before), lines.Replace(head+c.after)
		result, err := Edit([]byte(before), c.name, compile)
		if err != nil {
			t.Errorf("%v in\n%s", err, before)
			continue
		}
		if string(result.Text) != after || !strings.Contains(strings.Join(result.Changes, "\n"), c.change) {
			t.Errorf("promote %s in\n%sgives %q\n%swant %q\n%s", c.name, before, result.Changes, result.Text, c.change, after)
		}
	}
}

func TestEditExplainsWhatItCannotDo(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{name: a, per: ip, limits: [{rate: 5/s}]}]":  "a is enforced already",
		"rules: [{name: ab, per: ip, limits: [{rate: 5/s}]}]": `no rule "a"; did you mean ab?`,
		"rules: [{name: a, per: ip}]":                         "limits",
		"rules: [{name: a, per: ip, limits: [&l {rate: 5/s}]}, {name: b, per: ip, match: {path: /b}, limits: [*l]}]":                                                 "a is enforced already",
		"rules: [{name: b, per: ip, match: {path: /b}, limits: [&l {rate: 5/s, shadow: true}]}, {name: a, per: ip, limits: [*l]}]":                                   "line 1: this has a form",
		"rules: [{name: a, per: ip, limits: [{rate: 5/s, candidate: &c {rate: 3/s}}]}, {name: b, per: ip, match: {path: /b}, limits: [{rate: 9/s, candidate: *c}]}]": "by hand",
		"rules: [{name: a, per: ip, limits: [{rate: 5/s, candidate: {rate: >-\n  3/s\n  }}]}]":                                                                       "",
		"rules:\n- name: a\n  per: ip\n  limits:\n  - rate: >-\n      5/s\n    candidate: {rate: 3/s}\n":                                                             "line 5: ",
		"rules:\n- name: b\n  per: ip\n  match: {path: /b}\n  limits:\n  - &l {rate: 5/s, shadow: true}\n- name: a\n  per: ip\n  limits:\n  - *l\n":                  "line 10: ",
	} {
		_, err := Edit([]byte(text), "a", compile)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v; want %q in it, for\n%s", err, want, text)
		}
	}
}

// TestWarningsAreNew: a shadow that becomes a rule replaces another one, and promote says so.
func TestWarningsAreNew(t *testing.T) {
	result, err := Edit([]byte("rules:\n- {name: all, per: ip, limits: [{rate: 9/s}]}\n- {name: a, match: {path: /a}, per: {key: header X-API-Key}, shadow: true, limits: [{rate: 99/s}]}\n"), "a", compile)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range result.Warnings {
		t.Log(w)
	}
	if len(result.Warnings) == 0 {
		t.Error("there is no warning; want one about the rule that no longer applies")
	}
}

func TestDiffShowsTheLinesAround(t *testing.T) {
	before := "1\n2\n3\n4\n5\n6\n7\n8\n9"
	got := Diff("x", []byte(before), []byte(strings.Replace(before, "5\n", "five\n", 1)))
	if want := "--- x\n+++ x\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"; got != want {
		t.Errorf("the diff is\n%swant\n%s", got, want)
	}
}

// FuzzEdit: whatever the file, an edit makes a valid policy without the candidate, or fails.
func FuzzEdit(f *testing.F) {
	f.Add("rules:\n- {name: a, per: ip, limits: [{rate: 5/s, candidate: {rate: 3/s}, burst: 9}]}\n")
	f.Add("rules:\n- name: a\n  per: ip\n  shadow: true # x\n  limits:\n    - rate: '5/s'\n      candidate:\n        burst: 8\n")
	f.Add("\ufeffrules: [{name: a, per: \"ip\", limits: [{rate: 5/s, shadow: true # }\n}]}]")
	f.Fuzz(func(t *testing.T, text string) {
		result, err := Edit([]byte(text), "a", compile)
		if err != nil {
			return
		}
		p, err := compile(result.Text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, result.Text)
		}
		defer p.Close()
		for _, r := range p.Rules.Spec().Rules {
			for _, l := range r.Limits {
				if r.Name == "a" && (l.Shadow || l.Candidate != nil) {
					t.Errorf("the limit %s is not promoted in\n%s", l.FullName, result.Text)
				}
			}
		}
		Diff("x", []byte(text), result.Text)
	})
}
