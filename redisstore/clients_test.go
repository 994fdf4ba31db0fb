package redisstore_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/internal/clienttest"
	"github.com/redis/rueidis"
)

// Short names for the helpers that these tests share with those of redisstore/goredis.
var (
	aPrefix    = clienttest.NewPrefix
	open       = clienttest.OpenStore
	over       = clienttest.NewStore
	must       = clienttest.Must
	slow       = clienttest.Slow
	spend      = clienttest.Spend
	remaining  = clienttest.Remaining
	wantReason = clienttest.WantReason
	within     = clienttest.Within
	eventually = clienttest.Eventually
	await      = clienttest.Await
)

// dialled makes clients of URLs.
var dialled = clienttest.Library{
	Name: "url",
	One: func(t testing.TB, addr string, o clienttest.Options) redisstore.Client {
		t.Helper()
		return dial(urlOf("redis", addr, o))(t)
	},
	Cluster: func(t testing.TB, addrs []string, o clienttest.Options) redisstore.Client {
		t.Helper()
		return dial(urlOf("redis+cluster", strings.Join(addrs, ","), o))(t)
	},
}

func urlOf(scheme, hosts string, o clienttest.Options) string {
	address := url.URL{Scheme: scheme, Host: hosts}
	if o.Password != "" {
		address.User = url.UserPassword(o.User, o.Password)
	}
	return address.String()
}

// usersOwn makes clients of rueidis clients.
var usersOwn = clienttest.Library{
	Name: "rueidis",
	One: func(t testing.TB, addr string, _ clienttest.Options) redisstore.Client {
		t.Helper()
		return rueidisClient(t, rueidis.ClientOption{InitAddress: []string{addr}})
	},
	Cluster: func(t testing.TB, addrs []string, _ clienttest.Options) redisstore.Client {
		t.Helper()
		return rueidisClient(t, rueidis.ClientOption{InitAddress: addrs})
	},
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

func TestOneServerObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	clienttest.Law(t, redisstore.Options{},
		clienttest.Maker{Name: "url", Client: dial(s.URL())},
		clienttest.Maker{Name: "rueidis", Client: func(t testing.TB) redisstore.Client { return usersOwn.One(t, s.Addr, clienttest.Options{}) }},
	)
}

func TestHashedKeysObeyTheLaw(t *testing.T) {
	t.Parallel()
	clienttest.Law(t, redisstore.Options{Secret: []byte("a secret")}, clienttest.Maker{Name: "url", Client: dial(redistest.Shared(t).URL())})
}

func TestSentinelObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	url := "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
	clienttest.Law(t, redisstore.Options{}, clienttest.Maker{Name: "url", Client: dial(url)})
}

// One Cluster serves all these tests, one after the other: some flush scripts or set the memory.
func TestClusters(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	t.Run("Law", func(t *testing.T) {
		clienttest.Law(t, redisstore.Options{},
			clienttest.Maker{Name: "url", Client: dial("redis+cluster://" + strings.Join(c.Addrs(), ","))},
			clienttest.Maker{Name: "url of one node", Client: dial("redis://" + c.Addrs()[0])},
		)
	})
	t.Run("Nodes", func(t *testing.T) { clienttest.NodesOfACluster(t, c, dialled) })
	t.Run("Load", func(t *testing.T) { clienttest.LoadOnACluster(t, c, dialled) })
	t.Run("Linearizable", func(t *testing.T) { clienttest.LinearizableByKey(t, c, dialled, effort.Of(10, 500)) })
	t.Run("Coalescing", func(t *testing.T) { eachSlotCoalescesAlone(t, c) })
	t.Run("Memory", func(t *testing.T) { clienttest.MemoryOfACluster(t, c, dialled) })
}

func TestLostRepliesNeverChargeTwice(t *testing.T) {
	t.Parallel()
	clienttest.LostRepliesNeverChargeTwice(t, dialled, usersOwn)
}

func TestForgottenScriptsChargeOnce(t *testing.T) {
	t.Parallel()
	clienttest.ForgottenScriptsChargeOnce(t, dialled, usersOwn)
}

func TestEveryCallEndsWhateverTheServerDoes(t *testing.T) {
	t.Parallel()
	clienttest.EveryCallEnds(t, dialled)
}

func TestServerMayComeUpLater(t *testing.T) {
	t.Parallel()
	clienttest.ServerMayComeUpLater(t, dialled, func(s *redistest.Server) []clienttest.Maker {
		return []clienttest.Maker{{Name: "socket", Client: dial(s.URL())}}
	})
}

func TestServerThatCannotDecideSaysSoForEveryCharge(t *testing.T) {
	t.Parallel()
	clienttest.CannotDecide(t, dialled)
}

func TestServerThatIsLoadingIsNotReady(t *testing.T) {
	t.Parallel()
	clienttest.LoadingServer(t, dialled)
}

func TestWrongLoginsAreRefused(t *testing.T) {
	t.Parallel()
	clienttest.WrongLogin(t, dialled)
}

func TestClusterWithoutAPrimaryIsDown(t *testing.T) {
	t.Parallel()
	clienttest.ClusterDown(t, dialled)
}

func TestStoreNeedsTheseRightsOnly(t *testing.T) {
	t.Parallel()
	clienttest.RightsOnOneServer(t, dialled)
}

func TestStoreOnAClusterNeedsTheseRightsOnly(t *testing.T) {
	t.Parallel()
	rights := redistest.DocumentedRights(t)
	clienttest.RightsOnACluster(t, dialled, rights.Single+" "+rights.Cluster)
}

func TestLoadedLimitsNeedNoOtherScript(t *testing.T) {
	t.Parallel()
	clienttest.LoadedLimits(t, dialled)
}

// uncoalesced makes a store that decides each batch in a script of its own.
func uncoalesced(t *testing.T) func(redisstore.Client) *redisstore.Store {
	return func(client redisstore.Client) *redisstore.Store {
		return redisstore.DisableCoalescing(over(t, client, redisstore.Options{Prefix: aPrefix()}))
	}
}

func TestOneCallerLoadsAndTheOthersWait(t *testing.T) {
	t.Parallel()
	clienttest.OneCallerLoads(t, dialled, 32, uncoalesced(t))
}

func TestWithoutTheRightToLoadOneCallerSendsTheText(t *testing.T) {
	t.Parallel()
	clienttest.OneCallerSendsTheText(t, dialled, 32, uncoalesced(t))
}

func TestAnotherDigestIsAnError(t *testing.T) {
	t.Parallel()
	clienttest.WrongDigest(t, dialled)
}

func TestCallsDoNotWaitForOthersConnections(t *testing.T) {
	t.Parallel()
	for _, library := range []clienttest.Library{dialled, {Name: "rueidis", One: func(t testing.TB, addr string, o clienttest.Options) redisstore.Client {
		option, err := redisstore.ParseURL(urlOf("redis", addr, o))
		if err != nil {
			t.Fatal(err)
		}
		return rueidisClient(t, option)
	}}} {
		t.Run(library.Name, func(t *testing.T) {
			t.Parallel()
			clienttest.OthersConnections(t, library)
		})
	}
}

// The tests of redisstore/goredis write as many histories, with clients of both libraries.
func TestConcurrentDecisionsAreLinearizable(t *testing.T) {
	t.Parallel()
	clienttest.Linearizable(t, dialled, effort.Of(50, 3000))
}

func TestLostRepliesLeaveDecisionsLinearizable(t *testing.T) {
	t.Parallel()
	clienttest.LinearizableWithLostReplies(t, dialled, effort.Of(15, 600))
}
