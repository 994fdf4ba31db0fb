package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislimiter"
	"github.com/throttled/throttled/v2"
	goredisstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

const peersLimit = 1000 // units per second for each key: so many that no request is denied

// librariesSection compares the store, with its defaults, with other libraries, on distinct keys.
// The client has one core.
func librariesSection(r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	names := coldNames()
	all, err := openLibraries(server)
	for _, c := range all {
		defer c.close()
	}
	if err != nil {
		return err
	}
	r.beginTable("Libraries: decisions on distinct keys (%d windows, one core for the client; go-redis with 64 connections)", clientRounds)
	r.addRow(loadColumns...)
	for _, goroutines := range []int{64, 512} {
		if err := takeTurns(all, goroutines, names, clientWindow); err != nil {
			return err
		}
		reportLoad(r, "distinct", goroutines, all)
		redisRate, own := all[0], all[1]
		ratio := median(ratios(own.rates, redisRate.rates))
		r.atLeast(fmt.Sprintf("libraries: decisions / redis_rate, %d callers", goroutines), ratio, 4)
	}
	return nil
}

// openLibraries returns callers of redis_rate, Penstock's store and the other libraries, in this
// order.
func openLibraries(server *redistest.Server) (all []*caller, err error) {
	for _, open := range []func(*redistest.Server) (*caller, error){
		func(server *redistest.Server) (*caller, error) {
			return redisRateCaller(pooled(server), redis_rate.PerSecond(peersLimit))
		},
		func(server *redistest.Server) (*caller, error) {
			return redisCaller("penstock", server, redisstore.Options{}, penstock.PerSecond(peersLimit).MustCompile())
		},
		throttledCaller, ululeCaller, rueidisLimiterCaller,
	} {
		c, err := open(server)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

func throttledCaller(server *redistest.Server) (*caller, error) {
	client := pooled(server)
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(peersLimit), MaxBurst: peersLimit - 1})
	if err != nil {
		return nil, err
	}
	return &caller{
		name: "throttled v2",
		allow: func(ctx context.Context, key string) (bool, error) {
			limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
			return err == nil && !limited, err
		},
		bound: bucketBound(peersLimit, peersLimit, time.Second),
		close: func() { _ = client.Close() },
	}, nil
}

func ululeCaller(server *redistest.Server) (*caller, error) {
	client := pooled(server)
	store, err := ululeredis.NewStoreWithOptions(client, ulule.StoreOptions{Prefix: "ulule"})
	if err != nil {
		return nil, err
	}
	limiter := ulule.New(store, ulule.Rate{Period: time.Second, Limit: peersLimit})
	return &caller{
		name: "ulule v3",
		allow: func(ctx context.Context, key string) (bool, error) {
			c, err := limiter.Get(ctx, key)
			return err == nil && !c.Reached, err
		},
		bound: windowBound(peersLimit, time.Second),
		close: func() { _ = client.Close() },
	}, nil
}

func rueidisLimiterCaller(server *redistest.Server) (*caller, error) {
	option, err := redisclient.ParseURL(server.URL())
	if err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, err
	}
	limiter, err := rueidislimiter.NewRateLimiter(rueidislimiter.RateLimiterOption{
		ClientBuilder: func(rueidis.ClientOption) (rueidis.Client, error) { return client, nil },
		Limit:         peersLimit,
		Window:        time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &caller{
		name: "rueidislimiter v1",
		allow: func(ctx context.Context, key string) (bool, error) {
			r, err := limiter.Allow(ctx, key)
			return r.Allowed, err
		},
		bound: windowBound(peersLimit, time.Second),
		close: client.Close,
	}, nil
}

// windowBound returns a function that returns the largest number of units that a fixed window can
// allow within d. Besides the whole windows that it contains, a time can touch two more: one at its
// beginning and one at its end.
func windowBound(count int64, period time.Duration) func(time.Duration) int64 {
	return func(d time.Duration) int64 { return count * (int64(d/period) + 2) }
}

// pooled returns a go-redis client with up to 64 connections.
func pooled(server *redistest.Server) *redis.Client {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket, PoolSize: 64})
}
