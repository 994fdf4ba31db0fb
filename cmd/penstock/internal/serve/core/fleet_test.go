package core

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// openDemo opens a core with the sample rules.
func openDemo(t *testing.T, store string, more map[string]string) *Core {
	t.Helper()
	flags := map[string]string{"demo": "true", "store": store, "store-timeout": "20s"}
	maps.Copy(flags, more)
	s, err := settings.Load(settings.Sources{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(context.Background(), complete(Options{Settings: s, Metrics: metrics.New("", nil, 80), Log: slog.New(slog.DiscardHandler), Version: "v9"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// awaitName waits until an instance is registered, and returns its name.
func awaitName(t *testing.T, c *Core) string {
	t.Helper()
	eventually.True(t, "the instance to be registered", func() bool { return c.fleet.name.Load() != nil })
	return *c.fleet.name.Load()
}

// deny reports a denied request of the key.
func (c *Core) deny(key string) {
	plan := c.Rules().Plans()[0]
	d := penstock.Single(penstock.Status{RetryAfter: time.Second})
	c.Observe(&admission.Event{
		Rule:      plan.Group(),
		Limit:     plan.Name(),
		Algorithm: plan.Algorithm().Title(),
		Key:       key,
		Outcome:   admission.Denied,
		Decision:  &d,
		Charges:   []penstock.Charge{{Key: key, Plan: plan, Cost: 1}},
	})
}

// readFleet reads the fleet from the store, not from the cache.
func (c *Core) readFleet() *activity.Fleet {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	return c.fleet.readLocked(context.Background())
}

func TestInstancesShowEachOther(t *testing.T) {
	redis := redistest.Start(t)
	rights := redisrights.Rules("", redisops.Rights(redisrights.Options{}))
	if _, err := redis.Do(append(strings.Fields("ACL SETUSER limiter on >secret"), strings.Fields(rights)...)...); err != nil {
		t.Fatal(err)
	}
	url := "redis://limiter:secret@" + redis.Addr
	a, b := openDemo(t, url, nil), openDemo(t, url, nil)
	nameA, nameB := awaitName(t, a), awaitName(t, b)
	for range 5 {
		a.deny("key:both")
	}
	b.deny("key:both")
	b.deny("key:b")
	a.Activity.Tick(time.Second, a.eachCounter)
	a.fleet.write(t.Context())
	b.fleet.write(t.Context())
	for _, c := range []*Core{a, b} {
		f := c.readFleet()
		if f.Problem != "" || f.Registered != 2 || len(f.Instances) != 2 || f.Ignored != (activity.Ignored{}) {
			t.Fatalf("the fleet is %+v; want two instances, no problem, and no ignored summaries", f)
		}
		first, second := f.Instances[0], f.Instances[1]
		if !first.IsSelf || second.IsSelf || second.Version != "v9" {
			t.Fatalf("the fleet is %+v; want this instance first, then one of version v9", f)
		}
		if first.Name == second.Name || second.Name != nameA && second.Name != nameB {
			t.Errorf("the instances are %s and %s; want %s and %s", first.Name, second.Name, nameA, nameB)
		}
		denied := f.Activity[0].Tops[activity.Denied].Items
		if len(denied) != 2 || denied[0].Name != "key:both" || denied[0].Weight != 6 || denied[1].Weight != 1 || denied[1].Error != 0 {
			t.Errorf("the denied keys are %+v; want key:both with 6 denials, then one with 1", denied)
		}
		if n, _ := f.Activity[0].Denied.Count(); n != 2 {
			t.Errorf("%v different keys were denied; want 2", n)
		}
	}
	plan := a.Rules().Plans()[0]
	want := activity.Count{Series: activity.Series{Rule: plan.Group(), Limit: plan.Name(), Name: "denied"}, Last10: 5, Last60: 5}
	if counts := b.readFleet().Instances[1].Counts; !slices.Contains(counts, want) {
		t.Errorf("the counts of the other instance are %+v; want %+v among them", counts, want)
	}
	ttl, err := redis.Do("PTTL", "ps1{%@}summary."+nameA)
	if err != nil || ttl.(int64) <= 0 || ttl.(int64) > summaryLife.Milliseconds() {
		t.Errorf("PTTL of the summary returned %v ms and the error %v; want up to %v", ttl, err, summaryLife)
	}
}

func TestUselessSummariesAreIgnoredAndCounted(t *testing.T) {
	redis := redistest.Start(t)
	a, other := openDemo(t, redis.URL(), nil), openDemo(t, redis.URL(), map[string]string{"key-hash-secret": "another"})
	awaitName(t, a)
	awaitName(t, other)
	other.deny("key:x")
	other.fleet.write(t.Context())
	// The first byte of a summary is the version of its format. Two of these texts have another
	// version, and two are corrupt.
	for i, text := range []string{"\x7ffuture", "\x01corrupt", "", strings.Repeat("\x01", 10_000)} {
		name := fmt.Sprint("forged", i)
		if _, err := a.fleet.store.Heartbeat(t.Context(), name, time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := redisops.WriteSummary(t.Context(), a.fleet.store, name, text, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	f := a.readFleet()
	if want := (activity.Ignored{OtherVersion: 2, Corrupt: 2, OtherSecret: 1}); f.Ignored != want {
		t.Errorf("the ignored summaries are %+v; want %+v", f.Ignored, want)
	}
	if len(f.Instances) != 1 || f.Registered != 6 || len(f.Activity[0].Tops[activity.Denied].Items) != 0 {
		t.Errorf("the fleet is %+v; want one instance of six registered, and no denied key", f)
	}
}

func TestNothingIsSentWhileABreakerIsOpen(t *testing.T) {
	redis := redistest.Start(t)
	a := openDemo(t, redis.URL(), nil)
	name, key := "own", "ps1{%@}summary.own"
	state := guard.StateOpen
	f := &fleet{core: a, store: a.fleet.store, host: "h", breakers: func() map[string]guard.State { return map[string]guard.State{"n": state} }}
	f.name.Store(&name)
	for _, c := range []struct {
		state   guard.State
		problem string
		keys    int64 // summaries of this instance in the store
	}{
		{guard.StateOpen, "the store gives no answer: breaker_open", 0},
		{guard.StateHalfOpen, "the store gives no answer: breaker_open", 0},
		{guard.StateClosed, "", 1},
	} {
		state = c.state
		f.write(t.Context())
		n, err := redis.Do("EXISTS", key)
		if found := f.readLocked(t.Context()); err != nil || n.(int64) != c.keys || found.Problem != c.problem {
			t.Errorf("breaker %v: the store has %v summaries (error %v), and the fleet has the problem %q; want %d and %q", c.state, n, err, found.Problem, c.keys, c.problem)
		}
	}
}

func TestAnInstanceWithoutAStoreShowsItself(t *testing.T) {
	a := openDemo(t, "memory", nil)
	a.deny("key:x")
	f := a.Fleet(t.Context())
	if len(f.Instances) != 1 || f.Problem != errNoStore.Error() || len(f.Activity[1].Tops[activity.Denied].Items) != 1 {
		t.Errorf("the fleet is %+v; want this instance alone, with one denied key", f)
	}
	if again := a.Fleet(t.Context()); again != f {
		t.Errorf("two reads within %v returned different fleets; want the same", fleetMaxAge)
	}
}
