package metrics

import (
	"context"
	"errors"
	"flag"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/observe"
	"github.com/penstock/penstock/policy"
)

var update = flag.Bool("update", false, "write testdata/page.txt anew: dashboards and alerts of users depend on these names")

func TestReloadsAreCounted(t *testing.T) {
	m := New("", nil, 80)
	check := func(when string, successful, at, reloads float64) {
		t.Helper()
		if s, a := testutil.ToFloat64(m.reloadOK), testutil.ToFloat64(m.reloadTime); s != successful || a != at {
			t.Errorf("%s: the last load has success %v and time %v; want %v and %v", when, s, a, successful, at)
		}
		if n := testutil.ToFloat64(m.reloaded) + testutil.ToFloat64(m.notReloaded); n != reloads {
			t.Errorf("%s: %v reloads are counted; want %v", when, n, reloads)
		}
	}
	m.Loaded(time.Unix(100, 0))
	check("after the first load", 1, 100, 0)
	m.Reloaded(ConfigPolicy, errors.New("line 3"), time.Unix(200, 0))
	check("after a broken reload", 0, 100, 1)
	m.Reloaded(ConfigEnvoy, nil, time.Unix(250, 0))
	check("after a good reload of the other source", 0, 250, 2)
	m.Reloaded(ConfigPolicy, nil, time.Unix(300, 0))
	check("after a good reload", 1, 300, 3)
}

// pageOf returns the page of metrics, without those of the process and of Go.
func pageOf(m *Metrics) string {
	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	var page strings.Builder
	others, version := regexp.MustCompile(`^(# (HELP|TYPE) )?(go_|process_)`), regexp.MustCompile(`goversion="[^"]*"`)
	for line := range strings.Lines(recorder.Body.String()) {
		if !others.MatchString(line) {
			page.WriteString(version.ReplaceAllString(line, `goversion="go"`))
		}
	}
	return page.String()
}

// The names, labels, types and numbers of all series are those of testdata/page.txt. The file was
// written before the series moved into module observe/prometheus.
func TestPageIsAsBefore(t *testing.T) {
	m := New("v1.2.3", nil, 80)
	busy, idle := Rule{Name: "search", Limit: "second", Algorithm: "token-bucket"}, Rule{Name: "login", Limit: "hour", Algorithm: "sliding-log"}
	envoy := Rule{Name: "rides", Limit: "minute", Algorithm: "fixed-window"}
	m.AddLinesLost(func() int64 { return 3 })
	m.SetRules([]Rule{busy, idle, {Name: "login", Limit: reserved.NewIdentities, Algorithm: "token-bucket"}})
	m.SetRulesOf("resp", []Rule{{Name: "cl.throttle", Limit: "cl.throttle", Algorithm: "token-bucket"}})
	m.SetRulesOf("envoy", []Rule{envoy})
	m.SetGuards(observe.Guards{
		Stats: func() guard.Stats {
			return guard.Stats{
				DenyCacheEntries: 12,
				Lease:            guard.LeaseStats{Drawn: 100, Spent: 60, Returned: 20, Expired: 10, Lost: 5, Live: 5},
				HoldsUnreturned:  8, HoldsReturnedLate: 9,
				Breakers: map[string]guard.State{"": guard.StateClosed, "10.0.0.1:6379": guard.StateOpen, "10.0.0.2:6379": guard.StateHalfOpen},
			}
		},
		Instances:  func() int { return 4 },
		ClockSteps: func() (back, forward int64) { return 2, 1 },
		Losses:     func() int64 { return 8 },
		Scripts:    func() (missing, loaded, evals int64) { return 3, 4, 5 },

		ScriptsInFlight: func() (inFlight, queued int) { return 6, 7 },
	})
	m.AddWaiting(func() int { return 2 })
	calls := m.AddGRPC([]string{"a.B", "grpc.health.v1.Health"}, []string{"OK", "Canceled"}, func() int { return 7 })
	calls.Count("a.B", 1)
	m.AddAuthFailures(GRPCCallers)("no_token")
	m.AddRESP(func() int { return 8 })
	m.AddAuthFailures(RESPCallers)("wrong_password")
	m.AddAuthFailures(APICallers)("wrong_token")
	m.AddAuthFailures(AdminCallers)("wrong_token")
	m.AddChargedTwice()()
	m.Loaded(time.Unix(100, 0))
	m.Reloaded(ConfigPolicy, errors.New("line 3"), time.Unix(200, 0))
	const sources = int(penstock.FromClosed) + 1
	n := 0 // the number of the event; it chooses the source and the latency
	for _, rule := range []Rule{busy, envoy, {Name: "gone", Limit: "x", Algorithm: "y"}} {
		for _, o := range admission.Outcomes() {
			for range o + 1 {
				n++
				e := admission.Event{
					Rule: rule.Name, Limit: rule.Limit, Algorithm: rule.Algorithm,
					Outcome: o, Source: penstock.Source(n % sources), Latency: time.Duration(n) * 100 * time.Microsecond,
				}
				if o == admission.Abandoned {
					e.Err = context.Canceled
				}
				m.ObserveRequest(&e)
			}
		}
	}
	for range 5 {
		m.ObserveRequest(&admission.Event{Outcome: admission.Unlimited})
	}
	for i, reason := range penstock.Reasons() {
		for range i + 1 {
			m.CountError(penstock.NewStoreError(reason, nil))
		}
	}
	m.CountError(penstock.ErrInvalid)
	m.BreakerChanged("", guard.StateClosed, guard.StateOpen)
	m.TokenRejected(&policy.TokenError{Reason: policy.TokenReasons()[2]})

	const file = "testdata/page.txt"
	page := pageOf(m)
	if *update {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, now := strings.Split(string(want), "\n"), strings.Split(page, "\n")
	for i := range max(len(before), len(now)) {
		if i >= len(before) || i >= len(now) || before[i] != now[i] {
			t.Fatalf("%s has %d lines, and the page has %d; line %d is the first that differs:\nwant %s\ngot  %s", file, len(before), len(now), i+1, before[min(i, len(before)-1)], now[min(i, len(now)-1)])
		}
	}
	t.Logf("counted: %d lines of metrics with the names, labels and numbers of before", len(now))
}

func TestPageHasTheProcess(t *testing.T) {
	m := New("", nil, 80)
	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	for _, name := range []string{"\ngo_goroutines ", "\nprocess_open_fds "} {
		if !strings.Contains(recorder.Body.String(), name) {
			t.Errorf("the page lacks %q", name)
		}
	}
}
