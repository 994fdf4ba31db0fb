package command

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/suggest"
	"github.com/penstock/penstock/policy/policyfile"
)

const shopLog = "../../../examples/logs/shop.log.gz"

// TestHowHighOfTheDocs runs the commands of the page, with the policy that it describes. Each line
// that the page shows must come in this order.
func TestHowHighOfTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/howto/how-high.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := writeFile(t, "rules.yaml", "rules: [{name: suggested, per: ip, limits: [{rate: 3/min, burst: 30}]}]\n")
	blocks := strings.Split(string(page), "```console\n$ penstock ")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		line, shown, _ := strings.Cut(block, "\n")
		args := strings.Fields(strings.NewReplacer("examples/logs/shop.log.gz", shopLog, "rules.yaml", rules).Replace(line))
		code, out, stderr := command(args...)
		if code != exitOK {
			t.Errorf("%v: exit status %d, %s", args, code, stderr)
		}
		rest := strings.ReplaceAll(out, shopLog, "examples/logs/shop.log.gz")
		for want := range strings.Lines(shown) {
			if want == "...\n" || want == "\n" {
				continue
			}
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%v does not print this line of the page, or not there: %q\n%s", args, want, out)
				break
			}
			rest = after
		}
	}
	if len(blocks) != 2 {
		t.Errorf("the page has %d commands; want 2", len(blocks))
	}
}

// TestSuggestedPolicyDeniesOnlyOutliers: the policy that suggest prints is valid. If it is
// enforced, it denies the two abusers of the log and no other client.
func TestSuggestedPolicyDeniesOnlyOutliers(t *testing.T) {
	_, out, _ := command("suggest", shopLog, "--path", "/**")
	at, end := strings.Index(out, "rules:\n"), strings.Index(out, "\n# Write it")
	if at < 0 || end < at {
		t.Fatalf("there is no policy in\n%s", out)
	}
	text := strings.Replace(out[at:end], "    shadow: true", "    # shadow: true", 1)
	if _, err := policyfile.Parse("rules.yaml", []byte(text), nil, policyfile.Options{}); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	code, out, stderr := command("replay", shopLog, "--config", writeFile(t, "rules.yaml", text))
	if missing := missingIn(out, "; 2 (0.17 %) of the identities hit"); code != exitOK || missing != nil {
		t.Errorf("exit status %d, %s; the output lacks %q:\n%s", code, stderr, missing, out)
	}
}

// TestSuggestedPolicyIsPerUser: replay accepts the policy that suggest prints for users, with the
// header that its comment names.
func TestSuggestedPolicyIsPerUser(t *testing.T) {
	log := writeFile(t, "access.log", strings.Repeat(strings.Replace(logLine("192.0.2.2", "08", "/a"), " - - ", " - ann ", 1), 20))
	_, out, _ := command("suggest", log, "--per", "user", "--keep-outliers")
	at, end := strings.Index(out, "rules:\n"), strings.Index(out, "\n# Write it")
	if at < 0 || end < at {
		t.Fatalf("there is no policy in\n%s", out)
	}
	rules := writeFile(t, "rules.yaml", out[at:end])
	code, out, stderr := command("replay", log, "--config", rules, "--header", "X-User: $remote_user", "--identities", "full")
	if code != exitOK || !strings.Contains(out, "20 requests") || strings.Contains(out, "warning: rule suggested reads") {
		t.Errorf("exit status %d, %s\n%s; want that the rule reads the users", code, stderr, out)
	}
}

func TestSuggestCountsWhatItIsAskedTo(t *testing.T) {
	log := writeFile(t, "access.log", strings.Repeat(logLine("192.0.2.1", "07", "/a"), 3)+logLine("192.0.2.1", "07", "/b")+strings.Replace(logLine("192.0.2.2", "08", "/a"), " - - ", " - ann ", 1))
	for args, want := range map[string]struct{ requests, identities int64 }{
		"":                    {5, 2},
		"--path /a":           {4, 2},
		"--path /b":           {1, 1},
		"--per user":          {1, 1},
		"--per global":        {5, 1},
		"--per header\tX-Key": {0, 0},
	} {
		fields := []string{"suggest", log, "-o", "json"}
		for _, f := range strings.Fields(strings.ReplaceAll(args, "header\tX-Key", "header-X-Key")) {
			fields = append(fields, strings.Replace(f, "header-X-Key", "header X-Key", 1))
		}
		code, out, stderr := command(fields...)
		var report suggest.Report
		if err := json.Unmarshal([]byte(out), &report); code != exitOK || err != nil || report.Requests != want.requests || report.Identities != want.identities {
			t.Errorf("suggest %s: exit status %d, %v, %s; %d requests of %d clients; want %+v", args, code, err, stderr, report.Requests, report.Identities, want)
		}
	}
}

func TestSuggestExplainsMistakes(t *testing.T) {
	log := writeFile(t, "access.log", logLine("192.0.2.1", "07", "/a"))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, exitUsage, "an argument is missing"},
		{[]string{log, "--budget", "1"}, exitUsage, "write a percentage"},
		{[]string{log, "--budget", "60%"}, exitUsage, "write a percentage"},
		{[]string{log, "--headroom", "0.5"}, exitUsage, "write 1 to 100"},
		{[]string{log, "--headroom", "NaN"}, exitUsage, "write 1 to 100"},
		{[]string{log, "--per", "cookie"}, exitUsage, "write ip, user, global"},
		{[]string{log, "--path", "search"}, exitUsage, "--path"},
		{[]string{"suggest_test.go"}, exitInvalid, "the format of the log is not known"},
		{[]string{writeFile(t, "w3c.log", "#Fields: date time c-ip cs-uri-stem\nhello\n")}, exitInvalid, "no line of the log is a request: 1 of 1 lines have another format"},
		{[]string{log, "--per", "user"}, exitInvalid, "no request of the log can be counted"},
	} {
		if code, _, stderr := command(append([]string{"suggest"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("suggest %v: exit status %d, %s; want %d, and %q", c.args, code, stderr, c.code, c.want)
		}
	}
}
