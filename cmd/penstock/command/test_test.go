package command

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"strings"
	"testing"
)

const (
	ridesPolicy = "../../../examples/rides.yaml"
	ridesCases  = "../../../examples/cases/rides.yaml"
)

func TestCasesOfTheExamplePassAsThePageShows(t *testing.T) {
	code, out, err := command("test", ridesPolicy, ridesCases)
	if code != exitOK || err != "" {
		t.Errorf("test: exit status %d, %s; want %d", code, err, exitOK)
	}
	page, readErr := os.ReadFile("../../../docs/testing-policies.md")
	if readErr != nil {
		t.Fatal(readErr)
	}
	if shown := strings.ReplaceAll(out, "../../../examples/", ""); !strings.Contains(string(page), shown) {
		t.Errorf("docs/testing-policies.md does not show\n%s", shown)
	}
}

func TestFailedCasesHaveAnExitStatusAndAPlace(t *testing.T) {
	cases := writeFile(t, "cases.yaml", "cases:\n  - name: one & only\n    send: POST /api/rides/request\n    steps:\n      - {times: 21, expect: allowed}\n")
	code, out, _ := command("test", ridesPolicy, cases)
	want := "FAIL  " + cases + ": one & only\n      " + cases + ":5:29: request 21: the outcome is denied by ride-request.second; expected allowed\n" +
		"note  no case reaches rule drivers-nearby\nnote  no case reaches rule fare-estimate\nnote  no case reaches rule trip-history\n0 passed, 1 failed\n"
	if code != exitProblem || out != want {
		t.Errorf("test: exit status %d\n%s\nwant %d\n%s", code, out, exitProblem, want)
	}

	code, out, _ = command("test", "-o", "json", ridesPolicy, cases, ridesCases)
	var report caseReport
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitProblem || len(report.Cases) != 4 {
		t.Fatalf("test -o json: exit status %d, %v in %s; want %d and 4 cases", code, err, out, exitProblem)
	}
	if report.Passed != 3 || report.Failed != 1 || report.Cases[0].Failures[0].Line != 5 || len(report.Unreached) != 0 {
		t.Errorf("test -o json prints %s; want 3 cases passed, one failed in line 5, and no unreached rule", out)
	}

	code, out, _ = command("test", "-o", "junit", ridesPolicy, cases, ridesCases)
	var suite junitSuite
	if err := xml.Unmarshal([]byte(out), &suite); err != nil || code != exitProblem || suite.Tests != 4 || suite.Failures != 1 {
		t.Fatalf("test -o junit: exit status %d, %v in %s; want %d, 4 tests and one failure", code, err, out, exitProblem)
	}
	if first, second := suite.Cases[0], suite.Cases[1]; first.Name != "one & only" || len(first.Failures) != 1 || len(second.Failures) != 0 {
		t.Errorf("test -o junit prints %s; want the failure in the first case, %q", out, "one & only")
	}
}

// A rule with always is reached if it charges a request, although another rule decides the request.
// It is not reached if the other rule denies all its requests.
func TestRulesThatChargeAreReached(t *testing.T) {
	policy := writeFile(t, "policy.yaml", "rules:\n  - {name: deletes, match: {method: DELETE}, always: true, per: ip, limits: [{rate: 1000/min}]}\n"+
		"  - {name: login, match: {path: /login}, per: ip, limits: [{rate: 5/min}]}\n")
	for steps, want := range map[string]string{
		"{send: DELETE /login, expect: allowed, rule: login}":                             "1 passed, 0 failed\n",
		"{times: 5, expect: allowed}, {send: DELETE /login, expect: denied, rule: login}": "note  no case reaches rule deletes\n1 passed, 0 failed\n",
	} {
		cases := writeFile(t, "cases.yaml", "cases: [{name: one, send: POST /login, steps: ["+steps+"]}]")
		if _, out, err := command("test", policy, cases); !strings.HasSuffix(out, want) || strings.Count(out, "note") != strings.Count(want, "note") {
			t.Errorf("%s: the report is\n%s%s\nwant at its end\n%s", steps, out, err, want)
		}
	}
}

func TestInvalidCasesAreListedFromAllFiles(t *testing.T) {
	first := writeFile(t, "first.yaml", "cases: [{name: a, send: GET /, steps: [{expect: no}]}]")
	second := writeFile(t, "second.yaml", "cases: [{name: a, send: GET /, steps: [{times: 0, expect: allowed}]}]")
	code, out, err := command("test", ridesPolicy, first, second)
	if missing := missingIn(err, first+":1:49: there is no outcome", second+":1:48: times is 0"); code != exitInvalid || out != "" || missing != nil {
		t.Errorf("test: exit status %d, %s%s; want %d with %q", code, out, err, exitInvalid, missing)
	}
	for _, args := range []string{"test", "test " + ridesPolicy, "test -o yaml " + ridesPolicy + " " + ridesCases} {
		if code, _, err := command(strings.Fields(args)...); code != exitUsage || !strings.Contains(err, "write ") {
			t.Errorf("%s: exit status %d, %s; want %d with %q", args, code, err, exitUsage, "write ")
		}
	}
	code, _, err = command("test", ridesCases, ridesPolicy)
	if want := ridesCases + " has cases, but the policy comes first; are the files swapped? Then write: penstock test " + ridesPolicy + " " + ridesCases + "\n"; code != exitUsage || !strings.Contains(err, want) {
		t.Errorf("test with swapped files: exit status %d, %s; want %d with %q", code, err, exitUsage, want)
	}
	if code, _, err := command("test", ridesCases, ridesCases); code != exitUsage || !strings.Contains(err, "write the policy before it") {
		t.Errorf("test without a policy: exit status %d, %s; want %d", code, err, exitUsage)
	}
	for _, args := range []string{"test none.yaml " + ridesCases, "test " + ridesPolicy + " none.yaml", "test " + fileWithMistakes + " " + ridesCases} {
		if code, _, err := command(strings.Fields(args)...); code != exitInvalid {
			t.Errorf("%s: exit status %d, %s; want %d", args, code, err, exitInvalid)
		}
	}
}
