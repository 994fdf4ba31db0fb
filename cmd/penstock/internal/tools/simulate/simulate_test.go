package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/effort"
)

func plan(t testing.TB, rate string) *penstock.Plan {
	t.Helper()
	limit, err := penstock.ParseRate(rate)
	if err != nil {
		t.Fatal(err)
	}
	return limit.MustCompile()
}

// decisions simulates arrivals, and returns the decisions too.
func decisions(t testing.TB, arrivals string, o Options) (*Result, []Decision) {
	t.Helper()
	var err error
	if o.Arrivals, err = Parse(arrivals, o.Limit, 1); err != nil {
		t.Fatal(err)
	}
	o.Cost = max(o.Cost, 1)
	if o.OnDenied == "" {
		o.OnDenied = Drop
	}
	var all []Decision
	o.Observe = func(d Decision) { all = append(all, d) }
	result, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return result, all
}

// times returns when requests arrived, as text.
func times(all []Decision) string {
	var texts []string
	for _, d := range all {
		texts = append(texts, time.Duration(d.At).String())
	}
	return strings.Join(texts, " ")
}

func TestArrivalsComeAtTheirTimes(t *testing.T) {
	limit := plan(t, "1000/s")
	for arrivals, want := range map[string]string{
		"2 at 1s":                                      "1s 1s",
		"3 every 50ms from 5s":                         "5s 5.05s 5.1s",
		"3/s for 1s":                                   "0s 333.333ms 666.666ms",
		"2/s from 1s to 2s; 1 at 1200ms":               "1s 1.2s 1.5s",
		"2/s on 1s off 4s for 7s":                      "0s 500ms 5s 5.5s",
		"2 clients every 1s for 2s":                    "0s 0s 1s 1s",
		"2 clients joining 1/s every 1s from 1s to 3s": "1s 2s 2s",
		"1_0 at 0s":                                    strings.TrimSpace(strings.Repeat("0s ", 10)),
	} {
		result, all := decisions(t, arrivals, Options{Limit: limit})
		if got := times(all); got != want || result.Allowed != int64(len(all)) {
			t.Errorf("%q: the requests came at %s, and %d were allowed; want %s, and all", arrivals, got, result.Allowed, want)
		}
	}
}

func TestRandomArrivalsHaveTheirRate(t *testing.T) {
	// 10,000 requests are expected. Their standard deviation is 100, so 700 is seven of them.
	result, all := decisions(t, "1000/s poisson for 10s", Options{Limit: plan(t, "1000000/s"), Seed: 1})
	if n := result.Requests; n < 9300 || n > 10700 {
		t.Errorf("there were %d requests; want 10,000 ± 700", n)
	}
	if _, again := decisions(t, "1000/s poisson for 10s", Options{Limit: plan(t, "1000000/s"), Seed: 1}); !slices.Equal(all, again) {
		t.Error("the same seed gave other decisions")
	}
	if _, other := decisions(t, "1000/s poisson for 10s", Options{Limit: plan(t, "1000000/s"), Seed: 2}); slices.Equal(all, other) {
		t.Error("another seed gave the same decisions")
	}
}

func TestInvalidArrivalsAreExplained(t *testing.T) {
	for arrivals, want := range map[string]string{
		"":                                "nothing is written here",
		"at 0s":                           `"at" is neither a number of requests nor a rate`,
		"0 at 0s":                         `"0" is neither a number`,
		"5 at":                            `nothing follows "at"`,
		"5 at soon":                       `"soon" is not a time`,
		"5 at -1s":                        `"-1s" is not a time`,
		"5 at 9000h":                      `"9000h" is not a time of at most 8784h`,
		"5 at 1s at 2s":                   `"at" stands there twice`,
		"5 at 1s from 2s":                 "at and from mean the same",
		"5 burst":                         `the word "burst" is not known`,
		"100/s":                           "a rate needs an end",
		"100/s for 0s":                    "not after its start",
		"100/s for 1s every 1s":           "remove every",
		"100/fortnight for 1s":            "fortnight",
		"5 poisson":                       "poisson, on and off belong to a rate",
		"100/s on 1s for 5s":              "on and off belong together",
		"5 clients for 5s":                "clients need their number",
		"5 clients every 0s for 5s":       "a client needs a time",
		"5 clients every 2s..1s for 5s":   "is not a range of times",
		"5 every 1s..2s":                  "is not a range of times",
		"5 at 1s..2s":                     "is a range, which only every may have",
		"5 joining 1/s":                   "only clients join",
		"5 in eu":                         `"eu" is not the number of a region`,
		"5 in 0":                          `"0" is not the number of a region`,
		"5 in 2":                          "there is no region 2",
		"2000000 clients every 1s for 1s": "write at most 1000000",
		strings.Repeat("1 at 0s;", 100):   "there are 101 arrivals",
	} {
		if _, err := Parse(arrivals, plan(t, "10/s"), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", arrivals, err, want)
		}
	}
}

