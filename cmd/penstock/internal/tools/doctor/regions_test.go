package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// startRegion starts an instance of a region, so that its store knows the region and its peers.
func startRegion(t *testing.T, name string, server *redistest.Server, peers map[string]*redistest.Server) *regions.Instance {
	t.Helper()
	urls := make(map[string]string)
	for peer, s := range peers {
		urls[peer] = s.URL()
	}
	return startRegionWith(t, name, server, urls)
}

// startRegionWith is startRegion for the URLs of the peers' stores.
func startRegionWith(t *testing.T, name string, server *redistest.Server, peers map[string]string) *regions.Instance {
	t.Helper()
	open := func(url string) *redisstore.Store {
		store, err := redisstore.Open(url, redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}
	own, others := open(server.URL()), make(map[string]regions.Server)
	for peer, url := range peers {
		others[peer] = open(url)
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
	return i
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
		want, fix         string
	}{
		{region: "eu", peer: "us", url: us.URL(), status: OK, want: "region us is reached, and knows this region"},
		{region: "eu", peer: "us", url: "redis://127.0.0.1:1", status: Failed, want: "the store of region us gives no answer", fix: "whether this Redis runs"},
		{region: "eu", peer: "us", url: "redis://weak:wrong@" + us.Addr, status: Failed, want: "the store of region us refuses the user or the password", fix: "correct the user or the password of region us in region_peers"},
		{region: "eu", peer: "us", url: "redis://weak:p@" + us.Addr, status: Failed, want: "lacks rights in the store of region us: evalsha", fix: "in region us, give the user the rights that penstock acl prints"},
		{region: "eu", peer: "ap", url: ap.URL(), status: Warning, want: "no instance of region ap has used its store"},
		{region: "eu", peer: "ap", url: us.URL(), status: Failed, want: "the store of region ap in region_peers belongs to region us"},
		{region: "ap", peer: "us", url: us.URL(), status: Failed, want: "region us does not know region ap"},
		{region: "eu", peer: "us", url: us.URL(), secret: "another", status: Failed, want: "region us has another key_hash_secret"},
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
		if found.Status != c.status || !strings.Contains(found.Summary, c.want) || !strings.Contains(found.Remedy, c.fix) || (found.Remedy == "") != (c.status == OK) {
			t.Errorf("region %s with %s=%s: the check is %+v; want %s: %s, with the remedy %s", c.region, c.peer, c.url, found, c.status, c.want, c.fix)
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

// Contact that was lost is found, although the other store is reached. The check says why.
func TestLostContactOfRegionsIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end         func(t *testing.T, us *redistest.Server, ofEU, ofUS *regions.Instance)
		reason, fix string
	}{
		"no instance of us runs": {func(_ *testing.T, _ *redistest.Server, _, ofUS *regions.Instance) { ofUS.Close() },
			"no instance of region us has exchanged for", "start an instance of region us"},
		"no instance of eu runs": {func(_ *testing.T, _ *redistest.Server, ofEU, _ *regions.Instance) { ofEU.Close() },
			"no instance of region eu has exchanged for", "start an instance of region eu"},
		"no instance of us can write to its store": {func(t *testing.T, us *redistest.Server, _, _ *regions.Instance) { do(t, us, "CONFIG SET maxmemory 1") },
			"no instance of region us has exchanged for", "cannot write to its own store"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eu, clock := redistest.StartClocked(t)
			us, usClock := redistest.StartClocked(t)
			ofEU := startRegion(t, "eu", eu, map[string]*redistest.Server{"us": us})
			ofUS := startRegion(t, "us", us, map[string]*redistest.Server{"eu": eu})
			check := func() Check { return checkOfRegions(t, eu, us) }
			eventually.True(t, "contact", func() bool { return check().Status == OK })
			c.end(t, us, ofEU, ofUS)
			for _, c := range []*redistest.Clock{clock, usClock} {
				if err := c.Set(4 * time.Second); err != nil { // contact is lost after 3 s
					t.Fatal(err)
				}
			}
			eventually.NoError(t, func() error { // instances that run first see the new time
				found := check()
				if found.Status != Warning || !strings.Contains(found.Summary, "there has been no contact with region us for") || !strings.Contains(found.Summary, c.reason) || !strings.Contains(found.Remedy, c.fix) {
					return fmt.Errorf("the check is %+v; want a warning with %q, and the remedy %q", found, c.reason, c.fix)
				}
				return nil
			})
		})
	}
}

// An instance of us runs, and cannot reach the store of eu.
func TestOneWayContactOfRegionsIsFound(t *testing.T) {
	t.Parallel()
	eu, us := redistest.Start(t), redistest.Start(t)
	startRegion(t, "eu", eu, map[string]*redistest.Server{"us": us})
	startRegionWith(t, "us", us, map[string]string{"eu": "redis://127.0.0.1:1"})
	const reason = "there was never contact with region us: the instances of region us get no full answer from region eu"
	eventually.NoError(t, func() error {
		if found := checkOfRegions(t, eu, us); found.Status != Warning || found.Summary != reason || !strings.Contains(found.Remedy, "run penstock doctor there") {
			return fmt.Errorf("the check is %+v; want a warning: %s", found, reason)
		}
		return nil
	})
}

func TestLongDelayOfRegionsIsAReason(t *testing.T) {
	t.Parallel()
	d := &doctor{Options: Options{Region: "eu"}}
	for delay, want := range map[time.Duration]string{280 * time.Millisecond: "get no full answer", 300 * time.Millisecond: "a message takes 300ms, and may take 280ms at most"} {
		if reason, remedy := d.whyOutOfContact("us", regions.Look{Delay: delay}, regions.Look{}); !strings.Contains(reason, want) || remedy == "" {
			t.Errorf("with a delay of %v, the reason is %q, and the remedy %q; want %q", delay, reason, remedy, want)
		}
	}
}

// Each line about a region names it.
func TestReportNamesRegions(t *testing.T) {
	t.Parallel()
	eu, us := redistest.Start(t), redistest.Start(t)
	startRegion(t, "eu", eu, map[string]*redistest.Server{"us": us})
	startRegion(t, "us", us, map[string]*redistest.Server{"eu": eu})
	text := examined(t, eu.URL(), func(o *Options) {
		o.Region, o.Peers = "eu", map[string]string{"us": us.URL(), "ap": "redis://127.0.0.1:1", "sa": "redis://127.0.0.1:2"}
	}).text()
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "regions" && !strings.Contains(line, "region us") && !strings.Contains(line, "region ap") && !strings.Contains(line, "region sa") {
			t.Errorf("the line %q names no region", line)
		}
	}
	if n := strings.Count(text, " regions "); n != 3 {
		t.Errorf("the report has %d lines about regions; want 3:\n%s", n, text)
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
	if c := check(); c.Status != Warning || !strings.Contains(c.Summary, "the clock of region us differs by 1h0m") {
		t.Errorf("the check is %+v; want that the clocks differ by an hour", c)
	}
}
