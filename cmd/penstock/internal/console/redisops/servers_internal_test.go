package redisops

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestInfoIsParsed(t *testing.T) {
	const text = "# Memory\r\nused_memory:2000\r\nmaxmemory:4000\r\nmaxmemory_policy:noeviction\r\nnumber_of_cached_scripts:7\r\n# Stats\r\nevicted_keys:3\r\nexpired_keys:4\r\nrejected_connections:5\r\n" +
		"# CPU\r\nused_cpu_sys:100.0\r\nused_cpu_sys_main_thread:1.500000\r\nused_cpu_user_main_thread:0.250000\r\n# Clients\r\nconnected_clients:6\r\nmaxclients:10000\r\n" +
		"# Server\r\nrun_id:8371b4fb1155b71f4a04d3e1bc3e18c4a990aeeb\r\n# Replication\r\nrole:master\r\nconnected_slaves:2\r\nslave0:ip=::1,port=1,state=online,offset=90,lag=0\r\nslave1:ip=10.0.0.2,port=1,state=online,offset=60,lag=1\r\nslave_repl_offset:1\r\nmaster_repl_offset:100\r\n" +
		"# Commandstats\r\ncmdstat_eval:calls=2,usec=20,usec_per_call=10.00\r\ncmdstat_evalsha:calls=5,usec=76,usec_per_call=15.20\r\ncmdstat_evalsha_ro:calls=9,usec=9\r\n" +
		"# Keyspace\r\ndb0:keys=8,expires=0,avg_ttl=0\r\ndb12:keys=3,expires=0,avg_ttl=0\r\n"
	want := Server{Memory: Memory{Used: 2000, Max: 4000, Policy: "noeviction"}, Keys: 11, Evicted: 3, Expired: 4, CPU: 1750 * time.Millisecond, Scripts: 7, ScriptTime: 96 * time.Microsecond,
		CachedScripts: 7, Clients: 6, MaxClients: 10000, Refused: 5, RunID: "8371b4fb1155b71f4a04d3e1bc3e18c4a990aeeb", Replicas: 2, Lag: 40}
	if got, err := parseInfo(text); err != nil || got != want {
		t.Errorf("parseInfo returned %+v, %v; want %+v", got, err, want)
	}
	for _, hostile := range []string{"", "used_memory", "db0:keys=x\r\nslave0:offset=", ":::\n\n:"} {
		if got, err := parseInfo(hostile); err == nil {
			t.Errorf("%q is accepted as %+v; want an error", hostile, got)
		}
	}
}

// A server may reply anything, but no number becomes negative.
func TestHostileInfoGivesNoWrongNumbers(t *testing.T) {
	t.Parallel()
	names := []string{"maxmemory", "maxmemory_policy", "run_id", "number_of_cached_scripts", "evicted_keys", "expired_keys", "rejected_connections", "used_cpu_sys_main_thread",
		"used_cpu_user_main_thread", "connected_clients", "maxclients", "connected_slaves", "master_repl_offset"}
	for _, value := range []string{"", "-1", "-9223372036854775808", "9223372036854775807", "99999999999999999999999", "1e308", "-1e308", "Inf", "-Inf", "NaN", "0x7fffffffffffffff",
		"\x00", "\x1b[2J", "1\x00", strings.Repeat("9", 100_000)} {
		text := "used_memory:" + value + "x\r\n"
		for _, name := range names {
			text += name + ":" + value + "\r\n"
		}
		for i := range 20 {
			text += fmt.Sprintf("db%d:keys=%s,expires=0\r\nslave%d:offset=%s\r\n", i, value, i, value)
		}
		text += "cmdstat_eval:calls=" + value + ",usec=" + value + "\r\ncmdstat_evalsha:calls=" + value + ",usec=" + value + "\r\n"
		s, err := parseInfo(text)
		if err != nil {
			if len(text) <= maxInfoBytes {
				t.Errorf("%.40q: %v; want no error", value, err)
			}
			continue
		}
		for name, n := range map[string]int64{
			"Used": s.Used, "Max": s.Max, "Keys": s.Keys, "Evicted": s.Evicted, "Expired": s.Expired, "CPU": int64(s.CPU), "Scripts": s.Scripts,
			"ScriptTime": int64(s.ScriptTime), "CachedScripts": s.CachedScripts, "Clients": s.Clients, "MaxClients": s.MaxClients, "Refused": s.Refused,
			"Replicas": s.Replicas, "Lag": s.Lag,
		} {
			if n < 0 {
				t.Errorf("%.40q: %s is %d; want 0 or more", value, name, n)
			}
		}
		if len(s.Policy) > 50 || len(s.RunID) > 50 {
			t.Errorf("the policy has %d bytes, and the run ID %d; want at most 50", len(s.Policy), len(s.RunID))
		}
	}
	if _, err := parseInfo("used_memory:1\r\n" + strings.Repeat("x", 10<<20)); err == nil {
		t.Error("a reply of 10 MB is accepted; want an error")
	}
}

func TestSampleIsParsed(t *testing.T) {
	k := KeySample{Groups: make(map[string]float64)}
	for _, reply := range []string{"1000 100\n20 search\n1 ", "0 0", "500 50\n5 search\n5 login"} {
		if err := k.add(reply); err != nil {
			t.Fatal(err)
		}
	}
	if k.Total != 1500 || k.Seen != 150 || k.Groups["search"] != 250 || k.Groups["login"] != 50 || k.Groups[""] != 10 || len(k.Groups) != 3 {
		t.Errorf("the sample is %+v; want 1500 keys, 150 seen, 250 of search, 50 of login and 10 of the store", k)
	}
	for _, hostile := range []string{"", "1", "x y", "-1 0", "10 5\n6 a", "10 5\n-1 a", "10 0\n1 a", "0 0\n0 x", "1 1\nsearch"} {
		if err := k.add(hostile); err == nil {
			t.Errorf("%q is accepted; want an error", hostile)
		}
	}
}
