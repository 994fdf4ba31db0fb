package redisstore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
	"github.com/redis/go-redis/v9"
)

// bothClients are a client of each library, over the server's port.
func bothClients(s *redistest.Server) []maker {
	return []maker{
		{"rueidis", dial("redis://" + s.Addr)},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1}))
		}},
	}
}

// must runs a command that cannot fail.
func must(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// slow is a limit whose units come back in years.
func slow(name string, n int64) penstock.Limit {
	return penstock.Limit{Name: name, Count: n, Period: 8 * 365 * 24 * time.Hour}
}

func spend(key string, limit penstock.Limit, cost int64) penstock.Charge {
	return penstock.Charge{Key: key, Limit: limit, Cost: cost}
}

// remaining asks what a limit has left.
func remaining(t testing.TB, store penstock.Store, key string, limit penstock.Limit) int64 {
	t.Helper()
	d, err := store.Decide(t.Context(), []penstock.Charge{{Key: key, Limit: limit, Mode: penstock.Peek}})
	if err != nil {
		t.Fatal(err)
	}
	return d.Status(0).Remaining
}

// wantReason checks an error of Decide.
func wantReason(t testing.TB, what string, err error, reason penstock.Reason) {
	t.Helper()
	var e *penstock.StoreError
	if !errors.As(err, &e) || e.Reason != reason || !errors.Is(err, penstock.ErrUnavailable) || e.Err == nil {
		t.Errorf("%s: %v; want an error of reason %v", what, err, reason)
	}
}

func within(t testing.TB, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok, which says what is missing.
func eventually(t testing.TB, limit time.Duration, ok func() error) {
	t.Helper()
	start := time.Now()
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Every fault is met by charges of every kind, those that would be denied among them: a script
// without its first line would let a replica answer a denial that is out of date.
func TestServerThatCannotDecideSaysSoForEveryCharge(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name   string
		reason penstock.Reason
		make   func(t *testing.T, s *redistest.Server)
		heal   func(t *testing.T, s *redistest.Server)
	}{
		{"replica", penstock.ReasonNotReady, do("REPLICAOF 127.0.0.1 1"), do("REPLICAOF NO ONE")},
		{"replica without its primary's data", penstock.ReasonNotReady,
			do("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"), do("REPLICAOF NO ONE")},
		{"too few replicas", penstock.ReasonNotReady, do("CONFIG SET min-replicas-to-write 1"), do("CONFIG SET min-replicas-to-write 0")},
		{"out of memory", penstock.ReasonOutOfMemory, do("CONFIG SET maxmemory 1"), do("CONFIG SET maxmemory 0")},
		{"no right to run scripts", penstock.ReasonPermissionDenied, do("ACL SETUSER default -eval -evalsha"), do("ACL SETUSER default +@all")},
		{"no right inside the script", penstock.ReasonPermissionDenied, do("ACL SETUSER default -time"), do("ACL SETUSER default +@all")},
		{"no right to the keys", penstock.ReasonPermissionDenied, do("ACL SETUSER default resetkeys ~other:*"), do("ACL SETUSER default ~*")},
		{"busy with another script", penstock.ReasonBusy, makeBusy, do("SCRIPT KILL")},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			for _, m := range bothClients(s) {
				t.Run(m.name, func(t *testing.T) {
					store := over(t, m.client(t), redisstore.Options{})
					some, full := slow("some", 10), slow("full", 2)
					held := penstock.InFlight(2, time.Hour).WithName("held")
					setUp := []penstock.Charge{spend(m.name, some, 1), spend(m.name, full, 2), spend(m.name, held, 2)}
					setUp[2].Holder = "first"
					if d, err := store.Decide(t.Context(), setUp); err != nil || !d.Allowed {
						t.Fatalf("set up: %v", err)
					}
					denied := spend(m.name, held, 1)
					denied.Holder = "second"
					fault.make(t, s)
					for _, batch := range [][]penstock.Charge{
						{spend(m.name, some, 1)}, {spend(m.name, full, 1)}, {denied},
						{{Key: m.name, Limit: some, Mode: penstock.Peek}},
						{{Key: m.name, Limit: some, Mode: penstock.Force, Cost: 1}},
						{{Key: m.name, Limit: some, Mode: penstock.Refund, Cost: 1}},
						{{Key: m.name, Limit: some, Mode: penstock.Reset}},
						{spend(m.name, some, 1), spend(m.name, slow("new", 5), 1)}, {spend(m.name, some, 1), spend(m.name, full, 1)},
					} {
						d, err := store.Decide(within(t, 5*time.Second), batch)
						wantReason(t, fmt.Sprint(batch[0].Mode, " of ", batch[0].Limit.Name), err, fault.reason)
						if d.Allowed {
							t.Errorf("allowed with an error")
						}
					}
					fault.heal(t, s)
					eventually(t, 5*time.Second, func() error { return store.Ping(t.Context()) })
					for limit, want := range map[penstock.Limit]int64{some: 9, full: 0, held: 0, slow("new", 5): 5} {
						if got := remaining(t, store, m.name, limit); got != want {
							t.Errorf("after the fault %s has %d left, want %d", limit.Name, got, want)
						}
					}
				})
			}
		})
	}
}

