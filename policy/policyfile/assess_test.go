package policyfile

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/jwttest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A testRequest is a request with these fields. The zero value is "GET /a" from 192.0.2.1.
type testRequest struct {
	method, host, path, address string
	header                      http.Header
	cookies, query              map[string][]string
	body                        int64
}

func (a testRequest) Lookup(kind policy.Kind, name string) []string {
	switch kind {
	case policy.KindMethod:
		return []string{cmp.Or(a.method, "GET")}
	case policy.KindHost:
		return []string{a.host}
	case policy.KindPath:
		return []string{cmp.Or(a.path, "/a")}
	case policy.KindHeader:
		return a.header[name]
	case policy.KindCookie:
		return a.cookies[name]
	case policy.KindQuery:
		return a.query[name]
	}
	return nil
}

func (a testRequest) HasHeader(func(string) bool) bool { return false }
func (a testRequest) BodySize() int64                  { return a.body }

func (a testRequest) Address() netip.Addr {
	if a.address == "unix" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(cmp.Or(a.address, "192.0.2.1"))
}

// with returns the request with further headers. The strings are names and values in turn.
func (a testRequest) with(headers ...string) testRequest {
	a.header = a.header.Clone()
	if a.header == nil {
		a.header = make(http.Header)
	}
	for i := 0; i < len(headers); i += 2 {
		a.header.Add(headers[i], headers[i+1])
	}
	return a
}

func (a testRequest) String() string {
	return fmt.Sprintf("%s %s%s from %s %v", cmp.Or(a.method, "GET"), a.host, cmp.Or(a.path, "/a"), cmp.Or(a.address, "192.0.2.1"), a.header)
}

// rulesOf compiles a policy of tests.
func rulesOf(t testing.TB, text string) *policy.Rules {
	t.Helper()
	return rulesIn(t, "policy.yaml", text)
}

// rulesIn compiles a policy as if it stood in a file, and returns its rules.
func rulesIn(t testing.TB, file, text string) *policy.Rules {
	t.Helper()
	return policyIn(t, file, text).Rules
}

// policyIn compiles a policy as if it stood in a file.
func policyIn(t testing.TB, file, text string) *Policy {
	t.Helper()
	config, err := parse(file, []byte(text), nil, allSections)
	if err != nil {
		t.Fatalf("the policy does not compile: %v\nThe policy is\n%s", err, text)
	}
	p, err := config.compile()
	if err != nil {
		t.Fatalf("the policy does not compile: %v\nThe policy is\n%s", err, text)
	}
	t.Cleanup(p.Close)
	return p
}

// hashed returns the form that a value of more than syntax.MaxKeyValue bytes has in a key.
func hashed(value string) string {
	sum := sha256.Sum256([]byte(value))
	return "#" + hex.EncodeToString(sum[:])
}

// write writes a file.
func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// accepts reports whether the rules accept a token.
func accepts(rules *policy.Rules, token string) bool {
	_, err := rules.Spec().Tokens.Verifier.Claims(token)
	return err == nil
}

// descriptionOf returns the description of rules.
func descriptionOf(rules *policy.Rules) string { return describe.Spec(rules.Spec()) }

// charged returns the charges of a request, as "rule.limit key cost".
func charged(rules *policy.Rules, a testRequest) []string {
	var v policy.Evaluation
	rules.Evaluate(a, &v)
	return chargesOf(&v)
}

// keyOf returns the key of the one charge of a request.
func keyOf(t testing.TB, rules *policy.Rules, a testRequest) string {
	t.Helper()
	var v policy.Evaluation
	rules.Evaluate(a, &v)
	if v.Ambiguous != "" {
		if len(v.Charges)+len(v.Matched)+len(v.Shadows) > 0 || v.ListMatch != policy.NotListed {
			t.Errorf("%v is malformed, and has %d charges, %d rules and the list match %d; want none of them", a, len(v.Charges), len(v.Matched), v.ListMatch)
		}
		return "malformed"
	}
	if len(v.Charges) != 1 {
		t.Fatalf("%v has %d charges; want 1", a, len(v.Charges))
	}
	return v.Charges[0].Key
}

// want compares the texts of two values.
func want[T any](t testing.TB, what any, got, want T) {
	t.Helper()
	if gotText, wantText := fmt.Sprint(got), fmt.Sprint(want); gotText != wantText {
		t.Errorf("%v: got\n\t%s\nwant\n\t%s", what, gotText, wantText)
	}
}

func TestMostSpecificRuleWins(t *testing.T) {
	const paths = `
exact      /users/me
file       /users/*.json
files      /users/report-*.json
user       /users/{id}
users      /users
below      /users/**
settings   /users/{id}/settings
mine       /users/me/**
root       /
slash      /users/
percent    /caf%C3%A9
semicolon  /a;v=1
star       /literal/%2A
deep       /{a}/{b}/{c}/{d}
rest       /**
`
	var text strings.Builder
	text.WriteString("rules:\n")
	lines := strings.Split(strings.TrimSpace(paths), "\n")
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	for _, line := range lines {
		name, path, _ := strings.Cut(line, " ")
		fmt.Fprintf(&text, "  - {name: %s, match: {path: '%s'}, per: global, limits: [{rate: 1/s}]}\n", name, strings.TrimSpace(path))
	}
	rules := rulesOf(t, text.String())
	rows := []struct{ path, wins string }{
		{"/users/me", "exact"},
		{"/users/a.json", "file"},
		{"/users/.json", "file"},
		{"/users/report-1.json", "files"},
		{"/users/report-.json", "files"},
		{"/users/you", "user"},
		{"/users/Me", "user"},
		{"/users", "users"},
		{"/users/", "slash"},
		{"/users/you/settings", "settings"},
		{"/users/you/settings/", "below"},
		{"/users/you/a", "below"},
		{"/users/me/a", "mine"},
		{"/users/me/settings", "mine"}, // me stands before {id}: the path is compared from left to right
		{"/users/me/", "mine"},
		{"/users/a.json/b", "below"},
		{"/", "root"},
		{"/caf%C3%A9", "percent"},
		{"/caf%c3%a9x", "rest"},
		{"/a;v=1", "semicolon"},
		{"/a", "rest"},
		{"/literal/*", "star"},
		{"/literal/x", "rest"},
		{"/a/b/c/d", "deep"},
		{"/a/b/c", "rest"},
		{"/a/b/c/", "rest"},
		{"/users/a/b/c", "below"},
		{"/usersx", "rest"},
	}
	for _, row := range rows {
		want(t, row.path, charged(rules, testRequest{path: row.path}), []string{row.wins + ".second global 1"})
	}
	t.Logf("counted: %d paths, each at one of %d patterns", len(rows), len(lines))
}

// A testPattern is a second implementation of matching: it uses a regular expression and compares
// character by character, unlike the compiler.
type testPattern struct {
	name, host, path string
	methods          []string
	needsGold        bool // whether it needs X-Plan: gold
}

