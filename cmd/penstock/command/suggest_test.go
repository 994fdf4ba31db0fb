package command

import (
	"encoding/json"
	"fmt"
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
	_, live, _ := strings.Cut(string(page), "```yaml\n# live.yaml\n")
	live, _, _ = strings.Cut(live, "```")
	live = writeFile(t, "live.yaml", "# live.yaml\n"+live)
	rules := writeFile(t, "rules.yaml", "rules: [{name: suggested, per: ip, limits: [{rate: 3/min, burst: 30}]}]\n")
	blocks := strings.Split(string(page), "```console\n$ penstock ")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		line, shown, _ := strings.Cut(block, "\n")
		args := strings.Fields(strings.NewReplacer("examples/logs/shop.log.gz", shopLog, "rules.yaml", rules, "live.yaml", live).Replace(line))
		code, out, stderr := command(args...)
		if code != exitOK {
			t.Errorf("%v: exit status %d, %s", args, code, stderr)
		}
		rest := strings.NewReplacer(shopLog, "examples/logs/shop.log.gz", live, "live.yaml").Replace(out)
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
	if len(blocks) != 4 {
		t.Errorf("the page has %d commands; want 4", len(blocks))
	}
}

// TestSuggestedPolicyDeniesOnlyOutliers: the policy that suggest prints is valid. If it is
// enforced, it denies the two abusers of the log and no other client.
func TestSuggestedPolicyDeniesOnlyOutliers(t *testing.T) {
	for _, flags := range [][]string{{"--path", "/search", "--path", "/**", "--method", "GET", "--method", "POST"}, {"--algorithm", "fixed-window"}, {"--algorithm", "sliding-log", "--window", "10m"}, {"--algorithm", "fixed-window", "--window", "10d"}} {
		_, suggested, _ := command(append([]string{"suggest", shopLog}, flags...)...)
		text := strings.Replace(suggestedPolicy(t, suggested), "    shadow: true", "    # shadow: true", 1)
		if _, err := policyfile.Parse("rules.yaml", []byte(text), nil, policyfile.Options{}); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		code, out, stderr := command("replay", shopLog, "--config", writeFile(t, "rules.yaml", text))
		if missing := missingIn(out, "; 2 (0.17 %) of the identities hit"); !strings.Contains(suggested, "# At most 2 (0.17 %) of the clients would be denied at times.") || code != exitOK || missing != nil {
			t.Errorf("suggest %v: exit status %d, %s; the output lacks %q:\n%s", flags, code, stderr, missing, out)
		}
	}
}

// suggestedPolicy returns the policy that suggest has printed.
func suggestedPolicy(t *testing.T, out string) string {
	t.Helper()
	at, end := strings.Index(out, "rules:\n"), strings.Index(out, "\n# Write it")
	if at < 0 || end < at {
		t.Fatalf("there is no policy in\n%s", out)
	}
	return out[at:end]
}

// TestSuggestedNumberInFlightDeniesNobody: replay denies nothing with the number of the log, and
// something with one less.
func TestSuggestedNumberInFlightDeniesNobody(t *testing.T) {
	var lines strings.Builder
	for i := range 40 { // 20 clients; the two requests of each overlap
		fmt.Fprintf(&lines, "{\"start_time\":\"2026-03-04T05:06:%02d.000Z\",\"remote_addr\":\"192.0.2.%d\",\"request_uri\":\"/\",\"request_time\":\"20.5\"}\n", i, i%20)
	}
	log := writeFile(t, "access.log", lines.String())
	code, out, stderr := command("suggest", log, "--algorithm", "in_flight", "--headroom", "1")
	if missing := missingIn(out, "in flight", "chosen: 2 for 1%", "by requests in flight:", "{in_flight: 2}"); code != exitOK || missing != nil {
		t.Fatalf("exit status %d, %s; the output lacks %q:\n%s", code, stderr, missing, out)
	}
	enforced := strings.Replace(suggestedPolicy(t, out), "    shadow: true", "    # shadow: true", 1)
	for text, want := range map[string]string{enforced: "0 (0 %) of the requests denied", strings.Replace(enforced, "in_flight: 2", "in_flight: 1", 1): "20 (50 %) of the requests denied"} {
		if _, out, stderr := command("replay", log, "--config", writeFile(t, "rules.yaml", text)); !strings.Contains(out, want) {
			t.Errorf("the replay lacks %q, %s:\n%s%s", want, stderr, out, text)
		}
	}
}

// TestSuggestedPolicyIsPerUser: replay accepts the policy that suggest prints for users, with the
// header that its comment names.
func TestSuggestedPolicyIsPerUser(t *testing.T) {
	log := writeFile(t, "access.log", strings.Repeat(strings.Replace(logLine("192.0.2.2", "08", "/a"), " - - ", " - ann ", 1), 20))
	_, out, _ := command("suggest", log, "--per", "user", "--keep-outliers")
	rules := writeFile(t, "rules.yaml", suggestedPolicy(t, out))
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
		"--path /a --path /b": {5, 2},
		"--method POST":       {0, 0},
		"--method get":        {5, 2},
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

// Behind a load balancer, the clients are in X-Forwarded-For, and the suggested policy says so.
func TestSuggestCountsClientsBehindALoadBalancer(t *testing.T) {
	var lines strings.Builder
	for i := range 30 {
		fmt.Fprintf(&lines, "10.0.0.2 - - [04/Mar/2026:05:06:%02d +0000] \"GET /a HTTP/1.1\" 200 1 \"-\" \"curl\" \"1.2.3.4, 198.51.100.%d\"\n", i, i%3)
	}
	log := writeFile(t, "access.log", lines.String())
	_, out, _ := command("suggest", log)
	if missing := missingIn(out, "1 clients, 30 requests", `the lines go on with fields that this format does not have, such as "\"1.2.3.4, 198.51.100.0\""`); missing != nil {
		t.Errorf("without --format, the output lacks %q:\n%s", missing, out)
	}
	const format = `$remote_addr - - [$time_local] "$request" $status $size "$http_referer" "$http_user_agent" "$http_x_forwarded_for"`
	code, out, stderr := command("suggest", log, "--format", format, "--trusted-proxies", "10.0.0.0/8")
	if missing := missingIn(out, "3 clients, 30 requests", "http: {trusted_proxies: [\"10.0.0.0/8\"]}\nrules:"); code != exitOK || missing != nil {
		t.Fatalf("exit status %d, %s; the output lacks %q:\n%s", code, stderr, missing, out)
	}
	policy := out[strings.Index(out, "http: {"):strings.Index(out, "\n# Write it")]
	policy = strings.Replace(policy, "    shadow: true", "    # shadow: true", 1)
	code, out, stderr = command("replay", log, "--format", format, "--config", writeFile(t, "rules.yaml", policy))
	if code != exitOK || !strings.Contains(out, "0 (0 %) of the identities hit") || !strings.Contains(out, "suggested  30        0       3 ") {
		t.Errorf("exit status %d, %s; want that the policy counts three clients:\n%s", code, stderr, out)
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
		{[]string{log, "--algorithm", "slidinglog"}, exitUsage, "did you mean sliding-log?"},
		{[]string{log, "--window", "0"}, exitUsage, "write 1ms to 31d"},
		{[]string{log, "--window", "32d"}, exitUsage, "write 1ms to 31d"},
		{[]string{log, "--algorithm", "in_flight"}, exitInvalid, "has a duration"},
		{[]string{log, "--trusted-proxies", "here"}, exitUsage, "--trusted-proxies: "},
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
