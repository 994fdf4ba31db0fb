package goredis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
)

// With go-redis, the store decides again after its primary was killed or stopped and a replica was
// promoted. Retries do not help, because each call has one deadline for all its attempts. The
// charges from before the failover are kept.
func TestFailoversAreFollowed(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		name          string
		fault         func(*redistest.Server)
		usesDeadlines bool // the client's ContextTimeoutEnabled
	}{
		{name: "killed", fault: (*redistest.Server).Kill},
		{name: "stopped", fault: (*redistest.Server).Pause, usesDeadlines: true},
	} {
		t.Run("sentinel/"+how.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartSentinel(t)
			client := redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: redistest.MasterName, SentinelAddrs: s.Addrs(), ContextTimeoutEnabled: how.usesDeadlines,
			})
			followFailover(t, client, func() { how.fault(s.Primary) }, s.AwaitFailover)
		})
		t.Run("cluster/"+how.name, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartClusterForFailover(t)
			primary := c.Nodes[0]
			replica := c.Replica(primary)
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ContextTimeoutEnabled: how.usesDeadlines})
			followFailover(t, client, func() { how.fault(primary) }, replica.AwaitPromotion)
		})
	}
}

func followFailover(t *testing.T, client redis.UniversalClient, fault func(), awaitPromotion func() error) {
	t.Cleanup(func() { _ = client.Close() })
	direct, err := redisstore.New(goredis.New(client), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := guard.Standard(direct, guard.Options{Server: direct, OnFailure: guard.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	limit, err := penstock.PerDay(1_000_000).With(penstock.FixedWindow).Compile() // nothing is refilled during the test
	if err != nil {
		t.Fatal(err)
	}
	const keys = 30 // enough for all shards
	granted, answers := [keys]int64{}, map[penstock.Source]int{}
	// decidedBy returns a function that makes a charge for each key, and reports whether source has
	// decided all of them. For FromClosed, one key is enough: on a Cluster, only one node fails.
	decidedBy := func(source penstock.Source) func() bool {
		return func() bool {
			count := 0
			for k := range keys {
				d, err := store.Decide(context.Background(), []penstock.Charge{{Key: fmt.Sprint("k", k), Plan: limit, Cost: 1}})
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					granted[k]++
				}
				answers[d.Source]++
				if d.Source == source {
					count++
				}
			}
			return count == keys || source == penstock.FromClosed && count > 0
		}
	}
	eventually.True(t, "the store decides", decidedBy(penstock.FromStore))
	fault()
	eventually.True(t, "the store does not answer", decidedBy(penstock.FromClosed))
	if err := awaitPromotion(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	eventually.True(t, "the store decides again", decidedBy(penstock.FromStore))
	t.Logf("the store decides again %v after the promotion", time.Since(begin))
	for k := range keys {
		d, err := direct.Decide(context.Background(), []penstock.Charge{{Key: fmt.Sprint("k", k), Plan: limit, Mode: penstock.Peek}})
		if err != nil {
			t.Fatal(err)
		}
		// A charge that the primary granted just before it died may be lost.
		if used := limit.Limit().Count - d.Status(0).Remaining; used < granted[k]-1 {
			t.Errorf("%d units of key %d are used; want at least %d, one less than were granted", used, k, granted[k]-1)
		}
	}
	t.Logf("counted: %d calls answered around a failover (%d without the store)", answers[penstock.FromStore]+answers[penstock.FromClosed], answers[penstock.FromClosed])
}
