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
	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/rueidis"
	"github.com/rs/zerolog"
)

var seedFlag = flag.Uint64("seed", 0, "the seed, as a failure prints it; default: a different one in each run")

// isSoak is true in a soak, which also finds rare failures.
var isSoak = effort.Soak

// TestMain lets more faults run at once than there are processors: they wait most of the time. It
// is also the main function of the programs of process_test.go and busy_test.go.
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
	zerolog.SetGlobalLevel(zerolog.Disabled) // some of toxiproxy writes to standard output
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", map[bool]string{false: "8", true: "4"}[isSoak])
	}
	os.Exit(m.Run())
}

// A fault is an entry of the catalogue.
type fault struct {
	id, name     string        // F2, killed
	on           []kind        // targets; default: a single server
	onMore       []kind        // further targets in a soak
	route        route         // between instances and a single server
	args         []string      // arguments of each single server
	deadline     time.Duration // of a decision; default: 250 ms
	callers      int           // on each instance; default: 2
	cycles       int           // in a soak; default: 20
	rounds       int           // in a soak, each with a new target; default: 1
	canPartition bool          // the network between nodes of a Sentinel group or a Cluster can be cut

	prepare      func(l *experiment) // prepares the target, before there are instances
	hasClock     bool                // the single server has a clock that can be set: l.target.clock
	startsAbsent bool                // the store does not decide before the fault either
	begin        func(l *experiment) // starts the fault; it has begun when this returns
	meanwhile    func(l *experiment) // happens during the fault
	end          func(l *experiment) // ends the fault

	option  func(l *experiment, instance int) rueidis.ClientOption // how an instance connects to the target; default: by its URL
	finally func(l *experiment)                                    // further checks in the end

	answeredBy    answeredBy        // source of decisions during the fault
	wantErrors    []penstock.Reason // errors that instances must see
	mayHaveErrors []penstock.Reason // errors that instances may see, besides unknown and unreachable, which a slow machine can cause
	storeIsCalled bool              // breakers stay closed: the store rejects only some limits, at once
	charges       bool              // some calls without a reply are charged
	isPartial     bool              // the store makes some decisions during the fault
	dataLosses    int               // how often the store starts without its data
}

// answeredBy is the source of the decisions during a fault.
type answeredBy int

const (
	byPolicies  answeredBy = iota // the fallback of each policy, on each instance
	byStore                       // the store, as without a fault
	byAnySource                   // the fault is too short, or comes and goes
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
	faultTime     time.Duration // total time of faults
	reached       int64         // calls that reached the store during faults
	callers       int           // on each instance
	cycles        int           // how often the fault happens
	charged       int           // units that were charged without a reply
	kills         int           // counts of single faults
	dialled       int64
	authorities   [2]*authority
	undo          func()          // set by begin: ends the fault
	recoveryTimes []time.Duration // time from the end of each fault until the store decided for all instances
	group         group           // state of faults on several servers
}

func TestLimitsHoldThroughEveryFault(t *testing.T) {
	for i := range catalogue {
		r := &catalogue[i]
		t.Run(strings.ReplaceAll(r.id+" "+r.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if r.on == nil {
				r.on = []kind{single}
			}
			rounds := 1
			if isSoak {
				rounds = max(r.rounds, 1)
			}
			on := r.on
			if isSoak {
				on = slices.Concat(on, r.onMore)
			}
			for _, k := range on {
				for range rounds {
					t.Run(string(k), func(t *testing.T) {
						t.Parallel()
						newExperiment(t, r).run(k)
					})
				}
			}
		})
	}
}

func newExperiment(t *testing.T, r *fault) *experiment {
	l := &experiment{T: t, fault: r, seed: *seedFlag, deadline: 250 * time.Millisecond, cycles: 1}
	if isSoak {
		l.deadline, l.cycles = 250*time.Millisecond, cmp.Or(r.cycles, 20)
	}
	l.deadline, l.callers = cmp.Or(r.deadline, l.deadline), cmp.Or(r.callers, 2)
	if l.seed == 0 {
		l.seed = rand.Uint64N(1 << 32)
	}
	l.rng = rand.New(rand.NewPCG(l.seed, 1))
	t.Cleanup(func() {
		if t.Failed() {
			soak := map[bool]string{true: "PENSTOCK_SOAK=1 "}[isSoak]
			t.Logf("to run this fault again: cd internal/faults && %sgo test -run '^%s$' -seed %d", soak, strings.ReplaceAll(t.Name(), "/", "$/^"), l.seed)
		}
	})
	return l
}

