package main

import (
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/internal/testing/effort"
)

// firstSecond is where clocks of tests begin: 15 January 2027.
const firstSecond = 1_800_000_000

// A steppedClock is a manualClock without services.
type steppedClock struct{ second int64 }

func (c *steppedClock) now() int64 { return c.second }

func (c *steppedClock) advance(r *rand.Rand) error {
	c.second = nextSecond(r, c.second)
	return nil
}

// A fake is a responder that responds like its model, with or without a defect.
type fake struct {
	*model
	clock  clock
	defect defect
}

// A defect is a wrong behavior of a fake. Its functions change what the model reads or returns; nil
// changes nothing.
type defect struct {
	domain   func(*domain)
	request  func(*rls.RateLimitRequest)
	response func(*rls.RateLimitResponse)
}

func (f fake) respond(request *rls.RateLimitRequest) answer {
	request = proto.CloneOf(request)
	if f.defect.request != nil {
		f.defect.request(request)
	}
	response := f.decide(request, f.clock.now())
	if f.defect.response != nil {
		f.defect.response(response)
	}
	return answer{response: response}
}

// knownSeed is the seed of tests that want something to be found. With a random seed, they would
// fail by chance. The seed decides everything in them.
const knownSeed = 1

// compareFakes compares a fake without a defect with one that has this defect.
func compareFakes(t *testing.T, seed uint64, requests int, d defect) *comparison {
	t.Helper()
	clock := &steppedClock{second: firstSecond}
	c := &comparison{seed: seed, onlyDomain: -1, out: io.Discard, clock: clock}
	c.start = func(conf *startConfig) (responder, responder, func(), error) {
		var wrongDomains []*domain
		for _, domain := range conf.domains {
			wrong := domain.clone()
			if d.domain != nil {
				d.domain(wrong)
			}
			wrongDomains = append(wrongDomains, wrong)
		}
		left := fake{newModel(rules{}, conf.settings, conf.domains...), clock, defect{}}
		right := fake{newModel(rules{}, conf.settings, wrongDomains...), clock, d}
		return left, right, func() {}, nil
	}
	if err := c.run(requests); err != nil {
		t.Fatal(err)
	}
	return c
}

func (d *domain) clone() *domain { return &domain{d.name, cloneNodes(d.nodes)} }

func cloneNodes(nodes []*node) (cloned []*node) {
	for _, n := range nodes {
		other := *n
		if n.limit != nil {
			l := *n.limit
			other.limit = &l
		}
		other.nodes = cloneNodes(n.nodes)
		cloned = append(cloned, &other)
	}
	return cloned
}

func TestEqualServicesHaveNoMismatch(t *testing.T) {
	t.Parallel()
	c := compareFakes(t, effort.Seed(), 2_000, defect{})
	if c.mismatches > 0 || c.tally.counts["equal in every field"] != c.tally.counts["compared"] || c.tally.counts["compared"] < 2_000 {
		t.Errorf("PENSTOCK_SEED=%d: %d mismatches; want none, and every exchange equal in every field:\n%v", c.seed, c.mismatches, &c.tally)
	}
}

func TestRequestsAreOfEveryKind(t *testing.T) {
	t.Parallel()
	if missing := compareFakes(t, knownSeed, 12_000, defect{}).missingKinds(); len(missing) > 0 {
		t.Errorf("no request was of the kinds %v; want one of each", missing)
	}
}

// everyNode returns a function that changes every node of a domain.
func everyNode(change func(*node)) func(*domain) {
	var walk func([]*node)
	walk = func(nodes []*node) {
		for _, n := range nodes {
			change(n)
			walk(n.nodes)
		}
	}
	return func(d *domain) { walk(d.nodes) }
}

// everyLimit returns a function that changes every limit of a domain.
func everyLimit(change func(*limit)) func(*domain) {
	return everyNode(func(n *node) {
		if n.limit != nil {
			change(n.limit)
		}
	})
}

// everyStatus returns a function that changes every status of a response.
func everyStatus(change func(*rls.RateLimitResponse_DescriptorStatus)) func(*rls.RateLimitResponse) {
	return func(response *rls.RateLimitResponse) {
		for _, status := range response.Statuses {
			change(status)
		}
	}
}

