package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// Malformed replies to scripts, and to the commands that read the layout, end no client of a
// Cluster.
func TestClusterClientsSurviveMalformedReplies(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	cluster, proxies := redistest.StartProxiedCluster(t)
	for _, command := range []string{"evalsha", "cluster"} {
		for _, reply := range []string{"*-5\r\n", "*2000000000\r\n", ":1\r\n:1\r\n", "-MOVED\r\n", "-ASK 1\r\n", "*1\r\n*1\r\n:1\r\n"} {
			store := open(t, "redis+cluster://"+strings.Join(cluster.Addrs(), ","), redisstore.Options{})
			for _, p := range proxies {
				p.Only(command)
				p.ReplaceReply(reply)
			}
			for i := range 8 { // keys of each primary
				eventually.NoError(t, func() error {
					_, err := store.Decide(within(t, time.Second), []penstock.Charge{spend(fmt.Sprint("k", i), slowRefill("d", 1_000_000), 1)})
					return err
				})
			}
			for _, p := range proxies {
				p.ReplaceReply("") // those that were not sent
			}
		}
	}
	replaced := int64(0)
	for _, p := range proxies {
		replaced += p.Losses()
	}
	if replaced < 12 {
		t.Errorf("%d replies were replaced; want at least one in each case", replaced)
	}
	t.Logf("counted: %d malformed replies", replaced)
}

// The client asks a primary that Sentinels have named for its role, each second.
func TestSentinelClientsSurviveMalformedReplies(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	group := redistest.StartProxiedSentinel(t)
	proxy := group.Proxy(group.Primary)
	store := open(t, "redis+sentinel://"+strings.Join(group.Addrs(), ",")+"/"+redistest.MasterName, redisstore.Options{})
	for _, reply := range []string{"*0\r\n", "*-1\r\n", "$-2\r\n", ":1\r\n:1\r\n"} {
		losses := proxy.Losses()
		proxy.Only("role")
		proxy.ReplaceReply(reply)
		eventually.True(t, fmt.Sprintf("the reply %q", reply), func() bool { return proxy.Losses() > losses })
		eventually.NoError(t, func() error {
			_, err := store.Decide(within(t, time.Second), []penstock.Charge{spend("k", slowRefill("d", 1_000_000), 1)})
			return err
		})
	}
}
