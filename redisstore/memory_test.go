package redisstore_test

import (
	"testing"

	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestMemoryTellsWhetherCountersMayBeEvicted(t *testing.T) {
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
}