func (p *testPattern) matches(a testRequest) bool {
	var s strings.Builder
	for _, part := range strings.Split(p.path[1:], "/") {
		switch {
		case part == "**":
			s.WriteString("(/.*)?")
		case part == "*" || part[0] == '{':
			s.WriteString("/[^/]+")
		default:
			s.WriteString("/" + strings.ReplaceAll(regexp.QuoteMeta(part), `\*`, "[^/]*"))
		}
	}
	domain, isWildcard := strings.CutPrefix(p.host, "*")
	return regexp.MustCompile("^"+s.String()+"$").MatchString(cmp.Or(a.path, "/a")) &&
		(p.host == "" || a.host == p.host || isWildcard && strings.HasSuffix(a.host, domain)) &&
		(p.methods == nil || slices.Contains(p.methods, cmp.Or(a.method, "GET"))) &&
		(!p.needsGold || a.header.Get("X-Plan") == "gold")
}

// rank returns a text for sorting: the most specific pattern has the lowest one. The text has five
// characters for the host, four for each segment, and one each for the methods and the header.
func (p *testPattern) rank() string {
	var s strings.Builder
	switch {
	case p.host == "":
		s.WriteString("c    ")
	case p.host[0] == '*':
		fmt.Fprintf(&s, "b%04d", 9999-len(p.host))
	default:
		s.WriteString("a    ")
	}
	for _, part := range strings.Split(p.path[1:], "/") {
		switch {
		case part == "**":
			s.WriteString("6   ")
		case part == "*":
			s.WriteString("4   ")
		case part[0] == '{':
			s.WriteString("3   ")
		case strings.Contains(part, "*"):
			fmt.Fprintf(&s, "2%03d", 999-len(part))
		default:
			s.WriteString("1   ")
		}
	}
	if !strings.HasSuffix(p.path, "**") {
		s.WriteString("5   ") // the end of the path
	}
	s.WriteString("|" + zeroIf(p.methods != nil) + zeroIf(p.needsGold))
	return s.String()
}

// zeroIf returns the digit that sorts first if isSet.
func zeroIf(isSet bool) string {
	if isSet {
		return "0"
	}
	return "1"
}

func (p *testPattern) yaml() string {
	match := "path: '" + p.path + "'"
	if p.host != "" {
		match += ", host: '" + p.host + "'"
	}
	if p.methods != nil {
		match += ", method: [" + strings.Join(p.methods, ", ") + "]"
	}
	if p.needsGold {
		match += ", header X-Plan: gold"
	}
	return fmt.Sprintf("  - {name: %s, match: {%s}, per: global, limits: [{rate: 1/s}]}\n", p.name, match)
}

func TestRulesAgreeWithASecondImplementation(t *testing.T) {
	effort.SkipUnderRace(t)
	seed := effort.Seed()
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	segment := func() string { return pick("a", "a", "b", "ab", "a*", "*b", "a*b", "{x}", "*") }
	tried := 0
	for range effort.Of(50, 300) {
		var text strings.Builder
		text.WriteString("rules:\n")
		var patterns []*testPattern
		for len(patterns) < 12 {
			p := &testPattern{
				name:      fmt.Sprintf("r%d", len(patterns)),
				host:      pick("", "", "a.example", "*.example", "*.b.example"),
				needsGold: r.IntN(4) == 0,
			}
			for depth := range r.IntN(3) + 1 {
				part := segment()
				if part == "{x}" {
					part = fmt.Sprintf("{x%d}", depth)
				}
				p.path += "/" + part
			}
			if r.IntN(3) == 0 {
				p.path += "/**"
			}
			if r.IntN(3) == 0 {
				p.methods = []string{pick("GET", "POST")}
			}
			// Two rules of one rank that match the same requests would be an error.
			if slices.ContainsFunc(patterns, func(other *testPattern) bool { return other.rank() == p.rank() }) {
				continue
			}
			patterns = append(patterns, p)
			text.WriteString(p.yaml())
		}
		rules := rulesOf(t, text.String())
		for range 100 {
			a := testRequest{method: pick("GET", "POST", "PUT"), host: pick("a.example", "x.b.example", "b.example", "other"), path: "/" + pick("a", "b", "ab", "axb", "c")}
			for range r.IntN(3) {
				a.path += "/" + pick("a", "b", "ab", "axb", "c")
			}
			if r.IntN(2) == 0 {
				a = a.with("X-Plan", "gold")
			}
			tried++
			var matching []*testPattern
			for _, p := range patterns {
				if p.matches(a) {
					matching = append(matching, p)
				}
			}
			slices.SortStableFunc(matching, func(p, q *testPattern) int { return strings.Compare(p.rank(), q.rank()) })
			var names []string
			for _, p := range matching {
				names = append(names, p.name)
			}
			var got []string
			for _, rule := range rules.Matching(a) {
				got = append(got, rule.Name)
			}
			if !slices.Equal(got, names) {
				t.Fatalf("seed %d: %v matches %v; want %v, in this order, by\n%s", seed, a, got, names, text.String())
			}
			var v policy.Evaluation
			rules.Evaluate(a, &v)
			if len(v.Matched) != min(1, len(names)) || len(names) > 0 && v.Matched[0].Name != names[0] {
				t.Fatalf("seed %d: %v: the rules %v apply; want only the first of %v, by\n%s", seed, a, v.Matched, names, text.String())
			}
		}
	}
	t.Logf("counted: %d requests at random rules (agreed with the definition)", tried)
}

func TestHosts(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - {name: any, per: global, limits: [{rate: 1/s}]}
  - {name: below, match: {host: "*.Example.com"}, per: global, limits: [{rate: 1/s}]}
  - {name: deeper, match: {host: "*.api.example.com"}, per: global, limits: [{rate: 1/s}]}
  - {name: named, match: {host: [api.example.com., "[2001:DB8::1]"]}, per: global, limits: [{rate: 1/s}]}
  - {name: path, match: {path: /exact}, per: global, limits: [{rate: 1/s}]}
`)
	for host, wins := range map[string]string{
		"api.example.com": "named", "www.example.com": "below", "v1.api.example.com": "deeper", "a.b.example.com": "below",
		"example.com": "any", "badexample.com": "any", ".example.com": "any", "": "any", "2001:db8::1": "named", "example.com.evil.net": "any",
	} {
		want(t, host, charged(rules, testRequest{host: host}), []string{wins + ".second global 1"})
		// The host counts before the path.
		if wins != "any" {
			want(t, host+"/exact", charged(rules, testRequest{host: host, path: "/exact"}), []string{wins + ".second global 1"})
		}
	}
	want(t, "other host", charged(rules, testRequest{host: "x", path: "/exact"}), []string{"path.second global 1"})
}

func TestRulesThatAlwaysApplyStandBesideTheMostSpecific(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - {name: specific, match: {path: /api/search}, per: global, limits: [{rate: 1/s}, {rate: 1/m}]}
  - {name: all, always: true, per: global, limits: [{rate: 1/h}]}
  - {name: api, match: {path: /api/**}, per: global, limits: [{rate: 1/s}]}
  - {name: posts, always: true, match: {method: POST}, per: global, limits: [{rate: 1/d}]}
`)
	want(t, "search", charged(rules, testRequest{path: "/api/search"}), []string{"specific.second global 1", "specific.minute global 1", "all.hour global 1"})
	want(t, "post", charged(rules, testRequest{path: "/api/x", method: "POST"}), []string{"all.hour global 1", "api.second global 1", "posts.day global 1"})
	want(t, "other", charged(rules, testRequest{path: "/"}), []string{"all.hour global 1"})
}

