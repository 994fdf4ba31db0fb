package simulation

import (
	"flag"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
)

var (
	onlySeed  = flag.Int64("simulation.seed", -1, "run only this seed of the simulation, and print its trace")
	firstSeed = flag.Uint64("simulation.first", effort.Seed(), "the first seed; default: a different one in each run")
)

const (
	seeds       = 12              // of TestFleetStaysWithinItsBounds in make test
	statedSeeds = 8               // of TestFleetStaysWithinTheStatedBounds in make test
	soakFor     = 3 * time.Minute // how long each of them runs seeds in make soak
)

// A tally sums up several runs.
type tally struct {
	mu          sync.Mutex
	seeds       int
	decisions   int
	faults      int
	hours       float64            // of virtual time
	sources     [sources]int       // decisions, by penstock.Source
	kinds       [faultKinds]int    // faults, by kind
	utilization map[string]float64 // the largest of history.utilization
}

func (s *tally) add(sc *scenario, h *history) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seeds++
	s.decisions += h.decisions
	s.faults += h.faults
	s.hours += h.now().Hours()
	for i, n := range h.sources {
		s.sources[i] += n
	}
	for _, f := range sc.faults {
		s.kinds[f.kind]++
	}
	for kind, reached := range h.utilization {
		s.utilization[kind] = max(s.utilization[kind], reached)
	}
}

func TestFleetStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	known := []uint64{ // seeds that once failed
		2511089425, // a breaker closed 1.01 s after the last fault
	}
	simulateSeeds(t, seeds, known, newScenario, nil)
}

// simulateSeeds runs the scenarios of n seeds, and of the seeds in known. extraCheck is a further
// check, or nil.
func simulateSeeds(t *testing.T, n uint64, known []uint64, scenarioOf func(seed uint64) *scenario, extraCheck func(*history, *scenario)) {
	sum := &tally{utilization: make(map[string]float64)}
	name := t.Name()
	run := func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			sc := scenarioOf(seed)
			h := simulate(t, sc, breakage{})
			if extraCheck != nil {
				extraCheck(h, sc)
			}
			sum.add(sc, h)
			if *onlySeed >= 0 {
				t.Logf("%v%s", sc, strings.Join(h.incidents, "\n"))
			}
			if len(h.problems) > 0 {
				t.Errorf("seed %d has problems; replay it by: go test ./internal/testing/simulation -run %s -simulation.seed %d -count 20\n%v%s\n\n%s", seed, name, seed, sc,
					strings.Join(tail(h.incidents, 60), "\n"), strings.Join(h.problems[:min(len(h.problems), 3)], "\n"))
			}
		})
	}
	if *onlySeed >= 0 {
		run(t, uint64(*onlySeed))
		return
	}
	for _, seed := range known {
		run(t, seed)
	}
	var next atomic.Uint64
	end := time.Now().Add(soakFor)
	t.Run("seeds", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for !t.Failed() {
					number := next.Add(1) - 1
					isOver := number >= n
					if effort.IsSoak {
						isOver = time.Now().After(end)
					}
					if isOver {
						return
					}
					run(t, *firstSeed+number)
				}
			})
		}
	})
	sum.log(t)
}

// tail returns the last n lines.
func tail(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }

func (s *tally) log(t *testing.T) {
	t.Logf("counted: %d seeds of simulated fleets", s.seeds)
	t.Logf("counted: %d virtual minutes of fleets", int(60*s.hours))
	t.Logf("counted: %d decisions in fleets (%d by the store, %d by deny caches, %d by leases, %d by fallbacks, %d open, %d closed)", s.decisions,
		s.sources[penstock.FromStore], s.sources[penstock.FromDenyCache], s.sources[penstock.FromLease], s.sources[penstock.FromFallback],
		s.sources[penstock.FromOpen], s.sources[penstock.FromClosed])
	t.Logf("counted: %d faults in fleets (%v of each kind)", s.faults, s.kinds)
	for _, kind := range slices.Sorted(maps.Keys(s.utilization)) {
		t.Logf("at most %3.0f %% of the bound: %s", 100*s.utilization[kind], kind)
	}
}
