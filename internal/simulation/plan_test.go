package simulation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
)

// A plan is what a seed draws.
type plan struct {
	seed      uint64
	instances int
	floor     int // of instances, as the operator says
	nodes     int
	oneWay    time.Duration
	ahead     time.Duration // of the server's clock
	keys      int
	policies  []policy
	denyFor   time.Duration
	exact     bool // leases
	early     bool // the load begins before the instances know of each other
	patient   bool // no caller has a deadline of its own, after which the fallback answers
	phases    []phase
	faults    []fault
}

// A policy is a limit and how it is guarded.
type policy struct {
	limit    penstock.Limit
	settings guard.Settings
}

// A phase is a time of one kind of load.
type phase struct {
	after   time.Duration // quiet
	asks    int
	gap     time.Duration
	policy  int
	pattern pattern
}

type pattern uint8

const (
	steady pattern = iota
	bursts
	skewed   // most at one instance
	alone    // all at one instance, all under one key
	patterns = 4
)

var patternNames = [...]string{"steady", "bursts", "skewed", "alone"}

func (p *plan) policyOf(l *penstock.Limit) *policy {
	for i := range p.policies {
		if p.policies[i].limit.Name == l.Name {
			return &p.policies[i]
		}
	}
	return nil
}

func (p *plan) settingsOf(l *penstock.Limit) guard.Settings {
	if policy := p.policyOf(l); policy != nil {
		return policy.settings
	}
	return guard.Settings{}
}

func (p *plan) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d instances (floor %d), %d nodes, %v one way, clock %v ahead, %d keys, DenyFor %v, exact leases %v\n",
		p.instances, p.floor, p.nodes, p.oneWay, p.ahead, p.keys, p.denyFor, p.exact)
	for i := range p.policies {
		fmt.Fprintf(&s, "  %v\n", &p.policies[i])
	}
	for _, h := range p.phases {
		fmt.Fprintf(&s, "  after %v: %d asks every %v, mostly of %s, %s\n", h.after, h.asks, h.gap, p.policies[h.policy].limit.Name,
			patternNames[h.pattern])
	}
	return s.String()
}

func (p *policy) String() string {
	s := fmt.Sprintf("%v, on failure %v", p.limit, p.settings.OnFailure)
	if p.settings.Ceiling.Count > 0 {
		s += fmt.Sprintf(" with a ceiling of %d", p.settings.Ceiling.Count)
	}
	if p.settings.Lease > 0 {
		s += fmt.Sprintf(", leased by %d", p.settings.Lease)
	}
	if p.settings.Shards > 1 {
		s += fmt.Sprintf(", in %d shards", p.settings.Shards)
	}
	return s
}

// logUniform is between two numbers, as likely near the one as near the other, whatever their size.
func logUniform(rng *rand.Rand, from, to float64) float64 {
	return from * math.Pow(to/from, rng.Float64())
}

func logTime(rng *rand.Rand, from, to time.Duration) time.Duration {
	return time.Duration(logUniform(rng, float64(from), float64(to)))
}

func newPlan(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &plan{seed: seed, instances: 1 + rng.IntN(8), nodes: 1, oneWay: logTime(rng, 100*time.Microsecond, 4*time.Millisecond)}
	if rng.IntN(2) == 0 {
		p.floor = p.instances
	}
	if rng.IntN(5) < 2 {
		p.nodes = 2 + rng.IntN(2)
	}
	p.ahead = time.Duration(rng.Int64N(int64(2*time.Hour))) - time.Hour
	p.keys = 1 + rng.IntN(3)
	p.denyFor = []time.Duration{0, 0, 0, -1, 100 * time.Millisecond, time.Minute}[rng.IntN(6)]
	p.exact, p.early = rng.IntN(3) == 0, rng.IntN(5) == 0
	for i := range 1 + rng.IntN(3) {
		p.policies = append(p.policies, somePolicy(rng, i, p.instances))
	}
	length := time.Duration(0)
	for range 2 + rng.IntN(3) {
		h := somePhase(rng, p)
		p.phases = append(p.phases, h)
		length += h.after + time.Duration(h.asks)*h.gap
	}
	for range 1 + rng.IntN(8) {
		p.faults = append(p.faults, someFault(rng, p, length))
	}
	return p
}

var algorithms = []*algorithm.Algorithm{
	penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket,
	penstock.FixedWindow, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(4), penstock.SlidingLog,
	penstock.LeakyBucket, penstock.Concurrency,
}

func somePolicy(rng *rand.Rand, i, instances int) policy {
	l := penstock.Limit{Name: fmt.Sprintf("l%d", i), Group: "g", Algorithm: algorithms[rng.IntN(len(algorithms))]}
	l.Count = int64(logUniform(rng, 1, 3000))
	l.Period = []time.Duration{time.Second, time.Second, time.Second, 3 * time.Second, 10 * time.Second, time.Minute}[rng.IntN(6)]
	if instances <= 2 && rng.IntN(3) == 0 {
		l.Period = time.Hour
	}
	switch {
	case l.Algorithm.Is(penstock.TokenBucket):
		l.Burst = 1 + rng.Int64N(2*l.Count)
	case l.Algorithm.Is(penstock.LeakyBucket):
		l.Count = int64(logUniform(rng, 1, 200))
		l.Burst = rng.Int64N(30)
	case l.Algorithm.Holds:
		l.Count = int64(logUniform(rng, 1, 50))
		l.Burst, l.Period = l.Count, min(l.Period, time.Minute)
	}
	ready, err := l.Ready()
	if err != nil {
		panic(err)
	}
	p := policy{limit: ready, settings: guard.Settings{OnFailure: guard.Local}}
	switch rng.IntN(6) {
	case 0:
		p.settings.OnFailure = guard.Closed
	case 1:
		p.settings.OnFailure = guard.Open
		if rng.IntN(2) == 0 {
			p.settings.Ceiling = l
			p.settings.Ceiling.Count, p.settings.Ceiling.Burst = 2*l.Count, 2*l.Burst
		}
	}
	if rng.IntN(2) == 0 {
		p.settings.Lease = int64(logUniform(rng, 2, 300))
	}
	if rng.IntN(4) == 0 {
		p.settings.Shards = 2 + rng.IntN(7)
	}
	return p
}

// longestPhase keeps runs of slow limits from taking days.
const longestPhase = 10 * time.Minute

func somePhase(rng *rand.Rand, p *plan) phase {
	h := phase{asks: 100 + rng.IntN(300), policy: rng.IntN(len(p.policies)), pattern: pattern(rng.IntN(patterns))}
	limit := p.policies[h.policy].limit
	h.gap = time.Duration(float64(limit.Period) / float64(limit.Count) / logUniform(rng, 0.3, 6))
	h.gap = min(max(h.gap, 50*time.Microsecond), longestPhase/time.Duration(h.asks))
	if p.policies[h.policy].settings.Lease > 0 && rng.IntN(2) == 0 {
		h.gap = logTime(rng, 200*time.Microsecond, 4*time.Millisecond)
	}
	if h.gap < 4*time.Millisecond {
		h.asks *= 4 // what is dense enough for leases is worth more of them
	}
	h.after = logTime(rng, time.Millisecond, 10*time.Second)
	return h
}
