package suggest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

// A visit is a request, and how long it takes.
type visit struct {
	at       time.Time
	duration time.Duration
}

// randomVisits returns requests with bursts and pauses. Their times and durations are in steps, so
// that some are equal, as in logs.
func randomVisits(rng *rand.Rand, n int) (visits []visit) {
	step := []time.Duration{time.Millisecond, time.Second}[rng.IntN(2)]
	for _, at := range randomTimes(rng, n) {
		duration := time.Duration(rng.ExpFloat64() * float64(10*time.Second))
		visits = append(visits, visit{at.Truncate(step), duration.Truncate(step) * time.Duration(rng.IntN(2))})
	}
	slices.SortFunc(visits, inOrder)
	return visits
}

// inOrder compares requests as the log orders them.
func inOrder(a, b visit) int {
	return cmp.Or(a.at.Compare(b.at), strings.Compare(fmt.Sprintf("%.3f", a.duration.Seconds()), fmt.Sprintf("%.3f", b.duration.Seconds())))
}

// isDenied reports whether a limit denies one of the requests.
func isDenied(t *testing.T, visits []visit, limit penstock.Limit) bool {
	t.Helper()
	if limit.Algorithm != penstock.Concurrency {
		var times []time.Time
		for _, v := range visits {
			times = append(times, v.at)
		}
		return deniedOf(t, times, limit) > 0
	}
	var now time.Time
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{Now: func() time.Time { return now }}), "x", limit)
	if err != nil {
		t.Fatal(err)
	}
	holds := make(map[*penstock.Hold]time.Time) // and when they end
	for _, v := range visits {
		for hold, end := range holds {
			if !end.After(v.at) {
				now = end
				if err := hold.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
				delete(holds, hold)
			}
		}
		now = v.at
		hold, err := limiter.Acquire(context.Background(), "k")
		if errors.As(err, new(*penstock.DeniedError)) {
			return true
		}
		if err != nil {
			t.Fatal(err)
		}
		holds[hold] = v.at.Add(v.duration)
	}
	return false
}

// runVisits reads a log with the requests of each client.
func runVisits(t *testing.T, clients map[string][]visit, o Options) (*Report, error) {
	t.Helper()
	var lines []string
	for address, visits := range clients {
		for _, v := range visits {
			lines = append(lines, fmt.Sprintf("{\"start_time\":%q,\"request_time\":\"%.3f\",\"remote_addr\":%q,\"request_uri\":\"/\"}\n", v.at.Format(lineTime), v.duration.Seconds(), address))
		}
	}
	return runLines(t, lines, o)
}

// TestCountsAreTheSmallestWithinTheBudget: in random logs, a real limit of the count for a budget
// denies at most that share of the clients. One less denies more of them.
func TestCountsAreTheSmallestWithinTheBudget(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		clients := make(map[string][]visit)
		for i := range 12 + rng.IntN(30) {
			clients[fmt.Sprintf("10.0.0.%d", i)] = randomVisits(rng, 1+rng.IntN(60))
		}
		for _, name := range Algorithms()[1:] {
			o := Options{Algorithm: name, Window: []time.Duration{time.Second, 10 * time.Second, time.Minute, 90 * time.Minute}[rng.IntN(4)], Budget: 0.1, KeepsOutliers: true}
			report, err := runVisits(t, clients, o)
			if err != nil {
				t.Fatal(err)
			}
			limitOf := func(n int64) penstock.Limit {
				switch name {
				case penstock.FixedWindow.Title():
					return penstock.Per(n, o.Window).With(penstock.FixedWindow)
				case penstock.SlidingLog.Title():
					return penstock.Per(n, o.Window).With(penstock.SlidingLog)
				}
				return penstock.InFlight(n, 24*time.Hour)
			}
			for _, budget := range []float64{0, 0.1} {
				count, mayDeny := report.Counted.Counts[BudgetName(budget)], int(budget*float64(len(clients)))
				for _, n := range []int64{count, count - 1} {
					denied := 0
					for _, visits := range clients {
						if n > 0 && isDenied(t, visits, limitOf(n)) {
							denied++
						}
					}
					if n > 0 && (denied <= mayDeny) != (n == count) {
						t.Errorf("seed %d: %s of %d, in windows of %v: %d clients are denied, and the budget is %d of %d; the suggested count is %d", seed, name, n, o.Window, denied, mayDeny, len(clients), count)
					}
				}
			}
			together := slices.Concat(slices.Collect(maps.Values(clients))...)
			slices.SortFunc(together, inOrder)
			if isDenied(t, together, limitOf(report.Counted.All)) || !isDenied(t, together, limitOf(report.Counted.All-1)) {
				t.Errorf("seed %d: %s, in windows of %v: %d is not the smallest count for all clients together", seed, name, o.Window, report.Counted.All)
			}
		}
	}
}

