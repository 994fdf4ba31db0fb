package resplimit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
)

// redisCell is a model of redis-cell, written from its documentation: GCRA in nanoseconds, with one
// theoretical arrival time (TAT) per key. The module itself, unlike its documentation, forgets a
// key up to 1 ms early, because it truncates the time to live.
type redisCell struct {
	tats    map[string]int64 // TAT by key, in ns
	expires map[string]int64 // when each key is forgotten, in ms; nil: no key is forgotten early
}

// throttle returns the five integers of the reply. The time now is in ns. isCut tells for each
// integer whether redis-cell cuts off a part of a second below 1 ms. This package rounds such a
// part up.
func (r *redisCell) throttle(key string, maxBurst, count, period, quantity, now int64) (reply [5]int64, isCut [5]bool) {
	interval := int64(float64(period*1e9) / float64(count))
	tolerance, increment := interval*(maxBurst+1), interval*quantity
	tat, isKnown := r.tats[key]
	expires, canExpire := r.expires[key]
	isForgotten := canExpire && now/1e6 > expires
	if !isKnown || tat < now || isForgotten {
		tat = now
	}
	reply = [5]int64{0, maxBurst + 1, 0, -1, 0} // limited, limit, remaining, retry after, reset after
	ttl := tat + increment - now                // until all units are refilled
	if wait := tat + increment - tolerance - now; wait > 0 {
		reply[0], ttl = 1, tat-now
		if quantity <= maxBurst+1 {
			reply[3], isCut[3] = cellSeconds(wait)
		}
	} else {
		r.tats[key] = tat + increment
		if r.expires != nil {
			r.expires[key] = now/1e6 + ttl/1e6
		}
	}
	if next := tolerance - ttl; next > -interval {
		reply[2] = next / interval
	}
	reply[4], isCut[4] = cellSeconds(ttl)
	return reply, isCut
}

// cellSeconds returns a time in seconds as redis-cell does: rounded up, but a part of a second
// below 1 ms is cut off. isCut reports whether there was such a part.
func cellSeconds(ns int64) (s int64, isCut bool) {
	s, rest := ns/1e9, ns%1e9
	if rest >= 1e6 {
		return s + 1, false
	}
	return s, rest > 0
}

// cellLimits are limits of redis-cell. The period is in seconds. The intervals between units are
// whole microseconds, so redis-cell does not truncate them.
var cellLimits = []struct{ maxBurst, count, period int64 }{
	{maxBurst: 15, count: 30, period: 60},
	{maxBurst: 0, count: 1, period: 1},
	{maxBurst: 1, count: 2, period: 1},
	{maxBurst: 4, count: 5, period: 1},
	{maxBurst: 99, count: 100, period: 60},
	{maxBurst: 0, count: 1, period: 3600},
	{maxBurst: 9, count: 1000, period: 1},
	{maxBurst: 3, count: 8, period: 7},
	{maxBurst: 63, count: 64, period: 1},
	{maxBurst: 999, count: 100000, period: 1},
}