// do runs commands, written as one types them.
func do(commands ...string) func(*testing.T, *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) {
		t.Helper()
		for _, c := range commands {
			must(t, s, strings.Fields(c)...)
		}
	}
}

// makeBusy starts a script that does not end. Its connection waits for it no longer than a command
// of redistest does.
func makeBusy(t *testing.T, s *redistest.Server) {
	t.Helper()
	must(t, s, "CONFIG", "SET", "busy-reply-threshold", "10")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = s.Do("EVAL", "while true do end", "0")
	}()
	t.Cleanup(func() { <-ended })
	eventually(t, 5*time.Second, func() error {
		if _, err := s.Do("PING"); err == nil || !strings.HasPrefix(err.Error(), "BUSY") {
			return fmt.Errorf("not busy yet: %v", err)
		}
		return nil
	})
}

func TestServerThatIsLoadingIsUnready(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024")
	must(t, s, "EVAL", "for i = 1, 4000 do redis.call('SET', 'k' .. i, i) end", "0")
	must(t, s, "SAVE")
	var stores []*redisstore.Store
	for _, m := range bothClients(s) {
		stores = append(stores, over(t, m.client(t), redisstore.Options{}))
	}
	stores = append(stores, over(t, dial("redis://"+s.Addr)(t), redisstore.Options{})) // connects while it loads
	for _, store := range stores[:2] {
		if _, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slow("d", 9), 1)}); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill()
	restarted := make(chan error, 1)
	go func() { restarted <- s.Restart() }()
	for i, store := range stores {
		eventually(t, 10*time.Second, func() error {
			_, err := store.Decide(within(t, time.Second), []penstock.Charge{spend("k", slow("d", 9), 1)})
			if err == nil {
				t.Fatalf("store %d: the server was done loading before it was asked", i)
			}
			var e *penstock.StoreError
			if !errors.As(err, &e) || e.Reason != penstock.ReasonNotReady || !strings.Contains(err.Error(), "LOADING") {
				return err
			}
			return nil
		})
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	for _, store := range stores {
		eventually(t, 5*time.Second, func() error {
			_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slow("d", 9), 1)})
			return err
		})
	}
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "right")
	for _, user := range []struct {
		name           string
		user, password string
	}{{"no password", "", ""}, {"wrong password", "", "wr0ng-secret"}, {"unknown user", "eve", "wr0ng-secret"}} {
		t.Run(user.name, func(t *testing.T) {
			t.Parallel()
			address := url.URL{Scheme: "redis", Host: s.Addr}
			if user.password != "" {
				address.User = url.UserPassword(user.user, user.password)
			}
			for _, m := range []maker{
				{"rueidis", dial(address.String())},
				{"go-redis", func(t testing.TB) redisstore.Client {
					return goRedisClient(t, redis.NewClient(&redis.Options{Addr: s.Addr, Username: user.user, Password: user.password}))
				}},
			} {
				store := over(t, m.client(t), redisstore.Options{})
				_, err := store.Decide(within(t, 5*time.Second), []penstock.Charge{spend("k", slow("d", 9), 1)})
				wantReason(t, m.name, err, penstock.ReasonPermissionDenied)
				wantReason(t, m.name+" ping", store.Ping(within(t, 5*time.Second)), penstock.ReasonPermissionDenied)
				if strings.Contains(fmt.Sprint(err), "wr0ng-secret") {
					t.Errorf("%s: the error shows the password: %v", m.name, err)
				}
			}
		})
	}
}

