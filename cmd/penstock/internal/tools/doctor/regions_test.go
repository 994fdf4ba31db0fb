package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// startRegion starts an instance of a region, so that its store knows the region and its peers.
func startRegion(t *testing.T, name string, server *redistest.Server, peers map[string]*redistest.Server) {
	t.Helper()
	open := func(s *redistest.Server) *redisstore.Store {
		store, err := redisstore.Open(s.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}
	own, others := open(server), make(map[string]regions.Server)
	for name, s := range peers {
		others[name] = open(s)
	}
	i, err := regions.NewInstance(regions.Options{Self: name, Every: 100 * time.Millisecond}, own, others, nil)
	if err != nil {
		t.Fatal(err)
	}
	i.Start()
	t.Cleanup(i.Close)
	eventually.True(t, "region "+name+" has used its store", func() bool {
		look, err := regions.LookAt(t.Context(), own)
		return err == nil && look.Region == name
	})
}

func TestFaultsOfRegionsAreFound(t *testing.T) {
	t.Parallel()
	eu, us, ap := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	startRegion(t, "eu", eu, map[string]*redistest.Server{"us": us})
	startRegion(t, "us", us, map[string]*redistest.Server{"eu": eu})
	eventually.True(t, "contact", func() bool {
		r := examined(t, eu.URL(), func(o *Options) { o.Region, o.Peers, o.Keys.Secret = "eu", map[string]string{"us": us.URL()}, nil })
		return r.worst("regions").Status == OK
	})
	do(t, us, "ACL SETUSER weak on >p ~ps1* -@all +eval +get +time +ping")
	for _, c := range []struct {
		region, peer, url string
		secret            string
		status            Status
		want              string
	}{
		{region: "eu", peer: "us", url: us.URL(), status: OK, want: "it is reached, and knows this region"},
		{region: "eu", peer: "us", url: "redis://127.0.0.1:1", status: Failed, want: "it gives no answer"},
		{region: "eu", peer: "us", url: "redis://weak:p@" + us.Addr, status: Failed, want: "lacks rights there: evalsha"},
		{region: "eu", peer: "ap", url: ap.URL(), status: Warning, want: "no instance there has used the store"},
		{region: "eu", peer: "ap", url: us.URL(), status: Failed, want: "its store belongs to region us"},
		{region: "ap", peer: "us", url: us.URL(), status: Failed, want: "does not know region ap"},
		{region: "eu", peer: "us", url: us.URL(), secret: "another", status: Failed, want: "another key_hash_secret"},
	} {
		r := examined(t, eu.URL(), func(o *Options) {
			o.Region, o.Peers, o.Keys.Secret = c.region, map[string]string{c.peer: c.url}, []byte(c.secret)
			if c.secret == "" {
				o.Keys.Secret = nil
			}
		})
		var found Check
		for _, check := range r.Checks {
			if check.Name == "regions" && check.Server == c.peer {
				found = check
			}
		}
		if found.Status != c.status || !strings.Contains(found.Summary, c.want) || (found.Remedy == "") != (c.status == OK) {
			t.Errorf("region %s with %s=%s: the check is %+v; want %s: %s", c.region, c.peer, c.url, found, c.status, c.want)
		}
		if hasOther := strings.Contains(r.text(), "the store belongs to region eu, and not to ap"); hasOther != (c.region == "ap") {
			t.Errorf("region %s: the report says that the store belongs to another region: %v", c.region, hasOther)
		}
	}
}

// checkOfRegions examines the regions eu and us from eu.
func checkOfRegions(t *testing.T, eu, us *redistest.Server) Check {
	t.Helper()
	r := examined(t, eu.URL(), func(o *Options) { o.Region, o.Peers = "eu", map[string]string{"us": us.URL()} })
	return r.worst("regions")
}

// Contact that was lost is found, although the other store is reached.
func TestLostContactOfRegionsIsFound(t *testing.T) {
	t.Parallel()
	eu, clock := redistest.StartClocked(t)
	us, usClock := redistest.StartClocked(t)
	startRegion(t, "eu", eu, map[string]*redistest.Server{"us": us})
	startRegion(t, "us", us, map[string]*redistest.Server{"eu": eu})
	check := func() Check { return checkOfRegions(t, eu, us) }
	eventually.True(t, "contact", func() bool { return check().Status == OK })
	do(t, us, "CONFIG SET maxmemory 1") // no instance of us can write there what it has merged
	for _, c := range []*redistest.Clock{clock, usClock} {
		if err := c.Set(20 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if c := check(); c.Status != Warning || !strings.Contains(c.Summary, "there has been no contact for") || c.Remedy == "" {
		t.Errorf("20 s after the last contact, the check is %+v; want a warning", c)
	}
}

func TestClocksOfRegionsAreCompared(t *testing.T) {
	t.Parallel()
	eu := redistest.Start(t)
	us, clock := redistest.StartClocked(t)
	startRegion(t, "eu", eu, map[string]*redistest.Server{"us": us})
	startRegion(t, "us", us, map[string]*redistest.Server{"eu": eu})
	check := func() Check { return checkOfRegions(t, eu, us) }
	eventually.True(t, "contact", func() bool { return check().Status == OK })
	if err := clock.Set(time.Hour); err != nil {
		t.Fatal(err)
	}
	if c := check(); c.Status != Warning || !strings.Contains(c.Summary, "its clock differs by 1h0m") {
		t.Errorf("the check is %+v; want that the clocks differ by an hour", c)
	}
}
