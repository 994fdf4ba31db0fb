package redisops_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

func serverOf(t *testing.T, store *redisstore.Store) redisops.Server {
	t.Helper()
	servers, err := redisops.Servers(t.Context(), store)
	if err != nil || len(servers) != 1 {
		t.Fatalf("Servers returned %+v, %v; want one server", servers, err)
	}
	return servers[0]
}

func TestServersReportWhetherCountersMayBeEvicted(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := clienttest.OpenStore(t, s.URL(), redisstore.Options{})
	for _, c := range []struct {
		max, policy string
		canEvict    bool
	}{
		{max: "0", policy: "noeviction", canEvict: false},
		{max: "0", policy: "allkeys-lru", canEvict: false}, // the memory has no maximum, so it is never full
		{max: "100mb", policy: "noeviction", canEvict: false},
		{max: "100mb", policy: "allkeys-lru", canEvict: true},
		{max: "100mb", policy: "volatile-ttl", canEvict: true}, // all counters have a TTL
	} {
		clienttest.Must(t, s, "CONFIG", "SET", "maxmemory", c.max, "maxmemory-policy", c.policy)
		m := redisops.WorstMemory([]redisops.Server{serverOf(t, store)})
		const leastUsed = 100_000 // bytes; an empty server uses more
		if m.Used < leastUsed || m.Policy != c.policy || m.Evicts() != c.canEvict {
			t.Errorf("maxmemory %s, policy %s: %+v, Evicts is %t; want %t", c.max, c.policy, m, m.Evicts(), c.canEvict)
		}
	}
	clienttest.Must(t, s, "EVAL", "for i = 1, 1000 do redis.call('SET', i, string.rep('x', 5000)) end", "0")
	clienttest.Must(t, s, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	clienttest.Must(t, s, "CONFIG", "SET", "maxmemory", "3mb")
	evicted := int64(0)
	eventually.True(t, "keys are evicted", func() bool {
		evicted = serverOf(t, store).Evicted
		return evicted > 0
	})
	if evicted > 1000 {
		t.Errorf("%d of 1000 keys were evicted from a full server; want at most 1000", evicted)
	}
}

// A server that evicts needs more attention than a full one. Among others, the one that uses the
// largest part of its maximum does.
func TestWorstMemoryIsThatOfAServerThatEvictsOrIsFull(t *testing.T) {
	for name, c := range map[string]struct {
		all  []redisops.Memory
		want string
	}{
		"no server":              {nil, ""},
		"no maximum":             {[]redisops.Memory{{Used: 9, Address: "first"}, {Used: 10, Address: "second"}}, "first"},
		"the fuller of two":      {[]redisops.Memory{{Used: 60, Max: 100, Policy: "noeviction", Address: "first"}, {Used: 7, Max: 10, Policy: "noeviction", Address: "second"}}, "second"},
		"a maximum and none":     {[]redisops.Memory{{Used: 90, Address: "first"}, {Used: 1, Max: 100, Policy: "noeviction", Address: "second"}}, "second"},
		"one that evicts, empty": {[]redisops.Memory{{Max: 10, Policy: "allkeys-lru", Address: "first"}, {Used: 10, Max: 10, Policy: "noeviction", Address: "second"}}, "first"},
		"two that evict":         {[]redisops.Memory{{Used: 9, Max: 10, Policy: "allkeys-lru", Address: "first"}, {Used: 80, Max: 100, Policy: "allkeys-lru", Address: "second"}}, "first"},
	} {
		for _, isReversed := range []bool{false, true} {
			var servers []redisops.Server
			for _, m := range c.all {
				servers = append(servers, redisops.Server{Memory: m})
			}
			if isReversed && name != "no maximum" { // of equals, the first is returned
				slices.Reverse(servers)
			}
			if got := redisops.WorstMemory(servers).Address; got != c.want {
				t.Errorf("%s, reversed %t: the server %q; want %q", name, isReversed, got, c.want)
			}
		}
	}
}

// Each number changes with what happens on the server.
func TestServersCountWhatHappens(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := clienttest.OpenStore(t, s.URL(), redisstore.Options{})
	before := serverOf(t, store)
	const calls = 100
	for i := range calls {
		if _, err := store.Decide(t.Context(), []penstock.Charge{clienttest.Spend(fmt.Sprint(i), clienttest.SlowRefill("d", 9), 1)}); err != nil {
			t.Fatal(err)
		}
	}
	clienttest.Must(t, s, "EVAL", "redis.call('SELECT', 1) redis.call('SET', 'elsewhere', string.rep('x', 1000000))", "0")
	clienttest.Must(t, s, "SET", "short", "1", "PX", "1")
	redistest.Start(t, "--replicaof", strings.Replace(s.Addr, ":", " ", 1))
	var after redisops.Server
	eventually.True(t, "a key has expired, and the replica is connected", func() bool {
		after = serverOf(t, store)
		return after.Expired > before.Expired && after.Replicas > 0
	})
	if after.Keys-before.Keys != calls+1 || after.Expired-before.Expired != 1 || after.Replicas != 1 {
		t.Errorf("%d more keys, %d more expired keys and %d replicas; want %d, 1 and 1", after.Keys-before.Keys, after.Expired-before.Expired, after.Replicas, calls+1)
	}
	if after.Scripts-before.Scripts < calls || after.ScriptTime <= before.ScriptTime || after.CPU <= before.CPU || after.CachedScripts <= before.CachedScripts {
		t.Errorf("from %+v\nto %+v\nwant more scripts, script time, CPU time and cached scripts", before, after)
	}
	if after.Clients < 2 || after.MaxClients < after.Clients || after.Used-before.Used < 1_000_000 {
		t.Errorf("%+v; want at least 2 clients, a maximum of clients that is no smaller, and 1 MB more memory", after)
	}
}

// Each server has a run ID of its own, so a failover is seen.
func TestServersHaveTheirRunID(t *testing.T) {
	t.Parallel()
	primary, other := clienttest.OpenStore(t, redistest.Start(t).URL(), redisstore.Options{}), clienttest.OpenStore(t, redistest.Start(t).URL(), redisstore.Options{})
	first, again, another := serverOf(t, primary).RunID, serverOf(t, primary).RunID, serverOf(t, other).RunID
	if len(first) != 40 || len(another) != 40 || again != first || another == first {
		t.Errorf("the run IDs of a server are %q and %q, and that of another is %q; want two equal ones, and another one", first, again, another)
	}
}

func TestSampleEstimatesTheKeysOfEachGroup(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := clienttest.OpenStore(t, s.URL(), redisstore.Options{Prefix: "limiter"})
	if _, err := store.Heartbeat(t.Context(), "an instance", time.Minute); err != nil {
		t.Fatal(err)
	}
	// A script writes the keys, because 30,000 decisions would take long.
	fill := func(number int, format string) {
		t.Helper()
		clienttest.Must(t, s, "EVAL", "for i = 1, tonumber(ARGV[1]) do redis.call('SET', string.format(ARGV[2], i), '1') end", "0", fmt.Sprint(number), format)
	}
	sample := func() redisops.KeySample {
		t.Helper()
		k, err := redisops.SampleKeys(t.Context(), store, redisops.MaxSample)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	fill(60, "limiter1{%%}a%d}search") // such as limiter1{%}a1}search: the last brace ends the key
	fill(40, "limiter1{%d}log:in:slidinglog")
	fill(20, "other%d")
	// Seen, Total and Groups: 60 + 40 + 20 keys, and the two of the heartbeat, which have no group.
	if got, want := fmt.Sprint(sample()), "{122 122 map[:2 log:40 search:60]}"; got != want {
		t.Errorf("a few keys: %s; want %s", got, want)
	}
	fill(20_000, "limiter1{user:%d}search")
	fill(10_000, "limiter1x{user:%d}search") // keys of another store
	total, mean := 0.0, 0.0
	const samples = 100
	const leastSeen = 400 // SCAN may return some keys twice, so a sample may have fewer than MaxSample
	for range samples {
		k := sample()
		if k.Seen < leastSeen || k.Seen > redisops.MaxSample {
			t.Fatalf("the sample has %d keys; want %d to %d", k.Seen, leastSeen, redisops.MaxSample)
		}
		total, mean = k.Total, mean+k.Groups["search"]/samples
	}
	// The standard deviation of the mean is below 30,122·√(⅔·⅓/leastSeen)/√samples = 71. Seven of them
	// are allowed.
	const tolerance = 7 * 71
	if total != 30_122 || mean < 20_060-tolerance || mean > 20_060+tolerance {
		t.Errorf("%.0f keys in all, and %.0f of search on average; want 30122, and 20060 within %d", total, mean, tolerance)
	}
}

func TestSampleNeedsItsRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	clienttest.Must(t, s, strings.Fields("ACL SETUSER limiter reset on >secret")...)
	store := clienttest.OpenStore(t, "redis://limiter:secret@"+s.Addr, redisstore.Options{Prefix: "limiter"})
	sampleWith := func(more string, o redisrights.Options) error {
		clienttest.Must(t, s, strings.Fields("ACL SETUSER limiter reset on >secret "+redisrights.Rules("limiter", redisops.Rights(o))+more)...)
		_, err := redisops.SampleKeys(t.Context(), store, 10)
		return err
	}
	if err := sampleWith("", redisrights.Options{Further: redisops.SampleRights()}); err != nil {
		t.Errorf("with all rights: %v; want a sample", err)
	}
	for _, c := range []struct {
		more string // rights that the user has besides those of a Store
		hint string
	}{{"", "+dbsize +scan"}, {" +dbsize", "+scan"}, {" +scan", "+dbsize"}} {
		err := sampleWith(c.more, redisrights.Options{})
		clienttest.WantReason(t, "without "+c.hint, err, penstock.ReasonPermissionDenied)
		if e := penstock.AsStoreError(err); e == nil || e.Hint != c.hint {
			t.Errorf("without %s: %v; want a hint that names it", c.hint, err)
		}
	}
}

// With the rights of Rights, all scripts run. Without one of them, the error names it.
func TestErrorsNameTheMissingRight(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	clienttest.Must(t, s, strings.Fields("ACL SETUSER limiter on >secret "+redisrights.Rules("limiter", redisops.Rights(redisrights.Options{})))...)
	store := clienttest.OpenStore(t, "redis://limiter:secret@"+s.Addr, redisstore.Options{Prefix: "limiter"})
	if _, err := store.Heartbeat(t.Context(), "a", time.Minute); err != nil {
		t.Fatal(err)
	}
	read := func() error {
		_, _, err := redisops.ReadSummaries(t.Context(), store)
		return err
	}
	info := func() error {
		_, err := redisops.Servers(t.Context(), store)
		return err
	}
	write := func() error { return redisops.WriteSummary(t.Context(), store, "a", "text", time.Minute) }
	for _, c := range []struct {
		right string
		call  func() error
	}{{"set", write}, {"zrange", read}, {"zcard", read}, {"info", info}} {
		if err := c.call(); err != nil {
			t.Errorf("with all rights: %v; want no error", err)
		}
		clienttest.Must(t, s, "ACL", "SETUSER", "limiter", "-"+c.right)
		err := c.call()
		clienttest.WantReason(t, "without "+c.right, err, penstock.ReasonPermissionDenied)
		if e := penstock.AsStoreError(err); e == nil || e.Hint != "+"+c.right {
			t.Errorf("without %s: %v; want a hint that names it", c.right, err)
		}
		clienttest.Must(t, s, "ACL", "SETUSER", "limiter", "+"+c.right)
	}
}

// Each of the three primaries in turn may evict keys.
func TestWorstMemoryOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	store := clienttest.OpenStore(t, "redis+cluster://"+strings.Join(c.Addrs(), ","), redisstore.Options{})
	worst := func() (redisops.Memory, error) {
		servers, err := redisops.Servers(t.Context(), store)
		return redisops.WorstMemory(servers), err
	}
	for _, primary := range c.Primaries() {
		clienttest.Must(t, primary, "CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
		if memory, err := worst(); err != nil || !memory.Evicts() || memory.Address != primary.Addr {
			t.Errorf("the memory is %+v, %v; want that %s evicts", memory, err, primary.Addr)
		}
		clienttest.Must(t, primary, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "90mb")
		if memory, err := worst(); err != nil || memory.Evicts() || memory.Address != primary.Addr {
			t.Errorf("the memory is %+v, %v; want that of %s, the only server with a bound", memory, err, primary.Addr)
		}
		clienttest.Must(t, primary, "CONFIG", "SET", "maxmemory", "0")
	}
	const keys = 60
	for i := range keys {
		if _, err := store.Decide(t.Context(), []penstock.Charge{clienttest.Spend(fmt.Sprint("k", i), clienttest.SlowRefill("sampled", 9), 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if sample, err := redisops.SampleKeys(t.Context(), store, redisops.MaxSample); err != nil || sample.Total < keys || sample.Groups["sampled"] != keys {
		t.Errorf("SampleKeys returned %+v, %v; want at least as many keys as were decided, and %d of the group", sample, err, keys)
	}
}
