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

var seedFlag = flag.Uint64("seed", 0, "the seed of the rows, as a failure prints it; default: another for each run")

// soaking tells whether to take the time to find what is rare.
var soaking = effort.Soak

// TestMain lets more rows run at once than there are processors: they wait most of the time. It is
// also the program of process_test.go and busy_test.go.
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
		_ = flag.Set("test.parallel", map[bool]string{false: "8", true: "4"}[soaking])
	}
	os.Exit(m.Run())
}

// A row is one fault.
type row struct {
	id, name string        // F2, killed
	on       []kind        // where it is tried; default: a single server
	onMore   []kind        // and in a soak
	way      way           // what stands before a single server
	args     []string      // of each single server
	deadline time.Duration // of a decision; default: what the lab finds right
	callers  int           // on each instance; default: 2
	cycles   int           // in a soak; default: 20
	rounds   int           // in a soak, each with a new target; default: 1
	parted   bool          // nodes of a Sentinel's group or a Cluster can be parted from each other

	prepare func(l *lab) // the target, before there are instances
	clocked bool         // the single server has a clock that steps: l.to.clock
	absent  bool         // then the store does not answer from the first
	begin   func(l *lab) // the fault; it has begun when this returns
	lasts   func(l *lab) // what happens during it
	end     func(l *lab) // mends it

	option func(l *lab, instance int) rueidis.ClientOption // how an instance reaches the target; default: by its URL
	also   func(l *lab)                                    // what else must hold in the end

	answered answered          // who answers during the fault
	sees     []penstock.Reason // errors of which each must come to an instance
	may      []penstock.Reason // and those that may. Unknown and Unreached may always: the machine may be slow
	asked    bool              // breakers stay closed: the store refuses at once, and only some limits
	charges  bool              // some questions without an answer are charged
	partial  bool              // some questions are answered by the store during the fault
	forgets  int               // how often the store begins anew
}

// answered says who answers during a fault.
type answered int

const (
	byPolicies answered = iota // each policy in its way, on each instance
	byStore                    // the store, as always
	byAnybody                  // it is over too soon to tell, or comes and goes
)

// A lab runs a row.
type lab struct {
	*testing.T
	row         *row
	seed        uint64
	rng         *rand.Rand
	deadline    time.Duration // of a decision
	to          *target
	load        *load
	faulty      time.Duration // for how long there was one
	reached     int64         // questions that reached the store meanwhile
	callers     int           // on each instance
	cycles      int           // how often the fault comes
	charged     int           // units that no answer tells of, in the end
	kills       int           // and further counts of rows
	mark        int64
	authorities [2]*authority
	undo        func()          // what a row's begin leaves to undo
	back        []time.Duration // how long after the end of each fault the store decided for everybody
	group       group           // what rows on several servers remember
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
			if soaking {
				rounds = max(r.rounds, 1)
			}
			on := r.on
			if soaking {
				on = slices.Concat(on, r.onMore)
			}
			for _, k := range on {
				for range rounds {
					t.Run(string(k), func(t *testing.T) {
						t.Parallel()
						newLab(t, r).run(k)
					})
				}
			}
		})
	}
}

func newLab(t *testing.T, r *row) *lab {
	l := &lab{T: t, row: r, seed: *seedFlag, deadline: 250 * time.Millisecond, cycles: 1}
	if soaking {
		l.deadline, l.cycles = 250*time.Millisecond, cmp.Or(r.cycles, 20)
	}
	l.deadline, l.callers = cmp.Or(r.deadline, l.deadline), cmp.Or(r.callers, 2)
	if l.seed == 0 {
		l.seed = rand.Uint64N(1 << 32)
	}
	l.rng = rand.New(rand.NewPCG(l.seed, 1))
	t.Cleanup(func() {
		if t.Failed() {
			soak := map[bool]string{true: "PENSTOCK_SOAK=1 "}[soaking]
			t.Logf("to run this row again: cd internal/faults && %sgo test -run '^%s$' -seed %d", soak, strings.ReplaceAll(t.Name(), "/", "$/^"), l.seed)
		}
	})
	return l
}