// The test makes 100,000 calls, and compares every integer of the replies with the model of
// redis-cell. Only parts of a second below 1 ms may differ. With
// PENSTOCK_REDIS_CELL=/path/libredis_cell.so, the test also calls that module in a server with the
// same clock. The module must reply like its model.
func TestThrottleRepliesLikeRedisCell(t *testing.T) {
	effort.SkipUnderRace(t)
	callModule := func(string, time.Time) string { return "" }
	if module := os.Getenv("PENSTOCK_REDIS_CELL"); module != "" {
		server, clock := redistest.StartClocked(t, "--loadmodule", module)
		client := connect(t, server.Addr)
		callModule = func(line string, at time.Time) string {
			if err := clock.Freeze(at); err != nil {
				t.Fatal(err)
			}
			return client.do(line)
		}
	}
	seed := effort.Seed()
	random := rand.New(rand.NewPCG(seed, 1))
	now := newClock()
	_, addr := serve(t, memstore.New(memstore.Options{Now: now.Now}), nil, Options{Parallel: 1})
	client := connect(t, addr)
	model := redisCell{tats: make(map[string]int64)}
	// moduleModel forgets keys early, as the module does.
	moduleModel := redisCell{tats: make(map[string]int64), expires: make(map[string]int64)}
	calls := effort.Of(25_000, 2_000_000)
	rounded, denied, neverFit, forgottenEarly := 0, 0, 0, 0 // numbers of integers, and of calls
	for i := range calls {
		index := random.IntN(len(cellLimits))
		maxBurst, count, period := cellLimits[index].maxBurst, cellLimits[index].count, cellLimits[index].period
		key := fmt.Sprintf("key:%d:%d", index, random.IntN(3))
		quantities := []int64{1, 1, 1, 0, 2, random.Int64N(maxBurst + 3)}
		quantity := quantities[random.IntN(len(quantities))]
		interval := period * 1_000_000 / count                                                          // µs
		steps := []int64{0, 0, 1, random.Int64N(interval + 1), interval, 400, random.Int64N(3_000_000)} // µs
		now.advance(time.Duration(steps[random.IntN(len(steps))]) * time.Microsecond)
		line := fmt.Sprintf("CL.THROTTLE %s %d %d %d %d", key, maxBurst, count, period, quantity)
		if quantity == 1 && random.IntN(2) == 0 {
			line = strings.TrimSuffix(line, " 1")
		}
		want, isCut := model.throttle(key, maxBurst, count, period, quantity, now.Now().UnixNano())
		if module := callModule(line, now.Now()); module != "" {
			wantOfModule, _ := moduleModel.throttle(key, maxBurst, count, period, quantity, now.Now().UnixNano())
			if module != fmt.Sprint(wantOfModule) {
				t.Fatalf("PENSTOCK_SEED=%d, call %d, %s: the reply of the module is %s; want, as from its model, %v", seed, i, line, module, wantOfModule)
			}
			if wantOfModule != want {
				forgottenEarly++
			}
		}
		for k := range want {
			if isCut[k] {
				want[k]++
				rounded++
			}
		}
		if got := client.do(line); got != fmt.Sprint(want) {
			t.Fatalf("PENSTOCK_SEED=%d, call %d, %s: the reply is %s; want, as from redis-cell, %v", seed, i, line, got, want)
		}
		if want[0] == 1 {
			denied++
			if want[3] == -1 {
				neverFit++
			}
		}
	}
	t.Logf("of %d calls, %d were denied, and %d of these can never fit; %d parts below 1 ms were rounded up; the module forgot a key too early before %d calls",
		calls, denied, neverFit, rounded, forgottenEarly)
	// Of 25,000 calls, 2,350 are denied, 1,420 can never fit and 1,720 parts are rounded up, each
	// with a deviation below 50. So the bounds are more than 20 deviations away.
	if denied < calls/20 || neverFit < calls/500 || rounded < calls/1000 {
		t.Errorf("of %d calls only %d were denied, %d can never fit and %d parts were rounded up; want at least %d, %d and %d", calls, denied, neverFit, rounded, calls/20, calls/500, calls/1000)
	}
}

// The first lines are those of redis-cell's README and of its own end-to-end test.
func TestThrottleRepliesAsDocumented(t *testing.T) {
	now := newClock()
	_, addr := serve(t, memstore.New(memstore.Options{Now: now.Now}), nil, Options{})
	client := connect(t, addr)
	client.expect("CL.THROTTLE user123 15 30 60 1", "[0 16 15 -1 2]")
	client.expect("cl.throttle e2e 0 1 2 1", "[0 1 0 -1 2]")
	client.expect("CL.THROTTLE e2e 0 1 2 1", "[1 1 0 2 2]")
	for range 15 {
		client.do("CL.THROTTLE user123 15 30 60")
	}
	client.expect("CL.THROTTLE user123 15 30 60", "[1 16 0 2 32]")
	client.expect("CL.THROTTLE user123 15 30 60 17", "[1 16 0 -1 32]")
	now.advance(2*time.Second - 400*time.Microsecond) // the next unit comes 0.4 ms later
	client.expect("CL.THROTTLE user123 15 30 60", "[1 16 0 1 31]")
	client.expect("CL.THROTTLE user123 15 30 60 0", "[0 16 0 -1 31]")

	client.expect("THROTTLE crab 2 1 10", "[1 2 1 10 0]")
	client.expect("THROTTLE crab 2 1 10 1", "[1 2 0 20 0]")
	client.expect("THROTTLE crab 2 1 10 1", "[0 2 0 20 10]")
	client.expect("THROTTLE crab 2 1 10 3", "[0 2 0 20 -1]")
	client.expect("THROTTLE crab 2 1 10 0", "[1 2 0 20 0]")
}

func TestAQuantityOfZeroWritesNothing(t *testing.T) {
	store := memstore.New(memstore.Options{})
	_, addr := serve(t, store, nil, Options{})
	client := connect(t, addr)
	client.expect("CL.THROTTLE a 4 1 60 0", "[0 5 5 -1 0]")
	client.expect("THROTTLE a 4 1 60 0", "[1 4 4 0 0]")
	if n := store.Len(); n != 0 {
		t.Errorf("the store has %d counters; want none", n)
	}
}

// Used units stay used when the numbers change.
func TestOtherNumbersKeepUsedUnits(t *testing.T) {
	now := newClock()
	_, addr := serve(t, memstore.New(memstore.Options{Now: now.Now}), nil, Options{})
	client := connect(t, addr)
	client.expect("CL.THROTTLE a 9 10 60 10", "[0 10 0 -1 60]")
	client.expect("CL.THROTTLE a 19 10 60 10", "[0 20 0 -1 120]")
	client.expect("CL.THROTTLE a 9 20 60 1", "[1 10 0 33 60]")
	client.expect("THROTTLE a 25 20 60 5", "[1 25 0 75 0]")
	now.advance(75 * time.Second)
	client.expect("CL.THROTTLE a 9 20 60 0", "[0 10 10 -1 0]")
}

