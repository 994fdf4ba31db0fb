package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/replay"
)

// logLine is a request of a log with whole seconds.
func logLine(address, second, path string) string {
	return address + ` - - [04/Mar/2026:05:06:` + second + ` +0000] "GET ` + path + ` HTTP/1.1" 200 1` + "\n"
}

func TestReplayReportsWhoIsHit(t *testing.T) {
	log := writeFile(t, "access.log", strings.Repeat(logLine("192.0.2.1", "07", "/a"), 8)+logLine("198.51.100.2", "08", "/a"))
	rules := writeFile(t, "rules.yaml", "rules: [{name: api, per: ip, limits: [{rate: 5/s}]}]\n")
	code, out, stderr := command("replay", log, "--config", rules)
	missing := missingIn(out, "format common", "9 requests from 2026-03-04 05:06:07 to 2026-03-04 05:06:08 UTC, times in steps of 1s",
		"3 (33.33 %) of the requests denied (0 (0 %) if clients spread the requests of a second); 1 (50 %) of the identities hit", "ip:192.0.2.0/24")
	if code != exitOK || missing != nil {
		t.Errorf("exit status %d, %s; the report lacks %q:\n%s", code, stderr, missing, out)
	}
	code, out, _ = command("replay", log, "--config", rules, "-o", "json", "--identities", "full")
	var report replay.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitOK || report.Policy.Denied != 3 || report.Policy.Top[0].Key != "ip:192.0.2.1" {
		t.Errorf("exit status %d, %v; the report is %+v; want 3 denied requests of ip:192.0.2.1", code, err, report.Policy)
	}
}

func TestReplayFailsIfAskedTo(t *testing.T) {
	log := writeFile(t, "access.log", strings.Repeat(logLine("192.0.2.1", "07", "/a"), 8)+strings.Repeat(logLine("192.0.2.2", "07", "/a"), 2))
	rules := writeFile(t, "rules.yaml", "rules: [{name: api, per: ip, limits: [{rate: 5/s}]}]\n")
	for condition, want := range map[string]int{
		"denied > 2": exitProblem, "denied > 3": exitOK, "denied >= 3": exitProblem, "denied > 29.9%": exitProblem, "denied > 30 %": exitOK,
		"denied_identities>=50%": exitProblem, "denied_identities > 1": exitOK, "rejected_lines > 0": exitOK,
		"denied < 3": exitUsage, "limited > 3": exitUsage,
	} {
		if code, _, stderr := command("replay", log, "--config", rules, "--fail-if", condition); code != want {
			t.Errorf("--fail-if %q: exit status %d, %s; want %d", condition, code, stderr, want)
		}
	}
}

func TestReplayWarnsOfRequestsWithoutAnAddress(t *testing.T) {
	rules := writeFile(t, "rules.yaml", "rules: [{name: api, per: ip, limits: [{rate: 5/s}]}]\n")
	log := writeFile(t, "access.log", strings.Repeat(logLine("a.example.com", "07", "/a"), 2)+logLine("192.0.2.1", "07", "/a"))
	code, out, stderr := command("replay", log, "--config", writeFile(t, "strict.yaml", "rules: [{name: api, per: ip, limits: [{rate: 1/s}]}]\n"))
	if missing := missingIn(out, "2 (66.67 %) of the requests have no address", "(no address)  api "); code != exitOK || missing != nil {
		t.Errorf("exit status %d, %s; the output lacks %q:\n%s", code, stderr, missing, out)
	}
	code, _, stderr = command("replay", log, "--config", rules, "--format", "X$remote_addr [$time_local] $request", "--fail-if", "denied > 0")
	if code != exitInvalid || !strings.Contains(stderr, "no line of the log is a request: 3 of 3 lines") {
		t.Errorf("without a request, the exit status is %d, %s; want %d and the reason", code, stderr, exitInvalid)
	}
}

