package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/scaffold"
)

// shopFile describes an API in OpenAPI.
const shopFile = "../internal/tools/scaffold/testdata/shop.yaml"

// rulesOfShop are the rules that init writes for shopFile, each as its name and its match.
var rulesOfShop = []string{
	`login-attempts {method: [POST], path: "/api/v2/login"}`, `login {method: [POST], path: "/api/v2/login/**"}`,
	`orders-read {method: [GET], path: "/api/v2/orders/**"}`, `orders-write {method: [POST, PATCH, DELETE], path: "/api/v2/orders/**"}`,
	`search {method: [GET], path: "/api/v2/search/**"}`, `reports {method: [GET], path: "/api/v2/*/reports/**"}`,
}

// ruleLines finds the name and the match of each rule that init writes.
var ruleLines = regexp.MustCompile(`  - name: (\S+)\n    match: (.*)\n`)

func TestFirstPoliciesAreStrictlyValid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	for _, args := range [][]string{{}, {"--per", "header X-API-Key"}, {"--per", "global", "--rate", "5/s, burst 10"}, {"--from-openapi", shopFile}, {"--from-openapi", shopFile, "--per", "ip"}} {
		code, out, err := command(append(append([]string{"init"}, args...), "--force", file)...)
		if code != exitOK || !strings.HasPrefix(out, file+" is written.") {
			t.Fatalf("init %s: exit status %d, %s%s; want %d", args, code, out, err, exitOK)
		}
		if code, out, _ := command("validate", "--strict", file); code != exitOK {
			text, _ := os.ReadFile(file)
			t.Errorf("init %s: validate --strict ends with exit status %d: %s\nwant %d. The policy is\n%s", args, code, out, exitOK, text)
		}
	}
}

