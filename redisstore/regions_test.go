package redisstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// Two regions on real servers exchange their totals. One server with two prefixes is enough.
func TestRegionsOnRedis(t *testing.T) {
	server := redistest.Shared(t)
	all := make(map[string]*regions.Exchange)
	for self, peer := range map[string]string{"eu": "us", "us": "eu"} {
		store, err := redisstore.Open(server.URL(), redisstore.Options{Prefix: "regions-" + strings.ToLower(rand.Text()[:8]) + self})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		if all[self], err = regions.New(regions.Options{Self: self, Peers: []string{peer}, Store: store}); err != nil {
			t.Fatal(err)
		}
	}
	talk := func(from, to string) {
		t.Helper()
		answer, err := all[to].Site().Answer(t.Context(), all[from].Ask(to))
		if err == nil {
			err = all[from].Merge(t.Context(), to, time.Now(), answer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	spend := func(at string, p *penstock.Plan, key string, most int) (granted int) {
		t.Helper()
		for ; granted < most; granted++ {
			d, err := all[at].Store().Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Cost: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed {
				break
			}
		}
		return granted
	}
	for i, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.CalendarWindow(algorithm.Month, time.UTC), penstock.SubWindow(7)} {
		limit, err := penstock.ParseRate("100/30day")
		if err != nil {
			t.Fatal(err)
		}
		p := limit.With(algorithm.Across(a)).MustCompile()
		key := fmt.Sprint("k", i)
		spend("eu", p, key, 30)
		spend("us", p, key, 20)
		for range 2 {
			talk("eu", "us")
			talk("us", "eu")
		}
		if n := spend("us", p, key, 1000); n != 50 {
			t.Errorf("%s: 30 units are used there and 20 here, and %d more are granted; want 50", a.Title(), n)
		}
		talk("eu", "us")
		if n := spend("eu", p, key, 1000); n != 0 {
			t.Errorf("%s: %d units are granted beyond the limit", a.Title(), n)
		}
	}
}

// A mortalStore is the store of an instance that may die: then none of its calls is answered.
type mortalStore struct {
	*redisstore.Store
	isDead atomic.Bool
}

func (s *mortalStore) Eval(ctx context.Context, script string, names []string, args ...string) (string, error) {
	if s.isDead.Load() {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return s.Store.Eval(ctx, script, names, args...)
}

// A regionInstance is an instance of a region, with the store that decides.
type regionInstance struct {
	*regions.Instance
	own   *mortalStore
	store penstock.Store
}

// regionEvery is how often the regions of these tests exchange.
const regionEvery = 200 * time.Millisecond

// startInstance starts an instance of the region self. servers are those of all regions.
func startInstance(t *testing.T, self string, servers map[string]*redistest.Server, plans ...*penstock.Plan) *regionInstance {
	t.Helper()
	open := func(server *redistest.Server) *redisstore.Store {
		store, err := redisstore.Open(server.URL(), redisstore.Options{Secret: []byte("of all regions")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}
	own, peers := &mortalStore{Store: open(servers[self])}, make(map[string]regions.Server)
	for name, server := range servers {
		if name != self {
			peers[name] = open(server)
		}
	}
	i, err := regions.NewInstance(regions.Options{Self: self, Every: regionEvery}, own, peers, []byte("of all regions"))
	if err != nil {
		t.Fatal(err)
	}
	i.Use(plans)
	i.Start()
	t.Cleanup(i.Close)
	return &regionInstance{i, own, i.Around(own.Store)}
}

// left returns how many units are left of a limit at an instance.
func (i *regionInstance) left(t *testing.T, p *penstock.Plan, key string) int64 {
	t.Helper()
	d, err := i.store.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Mode: penstock.Peek}})
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining()
}

func (i *regionInstance) spend(t *testing.T, p *penstock.Plan, key string, units int64) {
	t.Helper()
	if d, err := i.store.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Cost: units}}); err != nil || !d.Allowed {
		t.Fatalf("%d units are not granted: %+v, %v", units, d, err)
	}
}

// awaitLeft waits until as many units are left.
func (i *regionInstance) awaitLeft(t *testing.T, p *penstock.Plan, key string, want int64) {
	t.Helper()
	eventually.NoError(t, func() error {
		if got := i.left(t, p, key); got != want {
			return fmt.Errorf("%d units of %s are left; want %d; %+v", got, key, want, i.Statuses())
		}
		return nil
	})
}

// Instances of two regions keep what they know in Redis. So all instances of a region decide alike,
// another instance leads if the leader dies, and a region without its data learns from the other.
func TestInstancesOfRegionsOnRedis(t *testing.T) {
	servers := map[string]*redistest.Server{"eu": redistest.Start(t), "us": redistest.Start(t)}
	limit, err := penstock.ParseRate("100/30day")
	if err != nil {
		t.Fatal(err)
	}
	p := limit.With(algorithm.Across(penstock.TokenBucket)).MustCompile()
	small := limit.With(algorithm.Across(penstock.TokenBucket))
	small.Count, small.Burst = 40, 40 // the limit of another tier
	tier := small.MustCompile()
	eu1 := startInstance(t, "eu", servers, p, tier)
	eu1.awaitLeft(t, p, "new", 50) // the share, while no other region has an instance
	eu2, us := startInstance(t, "eu", servers, p, tier), startInstance(t, "us", servers, p, tier)
	for _, i := range []*regionInstance{eu1, eu2, us} {
		i.awaitLeft(t, p, "new", 100)
	}
	eu1.spend(t, p, "k", 30)
	eu2.spend(t, tier, "of a tier", 4)
	us.awaitLeft(t, p, "k", 70)
	us.awaitLeft(t, tier, "of a tier", 36)
	us.spend(t, p, "k", 20)
	eu2.awaitLeft(t, p, "k", 50)

	eu1.own.isDead.Store(true)
	eu2.spend(t, p, "k", 10)
	us.awaitLeft(t, p, "k", 40)
	us.spend(t, p, "k", 5)
	eu2.awaitLeft(t, p, "k", 35)

	if _, err := servers["us"].Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	eu2.awaitLeft(t, p, "new", 100) // in contact again
	eu2.spend(t, p, "k", 1)
	us.awaitLeft(t, p, "k", 100-30-10-1)
	us.spend(t, p, "k", 7)
	eu2.awaitLeft(t, p, "k", 35-1-7)
	keys, err := servers["eu"].Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys.([]any) {
		if ttl, err := servers["eu"].Do("PTTL", fmt.Sprint(key)); err != nil || ttl.(int64) <= 0 {
			t.Errorf("key %v lives for %v, %v; want a TTL", key, ttl, err)
		}
	}
}
