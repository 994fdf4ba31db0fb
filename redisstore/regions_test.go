package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/testing/eventually"
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
		share := 0
		if a == penstock.TokenBucket { // half of the limit, of which 30 are used
			share = 20
		}
		if n := spend("eu", p, key, 1000); n != share {
			t.Errorf("%s: %d units are granted beyond the limit; want %d, out of the own share", a.Title(), n, share)
		}
	}
}

// A mortalStore is the store of an instance that may die: then none of its calls is answered. The
// replies of some calls may be lost.
type mortalStore struct {
	*redisstore.Store
	isDead  atomic.Bool
	isLossy bool
	calls   atomic.Int64
}

func (s *mortalStore) Eval(ctx context.Context, script string, names []string, args ...string) (string, error) {
	if s.isDead.Load() {
		<-ctx.Done()
		return "", ctx.Err()
	}
	reply, err := s.Store.Eval(ctx, script, names, args...)
	if s.isLossy && s.calls.Add(1)%3 == 0 {
		return "", penstock.NewStoreError(penstock.ReasonUnknown, errors.New("the reply is lost"))
	}
	return reply, err
}

// A regionInstance is an instance of a region.
type regionInstance struct {
	*regions.Instance
	own   *mortalStore            // the store of the region
	store penstock.Store          // decides charges: own, and the Instance around it
	peers map[string]*mortalStore // the stores of the other regions, by region

	failed atomic.Pointer[string] // why the last exchange failed
}

// regionEvery is how often the regions of these tests exchange.
const regionEvery = 200 * time.Millisecond

// startInstance starts an instance of the region self. servers are those of all regions.
func startInstance(t *testing.T, self string, servers map[string]string, plans ...*penstock.Plan) *regionInstance {
	t.Helper()
	i := newRegionInstance(t, regions.Options{Self: self}, servers, regionSecret)
	i.Use(plans)
	i.Start()
	return i
}

const regionSecret = "of all regions"

func newRegionInstance(t *testing.T, o regions.Options, servers map[string]string, secret string) *regionInstance {
	t.Helper()
	open := func(url string) *mortalStore {
		store, err := redisstore.Open(url, redisstore.Options{Secret: []byte(secret)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return &mortalStore{Store: store}
	}
	i := &regionInstance{own: open(servers[o.Self]), peers: make(map[string]*mortalStore)}
	peers := make(map[string]regions.Server)
	for name, server := range servers {
		if name != o.Self {
			i.peers[name] = open(server)
			peers[name] = i.peers[name]
		}
	}
	o.Every = regionEvery
	o.Exchanged = func(region string, err error) {
		if err != nil {
			text := region + ": " + err.Error()
			i.failed.Store(&text)
		}
	}
	var err error
	if i.Instance, err = regions.NewInstance(o, i.own, peers, []byte(secret)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	i.store = i.Around(i.own.Store)
	return i
}

// left returns how many units are left of a limit at an instance.
func (i *regionInstance) left(t *testing.T, p *penstock.Plan, key string) int64 {
	t.Helper()
	d, err := i.store.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Mode: penstock.Peek}})
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining()
}

func (i *regionInstance) spend(t *testing.T, p *penstock.Plan, key string, units int64) {
	t.Helper()
	if d, err := i.store.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: p, Cost: units}}); err != nil || !d.Allowed {
		t.Fatalf("%d units are not granted: %+v, %v", units, d, err)
	}
}

// awaitLeft waits until as many units are left.
func (i *regionInstance) awaitLeft(t *testing.T, p *penstock.Plan, key string, want int64) {
	t.Helper()
	eventually.NoError(t, func() error {
		if got := i.left(t, p, key); got != want {
			return fmt.Errorf("%d units of %s are left; want %d; %+v", got, key, want, i.Statuses())
		}
		return nil
	})
}

