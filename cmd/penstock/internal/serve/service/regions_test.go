package service

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A relay is the way of one region to a server of another. Each message takes a delay. While the
// relay is cut, nothing arrives, and no connection ends.
type relay struct {
	listener net.Listener
	server   *redistest.Server
	delay    time.Duration
	running  sync.WaitGroup

	mu    sync.Mutex
	cut   chan struct{} // nil: not cut; closed when it is healed
	conns []net.Conn
}

func startRelay(t *testing.T, server *redistest.Server, delay time.Duration) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, server: server, delay: delay}
	r.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", r.server.Socket)
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, client, server)
			r.mu.Unlock()
			r.running.Go(func() { r.forward(server, client) })
			r.running.Go(func() { r.forward(client, server) })
		}
	})
	t.Cleanup(func() {
		r.setCut(false)
		l.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
		r.running.Wait()
	})
	return r
}

func (r *relay) url() string { return "redis://" + r.listener.Addr().String() }

func (r *relay) setCut(isCut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isCut {
		r.cut = make(chan struct{})
	} else if r.cut != nil {
		close(r.cut)
		r.cut = nil
	}
}

// forward forwards what one connection sends to the other.
func (r *relay) forward(to, from net.Conn) {
	type message struct {
		at   time.Time
		text []byte
	}
	queue := make(chan message, 10_000)
	r.running.Go(func() {
		defer to.Close()
		for m := range queue {
			time.Sleep(time.Until(m.at.Add(r.delay)))
			r.mu.Lock()
			cut := r.cut
			r.mu.Unlock()
			if cut != nil {
				<-cut
			}
			to.Write(m.text)
		}
	})
	defer close(queue)
	for {
		b := make([]byte, 64<<10)
		n, err := from.Read(b)
		if n > 0 {
			queue <- message{time.Now(), b[:n]}
		}
		if err != nil {
			return
		}
	}
}

// A regionTest has three regions, each with a Redis of its own and a service.
type regionTest struct {
	*testing.T
	policy   string
	servers  map[string]*redistest.Server
	relays   map[string]map[string]*relay // by the region that asks, and the one that is asked
	services map[string]*testService
	reader   map[string]*redisstore.Store
	leader   []*relay // the links of an instance of eu, which leads
}

var regionNames = []string{"ap", "eu", "us"}

const regionToken = "of-operators-of-regions"

// flags returns the settings of a service of a region.
func (r *regionTest) flags(region string) map[string]string {
	var peers []string
	for name, relay := range r.relays[region] {
		peers = append(peers, name+"="+relay.url())
	}
	return limitedBy(r.T, r.policy, map[string]string{
		"store": r.servers[region].URL(), "region": region, "region-peers": strings.Join(peers, ","), "region-interval": "500ms", "region-delay": "80ms", "operator-token": regionToken,
	})
}

func startRegions(t *testing.T, policy string) *regionTest {
	t.Cleanup(func() { awaitNoGoroutines(t) })
	r := &regionTest{T: t, policy: policy, servers: make(map[string]*redistest.Server), relays: make(map[string]map[string]*relay), services: make(map[string]*testService), reader: make(map[string]*redisstore.Store)}
	for _, name := range regionNames {
		r.servers[name], r.relays[name] = redistest.Start(t), make(map[string]*relay)
		store, err := redisstore.Open(r.servers[name].URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		r.reader[name] = store
	}
	for _, name := range regionNames {
		for _, other := range regionNames {
			if other != name {
				r.relays[name][other] = startRelay(t, r.servers[other], 80*time.Millisecond)
			}
		}
	}
	// The first instance of eu leads its exchange, and gets no requests. It has links of its own.
	own := startRelay(t, r.servers["eu"], 0)
	r.leader = []*relay{own}
	flags, peers := r.flags("eu"), []string(nil)
	for _, name := range []string{"ap", "us"} {
		link := startRelay(t, r.servers[name], 80*time.Millisecond)
		r.leader, peers = append(r.leader, link), append(peers, name+"="+link.url())
	}
	flags["store"], flags["region-peers"] = own.url(), strings.Join(peers, ",")
	startWithoutLeakCheck(t, nil, flags)
	for _, name := range regionNames {
		r.services[name] = startWithoutLeakCheck(t, nil, r.flags(name))
	}
	return r
}

// setCut cuts a region off from all others, or heals the links.
func (r *regionTest) setCut(region string, isCut bool) {
	for from, relays := range r.relays {
		for to, relay := range relays {
			if from == region || to == region {
				relay.setCut(isCut)
			}
		}
	}
	for _, relay := range r.leader[1:] {
		if relay.server == r.servers[region] {
			relay.setCut(isCut)
		}
	}
}

// awaitContact waits until all regions are in contact, or until one of them is not.
func (r *regionTest) awaitContact(region string, isWanted bool) {
	r.Helper()
	for _, name := range regionNames {
		for _, other := range regionNames {
			isOfRegion := name == region || other == region || region == ""
			if name == other || !isOfRegion {
				continue
			}
			want := "0"
			if isWanted {
				want = "1"
			}
			eventually.True(r.T, name+" is in contact with "+other+": "+want, func() bool {
				return r.services[name].metric(fmt.Sprintf("rate_limiter_region_in_contact{region=%q}", other)) == want
			})
		}
	}
}

// A sentRequest is a request that was admitted.
type sentRequest struct{ sent, answered time.Time }

// load sends requests to a region, about 40 a second, until stop is closed. It returns those that
// were admitted.
func (r *regionTest) load(region string, stop <-chan struct{}) (admitted []sentRequest) {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return admitted
		case <-tick.C:
		}
		one := sentRequest{sent: time.Now()}
		res, err := send("GET", "http://"+r.services[region].Listen+"/", "X-Key: a")
		if err != nil {
			r.Error(err)
			return admitted
		}
		if one.answered = time.Now(); res.StatusCode == 200 {
			admitted = append(admitted, one)
		}
	}
}

