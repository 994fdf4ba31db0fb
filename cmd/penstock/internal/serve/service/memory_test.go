package service

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestStoreThatMayEvictCountersIsLogged(t *testing.T) {
	redis := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	r := startLimited(t, hello, "rules: [{name: all, per: global, limits: [{rate: 2/d}]}]\n", map[string]string{"store": redis.URL()})
	eventually.True(t, "the warning in the log", func() bool {
		return len(r.log.Lines("level=WARN", "evict counters", "maxmemory_policy=allkeys-lru")) == 1
	})
}
