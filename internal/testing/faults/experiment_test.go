package faults

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/redis/rueidis"
	"github.com/rs/zerolog"
)

var seedFlag = flag.Uint64("seed", 0, "the seed, as a failure prints it; default: a different one in each run")

// isSoak is true in a soak, which also finds rare failures.
var isSoak = effort.IsSoak

// TestMain runs more faults in parallel than there are processors, because faults mostly wait. The
// tests of process_test.go and busy_test.go start this test binary as a program. Then TestMain runs
// childMain or busyMain.
func TestMain(m *testing.M) {
	if url := os.Getenv("PENSTOCK_FAULTS_CHILD"); url != "" {
		main, limit := childMain, os.Getenv("PENSTOCK_FAULTS_LIMIT")
		if limit == busyName {
			main = busyMain
		}
		if err := main(url, limit); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxiproxy would log to standard output
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		parallel := "8"
		if isSoak {
			parallel = "4"
		}
		_ = flag.Set("test.parallel", parallel)
	}
	os.Exit(m.Run())
}

// A fault is an entry of the catalog.
type fault struct {
	id, name     string        // such as F2 and "killed"
	on           []kind        // targets, one of them in each make test; default: a single server
	onMore       []kind        // further targets in a soak
	route        route         // between instances and a single server
	args         []string      // arguments of each single server
	deadline     time.Duration // of a decision; default: 250 ms
	callers      int           // on each instance; default: 2
	cycles       int           // how often a soak repeats the fault; default: 20
	rounds       int           // how many experiments a soak runs, each with a new target; default: 1
	canPartition bool          // the network between nodes of a Sentinel group or a Cluster can be cut

	prepare         func(e *experiment) // prepares the target, before the instances start
	hasClock        bool                // the single server has a clock that can be set: e.target.clock
	isAbsentAtStart bool                // the store does not decide before the fault begins either
	begin           func(e *experiment) // starts the fault; it has begun when this returns
	meanwhile       func(e *experiment) // happens during the fault
	end             func(e *experiment) // ends the fault

	option  func(e *experiment, instance int) rueidis.ClientOption // how an instance connects to the target; default: by its URL
	finally func(e *experiment)                                    // further checks in the end

	decidedBy        decider           // source of decisions during the fault
	wantErrors       []penstock.Reason // reasons of errors that instances must see
	isStoreCalled    bool              // breakers stay closed, because the error does not show that the store is unhealthy; so the store gets all calls
	hasUnseenCharges bool              // the store charges some calls whose replies are lost
	isPartial        bool              // the store makes some decisions during the fault
	dataLosses       int               // how often the store starts without its data, in each cycle

	// Reasons of further errors that instances may see. ReasonUnknown and ReasonUnreachable are always
	// allowed, since a slow machine can cause them.
	mayHaveErrors []penstock.Reason
}

// A decider is the source of the decisions during a fault.
type decider int

const (
	byFallbacks decider = iota // the fallback of each limit, on each instance
	byStore                    // the store, as without a fault
	byAnySource                // any: the fault is too short to check this, or comes and goes
)

// An experiment runs a fault.
type experiment struct {
	*testing.T
	fault         *fault
	seed          uint64
	rng           *rand.Rand
	deadline      time.Duration // of a decision
	target        *target
	load          *load
	faultTime     time.Duration   // total time of faults
	reached       int64           // calls that reached the store during faults
	callers       int             // on each instance
	cycles        int             // how often the fault happens
	unseenCharges int             // units that the store charged by calls without a reply
	kills         int             // by closeConnections: how often all connections were closed
	dialed        int64           // by closeConnections: connections that were dialed after that
	oldCalls      int64           // calls to the store before its restart
	authorities   [2]*authority   // of the faults in secured_test.go
	undo          func()          // set by fault.begin: ends the fault
	recoveryTimes []time.Duration // time from the end of each fault until the store decided for all instances
	group         group           // state of faults on several servers
}

// chosenFaults returns all faults of the catalog in a soak, or in a run with a seed. make test runs
// one fault of each id, another one in each run.
func chosenFaults() (chosen []*fault) {
	isChosen := make(map[string]bool) // by id
	for _, i := range rand.Perm(len(catalog)) {
		f := &catalog[i]
		if isSoak || *seedFlag != 0 || !isChosen[f.id] {
			chosen = append(chosen, f)
			isChosen[f.id] = true
		}
	}
	return chosen
}

func TestLimitsHoldThroughEveryFault(t *testing.T) {
	for _, f := range chosenFaults() {
		t.Run(strings.ReplaceAll(f.id+" "+f.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if f.on == nil {
				f.on = []kind{single}
			}
			rounds := 1
			if isSoak {
				rounds = max(f.rounds, 1)
			}
			on := f.on[rand.IntN(len(f.on)):][:1] // make test runs the fault on one of its targets
			if isSoak {
				on = slices.Concat(f.on, f.onMore)
			}
			for _, k := range on {
				for range rounds {
					t.Run(string(k), func(t *testing.T) {
						t.Parallel()
						newExperiment(t, f).run(k)
					})
				}
			}
		})
	}
}