func TestDefectsAreFound(t *testing.T) {
	t.Parallel()
	type status = rls.RateLimitResponse_DescriptorStatus
	for name, d := range map[string]defect{
		"shadow_mode denies":         {domain: everyNode(func(n *node) { n.isShadow = false })},
		"quota_mode denies":          {domain: everyNode(func(n *node) { n.isQuota = false })},
		"share_threshold is ignored": {domain: everyNode(func(n *node) { n.isShared = false })},
		"all wildcards share":        {domain: everyNode(func(n *node) { n.isShared = n.isWildcard() })},
		"replaces is ignored":        {domain: everyLimit(func(l *limit) { l.replaces = nil })},
		"names are not sent":         {domain: everyLimit(func(l *limit) { l.name = "" })},
		"metadata are not sent":      {domain: everyNode(func(n *node) { n.metadata = nil })},
		"unlimited is ignored":       {domain: everyLimit(func(l *limit) { l.isUnlimited, l.unit = false, "SECOND" })},
		"limits are one too large":   {domain: everyLimit(func(l *limit) { l.count++ })},
		"months are years":           {domain: everyLimit(func(l *limit) { l.unit = strings.Replace(l.unit, "MONTH", "YEAR", 1) })},
		"the last wildcard wins": {domain: func(d *domain) {
			everyNode(func(n *node) { slices.Reverse(n.nodes) })(d)
			slices.Reverse(d.nodes)
		}},
		"nested limits are lost": {domain: everyNode(func(n *node) { n.nodes = nil })},
		"hits of the request are ignored": {request: func(r *rls.RateLimitRequest) {
			r.HitsAddend = 0
		}},
		"hits of a descriptor are ignored": {request: func(r *rls.RateLimitRequest) {
			for _, d := range r.Descriptors {
				d.HitsAddend = nil
			}
		}},
		"hits of 0 cost 1": {request: func(r *rls.RateLimitRequest) {
			for _, d := range r.Descriptors {
				if d.HitsAddend != nil {
					d.HitsAddend.Value = max(1, d.HitsAddend.Value)
				}
			}
		}},
		"overrides are ignored": {request: func(r *rls.RateLimitRequest) {
			for _, d := range r.Descriptors {
				d.Limit = nil
			}
		}},
		"unknown domains are known":  {request: func(r *rls.RateLimitRequest) { r.Domain = strings.TrimSuffix(r.Domain, "-unknown") }},
		"the reset is missing":       {response: everyStatus(func(s *status) { s.DurationUntilReset = nil })},
		"the remainder is one short": {response: everyStatus(func(s *status) { s.LimitRemaining -= min(s.LimitRemaining, 1) })},
		"one status is missing":      {response: func(r *rls.RateLimitResponse) { r.Statuses = r.Statuses[1:] }},
		"a denial has code OK":       {response: func(r *rls.RateLimitResponse) { r.OverallCode = rls.RateLimitResponse_OK }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c := compareFakes(t, knownSeed, 12_000, d); c.mismatches == 0 {
				t.Errorf("no mismatch in %d requests; want at least one", c.tally.counts["compared"])
			}
		})
	}
}

// A straddlingClock advances by a second during some exchanges: after the left service has decided,
// and before the right service decides.
type straddlingClock struct {
	second atomic.Int64 // now
	begun  atomic.Int64 // the second in which the exchange began
	isDue  atomic.Bool  // the clock advances during this exchange
}

func (c *straddlingClock) now() int64 { return c.second.Load() }

func (c *straddlingClock) advance(r *rand.Rand) error {
	c.begun.Store(c.second.Load())
	c.isDue.Store(chance(r, 10))
	return nil
}

// An earlyFake decides in the second in which the exchange began.
type earlyFake struct {
	*model
	clock *straddlingClock
}

func (f earlyFake) respond(request *rls.RateLimitRequest) answer {
	return answer{response: f.decide(request, f.clock.begun.Load())}
}

// A lateFake decides after the clock has advanced, if that is due.
type lateFake struct {
	*model
	clock *straddlingClock
}

func (f lateFake) respond(request *rls.RateLimitRequest) answer {
	if f.clock.isDue.Load() {
		f.clock.second.Add(1)
	}
	return answer{response: f.decide(request, f.clock.now())}
}

func TestExchangesAcrossSecondsAreNotCompared(t *testing.T) {
	t.Parallel()
	clock := &straddlingClock{}
	clock.second.Store(firstSecond)
	c := &comparison{seed: effort.Seed(), onlyDomain: -1, out: io.Discard, clock: clock}
	c.start = func(conf *startConfig) (responder, responder, func(), error) {
		early := earlyFake{newModel(rules{}, conf.settings, conf.domains...), clock}
		late := lateFake{newModel(rules{}, conf.settings, conf.domains...), clock}
		return early, late, func() {}, nil
	}
	if err := c.run(effort.Of(6_000, 12_000)); err != nil {
		t.Fatal(err)
	}
	// A tenth of the exchanges are not comparable. That none is has a chance below 0.9^6000, or
	// 10^-270.
	if c.mismatches > 0 || c.tally.counts["not comparable: not decided in one second"] == 0 {
		t.Errorf("PENSTOCK_SEED=%d: %d mismatches; want none, and some exchanges that are not comparable:\n%v", c.seed, c.mismatches, &c.tally)
	}
}

// A seed reproduces the same configurations and requests, independent of the responses.
func TestSeedReproducesRequests(t *testing.T) {
	t.Parallel()
	seed := effort.Seed()
	run := func() (text string, requests []*rls.RateLimitRequest) {
		r := rand.New(rand.NewPCG(seed, 7))
		d := newDomain(r, "d7")
		text = d.yaml(r)
		q := &requester{random: r, domain: d}
		for range requestsPerDomain {
			requests = append(requests, q.next())
		}
		return text, requests
	}
	text, requests := run()
	again, others := run()
	if text != again || !slices.EqualFunc(requests, others, func(a, b *rls.RateLimitRequest) bool { return proto.Equal(a, b) }) {
		t.Errorf("seed %d: the requests of two runs differ; want the same", seed)
	}
}

func TestDifferencesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../../docs/envoy-ratelimit.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(page)), " ")
	for name, words := range documented {
		if !strings.Contains(text, words) {
			t.Errorf("docs/envoy-ratelimit.md does not describe the difference %q with the words %q", name, words)
		}
	}
}
