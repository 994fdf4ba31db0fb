package redisstore_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// Two regions on real servers exchange their totals. One server with two prefixes is enough.
func TestRegionsOnRedis(t *testing.T) {
	server := redistest.Shared(t)
	all := make(map[string]*regions.Exchange)
	for self, peer := range map[string]string{"eu": "us", "us": "eu"} {
		store, err := redisstore.Open(server.URL(), redisstore.Options{Prefix: "regions-" + strings.ToLower(rand.Text()[:8]) + self})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		if all[self], err = regions.New(regions.Options{Self: self, Peers: []string{peer}, Store: store}); err != nil {
			t.Fatal(err)
		}
	}
	talk := func(from, to string) {
		t.Helper()
		answer, err := all[to].Site().Answer(t.Context(), all[from].Ask(to))
		if err == nil {
			err = all[from].Merge(t.Context(), to, time.Now(), answer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	spend := func(at string, p *penstock.Plan, key string, most int) (granted int) {
		t.Helper()
		for ; granted < most; granted++ {
			d, err := all[at].Store().Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Cost: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed {
				break
			}
		}
		return granted
	}
	for i, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.CalendarWindow(algorithm.Month, time.UTC), penstock.SubWindow(7)} {
		limit, err := penstock.ParseRate("100/30day")
		if err != nil {
			t.Fatal(err)
		}
		p := limit.With(algorithm.Across(a)).MustCompile()
		key := fmt.Sprint("k", i)
		spend("eu", p, key, 30)
		spend("us", p, key, 20)
		for range 2 {
			talk("eu", "us")
			talk("us", "eu")
		}
		if n := spend("us", p, key, 1000); n != 50 {
			t.Errorf("%s: 30 units are used there and 20 here, and %d more are granted; want 50", a.Title(), n)
		}
		talk("eu", "us")
		if n := spend("eu", p, key, 1000); n != 0 {
			t.Errorf("%s: %d units are granted beyond the limit", a.Title(), n)
		}
	}
}
