package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

func await(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// The shard that a store names is the one that keeps the key, also after a failover.
func TestShardsAreThoseOfTheCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for _, m := range []maker{{"url", dial("redis+cluster://" + strings.Join(cluster.Addrs(), ","))}, {"go-redis", func(t testing.TB) redisstore.Client {
		return goRedisClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}))
	}}} {
		t.Run(m.name, func(t *testing.T) {
			s := over(t, m.client(t), redisstore.Options{Prefix: aPrefix()})
			limit := penstock.PerHour(10)
			if name := s.Shard([]penstock.Charge{{Key: "a", Limit: limit}}); name != "" {
				t.Errorf("before anything was asked the shard is %q", name)
			}
			if _, err := s.Decide(context.Background(), []penstock.Charge{{Key: "a", Limit: limit, Cost: 1}}); err != nil {
				t.Fatal(err)
			}
			await(t, "the layout", func() bool { return s.Shard([]penstock.Charge{{Key: "a", Limit: limit}}) != "" })
			names := make(map[string]int)
			for i := range 300 {
				charge := penstock.Charge{Key: fmt.Sprint("key", i), Limit: limit, Cost: 1}
				name := s.Shard([]penstock.Charge{charge})
				names[name]++
				owner := ""
				if _, err := s.Decide(context.Background(), []penstock.Charge{charge}); err != nil {
					t.Fatal(err)
				}
				stored, err := redisstore.KeyOf(charge, redisstore.Options{Prefix: redisstore.PrefixOf(s)})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range cluster.Primaries() {
					if n, err := p.Do("EXISTS", stored); err == nil && n == int64(1) {
						owner = p.Addr
					}
				}
				if name != owner {
					t.Fatalf("%s: the shard is %q; it is kept by %q", stored, name, owner)
				}
			}
			if len(names) != 3 {
				t.Errorf("the shards are %v; there should be 3", names)
			}
			var several []penstock.Charge
			for i := range 30 {
				several = append(several, penstock.Charge{Key: fmt.Sprint("key", i), Limit: limit})
			}
			if name := s.Shard(several); strings.Count(name, "+") != 2 {
				t.Errorf("a batch over all shards is decided by %q", name)
			}
		})
	}
}

func TestASingleServerIsNoShard(t *testing.T) {
	t.Parallel()
	s := open(t, redistest.Start(t).URL(), redisstore.Options{})
	charges := []penstock.Charge{{Key: "a", Limit: penstock.PerHour(10), Cost: 1}}
	if _, err := s.Decide(context.Background(), charges); err != nil {
		t.Fatal(err)
	}
	if name := s.Shard(charges); name != "" {
		t.Errorf("the shard is %q", name)
	}
}

func TestInstancesAreCountedWhileTheyLive(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := context.Background()
	prefix := aPrefix()
	live := func(instance string, life time.Duration) int {
		t.Helper()
		n, err := open(t, server.URL(), redisstore.Options{Prefix: prefix}).Live(ctx, instance, life)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range 5 {
		if n := live(fmt.Sprint("i", i), time.Hour); n != i+1 {
			t.Errorf("%d instances; want %d", n, i+1)
		}
	}
	if n := live("i0", time.Hour); n != 5 {
		t.Errorf("who is noted twice makes %d", n)
	}
	if n := live("i1", 0); n != 4 {
		t.Errorf("who leaves makes %d", n)
	}
	live("short", time.Millisecond)
	await(t, "the short-lived to end", func() bool { return live("i0", time.Hour) == 4 })
	if ttl, err := server.Do("PTTL", prefix+"1{%@}instances"); err != nil || ttl.(int64) < 3_500_000 || ttl.(int64) > 3_600_000 {
		t.Errorf("the TTL is %v, %v", ttl, err)
	}
	for _, bad := range []string{"", strings.Repeat("i", 129)} {
		if _, err := open(t, server.URL(), redisstore.Options{}).Live(ctx, bad, time.Hour); err == nil || !strings.Contains(err.Error(), "1 to 128") {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
}
