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

// A scenario describes a run. A seed determines the scenario.
type scenario struct {
	seed              uint64
	instances         int
	configured        int // guard.Options.Instances: the configured number of instances; 0: not set
	nodes             int
	oneWay            time.Duration // average latency between an instance and the store
	clockAhead        time.Duration // how far the server's clock is ahead of true time
	keys              int
	guardedLimits     []guardedLimit
	denyCacheTTL      time.Duration // guard.Options.DenyCacheTTL; 0: the default; below 0: no deny cache
	isLoadEarly       bool          // the load starts before the instances know each other
	hasPatientCallers bool          // no caller has its own deadline
	phases            []phase
	faults            []fault
}

// A guardedLimit is a limit with its guard settings.
type guardedLimit struct {
	limit    *penstock.Plan
	settings guard.Settings
}

// A phase is a period with one kind of load.
type phase struct {
	after    time.Duration // pause before it
	requests int
	gap      time.Duration // average time between two requests
	limit    int           // index of the guarded limit that most requests use
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

// guardedLimitOf returns the guarded limit with the name of l, or nil.
func (sc *scenario) guardedLimitOf(l *penstock.Plan) *guardedLimit {
	for i := range sc.guardedLimits {
		if sc.guardedLimits[i].limit.Name() == l.Name() {
			return &sc.guardedLimits[i]
		}
	}
	return nil
}

func (sc *scenario) settingsOf(l *penstock.Plan) guard.Settings {
	if guarded := sc.guardedLimitOf(l); guarded != nil {
		return guarded.settings
	}
	return guard.Settings{}
}

func (sc *scenario) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d instances (%d configured), %d nodes, a latency of %v one way, clock %v ahead, %d keys, DenyCacheTTL %v\n",
		sc.instances, sc.configured, sc.nodes, sc.oneWay, sc.clockAhead, sc.keys, sc.denyCacheTTL)
	for i := range sc.guardedLimits {
		fmt.Fprintf(&s, "  %v\n", &sc.guardedLimits[i])
	}
	for _, ph := range sc.phases {
		fmt.Fprintf(&s, "  after %v: %d requests, one every %v, mostly of %s, %s\n", ph.after, ph.requests, ph.gap, sc.guardedLimits[ph.limit].limit.Name(),
			patternNames[ph.pattern])
	}
	return s.String()
}

func (g *guardedLimit) String() string {
	s := fmt.Sprintf("%v, on failure %v", g.limit, g.settings.OnFailure)
	if g.settings.Ceiling.Count > 0 {
		s += fmt.Sprintf(" with a ceiling of %d", g.settings.Ceiling.Count)
	}
	if g.settings.Lease > 0 {
		s += fmt.Sprintf(", leased by %d", g.settings.Lease)
	}
	if g.settings.SplitInto > 1 {
		s += fmt.Sprintf(", in %d shards", g.settings.SplitInto)
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

// newScenario makes the scenario of a seed.
func newScenario(seed uint64) *scenario {
	rng := rand.New(rand.NewPCG(seed, 1))
	sc := &scenario{seed: seed, instances: 1 + rng.IntN(8), nodes: 1, oneWay: logTime(rng, 100*time.Microsecond, 4*time.Millisecond)}
	if rng.IntN(2) == 0 {
		sc.configured = sc.instances
	}
	if rng.IntN(5) < 2 {
		sc.nodes = 2 + rng.IntN(2)
	}
	sc.clockAhead = time.Duration(rng.Int64N(int64(2*time.Hour))) - time.Hour
	sc.keys = 1 + rng.IntN(3)
	sc.denyCacheTTL = []time.Duration{0, 0, 0, -1, 100 * time.Millisecond, time.Minute}[rng.IntN(6)]
	sc.isLoadEarly = rng.IntN(5) == 0
	for i := range 1 + rng.IntN(3) {
		sc.guardedLimits = append(sc.guardedLimits, randomGuardedLimit(rng, i, sc.instances))
	}
	length := time.Duration(0)
	for range 2 + rng.IntN(3) {
		ph := randomPhase(rng, sc)
		sc.phases = append(sc.phases, ph)
		length += ph.after + time.Duration(ph.requests)*ph.gap
	}
	for range 1 + rng.IntN(8) {
		sc.faults = append(sc.faults, randomFault(rng, sc, length))
	}
	return sc
}

// algorithms are the algorithms of random limits. Some occur several times, so that they are more
// likely.
var algorithms = []*algorithm.Algorithm{
	penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket, penstock.TokenBucket,
	penstock.FixedWindow, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(4), penstock.SlidingLog,
	penstock.LeakyBucket, penstock.Concurrency,
}

func randomGuardedLimit(rng *rand.Rand, i, instances int) guardedLimit {
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
	plan, err := l.Compile()
	if err != nil {
		panic(err)
	}
	g := guardedLimit{limit: plan, settings: guard.Settings{OnFailure: guard.FailLocal}}
	switch rng.IntN(6) {
	case 0:
		g.settings.OnFailure = guard.FailClosed
	case 1:
		g.settings.OnFailure = guard.FailOpen
		if rng.IntN(2) == 0 {
			g.settings.Ceiling = l
			g.settings.Ceiling.Count, g.settings.Ceiling.Burst = 2*l.Count, 2*l.Burst
		}
	}
	if rng.IntN(2) == 0 {
		g.settings.Lease = int64(logUniform(rng, 2, 300))
	}
	if rng.IntN(4) == 0 {
		g.settings.SplitInto = 2 + rng.IntN(7)
	}
	return g
}

// longestPhase bounds the virtual time of a phase with a low limit.
const longestPhase = 10 * time.Minute

func randomPhase(rng *rand.Rand, sc *scenario) phase {
	ph := phase{requests: 100 + rng.IntN(300), limit: rng.IntN(len(sc.guardedLimits)), pattern: pattern(rng.IntN(patterns))}
	limit := sc.guardedLimits[ph.limit].limit
	overload := logUniform(rng, 0.3, 6) // ratio of the load to the limit
	ph.gap = time.Duration(float64(limit.Limit().Period) / float64(limit.Limit().Count) / overload)
	ph.gap = min(max(ph.gap, 50*time.Microsecond), longestPhase/time.Duration(ph.requests))
	if sc.guardedLimits[ph.limit].settings.Lease > 0 && rng.IntN(2) == 0 {
		ph.gap = logTime(rng, 200*time.Microsecond, 4*time.Millisecond)
	}
	if ph.gap < 4*time.Millisecond {
		ph.requests *= 4 // requests that are dense enough for leases must last for several leases
	}
	ph.after = logTime(rng, time.Millisecond, 10*time.Second)
	return ph
}
