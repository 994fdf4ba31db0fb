package command

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// report has the fields of penstock explain -o json that these tests use.
type report struct {
	Charges, Shadows []struct {
		Rule, Limit, Key string
		Remaining        *int64
	}
	Allowed *bool
}

// explained returns the report of penstock explain.
func explained(t *testing.T, args ...string) (r report) {
	t.Helper()
	_, out, errors := command(append([]string{"explain", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("explain prints %q, %s: %v; want JSON", out, errors, err)
	}
	return r
}

// writeFile writes a file into a temporary folder, and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDemoIsExplainedWithoutAPolicy(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	for output, want := range map[string]string{
		"text": `request  POST /api/rides/request
from     192.0.2.1
rules    ride-request applies: the most specific match

1. ride-request.second
   counts for          key:a
   limit               10 per 1s, burst 20 (token-bucket)
   cost                1
   note                new identities from one address: at most 60 per 1m, burst 5000
   if the store fails  each instance enforces its share of the limit
   key in the store    ps1{key:a}ride-request
   upper bounds
     always         20 at once, and 10 per 1s
     denials        no more, with one instance
     store fails    no more, with one instance
     store returns  20 units more around the end: what passed in the outage is not charged later
     store forgets  20 units more each time the store loses data (a restart without persistence, a failover to a replica that lags)
     clock forward  20 units more at most each time the store's clock jumps ahead; if it is set back, none, and units return up to 5s late
`,
		"json": `{
  "method": "POST",
  "path": "/api/rides/request",
  "address": "192.0.2.1",
  "rules": [
    {
      "name": "ride-request",
      "applies": true,
      "why": "the most specific match"
    }
  ],
  "charges": [
    {
      "rule": "ride-request",
      "limit": "second",
      "identity": "key:a",
      "rate": "10 per 1s, burst 20",
      "algorithm": "token-bucket",
      "cost": 1,
      "on_failure": "local",
      "kind": "enforced",
      "note": "new identities from one address: at most 60 per 1m, burst 5000",
      "key": "ps1{key:a}ride-request",
      "bounds": [
        {
          "when": "always",
          "over": 0,
          "text": "20 at once, and 10 per 1s"
        },
        {
          "when": "denials",
          "over": 0,
          "text": "no more, with one instance"
        },
        {
          "when": "store fails",
          "over": 0,
          "text": "no more, with one instance"
        },
        {
          "when": "store returns",
          "over": 20,
          "text": "20 units more around the end: what passed in the outage is not charged later"
        },
        {
          "when": "store forgets",
          "over": 20,
          "text": "20 units more each time the store loses data (a restart without persistence, a failover to a replica that lags)"
        },
        {
          "when": "clock forward",
          "over": 20,
          "text": "20 units more at most each time the store's clock jumps ahead; if it is set back, none, and units return up to 5s late"
        }
      ]
    }
  ],
  "unread": [
    "ride-request.new-identities"
  ]
}
`,
	} {
		code, out, note := command("explain", "-o", output, "-X", "POST", "/api/rides/request", "-H", "X-API-Key: a")
		if code != exitOK || out != want {
			t.Errorf("explain -o %s: exit status %d, %s\nwant %s", output, code, out, want)
		}
		if note != "penstock: no --config: using the demo policy\n" {
			t.Errorf("explain -o %s: standard error is %q; want the note about the demo policy", output, note)
		}
	}
}

func TestBoundsDependOnTheNumberOfInstances(t *testing.T) {
	t.Setenv("PENSTOCK_MIN_INSTANCES", "4")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "store fails    4 instances with a share each: 0 units more by rounding, and up to 15 at the beginning if"},
		{[]string{"--min-instances", "3"}, "store fails    3 instances with a share each: 1 unit more by rounding, and up to 13 at the beginning if"},
	} {
		code, out, _ := command(append([]string{"explain", "-X", "POST", "/api/rides/request"}, c.args...)...)
		if code != exitOK || !strings.Contains(out, c.want) {
			t.Errorf("explain with %v: exit status %d, %s\nwant %s", c.args, code, out, c.want)
		}
	}
	if code, _, note := command("explain", "--min-instances", "none", "/"); code != exitUsage || !strings.Contains(note, "instances") {
		t.Errorf("explain --min-instances none: exit status %d, %s; want %d with %q", code, note, exitUsage, "instances")
	}
}

// variedRules have limits with all kinds of keys, and some shadows.
const variedRules = `
rules:
  - name: all
    always: true
    per: global
    limits: [{rate: 1000/d}, {name: log, rate: 900/h, algorithm: sliding-log}]
  - name: ride
    match: {path: "/api/rides/{id}"}
    per: {key: header X-API-Key}
    limits:
      - {rate: 10/h, candidate: {rate: 5/h, algorithm: sliding-log}}
      - {rate: 50/d, algorithm: fixed-window}
      - {name: maybe, rate: 3/h, shadow: true}
  - {name: tried, always: true, shadow: true, match: {path: /api/**}, per: ip, limits: [{rate: 10/h}]}
`

