package top

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

var update = flag.Bool("update", false, "write the current text to testdata/outage.txt")

// sample returns a snapshot of an instance whose store fails.
func sample() *Snapshot {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	limit := adminapi.Limit{
		Name: "hour", Kind: "enforced", Rates: []adminapi.Rate{{Text: "3 per 1h"}}, OnFailure: "local",
		Bounds: []adminapi.Bound{
			{When: "always", Over: new(int64(0)), Text: "3 units"},
			{When: "store fails", Over: new(int64(2)), Text: "2 instances with a share each: 1 unit more by rounding, and up to 1 at the beginning if one of them had used the whole limit"},
			{When: "store returns", Over: new(int64(4)), Text: "4 units more around the end"},
		},
		Candidate: &adminapi.Limit{Name: "hour.candidate", Kind: "candidate", Rates: []adminapi.Rate{{Text: "2 per 1h"}}},
	}
	open := adminapi.Limit{Name: "all", Kind: "enforced", Rates: []adminapi.Rate{{Text: "5 per 1s"}}, OnFailure: "open", Bounds: []adminapi.Bound{{When: "store fails", Text: "everything passes"}}}
	s := &Snapshot{
		State: adminapi.State{
			Time: at, Health: adminapi.Health{Status: "degraded", Checks: []adminapi.Check{{Name: "service", Status: "ok"}, {Name: "store", Status: "degraded", Detail: "degraded: unreachable"}}},
			Store: adminapi.StoreState{Name: "redis://localhost:6379", IsFailing: true, Reason: "unreachable", Breakers: map[string]string{"localhost:6379": "open"}, Instances: 2},
			FleetCounts: []adminapi.Count{
				{Rule: "login", Limit: "hour", Name: "allowed", Last10: 1234, Last60: 5000}, {Rule: "login", Limit: "hour", Name: "denied", Last10: 25},
				{Rule: "login", Limit: "hour", Name: "near_limit", Last10: 3}, {Rule: "login", Limit: "hour.candidate", Name: "shadow_denied", Last10: 7},
			},
		},
		Rules: adminapi.Rules{Rules: []adminapi.Rule{
			{Name: "login", Limits: []adminapi.Limit{limit, open}}, {Name: "health\x1b[2J", Unlimited: true},
		}},
		Offenders: adminapi.Offenders{Window: "5m", Identities: "masked", Instances: 2, Distinct: &adminapi.Distinct{Count: 1200}, Offenders: []adminapi.Offender{
			{Rule: "login", Limit: "hour", Identity: "key:ab…\x1b]0;x\ayz#01234567", AtLeast: 1000, AtMost: 1004},
			{Rule: "login", Limit: "hour", Identity: "ip:2001:db8:1234::/48#89abcdef" + strings.Repeat("x", 60), AtLeast: 7, AtMost: 7},
		}},
		Instances: adminapi.Instances{Registered: 2, Problem: "the store gives no answer: unreachable", Instances: []adminapi.Instance{
			{IsSelf: true, Host: "web-1", Version: "0.9.1", Digest: "1a2b3c4d5e6f", Started: at.Add(-50 * time.Hour), Reason: "unreachable", Counts: []adminapi.Count{{Name: "denied", Last10: 25}}},
			{Host: "web-2", Version: "0.9.1", Digest: "1a2b3c4d5e6f", Started: at.Add(-90 * time.Minute)},
		}},
		Now: adminapi.History{Lines: []adminapi.Line{{Name: "source:fallback", Counts: []uint32{100, 146}}, {Name: "source:deny_cache", Counts: []uint32{0, 5}}, {Name: "error:unreachable", Counts: []uint32{0, 5}}}},
	}
	return s
}

// The tables fit into 80 columns, and texts from clients cannot send control characters to the
// terminal.
func TestTablesOfAnOutage(t *testing.T) {
	time.Local = time.UTC
	lines := sample().Print(View{Width: 80, Notice: "NO ANSWER for 3s"})
	text := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile("testdata/outage.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/outage.txt")
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the text differs from testdata/outage.txt; if it is right, run the test with -update:\n%s", text)
	}
	for _, width := range []int{1, 40, 72, 80, 200} {
		for _, line := range sample().Print(View{Width: width}) {
			if len([]rune(line)) > width || strings.ContainsAny(line, "\x1b\a\n") {
				t.Errorf("width %d: the line %q is wider, or has control characters; want neither", width, line)
			}
		}
	}
	if got := sample().Print(View{Width: 80, Height: 5}); len(got) != 5 {
		t.Errorf("with a height of 5, Print returns %d lines; want 5", len(got))
	}
	_ = new(Snapshot).Print(View{}) // an empty snapshot must not panic
}

