package goredis_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/penstock/penstock/redisstore/internal/clienttest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

func init() { logging.Disable() } // go-redis would log every fault that these tests make

// plain makes clients of one server and of a Cluster, ring a Ring of one server.
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

func adapt(t testing.TB, c redis.UniversalClient) redisstore.Client {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	return goredis.New(c)
}

// of names a client for clienttest.Law.
func of(c func() redis.UniversalClient) clienttest.Maker {
	return clienttest.Maker{Name: "go-redis", Client: func(t testing.TB) redisstore.Client {
		t.Helper()
		return adapt(t, c())
	}}
}

func TestOneServerObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	clienttest.Law(t, redisstore.Options{}, of(func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket})
	}))
}

func TestSentinelObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	clienttest.Law(t, redisstore.Options{}, of(func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: s.Addrs()})
	}))
}

// One Cluster serves all these tests, one after the other: some flush scripts or set the memory.
func TestClusters(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	t.Run("Law", func(t *testing.T) {
		clienttest.Law(t, redisstore.Options{}, of(func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
		}))
	})
	t.Run("Nodes", func(t *testing.T) { clienttest.NodesOfACluster(t, c, plain) })
	t.Run("Load", func(t *testing.T) { clienttest.LoadOnACluster(t, c, plain) })
	t.Run("Linearizable", func(t *testing.T) { clienttest.LinearizableByKey(t, c, plain, effort.Of(10, 500)) })
	t.Run("Memory", func(t *testing.T) { clienttest.MemoryOfACluster(t, c, plain) })
}

func TestLostRepliesNeverChargeTwice(t *testing.T) {
	t.Parallel()
	clienttest.LostRepliesNeverChargeTwice(t, plain, ring)
}

// This is what happens without the adapter: the test above can fail.
func TestPlainScriptRunOfGoRedisChargesMoreThanOnce(t *testing.T) {
	t.Parallel()
	to := clienttest.OneBehindProxy(t)
	script := redis.NewScript("return redis.call('INCR', KEYS[1])")
	client := redis.NewClient(&redis.Options{Addr: to.Proxies[0].Addr()})
	t.Cleanup(func() { _ = client.Close() })
	if err := script.Run(t.Context(), client, []string{"counter"}).Err(); err != nil {
		t.Fatal(err)
	}
	to.Proxies[0].Only("EVALSHA")
	to.Proxies[0].Cut(true)
	if err := script.Run(t.Context(), client, []string{"counter"}).Err(); err == nil {
		t.Error("the reply was not lost")
	}
	charged, err := strconv.Atoi(clienttest.Must(t, to.Servers[0], "GET", "counter").(string))
	t.Logf("one call has charged %d times", charged-1)
	if err != nil || charged < 3 {
		t.Errorf("one call has charged %d times (%v): go-redis does not retry after a lost reply", charged-1, err)
	}
}

func TestForgottenScriptsChargeOnce(t *testing.T) {
	t.Parallel()
	clienttest.ForgottenScriptsChargeOnce(t, plain, ring)
}

func TestEveryCallEndsWhateverTheServerDoes(t *testing.T) {
	t.Parallel()
	clienttest.EveryCallEnds(t, plain)
}

func TestServerMayComeUpLater(t *testing.T) {
	t.Parallel()
	clienttest.ServerMayComeUpLater(t, plain, func(*redistest.Server) []clienttest.Maker { return nil })
}

func TestServerThatCannotDecideSaysSoForEveryCharge(t *testing.T) {
	t.Parallel()
	clienttest.CannotDecide(t, plain)
}

func TestServerThatIsLoadingIsNotReady(t *testing.T) {
	t.Parallel()
	clienttest.LoadingServer(t, plain)
}

func TestWrongLoginsAreRefused(t *testing.T) {
	t.Parallel()
	clienttest.WrongLogin(t, plain)
}

func TestClusterWithoutAPrimaryIsDown(t *testing.T) {
	t.Parallel()
	clienttest.ClusterDown(t, plain)
}

func TestStoreNeedsTheseRightsOnly(t *testing.T) {
	t.Parallel()
	clienttest.RightsOnOneServer(t, plain)
}

func TestStoreOnAClusterNeedsTheseRightsOnly(t *testing.T) {
	t.Parallel()
	rights := redistest.DocumentedRights(t)
	clienttest.RightsOnACluster(t, plain, rights.Single+" "+rights.Cluster+" "+rights.GoRedis)
}

func TestLoadedLimitsNeedNoOtherScript(t *testing.T) {
	t.Parallel()
	clienttest.LoadedLimits(t, plain)
}

// Two callers at once are decided in a script of their own each; more would be coalesced.
func TestOneCallerLoadsAndTheOtherWaits(t *testing.T) {
	t.Parallel()
	clienttest.OneCallerLoads(t, plain, 2, newStore(t))
}

func TestWithoutTheRightToLoadOneCallerSendsTheText(t *testing.T) {
	t.Parallel()
	clienttest.OneCallerSendsTheText(t, plain, 2, newStore(t))
}

func newStore(t *testing.T) func(redisstore.Client) *redisstore.Store {
	return func(client redisstore.Client) *redisstore.Store {
		return clienttest.NewStore(t, client, redisstore.Options{})
	}
}

func TestAnotherDigestIsAnError(t *testing.T) {
	t.Parallel()
	clienttest.WrongDigest(t, plain)
}

func TestCallsDoNotWaitForOthersConnections(t *testing.T) {
	t.Parallel()
	clienttest.OthersConnections(t, plain)
}

// The tests of redisstore write as many histories, with clients of rueidis only.
func TestConcurrentDecisionsAreLinearizable(t *testing.T) {
	t.Parallel()
	clienttest.Linearizable(t, plain, effort.Of(50, 3000))
}

func TestLostRepliesLeaveDecisionsLinearizable(t *testing.T) {
	t.Parallel()
	clienttest.LinearizableWithLostReplies(t, plain, effort.Of(15, 600))
}

// A healthy Ring is several servers and no Cluster: one of them says so once.
func TestARingIsAskedForItsLayoutOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := clienttest.NewStore(t, ring.One(t, server.Addr, clienttest.Options{}), redisstore.Options{})
	clienttest.Use(store, 2*time.Second)
	if asked, _, err := server.CommandStats("cluster|slots"); err != nil || asked != 1 {
		t.Errorf("asked %d times, %v", asked, err)
	}
}
