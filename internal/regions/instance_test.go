package regions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A peerFunc is a Peer in a function.
type peerFunc func(ctx context.Context) (Answer, error)

func (f peerFunc) Answer(ctx context.Context, _ Ask) (Answer, error) { return f(ctx) }

// A region that hangs or panics delays no other, and the exchange ends with its context.
func TestBadRegionsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failures, answers, calls atomic.Int64
		o := Options{Exchanged: func(region string, err error) {
			if (err != nil) != (region != "good") {
				t.Errorf("the exchange with region %s ends with %v", region, err)
			}
			failures.Add(1)
		}}
		e := exchanges(t, o, "eu", "good", "hangs", "panics")["eu"]
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() {
			e.Run(ctx, map[string]Peer{
				"good":   peerFunc(func(context.Context) (Answer, error) { answers.Add(1); return Answer{IsFull: true}, nil }),
				"hangs":  peerFunc(func(ctx context.Context) (Answer, error) { calls.Add(1); <-ctx.Done(); return Answer{}, ctx.Err() }),
				"panics": peerFunc(func(context.Context) (Answer, error) { calls.Add(1); panic("for the test") }),
			})
			close(ended)
		}()
		time.Sleep(10*time.Second + time.Millisecond)
		cancel()
		<-ended
		if n := answers.Load(); n < 9 || n > 12 {
			t.Errorf("in 10 s the good region was asked %d times; want about 10", n)
		}
		if n := calls.Load(); n < 9+3 || n > 12+5 {
			t.Errorf("in 10 s the bad regions were asked %d times; want about 10 and 4", n)
		}
	})
}

// A fakeServer answers scripts by a function.
type fakeServer struct {
	penstock.Store
	eval func(ctx context.Context, script string, args []string) (string, error)
}

func (s fakeServer) Eval(ctx context.Context, script string, _ []string, args ...string) (string, error) {
	return s.eval(ctx, script, args)
}

func newInstance(t testing.TB, secret string, own func(ctx context.Context, script string, args []string) (string, error)) *Instance {
	t.Helper()
	server := fakeServer{memstore.New(memstore.Options{}), own}
	i, err := NewInstance(Options{Self: "eu"}, server, map[string]Server{"us": server}, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// A server that hangs or fails keeps what is to be written. Close ends in any case.
func TestWhatIsGrantedIsWrittenWhenTheServerWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isHung, isDown atomic.Bool
		var units []string
		i := newInstance(t, "", func(ctx context.Context, script string, args []string) (string, error) {
			switch {
			case isHung.Load():
				<-ctx.Done()
				return "", ctx.Err()
			case isDown.Load():
				return "", errors.New("down")
			}
			if len(args) > 17 {
				units = append(units, args[17])
			}
			return "0 1\n0 -1 -1 0 0 0 0 -1", nil
		})
		p := plan(t, "100/h", algorithm.Across(penstock.TokenBucket))
		i.Use([]*penstock.Plan{p})
		store := i.Around(i.own)
		spend := func(units int64) {
			if d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: p, Cost: units}}); err != nil || !d.Allowed {
				t.Fatalf("%d units are not granted: %+v, %v", units, d, err)
			}
		}
		i.Start()
		for n, fails := range []*atomic.Bool{&isDown, &isHung} {
			fails.Store(true)
			spend(int64(n + 1))
			time.Sleep(10*time.Second + 50*time.Millisecond) // so no flush is at the same moment
			spend(int64(n + 1))
			fails.Store(false)
			time.Sleep(5 * time.Second)
		}
		spend(7)
		i.Close()
		if want := []string{"2", "4", "7"}; !slices.Equal(units, want) {
			t.Errorf("the units %v were written; want %v", units, want)
		}
		isHung.Store(true)
		spend(1)
		j := newInstance(t, "", i.own.(fakeServer).eval)
		j.Start()
		began := time.Now()
		j.Close()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("with a server that hangs, Close took %v; want at most 5 s", took)
		}
	})
}

