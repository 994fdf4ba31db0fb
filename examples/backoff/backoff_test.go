package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// The page about algorithms quotes what the generator makes of backoff.lua.
func TestDocsQuoteTheGeneratedScript(t *testing.T) {
	page, err := os.ReadFile("../../docs/adding-an-algorithm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, quote, _ := strings.Cut(string(page), "<!-- generated from examples/backoff/backoff.lua -->\n```lua\n")
	quote, _, isQuoted := strings.Cut(quote, "```\n")
	if script := luagen.Single([]*algorithm.Algorithm{Backoff}); !isQuoted || !strings.Contains(script, quote) {
		t.Errorf("the script does not contain\n%s\nIt is\n%s", quote, script)
	}
}

// The Go and Lua versions return the same outcomes for the same requests at the same times. Some
// batches have a second limit with another algorithm. The seed in a failure repeats it.
func TestBackoffIsEqualInGoAndLua(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	now := time.UnixMicro(1_700_000_000_000_000)
	clock := func() time.Time { return now }
	memory := memstore.New(memstore.Options{Now: clock, Linger: time.Hour}) // keeps state as long as Redis if the clock steps back
	redis := openRedis(t, redisstore.Options{Now: clock})

	limit := penstock.Limit{Name: "attempts", Group: "login", Algorithm: Backoff, Count: 1, Period: time.Second}
	modes := []penstock.Mode{
		penstock.Spend, penstock.Spend, penstock.Spend, penstock.Draw, penstock.Peek, penstock.Force, penstock.Refund, penstock.Reset,
	}
	compared := 0
	for round := range 5000 {
		// The clock advances by up to 3.5 s, and steps back at times.
		now = now.Add(time.Duration(random.Int64N(4_000_000)-500_000) * time.Microsecond)
		if random.IntN(20) == 0 {
			now = now.Add(time.Duration(random.Int64N(60)-30) * time.Second)
		}
		charges := []penstock.Charge{{
			Key: fmt.Sprint(random.IntN(4)), Plan: limit.WithBurst(random.Int64N(6)).MustCompile(),
			Mode: modes[random.IntN(len(modes))], Cost: random.Int64N(3),
		}}
		if random.IntN(3) == 0 {
			other := penstock.PerMinute(20)
			other.Group = "login"
			charges = append(charges, penstock.Charge{Key: charges[0].Key, Plan: other.MustCompile(), Cost: 1})
		}
		want, err := memory.Decide(t.Context(), charges)
		if err != nil {
			t.Fatal(err)
		}
		got, err := redis.Decide(t.Context(), charges)
		if err != nil {
			t.Fatal(err)
		}
		for i := range charges {
			if got.Allowed != want.Allowed || got.Status(i) != want.Status(i) {
				t.Fatalf("seed %d, round %d, %v %d of %v: Lua returns %+v; want %+v, as Go returns", seed, round,
					charges[i].Mode, charges[i].Cost, charges[i].Plan, got.Status(i), want.Status(i))
			}
			compared++
		}
	}
	t.Logf("counted: %d twins", compared)
}

// openRedis returns a store on a server of its own, which ends with the test. The server is
// redis-server in the PATH, or the program that PENSTOCK_TEST_SERVER names.
func openRedis(t *testing.T, options redisstore.Options) *redisstore.Store {
	t.Helper()
	dir, err := os.MkdirTemp("", "backoff") // t.TempDir can be too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "redis.sock")
	server := exec.Command(cmp.Or(os.Getenv("PENSTOCK_TEST_SERVER"), "redis-server"), "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = server.Process.Kill(), server.Wait() })
	store, err := redisstore.Open("unix://"+socket, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for store.Ping(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatal("the server does not answer within a minute")
		}
		time.Sleep(5 * time.Millisecond)
	}
	return store
}

func TestBackoffDoublesThePauseAndResets(t *testing.T) {
	now := time.UnixMicro(1_700_000_000_000_000)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	limiter, err := penstock.NewLimiter(store, "login",
		penstock.Limit{Name: "attempts", Algorithm: Backoff, Count: 1, Period: time.Second, Burst: 2})
	if err != nil {
		t.Fatal(err)
	}
	// attempt makes an attempt, and returns the pause after it.
	attempt := func() time.Duration {
		t.Helper()
		if d, err := limiter.Allow(t.Context(), "alice"); err != nil || !d.Allowed {
			t.Fatalf("the attempt after a pause returns %+v, %v; want it allowed", d, err)
		}
		d, err := limiter.Peek(t.Context(), "alice")
		if err != nil {
			t.Fatal(err)
		}
		return d.RetryAfter()
	}
	for _, want := range []time.Duration{1, 2, 4, 4} {
		got := attempt()
		if got != want*time.Second {
			t.Errorf("the pause is %v; want %vs", got, int64(want))
		}
		now = now.Add(got)
	}
	now = now.Add(4 * time.Second)
	if got := attempt(); got != time.Second {
		t.Errorf("after a time without requests the pause is %v; want 1s", got)
	}
}

func TestLongestPauseHasABound(t *testing.T) {
	limit := penstock.Limit{Name: "attempts", Algorithm: Backoff, Count: 1}
	for _, row := range []struct {
		period  time.Duration
		burst   int64
		isValid bool
	}{
		{period: time.Second, burst: 20, isValid: true},
		{period: time.Second, burst: 30, isValid: false},
		{period: 1 << 40 * time.Microsecond, burst: 24, isValid: false}, // 2^64 µs, which overflows
	} {
		limit.Period, limit.Burst = row.period, row.burst
		if _, err := limit.Compile(); (err == nil) != row.isValid {
			t.Errorf("a period of %v doubled %d times: error %v; want valid %t", row.period, row.burst, err, row.isValid)
		}
	}
}
