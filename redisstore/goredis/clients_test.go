package goredis_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

func init() { logging.Disable() } // go-redis would log every fault that these tests make

// plain makes clients of one server and of a Cluster. ring makes a Ring of one server.
var (
	plain = clienttest.Library{
		Name: "go-redis",
		One: func(t testing.TB, addr string, o clienttest.Options) redisstore.Client {
			t.Helper()
			options := redis.Options{Addr: addr, Username: o.User, Password: o.Password, ReadTimeout: o.ReplyTimeout}
			if o.NoRetries {
				options.MaxRetries = -1
			}
			return adapt(t, redis.NewClient(&options))
		},
		Cluster: func(t testing.TB, addrs []string, o clienttest.Options) redisstore.Client {
			t.Helper()
			options := redis.ClusterOptions{Addrs: addrs, Username: o.User, Password: o.Password, ReadTimeout: o.ReplyTimeout}
			if o.NoRetries {
				options.MaxRedirects, options.DialerRetries = -1, 1
			}
			return adapt(t, redis.NewClusterClient(&options))
		},
	}
	ring = clienttest.Library{
		Name: "go-redis ring",
		One: func(t testing.TB, addr string, o clienttest.Options) redisstore.Client {
			t.Helper()
			return adapt(t, redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": addr}, ReadTimeout: o.ReplyTimeout}))
		},
	}
)

// adapt makes a Client of a go-redis client, which is closed when the test ends.
func adapt(t testing.TB, c redis.UniversalClient) redisstore.Client {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	return goredis.New(c)
}

// makerOf names a client for clienttest.RunConformance.
func makerOf(newClient func() redis.UniversalClient) clienttest.Maker {
	return clienttest.Maker{Name: "go-redis", Client: func(t testing.TB) redisstore.Client {
		t.Helper()
		return adapt(t, newClient())
	}}
}

// suite is the tests that redisstore runs too, with its own clients. At most two scripts of one key
// are in flight, because further calls are coalesced.
func suite(t *testing.T) clienttest.Suite {
	return clienttest.Suite{
		Library: plain, Other: ring,
		ClusterRights: clienttest.RulesOf(redisrights.Options{Cluster: true, GoRedis: true}),
		Open: func(t *testing.T, client redisstore.Client) *redisstore.Store {
			return clienttest.NewStore(t, client, redisstore.Options{})
		},
		MaxInFlight: 2,
	}
}

func TestClientsMakingOneCallAtATime(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	clienttest.RunSequential(t, suite(t))
}

func TestClientsMakingManyCallsAtATime(t *testing.T) {
	t.Parallel()
	clienttest.RunConcurrent(t, suite(t))
}

// go-redis sends one command at a time on a connection, and closes it if a reply is late. So its
// connections do not stay out of step.
func TestNumbersOfOtherCallsAreNotDelivered(t *testing.T) {
	t.Parallel()
	clienttest.RepliesOutOfStep(t, plain, suite(t).Open)
}

func TestOneServerObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	clienttest.RunConformance(t, redisstore.Options{}, makerOf(func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket})
	}))
}

// Without the adapter, go-redis charges more than once. So the tests of lost replies can fail.
func TestPlainScriptRunOfGoRedisChargesMoreThanOnce(t *testing.T) {
	t.Parallel()
	target := clienttest.OneBehindProxy(t)
	script := redis.NewScript("return redis.call('INCR', KEYS[1])")
	client := redis.NewClient(&redis.Options{Addr: target.Proxies[0].Addr()})
	t.Cleanup(func() { _ = client.Close() })
	if err := script.Run(t.Context(), client, []string{"counter"}).Err(); err != nil {
		t.Fatal(err)
	}
	target.Proxies[0].Only("EVALSHA")
	target.Proxies[0].CutOnReply(true)
	if err := script.Run(t.Context(), client, []string{"counter"}).Err(); err == nil {
		t.Error("the call succeeded; want an error, because its reply was lost")
	}
	counter, err := strconv.Atoi(clienttest.Must(t, target.Servers[0], "GET", "counter").(string))
	charged := counter - 1 // without the first call, whose reply arrived
	t.Logf("one call has charged %d times", charged)
	if err != nil || charged < 2 {
		t.Errorf("one call has charged %d times, %v; want twice or more, because go-redis retries after a lost reply", charged, err)
	}
}

// A Ring is several servers, but not a Cluster. One query to one server finds that out.
func TestLayoutOfARingIsQueriedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := clienttest.NewStore(t, ring.One(t, server.Addr, clienttest.Options{}), redisstore.Options{})
	clienttest.Use(store, 2*time.Second)
	if queries, _, err := server.CommandStats("cluster|slots"); err != nil || queries != 1 {
		t.Errorf("the map of slots was queried %d times, %v; want once", queries, err)
	}
}
