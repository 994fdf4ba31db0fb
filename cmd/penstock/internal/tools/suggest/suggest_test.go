package suggest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/burst"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/memstore"
)

// randomTimes returns times of requests with bursts and pauses.
func randomTimes(rng *rand.Rand, n int) (times []time.Time) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for len(times) < n {
		mean := time.Duration(rng.Int64N(int64(20 * time.Second)))
		for range 1 + rng.IntN(n) {
			times = append(times, at)
			at = at.Add(time.Duration(rng.ExpFloat64() * float64(mean)).Truncate(time.Microsecond))
		}
	}
	return times[:n]
}

// TestBurstIsTheSmallest: with the burst of the curve, a real token bucket denies nothing. With one
// less, it denies something.
func TestBurstIsTheSmallest(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 0))
		times := randomTimes(rng, 1+rng.IntN(400))
		c := newCurve(nil)
		for _, at := range times {
			c.add(at, 0, nil)
		}
		for i, r := range burst.Rates {
			for _, less := range []int64{0, 1} {
				needed := c.Burst(i) - less
				if needed < 1 {
					continue
				}
				if denied := deniedOf(t, times, penstock.Per(r.Count, r.Period).WithBurst(needed)); (denied > 0) != (less == 1) {
					t.Errorf("seed %d: %v with a burst of %d, which is the smallest less %d, denies %d of %d requests", seed, r, needed, less, denied, len(times))
				}
			}
		}
	}
}

// deniedOf returns how many requests a limit denies.
func deniedOf(t *testing.T, times []time.Time, limit penstock.Limit) (denied int) {
	var now time.Time
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	limiter, err := penstock.NewLimiter(store, "x", limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range times {
		now = at
		d, err := limiter.Allow(context.Background(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			denied++
		}
	}
	return denied
}

// suggest reads a log in which each client sends requests at its times.
func suggest(t *testing.T, clients map[string][]time.Time, o Options) *Report {
	t.Helper()
	var lines []string
	for address, times := range clients {
		for _, at := range times {
			lines = append(lines, fmt.Sprintf("{\"start_time\":%q,\"remote_addr\":%q,\"request_uri\":\"/\"}\n", at.Format(lineTime), address))
		}
	}
	report, err := runLines(t, lines, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

const lineTime = "2006-01-02T15:04:05.000000Z07:00"

// runLines reads lines that begin with their times, in the order of these.
func runLines(t *testing.T, lines []string, o Options) (*Report, error) {
	t.Helper()
	slices.Sort(lines)
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := accesslog.Open([]string{path}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	o.Log = log
	o.Headroom = max(o.Headroom, 1)
	if o.Identity == nil {
		o.Identity = func(e *accesslog.Entry) string { return "ip:" + e.Address.String() }
	}
	report, err := Run(context.Background(), o)
	if err == nil && report.Log.Late > 0 {
		t.Fatalf("%d requests are out of order", report.Log.Late)
	}
	return report, err
}

var start = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// steady returns n times with equal gaps.
func steady(n int, gap time.Duration) (times []time.Time) {
	for i := range n {
		times = append(times, start.Add(time.Duration(i)*gap))
	}
	return times
}

// TestAbusersAreFoundAndOthersPass: in random traffic of people and of five kinds of abusers, the
// suggested limit denies at most the budget of the people, and every abuser.
func TestAbusersAreFoundAndOthersPass(t *testing.T) {
	const people, budget = 1000, 0.01
	abusers := map[string][]time.Time{
		"203.0.113.1": steady(6000, 10*time.Millisecond),   // 100/s
		"203.0.113.2": steady(36000, 100*time.Millisecond), // 10/s for an hour
		"203.0.113.3": steady(3000, 0),                     // all at once
		"203.0.113.4": append(steady(1500, 20*time.Millisecond), steady(40000, 90*time.Millisecond)[20000:]...),
		"203.0.113.5": steady(9000, 400*time.Millisecond)[:9000], // 2.5/s for an hour
	}
	for seed := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, 0))
		clients := make(map[string][]time.Time)
		for i := range people { // pages of some requests, every minute or so
			at := start.Add(time.Duration(rng.Int64N(int64(time.Hour / 2))))
			var times []time.Time
			for range 1 + rng.IntN(6) {
				for range 1 + rng.IntN(8) {
					times = append(times, at)
					at = at.Add(time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond)).Truncate(time.Microsecond))
				}
				at = at.Add(time.Minute + time.Duration(rng.Int64N(int64(time.Minute))))
			}
			clients[fmt.Sprintf("10.0.%d.%d", i/250, i%250)] = times
		}
		for address, times := range abusers {
			clients[address] = times
		}
		report := suggest(t, clients, Options{Budget: budget, Headroom: 1.5, ShowsIdentities: true})
		limit, err := penstock.ParseRate(fmt.Sprintf("%s, burst %d", report.Suggested.Rate, report.Suggested.Burst))
		if err != nil {
			t.Fatal(err)
		}
		hit := 0
		for address, times := range clients {
			isAbuser := abusers[address] != nil
			isDenied := deniedOf(t, times, limit) > 0
			if isAbuser && !isDenied {
				t.Errorf("seed %d: %v denies nothing to the abuser %s", seed, limit, address)
			}
			if !isAbuser && isDenied {
				hit++
			}
		}
		if most := budget * people; float64(hit) > most {
			t.Errorf("seed %d: %v hits %d of the people; want at most %v", seed, limit, hit, most)
		}
		if len(report.Outliers) == 0 || report.IsUncertain {
			t.Errorf("seed %d: the outliers are %v, and the report is uncertain: %v; want some, and false", seed, report.Outliers, report.IsUncertain)
		}
	}
}