func (l *lab) run(k kind) {
	l.to = start(l.T, k, l.row)
	if l.row.prepare != nil {
		l.row.prepare(l)
	}
	var all []*instance
	for i := range instances {
		all = append(all, openInstance(l.T, l.optionOf(i), l.deadline))
	}
	l.load = startLoad(all, l.callers, l.seed)
	l.Cleanup(l.load.stop)
	if !l.row.absent {
		l.awaitStore()
	}
	for range l.cycles {
		l.cycle()
	}
	l.load.stop()
	l.judge()
}

// cycle begins the fault and ends it.
func (l *lab) cycle() {
	l.asksFor(l.rng.IntN(200)) // so that the fault meets the load anywhere
	l.load.breaks()
	l.row.begin(l)
	l.load.begin(during)
	began, reached := time.Now(), l.reaches()
	if l.row.lasts != nil {
		l.row.lasts(l)
	}
	switch l.row.answered {
	case byPolicies:
		l.await("every policy answers in its way", func() bool {
			return l.every(func(i, p int) bool {
				return l.load.since(i, p, policies[p].answers) >= enough || l.partial() && policies[p].keys == 1 // which may all be elsewhere
			})
		})
	case byStore:
		l.awaitStore()
	case byAnybody:
		l.asksFor(200)
	}
	l.faulty += time.Since(began)
	l.reached += l.reaches() - reached
	l.load.begin(after)
	l.row.end(l)
	l.load.mended()
	mended := time.Now()
	l.awaitStore()
	l.back = append(l.back, time.Since(mended))
}

func (l *lab) optionOf(i int) rueidis.ClientOption {
	if l.row.option != nil {
		return l.row.option(l, i)
	}
	option, err := redisstore.ParseURL(l.to.url)
	if err != nil {
		l.Fatal(err)
	}
	return option
}

// partial tells whether the store answers some questions during the fault: a fault of a server
// leaves the others of a Cluster as they are.
func (l *lab) partial() bool {
	return l.row.partial || l.to.kind == cluster && l.row.answered == byPolicies
}

// enough answers of a kind, from each instance and for each policy.
const enough = 10

// awaitStore waits until the store decides for every policy on every instance.
func (l *lab) awaitStore() {
	l.Helper()
	l.await("the store decides", func() bool {
		return l.every(func(i, p int) bool {
			return l.load.since(i, p, penstock.FromStore)+l.load.since(i, p, penstock.FromLease) >= enough
		})
	})
}

func (l *lab) every(ok func(instance, policy int) bool) bool {
	for i := range l.load.instances {
		for p := range policies {
			if !ok(i, p) {
				return false
			}
		}
	}
	return true
}

// asksFor waits until so many questions more were answered.
func (l *lab) asksFor(n int) {
	l.Helper()
	n += l.load.asks()
	l.await(fmt.Sprint(n, " questions are answered"), func() bool { return l.load.asks() >= n })
}

// asks is what a fault lasts for.
func asks(n int) func(*lab) { return func(l *lab) { l.Helper(); l.asksFor(n) } }

// await waits for a condition, and ends the test if it does not come.
func (l *lab) await(what string, ok func() bool) {
	l.Helper()
	const limit = 30 * time.Second
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.Fatalf("not within %v: %s\n%v\n%s", limit, what, l.load, l.errors())
		}
	}
}

// reaches is how many questions have reached the store.
func (l *lab) reaches() (n int64) {
	for _, i := range l.load.instances {
		n += i.spy.asked.Load()
	}
	return n
}

// do has the fault's server run commands.
func (l *lab) do(commands ...string) {
	l.Helper()
	for _, c := range commands {
		if _, err := l.to.primary().Do(strings.Fields(c)...); err != nil {
			l.Fatalf("%s: %v", c, err)
		}
	}
}

func nothing(*lab) {}

func undo(l *lab) { l.undo() }

// do is a step of a row that is nothing but commands.
func do(commands ...string) func(*lab) { return func(l *lab) { l.Helper(); l.do(commands...) } }
