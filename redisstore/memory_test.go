package redisstore_test

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
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
	letIn(t, s, rights)
	for _, m := range asLimiter(s.Addr) {
		_, err := over(t, m.client(t), redisstore.Options{Prefix: "limiter"}).Memory(t.Context())
		wantClass(t, "memory without the right", err, redisstore.Refused)
	}
	letIn(t, s, rights+" +info")
	for _, m := range asLimiter(s.Addr) {
		if memory, err := over(t, m.client(t), redisstore.Options{Prefix: "limiter"}).Memory(t.Context()); err != nil || !strings.HasPrefix(memory.Policy, "volatile") {
			t.Errorf("%s: %+v, %v", m.name, memory, err)
		}
	}
}
