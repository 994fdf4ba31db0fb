package redisstore_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/penstock/penstock/storetest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/rueidis"
)

func init() { logging.Disable() } // go-redis would log every fault that these tests make

// aPrefix is one that no other test uses.
func aPrefix() string { return strings.ToLower(rand.Text()[:10]) }

// open makes a Store that ends with the test.
func open(t testing.TB, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// over makes a Store of a client whose owner closes it.
func over(t testing.TB, client redisstore.Client, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func rueidisClient(t testing.TB, option rueidis.ClientOption) redisstore.Client {
	t.Helper()
	option.DisableCache = true
	c, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return redisstore.NewRueidis(c)
}

func goRedisClient(t testing.TB, c redis.UniversalClient) redisstore.Client {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	return goredis.New(c)
}

// A maker makes the client of a store under test.
type maker struct {
	name   string
	client func(t testing.TB) redisstore.Client
}

func dial(url string) func(t testing.TB) redisstore.Client {
	return func(t testing.TB) redisstore.Client {
		t.Helper()
		option, err := redisstore.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		c := redisstore.Dial(option)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// obeys checks the law on each client, one store for all its laws.
func obeys(t *testing.T, o redisstore.Options, makers []maker) {
	for _, m := range makers {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			o.Prefix = aPrefix()
			store := over(t, m.client(t), o)
			storetest.Run(t, func(*testing.T) penstock.Store { return store })
		})
	}
}

func TestOneServerObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	obeys(t, redisstore.Options{}, []maker{
		{"url", dial(s.URL())},
		{"rueidis", func(t testing.TB) redisstore.Client {
			return rueidisClient(t, rueidis.ClientOption{InitAddress: []string{s.Addr}})
		}},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket}))
		}},
	})
}

func TestHashedKeysObeyTheLaw(t *testing.T) {
	t.Parallel()
	obeys(t, redisstore.Options{Secret: []byte("a secret")}, []maker{{"url", dial(redistest.Start(t).URL())}})
}

func TestClusterObeysTheLaw(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	obeys(t, redisstore.Options{}, []maker{
		{"url", dial("redis+cluster://" + strings.Join(c.Addrs(), ","))},
		{"url of one node", dial("redis://" + c.Addrs()[0])},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()}))
		}},
	})
}

func TestSentinelObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	obeys(t, redisstore.Options{}, []maker{
		{"url", dial("redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName)},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: redistest.MasterName, SentinelAddrs: s.Addrs(),
			}))
		}},
	})
}
