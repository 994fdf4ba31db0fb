package redisguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisguard"
	"github.com/penstock/penstock/redisstore"
)

// patientOptions have a timeout that is long enough for a busy machine.
var patientOptions = redisguard.Options{Guard: guard.Options{Timeout: guard.TimeoutOptions{After: 10 * time.Second}}}

// openStore opens a store with patientOptions.
func openStore(t *testing.T, url string) *redisguard.Store {
	t.Helper()
	s, err := redisguard.Open(url, patientOptions)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newLimiter(t *testing.T, store penstock.Store) *penstock.Limiter {
	t.Helper()
	l, err := penstock.NewLimiter(store, "api", penstock.PerHour(3))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestStoresShareLimitsAndOutliveTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first, second := openStore(t, server.URL()), openStore(t, server.URL())
	if err := first.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	firstLimiter, secondLimiter := newLimiter(t, first), newLimiter(t, second)
	if err := first.Load(t.Context(), firstLimiter.Plans()...); err != nil {
		t.Fatal(err)
	}
	decide := func(l *penstock.Limiter) penstock.Decision {
		t.Helper()
		d, err := l.Allow(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	decide(firstLimiter)
	decide(secondLimiter)
	if d := decide(firstLimiter); !d.Allowed || d.Remaining() != 0 || d.Source != penstock.FromStore {
		t.Errorf("the third request is allowed %v from %v, with %d left; want it allowed from the store, with 0 left", d.Allowed, d.Source, d.Remaining())
	}
	if d := decide(secondLimiter); d.Allowed {
		t.Errorf("the fourth request of two stores is %v; want denied by the limit of 3", d)
	}

	server.Close()
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	d, err := firstLimiter.Allow(t.Context(), "another")
	if err != nil || !d.Allowed || d.Source != penstock.FromFallback {
		t.Errorf("a request without a server is allowed %v from %v, error %v; want it allowed from the fallback, without an error", d.Allowed, d.Source, err)
	}
	if err := first.Ping(t.Context()); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("Ping without a server returned %v; want an error that wraps ErrUnavailable", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for mistake, open := range map[string]func() (*redisguard.Store, error){
		"a bad URL": func() (*redisguard.Store, error) { return redisguard.Open("http://localhost", redisguard.Options{}) },
		"no client": func() (*redisguard.Store, error) { return redisguard.New(nil, redisguard.Options{}) },
		"a bad prefix": func() (*redisguard.Store, error) {
			return redisguard.Open("redis://localhost", redisguard.Options{Redis: redisstore.Options{Prefix: "a b"}})
		},
		"a Guard.Server": func() (*redisguard.Store, error) {
			return redisguard.Open("redis://localhost", redisguard.Options{Guard: guard.Options{Server: server{}}})
		},
	} {
		if s, err := open(); !errors.Is(err, penstock.ErrInvalid) || s != nil {
			t.Errorf("with %s, the store is %v and the error is %v; want no store, and an error that wraps ErrInvalid", mistake, s, err)
		}
	}
}

// A server is a guard.Server that another package made.
type server struct{}

func (server) Node([]penstock.Charge) string { return "" }

func (server) Heartbeat(context.Context, string, time.Duration) (int, error) { return 1, nil }

// Guards that do not know the settings of a policy would ignore its on_failure. So such a store is
// refused, unless the policy has no such settings.
func TestPolicyNeedsGuardsThatKnowItsSettings(t *testing.T) {
	for _, c := range []struct {
		settings guard.Settings
		isShadow bool
		knows    bool // the guards know the settings of the policy
		refused  bool
	}{
		{settings: guard.Settings{OnFailure: guard.FailClosed}, refused: true},
		{settings: guard.Settings{OnFailure: guard.FailLocal, Lease: 10}, refused: true},
		{settings: guard.Settings{DenyCacheTTL: -1}, refused: true},
		{settings: guard.Settings{OnFailure: guard.FailClosed}, knows: true},
		{settings: guard.Settings{OnFailure: guard.FailLocal}},
		{settings: guard.Settings{OnFailure: guard.FailOpen}, isShadow: true},
	} {
		spec, err := policy.Simple("api", policy.Global(), guard.FailDefault, penstock.PerMinute(2))
		if err != nil {
			t.Fatal(err)
		}
		spec.Rules[0].Limits[0].Guard, spec.Rules[0].Limits[0].Shadow = c.settings, c.isShadow
		rules, err := policy.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		var o redisguard.Options
		if c.knows {
			o.Guard.Limits = rules.Settings
		}
		store, err := redisguard.Open("redis://127.0.0.1:1", o)
		if err != nil {
			t.Fatal(err)
		}
		_, err = admission.New(store, rules, admission.Options{})
		if isRefused := errors.Is(err, penstock.ErrInvalid) && strings.Contains(err.Error(), "guard.Options{Limits: settings}"); isRefused != c.refused || !c.refused && err != nil {
			t.Errorf("with the settings %+v (a shadow: %v, known to the guards: %v) the error is %v; want one: %v", c.settings, c.isShadow, c.knows, err, c.refused)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Programs of two regions enforce one limit of each kind, without penstock serve.
func TestRegionsEnforceOneLimit(t *testing.T) {
	t.Parallel()
	servers := map[string]string{"eu": redistest.Start(t).URL(), "us": redistest.Start(t).URL()}
	stores := make(map[string]*redisguard.Store)
	open := func(self, peer string) *redisguard.Store {
		o := patientOptions
		o.Region, o.RegionPeers, o.RegionInterval = self, map[string]string{peer: servers[peer]}, 200*time.Millisecond
		s, err := redisguard.Open(servers[self], o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	stores["eu"], stores["us"] = open("eu", "us"), open("us", "eu")
	exchanged := penstock.Per(100, 30*24*time.Hour).With(algorithm.Across(penstock.TokenBucket)).MustCompile()
	shared := penstock.Per(100, 30*24*time.Hour).With(algorithm.ShareAcross(penstock.FixedWindow, 2)).WithName("shared").MustCompile()
	draw := func(region string, plan *penstock.Plan, units int64) int64 {
		t.Helper()
		d, err := stores[region].Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Mode: penstock.Draw, Cost: units}})
		if err != nil {
			t.Fatal(err)
		}
		return d.Status(0).Granted
	}
	if _, err := stores["eu"].Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: exchanged, Cost: 1}}); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "call Load") {
		t.Errorf("a limit that was not loaded: %v; want ErrInvalid", err)
	}
	small := penstock.Per(1, time.Hour).With(algorithm.ShareAcross(penstock.FixedWindow, 1)).MustCompile()
	if err := stores["eu"].Load(t.Context(), small); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a limit of fewer units than regions is loaded: %v; want ErrInvalid", err)
	}
	for _, s := range stores {
		if err := s.Load(t.Context(), exchanged, shared); err != nil {
			t.Fatal(err)
		}
	}
	eventually.True(t, "us knows what eu has granted", func() bool {
		draw("eu", exchanged, 1)
		d, err := stores["us"].Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: exchanged, Mode: penstock.Peek}})
		return err == nil && d.Remaining() < 90
	})
	granted := int64(0)
	eventually.True(t, "eu has borrowed a share", func() bool {
		granted += draw("eu", shared, 5)
		return granted > 60
	})
	for range 100 {
		granted += draw("eu", shared, 1) + draw("us", shared, 1)
	}
	if granted > 100 {
		t.Errorf("two regions admit %d units of a limit of 100", granted)
	}
	if _, err := redisguard.Open(servers["eu"], redisguard.Options{Region: "us", RegionPeers: map[string]string{"us": servers["us"]}}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a region that is its own peer: %v; want ErrInvalid", err)
	}
}

// A region may have lent nine tenths of its share. So without its store, it has the tenth that it
// never lends.
func TestRegionWithoutItsStoreHasWhatItNeverLends(t *testing.T) {
	t.Parallel()
	own, other := redistest.Start(t), redistest.Start(t)
	s, err := redisguard.Open(own.URL(), redisguard.Options{Region: "eu", RegionPeers: map[string]string{"us": other.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	plan := penstock.Per(1000, 30*24*time.Hour).With(algorithm.ShareAcross(penstock.FixedWindow, 2)).MustCompile()
	if err := s.Load(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	own.Kill()
	granted := int64(0)
	for range 300 {
		d, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		granted += d.Status(0).Granted
	}
	if granted != 50 {
		t.Errorf("in an outage, a region grants %d units of its share of 500; want 50", granted)
	}
}
