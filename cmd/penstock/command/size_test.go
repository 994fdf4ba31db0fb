package command

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/sizing"
)

func TestSizesAreAsThePageShows(t *testing.T) {
	code, out, err := command("size", "--config", "../../../examples/rides.yaml", "--rule", "ride-request", "--clients", "1000000", "--requests", "20000")
	page, readErr := os.ReadFile("../../../docs/sizing.md")
	if readErr != nil {
		t.Fatal(readErr)
	}
	if code != exitOK || err != "" || !strings.Contains(string(page), out) {
		t.Errorf("size: exit status %d, %s; docs/sizing.md does not show\n%s; want %d", code, err, out, exitOK)
	}
}

func TestRulesAddUp(t *testing.T) {
	code, out, err := command("size", "--config", "../../../examples/rides.yaml", "-o", "json")
	var got struct {
		Rules []ruleSize
		Total sizing.Size
	}
	if jsonErr := json.Unmarshal([]byte(out), &got); jsonErr != nil || code != exitOK || len(got.Rules) != 4 {
		t.Fatalf("size -o json: exit status %d, %s%v in %s; want %d and 4 rules", code, err, jsonErr, out, exitOK)
	}
	memory, calls := int64(0), int64(0)
	for _, r := range got.Rules {
		memory, calls = memory+r.Memory, calls+r.Calls
	}
	if got.Total.Memory != memory || got.Total.Calls != calls || calls != 4000 || got.Total.Servers != 1 {
		t.Errorf("the total is %+v of %+v; want the sums, 4000 calls and 1 server", got.Total, got.Rules)
	}
	const rules, clients, bytesPerClient = 4, 100_000, 100 // the default number of clients, and fewer bytes than any limit needs
	if memory < rules*clients*bytesPerClient {
		t.Errorf("the total memory is %d bytes; want at least %d", memory, rules*clients*bytesPerClient)
	}
}

func TestALogCostsMoreThanABucket(t *testing.T) {
	file := writeFile(t, "rules.yaml", "rules:\n  - {name: log, per: ip, limits: [{rate: 1000/h, algorithm: sliding-log}]}\n  - {name: bucket, match: {path: /a}, per: ip, limits: [{rate: 1000/h}]}\n")
	_, out, err := command("size", "--config", file, "--clients", "1000000", "-o", "json")
	var got struct{ Rules []ruleSize }
	if jsonErr := json.Unmarshal([]byte(out), &got); jsonErr != nil || len(got.Rules) != 2 {
		t.Fatalf("size prints %s%v; want JSON with 2 rules", err, jsonErr)
	}
	if log, bucket := got.Rules[0].Memory, got.Rules[1].Memory; log < 400*bucket || log < 90e9 || log > 130e9 {
		t.Errorf("a million logs of 1,000 requests take %d bytes, and a million buckets %d; want 90 to 130 GB for logs, and at least 400 times as much as for buckets", log, bucket)
	}
}

// The limits have 2^51 slots. The two rules have 1e9 requests per second each.
func TestLargeSizesDoNotOverflow(t *testing.T) {
	file := writeFile(t, "rules.yaml", "rules:\n  - {name: slots, per: global, limits: [{in_flight: 2251799813685248}]}\n  - {name: b, match: {path: /a}, per: ip, limits: [{in_flight: 2251799813685248}]}\n")
	code, out, err := command("size", "--config", file, "--clients", "10000000000", "--requests", "1e9", "-o", "json")
	var got struct{ Total sizing.Size }
	if jsonErr := json.Unmarshal([]byte(out), &got); jsonErr != nil || code != exitOK {
		t.Fatalf("size -o json: exit status %d, %s%v in %s; want %d", code, err, jsonErr, out, exitOK)
	}
	if total := got.Total; total.Memory != math.MaxInt64 || total.MaxMemory != math.MaxInt64 || total.Calls != 2e9 {
		t.Errorf("the total is %+v; want the largest int64 as memory and as maxmemory, and 2e9 calls", total)
	}
}

func TestSizesThatCannotBeComputedAreRefused(t *testing.T) {
	const rides = " --config ../../../examples/rides.yaml"
	for _, args := range []string{"size", "size --clients 0" + rides, "size --requests -1" + rides, "size --requests NaN" + rides, "size --key-length 0" + rides, "size --rule none" + rides,
		"size -o yaml" + rides, "size rules.yaml"} {
		if code, _, err := command(strings.Fields(args)...); code != exitUsage || !strings.Contains(err, "; ") {
			t.Errorf("%s: exit status %d, %s; want %d with %q", args, code, err, exitUsage, "; ")
		}
	}
	for value, want := range map[string]string{"--clients=abc": `--clients is "abc"; write a whole number`, "--requests=x": `--requests is "x"; write a number`} {
		if code, _, stderr := command("size", value); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("size %s: exit status %d, %s; want %d with %q", value, code, stderr, exitUsage, want)
		}
	}
	if code, _, _ := command("size", "--config", "none.yaml"); code != exitInvalid {
		t.Errorf("size without the policy's file: exit status %d; want %d", code, exitInvalid)
	}
}
