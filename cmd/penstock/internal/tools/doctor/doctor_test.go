package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/redisinfo"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestMain(m *testing.M) { redistest.Main(m, "penstock/cmd/penstock/internal/tools/doctor") }

// examined returns the report of a run. Its StoreTimeout is long, because tests run in parallel.
// The summaries of instances have the form that the function instances describes.
func examined(t *testing.T, url string, change ...func(*Options)) *Report {
	t.Helper()
	o := Options{URL: url, Name: "the store", StoreTimeout: time.Minute, ReadInstance: func(summary string) (i Instance, err error) {
		_, err = fmt.Sscan(summary, &i.Digest, &i.Version, &i.Seed)
		_, i.Health, _ = strings.Cut(summary, "health ")
		i.IsChargedTwice = strings.HasSuffix(summary, " twice")
		return i, err
	}}
	for _, c := range change {
		c(&o)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// worst returns the worst check of a name.
func (r *Report) worst(name string) (found Check) {
	for _, c := range r.Checks {
		if c.Name == name && (found.Name == "" || severity[c.Status] > severity[found.Status]) {
			found = c
		}
	}
	return found
}

func (r *Report) text() string {
	var b strings.Builder
	_ = r.Print(&b)
	return b.String()
}

// wantGood fails the test if a check is not ok. It ignores the median time of scripts, which may be
// long on a busy machine.
func wantGood(t *testing.T, r *Report, kind string) {
	t.Helper()
	for _, name := range Names {
		if c := r.worst(name); c.Status != OK && (name != "latency" || c.Status != Warning) {
			t.Errorf("%s: the check %s is %q; want ok", kind, name, c.Status)
		}
	}
	if r.Kind != kind || t.Failed() {
		t.Errorf("the kind of the store is %s; want %s. The report is\n%s", r.Kind, kind, r.text())
	}
}

func do(t testing.TB, s *redistest.Server, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if _, err := s.Do(strings.Fields(c)...); err != nil {
			t.Fatalf("Redis rejects %s: %v", c, err)
		}
	}
}

// fillStore makes decisions and registers two instances, so that the store has keys.
func fillStore(t *testing.T, url string) {
	t.Helper()
	store, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	plans := []*penstock.Plan{penstock.PerHour(10).WithName("numbers").MustCompile(), penstock.PerHour(10).With(penstock.SlidingLog).WithName("log").MustCompile(),
		penstock.InFlight(5, time.Hour).WithName("slots").MustCompile()}
	for i := range 30 {
		for _, plan := range plans {
			if _, err := store.Decide(t.Context(), []penstock.Charge{{Key: fmt.Sprint("user:", i), Plan: plan, Cost: 1, Holder: "h"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"one", "two"} {
		_, err1 := store.Heartbeat(t.Context(), name, time.Minute)
		err2 := redisops.WriteSummary(t.Context(), store, name, "abc123 0.1.0 1", time.Minute)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHealthyServerPassesAllChecks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	fillStore(t, "redis://"+s.Addr)
	for _, url := range []string{"redis://" + s.Addr, s.URL()} {
		r := examined(t, url, func(o *Options) { o.Digest = "abc123" })
		wantGood(t, r, "single")
		if c := r.worst("instances"); c.Summary != "2 running instances, with the policy abc123" {
			t.Errorf("the summary of instances is %s; want 2 instances with the policy abc123", c.Summary)
		}
		const keys = 3*30 + 1 // of 3 limits for 30 users, and of the instances
		if c := r.worst("keys"); c.Facts["ours"].(int64) < keys {
			t.Errorf("the check of keys is %v; want at least %d keys of penstock", c, keys)
		}
	}
}

// A server may have saved no snapshot, so the report names none. It names the probe key only if the
// key may have been written.
func TestReportNamesOnlyWhatIsThere(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	do(t, s, "CONFIG SET appendonly no")
	r := examined(t, s.URL())
	const written = " commands were sent, besides those that open and close connections. Only ps1{doctor…}self-test was written.\n"
	if c := r.worst("persistence"); c.Status != OK || !strings.Contains(c.Summary, "no snapshot since the server's start") || !strings.HasSuffix(r.text(), written) {
		t.Errorf("the report is\n%s\nwant no snapshot, and the end %q", r.text(), written)
	}
	do(t, s, "SAVE")
	if c := examined(t, s.URL()).worst("persistence"); !strings.Contains(c.Summary, "since the latest snapshot") {
		t.Errorf("after SAVE the check is %+v; want the latest snapshot", c)
	}
	s.Kill()
	const nothing = "\n0 commands were sent, besides those that open and close connections. Nothing was written.\n"
	if r := examined(t, s.URL()); !strings.HasSuffix(r.text(), nothing) {
		t.Errorf("the report of a server that is down is\n%s\nwant the end %q", r.text(), nothing)
	}
}

// With TLS, the doctor verifies each server's own certificate.
func TestClustersAndSentinelsAreExaminedOverTLS(t *testing.T) {
	t.Parallel()
	ofCluster, ofGroup := &redistest.TLS{Lifetime: 1000 * time.Hour, IsClientCertRequired: true}, &redistest.TLS{Lifetime: 1000 * time.Hour}
	c, s := redistest.StartTLSCluster(t, ofCluster), redistest.StartTLSSentinel(t, ofGroup)
	wantGood(t, examined(t, "rediss+cluster://"+strings.Join(c.Addrs(), ",")+"?"+ofCluster.Options().Encode()), "cluster")
	if err := s.Replica.CatchUp(s.Primary); err != nil {
		t.Fatal(err)
	}
	wantGood(t, examined(t, strings.Replace(sentinelURL(s, ""), "redis+", "rediss+", 1)+"?"+ofGroup.Options().Encode()), "sentinel")
}

func sentinelURL(s *redistest.SentinelGroup, user string) string {
	return "redis+sentinel://" + user + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
}

func TestHealthySentinelGroupPassesAllChecks(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	fillStore(t, sentinelURL(s, ""))
	if err := s.Replica.CatchUp(s.Primary); err != nil {
		t.Fatal(err)
	}
	wantGood(t, examined(t, sentinelURL(s, "")), "sentinel")
}

// Servers and Sentinels have different passwords, each in a file.
func TestSentinelsAreAskedWithTheirOwnPassword(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	file := filepath.Join(t.TempDir(), "password")
	for name, servers := range map[string][]*redistest.Server{"limiter": {s.Primary, s.Replica}, "watcher": s.Sentinels} {
		for _, server := range servers {
			do(t, server, "ACL SETUSER "+name+" on >of-"+name+" ~* &* +@all")
		}
		if err := os.WriteFile(file+name, []byte("of-"+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := examined(t, sentinelURL(s, "limiter@")+"?password_file="+file+"limiter&sentinel_username=watcher&sentinel_password_file="+file+"watcher")
	if c := r.worst("reach"); c.Status != OK || len(r.servers()) != 5 {
		t.Errorf("the check reach is %+v, about %d servers; want ok, and 5:\n%s", c, len(r.servers()), r.text())
	}
}

func TestHealthyClusterPassesAllChecks(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	fillStore(t, "redis://"+c.Nodes[0].Addr)
	for _, url := range []string{"redis+cluster://" + strings.Join(c.Addrs(), ","), "redis://" + c.Nodes[1].Addr} {
		r := examined(t, url)
		wantGood(t, r, "cluster")
		if got := strings.Count(fmt.Sprint(r.Checks), "decisions were made"); got != 3 {
			t.Errorf("%d primaries made decisions; want 3", got)
		}
	}
}

// The remedy for a wrong password names the file that has it. It has no command, because the server
// would refuse its login too.
func TestRemedyForAWrongPasswordNamesItsFile(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("wr0ng"), 0o600); err != nil {
		t.Fatal(err)
	}
	single := redistest.Start(t)
	do(t, single, "CONFIG SET requirepass other")
	do(t, s.Sentinels[0], "ACL SETUSER watcher on >right ~* &* +@all")
	for url, want := range map[string]string{
		"redis://" + single.Addr + "?password_file=" + file:                              "in the file " + file + " (password_file)",
		"redis://:wr0ng@" + single.Addr:                                                  "correct the URL: its user and its password, or write password_file=FILE",
		sentinelURL(s, "") + "?sentinel_username=watcher&sentinel_password_file=" + file: "in the file " + file + " (sentinel_password_file)",
	} {
		c := examined(t, url).worst("reach")
		if c.Status != Failed || !strings.Contains(c.Remedy, want) || strings.Contains(c.Remedy, "redis-cli") {
			t.Errorf("with %s, the check reach is %+v; want a remedy with %q and without a command", url, c, want)
		}
	}
}

// A fault describes a broken server, and the check that must find it.
type fault struct {
	name    string
	prepare func(t *testing.T, s *redistest.Server)
	check   string
	status  Status
	summary string // a part of it
	remedy  string // a part of it
	change  func(*Options)
	user    string // name and password in the URL
}

// commands returns a function that sends the commands to a server.
func commands(all ...string) func(*testing.T, *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) { t.Helper(); do(t, s, all...) }
}

// rightsWithout returns a function that makes the user limiter, who has the rights of doctor except
// these.
func rightsWithout(rights ...string) func(*testing.T, *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) {
		t.Helper()
		rules := redisrights.Rules("", Rights(redisrights.Options{}))
		line := "ACL SETUSER limiter reset on >secret " + rules
		for _, r := range rights {
			line += " -" + r
		}
		do(t, s, line)
	}
}

// limiter is the user of rightsWithout, as in a URL.
const limiter = "limiter:secret@"

var faults = []fault{
	{name: "killed", prepare: func(_ *testing.T, s *redistest.Server) { s.Kill() }, check: "reach", status: Failed, summary: "connection refused", remedy: "PING"},
	{name: "paused", prepare: func(t *testing.T, s *redistest.Server) { s.Pause(); t.Cleanup(s.Resume) }, check: "reach", status: Failed, summary: "accepted the connection, and did not answer within ", remedy: "hangs"},
	{name: "wrong password", prepare: commands("CONFIG SET requirepass other"), user: ":wr0ng@", check: "reach", status: Failed, summary: "refuses the user or the password: WRONGPASS", remedy: "correct the URL"},
	{name: "no SET", prepare: rightsWithout("set", "zadd"), user: limiter, check: "rights", status: Failed, summary: "+set +zadd", remedy: "ACL SETUSER limiter +set +zadd"},
	{name: "no SET, decisions", prepare: rightsWithout("set"), user: limiter, check: "decisions", status: Failed, summary: "permission_denied", remedy: "ACL SETUSER limiter +set"},
	{name: "no SCRIPT LOAD", prepare: rightsWithout("script|load", "zadd"), user: limiter, check: "rights", status: Failed, summary: "+zadd +script|load", remedy: "ACL SETUSER limiter +zadd '+script|load'"},
	{name: "no INFO", prepare: rightsWithout("info"), user: limiter, check: "rights", status: Warning, summary: "+info", remedy: "ACL SETUSER limiter +info"},
	{name: "no EVAL", prepare: rightsWithout("eval"), user: limiter, check: "rights", status: Failed, summary: "eval", remedy: "ACL SETUSER limiter +eval"},
	{name: "other keys", prepare: commands("ACL SETUSER limiter reset on >secret ~other* +@all"), user: limiter, check: "rights", status: Failed, summary: "~ps1*", remedy: "'~ps1*'"},
	{name: "full", prepare: commands("CONFIG SET maxmemory 1"), check: "memory", status: Failed, summary: "full", remedy: "CONFIG SET maxmemory 67108864"},
	{name: "full, decisions", prepare: commands("CONFIG SET maxmemory 1"), check: "decisions", status: Failed, summary: "OOM", remedy: "CONFIG SET maxmemory 67108864"},
	{name: "nearly full", prepare: func(t *testing.T, s *redistest.Server) {
		do(t, s, "DEBUG POPULATE 50000 other")
		used, err := s.UsedMemory()
		if err != nil {
			t.Fatal(err)
		}
		do(t, s, fmt.Sprint("CONFIG SET maxmemory ", used*8/7)) // 87 % are in use, more than maxMemoryShare
	}, check: "memory", status: Warning, summary: "% in use", remedy: "CONFIG SET maxmemory"},
	{name: "evicts", prepare: commands("CONFIG SET maxmemory 1gb", "CONFIG SET maxmemory-policy allkeys-lru"), check: "eviction", status: Failed, summary: "allkeys-lru", remedy: "CONFIG SET maxmemory-policy noeviction"},
	{name: "would evict", prepare: commands("CONFIG SET maxmemory-policy volatile-ttl"), check: "eviction", status: Warning, summary: "volatile-ttl", remedy: "noeviction"},
	{name: "is evicting", prepare: evict, check: "eviction", status: Failed, summary: "deleting keys now", remedy: "noeviction"},
	{name: "slower than measured", prepare: func(*testing.T, *redistest.Server) {}, change: func(o *Options) { o.Measured = time.Microsecond }, check: "latency", status: Warning, summary: "earlier, bench measured 1µs", remedy: "SLOWLOG GET"},
	{name: "slow", prepare: slow, change: func(o *Options) { o.StoreTimeout = 10 * time.Millisecond }, check: "latency", status: Warning, summary: "store_timeout is 10ms", remedy: "SLOWLOG GET"},
	{name: "slow commands of others", prepare: commands("CONFIG SET slowlog-log-slower-than 0", "SET user:s3cret x", "DEBUG SLEEP 0.2"), change: func(o *Options) { o.StoreTimeout = 100 * time.Millisecond }, check: "slowlog", status: Warning, summary: "slow commands in the last hour: DEBUG of ", remedy: "SLOWLOG GET"},
	{name: "snapshot failed", prepare: failSnapshot, check: "persistence", status: Failed, summary: "snapshot failed", remedy: "BGSAVE"},
	{name: "a replica lags", prepare: lag, check: "replication", status: Warning, summary: " behind", remedy: ""},
	{name: "a replica", prepare: commands("REPLICAOF 127.0.0.1 1"), check: "replication", status: Failed, summary: "is a replica", remedy: "127.0.0.1:1"},
	{name: "a replica, decisions", prepare: commands("REPLICAOF 127.0.0.1 1"), check: "decisions", status: Failed, summary: "READONLY"},
	{name: "no replica in sync", prepare: commands("CONFIG SET min-replicas-to-write 1"), check: "replication", status: Failed, summary: "no replica is in sync", remedy: "min-replicas-to-write 0"},
	{name: "a changing script", prepare: changingScripts, check: "scripts", status: Warning, summary: "scripts in the cache", remedy: "SCRIPT FLUSH"},
	{name: "many connections", prepare: connections(8), check: "connections", status: Warning, summary: "connections of 10", remedy: "maxclients 20"},
	{name: "no connection left", prepare: connections(10), check: "reach", status: Failed, summary: "max number of clients", remedy: "close a connection first, because redis-cli needs one too, for example by stopping an instance; then redis-cli"},
	{name: "no TTL", prepare: commands("SET ps1{key:s3cret}rule x"), check: "keys", status: Failed, summary: `1 key of limits will never expire: "ps1{key:…}rule"`, remedy: "PTTL"},
	{name: "wrong type", prepare: commands("HSET ps1{key:s3cret}rule a b", "PEXPIRE ps1{key:s3cret}rule 100000"), check: "keys", status: Failed, summary: "wrong type", remedy: "TYPE"},
	{name: "wrong type of the epoch", prepare: commands("HSET ps1{%@}epoch a b", "PEXPIRE ps1{%@}epoch 100000"), check: "keys", status: Failed, summary: "wrong type", remedy: "TYPE"},
	{name: "wrong type of a set", prepare: commands("SET ps1{k:s3cret}g:uploads:slidinglog a PX 100000"), check: "keys", status: Failed, summary: "wrong type", remedy: "TYPE"},
	{name: "foreign", prepare: commands("SET ps1session:s3cret x PX 100000"), check: "keys", status: Warning, summary: "did not make", remedy: "different prefixes"},
	{name: "tenants", prepare: commands("DEBUG POPULATE 500 other"), check: "tenants", status: Warning, summary: "other programs have about", remedy: "a separate server"},
	{name: "other database", prepare: func(t *testing.T, s *redistest.Server) {
		do(t, s, "DEBUG POPULATE 500 other", "SWAPDB 0 1")
	}, check: "tenants", status: Warning, summary: "other programs have about", remedy: "a separate server"},
	{name: "two policies", prepare: instances("abc1 1 1", "abc1 1 1", "def2 1 1"), check: "instances", status: Warning, summary: "abc1 (2 instances), def2 (1 instance)", remedy: "penstock validate FILE"},
	{name: "another file", prepare: instances("abc1 1 1"), change: func(o *Options) { o.Digest = "def2" }, check: "instances", status: Warning, summary: "the file has def2", remedy: "SIGHUP"},
	{name: "two versions", prepare: instances("abc1 1 1", "abc1 2 1", "form of another version"), check: "instances", status: Warning, summary: "1 (1 instance), 2 (1 instance)", remedy: "upgrade"},
	{name: "two secrets", prepare: instances("abc1 1 1", "abc1 1 2"), check: "instances", status: Warning, summary: "2 different secrets", remedy: "key-hash-secret"},
	{name: "an instance behind another", prepare: instances("abc1 1 1", "abc1 1 1 twice"), check: "instances", status: Warning, summary: "another instance with the same policy has already charged", remedy: "its own rules or prefix"},
	{name: "an instance whose store fails", prepare: instances("abc1 1 1 health timeout"), check: "instances", status: Warning, summary: "timeout", remedy: "network"},
	{name: "an instance without the password", prepare: commands(), change: func(o *Options) {
		o.AskInstance = func(context.Context) (Instance, error) {
			return Instance{Host: "h:9180", Health: "permission_denied"}, nil
		}
	}, check: "instances", status: Failed, summary: "h:9180 reports that the store fails: permission_denied", remedy: "password_file"},
	{name: "list of instances", prepare: commands("SET ps1{%@}instances x PX 100000"), check: "instances", status: Failed, summary: "WRONGTYPE", remedy: "DEL 'ps1{%@}instances'"},
}

func TestEachFaultIsFound(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			f.prepare(t, s)
			var change []func(*Options)
			if f.change != nil {
				change = append(change, f.change)
			}
			r := examined(t, "redis://"+f.user+s.Addr, change...)
			isFound := func(c Check) bool {
				// On a busy machine, the pauses of the fault slow become so long that the check fails.
				hasStatus := c.Status == f.status || f.check == "latency" && c.Status == Failed
				hasTexts := strings.Contains(c.Summary, f.summary) && strings.Contains(c.Remedy, f.remedy)
				isExplained := c.Why != "" && c.Remedy != ""
				return c.Name == f.check && hasStatus && hasTexts && isExplained
			}
			if !slices.ContainsFunc(r.Checks, isFound) {
				t.Errorf("no check %s has the status %s, a summary with %q, a consequence and a remedy with %q:\n%s", f.check, f.status, f.summary, f.remedy, r.text())
			}
			for _, secret := range []string{"s3cret", "secret@", "wr0ng", ">secret"} {
				if text := r.text() + fmt.Sprintf("%+v", r); strings.Contains(text, secret) {
					t.Errorf("the report shows %q:\n%s", secret, text)
				}
			}
		})
	}
}

// evict makes the server evict keys until the test ends.
func evict(t *testing.T, s *redistest.Server) {
	do(t, s, "CONFIG SET maxmemory 3mb", "CONFIG SET maxmemory-policy allkeys-lru")
	repeat(t, s, "-i", "0.002", "EVAL", "redis.call('SET', redis.call('TIME')[2], string.rep('x', 50000))", "0")
	eventually.NoError(t, func() error {
		if text, _ := s.Do("INFO", "stats"); strings.Contains(fmt.Sprint(text), "evicted_keys:0\r") {
			return errors.New("nothing was evicted yet")
		}
		return nil
	})
}

// slow pauses the server for 20 ms again and again.
func slow(t *testing.T, s *redistest.Server) {
	repeat(t, s, "DEBUG", "SLEEP", "0.02")
}

// repeat runs a command on the server again and again, in four clients, until the test ends.
func repeat(t *testing.T, s *redistest.Server, command ...string) {
	for range 4 {
		startClient(t, s, append([]string{"-r", "-1"}, command...)...)
	}
}

// startClient starts the command line client of a server. It ends with the test.
func startClient(t *testing.T, s *redistest.Server, args ...string) {
	client := exec.Command(redistest.CLI(), append([]string{"-s", s.Socket}, args...)...)
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Process.Kill()
		_ = client.Wait()
	})
}

// failSnapshot makes snapshots fail: a folder that is not empty has the name dump.rdb, so the
// server cannot write the file of that name.
func failSnapshot(t *testing.T, s *redistest.Server) {
	if err := os.MkdirAll(filepath.Join(filepath.Dir(s.Socket), "dump.rdb", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	do(t, s, "BGSAVE")
	eventually.NoError(t, func() error {
		text, err := s.Do("INFO", "persistence")
		if redisinfo.Parse(fmt.Sprint(text))["rdb_last_bgsave_status"] != "err" {
			return fmt.Errorf("the snapshot has not failed yet: %v", err)
		}
		return nil
	})
}

// lag gives the server a paused replica, and then writes 2 MB that the replica does not receive.
func lag(t *testing.T, s *redistest.Server) {
	replica := redistest.Start(t)
	host, port, _ := strings.Cut(s.Addr, ":")
	do(t, replica, "REPLICAOF "+host+" "+port)
	eventually.NoError(t, func() error {
		text, err := s.Do("INFO", "replication")
		if !strings.Contains(fmt.Sprint(text), "state=online") {
			return fmt.Errorf("the replica is not in sync: %v", err)
		}
		return nil
	})
	replica.Pause()
	t.Cleanup(replica.Resume)
	do(t, s, "SET ps1{key:a}rule "+strings.Repeat("x", 2<<20)+" PX 100000")
}

// changingScripts fills the script cache with more scripts than a server may have.
func changingScripts(t *testing.T, s *redistest.Server) {
	for i := range maxCachedScripts + 1 {
		if _, err := s.Do("EVAL", fmt.Sprint("return ", i), "0"); err != nil {
			t.Fatal(err)
		}
	}
}

// connections returns a function that limits the server to 10 connections, and opens n of them.
func connections(n int) func(t *testing.T, s *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) {
		t.Helper()
		do(t, s, "CONFIG SET maxclients 10")
		for range n {
			conn, err := net.Dial("tcp", s.Addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			fmt.Fprint(conn, "PING\r\n")
			if _, err := conn.Read(make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// instances returns a function that registers an instance for each summary. A summary has the form
// "DIGEST VERSION SEED", "DIGEST VERSION SEED health PROBLEM" or "DIGEST VERSION SEED twice".
// Instances with different secrets have different seeds.
func instances(summaries ...string) func(*testing.T, *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) {
		t.Helper()
		store, err := redisstore.Open(s.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		for i, summary := range summaries {
			_, err1 := store.Heartbeat(t.Context(), fmt.Sprint(i), time.Minute)
			err2 := redisops.WriteSummary(t.Context(), store, fmt.Sprint(i), summary, time.Minute)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestClockDifferencesAreFound(t *testing.T) {
	t.Parallel()
	s, clock := redistest.StartClocked(t)
	for ahead, want := range map[time.Duration]Status{0: OK, 400 * time.Millisecond: Warning, -5 * time.Second: Failed, time.Hour: Failed} {
		if err := clock.Set(ahead); err != nil {
			t.Fatal(err)
		}
		r := examined(t, "redis://"+s.Addr)
		c := r.worst("clock")
		if c.Status != want {
			t.Errorf("with the clock %v ahead, the check is %+v; want the status %s", ahead, c, want)
		}
		if hasRemedy := c.Remedy != ""; hasRemedy != (want != OK) {
			t.Errorf("with the clock %v ahead, the check is %+v; want a remedy only for a problem", ahead, c)
		}
	}
	// A replica with another clock: at a failover, the clock would jump.
	primary := redistest.Start(t)
	if err := clock.Set(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(primary.Addr)
	do(t, s, "REPLICAOF "+host+" "+port)
	eventually.NoError(t, func() error {
		if text, _ := primary.Do("INFO", "replication"); !strings.Contains(fmt.Sprint(text), "state=online") {
			return errors.New("the replica is not online")
		}
		return nil
	})
	r := examined(t, "redis://"+primary.Addr)
	if c := r.worst("clock"); c.Status != Warning || !strings.Contains(c.Summary, s.Addr) || !strings.Contains(c.Why, "failover") {
		t.Errorf("the check of a replica 50 ms ahead is %+v; want a warning with its address\n%s", c, r.text())
	}
}

func TestBusyServerIsFound(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	do(t, s, "CONFIG SET busy-reply-threshold 10")
	startClient(t, s, "EVAL", "while true do end", "0")
	eventually.NoError(t, func() error {
		if _, err := s.Do("PING"); err == nil || !strings.HasPrefix(err.Error(), "BUSY") {
			return fmt.Errorf("PING returns %v; want BUSY", err)
		}
		return nil
	})
	r := examined(t, "redis://"+s.Addr)
	if c := r.worst("decisions"); c.Status != Failed || !strings.Contains(c.Remedy, "SCRIPT KILL") {
		t.Errorf("the check of decisions is %+v; want it failed with SCRIPT KILL\n%s", c, r.text())
	}
	for _, name := range []string{"memory", "clock", "keys", "slowlog"} {
		if c := r.worst(name); c.Status != Unknown || c.Needs != "" || c.Remedy != "" || !strings.Contains(c.Summary, "BUSY") {
			t.Errorf("the check of %s is %+v; want unknown with BUSY, and no remedy", name, c)
		}
	}
}

// anyClient marks a server as reached.
var anyClient = struct{ rueidis.Client }{}

// These faults cannot be caused in a real server: a file that cannot be written, and a slow fork.
// Each row has the status and the beginning of the summary that the check must have, and the INFO.
func TestPersistenceIsJudgedByInfo(t *testing.T) {
	for want, info := range map[string]map[string]string{
		"failed the latest write to the append-only file failed": {"aof_enabled": "1", "aof_last_write_status": "err"},
		"failed the server is loading its data":                  {"loading": "1", "loading_eta_seconds": "7"},
		"warning the latest fork took 150ms":                     {"latest_fork_usec": "150000"},
		"ok the append-only file is written":                     {"aof_enabled": "1", "latest_fork_usec": "99000"},
	} {
		d := &doctor{}
		s := &server{address: "a:1", info: info}
		d.checkPersistence(s)
		c := d.checks[0]
		if !strings.HasPrefix(string(c.Status)+" "+c.Summary, want) {
			t.Errorf("with the INFO %v, the check is %+v; want %s", info, c, want)
		}
		isExplained := c.Why != "" && c.Remedy != ""
		if c.Status != OK && !isExplained {
			t.Errorf("with the INFO %v, the check is %+v; want its consequence and a remedy", info, c)
		}
	}
}

func TestOldServersAreFound(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]Status{"6.2.14": Failed, "6.10.1": Failed, "7.0.15": OK, "7.10.1": OK, "8.10.1": OK, "10.0.0": OK, "": Failed} {
		d := &doctor{}
		d.checkVersion(&server{hello: map[string]string{"server": "redis", "version": version}})
		if d.checks[0].Status != want {
			t.Errorf("the check of Redis %q is %+v; want the status %v", version, d.checks[0], want)
		}
	}
	d := &doctor{servers: []*server{{client: anyClient, hello: map[string]string{"version": "7.0.1"}}, {client: anyClient, hello: map[string]string{"version": "7.2.1"}}}}
	if d.checkVersionsAreEqual(); len(d.checks) != 1 || d.checks[0].Status != Warning {
		t.Errorf("the checks of two versions are %+v; want one warning", d.checks)
	}
}

func TestTLSIsExamined(t *testing.T) {
	t.Parallel()
	short, long := &redistest.TLS{ExtraNames: []string{"127.0.0.1"}}, &redistest.TLS{ExtraNames: []string{"127.0.0.1"}, Lifetime: 1000 * time.Hour}
	soon, later := redistest.StartTLS(t, short), redistest.StartTLS(t, long)
	for _, c := range []struct {
		name, url       string
		status          Status
		summary, remedy string // parts of them
	}{
		{name: "ends soon", url: "rediss://" + soon.Addr + "?" + short.Options().Encode(), status: Warning, summary: "the certificate ends in 0 days", remedy: "tls-cert-file"},
		{name: "good", url: "rediss://" + later.Addr + "?" + long.Options().Encode(), status: OK, summary: "TLS 1.3"},
		{name: "no authority", url: "rediss://" + later.Addr, status: Failed, summary: "unknown authority", remedy: "ca=FILE"},
		{name: "another authority", url: "rediss://" + later.Addr + "?" + short.Options().Encode(), status: Failed, summary: "unknown authority", remedy: "ca=FILE"},
		{name: "another name", url: "rediss://" + later.Addr + "?server_name=other&" + long.Options().Encode(), status: Failed, summary: "other", remedy: "server_name"},
		{name: "not verified", url: "rediss://" + later.Addr + "?insecure_skip_verify=true", status: Warning, summary: "TLS 1.3", remedy: "remove insecure_skip_verify"},
		{name: "without TLS", url: "redis://" + later.Addr, status: Failed, summary: "cannot be reached", remedy: "rediss://"},
	} {
		if got := examined(t, c.url).worst("reach"); got.Status != c.status || !strings.Contains(got.Summary, c.summary) || !strings.Contains(got.Remedy, c.remedy) {
			t.Errorf("%s: the check is %+v; want status %v, a summary with %q and a remedy with %q", c.name, got, c.status, c.summary, c.remedy)
		}
	}
}

func TestFaultsOfAClusterAreFound(t *testing.T) {
	t.Parallel()
	c := redistest.StartClusterForFailover(t)
	url := "redis+cluster://" + strings.Join(c.Addrs(), ",")
	wantCheck := func(check string, status Status, summary string) {
		t.Helper()
		r := examined(t, url)
		for _, c := range r.Checks {
			isExplained := c.Why != "" && c.Remedy != ""
			if c.Name == check && c.Status == status && strings.Contains(c.Summary, summary) && isExplained {
				return
			}
		}
		t.Errorf("no check %s has the status %s, a summary with %q, a consequence and a remedy:\n%s", check, status, summary, r.text())
	}
	do(t, c.Nodes[1], "CONFIG SET maxmemory 1gb", "CONFIG SET maxmemory-policy allkeys-lru")
	wantCheck("eviction", Failed, "allkeys-lru")
	if text := examined(t, url).text(); !strings.Contains(text, c.Nodes[1].Addr+": maxmemory-policy is allkeys-lru") || strings.Contains(text, c.Nodes[0].Addr+": maxmemory") {
		t.Errorf("the report does not name only the node that evicts, %s:\n%s", c.Nodes[1].Addr, text)
	}
	do(t, c.Nodes[0], "DEBUG POPULATE 3000 other")
	wantCheck("keys", Warning, "as many keys as the primaries have on average")
	do(t, c.Nodes[0], "CLUSTER DELSLOTS 7 8")
	eventually.NoError(t, func() error { // for a moment, a node may return its earlier slots
		if c := examined(t, url).worst("topology"); c.Status != Failed || !strings.Contains(c.Summary, "2 of 16384 slots have no primary") {
			return fmt.Errorf("two slots have no primary, and the check of the topology is %+v", c)
		}
		return nil
	})
	do(t, c.Nodes[0], "CLUSTER ADDSLOTS 7 8")
	c.Nodes[3].Kill() // the replica of node 0
	eventually.NoError(t, func() error {
		if text, _ := c.Nodes[0].Do("INFO", "replication"); !strings.Contains(fmt.Sprint(text), "connected_slaves:0") {
			return errors.New("the replica is still connected")
		}
		return nil
	})
	wantCheck("replication", Warning, "without a replica")
	c.Nodes[0].Kill() // no replica can take over
	eventually.NoError(t, func() error {
		if text, _ := c.Nodes[1].Do("CLUSTER", "INFO"); !strings.Contains(fmt.Sprint(text), "cluster_state:fail") {
			return errors.New("the Cluster has not noticed")
		}
		return nil
	})
	wantCheck("topology", Failed, "cluster_state is fail")
	wantCheck("reach", Failed, "connection refused")
	wantCheck("decisions", Failed, "CLUSTERDOWN")
}

func TestFaultsOfSentinelsAreFound(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	unknown := "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/other"
	if r := examined(t, unknown); !r.IsReached() || r.worst("reach").Status != OK {
		t.Errorf("the check of an unknown name is %+v, reached: %t; want the Sentinels reached", r.worst("reach"), r.IsReached())
	}
	if c := examined(t, unknown).worst("topology"); c.Status != Failed || !strings.Contains(c.Summary, "other") || !strings.Contains(c.Remedy, "SENTINEL MASTERS") {
		t.Errorf("the check of an unknown name is %+v; want it failed, with the name and the command", c)
	}
	if c := examined(t, "redis+sentinel://"+s.Addrs()[0]+"/"+redistest.MasterName).worst("topology"); c.Status != Warning || !strings.Contains(c.Remedy, "three Sentinels") {
		t.Errorf("the check of one Sentinel in the URL is %+v; want a warning to name three", c)
	}
	if c := examined(t, "redis://"+s.Addrs()[0]).worst("reach"); c.Status != Failed || !strings.Contains(c.Remedy, "redis+sentinel://") {
		t.Errorf("the check of a Sentinel as a server is %+v; want it failed, with redis+sentinel://", c)
	}
	s.Sentinels[1].Kill()
	s.Sentinels[2].Kill()
	eventually.NoError(t, func() error {
		r := examined(t, sentinelURL(s, ""))
		if c := r.worst("topology"); c.Status != Failed || !strings.Contains(c.Summary, "cannot fail over") || c.Remedy == "" {
			return fmt.Errorf("two of three Sentinels are down, and the check of the topology is %+v", c)
		}
		return nil
	})
}

// If a right is missing, a check is unknown and names the right. With the rights that penstock acl
// --role doctor prints, no check is unknown.
func TestChecksNameTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	group, cluster := redistest.StartSentinel(t), redistest.StartCluster(t)
	setRights := func(servers []*redistest.Server, o redisrights.Options, without string) {
		rules := redisrights.Rules("", Rights(o))
		for _, s := range servers {
			do(t, s, strings.TrimSuffix("ACL SETUSER limiter reset on >secret "+rules+" -"+without, " -"))
		}
	}
	named := 0
	for _, c := range []struct {
		url     string
		servers []*redistest.Server
		options redisrights.Options
		rights  string // the test revokes each of them once
	}{
		{url: "redis://" + limiter + group.Primary.Addr, servers: []*redistest.Server{group.Primary, group.Replica}, rights: "info scan type pttl memory|usage slowlog|get zrange time"},
		{url: sentinelURL(group, limiter), servers: []*redistest.Server{group.Primary, group.Replica}, options: redisrights.Options{Sentinel: true}, rights: "info"},
		{url: "redis://" + limiter + cluster.Nodes[0].Addr, servers: cluster.Nodes, options: redisrights.Options{Cluster: true}, rights: "info cluster|info scan"},
	} {
		setRights(c.servers, c.options, "")
		fillStore(t, strings.Replace(c.url, limiter, "", 1))
		if r := examined(t, c.url); r.Has(Unknown) && r.worst("latency").Status != Warning || strings.Contains(r.text(), string(Unknown)+" ") {
			t.Errorf("with all rights, a check is unknown:\n%s", r.text())
		}
		for right := range strings.FieldsSeq(c.rights) {
			setRights(c.servers, c.options, right)
			r := examined(t, c.url)
			if !slices.ContainsFunc(r.Checks, func(c Check) bool {
				return c.Status == Unknown && c.Needs == "+"+right && strings.Contains(c.Remedy, "+"+right)
			}) {
				t.Errorf("%s without the right %s: no check names it:\n%s", c.url, right, r.text())
			}
			named++
		}
	}
	t.Logf("counted: %d missing rights that a check names", named)
}

// The doctor writes nothing but the probe key. The report has the true number of commands.
func TestDoctorOnlyReads(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	fillStore(t, "redis://"+s.Addr)
	do(t, s, "SET other x", "SET ps1{key:a}rule x")
	before := contents(t, s)
	monitor, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer monitor.Close()
	fmt.Fprint(monitor, "MONITOR\r\n")
	lines := bufio.NewReader(monitor)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	r := examined(t, "redis://"+s.Addr)
	do(t, s, "ECHO over")
	sent, _, err := s.CommandStats("slowlog|get") // MONITOR does not show this command
	if err != nil {
		t.Fatal(err)
	}
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, `"ECHO" "over"`) {
			break
		}
		_, command, _ := strings.Cut(line, "] ")
		command = strings.ToUpper(command)
		isOfConnection := strings.HasPrefix(command, `"HELLO" "3"`) || strings.HasPrefix(command, `"CLIENT" "SETINFO"`) || strings.HasPrefix(command, `"PING"`)
		isOfScript := strings.Contains(line, " lua] ")
		if isOfScript || isOfConnection {
			continue
		}
		sent++
		switch name := strings.Split(command, `"`)[1]; name {
		case "HELLO", "INFO", "EVAL", "EVALSHA", "SCRIPT", "TIME", "SCAN", "TYPE", "PTTL", "MEMORY":
		default:
			t.Errorf("the doctor sent %s; want only commands that read, and probes", command)
		}
	}
	if r.Commands != sent {
		t.Errorf("the report counts %d commands; want %d, as many as were sent", r.Commands, sent)
	}
	after := contents(t, s)
	delete(after, "ps1{doctor}self-test")
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the keys have changed from\n%v to\n%v", before, after)
	}
}

// contents returns the expiry and the data of each key of a server.
func contents(t *testing.T, s *redistest.Server) map[string]string {
	t.Helper()
	found := make(map[string]string)
	keys, err := s.Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys.([]any) {
		data, err1 := s.Do("DUMP", key.(string))
		expires, err2 := s.Do("PEXPIRETIME", key.(string))
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		found[key.(string)] = fmt.Sprintf("%v %q", expires, data)
	}
	return found
}

func TestWrongOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{URL: "nonsense"}, {URL: "redis://localhost", Keys: redisstore.Options{Prefix: "a b"}}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("Run with %+v returns %v; want an ErrInvalid", o, err)
		}
	}
}

func TestMaskedKeysShowNoIdentity(t *testing.T) {
	for key, want := range map[string]string{
		"ps1{key:s3cret}rule": `"ps1{key:…}rule"`, "ps1{s3cret}rule": `"ps1{…}rule"`, "ps1{%#00ff}rule": `"ps1{…}rule"`, "ps1session": `"ps1ses…"`,
		"ps1{}x": `"ps1{…}x"`, "ps1session:s3cret": `"ps1session:…"`, "ps1\n\x00": `"ps1\n\x00…"`, "ps1{open": `"ps1{…"`,
	} {
		if got := masked(key); got != want {
			t.Errorf("the key %q is masked as %s; want %s", key, got, want)
		}
	}
}

// Keys that the server deletes while they are counted are no sign of another program.
func TestDeletedKeysAreNoTenants(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redis.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var d doctor
	s := &server{client: client}
	if n := d.deletedSince(t.Context(), s); n != 0 {
		t.Errorf("without INFO, %d keys were deleted; want 0", n)
	}
	d.readInfo(t.Context(), s)
	do(t, redis, "SET k v PX 1")
	eventually.True(t, "one key has been deleted", func() bool { return d.deletedSince(t.Context(), s) == 1 })
	for deleted, want := range map[int64]Status{0: Warning, 100: OK, 140: OK} {
		var d doctor
		d.checkTenants(&server{info: map[string]string{"db0": "keys=269,expires=269,avg_ttl=0"}, sample: &sample{ours: 151, deleted: deleted + 8, isWhole: true}})
		if got := d.checks[0]; got.Status != want {
			t.Errorf("after %d keys were deleted, the check is %+v; want the status %s", deleted+8, got, want)
		}
	}
}

// A replica keeps expired keys until its primary deletes them, and counts them.
func TestExpiredKeysOfAReplicaAreNoWarning(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]Status{"replica": OK, "master": Warning} {
		var d doctor
		d.checkTenants(&server{info: map[string]string{"db0": "keys=19,expires=19,avg_ttl=0"}, hello: map[string]string{"role": role}, sample: &sample{ours: 8, isWhole: true}})
		if got := d.checks[0]; got.Status != want {
			t.Errorf("the check of a %s is %+v; want the status %s", role, got, want)
		}
	}
}

// A command that deletes a key must not reach another database.
func TestCommandsNameTheDatabase(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if _, err := s.Do("EVAL", "redis.call('SELECT', 3); return redis.call('SET', 'ps1{%@}instances', 'foreign')", "0"); err != nil {
		t.Fatal(err)
	}
	if c := examined(t, "redis://"+s.Addr+"/3").worst("instances"); c.Status != Failed || !strings.Contains(c.Remedy, " -n 3 DEL ") {
		t.Errorf("the check of instances is %+v; want a failed one whose command has -n 3", c)
	}
}