func TestOpenAPIHasARuleForEachGroup(t *testing.T) {
	code, out, err := command("init", "--from-openapi", shopFile, "-")
	var got []string
	for _, m := range ruleLines.FindAllStringSubmatch(out, -1) {
		got = append(got, m[1]+" "+m[2])
	}
	if code != exitOK || !strings.Contains(out, "key: header X-Shop-Key\n") {
		t.Errorf("init: exit status %d, %s\n%s; want %d with %q", code, err, out, exitOK, "key: header X-Shop-Key\n")
	}
	if !slices.Equal(got, rulesOfShop) {
		t.Errorf("the rules are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(rulesOfShop, "\n"))
	}
	var document any
	text, readErr := os.ReadFile(shopFile)
	if readErr != nil {
		t.Fatal(readErr)
	}
	if err := yaml.Load(text, &document); err != nil {
		t.Fatal(err)
	}
	asJSON, jsonErr := json.MarshalIndent(document, "", "\t")
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	_, fromJSON, _ := command("init", "--from-openapi", writeFile(t, "shop.json", string(asJSON)), "-")
	if countWords(out) != countWords(fromJSON) {
		t.Errorf("the same API in JSON gives a policy with other words:\n%s\nwant those of\n%s", fromJSON, out)
	}
}

// countWords returns how often each word occurs. A test can then compare texts that differ in their
// order: encoding/json sorts fields.
func countWords(text string) string {
	counts := make(map[string]int)
	for word := range strings.FieldsSeq(strings.NewReplacer("[", " ", "]", " ", ",", " ").Replace(text)) {
		counts[word]++
	}
	return fmt.Sprint(counts)
}

func TestInitReplacesAFileOnlyByForce(t *testing.T) {
	file := writeFile(t, "policy.yaml", "mine\n")
	code, _, err := command("init", file)
	if text, _ := os.ReadFile(file); code != exitUsage || string(text) != "mine\n" || !strings.Contains(err, file+" exists; write another name, or --force to replace it. To read an OpenAPI file, write --from-openapi before its name") {
		t.Errorf("init without --force: exit status %d, %s; the file has %q; want %d and the file as before", code, err, text, exitUsage)
	}
	if code, _, err := command("init", "--force", file); code != exitOK {
		t.Errorf("init --force: exit status %d, %s; want %d", code, err, exitOK)
	}
}

// Each description has the error that it must cause, or "" if init must write a policy for it.
func TestBadDescriptionsHaveClearErrors(t *testing.T) {
	const head = "openapi: 3.0.0\n"
	for text, want := range map[string]string{
		"":                                 "the file is empty; a description in OpenAPI 3 must begin with its version, as in openapi: 3.1.0",
		"[]":                               "the file is not a description in OpenAPI; such a file must begin with its version, as in openapi: 3.1.0",
		"a: b: c":                          "the file is neither YAML nor JSON: ",
		"swagger: '2.0'":                   "this is Swagger 2; convert it to OpenAPI 3",
		"openapi: 4.0.0":                   "the file is not a description in OpenAPI 3; such a file must begin with its version, as in openapi: 3.1.0",
		head:                               "the description has no paths; ",
		head + "paths: {}":                 "the description has no paths; ",
		head + "paths: {/a: 1}":            "path /a has no operations; ",
		head + "paths: {/a: {summary: x}}": "the paths have no operations; ",
		head + "paths:\n  login: {post: {}}\n  /a: {get: {}}":                                                   ":3:3: path login does not begin with a slash; write /login",
		head + "paths:\n  /a: {get: {}}\n  /b/{id: {get: {}}":                                                   ":4:3: path /b/{id has a { or a } without the other; ",
		head + "paths: {'/a/id}': {get: {}}}":                                                                   ":2:9: path /a/id} has a { or a } without the other; ",
		head + "paths: {$ref: paths.yaml}":                                                                      "the paths are in another place ($ref); ",
		head + "paths: {x-a: 1, '/{a{2}}': {get: {}}}":                                                          "",
		head + "servers: [{url: 'http://[::'}, {}]\npaths: {/a: {get: {}}}":                                     "",
		head + "servers: [{url: '/%zz'}]\npaths: {/a: {get: {}}}":                                               "is not the URL of a server; ",
		head + "x: &x [*x]\npaths: &p {/a: *p}":                                                                 "the paths have no operations; ",
		head + "paths: {/penstock.a: {get: {}}, /é: {get: {}}, /..: {put: {}}, /: {get: {}}, /a//b: {get: {}}}": "",
	} {
		code, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text), "-")
		if want == "" && code == exitOK {
			continue
		}
		if code != exitInvalid || out != "" || !strings.Contains(err, want) || want == "" {
			t.Errorf("%s\nexit status %d, %s%s\nwant the error %q; if it is empty, want a policy", text, code, out, err, want)
		}
	}
	for _, args := range [][]string{{"--per", "claim sub"}, {"--per", "header a b"}, {"--rate", "fast"}, {"a", "b"}, {filepath.Join(t.TempDir(), "none", "policy.yaml")}} {
		if code, _, err := command(append([]string{"init"}, args...)...); code != exitUsage || !strings.Contains(err, "write ") {
			t.Errorf("init %s: exit status %d, %s; want %d with %q", args, code, err, exitUsage, "write ")
		}
	}
	if code, _, _ := command("init", "--from-openapi", "none.yaml", "-"); code != exitInvalid {
		t.Errorf("init with a description that does not exist: exit status %d; want %d", code, exitInvalid)
	}
}

func TestOnlyRulesWhoseOperationsNeedTheKeyUseIt(t *testing.T) {
	text := `openapi: 3.1.0
servers: [{url: https://a.example/v1}, {url: https://b.example/v2}, {url: https://c.example/v1}]
security: [{bearerAuth: []}]
components:
  securitySchemes:
    bearerAuth: {type: http, scheme: bearer, bearerFormat: JWT}
    acme: {type: apiKey, in: header, name: X-Acme-Key}
paths:
  /users: {get: {}, post: {}}
  /hooks: {post: {security: [{acme: []}]}, put: {security: [{acme: [], bearerAuth: []}]}}
  /mixed: {post: {security: [{acme: []}]}, put: {}}
  /either: {post: {security: [{acme: []}, {bearerAuth: []}]}}
  /open: {get: {security: []}}
`
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if code, _, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text), file); code != exitOK {
		t.Fatalf("init: exit status %d, %s; want %d", code, err, exitOK)
	}
	code, out, _ := command("validate", "--strict", file)
	policy, err := os.ReadFile(file)
	var got []string
	for _, m := range regexp.MustCompile(`  - name: (\S+)\n    match: .*\n    per: (\S+)\n`).FindAllStringSubmatch(string(policy), -1) {
		name, per := m[1], m[2]
		got = append(got, name+" "+per)
	}
	want := []string{"users-read ip", "users-write ip", "hooks client", "mixed ip", "either ip", "open ip"}
	if err != nil || code != exitOK || !slices.Equal(got, want) {
		t.Errorf("validate --strict: exit status %d, %s%v; the rules are %q; want %q", code, out, err, got, want)
	}
	for _, want := range []string{"key: header X-Acme-Key\n", `"bearerAuth" in securitySchemes`, "#   tokens:\n", "claim sub", `path: ["/v1/users/**", "/v2/users/**"]`} {
		if !strings.Contains(string(policy), want) {
			t.Errorf("%q is not in\n%s", want, policy)
		}
	}
}