// A reply that no script makes is an error, and none panics.
func TestMalformedRepliesAreErrors(t *testing.T) {
	i := newInstance(t, "", nil)
	r := i.peers["us"].(*remote)
	for _, reply := range []string{"", "x", "7 1", "7 1\n", "7 1\n1 2 3", "-1 1\n0 -1 -1 0 0 0 0 -1", "7\n0 -1 -1 0 0 0 0 -1", "other us", "secret", "7 1\n0 -1 -1 0 0 0 0 -1\n", "1e9 1\n0 -1 -1 0 0 0 0 -1"} {
		if err := i.read(reply, time.Now(), time.Second); err == nil {
			t.Errorf("the reply %q is no error", reply)
		}
	}
	for _, reply := range []string{"", "x 1\n", "none", "stranger", "other ap", "secret", "fence 9", "7 1\n3\nabc", "7 1 9\n5\nabc", "7 1 9\n-1\nabc", "7 1 9\nabc", "7 1 9\n99999999999999999999\n"} {
		if _, counters, err := r.readAnswer(reply); err == nil {
			t.Errorf("the reply %q is no error, but %v", reply, counters)
		}
	}
	if i.minFence != 9 {
		t.Errorf("the least fence is %d; want 9", i.minFence)
	}
	answer, counters, err := r.readAnswer("7 0 9\n3\nabc20\n01234567890123456789")
	if want := (Answer{Number: 7, hasMore: true}); err != nil || len(counters) != 0 || !reflect.DeepEqual(answer, want) {
		t.Errorf("the answer is %+v with %v, %v; want %+v without the counters of unknown limits", answer, counters, err, want)
	}
}

// Redis shows counters as they are written, or encrypted with the secret of the stores.
func TestCountersAreWrittenAndRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(effort.Seed(), 0))
	free, premium := plan(t, "10/s, burst 20", algorithm.Across(penstock.TokenBucket)), plan(t, "100/s, burst 20", algorithm.Across(penstock.TokenBucket))
	other := plan(t, "10/s", algorithm.Across(penstock.SubWindow(2)))
	for n := range effort.Of(2000, 100_000) {
		secret := []string{"", "a", "b"}[rng.IntN(3)]
		i := newInstance(t, secret, nil)
		i.Use([]*penstock.Plan{free, premium, other, plan(t, "1/s", penstock.TokenBucket)})
		key := make([]byte, rng.IntN(40))
		for j := range key {
			key[j] = byte(rng.Uint32())
		}
		c := Counter{string(key), []*penstock.Plan{free, premium, other}[rng.IntN(3)]}
		sealed := i.sealer.seal(encode(c))
		if sealed != newSealer([]byte(secret)).seal(encode(c)) || (secret != "" && len(key) > 4 && strings.Contains(sealed, string(key))) {
			t.Fatalf("PENSTOCK_SEED=%d: case %d: %+v is written as %q", effort.Seed(), n, c, sealed)
		}
		text, ok := i.sealer.open(sealed)
		if got, known := i.decode(text); !ok || !known || got != c {
			t.Fatalf("PENSTOCK_SEED=%d: case %d: %+v is read as %+v, %v, %v", effort.Seed(), n, c, got, ok, known)
		}
		if secret != "" {
			if _, ok := newSealer([]byte(secret + "x")).open(sealed); ok {
				t.Fatalf("case %d: the counter is readable with another secret", n)
			}
		}
		i.decode(text[:rng.IntN(len(text))]) // must not panic
	}
	i := newInstance(t, "", nil)
	i.Use([]*penstock.Plan{free})
	if c, ok := i.decode(encode(Counter{"k", premium})); !ok || c.Plan != free {
		t.Errorf("a limit with other numbers is read as %+v, %v; want that of this policy", c, ok)
	}
}

// After a reload, the exchange forgets the limits and the shares of the old policy.
func TestReloadsLeaveNoShares(t *testing.T) {
	i := newInstance(t, "", nil)
	for range 100 {
		p := plan(t, "100/h", algorithm.Across(penstock.TokenBucket))
		if err := i.Check(p); err != nil {
			t.Fatal(err)
		}
		i.Use([]*penstock.Plan{p})
		if n := len(i.shares); n > 2 || len(i.plans) != 1 {
			t.Fatalf("%d shares and %d limits are known; want 2 and 1", n, len(i.plans))
		}
	}
}

