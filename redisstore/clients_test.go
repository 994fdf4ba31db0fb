package redisstore_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// Short names for the helpers that these tests share with those of redisstore/goredis.
var (
	newPrefix  = clienttest.NewPrefix
	open       = clienttest.OpenStore
	newStore   = clienttest.NewStore
	must       = clienttest.Must
	slowRefill = clienttest.SlowRefill
	spend      = clienttest.Spend
	remaining  = clienttest.Remaining
	wantReason = clienttest.WantReason
	within     = clienttest.Within
)

// clientsOfURLs makes clients of URLs.
var clientsOfURLs = clienttest.Library{
	Name: "url",
	One: func(t testing.TB, addr string, o clienttest.Options) redisstore.Client {
		t.Helper()
		return dialURL(t, urlOf("redis", addr, o), o.ReplyTimeout)
	},
	Cluster: func(t testing.TB, addrs []string, o clienttest.Options) redisstore.Client {
		t.Helper()
		return dialURL(t, urlOf("redis+cluster", strings.Join(addrs, ","), o), o.ReplyTimeout)
	},
	Socket: func(t testing.TB, path string) redisstore.Client { t.Helper(); return dial("unix://" + path)(t) },
}

func urlOf(scheme, hosts string, o clienttest.Options) string {
	address := url.URL{Scheme: scheme, Host: hosts}
	if o.Password != "" {
		address.User = url.UserPassword(o.User, o.Password)
	}
	return address.String()
}

// oneConnection makes clients of URLs that send all commands on one connection.
var oneConnection = clienttest.Library{
	Name: "one connection",
	One: func(t testing.TB, addr string, o clienttest.Options) redisstore.Client {
		t.Helper()
		option, err := redisclient.ParseURL(urlOf("redis", addr, o))
		if err != nil {
			t.Fatal(err)
		}
		option.PipelineMultiplex = -1
		c := clienttest.Dial(option)
		t.Cleanup(func() { _ = c.Close() })
		return c
	},
}

func dial(url string) func(t testing.TB) redisstore.Client {
	return func(t testing.TB) redisstore.Client { t.Helper(); return dialURL(t, url, 0) }
}

// dialURL makes a client of a URL. A connection of it waits for a reply as long as that of a URL
// does, or for replyTimeout if that is longer.
func dialURL(t testing.TB, url string, replyTimeout time.Duration) redisstore.Client {
	t.Helper()
	option, err := redisclient.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	option.ConnWriteTimeout = max(option.ConnWriteTimeout, replyTimeout)
	c := clienttest.Dial(option)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// suite is the tests that redisstore/goredis runs too, with its own clients.
func suite(t *testing.T) clienttest.Suite {
	return clienttest.Suite{
		Library: clientsOfURLs, Other: oneConnection,
		ClusterRights: clienttest.RulesOf(redisrights.Options{Cluster: true}),
		Open: func(t *testing.T, client redisstore.Client) *redisstore.Store {
			return redisstore.DisableCoalescing(newStore(t, client, redisstore.Options{Prefix: newPrefix()}))
		},
		MaxInFlight: 32,
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

// A proxy loses, repeats, swaps or replaces replies.
func TestNumbersOfOtherCallsAreNotDelivered(t *testing.T) {
	t.Parallel()
	t.Run("coalesced", func(t *testing.T) {
		t.Parallel()
		clienttest.RepliesOutOfStep(t, clientsOfURLs, func(t *testing.T, client redisstore.Client) *redisstore.Store {
			return newStore(t, client, redisstore.Options{})
		})
	})
	t.Run("not coalesced", func(t *testing.T) {
		t.Parallel()
		clienttest.RepliesOutOfStep(t, clientsOfURLs, suite(t).Open)
	})
}

func TestOneServerObeysTheLaw(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	clienttest.RunConformance(t, redisstore.Options{}, clienttest.Maker{Name: "url", Client: dial(s.URL())})
	clienttest.RunConformance(t, redisstore.Options{Secret: []byte("a secret")}, clienttest.Maker{Name: "one connection, hashed keys", Client: func(t testing.TB) redisstore.Client {
		return oneConnection.One(t, s.Addr, clienttest.Options{})
	}})
}