func TestDelForgetsUsedUnits(t *testing.T) {
	guarded, err := guard.Standard(memstore.New(memstore.Options{}), guard.Options{Instances: 1}) // it has a deny cache
	if err != nil {
		t.Fatal(err)
	}
	defer guarded.Close()
	for name, store := range map[string]penstock.Store{"memstore": memstore.New(memstore.Options{}), "guarded": guarded} {
		_, addr := serve(t, store, nil, Options{})
		client := connect(t, addr)
		for _, key := range []string{"a", "b", "c"} {
			client.do("CL.THROTTLE " + key + " 0 1 3600")
			if got := client.do("CL.THROTTLE " + key + " 0 1 3600"); !strings.HasPrefix(got, "[1 1 0 ") {
				t.Errorf("%s: the reply to the second call of key %q is %s; want a denial", name, key, got)
			}
		}
		client.expect("DEL a", "1")
		client.expect("UNLINK b c b", "2")
		for _, key := range []string{"a", "b", "c"} {
			client.expect("CL.THROTTLE "+key+" 0 1 3600", "[0 1 0 -1 3600]")
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{})
	client := connect(t, addr)
	most := strconv.FormatInt(penstock.MaxCost, 10)
	for _, c := range []struct{ line, want string }{
		{"CL.THROTTLE", "wrong number of arguments"},
		{"CL.THROTTLE a 1 1", "write CL.THROTTLE key"},
		{"THROTTLE a 1 1 1 1 1", "write THROTTLE key"},
		{"CL.THROTTLE a x 1 1", "not an integer"},
		{"CL.THROTTLE a 1 1.5 1", "not an integer"},
		{"CL.THROTTLE a 1 1 9223372036854775808", "not an integer"},
		{"CL.THROTTLE a 1 0 1", "zero rates"},
		{"CL.THROTTLE a 1 1 0", "zero rates"},
		{"THROTTLE a 1 0 1", "zero rates"},
		{"CL.THROTTLE a 1 -1 1", "negative"},
		{"CL.THROTTLE a 1 1 -1", "negative"},
		{"CL.THROTTLE a -1 1 1", "max_burst"},
		{"THROTTLE a 0 1 1", "max_burst"},
		{"CL.THROTTLE a " + most + " 1 1", "max_burst"},
		{"CL.THROTTLE a " + strconv.Itoa(math.MaxInt64) + " 1 1", "max_burst"},
		{"CL.THROTTLE a 1 1 1 -1", "quantity"},
		{"CL.THROTTLE a 1 1 1 " + strconv.Itoa(penstock.MaxCost+1), "quantity"},
		{"CL.THROTTLE a 1 1 31622401", "the longest is 31622400 (366 days)"},
		{"CL.THROTTLE a 1 1 31622400", "the largest is 0"},
		{"CL.THROTTLE a 366 1 86400", "longer than 366 days to refill at this rate; the largest is 365"},
		{"THROTTLE a 367 1 86400", "longer than 366 days to refill at this rate; the largest is 366"},
		{"CL.THROTTLE a 1 1 " + strconv.Itoa(math.MaxInt64), "period"},
		{"CL.THROTTLE a 1 " + strconv.Itoa(math.MaxInt64) + " 1", "cl.throttle"},
		{"CL.THROTTLE a 7918 7919 31536000", "too large to count exactly"},
		{"DEL", "wrong number of arguments for 'del'"},
		{"PENSTOCK.CHECK a b", "no policy"},
	} {
		if got := client.do(c.line); !strings.HasPrefix(got, "-ERR ") || !strings.Contains(got, c.want) {
			t.Errorf("%s: the reply is %q; want an error that contains %q", c.line, got, c.want)
		}
	}
	client.expect("CL.THROTTLE a 0 1 31622400", "[0 1 0 -1 31622400]")
	client.expect("CL.THROTTLE a2 365 1 86400 366", "[0 366 0 -1 31622400]")
	client.expect("THROTTLE a3 366 1 86400 366", "[1 366 0 31622400 0]")
	client.expect("CL.THROTTLE b 1 1 1 "+most, "[1 2 2 -1 0]")
}

// Clients choose the numbers, so without a bound they could fill the memory with plans.
func TestPlansAreBounded(t *testing.T) {
	p, err := newPlans("a")
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(3 * maxPlans) {
		if _, err := p.get(numbers{burst: 1, count: i + 1, periodSeconds: 60}); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.compiled.Len(); n != maxPlans {
		t.Errorf("%d plans are kept; want %d", n, maxPlans)
	}
}