// A poison is what stands under a key of the store and was not written by it.
type poison struct {
	name  string
	write []string // a command; its second word is the key's place
}

// onlyKey is the one key that the server has.
func onlyKey(t testing.TB, s *redistest.Server) string {
	t.Helper()
	keys := must(t, s, "KEYS", "*").([]any)
	if len(keys) != 1 {
		t.Fatalf("the server has keys %q, want one", keys)
	}
	return keys[0].(string)
}

// TestPoisonedKeyIsNeverAFreshOne puts what is not a store's under its keys. A store that took it
// for absent would admit without end.
func TestPoisonedKeyIsNeverAFreshOne(t *testing.T) {
	t.Parallel()
	list := poison{"list", []string{"LPUSH", "", "x"}}
	hash := poison{"hash", []string{"HSET", "", "f", "v"}}
	set := poison{"sorted set", []string{"ZADD", "", "1", "x"}}
	text := poison{"string", []string{"SET", "", "some text"}}
	malformed := []poison{list, hash, set, text}
	for _, garbage := range []string{"x", "123", "text", "\x00\x00\x00\x00\x00", "\x01\x00\x00\x00", "\x7f\x00\x00\x00", "\xff\xff\xff\xff",
		"a longer text that nobody could take for numbers, since it has no length that fits", strings.Repeat("\xff", 100)} {
		malformed = append(malformed, poison{fmt.Sprintf("%.12q", garbage), []string{"SET", "", garbage}})
	}
	for _, kept := range []struct {
		limit   penstock.Limit
		poisons []poison
	}{
		{slow("numbers", 10), malformed},
		{slow("many-numbers", 10).With(penstock.SubWindow(8)), malformed},
		{slow("log", 10).With(penstock.SlidingLog), []poison{list, hash, text}},
		{penstock.InFlight(10, time.Hour).WithName("slots"), []poison{list, hash, text}},
	} {
		t.Run(kept.limit.Name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			store := open(t, s.URL(), redisstore.Options{})
			charge := spend("k", kept.limit, 1)
			charge.Holder = "holder"
			other := spend("k", slow("other", 10), 1)
			for _, p := range kept.poisons {
				must(t, s, "FLUSHALL")
				if _, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
					t.Fatal(err)
				}
				key := onlyKey(t, s)
				write := slices.Clone(p.write)
				write[1] = key
				must(t, s, "DEL", key)
				must(t, s, write...)
				before := must(t, s, "DUMP", key)
				for _, mode := range []penstock.Mode{penstock.Spend, penstock.Peek, penstock.Force, penstock.Refund} {
					charge.Mode = mode
					for _, batch := range [][]penstock.Charge{{charge}, {charge, other}, {other, charge}} {
						_, err := store.Decide(t.Context(), batch)
						wantReason(t, fmt.Sprintf("%s: %v in a batch of %d", p.name, mode, len(batch)), err, penstock.ReasonCorrupt)
					}
				}
				charge.Mode = penstock.Spend
				if after := must(t, s, "DUMP", key); after != before {
					t.Errorf("%s: the store has written over it", p.name)
				}
				if left := remaining(t, store, "k", other.Limit); left != 10 {
					t.Errorf("%s: %d units of another limit are left, want 10", p.name, left)
				}
				must(t, s, "DEL", key)
				if d, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil || d.Status(0).Remaining != 9 {
					t.Errorf("%s: after the key was deleted: %+v, %v", p.name, d.Status(0), err)
				}
			}
		})
	}
}