func TestKeysExplainedAreTheKeysWritten(t *testing.T) {
	redis := redistest.Start(t)
	config := writeFile(t, "rules.yaml", variedRules)
	compared := 0
	for _, c := range []struct{ serveFlag, explainFlag, explainVariable string }{
		{},
		{serveFlag: "--prefix=gate", explainFlag: "--prefix=gate"},
		{serveFlag: "--prefix=gate", explainVariable: "PENSTOCK_PREFIX=gate"},
		{serveFlag: "--key-hash-secret=pepper", explainVariable: "PENSTOCK_KEY_HASH_SECRET=pepper"},
	} {
		t.Run(c.serveFlag+c.explainFlag+c.explainVariable, func(t *testing.T) {
			if _, err := redis.Do("FLUSHALL"); err != nil {
				t.Fatal(err)
			}
			p := startProcess(t, strings.Fields("--config="+config+" --store-timeout=20s --store="+redis.URL()+" "+c.serveFlag)...)
			if name, value, ok := strings.Cut(c.explainVariable, "="); ok {
				t.Setenv(name, value)
			}
			tooLong := strings.Repeat("long", 100) // so Redis has its hash
			for _, key := range []string{"a", "{a}:b %\u00e9", tooLong} {
				r, err := http.NewRequest("POST", "http://"+p.listen+"/api//rides/%31", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-API-Key", key)
				res, err := http.DefaultClient.Do(r)
				if err != nil || res.StatusCode != http.StatusOK {
					t.Fatalf("the response is %v, %v; want status 200", res, err)
				}
				res.Body.Close()
				var named []string
				args := strings.Fields("-X POST --from 127.0.0.1 /api//rides/%31 --config " + config + " " + c.explainFlag)
				e := explained(t, append(args, "-H", "X-API-Key: "+key)...)
				for _, charge := range slices.Concat(e.Charges, e.Shadows) {
					named = append(named, charge.Key)
				}
				slices.Sort(named)
				named = slices.Compact(named)
				written := slices.DeleteFunc(keysOf(t, redis), isOwnKey)
				if !slices.Equal(named, written) {
					t.Errorf("key %.20q: explain names %q\nand Redis has %q\nwant the same", key, named, written)
				}
				compared += len(named)
				if _, err := redis.Do("FLUSHALL"); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	t.Logf("counted: %d keys that explain names and serve writes", compared)
}

// isOwnKey returns true for a key that the service writes for itself, and not for a limit.
func isOwnKey(key string) bool {
	return strings.Contains(key, "{%@}") || strings.HasSuffix(key, "}self-test")
}

// keysOf returns all keys in Redis, found by SCAN.
func keysOf(t *testing.T, redis *redistest.Server) (keys []string) {
	t.Helper()
	for cursor := "0"; ; {
		reply, err := redis.Do("SCAN", cursor)
		if err != nil {
			t.Fatal(err)
		}
		page := reply.([]any)
		for _, key := range page[1].([]any) {
			keys = append(keys, key.(string))
		}
		if cursor = page[0].(string); cursor == "0" {
			slices.Sort(keys)
			return slices.Compact(keys)
		}
	}
}

func TestExplainChargesNothing(t *testing.T) {
	redis := redistest.Start(t)
	config := writeFile(t, "rules.yaml", variedRules)
	const explanations = 5
	for range explanations {
		e := explained(t, "--config", config, "--store", redis.URL(), "/api/rides/1")
		if e.Allowed == nil || !*e.Allowed || *e.Charges[2].Remaining != 10 {
			t.Errorf("explain returns %+v; want an allowed request, with 10 left of the third limit", e)
		}
		if keys := keysOf(t, redis); keys != nil {
			t.Errorf("explain wrote the keys %q", keys)
		}
	}
	p := startProcess(t, "--config="+config, "--store="+redis.URL(), "--store-timeout=20s")
	for range 4 { // each spends a unit of each limit
		res, err := http.Get("http://" + p.listen + "/api/rides/1")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	for range explanations {
		e := explained(t, "--config", config, "--store", redis.URL(), "--from", "127.0.0.1", "/api/rides/1")
		var left []int64
		for _, c := range e.Charges {
			left = append(left, *c.Remaining)
		}
		if want := []int64{1000 - 4, 900 - 4, 10 - 4, 50 - 4}; !slices.Equal(left, want) {
			t.Errorf("after 4 requests, explain shows the remaining units %v; want %v", left, want)
		}
	}
	t.Logf("counted: %d explained requests that were not charged", 2*explanations)
}

// A split limit has several counters, and none under its own key.
func TestExplainReadsAllCountersOfASplitLimit(t *testing.T) {
	redis := redistest.Start(t)
	config := writeFile(t, "rules.yaml", "rules: [{name: a, per: ip, limits: [{rate: 6/h, split_into: 3}, {rate: 100/d}, {name: slots, in_flight: 9, split_into: 2}]}]")
	p := startProcess(t, "--config="+config, "--store="+redis.URL(), "--store-timeout=20s")
	const units = 6
	for used := range units + 1 {
		e := explained(t, "--config", config, "--store", redis.URL(), "--from", "127.0.0.1", "/")
		var left []int64
		for _, c := range e.Charges {
			left = append(left, *c.Remaining)
		}
		if want := []int64{int64(units - used), int64(100 - used), 9}; !slices.Equal(left, want) || *e.Allowed != (used < units) {
			t.Errorf("after %d requests: remaining is %v, allowed %t; want %v, %t", used, left, *e.Allowed, want, used < units)
		}
		res, err := http.Get("http://" + p.listen + "/")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	code, out, errors := command("explain", "--config", config, "--store", redis.URL(), "--from", "127.0.0.1", "/")
	if code != exitDenied || !strings.Contains(out, "It would be denied now.") {
		t.Errorf("explain after all units are used: exit status %d; want %d: %s%s", code, exitDenied, out, errors)
	}
	t.Logf("counted: %d peeks at a split limit", units+2)
}

// With a store, the bounds are for the instances that run, and for --min-instances at least.
func TestExplainCountsInstances(t *testing.T) {
	redis := redistest.Start(t)
	config := writeFile(t, "rules.yaml", "rules: [{name: all, per: global, limits: [{rate: 9/s}]}]")
	store, err := redisstore.Open(redis.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, name := range []string{"a", "b"} {
		if _, err := store.Heartbeat(t.Context(), name, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	line, errors := "", ""
	if _, line, errors = command("acl", "--role", "read"); errors != "" {
		t.Fatal(errors)
	}
	if _, err := redis.Do(strings.Fields(line)...); err != nil {
		t.Fatal(err)
	}
	reader := "redis://limiter:SECRET@" + redis.Addr
	for want, args := range map[string][]string{
		"no more, with one instance":     {"/"},
		"2 instances with a share each:": {"--store", reader, "/"},
		"3 instances with a share each:": {"--store", reader, "--min-instances", "3", "/"},
	} {
		code, out, errors := command(append([]string{"explain", "--config", config}, args...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("explain %q: exit status %d: %s%s; want %q", args, code, out, errors, want)
		}
	}
}

func TestExitStatusOfExplain(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	redis := redistest.Start(t)
	rules := writeFile(t, "rules.yaml", `
deny: [{ip: 203.0.113.0/24}]
allow: [{ip: 198.51.100.0/24}]
rules: [{name: a, match: {path: /a}, per: ip, limits: [{rate: 2/h}]}, {name: d, match: {descriptor user: "*"}, per: {user: descriptor user}, limits: [{rate: 2/h}]}]
`)
	broken := writeFile(t, "broken.yaml", "rules: [\n")
	p := startProcess(t, "--config="+rules, "--store="+redis.URL(), "--store-timeout=20s")
	for range 2 {
		res, err := http.Get("http://" + p.listen + "/a")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	t.Setenv("RULES", rules)
	t.Setenv("BROKEN", broken)
	t.Setenv("STORE", redis.URL())
	for _, c := range []struct {
		args string
		code int
		text string // on standard output, or on standard error
	}{
		{args: "--config $RULES /a", code: exitOK, text: "a applies: the most specific match"},
		{args: "--config $RULES /b", code: exitOK, text: "no rule matches"},
		{args: "--config $RULES --descriptor user=42 /", code: exitOK, text: "user:42"},
		{args: "--config $RULES --descriptor user /", code: exitUsage, text: "write KEY=VALUE"},
		{args: "--config $RULES --store $STORE /a", code: exitOK, text: "It would be allowed now."},
		{args: "--config $RULES --store $STORE --from 127.0.0.1 /a", code: exitDenied, text: "It would be denied now."},
		{args: "--config $RULES --store $STORE --from 127.0.0.1 /b", code: exitOK, text: "no rule matches"},
		{args: "--config $RULES --from 203.0.113.7 /a", code: exitDenied, text: "deny: always rejected"},
		{args: "--config $RULES --from 198.51.100.7 /a", code: exitOK, text: "allow: never limited"},
		{args: "--config $RULES --store redis://:hunter2@127.0.0.1:1 /a", code: exitUnreachable, text: "penstock: store unavailable"},
		{args: "--config $RULES --store localhost /a", code: exitUsage, text: "it has no scheme; write redis://"},
		{args: "--config $BROKEN /a", code: exitInvalid, text: "broken.yaml:"},
		{args: "--config /none.yaml /a", code: exitInvalid, text: "/none.yaml: no such file"},
		{args: "-H X-API-Key /a", code: exitUsage, text: "has no colon; write 'Name: value'"},
		{args: "-H :a /a", code: exitUsage, text: "is not valid; write 'Name: value'"},
		{args: "-H X(Y):a /a", code: exitUsage, text: "is not valid; write 'Name: value'"},
		{args: "--from nowhere /a", code: exitUsage, text: `"nowhere" is not an address; write 192.0.2.1`},
		{args: "--prefix a/b /api/fares/estimate", code: exitUsage, text: "the prefix"},
		{args: "-X G(T /a", code: exitUsage, text: "invalid method"},
		{args: "-o xml /a", code: exitUsage, text: `unknown output "xml"; write text or json`},
		{args: "a", code: exitUsage, text: "neither a path nor a URL; write one as in /api/rides"},
		{args: "/%zz", code: exitUsage, text: "neither a path nor a URL; write one as in /api/rides"},
		{args: "/a%2fb", code: exitUsage, text: "is a slash to some servers only; write /"},
		{args: "", code: exitUsage, text: "an argument is missing; write one URL or path"},
	} {
		code, out, err := command(strings.Fields("explain " + os.ExpandEnv(c.args))...)
		text := out + err
		if code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("explain %s: exit status %d, %s\nwant %d with %s", c.args, code, text, c.code, c.text)
		}
		if strings.Contains(text, "hunter2") {
			t.Errorf("explain %s shows the password of the store: %s", c.args, text)
		}
		isExplained := code == exitOK || code == exitDenied || code == exitUnreachable
		if hasOutput := out != ""; hasOutput != isExplained {
			t.Errorf("explain %s: exit status %d, and standard output is %q; want a report there only with %d, %d or %d", c.args, code, out, exitOK, exitDenied, exitUnreachable)
		}
	}
}

// An operator needs the name of the key that has the wrong type, and not the names of other keys.
func TestExplainNamesTheCorruptKey(t *testing.T) {
	redis := redistest.Start(t)
	config := writeFile(t, "rules.yaml", "rules: [{name: all, always: true, per: global, limits: [{rate: 9/s}]}, {name: pay, per: ip, limits: [{rate: 1/s}, {rate: 9/h, algorithm: sliding-log}]}]")
	for _, c := range []struct{ poison, want, limit string }{
		{"LPUSH ps1{ip:192.0.2.1}pay 1", "ps1{ip:192.0.2.1}pay", "pay.second"},
		{"SET ps1{ip:192.0.2.1}pay:hour:slidinglog 1", "ps1{ip:192.0.2.1}pay:hour:slidinglog", "pay.hour"},
		{"LPUSH ps1{global}all 1", "ps1{global}all", "all.second"},
	} {
		if _, err := redis.Do("FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		if _, err := redis.Do(strings.Fields(c.poison)...); err != nil {
			t.Fatal(err)
		}
		args := []string{"explain", "--config", config, "--store", redis.URL(), "/"}
		code, out, errors := command(args...)
		if code != exitUnreachable || !strings.Contains(errors, "corrupt") {
			t.Errorf("explain after %s: exit status %d: %s%s; want %d with %q", c.poison, code, out, errors, exitUnreachable, "corrupt")
		}
		repair := "delete it: " + deletion(redis, "'"+c.want+"'") + "\n"
		if limit := "read " + c.limit + " (key " + c.want + "): "; !strings.Contains(errors, limit) || !strings.HasSuffix(errors, repair) {
			t.Errorf("explain after %s: the error is %s; want %q and %q", c.poison, errors, limit, repair)
		}
		const blame = "this key has a value that Penstock did not write: delete the key"
		_, afterKey, _ := strings.Cut(out, c.want+"\n")
		if strings.Count(out, blame) != 1 || !strings.HasPrefix(strings.TrimSpace(afterKey), blame) {
			t.Errorf("explain after %s prints\n%s\nwant %q once, below the key %s", c.poison, out, blame, c.want)
		}
		var r struct {
			Charges []struct {
				Key     string
				Corrupt bool
			}
		}
		if _, out, errors := command(append(args, "-o", "json")...); json.Unmarshal([]byte(out), &r) != nil {
			t.Errorf("explain -o json prints %s%s; want JSON", out, errors)
		}
		for _, charge := range r.Charges {
			if charge.Corrupt != (charge.Key == c.want) {
				t.Errorf("explain after %s: the charge is %+v; want corrupt only for the key %s", c.poison, charge, c.want)
			}
		}
	}
}