// The rules are for the paths of all servers. A client has one counter for them, also for its
// failed logins.
func TestRulesMatchThePathsOfAllServers(t *testing.T) {
	text := `openapi: 3.1.0
servers: [{url: https://api.example.com/v1}, {url: https://api.example.com/v2/}, {url: https://eu.example.com/v1}]
paths:
  /login: {post: {}}
  /v2/login: {servers: [{url: /}], post: {}}
  /v1/orders: {servers: [{url: /}], put: {}}
  /orders: {get: {}}
  /files: {servers: [{url: https://files.example.com}], get: {}, put: {servers: [{url: https://upload.example.com/in}]}}
`
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if code, _, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text), file); code != exitOK {
		t.Fatalf("init: exit status %d, %s; want %d", code, err, exitOK)
	}
	code, out, _ := command("validate", "--strict", file)
	policy, err := os.ReadFile(file)
	var got []string
	for _, m := range ruleLines.FindAllStringSubmatch(string(policy), -1) {
		got = append(got, m[1]+" "+m[2])
	}
	want := []string{
		`login-attempts {method: [POST], path: ["/v1/login", "/v2/login"]}`, `login {method: [POST], path: ["/v1/login/**", "/v2/login/**"]}`,
		`v2 {method: [POST], path: "/v2/**"}`, `v1 {method: [PUT], path: "/v1/**"}`,
		`orders {method: [GET], path: ["/v1/orders/**", "/v2/orders/**"]}`,
		`files-read {method: [GET], path: ["/files/**", "/in/files/**"]}`, `files-write {method: [PUT], path: ["/files/**", "/in/files/**"]}`,
	}
	if err != nil || code != exitOK || !slices.Equal(got, want) {
		t.Errorf("validate --strict: exit status %d, %s\nthe rules are\n%s\nwant\n%s", code, out, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The rules match no path without the server's path, so the policy and a note name the server.
func TestServerPathsInRulesAreExplained(t *testing.T) {
	const server = `/v1 of the server "https://api.shop.test/v1"`
	text := "openapi: 3.0.0\nservers: [{url: https://api.shop.test/v1}]\npaths: {/login: {post: {}}}\n"
	code, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text), "-")
	if code != exitOK || !strings.Contains(out, "#   "+server+"\n") || !strings.Contains(out, "change the server's url to / in the description") {
		t.Errorf("init: exit status %d; the policy is\n%s\nwant a comment with %s", code, out, server)
	}
	missing := missingIn(err, server, "not limited; if your upstream")
	if strings.Count(err, "\n") != 1 || !strings.HasPrefix(err, "note: ") || missing != nil {
		t.Errorf("the note is %q, without %q; want one line with all", err, missing)
	}
	for _, servers := range []string{"", "servers: [{url: https://api.shop.test}]\n", "servers: [{url: /v1}, {url: /}]\n"} {
		_, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", "openapi: 3.0.0\n"+servers+"paths: {/login: {post: {}}}\n"), "-")
		if err != "" || strings.Contains(out, "of the server") {
			t.Errorf("with %q, init prints the note %q and\n%s\nwant no note about servers, because the rules match /login", servers, err, out)
		}
	}
}