// The store is shown as failing until it decides again.
func TestStoreIsBackWhenItDecides(t *testing.T) {
	const fails, answers, recovers, unlimited, works = "FAILING: unreachable", "decides again", "recovering: ", "answers    no limit applies 3.5/s", "6379 ok"
	for name, c := range map[string]struct {
		change func(*Snapshot)
		want   string
	}{
		"open":        {func(*Snapshot) {}, fails},
		"no requests": {func(s *Snapshot) { s.State.Store.Breakers = nil; s.Now.Lines = nil }, fails},
		"half open": {func(s *Snapshot) {
			s.State.Store.Breakers["localhost:6379"] = "half_open"
		}, "half open: a few requests test the server"},
		"local answers": {func(s *Snapshot) {
			s.State.Store.Breakers["localhost:6379"] = "closed"
			s.Now.Lines = append(s.Now.Lines, adminapi.Line{Name: "source:store", Counts: []uint32{1}})
		}, fails},
		"breaker closed again": {func(s *Snapshot) {
			s.State.Store.Breakers["localhost:6379"] = "closed"
			s.Now.Lines = []adminapi.Line{{Name: "source:open", Counts: []uint32{9, 9}}, {Name: "error:breaker_open", Counts: []uint32{9, 9}}}
		}, recovers},
		"breaker not open yet": {func(s *Snapshot) {
			s.State.Store.Breakers["localhost:6379"] = "closed"
			s.Now.Lines = []adminapi.Line{{Name: "source:open", Counts: []uint32{1, 9}}, {Name: "error:breaker_open", Counts: []uint32{0, 9}}}
		}, fails},
		"back": {func(s *Snapshot) {
			s.State.Store.Breakers["localhost:6379"] = "closed"
			s.Now.Lines = []adminapi.Line{{Name: "source:store", Counts: []uint32{1}}}
		}, answers},
		"well": {func(s *Snapshot) {
			s.State.Store = adminapi.StoreState{Name: "redis://localhost:6379"}
			s.State.Health = adminapi.Health{Status: "ok"}
		}, works},
		"requests without a limit": {func(s *Snapshot) {
			s.State.Health = adminapi.Health{Status: "ok"}
			s.State.Store, s.Now.Lines = adminapi.StoreState{Name: "memory"}, nil
			s.State.Recent.Lines = []adminapi.Line{{Name: "unlimited", Counts: []uint32{100, 3, 4}}, {Rule: "other", Name: "unlimited", Counts: []uint32{100, 3, 4}}}
		}, unlimited},
	} {
		s := sample()
		c.change(s)
		text := strings.Join(s.Print(View{Width: 80}), "\n")
		isOutage := !slices.Contains([]string{answers, recovers, unlimited, works}, c.want)
		if !strings.Contains(text, c.want) || strings.Contains(text, "WITHOUT THE STORE") != isOutage {
			t.Errorf("%s: the text is\n%s\nwant %q in it; want the bounds of an outage in it: %v", name, text, c.want, isOutage)
		}
	}
}

func TestFailureOfALimitNamesItsCeiling(t *testing.T) {
	bounds := []adminapi.Bound{{When: "always", Over: new(int64(0))}, {When: "store fails"}}
	for want, l := range map[string]adminapi.Limit{
		"open any":     {Kind: "enforced", OnFailure: "open", Bounds: bounds},
		"open ceiling": {Kind: "enforced", OnFailure: "open", Ceiling: "5 per 1s", Bounds: bounds},
	} {
		if got := failureOf(&l); got != want {
			t.Errorf("the failure of %+v is %q; want %q", l, got, want)
		}
	}
}

// Requests that one limit decided by its share and another did not count are in both numbers.
func TestAnswersNameSkippedLimits(t *testing.T) {
	s := sample()
	s.Now.Lines = []adminapi.Line{{Name: "source:fallback", Counts: []uint32{60, 60}}, {Name: "source:open", Counts: []uint32{0, 4}}, {Name: "uncounted", Counts: []uint32{50, 54}}, {Rule: "a", Name: "uncounted", Counts: []uint32{9, 9}}}
	if got, want := s.answers(), "uncounted by a limit that fails open 52.0/s, admitted uncounted 2.0/s, local, by this instance's share 60.0/s"; got != want {
		t.Errorf("the answers are %q; want %q", got, want)
	}
	s.Now.Lines = s.Now.Lines[:2]
	s.Now.Lines = append(s.Now.Lines, adminapi.Line{Name: "uncounted", Counts: []uint32{0, 4}})
	if got, want := s.answers(), "admitted uncounted 2.0/s, local, by this instance's share 60.0/s"; got != want {
		t.Errorf("the answers are %q; want %q", got, want)
	}
}