func (l *experiment) run(k kind) {
	l.target = start(l.T, k, l.fault)
	if l.fault.prepare != nil {
		l.fault.prepare(l)
	}
	var all []*instance
	for i := range instances {
		all = append(all, openInstance(l.T, l.optionOf(i), l.deadline))
	}
	l.load = startLoad(all, l.callers, l.seed)
	l.Cleanup(l.load.stop)
	if !l.fault.startsAbsent {
		l.awaitStore()
	}
	for range l.cycles {
		l.cycle()
	}
	l.load.stop()
	l.check()
}

// cycle starts the fault and ends it.
func (l *experiment) cycle() {
	l.awaitRequests(l.rng.IntN(200)) // start the fault at a random time
	l.load.faultBegan()
	l.fault.begin(l)
	l.load.begin(during)
	began, reached := time.Now(), l.storeCalls()
	if l.fault.meanwhile != nil {
		l.fault.meanwhile(l)
	}
	switch l.fault.answeredBy {
	case byPolicies:
		l.await("the fallback of every policy", func() bool {
			return l.every(func(i, p int) bool {
				return l.load.since(i, p, policies[p].answers) >= enough || l.isPartial() && policies[p].keys == 1 // its keys may all be on other nodes
			})
		})
	case byStore:
		l.awaitStore()
	case byAnySource:
		l.awaitRequests(200)
	}
	l.faultTime += time.Since(began)
	l.reached += l.storeCalls() - reached
	l.load.begin(after)
	l.fault.end(l)
	l.load.faultEnded()
	faultEnded := time.Now()
	l.awaitStore()
	l.recoveryTimes = append(l.recoveryTimes, time.Since(faultEnded))
}

func (l *experiment) optionOf(i int) rueidis.ClientOption {
	if l.fault.option != nil {
		return l.fault.option(l, i)
	}
	option, err := redisstore.ParseURL(l.target.url)
	if err != nil {
		l.Fatal(err)
	}
	return option
}

// isPartial is true if the store makes some decisions during the fault: a fault of one server does
// not affect the others of a Cluster.
func (l *experiment) isPartial() bool {
	return l.fault.isPartial || l.target.kind == cluster && l.fault.answeredBy == byPolicies
}

// enough is how many decisions of a source are awaited, from each instance and for each policy.
const enough = 10

// awaitStore waits until the store decides for every policy on every instance.
func (l *experiment) awaitStore() {
	l.Helper()
	l.await("the store decides", func() bool {
		return l.every(func(i, p int) bool {
			return l.load.since(i, p, penstock.FromStore)+l.load.since(i, p, penstock.FromLease) >= enough
		})
	})
}

func (l *experiment) every(ok func(instance, policy int) bool) bool {
	for i := range l.load.instances {
		for p := range policies {
			if !ok(i, p) {
				return false
			}
		}
	}
	return true
}

// awaitRequests waits until n more requests are decided.
func (l *experiment) awaitRequests(n int) {
	l.Helper()
	n += l.load.requests()
	l.await(fmt.Sprint(n, " requests are decided"), func() bool { return l.load.requests() >= n })
}

// forRequests makes a fault last for n requests.
func forRequests(n int) func(*experiment) {
	return func(l *experiment) { l.Helper(); l.awaitRequests(n) }
}

// await waits until a condition is true. It ends the test if that takes too long.
func (l *experiment) await(what string, ok func() bool) {
	l.Helper()
	const limit = 30 * time.Second
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.Fatalf("not within %v: %s\n%v\n%s", limit, what, l.load, l.errors())
		}
	}
}

// storeCalls is how many calls have reached the store.
func (l *experiment) storeCalls() (n int64) {
	for _, i := range l.load.instances {
		n += i.spy.calls.Load()
	}
	return n
}

// do runs commands on the server that has the fault.
func (l *experiment) do(commands ...string) {
	l.Helper()
	for _, c := range commands {
		if _, err := l.target.primary().Do(strings.Fields(c)...); err != nil {
			l.Fatalf("%s: %v", c, err)
		}
	}
}

func noop(*experiment) {}

func undo(l *experiment) { l.undo() }

// do is a step of a fault that only runs commands.
func do(commands ...string) func(*experiment) {
	return func(l *experiment) { l.Helper(); l.do(commands...) }
}