// A path is a login by its last word, also with GET.
func TestLoginOfPetstoreIsFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if code, _, err := command("init", "--from-openapi", "../internal/tools/scaffold/testdata/petstore.yaml", file); code != exitOK {
		t.Fatalf("init: exit status %d, %s; want %d", code, err, exitOK)
	}
	policy, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := "match: {method: [GET], path: \"/api/v3/user/login\"}\n"
	if n := strings.Count(string(policy), "-attempts\n"); n != 1 || !strings.Contains(string(policy), want) {
		t.Errorf("the policy has %d rules for logins:\n%s\nwant one, with %s", n, policy, want)
	}
	if code, out, _ := command("validate", "--strict", file); code != exitOK {
		t.Errorf("validate --strict: exit status %d: %s; want %d", code, out, exitOK)
	}
	cases := writeFile(t, "cases.yaml", `cases:
  - name: the sixth wrong password in a minute is denied
    send: GET /api/v3/user/login?username=anna&password=wrong
    steps:
      - {times: 5, response_status: 400, expect: allowed}
      - {expect: denied, rule: user-attempts}
`)
	if code, out, err := command("test", file, cases); code != exitOK {
		t.Errorf("test: exit status %d: %s%s; want %d", code, out, err, exitOK)
	}
}

// A token bucket would admit nine failed logins in 48 seconds.
func TestFiveFailedLoginsAreTheMostInAMinute(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if code, _, err := command("init", "--from-openapi", writeFile(t, "api.yaml", "openapi: 3.0.0\npaths: {/login: {post: {}}}\n"), file); code != exitOK {
		t.Fatalf("init: exit status %d, %s; want %d", code, err, exitOK)
	}
	cases := writeFile(t, "cases.yaml", `cases:
  - name: five failed attempts in any minute
    send: POST /login
    steps:
      - {times: 9, expect: allowed, rule: login-attempts, remaining: 4}
      - {times: 5, response_status: 401, expect: allowed}
      - {after: 48s, response_status: 401, expect: denied, rule: login-attempts, retry_after: 12s}
      - {after: 11s, response_status: 401, expect: denied}
      - {after: 1s, times: 5, response_status: 401, expect: allowed}
`)
	if code, out, err := command("test", file, cases); code != exitOK {
		t.Errorf("test: exit status %d: %s%s; want %d", code, out, err, exitOK)
	}
}

// Both the limit on failed logins and the limit of the group apply to a login.
func TestSuccessfulLoginsAreLimited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "openapi: 3.1.0\npaths: {/login: {post: {}}}\n"
	if code, _, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text), file); code != exitOK {
		t.Fatalf("init: exit status %d, %s; want %d", code, err, exitOK)
	}
	_, out, err := command("explain", "--config", file, "-X", "POST", "/login")
	for _, want := range []string{"login-attempts.minute", "login.minute"} {
		if !strings.Contains(out, ". "+want) {
			t.Errorf("limit %s does not apply to POST /login:\n%s%s", want, out, err)
		}
	}
}

func TestPathsOfServersBeyondTheMostAreNamed(t *testing.T) {
	text := "openapi: 3.0.0\nservers:\n"
	for i := range 9 { // rules match the paths of 8 servers
		text += fmt.Sprintf("  - {url: /v%d}\n", i)
	}
	_, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text+"paths: {/p: {get: {}}}"), "-")
	if !strings.Contains(out, `"/v7/p/**"]`) || !strings.Contains(out, "such as /v8/. Add") {
		t.Errorf("the policy is\n%s\nwith the messages %s; want /v7/p/**, and advice about /v8/", out, err)
	}
}

func TestManyGroupsBecomeOne(t *testing.T) {
	var text strings.Builder
	text.WriteString("openapi: 3.0.0\npaths:\n")
	for i := range 101 { // one group more than a policy may have
		fmt.Fprintf(&text, "  /p%d: {get: {}, post: {}}\n", i)
	}
	_, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text.String()), "-")
	if n := strings.Count(out, "- name: "); n != 2 || !strings.Contains(out, `path: "/**"`) {
		t.Errorf("the policy has %d rules:\n%s\nwith the messages %s; want 2 rules, for /**", n, out, err)
	}
}