// Each tier of a limit has a line with its rate, also in a narrow terminal.
func TestRatesOfTiersHaveTheirNames(t *testing.T) {
	s := sample()
	s.Rules.Rules[0].Limits[0].Rates = []adminapi.Rate{{Tier: "gold", Text: "1000 per 1h"}, {Tier: "free", Text: "3 per 1h"}}
	lines := s.Print(View{Width: 80})
	i := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "login.hour ") && strings.Contains(line, "by tier")
	})
	if i < 0 || !strings.Contains(lines[i], "local +2") || strings.Join(strings.Fields(lines[i+1]), " ") != "tier gold 1000 per 1h" || strings.Join(strings.Fields(lines[i+2]), " ") != "tier free 3 per 1h" {
		t.Errorf("the table is\n%s\nwant a line of login.hour by tier, with its counts, and below it a line for gold and for free", strings.Join(lines, "\n"))
	}
	if text := strings.Join(s.Print(View{}), "\n"); !strings.Contains(text, "tier gold") || strings.Contains(text, "…\n") {
		t.Errorf("without a width, the table is\n%s\nwant the tiers, and nothing cut", text)
	}
}

// Without a width no text is cut. In an outage, the most important facts come first.
func TestNothingIsCutWithoutAWidth(t *testing.T) {
	s := sample()
	long := strings.Repeat("long", 30)
	s.Rules.Rules[0].Name, s.Offenders.Offenders[0].Rule = "rule-"+long, "rule-"+long
	s.Rules.Rules[0].Limits[0].Rates = []adminapi.Rate{{Text: "rate-" + long}}
	s.Instances.Instances[0].Version, s.Instances.Instances[1].Host = "version-"+long, "host-"+long
	s.Now.Lines = append(s.Now.Lines, adminapi.Line{Name: "source:open", Counts: []uint32{9, 9}}, adminapi.Line{Name: "source:store", Counts: []uint32{0, 1}})
	text := strings.Join(s.Print(View{}), "\n")
	for _, want := range []string{"rule-" + long + ".hour", "rate-" + long, "version-" + long, "host-" + long, strings.Repeat("x", 60), "answers    admitted uncounted 9.0/s, local"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "…\n") {
		t.Errorf("a text is cut, although there is no width:\n%s", text)
	}
}

func TestFailedReloadIsShown(t *testing.T) {
	s := sample()
	s.State.Health = adminapi.Health{Status: "ok", Checks: []adminapi.Check{{Name: "policy", Status: "ok", Detail: "reload failed: the rules of 2026-01-31T11:00:00Z stay in force"}}}
	if text := strings.Join(s.Print(View{Width: 80}), "\n"); !strings.Contains(text, "policy     reload failed: the rules of 2026-01-31T11:00:00Z stay in force") {
		t.Errorf("the text does not show the failed reload:\n%s", text)
	}
}

func TestMemoryDoesNotFail(t *testing.T) {
	s := sample()
	s.State.Store, s.State.Health = adminapi.StoreState{Name: "memory"}, adminapi.Health{Status: "ok"}
	if text := strings.Join(s.Print(View{Width: 80}), "\n"); strings.Contains(text, "STORE FAILS") || strings.Contains(text, "local +2") {
		t.Errorf("the text shows what happens when the store fails; want nothing about it, because the store is in memory:\n%s", text)
	}
}

func TestInstancesOfOneHostAreDistinguished(t *testing.T) {
	s := sample()
	s.Instances.Instances[0].PID, s.Instances.Instances[1].PID = 101, 102
	if text := strings.Join(s.Print(View{Width: 80}), "\n"); strings.Contains(text, "pid") {
		t.Errorf("instances on different hosts are shown with a pid; want none:\n%s", text)
	}
	s.Instances.Instances[1].Host = "web-1"
	if text := strings.Join(s.Print(View{Width: 80}), "\n"); !strings.Contains(text, "*web-1 pid 101 ") || !strings.Contains(text, "\nweb-1 pid 102 ") {
		t.Errorf("instances on one host are shown without a pid; want 101 and 102:\n%s", text)
	}
}