// Too many changed counters take bounded memory, and the region says that it dropped some.
func TestChangesAreBounded(t *testing.T) {
	i := newInstance(t, "", nil)
	p := plan(t, "100/h", algorithm.Across(penstock.TokenBucket))
	for n := range maxChanged + 5 {
		i.note(Counter{fmt.Sprint(n), p}, 1, time.Second)
	}
	if len(i.pending) != maxChanged || !i.hasDropped {
		t.Errorf("%d changes are kept, and some were dropped: %v; want %d and true", len(i.pending), i.hasDropped, maxChanged)
	}
}

// A shadow across regions is not decided in the call of its batch, where no share would be
// enforced. A fallback's grants may have been made in the store too.
func TestGrantsOfShadowsAndFallbacksAreNoted(t *testing.T) {
	p := plan(t, "90/h", algorithm.Across(penstock.TokenBucket))
	here := plan(t, "5/h", penstock.TokenBucket)
	eu := exchanges(t, Options{}, "eu", "us", "ap")["eu"]
	shadow := &batches.Batch{Charges: []penstock.Charge{{Key: "k", Plan: p, Cost: 1}}, Err: batches.ErrUndecided}
	b := &batches.Batch{Charges: []penstock.Charge{{Key: "k", Plan: here, Cost: 1}}, Shadows: []*batches.Batch{shadow}}
	eu.Around(eu.o.Store)(t.Context(), []*batches.Batch{b})
	if b.Err != nil || b.Decision.Remaining() != 4 || shadow.Err != batches.ErrUndecided {
		t.Errorf("the batch is %+v, %v, and its shadow %v; want a grant, and an undecided shadow", b.Decision, b.Err, shadow.Err)
	}
	for source, want := range map[penstock.Source]int{penstock.FromStore: 0, penstock.FromFallback: 1, penstock.FromClosed: 1, penstock.FromOpen: 1, penstock.FromDenyCache: 0} {
		eu := exchanges(t, Options{}, "eu", "us", "ap")["eu"]
		denied := penstock.Single(penstock.Status{RetryAfter: time.Second})
		denied.Allowed, denied.Source = false, source
		store := eu.Around(penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { return denied, nil }))
		if _, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: p, Cost: 1}}); err != nil {
			t.Fatal(err)
		}
		if n := len(eu.site.consumers["us"].changed); n != want {
			t.Errorf("a denial from %v notes %d counters; want %d", source, n, want)
		}
	}
}

func TestScriptsNeedNoFurtherRight(t *testing.T) {
	var rights []string
	for _, r := range redisrights.Of(redisrights.Options{}) {
		rights = append(rights, r.Command)
	}
	for _, script := range Scripts {
		for command := range luagen.Commands(script) {
			if !slices.Contains(rights, strings.ToLower(command)) {
				t.Errorf("a script runs %s, which decisions do not need", command)
			}
		}
	}
}

func TestBoundOfAllRegions(t *testing.T) {
	across := algorithm.Across
	three := Setup{3, time.Second, 80 * time.Millisecond}
	// A region knows of the others within 1.1 s + 0.2 s + 0.24 s, or within 3 s more.
	for _, c := range []struct {
		limit *penstock.Plan
		setup Setup
		over  int64
		text  string
	}{
		{plan(t, "1000/s, burst 1000", across(penstock.TokenBucket)), three, 2*(1000+4540+1) + (4540+3)/3, "5596 units more than the limit in 3 regions together, or 12596 when links fail: what the others grant within 1.54s, or 4.54s, if a message takes 80ms"},
		{plan(t, "1000/h", across(penstock.FixedWindow)), three, 2000, "2000 units more"},
		{plan(t, "1000/h", across(penstock.TokenBucket)), Setup{Count: 1}, 0, "there is one region"},
		{plan(t, "1000/h", across(penstock.TokenBucket)), Setup{}, math.MaxInt64, "set PENSTOCK_REGION and PENSTOCK_REGION_PEERS"},
	} {
		if over, text := c.setup.Bound(c.limit); over != c.over || !strings.Contains(text, c.text) {
			t.Errorf("%v: %d more: %s; want %d: %s", c.limit, over, text, c.over, c.text)
		}
	}
	if _, text := three.Bound(plan(t, "9/h", penstock.TokenBucket)); !strings.Contains(text, "each of 3 regions has a limit of its own") {
		t.Errorf("without across: %s", text)
	}
	if _, text := (Setup{Count: 1}).Bound(plan(t, "9/h", penstock.TokenBucket)); text != "" {
		t.Errorf("in one region: %s", text)
	}
}