func TestApplyAllAppliesEveryRuleOnceInTheOrderOfTheFile(t *testing.T) {
	rules := rulesOf(t, `
apply: all
rules:
  - {name: c, match: {path: [/a, /a/**, "/{x}"]}, per: global, limits: [{rate: 1/s}]}
  - {name: a, match: {path: /a}, per: global, limits: [{rate: 2/s}, {rate: 5/m}]}
  - {name: b, match: {path: /b}, per: global, limits: [{rate: 3/s}]}
`)
	want(t, "/a", charged(rules, testRequest{path: "/a"}), []string{"c.second global 1", "a.second global 1", "a.minute global 1"})
	want(t, "/b", charged(rules, testRequest{path: "/b"}), []string{"c.second global 1", "b.second global 1"})
}

func TestUnlimitedStopsLessSpecificRules(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - {name: health, match: {path: /health}, unlimited: true}
  - {name: rest, per: global, limits: [{rate: 1/s}]}
`)
	want(t, "/health", charged(rules, testRequest{path: "/health"}), nil)
	want(t, "/healthy", charged(rules, testRequest{path: "/healthy"}), []string{"rest.second global 1"})
}

func TestShadowRulesReplaceNoOtherRules(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - {name: enforced, match: {path: /api/**}, per: global, limits: [{rate: 10/s}]}
  - {name: tighter, shadow: true, match: {path: /api/**}, per: global, limits: [{rate: 5/s}, {rate: 50/m}]}
  - {name: closer, shadow: true, match: {path: /api/search}, per: global, limits: [{rate: 1/s}]}
  - {name: wider, shadow: true, per: global, limits: [{rate: 1/s}]}
`)
	for _, row := range []struct{ path, charges, shadows string }{
		{path: "/api/x", charges: "[enforced.second global 1]", shadows: "[tighter.second tighter.minute]"},
		{path: "/api/search", charges: "[enforced.second global 1]", shadows: "[closer.second]"},
		{path: "/", charges: "[]", shadows: "[wider.second]"},
	} {
		want(t, row.path, fmt.Sprint(charged(rules, testRequest{path: row.path})), row.charges)
		var v policy.Evaluation
		rules.Evaluate(testRequest{path: row.path}, &v)
		var shadows []string
		for _, shadow := range v.Shadows {
			for _, l := range shadow.Limits {
				shadows = append(shadows, l.FullName)
			}
		}
		want(t, row.path, fmt.Sprint(shadows), row.shadows)
		if len(v.Shadows) != 1 {
			t.Errorf("%s: the limits of a shadow rule are in %d batches; want one", row.path, len(v.Shadows))
		}
	}
}

func TestDenyCountsBeforeAllowBeforeRules(t *testing.T) {
	rules := rulesOf(t, `
allow: [{ip: 10.0.0.0/8}, {header X-Internal: "yes", method: GET}]
deny: [{ip: 10.6.6.6}, {header X-Key: [stolen, leaked]}]
rules: [{name: a, per: global, limits: [{rate: 1/s}]}]
`)
	for _, row := range []struct {
		request testRequest
		want    policy.ListMatch
	}{
		{testRequest{}, policy.NotListed},
		{testRequest{address: "10.1.2.3"}, policy.AllowListed},
		{testRequest{address: "::ffff:10.1.2.3"}, policy.AllowListed},
		{testRequest{address: "10.6.6.6"}, policy.DenyListed},
		{testRequest{address: "unix"}, policy.NotListed},
		{testRequest{}.with("X-Internal", "yes"), policy.AllowListed},
		{testRequest{method: "POST"}.with("X-Internal", "yes"), policy.NotListed},
		{testRequest{}.with("X-Internal", "Yes"), policy.NotListed},
		{testRequest{}.with("X-Key", "leaked"), policy.DenyListed},
	} {
		var v policy.Evaluation
		rules.Evaluate(row.request, &v)
		if v.ListMatch != row.want || (v.ListMatch == policy.NotListed) != (len(v.Charges) == 1) {
			t.Errorf("%v has the list match %d and %d charges; want the list match %d, and one charge only if no list matches", row.request, v.ListMatch, len(v.Charges), row.want)
		}
	}
}

func TestListsComeFromFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"blocked.txt": "\ufeff# bots\r\n10.6.6.6\r\n\r\n2001:db8::/32   # a network\r\n",
		"keys.txt":    "alpha\nbeta\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := policyIn(t, filepath.Join(dir, "policy.yaml"), `
deny: [{ip: {file: blocked.txt}}]
tiers: {partner: {header X-Key: {file: keys.txt}}, free: default}
rules: [{name: a, per: global, limits: [{rate: {partner: 10/s, free: 1/s}}]}]
`)
	rules := p.Rules
	for address, listed := range map[string]policy.ListMatch{"10.6.6.6": policy.DenyListed, "2001:db8:1::1": policy.DenyListed, "10.6.6.7": policy.NotListed} {
		var v policy.Evaluation
		rules.Evaluate(testRequest{address: address}, &v)
		want(t, address, v.ListMatch, listed)
	}
	var v policy.Evaluation
	rules.Evaluate(testRequest{}.with("X-Key", "beta"), &v)
	want(t, "beta", v.Tier, "partner")
	want(t, "files", len(p.Files), 3)
}

// A list in another encoding, or with other ends of lines, would match no client.
func TestListsInOtherEncodingsAreMistakes(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"\xff\xfe1\x000\x00.\x006\x00.\x006\x00.\x006\x00\n\x00": "bad.txt is not text in UTF-8; convert it, for example by iconv -f UTF-16 -t UTF-8", // UTF-16
		"1\x000\x00.\x006\x00.\x006\x00.\x006\x00\n\x00":         "bad.txt is not text in UTF-8",                                                      // UTF-16 without its mark
		"caf\xe9\n":                 "bad.txt is not text in UTF-8", // Latin-1
		"10.6.6.6\n# a\r10.6.6.7\n": "bad.txt:2: lines end with CR alone; end them with LF or CR LF",
		"10.6.6.6\r10.6.6.7\r":      "bad.txt:1: lines end with CR alone; end them with LF or CR LF",
		"caf\u00e9\r\n10.6.6.6\r":   "", // the last line may end with anything
	} {
		write(t, dir+"/bad.txt", text)
		err := mistakesOf(dir+"/policy.yaml", aRule+"\ndeny: {header X-Key: {file: bad.txt}}\n", nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the list %q has the error %v; want %q", text, err, want)
		}
	}
}

// A list may have lines that no request matches, because a program wrote them in another format.
func TestListsWithOddLinesHaveAWarning(t *testing.T) {
	dir := t.TempDir()
	const why = ", so it probably matches no client; write one value per line, as clients send it"
	for text, want := range map[string]string{
		"a1\na\u200b2\n":                    "list.txt:2: the value has the invisible character U+200B" + why,
		"\ufeffa1\n":                        "", // a byte order mark at the start of a file
		"a1\n\ufeffa2\n":                    "list.txt:2: the value has the invisible character U+FEFF" + why,
		"a1,\na2,\n# b,\n":                  "list.txt:1: the value has a comma" + why + "; this occurs in 2 places",
		"a1,a2\n":                           "list.txt:1: the value has a comma" + why,
		"\"a1\"\n":                          "list.txt:1: the value is in quotes" + why,
		"'a1'\n":                            "list.txt:1: the value is in quotes" + why,
		"caf\u00e9\na b\nO'Neil\n'\n":       "",
		"Mozilla/5.0 (KHTML, like Gecko)\n": "",
	} {
		write(t, dir+"/list.txt", text)
		for _, list := range []string{"deny", "allow"} {
			write(t, dir+"/policy.yaml", aRule+"\n"+list+": {header X-Key: {file: list.txt}}\n")
			p, err := Load(dir+"/policy.yaml", Options{})
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			if !hasOnly(p.Warnings, want) {
				t.Errorf("with the %s list %q the warnings are %v; want %q", list, text, p.Warnings, want)
			}
		}
	}
	// The key of an all_of has a comma.
	write(t, dir+"/list.txt", "key:a,device:b\n")
	write(t, dir+"/policy.yaml", aRule+"\nidentities: {both: {all_of: [{key: header X-Key}, {device: header X-Device}]}}\ndeny: {both: {file: list.txt}}\n")
	p, err := Load(dir+"/policy.yaml", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if !hasOnly(p.Warnings, "") {
		t.Errorf("with a whole key in the list, the warnings are %v; want none", p.Warnings)
	}
}

func TestKeysOfRequests(t *testing.T) {
	rules := rulesOf(t, `
