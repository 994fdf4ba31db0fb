package redisstore

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
)

// A readCounter is a Client whose scripts count the values that their commands return, under the
// key "reads".
type readCounter struct{ Client }

func (readCounter) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", ReplyError("NOSCRIPT")
}

func (readCounter) Load(context.Context, string, []string) error { return nil }

func (c readCounter) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	counting := `local call = function(...)
  local reply = redis.call(...)
  redis.call('INCRBY', 'reads', type(reply) == 'table' and #reply + 1 or 1)
  return reply
end
`
	return c.Client.Eval(ctx, strings.Replace(script, "local call = redis.call\n", counting, 1), keys, args)
}

// A decision about a sliding log reads few entries of the log, even if limits with a shorter and a
// longer period use it in turn. Most entries have then expired for the limit with the shorter
// period, and are kept for the other limit.
func TestFewEntriesOfALogAreRead(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Start(t)
	client := dialURL(t, server.URL())
	clock := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	options := Options{Now: func() time.Time { return clock }}
	plain, counted := storeOn(t, client, options), storeOn(t, readCounter{client}, options)
	const entries = 3000
	long := penstock.PerDay(entries).With(penstock.SlidingLog).WithName("log")
	short := penstock.PerSecond(2).With(penstock.SlidingLog).WithName("log")
	decide := func(s *Store, limit *penstock.Plan, mode penstock.Mode, cost int64) penstock.Decision {
		d, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: limit, Mode: mode, Cost: cost}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for range entries {
		clock = clock.Add(time.Second)
		if !decide(plain, long.MustCompile(), penstock.Spend, 1).Allowed {
			t.Fatalf("a log of %d entries denied one of its first %d; want a grant", entries, entries)
		}
	}
	// Three binary searches take at most bits.Len(entries) steps each. A step reads three values,
	// which makes 9 for all three searches. The tenth is for the few values that are read before them.
	most := int64(10 * bits.Len(entries))
	for _, row := range []struct {
		name  string
		limit penstock.Limit
		mode  penstock.Mode
		cost  int64
	}{
		{name: "a grant of the shorter", limit: short, mode: penstock.Spend, cost: 1},
		{name: "a denial of the shorter", limit: short, mode: penstock.Spend, cost: 3},
		{name: "a refund of the shorter", limit: short, mode: penstock.Refund, cost: 1},
		{name: "a force of the shorter", limit: short, mode: penstock.Force, cost: 5},
		{name: "a peek of the shorter", limit: short, mode: penstock.Peek, cost: 1},
		{name: "a denial of the longer", limit: long, mode: penstock.Spend, cost: 100},
		{name: "a refund of the longer", limit: long, mode: penstock.Refund, cost: 1},
		{name: "a grant of the longer", limit: long, mode: penstock.Draw, cost: 1},
	} {
		clock = clock.Add(500 * time.Millisecond)
		if _, err := server.Do("SET", "reads", "0"); err != nil {
			t.Fatal(err)
		}
		decide(counted, row.limit.MustCompile(), row.mode, row.cost)
		reads, err := server.Do("INCRBY", "reads", "0")
		if err != nil {
			t.Fatal(err)
		}
		if n := reads.(int64); n < 1 || n > most {
			t.Errorf("%s reads %d values from a log of %d entries; want 1 to %d", row.name, n, entries, most)
		}
	}
}

// Limits with different periods use one log in turn. Redis and memstore treat entries alike that
// have expired for the shorter limit: they keep them for the longer limit, and drop them later.
func TestLogsInTurnAreTwins(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Start(t)
	client := dialURL(t, server.URL())
	for trace := range uint64(effort.Of(8, 1000)) {
		seed := effort.Seed() + trace
		rng := rand.New(rand.NewPCG(seed, 3))
		clock := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
		now := func() time.Time { return clock }
		redis := storeOn(t, client, Options{Now: now, Prefix: fmt.Sprintf("turns%d", trace)})
		memory := memstore.New(memstore.Options{Now: now, Linger: 1e6 * time.Hour})
		var limits []*penstock.Plan
		for range 2 + rng.IntN(2) {
			period := time.Duration(1+rng.Int64N(1<<rng.IntN(12))) * time.Second
			limits = append(limits, penstock.Limit{Name: "log", Count: 1 + rng.Int64N(200), Period: period, Algorithm: penstock.SlidingLog}.MustCompile())
		}
		modes := []penstock.Mode{penstock.Spend, penstock.Spend, penstock.Spend, penstock.Draw, penstock.Refund, penstock.Force, penstock.Peek}
		for n := range 200 {
			clock = clock.Add(time.Duration(rng.Int64N(int64(5 * time.Second))))
			if rng.IntN(30) == 0 {
				clock = clock.Add(time.Duration(rng.Int64N(int64(15*time.Minute))) - time.Minute)
			}
			charges := []penstock.Charge{{Plan: limits[rng.IntN(len(limits))], Mode: modes[rng.IntN(len(modes))], Cost: rng.Int64N(10)}}
			got, err := redis.Decide(t.Context(), charges)
			if err != nil {
				t.Fatal(err)
			}
			want, err := memory.Decide(t.Context(), charges)
			if err != nil {
				t.Fatal(err)
			}
			if got.Status(0) != want.Status(0) {
				t.Fatalf("PENSTOCK_SEED=%d: charge %d of limits %v:\n%sredis  %+v\nmemory %+v",
					seed, n, limits, describe(charges), got.Status(0), want.Status(0))
			}
		}
	}
}
