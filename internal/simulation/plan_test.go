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

// A plan describes a run. A seed determines the plan.
type plan struct {
	seed              uint64
	instances         int
	configured        int // guard.Options.Instances: the configured number of instances; 0: not set
	nodes             int
	oneWay            time.Duration // average latency between an instance and the store
	clockAhead        time.Duration // how far the server's clock is ahead
	keys              int
	policies          []policy
	denyCacheTTL      time.Duration // guard.Options.DenyCacheTTL
	isLoadEarly       bool          // the load starts before the instances know each other
	hasPatientCallers bool          // no caller has its own deadline
	phases            []phase
	faults            []fault
}

// A policy is a limit with its guard settings.
type policy struct {
	limit    *penstock.Plan
	settings guard.Settings
}

// A phase is a period with one kind of load.
type phase struct {
	after    time.Duration // pause before it
	requests int
	gap      time.Duration // average time between two requests
	policy   int           // index of the policy that most requests use
	pattern  pattern
}

type pattern uint8

const (
	steady pattern = iota
	bursts
	skewed   // most requests go to one instance
	single   // all requests go to one instance, with one key
	patterns = 4
)

var patternNames = [...]string{"steady", "bursts", "skewed", "single"}

func (p *plan) policyOf(l *penstock.Plan) *policy {
	for i := range p.policies {
		if p.policies[i].limit.Name() == l.Name() {
			return &p.policies[i]
		}
	}
	return nil
}

func (p *plan) settingsOf(l *penstock.Plan) guard.Settings {
	if policy := p.policyOf(l); policy != nil {
		return policy.settings
	}
	return guard.Settings{}
}

func (p *plan) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d instances (%d configured), %d nodes, %v one way, clock %v ahead, %d keys, DenyCacheTTL %v\n",
		p.instances, p.configured, p.nodes, p.oneWay, p.clockAhead, p.keys, p.denyCacheTTL)
	for i := range p.policies {
		fmt.Fprintf(&s, "  %v\n", &p.policies[i])
	}
	for _, ph := range p.phases {
		fmt.Fprintf(&s, "  after %v: %d requests every %v, mostly of %s, %s\n", ph.after, ph.requests, ph.gap, p.policies[ph.policy].limit.Name(),
			patternNames[ph.pattern])
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
	if p.settings.SplitInto > 1 {
		s += fmt.Sprintf(", in %d shards", p.settings.SplitInto)
	}
	return s
}

// logUniform returns a random number between two others. The logarithms of such numbers are
// distributed uniformly.
func logUniform(rng *rand.Rand, from, to float64) float64 {
	return from * math.Pow(to/from, rng.Float64())
}

// logTime is logUniform for durations.
func logTime(rng *rand.Rand, from, to time.Duration) time.Duration {
	return time.Duration(logUniform(rng, float64(from), float64(to)))
}

// newPlan makes the plan of a seed.
func newPlan(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &plan{seed: seed, instances: 1 + rng.IntN(8), nodes: 1, oneWay: logTime(rng, 100*time.Microsecond, 4*time.Millisecond)}
	if rng.IntN(2) == 0 {
		p.configured = p.instances
	}
	if rng.IntN(5) < 2 {
		p.nodes = 2 + rng.IntN(2)
	}
	p.clockAhead = time.Duration(rng.Int64N(int64(2*time.Hour))) - time.Hour
	p.keys = 1 + rng.IntN(3)
	p.denyCacheTTL = []time.Duration{0, 0, 0, -1, 100 * time.Millisecond, time.Minute}[rng.IntN(6)]
	p.isLoadEarly = rng.IntN(5) == 0
	for i := range 1 + rng.IntN(3) {
		p.policies = append(p.policies, randomPolicy(rng, i, p.instances))
	}
	length := time.Duration(0)
	for range 2 + rng.IntN(3) {
		ph := randomPhase(rng, p)
		p.phases = append(p.phases, ph)
		length += ph.after + time.Duration(ph.requests)*ph.gap
	}
	for range 1 + rng.IntN(8) {
		p.faults = append(p.faults, randomFault(rng, p, length))
	}
	return p
}

// algorithms are the algorithms of random limits. Some occur several times, so that they are more
// likely.
var algorithms = []*algorithm.Algorithm{
	penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket,
	penstock.FixedWindow, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(4), penstock.SlidingLog,
	penstock.LeakyBucket, penstock.Concurrency,
}

func randomPolicy(rng *rand.Rand, i, instances int) policy {
	l := penstock.Limit{Name: fmt.Sprintf("l%d", i), Group: "g", Algorithm: algorithms[rng.IntN(len(algorithms))]}
	l.Count = int64(logUniform(rng, 1, 3000))
	l.Period = []time.Duration{time.Second, time.Second, time.Second, 3 * time.Second, 10 * time.Second, time.Minute}[rng.IntN(6)]
	if instances <= 2 && rng.IntN(3) == 0 {
		l.Period = time.Hour
	}
	switch {
	case l.Algorithm.Name() == penstock.TokenBucket.Name():
		l.Burst = 1 + rng.Int64N(2*l.Count)
	case l.Algorithm.Name() == penstock.LeakyBucket.Name():
		l.Count = int64(logUniform(rng, 1, 200))
		l.Burst = rng.Int64N(30)
	case l.Algorithm.NeedsHolder():
		l.Count = int64(logUniform(rng, 1, 50))
		l.Burst, l.Period = l.Count, min(l.Period, time.Minute)
	}
	ready, err := l.Compile()
	if err != nil {
		panic(err)
	}
	p := policy{limit: ready, settings: guard.Settings{OnFailure: guard.FailLocal}}
	switch rng.IntN(6) {
	case 0:
		p.settings.OnFailure = guard.FailClosed
	case 1:
		p.settings.OnFailure = guard.FailOpen
		if rng.IntN(2) == 0 {
			p.settings.Ceiling = l
			p.settings.Ceiling.Count, p.settings.Ceiling.Burst = 2*l.Count, 2*l.Burst
		}
	}
	if rng.IntN(2) == 0 {
		p.settings.Lease = int64(logUniform(rng, 2, 300))
	}
	if rng.IntN(4) == 0 {
		p.settings.SplitInto = 2 + rng.IntN(7)
	}
	return p
}

// longestPhase bounds the virtual time of a phase with a low limit.
const longestPhase = 10 * time.Minute

func randomPhase(rng *rand.Rand, p *plan) phase {
	ph := phase{requests: 100 + rng.IntN(300), policy: rng.IntN(len(p.policies)), pattern: pattern(rng.IntN(patterns))}
	limit := p.policies[ph.policy].limit
	overload := logUniform(rng, 0.3, 6) // ratio of the load to the limit
	ph.gap = time.Duration(float64(limit.Limit().Period) / float64(limit.Limit().Count) / overload)
	ph.gap = min(max(ph.gap, 50*time.Microsecond), longestPhase/time.Duration(ph.requests))
	if p.policies[ph.policy].settings.Lease > 0 && rng.IntN(2) == 0 {
		ph.gap = logTime(rng, 200*time.Microsecond, 4*time.Millisecond)
	}
	if ph.gap < 4*time.Millisecond {
		ph.requests *= 4 // requests that are dense enough for leases must last for several leases
	}
	ph.after = logTime(rng, time.Millisecond, 10*time.Second)
	return ph
}