func TestHostileDescriptionsAreRefusedEarly(t *testing.T) {
	// The default of each variable has the next variable ten times. If all were replaced, the path
	// would have 10^12 variables.
	nested := "openapi: 3.0.0\nservers: [{url: '/{a}', variables: {"
	for c := 'a'; c < 'm'; c++ {
		nested += fmt.Sprintf("%c: {default: '%s'}, ", c, strings.Repeat(fmt.Sprintf("{%c}", c+1), 10))
	}
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	const paths = "openapi: 3.0.0\npaths:\n"
	for name, c := range map[string]struct{ text, want string }{
		"nested variables": {nested + "}}]\npaths: {/p: {get: {}}}", ""},
		"long url":         {"openapi: 3.0.0\nservers: [{url: /" + strings.Repeat("a/", 2000) + "}]\npaths: {/p: {get: {}}}", "is longer than 2048 bytes"},
		"long values":      {"openapi: 3.0.0\nservers: [{url: '/" + strings.Repeat("{a}", 600) + "', variables: {a: {default: " + strings.Repeat("a", 2000) + "}}}]\npaths: {/p: {get: {}}}", "is longer than 2048 bytes"},
		"nodes":            {"[" + strings.Repeat("a,", 500_001) + "]", "more than 500000 commas"},
		"paths":            {paths + repeat(5001, "  /p%d: {get: {}}\n"), "has 5001 paths; the most is 5000"},
		"bytes":            {strings.Repeat("#", 4<<20+1), "cannot read the OpenAPI file"},
	} {
		code, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", c.text), "-")
		if c.want == "" {
			if code != exitOK || !strings.Contains(out, "  - name: ") {
				t.Errorf("init from hostile %s: exit status %d, %.200s%.200s; want a policy", name, code, out, err)
			}
			continue
		}
		if code != exitInvalid || !strings.Contains(err, c.want) {
			t.Errorf("init from hostile %s: exit status %d, %.200s%.200s; want the error %q", name, code, out, err, c.want)
		}
	}
}

func TestServerVariablesAreReplacedOnce(t *testing.T) {
	text := "openapi: 3.0.0\nservers: [{url: 'https://{host}/{base}/{none}/x', variables: {host: {default: '{base}'}, base: {default: v2}}}]\npaths: {/p: {get: {}}}"
	_, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text), "-")
	if !strings.Contains(out, `path: "/v2/*/x/p/**"`) {
		t.Errorf("the policy is\n%s\nwith the messages %s; want the path /v2/*/x/p/**", out, err)
	}
}

func TestEachRuleHasANameOfItsOwn(t *testing.T) {
	text := "openapi: 3.0.0\npaths: {/a-2: {get: {}}, /a: {get: {}}, /A: {get: {}}, /a~: {get: {}}}"
	_, out, err := command("init", "--from-openapi", writeFile(t, "api.yaml", text), "-")
	for _, name := range []string{"a-2", "a", "a-3", "a-4"} {
		if strings.Count(out, "- name: "+name+"\n") != 1 {
			t.Errorf("there is not exactly one rule %s in %s%s", name, out, err)
		}
	}
}

func FuzzInitFromOpenAPI(f *testing.F) {
	text, err := os.ReadFile(shopFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("openapi: 3.0.0\nservers: [{url: /v1}, {url: /{b}}]\npaths: {/a/login: {post: {}, servers: [{url: /}]}, /v1/a: {get: {}}}")
	f.Add("openapi: 3.0.0\ncomponents: {parameters: {a: {in: query, name: password}}}\npaths: {/a: {get: {parameters: [{$ref: '#/components/parameters/a'}]}}}")
	f.Add("openapi: 3.0.0\npaths: {/a/{b}/login: {post: {}, get: {}}, '/*': {get: {}}, /a: {put: {}}}")
	f.Fuzz(func(t *testing.T, text string) {
		policy, _, err := scaffold.Write(scaffold.Options{Rate: "1/s", OpenAPI: "api.yaml", OpenAPIText: []byte(text)})
		if err != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, _ := command("validate", "--strict", file); code != exitOK {
			t.Errorf("%s\ngives an invalid policy\n%s\n%s", text, policy, out)
		}
	})
}