func TestEveryNameIsValid(t *testing.T) {
	for _, rate := range []string{"1/s", "10/s, burst 100", "100/min", "7/90s", "10000/day", "1000000/day"} {
		limit := plan(t, rate)
		for _, n := range names {
			if _, err := Parse(n.word, limit, 1); err != nil {
				t.Errorf("%s for %s: %v", n.word, rate, err)
			}
		}
	}
}

func TestDeniedRequestsComeBackAsTheClientDecides(t *testing.T) {
	limit := plan(t, "1/s")
	for _, c := range []struct {
		onDenied         Denied
		times            string
		retries, givenUp int64
	}{
		{Drop, "0s 0s 0s", 0, 2},
		{Wait, "0s 0s 0s 1s 1s 2s", 3, 0},
		{Retry, "0s 0s 0s 100ms 100ms 200ms 200ms 300ms 300ms", 6, 2},
	} {
		result, all := decisions(t, "3 at 0s", Options{Limit: limit, OnDenied: c.onDenied})
		if got := times(all); got != c.times || result.Retries != c.retries || result.GivenUp != c.givenUp {
			t.Errorf("%s: the requests came at %s, %d were retries and %d were given up; want %s, %d and %d", c.onDenied, got, result.Retries, result.GivenUp, c.times, c.retries, c.givenUp)
		}
	}
}

func TestClientsHaveCountersOfTheirOwn(t *testing.T) {
	shared, _ := decisions(t, "10 clients every 100ms for 1s", Options{Limit: plan(t, "2/s")})
	own, _ := decisions(t, "10 clients every 100ms for 1s", Options{Limit: plan(t, "2/s"), PerKey: true})
	if shared.Allowed != 3 || own.Allowed != 10*3 { // two at once, and one after 500 ms
		t.Errorf("%d requests were allowed with one counter, and %d with ten; want 3 and 30", shared.Allowed, own.Allowed)
	}
}

// TestClientsAreTheSameInEachPart: client i of each part of the arrivals has one counter, and so
// have the streams, which are client 0.
func TestClientsAreTheSameInEachPart(t *testing.T) {
	perHour := plan(t, "2/h")
	for arrivals, want := range map[string]int64{
		"3 at 1s; 2 at 2s": 2,
		"2 clients every 10m for 10m; 1 clients every 10m from 10m to 20m; 1 at 0s": 2*1 + 1 + 1, // client 1, 2, 1 again, and 0
		"2 clients every 1m for 3m; 1 clients every 1m from 3m to 5m":               2 * 2,
	} {
		if result, _ := decisions(t, arrivals, Options{Limit: perHour, PerKey: true}); result.Allowed != want {
			t.Errorf("%q: %d requests were allowed; want %d", arrivals, result.Allowed, want)
		}
	}
	for _, name := range []string{"burst", "boundary"} {
		shared, _ := decisions(t, name, Options{Limit: perHour})
		if own, _ := decisions(t, name, Options{Limit: perHour, PerKey: true}); !reflect.DeepEqual(own, shared) {
			t.Errorf("%s is %+v with a counter for its client; want %+v, as with one for all", name, own, shared)
		}
	}
}

func TestWaitingRequestsAreAdmittedAtTheirTurn(t *testing.T) {
	result, all := decisions(t, "4 at 0s", Options{Limit: plan(t, "2/s, burst 1"), Patience: time.Second})
	var waits []Seconds
	for _, d := range all {
		waits = append(waits, d.Wait)
	}
	half := Seconds(500 * time.Millisecond)
	if want := []Seconds{0, half, 2 * half, 0}; !reflect.DeepEqual(waits, want) || result.MostUnits != 2 || result.LongestWait != 2*half {
		t.Errorf("the waits are %v, %d units were admitted in a second, and the longest wait is %v; want %v, 2 and 1s", waits, result.MostUnits, result.LongestWait, want)
	}
}

