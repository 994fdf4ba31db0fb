// Package clienttest has the tests that a Client of any Redis library must pass.
// The tests of redisstore run them over rueidis, those of redisstore/goredis over go-redis.
package clienttest

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/redisstore"
)

// A Library makes clients of one Redis library. Each client is closed when its test ends.
type Library struct {
	Name    string
	One     func(t testing.TB, addr string, o Options) redisstore.Client    // for a single server
	Cluster func(t testing.TB, addrs []string, o Options) redisstore.Client // nil: the tests use no Cluster
	Socket  func(t testing.TB, path string) redisstore.Client               // nil: the tests use no Unix socket
}

// Options of a client. The zero value is the library's default.
type Options struct {
	User, Password string
	ReplyTimeout   time.Duration // for libraries that have a timeout of their own; rueidis has at least 1 s
	NoRetries      bool          // switches off the library's own retries
}

func (l Library) on(addr string, o Options) Maker {
	return Maker{l.Name, func(t testing.TB) redisstore.Client { t.Helper(); return l.One(t, addr, o) }}
}

func (l Library) onCluster(addrs []string, o Options) Maker {
	return Maker{l.Name, func(t testing.TB) redisstore.Client { t.Helper(); return l.Cluster(t, addrs, o) }}
}

// Dial makes a client from options of rueidis.
func Dial(option rueidis.ClientOption) redisstore.Client {
	return redisclient.Dial(option, func(text string) error { return redisstore.ReplyError(text) })
}