// Instances of two regions keep what they know in Redis. So all instances of a region decide alike,
// another instance leads if the leader dies, and a region without its data learns from the other.
func TestInstancesOfRegionsOnRedis(t *testing.T) {
	eu, wiped := redistest.Start(t), redistest.Start(t)
	servers := map[string]string{"eu": eu.URL(), "us": wiped.URL()}
	limit, err := penstock.ParseRate("100/30day")
	if err != nil {
		t.Fatal(err)
	}
	p := limit.With(algorithm.Across(penstock.TokenBucket)).MustCompile()
	small := limit.With(algorithm.Across(penstock.TokenBucket))
	small.Count, small.Burst = 40, 40 // the limit of another tier
	tier := small.MustCompile()
	eu1 := startInstance(t, "eu", servers, p, tier)
	eu1.awaitLeft(t, p, "new", 50) // the share, while no other region has an instance
	eu2, us := startInstance(t, "eu", servers, p, tier), startInstance(t, "us", servers, p, tier)
	for _, i := range []*regionInstance{eu1, eu2, us} {
		i.awaitLeft(t, p, "new", 100)
	}
	eu1.spend(t, p, "k", 30)
	eu2.spend(t, tier, "of a tier", 4)
	us.awaitLeft(t, p, "k", 70)
	us.awaitLeft(t, tier, "of a tier", 36)
	us.spend(t, p, "k", 20)
	eu2.awaitLeft(t, p, "k", 50)

	eu1.own.isDead.Store(true)
	eu2.spend(t, p, "k", 10)
	us.awaitLeft(t, p, "k", 40)
	us.spend(t, p, "k", 5)
	eu2.awaitLeft(t, p, "k", 35)

	if _, err := wiped.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	eu2.awaitLeft(t, p, "new", 100) // in contact again
	eu2.spend(t, p, "k", 1)
	us.awaitLeft(t, p, "k", 100-30-10-1)
	us.spend(t, p, "k", 7)
	eu2.awaitLeft(t, p, "k", 35-1-7)
	keys, err := eu.Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys.([]any) {
		if ttl, err := eu.Do("PTTL", fmt.Sprint(key)); err != nil || ttl.(int64) <= 0 {
			t.Errorf("key %v lives for %v, %v; want a TTL", key, ttl, err)
		}
	}
}

// Replies that are lost, and answers that have not all counters, delay what others know, and change
// nothing else.
func TestRegionsWithLostRepliesAndSmallAnswers(t *testing.T) {
	servers := map[string]string{"eu": redistest.Start(t).URL(), "us": redistest.Start(t).URL()}
	p := penstock.Per(1000, 30*24*time.Hour).With(algorithm.Across(penstock.TokenBucket)).MustCompile()
	all := make(map[string]*regionInstance)
	for name := range servers {
		i := newRegionInstance(t, regions.Options{Self: name, MaxTotals: 7, Silence: time.Minute}, servers, regionSecret)
		i.own.isLossy = true
		for _, peer := range i.peers {
			peer.isLossy = true
		}
		i.Use([]*penstock.Plan{p})
		i.Start()
		all[name] = i
	}
	for _, i := range all {
		i.awaitLeft(t, p, "new", 1000)
	}
	const keys = 40
	for round := range 3 {
		for n := range keys {
			all["eu"].spend(t, p, fmt.Sprint(n), int64(n+1))
			all["us"].spend(t, p, fmt.Sprint(n), 1)
		}
		used := func(n int) int64 { return int64(n+2) * int64(round+1) }
		for n := range keys {
			for _, i := range all {
				i.awaitLeft(t, p, fmt.Sprint(n), 1000-used(n))
			}
		}
	}
}

// An instance that does not lead records no answer. So a leader that was deposed cannot.
func TestOnlyTheLeaderRecordsAnswers(t *testing.T) {
	servers := map[string]string{"eu": redistest.Start(t).URL(), "us": redistest.Start(t).URL()}
	eu1 := startInstance(t, "eu", servers)
	us := startInstance(t, "us", servers)
	eventually.True(t, "eu and us are in contact", func() bool { return eu1.Statuses()[0].IsInContact && us.Statuses()[0].IsInContact })
	eu2 := newRegionInstance(t, regions.Options{Self: "eu"}, servers, regionSecret)
	if err := eu2.Merge(t.Context(), "us", time.Now(), regions.Answer{Number: 1, IsFull: true}); err == nil {
		t.Error("an answer is recorded without an election; want an error")
	}
	eu1.Close()
	if err := eu2.Merge(t.Context(), "us", time.Now(), regions.Answer{Number: 2, IsFull: true}); err == nil {
		t.Error("an answer from before the election is recorded; want an error")
	}
	if n := eu2.Ask("us").Merged; n <= 2 {
		t.Errorf("the last answer has the number %d; want that of the leader", n)
	}
}

