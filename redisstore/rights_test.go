package redisstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/rueidis"
)

// Sentinel and a database other than 0 need exactly one more right each.
func TestRightsOfSentinelAndOfADatabase(t *testing.T) {
	t.Parallel()
	group := redistest.StartSentinel(t)
	charge := []penstock.Charge{{Key: "k", Plan: penstock.PerSecond(10).MustCompile(), Cost: 1}}
	decide := func(t *testing.T, url string) error {
		store := open(t, url, redisstore.Options{Prefix: "limiter"})
		_, err := store.Decide(within(t, 3*time.Second), charge)
		return err
	}
	allow := func(t *testing.T, s *redistest.Server, o redisrights.Options) {
		must(t, s, strings.Fields("ACL SETUSER limiter reset on >secret "+clienttest.RulesOf(o))...)
	}
	sentinel := "redis+sentinel://limiter:secret@" + strings.Join(group.Addrs(), ",") + "/" + redistest.MasterName
	single := "redis://limiter:secret@" + group.Primary.Addr
	for _, c := range []struct {
		name, url string
		options   redisrights.Options
		command   string // the right that the test takes away
	}{
		{name: "sentinel", url: sentinel, options: redisrights.Options{Sentinel: true}, command: "+role"},
		{name: "database", url: single + "/2", options: redisrights.Options{Database: true}, command: "+select"},
		{name: "both", url: sentinel + "/2", options: redisrights.Options{Sentinel: true, Database: true}, command: "+role"},
	} {
		t.Run(c.name, func(t *testing.T) {
			without := c.options
			without.Sentinel = false
			if c.command == "+select" {
				without.Database = false
			}
			allow(t, group.Primary, without)
			err := decide(t, c.url)
			wantReason(t, "without "+c.command, err, penstock.ReasonPermissionDenied)
			if e := penstock.AsStoreError(err); e == nil || e.Hint != c.command {
				t.Errorf("without %s: %v; want a hint that names it", c.command, err)
			}
			allow(t, group.Primary, c.options)
			if err := decide(t, c.url); err != nil {
				t.Errorf("with %s: %v; want a decision", c.command, err)
			}
		})
	}
}

// CheckScript names each right that a user lacks, and no other.
func TestCheckScriptNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	all := redisrights.Of(redisrights.Options{Cluster: true, Sentinel: true, Database: true, GoRedis: true})
	all = append(all, redisrights.Of(redisrights.Options{Sentinel: true})...)
	must(t, s, strings.Fields("ACL SETUSER limiter on nopass")...)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, Username: "limiter", Password: "any", DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	check := func(rules string) string {
		must(t, s, strings.Fields("ACL SETUSER limiter resetkeys "+rules+" +eval")...)
		got, err := client.Do(t.Context(), client.B().Eval().Script(redisrights.CheckScript(all)).Numkeys(0).Arg("limiter1{k}").Build()).ToString()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	rules := redisrights.Rules("limiter", all)
	if got := check(rules); got != "" {
		t.Errorf("a user with all rights lacks %s; want nothing missing", got)
	}
	for _, right := range all {
		if right.Command == "eval" {
			continue
		}
		got := check(rules + " -" + right.Command)
		lacking := slices.Compact(strings.Split(got, ",")) // all may have a right twice
		if !slices.Equal(lacking, []string{right.Command}) {
			t.Errorf("without %s: a user lacks %q; want only this right", right.Command, got)
		}
	}
	// GET needs the right to a key, and TIME does not.
	if got := check(strings.Replace(rules, "~limiter1*", "~other*", 1)); !strings.Contains(got, "get") || strings.Contains(got, "time") {
		t.Errorf("without the right to the keys: a user lacks %q; want get but not time", got)
	}
}

// A program with few algorithms needs fewer rights.
func TestRightsDependOnTheAlgorithms(t *testing.T) {
	names := func(o redisrights.Options) (all []string) {
		for _, r := range redisrights.Of(o) {
			all = append(all, r.Command)
		}
		return all
	}
	got := fmt.Sprint(names(redisrights.Options{DecideOnly: true, Algorithms: []*algorithm.Algorithm{algorithm.TokenBucket}}))
	if want := "[evalsha eval script|load del get mget set setrange time]"; got != want {
		t.Errorf("a token bucket needs %s; want %s", got, want)
	}
}