// A replay is no answer if the log lacks what a limit needs.
func TestReplayDoesNotJudgeLimitsThatItCannotDecide(t *testing.T) {
	log := writeFile(t, "access.log", strings.Repeat(logLine("192.0.2.1", "07", "/a"), 8))
	for _, c := range []struct{ limit, format, need string }{
		{"{in_flight: 2}", "", "limit in-flight of rule api was not decided, because no request of the log has a duration"},
		{"{rate: 2/h, on_status: 401}", `$remote_addr - - [$time_local] "$request" $code $size`, "limit hour of rule api was not decided, because no request of the log has a status"},
		{"{rate: 20/h, on_status: 401}", "", ""},
	} {
		rules := writeFile(t, "rules.yaml", "rules: [{name: api, per: ip, limits: ["+c.limit+"]}]\n")
		code, out, stderr := command("replay", log, "--config", rules, "--format", c.format, "--fail-if", "denied > 0")
		want := exitOK
		if c.need != "" {
			want = exitInternal
		}
		if code != want || !strings.Contains(out, c.need) || strings.Contains(stderr, "was not judged") != (c.need != "") {
			t.Errorf("%s: exit status %d, %s; want %d, and %q in\n%s", c.limit, code, stderr, want, c.need, out)
		}
	}
}

// Requests that stand far behind later ones would be counted at wrong times.
func TestLogsThatAreNotInOrderAreRefused(t *testing.T) {
	at := func(minute string, n int) string {
		return strings.Repeat(strings.Replace(logLine("192.0.2.1", "07", "/a"), ":05:06:", ":05:"+minute+":", 1), n)
	}
	early, late, few := at("06", 200), at("16", 100)+at("18", 100), at("06", 2)
	rules := writeFile(t, "rules.yaml", "rules: [{name: api, per: ip, limits: [{rate: 5/s}]}]\n")
	for _, c := range []struct {
		text string
		code int
		want string
	}{
		{early + late, exitOK, ""},
		{late + early, exitInvalid, "the log is not in the order of time: 200 (50 %) of the requests stand more than a minute behind later ones. Give the files as separate arguments, or sort"},
		{late + few, exitOK, "warning: 2 (0.99 %) of the requests stand more than a minute behind later ones"},
	} {
		for _, args := range [][]string{{"replay", "--config", rules}, {"suggest"}} {
			code, out, stderr := command(append(args, writeFile(t, "access.log", c.text))...)
			if code != c.code || !strings.Contains(out+stderr, c.want) {
				t.Errorf("%v: exit status %d, %s; want %d, and %q in\n%s", args, code, stderr, c.code, c.want, out)
			}
		}
	}
	// As two files, the lines are put in order.
	if code, out, stderr := command("suggest", writeFile(t, "b.log", late), writeFile(t, "a.log", early)); code != exitOK || strings.Contains(out, "behind later ones") {
		t.Errorf("two files: exit status %d, %s; want no warning in\n%s", code, stderr, out)
	}
}

func TestReplayExplainsMistakes(t *testing.T) {
	log := writeFile(t, "access.log", logLine("192.0.2.1", "07", "/a"))
	rules := writeFile(t, "rules.yaml", "rules: [{name: api, per: ip, limits: [{rate: 5/s}]}]\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--config", rules}, exitUsage, "an argument is missing"},
		{[]string{log}, exitUsage, "a policy is missing"},
		{[]string{log, "--config", log}, exitInvalid, "access.log"},
		{[]string{"/none.log", "--config", rules}, exitInvalid, "/none.log"},
		{[]string{rules, "--config", rules}, exitInvalid, "the format of the log is not known"},
		{[]string{log, "--config", rules, "--format", "x"}, exitUsage, `there is no format "x"`},
		{[]string{log, "--config", rules, "--header", "x"}, exitUsage, `"x" is no header`},
		{[]string{log, "--config", rules, "--header", "X-Key: $remote_usr"}, exitUsage, "only $remote_user is"},
		{[]string{log, "--config", rules, "--identities", "all"}, exitUsage, "write masked or full"},
	} {
		if code, _, stderr := command(append([]string{"replay"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("replay %v: exit status %d, %s; want %d, and %q", c.args, code, stderr, c.code, c.want)
		}
	}
}

func TestReplayReportsTheStepsOfTheTimes(t *testing.T) {
	rules := writeFile(t, "rules.yaml", "rules: [{name: api, per: ip, limits: [{rate: 5/s}]}]\n")
	coarse := writeFile(t, "coarse.log", logLine("192.0.2.1", "07", "/a"))
	fine := writeFile(t, "fine.log", strings.Replace(logLine("192.0.2.1", "07", "/a"), ":07 ", ":07.250 ", 1))
	for want, logs := range map[string][]string{"steps of 1s\n": {coarse}, "steps of 1ms\n": {fine}, "steps of 1ms to 1s\n": {coarse, fine}} {
		if code, out, stderr := command(append([]string{"replay", "--config", rules}, logs...)...); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%v: exit status %d, %s; want %q in\n%s", logs, code, stderr, want, out)
		}
	}
}