identities:
  rider:
    first_of:
      - key: header X-API-Key
      - user: {header X-User: [alice, bob]}
      - session: cookie sid
      - token: query access_token
      - ip
rules: [{name: a, per: rider, limits: [{rate: 1/s}]}]
`)
	long := strings.Repeat("a", syntax.MaxKeyValue+1)
	rows := []struct {
		request testRequest
		key     string
	}{
		{testRequest{}, "ip:192.0.2.1"},
		{testRequest{address: "2001:db8:1:2:3:4:5:6"}, "ip:2001:db8:1:2::/64"},
		{testRequest{address: "::ffff:192.0.2.1"}, "ip:192.0.2.1"},
		{testRequest{address: "unix"}, "ip:unix"},
		{testRequest{}.with("X-Api-Key", "abc"), "key:abc"},
		{testRequest{}.with("X-Api-Key", "abc", "X-User", "alice"), "key:abc"},
		{testRequest{}.with("X-Api-Key", "", "X-User", "alice"), "user:alice"},
		{testRequest{}.with("X-User", "mallory"), "ip:192.0.2.1"},                 // not one of the listed values
		{testRequest{}.with("X-Api-Key", "a", "X-Api-Key", "b"), "malformed"},     // sent twice: ambiguous
		{testRequest{}.with("X-Api-Key", "a", "X-Api-Key", "a"), "malformed"},     // even if both agree
		{testRequest{}.with("X-User", "alice", "X-User", "mallory"), "malformed"}, // a listed value and another one
		{testRequest{}.with("X-Api-Key", "a,user:bob"), "malformed"},              // a list
		{testRequest{}.with("X-Api-Key", " a"), "malformed"},
		{testRequest{}.with("X-Api-Key", "a\tb"), "malformed"},
		{testRequest{}.with("X-Api-Key", "a\xa0"), "malformed"}, // some decoders read it as a space
		{testRequest{}.with("X-Api-Key", "a\u00a0"), "malformed"},
		{testRequest{query: map[string][]string{"access_token": {"t", "t"}}}, "malformed"},
		{testRequest{query: map[string][]string{"access_token": {"t\x00"}}}, "malformed"},
		{testRequest{query: map[string][]string{"access_token": {"a,b"}}}, "token:a%2Cb"},
		{testRequest{cookies: map[string][]string{"sid": {"s1", "s2"}}}, "malformed"},
		{testRequest{cookies: map[string][]string{"sid": {"%731"}}}, "session:s1"},
		{testRequest{cookies: map[string][]string{"sid": {"s1"}}}.with("X-Api-Key", "k", "Cookie", "a", "Cookie", "b"), "key:k"}, // a malformed value that no identity uses
		{testRequest{}.with("X-Api-Key", "ip:10.0.0.1"), "key:ip:10.0.0.1"},                                                      // a value that looks like another identity's key
		{testRequest{}.with("X-Api-Key", "unknown"), "key:unknown"},
		{testRequest{}.with("X-Api-Key", "a bé%"), "key:a%20b%C3%A9%25"},
		{testRequest{}.with("X-Api-Key", long[:syntax.MaxKeyValue]), "key:" + long[:syntax.MaxKeyValue]},
		{testRequest{}.with("X-Api-Key", long), "key:" + hashed(long)},
		{testRequest{}.with("X-Api-Key", hashed(long)), "key:%23" + hashed(long)[1:]}, // a value that looks like a hash is not one
		{testRequest{cookies: map[string][]string{"sid": {"s1"}}}, "session:s1"},
		{testRequest{query: map[string][]string{"access_token": {"t1"}}}, "token:t1"},
		{testRequest{query: map[string][]string{"access_token": {""}}}, "ip:192.0.2.1"},
		{testRequest{cookies: map[string][]string{"sid": {"s1"}}}.with("X-User", "bob"), "user:bob"},
	}
	for _, row := range rows {
		want(t, row.request, keyOf(t, rules, row.request), row.key)
	}
	t.Logf("counted: %d requests and their keys", len(rows))
}

func TestRequestsWithoutIdentityShareACounter(t *testing.T) {
	rules := rulesOf(t, `
rules: [{name: a, per: {first_of: [{key: header X-Key}, {user: header X-User}]}, limits: [{rate: 1/s}]}]
`)
	want(t, "no identity", keyOf(t, rules, testRequest{}), "unknown")
	want(t, "a header that is sent twice", keyOf(t, rules, testRequest{}.with("X-Key", "a", "X-Key", "b")), "malformed")
	want(t, "a key with this value", keyOf(t, rules, testRequest{}.with("X-Key", "unknown")), "key:unknown")
}

func TestKeysOfCombinedIdentities(t *testing.T) {
	rules := rulesOf(t, `
identities:
  who: {first_of: [{key: header X-Key}, {user: header X-User}]}
rules:
  - {name: a, match: {path: "/{shop}/**"}, per: {all_of: [who, {shop: segment shop}, {m: method}, global]}, limits: [{rate: 1/s}]}
  - {name: b, match: {path: /pair}, per: {all_of: [who, {device: header X-Device}]}, limits: [{rate: 1/s}]}