// TestCutStateIsNeverAFreshOne cuts state short, byte by byte.
func TestCutStateIsNeverAFreshOne(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	used, other := slow("used", 10), slow("other", 10)
	used.Group, other.Group = "g", "g"
	if _, err := store.Decide(t.Context(), []penstock.Charge{spend("k", other, 1), spend("k", used, 10)}); err != nil {
		t.Fatal(err)
	}
	key := onlyKey(t, s)
	whole := must(t, s, "GET", key).(string)
	for n := len(whole) - 1; n > 0; n-- {
		if n == 4+(len(whole)-4)/2 {
			continue // the head and exactly one of two entries: not malformed
		}
		must(t, s, "SET", key, whole[:n])
		for _, batch := range [][]penstock.Charge{{spend("k", used, 1)}, {spend("k", other, 5), spend("k", used, 1)}} {
			d, err := store.Decide(t.Context(), batch)
			if err == nil && d.Allowed {
				t.Errorf("%d of %d bytes: a batch of %d was admitted", n, len(whole), len(batch))
			}
		}
	}
}

func TestClusterWithoutAPrimaryIsDown(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for i := range 3 { // no quorum is left, so nobody takes over
		c.Nodes[3+i].Kill()
		if i > 0 {
			c.Nodes[i].Kill()
		}
	}
	eventually(t, 20*time.Second, func() error {
		if info := must(t, c.Nodes[0], "CLUSTER", "INFO").(string); !strings.Contains(info, "cluster_state:fail") {
			return errors.New("the cluster has not noticed")
		}
		return nil
	})
	url := dial("redis://" + c.Nodes[0].Addr)
	goRedis := func(t testing.TB) redisstore.Client {
		return goRedisClient(t, redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{c.Nodes[0].Addr}, MaxRedirects: -1, DialerRetries: 1,
		}))
	}
	for _, m := range []maker{{"rueidis", url}, {"go-redis", goRedis}} {
		store := over(t, m.client(t), redisstore.Options{})
		found := make(map[penstock.Reason]int)
		for i := range 15 { // a third of the keys belong to the living node, the others to dead ones
			_, err := store.Decide(within(t, 5*time.Second), []penstock.Charge{spend(fmt.Sprint("k", i), slow("d", 9), 1)})
			var e *penstock.StoreError
			if !errors.As(err, &e) {
				t.Fatalf("%s: key %d: %v", m.name, i, err)
			}
			found[e.Reason]++
			if e.Reason != penstock.ReasonNotReady && e.Reason != penstock.ReasonUnreachable && e.Reason != penstock.ReasonLate {
				t.Errorf("%s: key %d: %v", m.name, i, err)
			}
		}
		t.Logf("%s: %v", m.name, found)
		if found[penstock.ReasonNotReady] == 0 {
			t.Errorf("%s: the living node never said CLUSTERDOWN", m.name)
		}
	}
}

// letIn makes a user with these rights, and no others.
func letIn(t testing.TB, s *redistest.Server, rights string) {
	t.Helper()
	must(t, s, strings.Fields("ACL SETUSER limiter reset on >secret ~limiter1* "+rights)...)
}

func TestStoreNeedsTheseRightsOnly(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	letIn(t, s, redisstore.DocumentedRights(t).Single)
	for _, m := range asLimiter(s.Addr) {
		t.Run(m.name, func(t *testing.T) {
			store := over(t, m.client(t), redisstore.Options{Prefix: "limiter"})
			storetest.Run(t, func(*testing.T) penstock.Store { return store })
			useTheRest(t, store)
		})
	}
}

