package command

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckAnswersByItsExitStatus(t *testing.T) {
	const token = "caller-0123456789"
	config := writeFile(t, "rules.yaml", "rules:\n  - {name: tokens, match: {path: /tokens}, per: {user: descriptor user}, limits: [{rate: 10/h}]}\n"+
		"  - {name: rides, match: {method: POST, path: /rides, host: api.example.com}, per: {key: header X-API-Key}, limits: [{rate: 1/h}]}\n"+
		"  - {name: queries, match: {path: /queries}, per: {key: query k}, limits: [{rate: 1/h}]}\n")
	socket := filepath.Join(t.TempDir(), "api.sock")
	startProcess(t, "--config="+config, "--api=unix:"+socket, "--caller-token="+token, "--allow-caller-limits")
	t.Setenv("PENSTOCK_API", "unix:"+socket)
	rides := []string{"http://api.example.com/rides", "-X", "POST", "-H", "X-API-Key: a"}
	for _, c := range []struct {
		token string
		args  []string
		code  int
		want  string
	}{
		{token, []string{"--rule", "tokens", "--key", "user:42", "--cost", "7"}, exitOK, "allowed, decided by store\ntokens.hour: 3 of 10 left; full after "},
		{token, []string{"--rule", "tokens", "--key", "user:42", "--cost", "7"}, exitDenied, "denied by tokens.hour; retry after 2"},
		{token, []string{"--rule", "tokens", "--key", "user:42", "--cost", "11"}, exitDenied, "a retry is never allowed"},
		{token, []string{"--rule", "tokens", "--key", "user:42", "--cost", "0"}, exitOK, "3 of 10 left"},
		{token, []string{"/tokens", "--descriptor", "user=42"}, exitOK, "2 of 10 left"},
		{token, rides, exitOK, "rides.hour: 0 of 1 left"},
		{token, rides, exitDenied, "denied by rides.hour"},
		{token, []string{"/queries?k=1"}, exitOK, "queries.hour: 0 of 1 left"},
		{token, []string{"/queries?k=2"}, exitOK, "queries.hour: 0 of 1 left"},
		{token, []string{"--limit", "2/h", "--key", "job:a"}, exitOK, "hour: 1 of 2 left"},
		{token, []string{"--rule", "none", "--key", "user:42"}, exitUsage, "the policy has no rule of this name"},
		{"", []string{"--rule", "tokens", "--key", "user:42"}, exitInvalid, "(set PENSTOCK_CALLER_TOKEN"},
		{token, []string{"--api", "unix:/none.sock", "/tokens"}, exitUnreachable, "--api is its api address"},
	} {
		t.Setenv("PENSTOCK_CALLER_TOKEN", c.token)
		if code, out, stderr := command(append([]string{"check"}, c.args...)...); code != c.code || !strings.Contains(out+stderr, c.want) {
			t.Errorf("check %q: exit status %d\n%s%s; want %d with %q", c.args, code, out, stderr, c.code, c.want)
		}
	}
	t.Setenv("PENSTOCK_CALLER_TOKEN", token)
	var got struct {
		Allowed bool
		Retry   int64    `json:"retry_after_ms"`
		By      []string `json:"denied_by"`
	}
	code, out, _ := command("check", "--rule", "tokens", "--key", "user:42", "--cost", "5", "-o", "json")
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitDenied || got.Retry < 1000 || len(got.By) != 1 {
		t.Errorf("check -o json: exit status %d, %v, %s; want 3 and a denial", code, err, out)
	}
}

func TestCheckExplainsMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     "write a URL or path, or --rule and --key",
		"/a":                                   "the address of the check API is missing",
		"--api localhost /a":                   "is not an address; write host:port",
		"/a --rule b":                          "omit --rule",
		"/a --cost 2":                          "omit --rule",
		"--rule a --limit 1/s --key k:a":       "write a URL or path, or --rule and --key",
		"--rule a":                             "the key is missing",
		"--limit fast --key k:a":               "rate",
		"/a -H X:1 -H x:2":                     `header "X" is given twice`,
		"/a --descriptor a=1 --descriptor a=2": `descriptor "a" is given twice`,
		"/a --descriptor a":                    "write KEY=VALUE",
		"/a -o xml":                            "unknown output",
		"/a /b":                                "is one too many",
		"--api http://h:1 --api-ca /none /a":   "has no TLS, but a file for TLS is given",
	} {
		if code, out, stderr := command(append([]string{"check"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(stderr, want) || out != "" {
			t.Errorf("check %s: exit status %d, %s%s; want 2, and an error with %q", args, code, out, stderr, want)
		}
	}
	for answer, want := range map[string]string{`{"allowed": 1}`: "not that of the check API", `{}`: "not that of the check API", `<html>`: "not that of the check API"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(answer)) }))
		if code, _, stderr := command("check", "--api", server.URL, "/a"); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("for the answer %s: exit status %d, %s; want 2 with %q", answer, code, stderr, want)
		}
		server.Close()
	}
}

// TestCheckOfTheDocs: the page shows what the command prints.
func TestCheckOfTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/check-api.md")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "api.sock")
	startProcess(t, "--api=unix:"+socket)
	for range 2 {
		_, out, stderr := command("check", "--api", "unix:"+socket, "--rule", "ride-request", "--key", "user:42", "--cost", "15")
		line, _, _ := strings.Cut(out, "; retry") // the times differ
		if line, _, _ = strings.Cut(line, "; full"); line == "" || !strings.Contains(string(page), line) {
			t.Errorf("docs/check-api.md does not show what check prints:\n%s%s", out, stderr)
		}
	}
}