`)
	for _, row := range []struct {
		request testRequest
		key     string
	}{
		{testRequest{path: "/s1/x"}.with("X-Key", "k"), "key:k,shop:s1,m:GET,global"},
		{testRequest{path: "/s1"}, "key:,shop:s1,m:GET,global"},
		{testRequest{path: "/a,b/x"}.with("X-User", "u"), "user:u,shop:a%2Cb,m:GET,global"},
		{testRequest{path: "/pair"}.with("X-Key", "k", "X-Device", "d"), "key:k,device:d"},
		{testRequest{path: "/pair"}.with("X-Key", "k"), "key:k,device:"},
		{testRequest{path: "/pair"}.with("X-Device", "d"), "key:,device:d"},
		{testRequest{path: "/pair"}, "unknown"},
	} {
		want(t, row.request, keyOf(t, rules, row.request), row.key)
	}
}

// Clients with different identities never share a key.
func TestNoTwoClientsShareAKey(t *testing.T) {
	effort.SkipUnderRace(t)
	rules := rulesOf(t, `
rules: [{name: a, per: {first_of: [{all_of: [{a: query A}, {first_of: [{b: query B}, {c: query C}]}]}, ip]}, limits: [{rate: 1/s}]}]
`)
	long := strings.Repeat("x", 200)
	values := []string{"", "a:", "b:", ",", "%", "%2C", "#", ":", " ", "a", "b:a", ",b:a", "a,b:", "é", "\xff", long, long + "y", hashed(long), "unknown", "global", "ip:192.0.2.1"}
	for _, x := range "ab:,%#" {
		for _, y := range "ab:,%#2C" {
			values = append(values, string(x)+string(y), string(x)+"b:"+string(y))
		}
	}
	slices.Sort(values)
	values = slices.Compact(values)
	clientOf := make(map[string]string) // by key
	compared := 0
	for _, a := range values {
		for _, other := range values {
			for _, otherName := range []string{"B", "C"} {
				client := fmt.Sprintf("A=%q %s=%q", a, otherName, other)
				switch {
				case other == "" && a == "":
					client = "nobody"
				case other == "":
					client = fmt.Sprintf("A=%q", a)
				}
				key := keyOf(t, rules, testRequest{query: map[string][]string{"A": {a}, otherName: {other}}})
				if key == "malformed" {
					continue
				}
				if before, ok := clientOf[key]; ok && before != client {
					t.Fatalf("%s and %s share the key %q; want different keys", client, before, key)
				}
				clientOf[key] = client
				compared++
			}
		}
	}
	t.Logf("counted: %d clients, of which no two share a key", compared)
}

func TestTiers(t *testing.T) {
	effort.SkipUnderRace(t)
	issuer := jwttest.Pairs()["HS256"][0].([]byte)
	rules := rulesOf(t, `
tokens: {secret: "`+string(issuer)+`", audience: rides, issuer: i}
identities: {key: {key: header X-Key}}
tiers:
  staff: [{claim roles: [admin, support]}, {ip: 10.0.0.0/8}]
  premium: {header X-Plan: [premium, gold]}
  partner: {key: ["key:p1", "key:p2"]}
  blocked: {host: "*", claim scope: none}
  free: default
rules:
  - {name: a, match: {path: /a}, per: global, limits: [{rate: {staff: 1000/s, premium: 100/s, default: 10/s}, burst: {premium: 300, partner: 40}}]}
  - {name: b, match: {path: /b, tier: [free, partner]}, per: {tier: tier}, limits: [{in_flight: {default: 5}}]}
`)
	token := func(payload string) string {
		return "Bearer " + jwttest.Sign("HS256", issuer, `{"alg":"HS256"}`, `{"aud":"rides","iss":"i","exp":`+fmt.Sprint(time.Now().Add(time.Hour).Unix())+payload+`}`)
	}
	for _, row := range []struct {
		request     testRequest
		tier        string
		rate, burst int64
	}{
		{request: testRequest{}, tier: "free", rate: 10},
		{request: testRequest{address: "10.1.1.1"}, tier: "staff", rate: 1000},
		{request: testRequest{}.with("Authorization", token(`,"roles":["user","support"]`)), tier: "staff", rate: 1000},
		{request: testRequest{}.with("Authorization", token(`,"roles":"admin"`)), tier: "staff", rate: 1000},
		{request: testRequest{}.with("Authorization", token(`,"roles":["user"]`)), tier: "free", rate: 10},
		{request: testRequest{}.with("Authorization", token(`,"roles":["admin"]`)+"x"), tier: "free", rate: 10}, // forged
		{request: testRequest{}.with("X-Plan", "gold"), tier: "premium", rate: 100, burst: 300},
		{request: testRequest{address: "10.1.1.1"}.with("X-Plan", "gold"), tier: "staff", rate: 1000}, // the first matching tier applies
		{request: testRequest{}.with("X-Key", "p2"), tier: "partner", rate: 10, burst: 40},
		{request: testRequest{}.with("X-Key", "p3"), tier: "free", rate: 10},
	} {
		var v policy.Evaluation
		rules.Evaluate(row.request, &v)
		charged := v.Charges[0].Plan.Limit()
		want(t, fmt.Sprint(row.request, ": tier, rate and burst"), fmt.Sprint(v.Tier, charged.Count, charged.Burst), fmt.Sprint(row.tier, row.rate, row.burst))
	}
	want(t, "tier as key", keyOf(t, rules, testRequest{path: "/b"}), "tier:free")
	want(t, "tier as key", keyOf(t, rules, testRequest{path: "/b"}.with("X-Key", "p1")), "tier:partner")
	want(t, "tier that is not matched", charged(rules, testRequest{path: "/b"}.with("X-Plan", "gold")), nil)
}

func TestCosts(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - name: a
    per: global
    limits:
      - {name: fixed, rate: 100/s, cost: 7}
      - {name: free, rate: 100/s, cost: 0}
      - {name: method, rate: 100/s, cost: {methods: {get: 0, POST: 5, default: 2}}}
      - {name: method-default, rate: 100/s, cost: {methods: {POST: 5}}}
      - {name: header, rate: 100/s, cost: {header: x-cost, min: 2, max: 50}}
      - {name: body, rate: 100/s, cost: {body: 1KB}}
      - {name: body-min, rate: 100/s, cost: {body: 1KB, min: 3}}
      - {name: body-byte, rate: 100/s, cost: {body: 1}}
`)
	cost := func(a testRequest) map[string]int64 {
		var v policy.Evaluation
		rules.Evaluate(a, &v)
		costs := make(map[string]int64)
		for i, c := range v.Charges {
			costs[v.Limits[i].Name] = c.Cost
		}
		if err := penstock.Check(v.Charges); err != nil {
			t.Errorf("stores reject the charges of %v: %v", a, err)
		}
		return costs
	}
	checked := 0
	check := func(a testRequest, name string, units int64) {
		t.Helper()
		checked++
		want(t, fmt.Sprintf("%v, body %d, %s", a, a.body, name), cost(a)[name], units)
	}
	check(testRequest{}, "fixed", 7)
	check(testRequest{}, "free", 0)
	for method, units := range map[string]int64{"GET": 0, "POST": 5, "PUT": 2, "get": 2, "BREW": 2} {
		check(testRequest{method: method}, "method", units)
	}
	check(testRequest{method: "GET"}, "method-default", 1)
	check(testRequest{method: "POST"}, "method-default", 5)
	for value, units := range map[string]int64{
		"10": 10, "50": 50, "51": 50, "1": 2, "0": 2, "-5": 2, "": 50, "ten": 50, "1e3": 50, "7.5": 50, " 7": 50, "+7": 7, "007": 7,
		"9223372036854775807": 50, "99999999999999999999": 50, "-9223372036854775808": 2, "10\x00": 50, "10,10": 50, "0x10": 50,
	} {
		check(testRequest{}.with("X-Cost", value), "header", units)
	}
	check(testRequest{}, "header", 2)
	check(testRequest{}.with("X-Cost", "9", "X-Cost", "9"), "header", 50) // a header that is sent twice costs the maximum
	for size, units := range map[int64]int64{0: 1, 1: 1, 1023: 1, 1024: 1, 1025: 2, 10 << 10: 10, -1: 1} {
		check(testRequest{body: size}, "body", units)
		check(testRequest{body: size}, "body-min", max(units, 3))
	}
	check(testRequest{body: 1<<63 - 1}, "body-byte", penstock.MaxCost) // the cost is bounded, whatever size the client claims
	t.Logf("counted: %d costs of requests", checked)
}

