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

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/policy/policyfile"
)

const fileWithMistakes = "testdata/five-mistakes.yaml"

// mistakeLine is a line of validate: its place, what is wrong, and how to fix it.
var mistakeLine = regexp.MustCompile(`^testdata/five-mistakes\.yaml:(\d+:\d+): ([^;]+); (.+)\n$`)

func TestEveryMistakeHasItsPlaceAndFix(t *testing.T) {
	code, out, err := command("validate", fileWithMistakes)
	if code != exitInvalid || err != "" {
		t.Errorf("validate: exit status %d, %s; want %d and nothing on standard error", code, err, exitInvalid)
	}
	var places []string
	for line := range strings.Lines(out) {
		if m := mistakeLine.FindStringSubmatch(line); m != nil {
			places = append(places, m[1])
		} else {
			t.Errorf("validate prints %q; want the form file:line:column: mistake; fix", line)
		}
	}
	if want := []string{"7:19", "10:16", "11:11", "13:10", "15:22"}; !slices.Equal(places, want) {
		t.Errorf("validate reports mistakes at %v; want %v:\n%s", places, want, out)
	}
}

func TestMistakesOfTheServerSectionHaveTheirPlaceAndFix(t *testing.T) {
	const file = "testdata/five-settings.yaml"
	code, out, err := command("validate", file)
	if code != exitInvalid || err != "" || strings.Contains(out, "hunter2") {
		t.Errorf("validate: exit status %d, %s; want %d:\n%s", code, err, exitInvalid, out)
	}
	want := []string{"5:13: upstream ", "6:11: listen ", "7:18: store_timeout ", "8:15: max_header ", "9:15: log_format "}
	lines := slices.Collect(strings.Lines(out))
	for i, line := range lines {
		if i >= len(want) || !strings.HasPrefix(line, file+":"+want[i]) || !strings.Contains(line, "; write ") {
			t.Errorf("validate prints %q; want the form file:line:column: setting: mistake; fix", line)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("validate reports %d mistakes; want %d:\n%s", len(lines), len(want), out)
	}
	code, out, _ = command("validate", "-o", "json", file)
	var got findings
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitInvalid || *got.Valid || len(got.Findings) != len(want) {
		t.Errorf("as JSON: exit status %d, %v in %s; want %d and %d findings", code, err, out, exitInvalid, len(want))
	}
	if _, _, err := command("serve", "--config", file); !strings.Contains(err, "log_format") && !strings.Contains(err, "log-format") {
		t.Errorf("serve prints %q; want an error about log_format", err)
	}
}

func TestStoresThatServeRejectsAreNotValid(t *testing.T) {
	for _, setting := range []string{
		"store: redis://a,b", "store: redis://localhost/-1", "store: redis://localhost?ttl=1", "store: http://localhost", "store: rediss://localhost?cert=a.pem",
		"prefix: a b",
	} {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		text := "rules:\n  - {name: all, per: global, limits: [{rate: 10/s}]}\nserver:\n  upstream: http://localhost:1\n  store: redis://localhost\n"
		if name, _, _ := strings.Cut(setting, ":"); name == "store" {
			text = strings.Replace(text, "store: redis://localhost", setting, 1)
		} else {
			text += "  " + setting + "\n"
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, _ := command("validate", file)
		if code != exitInvalid || !strings.HasPrefix(out, file+":") {
			t.Errorf("%s: validate exits with %d: %s; want %d and the place of the mistake", setting, code, out, exitInvalid)
		}
		if code, _, err := command("serve", "--config", file); code != exitInvalid {
			t.Errorf("%s: serve exits with %d: %s; want %d", setting, code, err, exitInvalid)
		}
	}
	if code, out, _ := command("validate", "testdata/store-elsewhere.yaml"); code != 0 {
		t.Errorf("a store URL with files that do not exist here: exit status %d, %s; want 0", code, out)
	}
}

func TestValidateHintsAtLimitsThatForwardAuthCannotEnforce(t *testing.T) {
	const trusting = "http: {trusted_proxies: 10.0.0.1, case_sensitive: true, trailing_slash: keep}\n"
	for _, c := range []struct{ limits, http, want string }{
		{limits: "[{rate: 10/s}, {in_flight: 5}]", http: trusting, want: "rule a, limit in-flight: in_flight needs the end of the request"},
		{limits: "[{rate: 10/s, on_status: 401}]", http: trusting, want: "rule a, limit second: on_status needs the status"},
		{limits: "[{rate: 10/s}]", http: trusting},
		{limits: "[{in_flight: 5}]"},
	} {
		file := writeFile(t, "policy.yaml", "rules: [{name: a, match: {path: /a}, per: global, limits: "+c.limits+"}]\n"+c.http)
		code, out, _ := command("validate", "--strict", file)
		const hint = "hint: serve --api does not load this policy: "
		if code != exitOK || strings.Contains(out, hint) != (c.want != "") || c.want != "" && !strings.Contains(out, hint+c.want) {
			t.Errorf("%s with %q: exit status %d:\n%s\nwant %d, and a hint only about %q", c.limits, c.http, code, out, exitOK, c.want)
		}
	}
}

// findings is the output of validate -o json.
type findings struct {
	Valid    *bool
	Findings []finding
}

func TestJSONHasTheSameMistakes(t *testing.T) {
	_, text, _ := command("validate", fileWithMistakes)
	code, out, _ := command("validate", "-o", "json", fileWithMistakes)
	var got findings
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitInvalid || got.Valid == nil || *got.Valid {
		t.Fatalf("validate -o json: exit status %d, %v in %s; want %d", code, err, out, exitInvalid)
	}
	var lines strings.Builder
	for _, f := range got.Findings {
		fmt.Fprintf(&lines, "%s:%d:%d: %s\n", f.File, f.Line, f.Column, f.Message)
		if f.Severity != "error" {
			t.Errorf("%+v is in the list; want errors only", f)
		}
	}
	if lines.String() != text {
		t.Errorf("JSON has\n%s\nand the text is\n%s\nwant the same findings", &lines, text)
	}
	code, out, _ = command("validate", "-o", "json", "../../../examples/rides.yaml")
	if code != exitOK || out != "{\n  \"valid\": true,\n  \"findings\": []\n}\n" {
		t.Errorf("validate -o json without mistakes: exit status %d, %s; want %d", code, out, exitOK)
	}
}

func TestOneInvalidFileMakesAllInvalid(t *testing.T) {
	const good, validLine = "../../../examples/rides.yaml", "../../../examples/rides.yaml: valid, 4 rules, digest "
	const missing = "/none.yaml: cannot read the file: no such file or directory; write the name of a policy file"
	warned := writeFile(t, "warned.yaml", "rules: [{name: b, per: {first_of: [{key: header X-Key}, ip]}, limits: [{rate: 10/s}]}]\n")
	hinted := writeFile(t, "hinted.yaml", "rules: [{name: b, per: ip, limits: [{rate: 10/s}]}]\n")
	for _, c := range []struct {
		files string
		code  int
		want  []string // the beginning or end of each line
	}{
		{files: good, code: exitOK, want: []string{validLine}},
		{files: good + " " + good, code: exitOK, want: []string{validLine, validLine}},
		{files: good + " " + fileWithMistakes, code: exitInvalid,
			want: []string{validLine, fileWithMistakes + ":7:", fileWithMistakes + ":10:", fileWithMistakes + ":11:", fileWithMistakes + ":13:", fileWithMistakes + ":15:"}},
		{files: "/none.yaml " + good, code: exitInvalid, want: []string{missing, validLine}},
		{files: "testdata", code: exitInvalid, want: []string{"testdata is a folder; name a file"}},
		{files: warned, code: exitOK, want: []string{warned + ":1:42: warning: ", warned + ": valid, 1 rule, digest "}},
		{files: hinted, code: exitOK, want: []string{hinted + ":1:24: hint: ", hinted + ": valid, 1 rule, digest "}},
		{files: "--strict " + warned, code: exitInvalid, want: []string{warned + ":1:42: "}},
		{files: "--strict " + hinted, code: exitOK, want: []string{hinted + ":1:24: hint: ", hinted + ": valid, 1 rule, digest "}},
		{files: "--strict " + good + " " + warned, code: exitInvalid, want: []string{validLine, warned + ":1:42: "}},
	} {
		code, out, err := command(append([]string{"validate"}, strings.Fields(c.files)...)...)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		isSame := slices.EqualFunc(lines, c.want, func(line, want string) bool {
			return strings.HasPrefix(line, want) || strings.HasSuffix(line, want)
		})
		if code != c.code || !isSame || err != "" {
			t.Errorf("validate %s: exit status %d, %s%s\nwant %d, %q", c.files, code, out, err, c.code, c.want)
		}
	}
}

func TestVerboseDescribesThePolicy(t *testing.T) {
	const good = "../../../examples/rides.yaml"
	p, err := policyfile.Load(good, settings.PolicyOptions())
	if err != nil {
		t.Fatal(err)
	}
	code, out, _ := command("validate", "-v", good)
	if want := describe.Spec(p.Rules.Spec()) + good + ": valid, 4 rules, digest " + p.Digest + "\n"; code != exitOK || out != want {
		t.Errorf("validate -v: exit status %d, %s\nwant 0 with %s", code, out, want)
	}
	if _, out, _ := command("validate", "-v", fileWithMistakes); strings.Count(out, "\n") != 5 {
		t.Errorf("validate -v of an invalid policy prints %s; want its 5 mistakes only", out)
	}
}

func TestFilesForEnvoyAreValidated(t *testing.T) {
	good := "../../../examples/envoy"
	code, out, err := command("validate", "--envoy-config", good, "../../../examples/rides.yaml")
	if code != exitOK || err != "" {
		t.Errorf("validate: exit status %d, %s%s; want %d and no error", code, out, err, exitOK)
	}
	if last := good + ": valid, 1 domain, 5 limits\n"; !strings.Contains(out, "rides.yaml: valid, 4 rules") || !strings.HasSuffix(out, last) {
		t.Errorf("validate prints %s; want both valid, and at the end %s", out, last)
	}
	if _, out, _ := command("validate", "-v", "--envoy-config", good); !strings.Contains(out, "rides.remote_address: unit=MINUTE requests_per_unit=5") {
		t.Errorf("validate -v prints %s; want the limits", out)
	}
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("domain: web\nfoo: 1\n")
	if code, out, err := command("validate", "--envoy-config", dir); code != exitInvalid || err != "" || !strings.HasPrefix(out, filepath.Join(dir, "a.yaml")+":2: unknown key 'foo'; write one of ") {
		t.Errorf("validate --envoy-config: exit status %d, %s%s; want %d and the mistake at its line", code, out, err, exitInvalid)
	}
	write("domain: web\ndescriptors: [{key: a, unit: day}]\n")
	for flag, want := range map[string]int{"--verbose": 0, "--strict": exitInvalid} {
		if code, out, _ := command("validate", flag, "--envoy-config", dir); code != want || !strings.Contains(out, "unit has no effect in a descriptor") {
			t.Errorf("validate %s --envoy-config: exit status %d, %s; want %d and a warning", flag, code, out, want)
		}
	}
	if code, out, _ := command("validate", "--envoy-config", filepath.Join(dir, "missing")); code != exitInvalid || !strings.Contains(out, "no such file") {
		t.Errorf("validate without Envoy's folder: exit status %d, %s; want %d", code, out, exitInvalid)
	}
	if code, _, err := command("validate"); code != exitUsage || !strings.Contains(err, "write the name of a policy file") {
		t.Errorf("validate without arguments: exit status %d, %s; want %d", code, err, exitUsage)
	}
}

// The policies of the examples are copied, so they have neither warnings nor hints.
func TestPoliciesOfExamplesAreStrict(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"surge/surge.yaml", "outage/outage.yaml"} {
		if code, out, errors := command("validate", "--strict", filepath.Join("../../../examples", name)); code != exitOK {
			t.Errorf("validate --strict %s: exit status %d, %s%s; want %d", name, code, out, errors, exitOK)
		}
	}
}

// Without settings of regions, nothing says how many there are, and so how much they admit.
func TestBoundOfUnknownRegionsIsNotStated(t *testing.T) {
	write := func(server string) string {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		text := "rules:\n  - {name: all, per: global, limits: [{rate: 100/day, across: exchange}]}\n" + server
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const unknown = "set PENSTOCK_REGION and PENSTOCK_REGION_PEERS as for the instances"
	for name, c := range map[string]struct {
		server, region, peers string
		want                  string
	}{
		"nothing set":        {want: unknown},
		"one by a variable":  {region: "eu", want: "there is one region"},
		"one in the file":    {server: "server: {region: eu}\n", want: "there is one region"},
		"two by variables":   {region: "eu", peers: "us=redis://us:6379", want: "in 2 regions together"},
		"two in the file":    {server: "server: {region: eu, region_peers: 'us=redis://us:6379'}\n", want: "in 2 regions together"},
		"an invalid setting": {region: "eu", peers: "us", want: unknown},
	} {
		t.Setenv("PENSTOCK_REGION", c.region)
		t.Setenv("PENSTOCK_REGION_PEERS", c.peers)
		file := write(c.server)
		if code, out, _ := command("validate", "-v", file); code != exitOK || !strings.Contains(strings.Join(strings.Fields(out), " "), c.want) {
			t.Errorf("%s: validate -v: exit status %d, %s; want that the bound says %q", name, code, out, c.want)
		}
		if c.peers == "us" { // explain refuses it
			continue
		}
		if _, out, err := command("explain", "--config", file, "/"); !strings.Contains(strings.Join(strings.Fields(out), " "), c.want) {
			t.Errorf("%s: explain: %s%s; want that the bound says %q", name, out, err, c.want)
		}
	}
}

// serve refuses a limit with fewer units than regions. validate refuses it too if a variable or the
// file says which regions there are.
func TestLimitsWithoutASharePerRegionAreNotValid(t *testing.T) {
	const three = "us=redis://us:6379,ap=redis://ap:6379"
	write := func(server string) string {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		text := "rules:\n  - {name: all, per: global, limits: [{rate: 100/day, burst: 2, across: exchange}]}\n" + server
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for name, c := range map[string]struct {
		server, variable string
		code             int
	}{
		"unknown regions":     {"", "", 0},
		"two in a variable":   {"", "us=redis://us:6379", 0},
		"three in a variable": {"", three, exitInvalid},
		"three in the file":   {"server: {region: eu, region_peers: '" + three + "'}\n", "", exitInvalid},
	} {
		t.Setenv("PENSTOCK_REGION_PEERS", c.variable)
		code, out, err := command("validate", write(c.server))
		isRefused := strings.Contains(out, "cannot be shared by 3 regions")
		if code != c.code || isRefused != (c.code != 0) || err != "" {
			t.Errorf("%s: exit status %d, %s%s; want %d", name, code, out, err, c.code)
		}
	}
}