// useTheRest asks a store what the law does not.
func useTheRest(t *testing.T, store *redisstore.Store) {
	t.Helper()
	if _, err := store.Heartbeat(t.Context(), "an instance", time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := store.Memory(t.Context()); err != nil {
		t.Error(err)
	}
	if err := store.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStoreOnAClusterNeedsTheseRightsOnly(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rights := redisstore.DocumentedRights(t)
	admit := func(rights string) {
		for _, n := range c.Nodes {
			letIn(t, n, rights)
		}
	}
	client := dial("redis+cluster://limiter:secret@" + strings.Join(c.Addrs(), ","))
	goRedis := func(t testing.TB) redisstore.Client {
		return goRedisClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: "limiter", Password: "secret"}))
	}
	for _, m := range []struct {
		maker
		rights string
	}{
		{maker{"rueidis", client}, rights.Single + " " + rights.Cluster},
		{maker{"go-redis", goRedis}, rights.Single + " " + rights.Cluster + " " + rights.GoRedis},
	} {
		t.Run(m.name, func(t *testing.T) {
			admit(m.rights)
			store := over(t, m.client(t), redisstore.Options{Prefix: "limiter"})
			storetest.Run(t, func(*testing.T) penstock.Store { return store })
			useTheRest(t, store)
			charge := []penstock.Charge{spend("k", slow("d", 9), 1)}
			eventually(t, 10*time.Second, func() error { // the layout is asked for in the background
				if store.Node(charge) == "" {
					return errors.New("the store does not know who keeps which slot")
				}
				return nil
			})
		})
	}
}

// asLimiter makes clients that log in as the user of letIn.
func asLimiter(addr string) []maker {
	return []maker{
		{"rueidis", dial("redis://limiter:secret@" + addr)},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewClient(&redis.Options{Addr: addr, Username: "limiter", Password: "secret"}))
		}},
	}
}