func TestOnStatusSelectsTheChargedResponses(t *testing.T) {
	rules := rulesOf(t, `
rules: [{name: a, per: global, limits: [{rate: 5/m, on_status: [401, 5xx, 410-412]}]}]
`)
	s := rules.Spec().Rules[0].Limits[0].Status
	for status := range 1000 {
		isListed := status == 401 || status >= 500 && status < 600 || status >= 410 && status <= 412
		if s.Has(status) != isListed {
			t.Errorf("status %d is charged: %t; want %t", status, !isListed, isListed)
		}
	}
	if s.Has(-1) || s.Has(1<<40) {
		t.Error("an invalid status is charged; want that it is not")
	}
}

func TestEvaluationCanBeReused(t *testing.T) {
	rules := rulesOf(t, richPolicy)
	seed := effort.Seed()
	r := rand.New(rand.NewPCG(seed, 2))
	var again policy.Evaluation
	for i := range 3000 {
		a := randomRequest(r)
		var fresh policy.Evaluation
		rules.Evaluate(a, &fresh)
		rules.Evaluate(a, &again)
		if got, want := formatEvaluation(&again), formatEvaluation(&fresh); got != want {
			t.Fatalf("seed %d, request %d, %v: a reused evaluation is\n%s\nwant that of a new one\n%s", seed, i, a, got, want)
		}
	}
	t.Logf("counted: %d requests with a reused evaluation", 3000)
}

func TestRulesAreSharedByGoroutines(t *testing.T) {
	rules := rulesOf(t, richPolicy)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			var v policy.Evaluation
			for range 300 {
				rules.Evaluate(randomRequest(r), &v)
			}
		})
	}
	all.Wait()
}

const richPolicy = `
identities:
  rider: {first_of: [{key: header X-Key}, {user: header X-User}, ip]}
tiers:
  premium: [{header X-Plan: premium}, {ip: 10.0.0.0/8}]
  free: default
allow: [{ip: 10.9.0.0/16}]
deny: [{rider: "user:mallory"}]
rules:
  - {name: all, always: true, per: global, limits: [{in_flight: 100}]}
  - name: shops
    match: {path: "/shops/{shop}/**"}
    per: {all_of: [rider, {shop: segment shop}]}
    limits:
      - {rate: {premium: 100/s, free: 10/s}, burst: {premium: 500}, max_wait: 2s, candidate: {rate: 20/s}}
      - {name: month, rate: {premium: 1M per calendar month, free: 1000 per calendar month}, timezone: Europe/Berlin, shadow: true}
  - {name: login, match: {method: POST, path: /login}, per: ip, limits: [{rate: 5/m, algorithm: sliding-log, on_status: 401, deny_cache_ttl: 5s, on_failure: open, ceiling: 9/s}]}
  - {name: upload, match: {method: [POST, PUT], path: /files/*}, per: rider, limits: [{rate: 100/s, algorithm: leaky-bucket, burst: 200, cost: {body: 64KB}}]}
  - {name: trial, shadow: true, match: {path: /files/**}, per: rider, limits: [{rate: 1/s}, {in_flight: 2}]}
  - {name: health, match: {path: /health}, unlimited: true}
`

func randomRequest(r *rand.Rand) testRequest {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	a := testRequest{method: pick("GET", "POST", "PUT"), path: pick("/", "/shops/s1", "/shops/s2/x", "/login", "/files/a", "/files/a/b", "/health", "*", ""),
		address: pick("192.0.2.1", "10.1.1.1", "10.9.1.1", "2001:db8::1", "unix"), body: r.Int64N(1 << 20)}
	for _, name := range []string{"X-Key", "X-User", "X-Plan"} {
		for range r.IntN(3) {
			a = a.with(name, pick("a", "b", "mallory", "premium", ""))
		}
	}
	return a
}

// formatEvaluation formats an evaluation without its holders, which are random.
func formatEvaluation(v *policy.Evaluation) string {
	var s strings.Builder
	fmt.Fprintln(&s, v.ListMatch, v.Tier)
	for _, rule := range v.Matched {
		fmt.Fprintln(&s, rule.Name)
	}
	charges := func(list []penstock.Charge, limits []*policy.Limit) {
		for i, c := range list {
			fmt.Fprintln(&s, limits[i].FullName, c.Key, c.Cost, c.Patience, c.Plan.String(), c.Holder != "")
		}
	}
	charges(v.Charges, v.Limits)
	for _, shadow := range v.Shadows {
		fmt.Fprintln(&s, "shadow", shadow.Candidate)
		charges(shadow.Charges, shadow.Limits)
	}
	return s.String()
}

// decide charges a request in a store. It returns whether the request is allowed, and how many
// units of the request's first limit are left.
func decide(t *testing.T, store penstock.Store, rules *policy.Rules, a testRequest) (allowed bool, remaining int64) {
	t.Helper()
	var v policy.Evaluation
	rules.Evaluate(a, &v)
	d, err := store.Decide(context.Background(), v.Charges)
	if err != nil {
		t.Fatal(err)
	}
	return d.Allowed, d.Status(0).Remaining
}

func TestChangingALimitInTheFileKeepsWhatWasUsed(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	file := func(rate, more string) *policy.Rules {
		return rulesOf(t, "rules: [{name: a, per: {key: header X-Key}, limits: [{name: main, rate: "+rate+more+"}]}]")
	}
	a := testRequest{}.with("X-Key", "k")
	before := file("10/h", ", algorithm: fixed-window")
	for range 7 {
		decide(t, store, before, a)
	}
	_, left := decide(t, store, file("20/h", ", algorithm: fixed-window"), a)
	want(t, "raised to 20 after 8", left, 12)
	allowed, _ := decide(t, store, file("5/h", ", algorithm: fixed-window"), a)
	want(t, "lowered to 5 after 8", allowed, false)
	_, left = decide(t, store, file("20/h", ", algorithm: fixed-window, cost: 2"), a)
	want(t, "with a higher cost", left, 10)
	_, left = decide(t, store, file("20/h", ""), a)
	want(t, "with another algorithm", left, 19)
	other := rulesOf(t, "rules: [{name: b, per: {key: header X-Key}, limits: [{name: main, rate: 20/h, algorithm: fixed-window}]}]")
	_, left = decide(t, store, other, a)
	want(t, "of a rule with another name", left, 19)
}