// TestPeaksKeepLittle: if too much is kept, it is merged. The counts are then too high at most, and
// what has ended is dropped.
func TestPeaksKeepLittle(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		exact, merged, held := slidingPeak{length: 1e6}, slidingPeak{length: 1e6}, 0
		flight, flightHeld := newPeak(penstock.Concurrency.Title(), 0), 0
		now := int64(0)
		for range 5000 {
			now += rng.Int64N(10_000)
			exact.add(now, 0, new(int))
			merged.add(now, 0, &held)
			flight.add(now, now+rng.Int64N(100_000), &flightHeld)
			if held > 100 {
				if held = merged.shrink(now, true); held > 51 {
					t.Fatalf("seed %d: after a merge %d moments are kept; want at most half", seed, held)
				}
			}
			if held != len(merged.recent) || flightHeld != flight.(*flightPeak).ends.Len() || flightHeld > 100 {
				t.Fatalf("seed %d: %d and %d are said to be kept; %d and %d are", seed, held, flightHeld, len(merged.recent), flight.(*flightPeak).ends.Len())
			}
		}
		if merged.most() < exact.most() || merged.most() > exact.most()*5/4 {
			t.Errorf("seed %d: the count after merges is %d; want %d, or somewhat more", seed, merged.most(), exact.most())
		}
		if n := flight.shrink(now+1e6, false); n != 0 {
			t.Errorf("seed %d: %d requests that have ended are kept", seed, n)
		}
	}
}

// TestAllPeaksShareABound: what all clients keep is bounded together.
func TestAllPeaksShareABound(t *testing.T) {
	all, held := newCurve(newPeak("sliding-log", time.Hour)), 0
	byKey := make(map[string]*curve)
	for i := range 10 {
		byKey[fmt.Sprint(i)] = newCurve(newPeak("sliding-log", time.Hour))
	}
	merges := 0
	for i := range maxHeld {
		at := start.Add(time.Duration(i) * 100 * time.Microsecond)
		all.peak.add(at.UnixMicro(), 0, &held)
		byKey[fmt.Sprint(i%10)].peak.add(at.UnixMicro(), 0, &held)
		if held > maxHeld {
			isMerged, err := shrink(byKey, all, at.UnixMicro(), &held)
			if err != nil || !isMerged || held > maxHeld/2+10 {
				t.Fatalf("%d are kept after a merge, %v; want at most half of %d", held, err, maxHeld)
			}
			merges++
		}
	}
	if most := byKey["0"].peak.most(); merges == 0 || most < maxHeld/10 || most > maxHeld/10*1001/1000 {
		t.Errorf("after %d merges the count of a client is %d; want %d, or slightly more", merges, most, maxHeld/10)
	}
	flights, held := newCurve(newPeak("in_flight", 0)), 0
	for i := range int64(maxHeld + 1) {
		flights.peak.add(i, 1e12+i, &held)
	}
	if _, err := shrink(nil, flights, maxHeld, &held); err == nil || !strings.Contains(err.Error(), "in flight at once") {
		t.Errorf("with too many requests in flight, the error is %v", err)
	}
}

func TestOutliersAreThoseOfTheLimit(t *testing.T) {
	clients := make(map[string][]visit)
	for i := range 20 {
		clients[fmt.Sprintf("10.0.0.%d", i)] = []visit{{start, time.Second}, {start.Add(time.Minute), time.Second}}
	}
	for i := range 8 { // few requests, and slow ones
		clients["203.0.113.1"] = append(clients["203.0.113.1"], visit{start.Add(time.Duration(i) * time.Minute), time.Hour})
	}
	report, err := runVisits(t, clients, Options{Algorithm: "in_flight", ShowsIdentities: true})
	if err != nil || len(report.Outliers) != 1 || report.Outliers[0].Key != "ip:203.0.113.1" || report.Outliers[0].Count != 8 || report.Suggested.InFlight != 1 || report.Counted.All != 22 {
		t.Errorf("%v: the outliers are %+v, and %+v is suggested; want the client with 8 slow requests, and one in flight", err, report.Outliers, report.Suggested)
	}
	report, err = runVisits(t, clients, Options{Algorithm: "sliding-log", Window: 10 * time.Minute})
	if err != nil || len(report.Outliers) != 1 || report.Suggested.Rate != "2/10m" || !report.IsShort {
		t.Errorf("%v: for a sliding log, the outliers are %+v, and %+v is suggested, short: %v; want one, 2/10m, and true", err, report.Outliers, report.Suggested, report.IsShort)
	}
}

func TestInFlightNeedsDurations(t *testing.T) {
	line := fmt.Sprintf("{\"start_time\":%q,\"request_uri\":\"/\"}\n", start.Format(lineTime))
	if _, err := runLines(t, []string{line}, Options{Algorithm: "in_flight"}); !errors.Is(err, ErrNoDurations) {
		t.Errorf("the error is %v; want ErrNoDurations", err)
	}
}