// TestOutagesStayWithinTheBound: a fleet admits at most what guard.Options.Bounds states, whatever
// fails. Its second part shows that the test finds a fleet that admits more.
func TestOutagesStayWithinTheBound(t *testing.T) {
	most := func(seed uint64, mode guard.FailureMode) (admitted, bound int64, replay string) {
		rng := rand.New(rand.NewPCG(seed, 0))
		count, instances := 1+rng.Int64N(200), 1+rng.IntN(8)
		burst := 1 + rng.Int64N(3*count)
		limit := plan(t, fmt.Sprintf("%d/s, burst %d", count, burst))
		down := time.Duration(rng.Int64N(int64(5 * time.Second)))
		o := Options{Limit: limit, Instances: instances, OnFailure: mode, DownFrom: down, DownTo: down + time.Duration(rng.Int64N(int64(5*time.Second))), Seed: seed}
		result, _ := decisions(t, fmt.Sprintf("%d/s poisson for 10s; %d at %v; %d at %v", 1+rng.Int64N(2*count), burst, o.DownFrom, burst, o.DownTo), o)
		over := int64(0)
		for _, b := range (guard.Options{OnFailure: guard.FailLocal, Instances: instances, DenyCacheTTL: -1}).Bounds(limit) {
			if b.When == "store fails" || b.When == "store returns" {
				over += b.MaxExcess
			}
		}
		return result.MostUnits, burst + count + over, fmt.Sprintf("seed %d: %v, %d instances, down from %v to %v", seed, limit, instances, o.DownFrom, o.DownTo)
	}
	isFound := false
	for seed := range uint64(60) {
		if admitted, bound, replay := most(seed, guard.FailLocal); admitted > bound {
			t.Errorf("%s: %d units were admitted in a second; want at most %d", replay, admitted, bound)
		}
		if admitted, bound, _ := most(seed, guard.FailOpen); admitted > bound {
			isFound = true
		}
	}
	if !isFound {
		t.Error("no fleet that fails open admitted more than one that fails local may; the test finds nothing")
	}
}

// TestLeasesStayWithinTheBound: fleets with leases admit at most the bound that is printed, also
// around outages, and the same in each run. Leases decide most requests, and the store gets fewer
// calls.
func TestLeasesStayWithinTheBound(t *testing.T) {
	var requests, leased, calls, over int64
	fleets := effort.Of(100, 1000)
	for i := range uint64(fleets) {
		seed := effort.Seed() + i
		rng := rand.New(rand.NewPCG(seed, 0))
		count := 20 + rng.Int64N(400)
		rate := penstock.PerSecond(count)
		switch algorithms := []*algorithm.Algorithm{penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(4)}; rng.IntN(2) {
		case 0:
			rate = rate.WithBurst(20 + rng.Int64N(3*count))
		default:
			rate = rate.With(algorithms[rng.IntN(len(algorithms))])
		}
		o := Options{Limit: rate.MustCompile(), Instances: 1 + rng.IntN(8), Lease: 2 + rng.Int64N(200), Seed: seed, PerKey: rng.IntN(3) == 0}
		if rng.IntN(3) == 0 {
			o.DownFrom = time.Duration(1 + rng.Int64N(int64(3*time.Second)))
			o.DownTo = o.DownFrom + time.Duration(1+rng.Int64N(int64(3*time.Second)))
			o.OnFailure = []guard.FailureMode{guard.FailLocal, guard.FailClosed}[rng.IntN(2)]
		}
		most := o.Limit.Capacity()
		arrivals := fmt.Sprintf("%d/s poisson for 5s; %d at %v; 3 clients every 1ms..30ms for 2s", 1+rng.Int64N(count), 2*most, time.Duration(rng.Int64N(int64(5*time.Second))))
		if rng.IntN(4) == 0 { // when the burst arrives, the bucket is full, and the instances hold units
			most := 200 + rng.Int64N(200)
			o = Options{Limit: penstock.PerSecond(1000).WithBurst(most).MustCompile(), Instances: 2 + rng.IntN(2), Lease: 50 + rng.Int64N(200), Seed: seed}
			arrivals = fmt.Sprintf("%d/s for 2s; %d at 2s; 2000/s from 2s for 1s", 400+rng.Int64N(400), 2*most)
		}
		result, all := decisions(t, arrivals, o)
		if result.Bound == 0 || result.MostUnits > result.Bound {
			t.Errorf("PENSTOCK_SEED=%d: %d units were admitted in a second; the bound is %d; %v, %+v, %s", seed, result.MostUnits, result.Bound, o.Limit, o, arrivals)
		}
		if again, allAgain := decisions(t, arrivals, o); !reflect.DeepEqual(again, result) || !slices.Equal(all, allAgain) {
			t.Errorf("PENSTOCK_SEED=%d: the same simulation gave %+v and then %+v", seed, result, again)
		}
		requests, leased, calls = requests+result.Requests, leased+result.Leased, calls+result.StoreCalls
		if most := regions.Within(o.Limit, time.Second); result.MostUnits > most {
			over++ // only with units that leases hold, or around an outage
		}
	}
	if leased*8 < requests || calls*4 > requests*3 || over == 0 {
		t.Errorf("of %d requests, leases decided %d, and the store got %d calls; %d fleets admitted more than the limit; want an eighth, at most three quarters, and some", requests, leased, calls, over)
	}
	t.Logf("counted: %d fleets with leases; of %d requests, leases decided %d, and the store got %d calls; %d fleets admitted more than the limit", fleets, requests, leased, calls, over)
}

