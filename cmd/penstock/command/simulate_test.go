package command

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestSimulateGivesTheNumbersOfTheExamples: the arrivals and the numbers are those of well-known
// descriptions of a token bucket.
func TestSimulateGivesTheNumbersOfTheExamples(t *testing.T) {
	code, out, stderr := command("simulate", "10/s, burst 100", "--arrivals", "150 at 0s; 60 at 5s", "-o", "json")
	var got struct {
		Simulations []struct {
			Requests, Allowed, Denied int64
			MostUnits                 int64 `json:"most_units"`
			Timeline                  []struct {
				From            float64
				Allowed, Denied int64
				RetryAfter      float64 `json:"retry_after"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &got); code != exitOK || err != nil || len(got.Simulations) != 1 {
		t.Fatalf("exit status %d, %v\n%s%s", code, err, out, stderr)
	}
	one := got.Simulations[0]
	if rows := one.Timeline; len(rows) != 2 || rows[0].Allowed != 100 || rows[0].Denied != 50 || rows[0].RetryAfter != 0.1 || rows[1].From != 5 || rows[1].Allowed != 50 || rows[1].Denied != 10 {
		t.Errorf("the timeline is %+v; want 100 of 150 allowed at 0 s with a retry after 0.1 s, and 50 of 60 at 5 s", rows)
	}
	if one.Requests != 210 || one.Allowed != 150 || one.Denied != 60 || one.MostUnits != 100 {
		t.Errorf("the sums are %+v; want 210, 150, 60, and at most 100 in a second", one)
	}
}

// TestSimulateOfTheDocs runs the commands of docs/algorithms.md, and compares what they print.
func TestSimulateOfTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/algorithms.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"simulate", "10/s, burst 100", "--arrivals", "150 at 0s; 60 at 5s"},
		{"simulate", "100/min", "--algorithm", "all", "--arrivals", "20/s from 55s for 10s"},
	} {
		_, out, stderr := command(args...)
		if at := strings.Index(out, "        algorithm  requests"); at > 0 {
			out = out[at:] // the docs show the last table only
		}
		if out == "" || !strings.Contains(string(page), out) {
			t.Errorf("docs/algorithms.md does not show what %q prints:\n%s%s", args, out, stderr)
		}
	}
}

func TestSimulateComparesAlgorithms(t *testing.T) {
	code, out, stderr := command("simulate", "100/min", "--algorithm", "all", "--arrivals", "boundary")
	if code != exitOK {
		t.Fatalf("exit status %d\n%s", code, stderr)
	}
	lines := strings.Split(out, "\n")
	for _, want := range []string{"token-bucket 200 101 99 101 0s", "fixed-window 200 200 0 200 0s", "sliding-window 200 100 100 100 0s", "sliding-log 200 100 100 100 0s", "sub-window 200 100 100 100 0s"} {
		isThere := false
		for _, line := range lines {
			isThere = isThere || strings.Join(strings.Fields(line), " ") == want
		}
		if !isThere {
			t.Errorf("no line is %q:\n%s", want, out)
		}
	}
}

func TestSimulateSaysThatABurstIsLeftOut(t *testing.T) {
	_, out, _ := command("simulate", "10/s, burst 20", "--algorithm", "token-bucket,fixed-window", "--arrivals", "30 at 0s")
	if n := strings.Count(out, "has no burst"); n != 1 || !strings.Contains(out, "note: fixed-window has no burst, so burst 20 is left out") {
		t.Errorf("%d algorithms have no burst; want the note of fixed-window:\n%s", n, out)
	}
}

func TestSimulatePrintsEachDecision(t *testing.T) {
	code, out, stderr := command("simulate", "1/s", "--arrivals", "2 at 0s", "--on-denied", "wait", "--decisions")
	want := "time client try decision remaining retry after wait / 0s 0 1 allowed 0 0s 0s / 0s 0 1 denied 0 1s 0s / 1s 0 2 allowed 0 0s 0s"
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if got := strings.Join(lines, " / "); code != exitOK || !strings.Contains(got, want) {
		t.Errorf("exit status %d\n%s%s; want the lines %s", code, out, stderr, want)
	}
}

// TestSimulateSeveralRegions: regions that exchange stay within the bound beside what they admit.
// Regions on their own admit as many times the limit as there are.
func TestSimulateSeveralRegions(t *testing.T) {
	for _, across := range []string{"", "exchange"} {
		code, out, stderr := command("simulate", "100/s, burst 100", "--regions", "3", "--across", across, "--delay", "80ms", "--cut", "2@10s..40s", "-o", "json")
		var got struct {
			Simulations []struct {
				Allowed, Bound int64
				Most           int64   `json:"most_units"`
				ByRegion       []int64 `json:"allowed_by_region"`
				Messages       int64
			}
		}
		if err := json.Unmarshal([]byte(out), &got); code != exitOK || err != nil || len(got.Simulations) != 1 {
			t.Fatalf("exit status %d, %v\n%s%s", code, err, out, stderr)
		}
		one := got.Simulations[0]
		if one.Most > one.Bound || len(one.ByRegion) != 3 || one.ByRegion[1] < 30*100/3 {
			t.Errorf("--across %q: %+v; want at most the bound, and in region 2 at least its share", across, one)
		}
		if isShared := across != ""; isShared != (one.Allowed < 6600) || isShared != (one.Messages > 0) {
			t.Errorf("--across %q: %+v; want about 60 times the limit for all regions, or for each one", across, one)
		}
	}
}

// TestSimulateLeases: with leases, the store gets fewer calls than there are requests, and the
// bound stands beside what was admitted. A limit that cannot be leased has a note.
func TestSimulateLeases(t *testing.T) {
	args := []string{"simulate", "1000/s, burst 1000", "--instances", "3", "--lease", "100", "--arrivals", "900/s poisson for 5s; 3000 at 5s"}
	code, out, stderr := command(append(args, "--algorithm", "token-bucket,sliding-log")...)
	wanted := []string{"bound: leased: 249 units more: a block of 83 for each of 3 instances", "leases decided ", ", and the store got ", "; the bound is 2250\n",
		"; sliding-log cannot have a lease, so the store decides each request\n", "7516 requests: 4588 allowed, 2928 denied\n"}
	if missing := missingIn(out, wanted...); code != exitOK || missing != nil {
		t.Errorf("exit status %d, %s; the output lacks %q:\n%s", code, stderr, missing, out)
	}
	_, out, _ = command(append(args, "-o", "json")...)
	var got struct {
		Simulations []struct {
			Requests, Leased, Bound int64
			StoreCalls              int64 `json:"store_calls"`
			Most                    int64 `json:"most_units"`
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Simulations) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	if one := got.Simulations[0]; one.Leased*2 < one.Requests || one.StoreCalls*2 > one.Requests || one.Most > one.Bound {
		t.Errorf("%+v; want that leases decide more than half, that the store gets fewer calls than half, and at most the bound", one)
	}
	if _, out, _ = command("simulate", "10/s", "--lease", "100", "--instances", "3"); !strings.Contains(out, "note: all instances together lease at most a quarter of 10 units, which is too little here") {
		t.Errorf("a small limit has no note:\n%s", out)
	}
}

func TestSimulateExplainsMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"":                     "an argument is missing",
		"fast":                 "rate",
		"10/s --algorithm gcr": `there is no algorithm "gcr"`,
		"10/s --algorithm fixed-window --arrivals 5":                 "",
		"10/s --arrivals soon":                                       `arrivals "soon"`,
		"10/s --on-denied cry":                                       "write drop, wait or retry",
		"10/s --on-failure panic":                                    "write local, open or closed",
		"10/s --down 20s":                                            "as in 20s..40s",
		"10/s --regions 16":                                          "--regions is 16; write 1 to 15",
		"10/s --across exchange":                                     "add --regions 2 or more",
		"10/s --regions 2 --across sharing":                          "write exchange or share",
		"10/s --regions 2 --cut 3@1s..2s":                            "as in 2@10s..40s",
		"10/s --regions 2 --cut 2@2s..1s":                            "as in 2@10s..40s",
		"10/s --regions 2 --delay 1h":                                "write 0 to 500ms",
		"10/s --regions 2 --down 1s..2s":                             "about one region",
		"1/s --regions 2 --across exchange":                          "cannot be shared by 2 regions",
		"10/s --regions 2 --across exchange --algorithm sliding-log": "sliding-log cannot be across regions",
		"10/s --down 20s..10s":                                       "as in 20s..40s",
		"10/s --cost 0":                                              "--cost is 0",
		"10/s --instances 0":                                         "--instances is 0",
		"10/s --max-wait -1s":                                        "--max-wait is -1s",
		"10/s --lease 1":                                             "--lease is 1; write 2 to",
		"10/s --lease 5 --max-wait 1s":                               "remove --lease or --max-wait",
		"10/s --regions 2 --lease 5":                                 "about one region",
		"10/s --decisions --arrivals 200000":                         "more than 100000 decisions",
		"10/s --arrivals 10000001":                                   "write at most 10000000",
		"10/s -o yaml":                                               `unknown output "yaml"`,
	} {
		code, out, stderr := command(append([]string{"simulate"}, strings.Fields(args)...)...)
		if want == "" && code == exitOK {
			continue
		}
		if code != exitUsage || !strings.Contains(stderr, want) || out != "" {
			t.Errorf("simulate %s: exit status %d, %q and the output %.200q; want 2, and an error with %q", args, code, stderr, out, want)
		}
	}
}
