package clienttest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// scriptsOnACluster runs a script on each of the three primaries, and gets their own replies.
func scriptsOnACluster(t *testing.T, suite Suite, c *redistest.Cluster) {
	store := NewStore(t, suite.Cluster(t, c.Addrs(), Options{}), redisstore.Options{})
	replies := make(map[string]string)
	err := store.EvalOnEach(t.Context(), "return redis.call('INFO', 'server') .. ARGV[1]", "run", []string{"an argument"}, func(server, reply string) error {
		replies[server] = reply
		return nil
	})
	if err != nil || len(replies) != 3 {
		t.Errorf("%d primaries replied, %v; want 3", len(replies), err)
	}
	for _, primary := range c.Primaries() {
		want, _, _ := strings.Cut(strings.SplitAfter(Must(t, primary, "INFO", "server").(string), "run_id:")[1], "\r\n")
		if got := replies[primary.Addr]; !strings.Contains(got, want) || !strings.HasSuffix(got, "an argument") {
			t.Errorf("the reply of %s is %q; want its run ID %s, and the argument", primary.Addr, got, want)
		}
	}
}

// nodesOfACluster compares the node that a store names with the node that has the key.
func nodesOfACluster(t *testing.T, suite Suite, cluster *redistest.Cluster) {
	prefix := NewPrefix()
	s := NewStore(t, suite.Cluster(t, cluster.Addrs(), Options{}), redisstore.Options{Prefix: prefix})
	limit := penstock.PerHour(10).MustCompile()
	if name := s.Node([]penstock.Charge{{Key: "a", Plan: limit}}); name != "" {
		t.Errorf("before the first decision the node is %q; want none", name)
	}
	if _, err := s.Decide(context.Background(), []penstock.Charge{{Key: "a", Plan: limit, Cost: 1}}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the store knows the layout of the Cluster", func() bool { return s.Node([]penstock.Charge{{Key: "a", Plan: limit}}) != "" })
	found := make(map[string]bool)
	for i := range 300 {
		charge := penstock.Charge{Key: fmt.Sprint("key", i), Plan: limit, Cost: 1}
		name := s.Node([]penstock.Charge{charge})
		found[name] = true
		owner := ""
		if _, err := s.Decide(context.Background(), []penstock.Charge{charge}); err != nil {
			t.Fatal(err)
		}
		stored, err := redisstore.KeyOf(charge, redisstore.Options{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range cluster.Primaries() {
			if n, err := p.Do("EXISTS", stored); err == nil && n == int64(1) {
				owner = p.Addr
			}
		}
		if name != owner {
			t.Fatalf("%s: the node is %q; want %q, which has the key", stored, name, owner)
		}
	}
	if len(found) != 3 {
		t.Errorf("the store names the nodes %v; want 3 nodes", found)
	}
	var several []penstock.Charge
	for i := range 30 {
		several = append(several, penstock.Charge{Key: fmt.Sprint("key", i), Plan: limit})
	}
	if name := s.Node(several); strings.Count(name, "+") != 2 {
		t.Errorf("the node of a batch over all nodes is %q; want three addresses joined by +", name)
	}
}

// Use calls the store in a loop, as a breaker's probes do.
func Use(store *redisstore.Store, during time.Duration) {
	charges := []penstock.Charge{{Key: "k", Plan: penstock.PerHour(10).MustCompile(), Cost: 1}}
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		store.Node(charges)
		_, _ = store.Decide(context.Background(), charges)
	}
}