func TestStoreIsDownInTheOutageOnly(t *testing.T) {
	result, all := decisions(t, "10 every 1s", Options{Limit: plan(t, "10/s"), DownFrom: 3 * time.Second, DownTo: 5 * time.Second, OnFailure: guard.FailClosed})
	var denied []string
	for _, d := range all {
		if !d.IsAllowed {
			denied = append(denied, time.Duration(d.At).String())
		}
	}
	if got := strings.Join(denied, " "); got != "3s 4s" || result.InOutage != 2 {
		t.Errorf("the requests at %q were denied, and %d came in the outage; want 3s and 4s, and two", got, result.InOutage)
	}
}

func TestTimelineHasAllDecisions(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var timeline Timeline
		n, at := 1+rng.IntN(3000), time.Duration(0)
		for range n {
			timeline.Add(Decision{At: Seconds(at), IsAllowed: rng.IntN(2) == 0})
			at += time.Duration(rng.ExpFloat64() * float64(rng.Int64N(int64(time.Second)))).Truncate(time.Microsecond)
		}
		rows := timeline.Rows()
		sum, end := int64(0), Seconds(-1)
		for _, r := range rows {
			if r.Allowed+r.Denied != r.Requests || r.From < end || r.To < r.From {
				t.Fatalf("seed %d: the row %+v is wrong, or begins before the end of the row before it", seed, r)
			}
			sum, end = sum+r.Requests, r.To
		}
		if sum != int64(n) || len(rows) > maxRows {
			t.Fatalf("seed %d: %d rows have %d decisions; want at most %d with %d", seed, len(rows), sum, maxRows, n)
		}
	}
}

func TestCanceledSimulationEnds(t *testing.T) {
	arrivals, err := Parse("1000 at 0s", plan(t, "1/s"), 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Limit: plan(t, "1/s"), Arrivals: arrivals, Cost: 1, OnDenied: Drop}); err != context.Canceled {
		t.Errorf("a canceled simulation ended with %v; want %v", err, context.Canceled)
	}
}

func FuzzParse(f *testing.F) {
	for _, n := range names {
		f.Add(n.arrivals(plan(f, "10/s, burst 20")))
	}
	f.Add("5 at 1s; 3 every 1s..2s")
	limit := plan(f, "1000/s")
	f.Fuzz(func(t *testing.T, text string) {
		arrivals, err := Parse(text, limit, 1)
		if err != nil {
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		seen := 0
		_, _ = Run(ctx, Options{Limit: limit, Arrivals: arrivals, Cost: 1, OnDenied: Retry, Observe: func(Decision) {
			if seen++; seen > 1000 {
				cancel()
			}
		}})
		cancel()
	})
}