// Servers and secrets that are mixed up are named, and no region is in contact.
func TestMixedUpRegionsAreNamed(t *testing.T) {
	eu, us := redistest.Start(t).URL(), redistest.Start(t).URL()
	startInstance(t, "eu", map[string]string{"eu": eu, "us": us})
	startInstance(t, "us", map[string]string{"eu": eu, "us": us})
	for name, c := range map[string]struct {
		self    string
		servers map[string]string
		secret  string
		want    string
	}{
		"the store of another region": {"ap", map[string]string{"ap": eu, "us": us}, regionSecret, `the store belongs to region "eu"`},
		"a peer's store":              {"ap", map[string]string{"ap": redistest.Start(t).URL(), "us": eu}, regionSecret, `the store of region us belongs to region "eu"`},
		"not known there":             {"ap", map[string]string{"ap": redistest.Start(t).URL(), "us": us}, regionSecret, "region us does not know region ap"},
		"no instance there":           {"ap", map[string]string{"ap": redistest.Start(t).URL(), "us": redistest.Start(t).URL()}, regionSecret, "no instance of region us has used its store yet"},
		"another secret there":        {"ap", map[string]string{"ap": redistest.Start(t).URL(), "us": us}, "another", "region us has another key-hash-secret"},
		"another secret here":         {"eu", map[string]string{"eu": eu, "us": us}, "another", "other instances of region eu have another key-hash-secret"},
	} {
		i := newRegionInstance(t, regions.Options{Self: c.self}, c.servers, c.secret)
		i.Start()
		eventually.NoError(t, func() error {
			if text := i.failed.Load(); text == nil || !strings.Contains(*text, c.want) {
				return fmt.Errorf("%s: the exchange fails with %v; want %q", name, text, c.want)
			}
			return nil
		})
		if s := i.Statuses(); s[0].IsInContact {
			t.Errorf("%s: the region is in contact: %+v", name, s)
		}
		i.Close()
	}
}

// Another name or secret replaces those of instances that have all stopped a minute ago. A damaged
// site is made anew.
func TestSiteIsReplacedIfItsInstancesHaveStopped(t *testing.T) {
	server, clock := redistest.StartClocked(t)
	us := redistest.Start(t)
	servers := map[string]string{"eu": server.URL(), "us": us.URL()}
	old := newRegionInstance(t, regions.Options{Self: "eu"}, servers, regionSecret)
	old.Start()
	site := func(region, secret string) error {
		look, err := regions.LookAt(t.Context(), old.own)
		if err == nil && (look.Region != region || look.Mark != regions.MarkOf([]byte(secret))) {
			err = fmt.Errorf("the store belongs to region %q with the mark %q; want %q with the secret %q", look.Region, look.Mark, region, secret)
		}
		return err
	}
	eventually.NoError(t, func() error { return site("eu", regionSecret) })
	old.Instance.Close()
	if err := clock.Set(59 * time.Second); err != nil {
		t.Fatal(err)
	}
	next := newRegionInstance(t, regions.Options{Self: "eu"}, servers, "another")
	next.Start()
	eventually.True(t, "the new secret to be refused", func() bool { return next.failed.Load() != nil })
	if err := clock.Set(62 * time.Second); err != nil {
		t.Fatal(err)
	}
	eventually.NoError(t, func() error { return site("eu", "another") })
	next.Instance.Close()
	if err := clock.Set(125 * time.Second); err != nil {
		t.Fatal(err)
	}
	renamed := newRegionInstance(t, regions.Options{Self: "eu2"}, map[string]string{"eu2": server.URL(), "us": us.URL()}, "another")
	renamed.Start()
	eventually.NoError(t, func() error { return site("eu2", "another") })
	if _, err := server.Do("SET", "ps1{%@}regions", "no site"); err != nil {
		t.Fatal(err)
	}
	eventually.NoError(t, func() error { return site("eu2", "another") })
}