// replies are what Redis and Valkey answer, word for word, and what is made of it. The version does
// not matter.
var replies = []struct {
	server, text string
	reason       penstock.Reason
	hint         string
}{
	{"Redis 7.0", "NOPERM this user has no permissions to run the 'evalsha' command", penstock.ReasonPermissionDenied, "+evalsha"},
	{"Redis 7.0", "NOPERM this user has no permissions to run the 'cluster|slots' command", penstock.ReasonPermissionDenied, "+cluster|slots"},
	{"Redis 7.0", "NOPERM this user has no permissions to access one of the keys used as arguments", penstock.ReasonPermissionDenied, "~ps*"},
	{"Redis 7.0", "ERR The user executing the script can't run this command or subcommand script: f37160b6aecfc7a91f39a747f0056ecc3eb35618, on @user_script:2.",
		penstock.ReasonPermissionDenied, "a command that the scripts run; docs/operations.md has them all"},
	{"Redis 7.0", "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments script: e9b26805962546bd96803672e66fa4436f774677, on @user_script:2.",
		penstock.ReasonPermissionDenied, "~ps*"},
	{"Redis 7.0", "ERR Unknown Redis command called from script script: 1a69158b476b7570f1a723395a06319712ea49aa, on @user_script:2.",
		penstock.ReasonPermissionDenied, "a command that the scripts run; docs/operations.md has them all"},
	{"Valkey 8", "NOPERM User limiter has no permissions to run the 'script|load' command", penstock.ReasonPermissionDenied, "+script|load"},
	{"Valkey 8", "NOPERM No permissions to access a key", penstock.ReasonPermissionDenied, "~ps*"},
	{"Valkey 8", "ERR ACL failure in script: User limiter has no permissions to run the 'del' command script: f37160b6aecfc7a91f39a747f0056ecc3eb35618, on @user_script:2.",
		penstock.ReasonPermissionDenied, "+del"},
	{"Valkey 8", "ERR ACL failure in script: User limiter has no permissions to run the 'cluster|slots' command script: 94a93c8b45599178c6903f182b88ce2c60b9ac58, on @user_script:2.",
		penstock.ReasonPermissionDenied, "+cluster|slots"},
	{"Valkey 8", "ERR ACL failure in script: No permissions to access a key script: e9b26805962546bd96803672e66fa4436f774677, on @user_script:2.",
		penstock.ReasonPermissionDenied, "~ps*"},
	{"Valkey 8", "ERR Unknown command called from script script: 1a69158b476b7570f1a723395a06319712ea49aa, on @user_script:2.",
		penstock.ReasonPermissionDenied, "a command that the scripts run; docs/operations.md has them all"},
	{"both", "ERR Invalid command passed to redis.acl_check_cmd() script: 1a69158b476b7570f1a723395a06319712ea49aa, on @user_script:2.",
		penstock.ReasonPermissionDenied, "a command that the scripts run; docs/operations.md has them all"},
	{"both", "NOPERM the user needs the right +zadd", penstock.ReasonPermissionDenied, "+zadd"},
	{"both", "NOAUTH Authentication required.", penstock.ReasonPermissionDenied, "the store's setting with a user and password that are let in"},
	{"both", "WRONGPASS invalid username-password pair or user is disabled.", penstock.ReasonPermissionDenied, "the store's setting with a user and password that are let in"},
	{"both", "ERR unknown command 'evalsha', with args beginning with: 'f37160b6aecf' '1' ", penstock.ReasonPermissionDenied,
		"a command that the scripts run; docs/operations.md has them all"},
	{"both", "WRONGTYPE Operation against a key holding the wrong kind of value script: 2c52d693e6b6ea42f70c349bf8614b8c2ec172f3, on @user_script:2.", penstock.ReasonCorrupt, ""},
	{"both", "ERR user_script:2: bad argument #2 to 'unpack' (data string too short) script: 59d001b560bf244569ab43386d1136e2860d28aa, on @user_script:2.", penstock.ReasonCorrupt, ""},
	{"both", "ERR user_script:2: POISONED the state is malformed script: bc4a07ac7404905237c78baa980faa41648f66a6, on @user_script:2.", penstock.ReasonCorrupt, ""},
	{"both", "POISONED the state is malformed", penstock.ReasonCorrupt, ""},
	{"both", "OOM command not allowed when used memory > 'maxmemory'.", penstock.ReasonOutOfMemory, ""},
	{"both", "OOM command not allowed when used memory > 'maxmemory'. script: 705f427bd3bc66b529c7de9d33d600045af11bcf, on @user_script:2.", penstock.ReasonOutOfMemory, ""},
	{"both", "READONLY You can't write against a read only replica.", penstock.ReasonNotReady, ""},
	{"both", "NOREPLICAS Not enough good replicas to write.", penstock.ReasonNotReady, ""},
	{"both", "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", penstock.ReasonNotReady, ""},
	{"both", "MISCONF Errors writing to the AOF file: No space left on device", penstock.ReasonNotReady, ""},
	{"both", "LOADING Redis is loading the dataset in memory", penstock.ReasonNotReady, ""},
	{"both", "CLUSTERDOWN The cluster is down", penstock.ReasonNotReady, ""},
	{"both", "MOVED 3999 127.0.0.1:6381", penstock.ReasonNotReady, ""},
	{"both", "ASK 3999 127.0.0.1:6381", penstock.ReasonNotReady, ""},
	{"both", "TRYAGAIN Multiple keys request during rehashing of slot", penstock.ReasonNotReady, ""},
	{"both", "ERR max number of clients reached", penstock.ReasonNotReady, ""},
	{"both", "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", penstock.ReasonBusy, ""},
	{"both", "ERR Error compiling script (new function): user_script:2: ')' expected near '<eof>'", penstock.ReasonRejected, ""},
}

func TestRepliesHaveOneMeaningWhateverTheServer(t *testing.T) {
	t.Parallel()
	for _, r := range replies {
		for _, text := range []string{r.text, strings.TrimPrefix(r.text, "ERR ")} { // rueidis leaves it out
			store := over(t, broken{err: redisstore.ReplyError(text)}, redisstore.Options{})
			_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slow("d", 10), 1)})
			wantReason(t, r.server+": "+text, err, r.reason)
			if e, ok := errors.AsType[*penstock.StoreError](err); ok && e.Hint != r.hint {
				t.Errorf("%s: %s: the hint is %q, want %q", r.server, text, e.Hint, r.hint)
			}
			// A missing right may concern a few limits only, so it must not open a breaker.
			isLogin := strings.HasPrefix(text, "NOAUTH") || strings.HasPrefix(text, "WRONGPASS")
			isFault := isLogin || r.reason != penstock.ReasonPermissionDenied && r.reason != penstock.ReasonCorrupt
			if e := penstock.AsStoreError(err); e.IsStoreFault != isFault {
				t.Errorf("%s: %s: a fault of the store: %t, want %t", r.server, text, e.IsStoreFault, isFault)
			}
		}
	}
	t.Logf("counted: %d replies, with ERR and without", len(replies))
}