func TestATierUpgradeKeepsWhatWasUsed(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	rules := rulesOf(t, `
tiers: {premium: {header X-Plan: premium}, free: default}
rules:
  - {name: a, match: {path: /bucket}, per: {key: header X-Key}, limits: [{rate: {free: 10/h, premium: 100/h}}]}
  - {name: b, match: {path: /window}, per: {key: header X-Key}, limits: [{rate: {free: 10/h, premium: 100/d}, algorithm: anchored-window}]}
  - {name: c, match: {path: /month}, per: {key: header X-Key}, limits: [{rate: {free: 10 per calendar month, premium: 100 per calendar month}}]}
`)
	for _, path := range []string{"/bucket", "/window", "/month"} {
		a := testRequest{path: path}.with("X-Key", "k")
		for range 10 {
			decide(t, store, rules, a)
		}
		allowed, _ := decide(t, store, rules, a)
		want(t, path+": the 11th", allowed, false)
		allowed, left := decide(t, store, rules, a.with("X-Plan", "premium"))
		want(t, path+": after the upgrade", fmt.Sprint(allowed, left), "true 89")
		allowed, _ = decide(t, store, rules, a)
		want(t, path+": after going back", allowed, false)
	}
}

func TestCandidatesHaveCountersOfTheirOwn(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	rules := rulesOf(t, `
rules: [{name: a, per: {key: header X-Key}, limits: [{rate: 10/h, cost: 2, candidate: {rate: 6/h}}]}]
`)
	a := testRequest{}.with("X-Key", "k")
	var enforced, tried []bool
	for range 6 {
		var v policy.Evaluation
		rules.Evaluate(a, &v)
		for _, batch := range []struct {
			charges []penstock.Charge
			allowed *[]bool
		}{{v.Charges, &enforced}, {v.Shadows[0].Charges, &tried}} {
			d, err := store.Decide(context.Background(), batch.charges)
			if err != nil {
				t.Fatal(err)
			}
			*batch.allowed = append(*batch.allowed, d.Allowed)
		}
	}
	want(t, "limit", enforced, []bool{true, true, true, true, true, false})
	want(t, "candidate", tried, []bool{true, true, true, false, false, false})
}

func TestCandidateInheritsFromItsLimit(t *testing.T) {
	rows := []struct{ limit, candidate, want string }{
		{limit: "rate: 10/s, burst: 30", candidate: "rate: 20/s", want: "second.candidate: 20 per 1s, burst 30 (token-bucket)"},
		{limit: "rate: 10/s, burst: 30", candidate: "burst: 40", want: "second.candidate: 10 per 1s, burst 40 (token-bucket)"},
		{limit: "rate: 10/s, burst: 30", candidate: "algorithm: fixed-window", want: "second.candidate: 10 per 1s (fixed-window)"},
		{limit: "rate: 10/s, algorithm: sliding-window", candidate: "rate: 20/s", want: "second.candidate: 20 per 1s (sliding-window)"},
		{limit: "rate: 10/m, algorithm: sub-window, sub_windows: 6", candidate: "rate: 20/m", want: "minute.candidate: 20 per 1m (sub-window) ||||||"}, // a bar for each sub-window
		{limit: "rate: 10/m, algorithm: sub-window, sub_windows: 6", candidate: "algorithm: token-bucket", want: "minute.candidate: 10 per 1m (token-bucket)"},
		{limit: "in_flight: 10, ttl: 30s", candidate: "in_flight: 20", want: "in-flight.candidate: 20 per 30s, burst 20 (in_flight)"},
		{limit: "rate: 10 per calendar day, timezone: Europe/Berlin", candidate: "rate: 20 per calendar day", want: "calendar-day.candidate: 20 per calendar day (calendar-window) Europe/Berlin"},
		{limit: "rate: 10 per calendar day, timezone: Europe/Berlin", candidate: "rate: 20/d", want: "calendar-day.candidate: 20 per 24h (token-bucket)"},
		{limit: "rate: 10/d, algorithm: fixed-window", candidate: "rate: 20 per calendar day", want: "day.candidate: 20 per calendar day (calendar-window) UTC"},
	}
	for _, row := range rows {
		rules := rulesOf(t, "rules: [{name: a, per: global, limits: [{"+row.limit+", candidate: {"+row.candidate+"}}]}]")
		candidate := rules.Spec().Rules[0].Limits[0].Candidate
		want(t, row.limit+" / "+row.candidate, strings.TrimSpace(candidate.Variants[0].String()+" "+candidate.Timezone+strings.Repeat("|", candidate.SubWindows)), row.want)
	}
}

// The patience of a candidate's charge is at most what the candidate's algorithm supports. The
// charge has a holder exactly if the algorithm needs one to refund a turn in its queue.
func TestCandidateIsChargedAsIfEnforced(t *testing.T) {
	rows := []struct {
		limit, candidate string
		patience         time.Duration
		hasHolder        bool
	}{
		{limit: "rate: 1/min, max_wait: 1m", candidate: "rate: 2/min", patience: time.Minute},
		{limit: "rate: 1/min, max_wait: 1h", candidate: "rate: 999999937/s", patience: 2251799 * time.Microsecond}, // the bound of Plan.MaxPatience: 2^51 divided by the rate
		{limit: "rate: 1/min, max_wait: 1m", candidate: "algorithm: fixed-window"},
		{limit: "rate: 1/min, max_wait: 1m", candidate: "algorithm: leaky-bucket, burst: 5", patience: time.Minute, hasHolder: true},
		{limit: "rate: 1/min, max_wait: 1m, algorithm: leaky-bucket, burst: 1", candidate: "algorithm: token-bucket, burst: 1", patience: time.Minute},
	}
	for _, row := range rows {
		rules := rulesOf(t, "rules: [{name: a, per: global, limits: [{"+row.limit+", candidate: {"+row.candidate+"}}]}]")
		var v policy.Evaluation
		rules.Evaluate(testRequest{}, &v)
		c := v.Shadows[0].Charges[0]
		want(t, row.limit+" / "+row.candidate, []any{c.Patience, c.Holder != ""}, []any{row.patience, row.hasHolder})
		if err := penstock.Check(v.Shadows[0].Charges); err != nil {
			t.Errorf("%s / %s: stores reject the shadow: %v", row.limit, row.candidate, err)
		}
	}
	t.Logf("counted: %d candidates", len(rows))
}