// A region's site answers with the busiest counters first, until the other region has merged all.
func TestSitesAnswerWithAllThatChanged(t *testing.T) {
	server := redistest.Start(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	names := []string{"regions", "regions.us.0", "regions.us.1"}
	eval := func(script string, args ...string) []string {
		t.Helper()
		reply, err := store.Eval(t.Context(), script, names, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(reply, "\n")
	}
	most := 100
	note := func(counters ...string) []string {
		t.Helper()
		args := []string{"eu", "instance", "", "1000000", "0", "60000000", fmt.Sprint(most), "", "0", "0", "0", "0", "0", "0", "0", "1", "us"}
		return eval(regions.Scripts[0], append(args, counters...)...)
	}
	ask := func(fence, merged string) (number, answer string) {
		t.Helper()
		lines := eval(regions.Scripts[1], "eu", "us", "", fence, merged, "-1", "2", "100", "3600000000", "0")
		number, full, _ := strings.Cut(lines[0], " ")
		full, _, _ = strings.Cut(full, " ")
		var counters []string
		for i := 1; i < len(lines)-1; i++ {
			counters = append(counters, lines[i+1][:1])
		}
		slices.Sort(counters)
		return number, strings.TrimSpace(full + " " + strings.Join(counters, ""))
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("the answer is %q; want %q", got, want)
		}
	}
	note("2", "a", "5", "b", "3", "c", "4", "d")
	note("1", "e", "1", "a")
	first, answer := ask("5", "0")
	expect(answer, "0 bd")
	second, answer := ask("5", "7") // the first was lost
	expect(answer, "0 bd")
	if second == first {
		t.Errorf("two answers have the number %s", first)
	}
	note("1", "b")
	third, answer := ask("5", second)
	expect(answer, "0 ac")
	fourth, answer := ask("5", third)
	expect(answer, "1 be")
	if number, answer := ask("4", fourth); number != "fence" || answer != "5" {
		t.Errorf("an older leader gets %q, %q; want that there is a fence of 5", number, answer)
	}
	last, answer := ask("6", fourth)
	expect(answer, "1")
	most = 2
	if lines := note("1", "a", "1", "b"); !strings.HasSuffix(lines[1], " -1") {
		t.Errorf("the site is %q; want that no counter was dropped", lines)
	}
	if lines := note("9", "b", "1", "c"); strings.HasSuffix(lines[1], " -1") {
		t.Errorf("the site is %q; want that a counter was dropped", lines)
	}
	_, answer = ask("6", last)
	expect(answer, "2 ab")
	for _, key := range names {
		if ttl, err := server.Do("PTTL", "ps1{%@}"+key); err != nil || ttl.(int64) == -1 || ttl.(int64) > 86_400_000 {
			t.Errorf("key %s lives for %v, %v; want at most a day", key, ttl, err)
		}
	}
}

// A region on a Cluster exchanges with one on a single server.
func TestRegionsOnAClusterAndAServer(t *testing.T) {
	cluster := redistest.StartCluster(t)
	servers := map[string]string{"eu": "redis://" + strings.Join(cluster.Addrs()[:1], ","), "us": redistest.Start(t).URL()}
	p := penstock.Per(100, 30*24*time.Hour).With(algorithm.Across(penstock.TokenBucket)).MustCompile()
	eu, us := startInstance(t, "eu", servers, p), startInstance(t, "us", servers, p)
	eu.awaitLeft(t, p, "new", 100)
	us.awaitLeft(t, p, "new", 100)
	for n := range 20 {
		eu.spend(t, p, fmt.Sprint(n), 3)
		us.spend(t, p, fmt.Sprint(n), 4)
	}
	for n := range 20 {
		eu.awaitLeft(t, p, fmt.Sprint(n), 93)
		us.awaitLeft(t, p, fmt.Sprint(n), 93)
	}
}

// A state with one number fewer, as an earlier version wrote it, is corrupt or is decided. A Reset
// makes it usable.
func TestStatesWithoutAnOwnShareAreRefused(t *testing.T) {
	server := redistest.Start(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const merge = algorithm.Attempt + 2 // see algorithm/across.go
	corrupt := 0
	for i, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.FixedWindow, penstock.SubWindow(3)} {
		p := penstock.Per(1000, 30*24*time.Hour).With(algorithm.Across(a)).MustCompile()
		for charges := 1; charges < 6; charges++ {
			if _, err := server.Do("FLUSHALL"); err != nil {
				t.Fatal(err)
			}
			decide := func(c penstock.Charge) (penstock.Decision, error) {
				c.Key, c.Plan = "k", p
				return store.Decide(t.Context(), []penstock.Charge{c})
			}
			if _, err := decide(penstock.Charge{Mode: merge, Holder: "us", Cost: 5, Receipt: 1, Patience: 20 * 24 * time.Hour}); err != nil {
				t.Fatal(err)
			}
			for range charges { // each adds a mark to a bucket
				if _, err := decide(penstock.Charge{Cost: 3, IsRefundable: true}); err != nil {
					t.Fatal(err)
				}
			}
			found, err := server.Do("KEYS", "*")
			keys, ok := found.([]any)
			if err != nil || !ok || len(keys) != 1 {
				t.Fatalf("the keys are %v, %v; want one", found, err)
			}
			key := fmt.Sprint(keys[0])
			value, err := server.Do("GET", key)
			if err != nil {
				t.Fatal(err)
			}
			state := []byte(fmt.Sprint(value))
			const share = 4 + 4 + 7 + 7 + 6 + 7 + 7 // after the expiry, the word, and five numbers
			state = slices.Delete(state, share, share+7)
			state[4]-- // how many numbers there are
			if _, err := server.Do("SET", key, string(state)); err != nil {
				t.Fatal(err)
			}
			_, err = decide(penstock.Charge{Cost: 1})
			if failed := penstock.AsStoreError(err); err != nil && (failed == nil || failed.Reason != penstock.ReasonCorrupt) {
				t.Errorf("%s, %d charges: %v; want a decision, or a corrupt state", a.Title(), charges, err)
			} else if err != nil {
				corrupt++
			}
			if _, err := decide(penstock.Charge{Mode: penstock.Reset}); err != nil {
				t.Errorf("%s, %d charges: Reset: %v", a.Title(), charges, err)
			}
			if d, err := decide(penstock.Charge{Cost: 1}); err != nil || !d.Allowed {
				t.Errorf("%s, %d charges: after a Reset: %+v, %v; want a unit granted", a.Title(), charges, d, err)
			}
		}
		if i == 0 && corrupt != 5 {
			t.Errorf("%d of 5 states of a bucket are corrupt; want all", corrupt)
		}
	}
}

// While the server of a region hangs, the other region decides with its share. Afterwards both know
// of all that was granted.
func TestServerOfARegionHangs(t *testing.T) {
	hung := redistest.Start(t)
	servers := map[string]string{"eu": redistest.Start(t).URL(), "us": hung.URL()}
	p := penstock.Per(100, 30*24*time.Hour).With(algorithm.Across(penstock.TokenBucket)).MustCompile()
	eu, us := startInstance(t, "eu", servers, p), startInstance(t, "us", servers, p)
	eu.awaitLeft(t, p, "new", 100)
	us.awaitLeft(t, p, "new", 100)
	us.spend(t, p, "k", 10)
	eu.awaitLeft(t, p, "k", 90)
	enforced := func(want int64) {
		t.Helper()
		look, err := regions.LookAt(t.Context(), eu.own)
		if got := look.Enforced(p, regionEvery); err != nil || got.Capacity() != want {
			t.Errorf("the region's Redis shows that %v is enforced, %v; want %d units", got, err, want)
		}
	}
	enforced(100)
	hung.Pause()
	defer hung.Resume()
	eu.awaitLeft(t, p, "new", 50)
	enforced(50)
	eu.spend(t, p, "k", 20)
	hung.Resume()
	us.awaitLeft(t, p, "k", 70)
	eu.awaitLeft(t, p, "k", 70)
	us.spend(t, p, "k", 70)
	eu.awaitLeft(t, p, "k", 10) // its own share is 50; it has used 20 of the 25 that it had meanwhile
}