// TestShortLogsAreNotExtrapolated: a log of 20 minutes does not show that a burst is enough that
// refills in 40 hours, because clients come again.
func TestShortLogsAreNotExtrapolated(t *testing.T) {
	clients := make(map[string][]time.Time)
	for i := range 400 { // visits of 20 requests
		at := start.Add(time.Duration(i) * 3 * time.Second)
		for range 20 {
			key := fmt.Sprintf("10.0.%d.%d", i/250, i%250)
			clients[key] = append(clients[key], at)
			at = at.Add(2 * time.Second)
		}
	}
	report := suggest(t, clients, Options{Budget: 0.01, Headroom: 1})
	limit, err := penstock.ParseRate(fmt.Sprintf("%s, burst %d", report.Suggested.Rate, report.Suggested.Burst))
	if err != nil {
		t.Fatal(err)
	}
	if refill := time.Duration(limit.Burst) * limit.Period / time.Duration(limit.Count); refill > time.Hour || report.IsShort {
		t.Errorf("%v refills in %v, and the report says that the log is too short: %t; want less than an hour, and false", limit, refill, report.IsShort)
	}
	if atOnce := suggest(t, map[string][]time.Time{"192.0.2.1": steady(30, 0)}, Options{Budget: 0.01}); !atOnce.IsShort {
		t.Errorf("a log of one moment gives %+v; want that it is too short", atOnce.Suggested)
	}
}

func TestReportSaysWhatItRestsOn(t *testing.T) {
	clients := map[string][]time.Time{"192.0.2.1": steady(30, time.Second), "192.0.2.2": steady(3, time.Second)}
	report := suggest(t, clients, Options{Budget: 0.01})
	if report.Requests != 33 || report.Identities != 2 || !report.IsUncertain || len(report.Outliers) != 0 || report.Busiest[0].PerMinute != 30 || report.Busiest[0].Key != "ip:192.0.2.0/24" {
		t.Errorf("%+v; want 33 requests of 2 identities, an uncertain report, and the busiest masked", report)
	}
	for _, p := range report.Frontier {
		if p.Rate == "1/s" && p.Bursts[BudgetName(0)] != 1 {
			t.Errorf("1/s needs a burst of %d for one request a second; want 1", p.Bursts[BudgetName(0)])
		}
	}
	none := suggest(t, clients, Options{Identity: func(*accesslog.Entry) string { return "" }})
	if none.Suggested != nil || none.WithoutIdentity != 33 {
		t.Errorf("without identities: %+v; want no suggestion", none)
	}
}

// TestBudgetIsAShareOfTheIdentities: of 100 clients, whose bursts are 1 to 100, a budget of 5 %
// leaves out the five busiest.
func TestBudgetIsAShareOfTheIdentities(t *testing.T) {
	clients := make(map[string][]time.Time)
	for i := range 100 {
		clients[fmt.Sprintf("10.0.0.%d", i)] = steady(i+1, 0)
	}
	report := suggest(t, clients, Options{Budget: 0.05})
	last := report.Frontier[len(report.Frontier)-1].Bursts
	if last["0"] != 100 || last["0.001"] != 100 || last["0.01"] != 99 || last["0.05"] != 95 {
		t.Errorf("the bursts are %v; want 100, 100, 99 and 95", last)
	}
}
