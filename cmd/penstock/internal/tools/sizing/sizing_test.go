package sizing

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// margin returns how far the formula may be from what Redis reports, as a fraction of the latter.
// Redis estimates the size of a large sorted set from five elements, whose sizes are random.
func margin(l *penstock.Plan) float64 {
	if l.Algorithm().IsCollection() {
		return 0.25
	}
	return 0.1
}

// TestFormulaAgreesWithRedis fills limits and compares their memory with MEMORY USAGE.
func TestFormulaAgreesWithRedis(t *testing.T) {
	server := redistest.Start(t)
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	store, err := redisstore.Open(server.URL(), redisstore.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	day := penstock.PerDay
	limits := map[string][]penstock.Limit{
		"token bucket":       {day(5000)},
		"leaky bucket":       {day(5000).With(penstock.LeakyBucket)},
		"fixed window":       {day(5000).With(penstock.FixedWindow)},
		"sliding window":     {day(5000).With(penstock.SlidingWindow)},
		"sub-window":         {day(60).With(penstock.SubWindow(10))},
		"many sub-windows":   {day(400).With(penstock.SubWindow(60))},
		"log of 20":          {day(20).With(penstock.SlidingLog)},
		"log of 128":         {day(128).With(penstock.SlidingLog)},
		"log of 1,000":       {day(1000).With(penstock.SlidingLog)},
		"5 slots":            {penstock.InFlight(5, time.Hour)},
		"300 slots":          {penstock.InFlight(300, time.Hour)},
		"two token buckets":  {day(5000), penstock.PerHour(5000)},
		"a bucket and a log": {day(5000), penstock.PerHour(50).With(penstock.SlidingLog)},
	}
	for name, list := range limits {
		if _, err := server.Do("FLUSHALL", "SYNC"); err != nil {
			t.Fatal(err)
		}
		l, err := penstock.NewLimiter(store, "api", list...)
		if err != nil {
			t.Fatal(err)
		}
		tolerance := 0.0
		hasSubWindows := l.Plans()[0].Algorithm().Title() == "sub-window"
		hasCollection := l.Plans()[len(list)-1].Algorithm().IsCollection()
		for i := 0; ; i++ {
			var charges []penstock.Charge
			for _, plan := range l.Plans() {
				c := penstock.Charge{Key: "key:1234567", Plan: plan, Cost: 1}
				if plan.Algorithm().NeedsHolder() { // each hold has a holder of its own
					c.Holder = fmt.Sprintf("%022d", i)
				}
				charges = append(charges, c)
				tolerance = max(tolerance, margin(plan))
			}
			d, err := store.Decide(t.Context(), charges)
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed {
				break
			}
			if !hasSubWindows && !hasCollection { // one request stores all numbers of the state
				break
			}
			if hasSubWindows {
				const perDay = 65 // requests, so that each of up to 60 sub-windows of a day has one
				now = now.Add(24 * time.Hour / perDay)
				if i == perDay+5 {
					break
				}
			}
		}
		used, keys := usageOf(t, server)
		formula, formulaKeys := Usage(len("ps1{key:1234567}api"), l.Plans())
		t.Logf("%-20s %7d bytes in %d keys; the formula gives %d bytes", name, used, keys, formula)
		if keys != formulaKeys || math.Abs(float64(used-formula)) > tolerance*float64(used) {
			t.Errorf("%s: Usage returns %d bytes in %d keys; want %d in %d, as Redis reports", name, formula, formulaKeys, used, keys)
		}
	}
}

// usageOf returns the memory of all keys of a server, and the number of its keys.
func usageOf(t *testing.T, server *redistest.Server) (bytes, n int) {
	t.Helper()
	all, err := server.Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range all.([]any) {
		used, err := server.Do("MEMORY", "USAGE", key.(string), "SAMPLES", "0")
		if err != nil {
			t.Fatal(err)
		}
		bytes, n = bytes+int(used.(int64)), n+1
	}
	return bytes, n
}

// TestTablesCountToo compares the memory of a client with the growth of the whole server's memory.
func TestTablesCountToo(t *testing.T) {
	server := redistest.Start(t)
	// use decides once for each of n clients, and returns the memory that Redis uses then. The buffers
	// of the store's connections do not count.
	var plans []*penstock.Plan
	use := func(n int) int64 {
		t.Helper()
		store, err := redisstore.Open(server.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close() // a second call does nothing
		l, err := penstock.NewLimiter(store, "api", penstock.PerDay(100))
		if err != nil {
			t.Fatal(err)
		}
		plans = l.Plans()
		for i := range n {
			if _, err := l.Allow(t.Context(), fmt.Sprintf("key:%07d", i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		used, err := server.UsedMemory()
		if err != nil {
			t.Fatal(err)
		}
		return used
	}
	before := use(1)
	const clients = 4000 // so that Redis has copied its tables when they grew at 2,048 keys
	after := use(1 + clients)
	got := float64(after-before) / clients
	want := float64(Of(Load{Limits: plans, KeyLength: len("ps1{key:1234567}api"), Clients: 1}).BytesPerClient)
	if math.Abs(got-want) > 0.1*want {
		t.Errorf("Redis uses %.0f bytes for a client; want %.0f, as Of returns", got, want)
	}
}