// left returns how many units of the limit total are left in a region.
func (r *regionTest) left(region string, total *penstock.Plan) int64 {
	r.Helper()
	d, err := r.reader[region].Decide(r.Context(), []penstock.Charge{{Key: "key:a", Plan: total, Mode: penstock.Peek}})
	if err != nil {
		r.Fatal(err)
	}
	return d.Remaining()
}

// TestThreeRegions has three regions, 80 ms apart, with three times the load of one limit. One is
// cut off and comes back, the leader of one dies, and one loses its data.
func TestThreeRegions(t *testing.T) {
	r := startRegions(t, `
rules:
  - name: all
    per: {key: header X-Key}
    limits:
      - {rate: "40/s, burst 40", across: exchange}
      - {name: total, rate: "1000/30day, burst 100k", across: exchange}
  - name: quota
    match: {path: /quota}
    per: global
    limits: [{rate: 30/30day, algorithm: fixed-window, across: share}]
`)
	limit, err := penstock.ParseRate("1000/30day, burst 100000")
	if err != nil {
		t.Fatal(err)
	}
	limit = limit.With(algorithm.Across(penstock.TokenBucket))
	limit.Name, limit.Group = "total", "all"
	total := limit.MustCompile()
	if explained := r.services["eu"].mustGet("http://"+r.services["eu"].Admin+"/api/v1/rules", 200); !strings.Contains(explained, "units more than the limit in 3 regions together") {
		t.Errorf("the admin API does not print the bound of all regions: %s", explained)
	}
	r.awaitContact("", true)
	eventually.NoError(t, func() error { // no counter has changed yet, so each answer is one message there and one back
		look, err := regions.LookAt(t.Context(), r.reader["us"])
		if err == nil && look.Delay < 79*time.Millisecond {
			err = fmt.Errorf("the measured delay of a message is %v; want at least 80 ms, that of the links", look.Delay)
		}
		return err
	})

	stop := make(chan struct{})
	var loads sync.WaitGroup
	admitted := make([][]sentRequest, len(regionNames))
	begin := time.Now()
	for i, name := range regionNames {
		loads.Go(func() { admitted[i] = r.load(name, stop) })
	}
	time.Sleep(3 * time.Second)
	r.setCut("us", true)
	r.awaitContact("us", false)
	if state := getAdmin[adminapi.State](r.services["eu"], "state"); len(state.Regions) != 2 || state.Regions[1].Name != "us" || state.Regions[1].IsInContact || !state.Regions[0].IsInContact || state.Regions[1].LagMS <= state.Regions[0].LagMS {
		t.Errorf("during the cut, the admin API reports the regions %+v; want ap in contact, and us without contact for longer", state.Regions)
	}
	if ready := r.services["eu"].mustGet("http://"+r.services["eu"].Admin+"/readyz?verbose", 200); !strings.Contains(ready, "regions no contact with us: each region has its share of the limits\n") {
		t.Errorf("during the cut, /readyz?verbose is %q; want that there is no contact with us", ready)
	}
	for _, path := range []string{"key?key=key:a", "explain?url=/&header=X-Key:new"} {
		request, err := http.NewRequest("GET", "http://"+r.services["eu"].Admin+"/api/v1/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+regionToken)
		res, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if text := string(body); err != nil || !strings.Contains(text, `"rate":"40 per 1s`) || !strings.Contains(text, `"share":"80 per 3s, burst 27"`) {
			t.Errorf("during the cut, %s does not have the limit and its share: %s", path, text)
		}
	}
	if page := r.services["eu"].mustGet("http://"+r.services["eu"].Admin+"/health", 200); !strings.Contains(page, "no contact: each region has its share") {
		t.Errorf("during the cut, the page Health does not say so: %s", page)
	}
	time.Sleep(3 * time.Second)
	r.setCut("us", false)
	r.awaitContact("us", true)
	eventually.NoError(t, func() error {
		var kinds []string
		for _, e := range getAdmin[adminapi.Timeline](r.services["eu"], "timeline").Events {
			kinds = append(kinds, e.Kind)
		}
		if !slices.Contains(kinds, string(activity.RegionFails)) || !slices.Contains(kinds, string(activity.RegionWorks)) {
			return fmt.Errorf("after the cut, the timeline has the events %q; want that a region failed, and works again", kinds)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	close(stop)
	loads.Wait()
	length := time.Since(begin)

	// All that is sent and answered within an interval was admitted within it.
	second := penstock.Per(40, time.Second).With(algorithm.Across(penstock.TokenBucket)).MustCompile()
	over, text := regions.Setup{Count: 3, Every: 500 * time.Millisecond, Delay: 80 * time.Millisecond}.Bound(second)
	all := int64(0)
	for from := time.Duration(0); from < length; from += 500 * time.Millisecond {
		for _, interval := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, length} {
			n := int64(0)
			for _, requests := range admitted {
				for _, q := range requests {
					if !q.sent.Before(begin.Add(from)) && !q.answered.After(begin.Add(from+interval)) {
						n++
					}
				}
			}
			if bound := regions.Within(second, interval) + over; n > bound {
				t.Errorf("from %v, %d requests were admitted within %v; the bound is %d: %s", from, n, interval, bound, text)
			}
			all = max(all, n)
		}
	}
	for i, name := range regionNames {
		t.Logf("%s admitted %d", name, len(admitted[i]))
		if least := all / int64(2*len(regionNames)); int64(len(admitted[i])) < least {
			t.Errorf("%s admitted %d of %d requests; want at least %d, half of an equal part", name, len(admitted[i]), all, least)
		}
	}
	t.Logf("counted: %d requests admitted in three regions within %v", all, length)
	conserved := func(when string, used int64) {
		t.Helper()
		for _, name := range regionNames {
			eventually.NoError(t, func() error {
				if got := 100_000 - r.left(name, total); got != used {
					return fmt.Errorf("%s: %s knows of %d units; want %d", when, name, got, used)
				}
				return nil
			})
		}
	}
	conserved("after healing", all)

	// The leader of eu dies, as far as others see. Another instance leads.
	for _, relay := range r.leader {
		relay.setCut(true)
	}
	r.mustAdmit("us")
	r.mustAdmit("eu")
	conserved("after the leader has died", all+2)
	r.awaitContact("eu", true)

	r.testQuota()

	if _, err := r.servers["us"].Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	r.awaitContact("us", true)
	r.mustAdmit("ap")
	r.mustAdmit("eu")
	ofUS := int64(len(admitted[2])) + 1
	eventually.NoError(t, func() error {
		if got := 100_000 - r.left("us", total); got != all+4-ofUS {
			return fmt.Errorf("after us has lost its data, it knows of %d units; want %d, those of the others", got, all+4-ofUS)
		}
		return nil
	})
	r.mustAdmit("us")
	for _, name := range []string{"ap", "eu"} {
		eventually.NoError(t, func() error {
			if got := 100_000 - r.left(name, total); got != all+5 {
				return fmt.Errorf("after us has lost its data, %s knows of %d units; want %d", name, got, all+5)
			}
			return nil
		})
	}
}

// testQuota uses up a limit that regions share. One region needs all of it, and borrows what the
// others do not need. Then the others have what they never lend, and together they admit the limit.
func (r *regionTest) testQuota() {
	r.Helper()
	admitted := make(map[string]int)
	send := func(region string) {
		if r.services[region].mustSend("GET", "/quota").StatusCode == 200 {
			admitted[region]++
		}
	}
	eventually.True(r.T, "eu has borrowed what the others can lend", func() bool {
		send("eu")
		return admitted["eu"] >= 28
	})
	for _, name := range regionNames {
		for range 20 {
			send(name)
		}
	}
	if want := map[string]int{"eu": 28, "ap": 1, "us": 1}; !maps.Equal(admitted, want) {
		r.Errorf("of a limit of 30 units, the regions admit %v; want %v", admitted, want)
	}
}

// mustAdmit sends a request to a region until it is admitted.
func (r *regionTest) mustAdmit(region string) {
	r.Helper()
	eventually.True(r.T, region+" admits a request", func() bool { return r.services[region].mustSend("GET", "/", "X-Key: a").StatusCode == 200 })
}

// Without a region, a limit across regions would be enforced once in each.
func TestLimitsAcrossRegionsNeedARegion(t *testing.T) {
	const policy = "rules: [{name: all, per: global, limits: [{rate: 2/day, across: exchange}]}]\n"
	flags := limitedBy(t, policy, nil)
	if err := Run(t.Context(), options(t, nil, flags)); err == nil || !strings.Contains(err.Error(), "this instance belongs to no region") {
		t.Errorf("the service ends with %v; want that it needs a region", err)
	}
	flags = limitedBy(t, policy, map[string]string{"region": "eu"})
	r := start(t, nil, flags)
	for i, want := range []int{200, 200, 429} {
		if got := r.mustSend("GET", "/").StatusCode; got != want {
			t.Errorf("request %d gets %d; want %d, because a region alone has the whole limit", i+1, got, want)
		}
	}
}
