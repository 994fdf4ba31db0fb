package redisstore_test

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

func TestMemoryTellsWhetherCountersMayVanish(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	for _, c := range []struct {
		max, policy string
		evicts      bool
	}{
		{"0", "noeviction", false},
		{"0", "allkeys-lru", false}, // never full
		{"100mb", "noeviction", false},
		{"100mb", "allkeys-lru", true},
		{"100mb", "volatile-ttl", true}, // all counters have a TTL
	} {
		must(t, s, "CONFIG", "SET", "maxmemory", c.max, "maxmemory-policy", c.policy)
		m, err := store.Memory(t.Context())
		if err != nil || m.Used < 100_000 || m.Policy != c.policy || m.Evicts() != c.evicts {
			t.Errorf("maxmemory %s, %s: %+v evicts %v, %v", c.max, c.policy, m, m.Evicts(), err)
		}
	}
	letIn(t, s, redisstore.DocumentedRights(t).Single)
	for _, m := range asLimiter(s.Addr) {
		if memory, err := over(t, m.client(t), redisstore.Options{Prefix: "limiter"}).Memory(t.Context()); err != nil || !strings.HasPrefix(memory.Policy, "volatile") {
			t.Errorf("%s: %+v, %v", m.name, memory, err)
		}
	}
}

// One primary of three may throw counters away, whichever it is.
func TestMemoryAsksEveryPrimaryOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for _, m := range []maker{
		{"rueidis", dial("redis+cluster://" + strings.Join(c.Addrs(), ","))},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()}))
		}},
	} {
		store := over(t, m.client(t), redisstore.Options{})
		for _, n := range c.Primaries() {
			must(t, n, "CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
			if memory, err := store.Memory(t.Context()); err != nil || !memory.Evicts() || memory.Server != n.Addr {
				t.Errorf("%s: %s evicts: %+v, %v", m.name, n.Addr, memory, err)
			}
			must(t, n, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "90mb")
			if memory, err := store.Memory(t.Context()); err != nil || memory.Evicts() || memory.Server != n.Addr {
				t.Errorf("%s: %s is the only one with a bound: %+v, %v", m.name, n.Addr, memory, err)
			}
			must(t, n, "CONFIG", "SET", "maxmemory", "0")
		}
	}
}