// An error that joins what several servers answered has one reason and one hint, in whichever order
// they answered.
func TestAnswersOfSeveralServersAreMerged(t *testing.T) {
	t.Parallel()
	const (
		load  = "NOPERM User limiter has no permissions to run the 'script|load' command"
		set   = "ERR ACL failure in script: User limiter has no permissions to run the 'set' command script: f37160b6aecf, on @user_script:2."
		key   = "NOPERM No permissions to access a key"
		login = "WRONGPASS invalid username-password pair or user is disabled."
		other = "ERR unknown command 'evalsha', with args beginning with: 'f37160b6aecf' '1' "
	)
	for _, c := range []struct {
		answers []string // "" is a connection that broke
		reason  penstock.Reason
		hint    string
	}{
		{[]string{load, load, load}, penstock.ReasonPermissionDenied, "+script|load"},
		{[]string{load, "", set}, penstock.ReasonPermissionDenied, "+script|load +set"},
		{[]string{set, key, load, key}, penstock.ReasonPermissionDenied, "+script|load +set ~ps*"},
		{[]string{login, load, login}, penstock.ReasonPermissionDenied, "+script|load; the store's setting with a user and password that are let in"},
		{[]string{other, set}, penstock.ReasonPermissionDenied, "+set"},
		{[]string{other, ""}, penstock.ReasonPermissionDenied, "a command that the scripts run; docs/operations.md has them all"},
		{[]string{"READONLY You can't access it.", set}, penstock.ReasonPermissionDenied, "+set"},
		{[]string{"READONLY You can't write against a read only replica.", "BUSY Redis is busy running a script."}, penstock.ReasonNotReady, ""},
	} {
		for range 10 {
			var all []error
			for _, i := range rand.Perm(len(c.answers)) {
				var err error = redisstore.ReplyError(c.answers[i])
				if c.answers[i] == "" {
					err = io.ErrUnexpectedEOF
				}
				all = append(all, fmt.Errorf("10.0.0.%d:6379: %w", i, err))
			}
			store := over(t, broken{err: fmt.Errorf("load: %w", errors.Join(all...))}, redisstore.Options{})
			_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slow("d", 10), 1)})
			wantReason(t, fmt.Sprint(c.answers), err, c.reason)
			if e, ok := errors.AsType[*penstock.StoreError](err); ok && e.Hint != c.hint {
				t.Errorf("the hint is %q, want %q, in %v", e.Hint, c.hint, all)
			}
		}
	}
}

// An error without an answer is a timeout, or of unknown outcome.
func TestErrorsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for reason, cause := range map[penstock.Reason]error{
		penstock.ReasonUnknown: errors.New("reset by peer"),
		penstock.ReasonTimeout: fmt.Errorf("gone: %w", context.DeadlineExceeded),
	} {
		store := over(t, broken{err: cause}, redisstore.Options{})
		_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slow("d", 10), 1)})
		wantReason(t, cause.Error(), err, reason)
		if e := penstock.AsStoreError(err); !e.MayBeCharged || !errors.Is(err, cause) {
			t.Errorf("%+v", e)
		}
	}
}

// A broken client fails always in the same way.
type broken struct {
	redisstore.Client
	err error
}

func (b broken) Close() error { return nil }

func (b broken) Sharded(context.Context) (bool, error) { return false, nil }

func (b broken) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", b.err
}

// What a handshake refuses was not sent, also by a client that was connected before.
func TestWrongCertificateIsUnreached(t *testing.T) {
	t.Parallel()
	certificate := &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}
	for _, cause := range []error{certificate, fmt.Errorf("dial: %w", certificate)} {
		store := over(t, broken{err: cause}, redisstore.Options{})
		_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slow("d", 10), 1)})
		wantReason(t, cause.Error(), err, penstock.ReasonUnreachable)
	}
}