func TestCandidateMayHaveOtherWindows(t *testing.T) {
	for _, row := range [][2]string{{"fixed-window", "anchored-window"}, {"anchored-window", "fixed-window"}} {
		rules := rulesOf(t, "rules: [{name: a, per: global, limits: [{rate: 10/d, algorithm: "+row[0]+", candidate: {algorithm: "+row[1]+"}}]}]")
		want(t, row, rules.Spec().Rules[0].Limits[0].Variants[0].Algorithm().Title(), row[0])
		want(t, row, rules.Spec().Rules[0].Limits[0].Candidate.Variants[0].Algorithm().Title(), row[1])
	}
}

// "*" matches any value, but a request without the header does not match.
func TestAnyValueOfAnIdentityNeedsAValue(t *testing.T) {
	rules := rulesOf(t, `
identities: {member: {member: header X-Member}}
tiers: {members: {member: "*"}, nobody: {member: unknown}, others: default}
rules: [{name: a, per: {tier: tier}, limits: [{rate: 1/s}]}]
`)
	want(t, "with the header", keyOf(t, rules, testRequest{}.with("X-Member", "m")), "tier:members")
	want(t, "with the value unknown", keyOf(t, rules, testRequest{}.with("X-Member", "unknown")), "tier:members")
	want(t, "without the header", keyOf(t, rules, testRequest{}), "tier:nobody")
	want(t, "with the header twice", keyOf(t, rules, testRequest{}.with("X-Member", "m", "X-Member", "m")), "malformed")
}

// A HEAD request costs a server as much as GET, so limits for GET apply to it too.
func TestHeadIsLimitedAsGet(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - {name: any, per: global, limits: [{rate: 1/s}]}
  - {name: get, match: {method: GET, path: /a}, per: global, limits: [{rate: 10/s, cost: {methods: {GET: 3, default: 7}}}]}
  - {name: other, match: {method: GET, path: "/b/*"}, per: global, limits: [{rate: 1/s}]}
  - {name: head, match: {method: [POST, HEAD], path: "/b/*"}, per: global, limits: [{rate: 1/s}]}
  - {name: whatever, match: {path: /a}, per: global, limits: [{rate: 1/s}]}
`)
	for request, wins := range map[string]string{
		"GET /a": "get.second global 3", "HEAD /a": "get.second global 3", "POST /a": "whatever.second global 1",
		"GET /b/1": "other.second global 1", "HEAD /b/1": "head.second global 1", "PUT /b/1": "any.second global 1",
	} {
		method, path, _ := strings.Cut(request, " ")
		want(t, request, charged(rules, testRequest{method: method, path: path}), []string{wins})
	}
}

func TestAnAddressHasOneFormInLists(t *testing.T) {
	rules := rulesOf(t, `
deny: [{ip: 192.0.2.0/24}]
rules: [{name: a, per: global, limits: [{rate: 1/s}]}]
`)
	for _, address := range []string{"192.0.2.7", "::ffff:192.0.2.7", "64:ff9b::192.0.2.7"} {
		var v policy.Evaluation
		rules.Evaluate(testRequest{address: address}, &v)
		want(t, address, v.ListMatch, policy.DenyListed)
	}
}

func TestSuspiciousRulesHaveWarnings(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{name: a, per: global, limits: [{rate: 1/s, burst: 5, algorithm: leaky-bucket}]}]":                       "the queue of limit second is never used",
		"rules: [{name: a, per: global, limits: [{rate: 1/s, burst: 5, algorithm: leaky-bucket, max_wait: 2s}]}]":         "",
		"rules: [{name: a, match: {path: '/v/:id'}, per: global, limits: [{rate: 1/s}]}]":                                 `the segment ":id" matches only this text; for a segment with any text write path: "/v/{id}", with the quotes`,
		"rules: [{name: a, match: {path: '/v/<id>'}, per: global, limits: [{rate: 1/s}]}]":                                `write path: "/v/{id}", with the quotes`,
		"rules: [{name: a, match: {path: '/v/x:id'}, per: global, limits: [{rate: 1/s}]}]":                                "",
		"tiers: {a: {header X-Plan: a}, b: default}\nrules: [{name: a, per: global, limits: [{rate: {a: 2/s, b: 1/s}}]}]": "clients write header X-Plan themselves",
		"allow: {header X-Internal: '*'}\nrules: [{name: a, per: global, limits: [{rate: 1/s}]}]":                         "clients write header X-Internal themselves, so they can evade all limits",
		"allow: {query token: a}\nrules: [{name: a, per: global, limits: [{rate: 1/s}]}]":                                 "clients write query token themselves, so they can evade all limits",
		"allow: [{header X-Internal: '*', ip: 10.0.0.0/8}]\nrules: [{name: a, per: global, limits: [{rate: 1/s}]}]":       "",
		"deny: {header User-Agent: bot}\nrules: [{name: a, per: global, limits: [{rate: 1/s}]}]":                          "",
		"tiers: {a: {ip: 10.0.0.0/8}, b: default}\nrules: [{name: a, per: global, limits: [{rate: {a: 2/s, b: 1/s}}]}]":   "",
	} {
		warnings := policyIn(t, "policy.yaml", text+"\n").Warnings
		if !hasOnly(warnings, want) {
			t.Errorf("%s\nhas the warnings %v; want %q", text, warnings, want)
		}
	}
}

// A client that sends a cookie or a parameter twice cannot evade a condition on this cookie or
// parameter.
func TestConditionsHoldIfAnyValueMatches(t *testing.T) {
	rules := rulesOf(t, `
deny: {query debug: "1"}
rules:
  - {name: csv, match: {query format: csv}, per: global, limits: [{rate: 1/s}]}
  - {name: old, match: {path: /old, cookie plan: old}, per: global, limits: [{rate: 1/s}]}
`)
	want(t, "a value that is sent twice", charged(rules, testRequest{query: map[string][]string{"format": {"csv", "csv"}}}), []string{"csv.second global 1"})
	want(t, "a value after another one", charged(rules, testRequest{query: map[string][]string{"format": {"json", "csv"}}}), []string{"csv.second global 1"})
	want(t, "cookies", charged(rules, testRequest{path: "/old", cookies: map[string][]string{"plan": {"new", "old"}}}), []string{"old.second global 1"})
	var v policy.Evaluation
	rules.Evaluate(testRequest{query: map[string][]string{"debug": {"0", "1"}}}, &v)
	want(t, "a condition of deny", v.Ambiguous, "query debug is sent 2 times; send it once, plainly written")
}

func TestPipesAreErrors(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := exec.Command("mkfifo", pipe).Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pipe, Options{}); err == nil || !strings.Contains(err.Error(), "is not a regular file; write the name of one") {
		t.Errorf("the error is %v; want that the pipe is not a regular file", err)
	}
	for _, text := range []string{
		"deny: {ip: {file: " + pipe + "}}\n",
		"tokens: {key_file: " + pipe + ", audience: a, issuer: b}\n",
	} {
		config, err := parse("policy.yaml", []byte(text+"rules: [{name: a, per: global, limits: [{rate: 1/s}]}]\n"), nil, allSections)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.compile(); err == nil || !strings.Contains(err.Error(), "is not a regular file; write the name of one") {
			t.Errorf("%s: the error is %v; want that the pipe is not a regular file", text, err)
		}
	}
}