func newExperiment(t *testing.T, f *fault) *experiment {
	e := &experiment{T: t, fault: f, seed: *seedFlag, cycles: 1}
	if isSoak {
		e.cycles = cmp.Or(f.cycles, 20)
	}
	e.deadline, e.callers = cmp.Or(f.deadline, 250*time.Millisecond), cmp.Or(f.callers, 2)
	if e.seed == 0 {
		e.seed = rand.Uint64N(1 << 32)
	}
	e.rng = rand.New(rand.NewPCG(e.seed, 1))
	t.Cleanup(func() {
		if t.Failed() {
			soak := ""
			if isSoak {
				soak = "PENSTOCK_SOAK=1 "
			}
			t.Logf("to run this fault again: cd internal/testing/faults && %sgo test -run '^%s$' -seed %d", soak, strings.ReplaceAll(t.Name(), "/", "$/^"), e.seed)
		}
	})
	return e
}

// run runs the fault on a target of this kind, and checks the decisions.
func (e *experiment) run(k kind) {
	e.target = start(e.T, k, e.fault)
	if e.fault.prepare != nil {
		e.fault.prepare(e)
	}
	var all []*instance
	for i := range instances {
		all = append(all, openInstance(e.T, e.optionOf(i), e.deadline))
	}
	e.load = startLoad(all, e.callers, e.seed)
	e.Cleanup(e.load.stop)
	if !e.fault.isAbsentAtStart {
		e.awaitStore()
	}
	for range e.cycles {
		e.cycle()
	}
	e.load.stop()
	e.check()
}

// cycle starts the fault, waits for decisions by the sources of fault.decidedBy, and ends the
// fault.
func (e *experiment) cycle() {
	e.awaitRequests(e.rng.IntN(200)) // start the fault at a random time
	e.load.faultBegan()
	e.fault.begin(e)
	e.load.enterPhase(during)
	began, callsBefore := time.Now(), e.storeCalls()
	if e.fault.meanwhile != nil {
		e.fault.meanwhile(e)
	}
	switch e.fault.decidedBy {
	case byFallbacks:
		e.await("the fallback of every limit", func() bool {
			return e.every(func(i, limit int) bool {
				isElsewhere := e.isPartial() && guardedLimits[limit].keys == 1 // the node with the fault may have no key of the limit
				return e.load.decisionsInPhase(i, limit, guardedLimits[limit].fallback) >= enough || isElsewhere
			})
		})
	case byStore:
		e.awaitStore()
	case byAnySource:
		e.awaitRequests(200)
	}
	e.faultTime += time.Since(began)
	e.reached += e.storeCalls() - callsBefore
	e.load.enterPhase(after)
	e.fault.end(e)
	e.load.faultEnded()
	faultEnded := time.Now()
	e.awaitStore()
	e.recoveryTimes = append(e.recoveryTimes, time.Since(faultEnded))
}

// optionOf returns how instance i connects to the target.
func (e *experiment) optionOf(i int) rueidis.ClientOption {
	if e.fault.option != nil {
		return e.fault.option(e, i)
	}
	option, err := redisclient.ParseURL(e.target.url)
	if err != nil {
		e.Fatal(err)
	}
	return option
}

// isPartial returns true if the store makes some decisions during the fault. For example, a fault
// of one node of a Cluster does not affect the other nodes.
func (e *experiment) isPartial() bool {
	return e.fault.isPartial || e.target.kind == cluster && e.fault.decidedBy == byFallbacks
}

// enough is the number of decisions by a source for which the tests wait, on each instance and for
// each limit.
const enough = 10

// awaitStore waits until the store decides for every limit on every instance.
func (e *experiment) awaitStore() {
	e.Helper()
	e.await("decisions by the store for every limit", func() bool {
		return e.every(func(i, limit int) bool {
			return e.load.decisionsInPhase(i, limit, penstock.FromStore)+e.load.decisionsInPhase(i, limit, penstock.FromLease) >= enough
		})
	})
}

// every returns true if ok is true for every instance and every limit.
func (e *experiment) every(ok func(instance, limit int) bool) bool {
	for i := range e.load.instances {
		for limit := range guardedLimits {
			if !ok(i, limit) {
				return false
			}
		}
	}
	return true
}

// awaitRequests waits for the decisions of n more requests.
func (e *experiment) awaitRequests(n int) {
	e.Helper()
	n += e.load.requests()
	e.await(fmt.Sprintf("the decision of request %d", n), func() bool { return e.load.requests() >= n })
}

// forRequests returns a fault.meanwhile that lasts for n requests.
func forRequests(n int) func(*experiment) {
	return func(e *experiment) { e.Helper(); e.awaitRequests(n) }
}

// await waits until a condition is true. await ends the test if the condition stays false for too
// long.
func (e *experiment) await(what string, ok func() bool) {
	e.Helper()
	const timeout = time.Minute
	for end := time.Now().Add(timeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			e.Fatalf("after %v, still waiting for %s; decisions so far: %v; errors so far:\n%s", timeout, what, e.load, e.errors())
		}
	}
}

// storeCalls returns how many calls have reached the store.
func (e *experiment) storeCalls() (n int64) {
	for _, i := range e.load.instances {
		n += i.spy.calls.Load()
	}
	return n
}

// do runs commands on the server that has the fault.
func (e *experiment) do(commands ...string) {
	e.Helper()
	for _, c := range commands {
		if _, err := e.target.primary().Do(strings.Fields(c)...); err != nil {
			e.Fatalf("command %q: %v; want no error", c, err)
		}
	}
}

// noop is for faults that need no begin or no end.
func noop(*experiment) {}

// undo is the end of faults whose begin sets experiment.undo.
func undo(e *experiment) { e.undo() }

// runCommands returns a step of a fault that runs commands.
func runCommands(commands ...string) func(*experiment) {
	return func(e *experiment) { e.Helper(); e.do(commands...) }
}
