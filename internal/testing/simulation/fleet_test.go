package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// A simulation is a fleet and its store, in a synctest bubble.
type simulation struct {
	t          *testing.T
	scenario   *scenario
	broken     breakage
	history    *history
	server     *server
	rng        *rand.Rand // of the goroutine that runs the scenario
	fleet      []*instance
	started    int            // instances so far
	calls      sync.WaitGroup // calls in flight, and instances that are closing
	limitsUsed map[string]int // by key: a bit for each guarded limit that was used with it
	probe      *penstock.Plan // a limit without denials, for checkRecovery
}

// An instance is a process with all guards.
type instance struct {
	id     int
	link   *link
	store  *guard.Guarded
	isDead atomic.Bool

	spent atomic.Int64 // units that decisions have spent from leases
}

// timeout is the default of guard.Timeout.
const timeout = 250 * time.Millisecond

// wildKey is charged in all modes at random, so no bound is checked for it.
const wildKey = "wild"

// simulate runs a scenario to its end, and checks it. It must be called in a synctest bubble.
func simulate(t *testing.T, sc *scenario, broken breakage) *history {
	h := newHistory(sc.clockAhead)
	sim := &simulation{t: t, scenario: sc, broken: broken, history: h, server: newServer(sc.nodes, sc.clockAhead, h), rng: rand.New(rand.NewPCG(sc.seed, 2)),
		limitsUsed: make(map[string]int)}
	var err error
	if sim.probe, err = (penstock.Limit{Name: "probe", Count: 1_000_000, Period: time.Second}).Compile(); err != nil {
		t.Fatal(err)
	}
	for range sc.instances {
		sim.join()
		time.Sleep(time.Duration(sim.rng.Int64N(int64(time.Second))))
	}
	if !sc.isLoadEarly {
		time.Sleep(6 * time.Second) // until each instance has counted the others by their heartbeats
	}
	sim.run()
	sim.checkRecovery()
	sim.calls.Wait()
	time.Sleep(3 * time.Second) // until instances have returned their idle leases
	sim.checkLiveness()
	h.check(sc)
	return h
}

// join starts another instance.
func (sim *simulation) join() *instance {
	i := &instance{id: sim.started}
	sim.started++
	randomStream := 1000 + uint64(i.id) // no other generator has this one
	i.link = &link{sim: sim, id: i.id, rng: rand.New(rand.NewPCG(sim.scenario.seed, randomStream)), oneWay: sim.scenario.oneWay}
	breaker := guard.BreakerOptions{Changed: func(nodeName string, from, to guard.State) {
		sim.history.addIncident("breaker of instance %d for node %s: %v", i.id, nodeName, to)
	}}
	if sim.broken.isBreakerStuck {
		breaker.Pause = time.Hour
	}
	denyCacheTTL := sim.scenario.denyCacheTTL
	if sim.broken.denyCacheTTL > 0 {
		denyCacheTTL = sim.broken.denyCacheTTL
	}
	var err error
	i.store, err = guard.Standard(i.link, guard.Options{
		Server: i.link,
		Limits: sim.scenario.settingsOf, Instances: sim.scenario.configured, DenyCacheTTL: denyCacheTTL, Breaker: breaker,
		Timeout: guard.TimeoutOptions{After: sim.broken.timeout},
	})
	if err != nil {
		panic(err)
	}
	sim.fleet = append(sim.fleet, i)
	return i
}

// instanceAt returns instance n, modulo the number of instances, or nil if there is none.
func (sim *simulation) instanceAt(n int) *instance {
	if len(sim.fleet) == 0 {
		return nil
	}
	return sim.fleet[n%len(sim.fleet)]
}

// crash cuts an instance off from the store, and ends it.
func (sim *simulation) crash(i *instance) {
	i.isDead.Store(true)
	i.link.update(func(l *link) { l.isDead = true })
	sim.leave(i)
}

// leave ends an instance. If it is not cut off, it returns its leases.
func (sim *simulation) leave(i *instance) {
	sim.fleet = slices.DeleteFunc(sim.fleet, func(other *instance) bool { return other == i })
	sim.calls.Go(func() {
		i.store.Close()
		sim.checkLeases(i)
	})
}

// run sends the load and starts the faults.
func (sim *simulation) run() {
	type event struct {
		at time.Duration
		do func()
	}
	var due []event // sorted by time
	schedule := func(at time.Duration, do func()) {
		due = append(due, event{at, do})
		slices.SortStableFunc(due, func(a, b event) int { return int(a.at - b.at) })
	}
	began := sim.history.now()
	for i := range sim.scenario.faults {
		f := &sim.scenario.faults[i]
		schedule(began+f.at, func() {
			if end := sim.startFault(f); end != nil {
				schedule(sim.history.now()+f.duration, func() {
					sim.history.addIncident("end of: %s", faultNames[f.kind])
					end()
				})
			}
		})
	}
	runUntil := func(at time.Duration) {
		for len(due) > 0 && due[0].at <= at {
			first := due[0]
			due = due[1:]
			time.Sleep(first.at - sim.history.now())
			first.do()
		}
		time.Sleep(at - sim.history.now())
	}
	at := began
	for i := range sim.scenario.phases {
		ph := &sim.scenario.phases[i]
		at += ph.after
		for left := ph.requests; left > 0; {
			runUntil(at)
			together := 1
			if ph.pattern == bursts && sim.rng.IntN(20) == 0 {
				together = min(left, 1+sim.rng.IntN(60))
			}
			for range together {
				sim.sendRequest(ph)
			}
			left -= together
			at += time.Duration(sim.rng.ExpFloat64() * float64(ph.gap) * float64(together))
		}
	}
	for len(due) > 0 {
		runUntil(due[0].at)
	}
}

// sendRequest sends one random request. The phase determines which instance and limit are likely.
func (sim *simulation) sendRequest(ph *phase) {
	i := sim.instanceAt(sim.rng.IntN(100))
	if ph.pattern == single || ph.pattern == skewed && sim.rng.IntN(5) > 0 {
		i = sim.instanceAt(0)
	}
	if i == nil {
		return
	}
	key := "k0"
	if ph.pattern != single {
		key = fmt.Sprint("k", sim.rng.IntN(sim.scenario.keys))
	}
	n := ph.limit
	if sim.rng.IntN(5) == 0 {
		n = sim.rng.IntN(len(sim.scenario.guardedLimits))
	}
	charges := []penstock.Charge{sim.charge(n, key)}
	if sim.rng.IntN(8) == 0 {
		for other := range sim.scenario.guardedLimits {
			if other != n {
				charges = append(charges, sim.charge(other, key))
			}
		}
	}
	switch sim.rng.IntN(40) {
	case 0:
		for j := range charges {
			charges[j].Mode = penstock.Peek
		}
	case 1: // a key that is not checked against bounds, in any mode
		for j := range charges {
			charges[j].Key = wildKey
			charges[j].Mode = penstock.Mode(sim.rng.IntN(int(penstock.Reset) + 1))
		}
	}
	ctx, cancel := context.Background(), func() {}
	if sim.rng.IntN(10) == 0 && !sim.scenario.hasPatientCallers {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(sim.rng.Int64N(int64(2*timeout))))
	}
	holdTime := time.Duration(sim.rng.ExpFloat64() * float64(time.Second))
	sim.calls.Go(func() {
		defer cancel()
		d, err := sim.decide(ctx, i, charges)
		if err != nil || !d.Allowed {
			return
		}
		for _, c := range charges {
			isReleased := holdTime < 3*time.Second // longer holds are never released
			if c.Plan.Algorithm().NeedsHolder() && c.Mode == penstock.Spend && isReleased {
				time.Sleep(holdTime)
				sim.history.recordRelease(c.Holder)
				c.Mode = penstock.Refund
				_, _ = i.store.Decide(context.Background(), []penstock.Charge{c})
			}
		}
	})
}

// charge returns a random charge of guarded limit n.
func (sim *simulation) charge(n int, key string) penstock.Charge {
	guarded := &sim.scenario.guardedLimits[n]
	sim.limitsUsed[key] |= 1 << n
	c := penstock.Charge{Key: key, Plan: guarded.limit, Cost: 1}
	if sim.rng.IntN(8) == 0 && guarded.limit.Algorithm().Name() != penstock.LeakyBucket.Name() {
		c.Cost = 1 + sim.rng.Int64N(4)
	}
	if guarded.limit.Algorithm().NeedsHolder() {
		c.Holder = fmt.Sprint("holder", sim.rng.Int64())
	}
	// A booking of several units in a split limit takes the units from several shards. The turn of the
	// booking is when the last shard has room, and checkBucket does not know the turns of the other
	// shards.
	if guarded.limit.Algorithm().CanBook() && (c.Cost == 1 || guarded.settings.SplitInto < 2) && sim.rng.IntN(3) == 0 {
		c.Patience = min(time.Duration(sim.rng.Int64N(int64(time.Second))), guarded.limit.MaxPatience())
	}
	return c
}

// decide makes an instance decide. It runs the checks that need no later events.
func (sim *simulation) decide(ctx context.Context, i *instance, charges []penstock.Charge) (penstock.Decision, error) {
	c := &call{instance: i, charges: charges, began: sim.history.now()}
	i.link.update(func(l *link) { c.knownInstances = max(l.knownInstances, sim.scenario.configured, 1) })
	d, err := i.store.Decide(context.WithValue(ctx, callKey{}, c), slices.Clone(charges))
	if i.isDead.Load() {
		return d, errRefused
	}
	sim.checkDeadline(ctx, c)
	if err != nil {
		isExpected := sim.scenario.canFail(charges) && errors.Is(err, penstock.ErrUnavailable)
		if ctx.Err() == nil && !isExpected {
			sim.history.addProblem("answer", "%v failed: %v", c, err)
		}
		return d, err
	}
	sim.history.mu.Lock()
	sim.history.decisions++
	sim.history.sources[d.Source]++
	sim.history.mu.Unlock()
	if d.Allowed {
		if d.Source == penstock.FromLease {
			i.spent.Add(charges[0].Cost)
		}
		sim.history.recordAdmission(c, &d, sim.scenario)
		if d.Source == penstock.FromClosed || d.Source == penstock.FromDenyCache {
			sim.history.addProblem("bound", "%v was granted by the %s, which may only deny", c, sourceNames[d.Source])
		}
	}
	if d.Source == penstock.FromDenyCache {
		sim.checkDenial(c)
	}
	return d, nil
}

// canFail returns true if a batch may end with an error. A batch with Force, Refund or Reset cannot
// be denied. So it may fail if the store gives no answer and a limit is closed or leased.
func (sc *scenario) canFail(charges []penstock.Charge) bool {
	for i := range charges {
		switch charges[i].Mode {
		case penstock.Force, penstock.Refund, penstock.Reset:
			return true
		}
	}
	return false
}

// checkDeadline checks that a decision takes no longer than its calls to the store may take, and no
// longer than its context.
func (sim *simulation) checkDeadline(ctx context.Context, c *call) {
	calls, isLeased := 1, false
	for i := range c.charges {
		s := sim.scenario.settingsOf(c.charges[i].Plan)
		if s.SplitInto > 1 {
			calls += s.SplitInto + 3 // one for each shard, and up to three more
		}
		isLeased = isLeased || s.Lease > 1
	}
	if isLeased {
		calls *= 5 // a wait for a call in flight, a draw, two returns, and the caller's own call
	}
	if sim.scenario.denyCacheTTL >= 0 {
		calls *= 2 // a waiter may make its own call afterwards
	}
	took := sim.history.now() - c.began
	if longest := time.Duration(calls) * timeout; took > longest {
		sim.history.addProblem("deadline", "%v took %v; want at most %v", c, took, longest)
	}
	if deadline, ok := ctx.Deadline(); ok && time.Now().After(deadline) {
		sim.history.addProblem("deadline", "%v ended %v after its context", c, time.Since(deadline))
	}
}

// checkDenial compares a denial of the deny cache with the store. It skips denials that may be
// older than the latest credit, because the store may have room again.
func (sim *simulation) checkDenial(c *call) {
	life := sim.scenario.denyCacheTTL // of a cached denial
	if life <= 0 {
		life = time.Second // the default of guard.Deny
	}
	if sim.history.now()-sim.history.lastCredit() <= life+time.Second || c.charges[0].Key == wildKey {
		return
	}
	for i := range c.charges {
		s := sim.scenario.settingsOf(c.charges[i].Plan)
		if s.Lease > 1 || s.SplitInto > 1 || c.charges[i].Plan.Algorithm().NeedsHolder() || c.charges[i].Mode != penstock.Spend {
			return
		}
	}
	if d := sim.server.peek(c.charges); d.Allowed {
		sim.history.addProblem("denial", "%v was denied by the deny cache; the store would grant it", c)
	}
}

// checkRecovery ends all faults. A second later, every node must decide for every instance: enough
// probes in succession must be decided by the store.
func (sim *simulation) checkRecovery() {
	for n := range sim.server.nodes {
		sim.server.setHealth(n, healthy)
	}
	for _, i := range sim.fleet {
		i.link.update(func(l *link) {
			l.oneWay, l.loss, l.isCut, l.frozenUntil = sim.scenario.oneWay, [ways]float64{}, [ways]bool{}, time.Time{}
		})
	}
	sim.history.addIncident("all faults have ended")
	const every, enough = 10 * time.Millisecond, 16 // the time between two probes; the number of probes in succession
	end := sim.history.now() + maxRecovery
	var probes sync.WaitGroup
	for _, i := range sim.fleet {
		for n := range sim.server.nodes {
			key := sim.server.keyOf(n)
			probes.Go(func() {
				sendProbe := func() (penstock.Source, error) {
					d, err := sim.decide(context.Background(), i, []penstock.Charge{{Key: key, Plan: sim.probe, Cost: 1}})
					return d.Source, err
				}
				// Requests during the recovery close the breakers.
				for inSuccession := 0; inSuccession < enough && sim.history.now() < end; time.Sleep(every) {
					source, err := sendProbe()
					if inSuccession++; err != nil || source != penstock.FromStore {
						inSuccession = 0
					}
				}
				time.Sleep(end - sim.history.now())
				for range enough {
					if source, err := sendProbe(); err != nil || source != penstock.FromStore {
						sim.history.addProblem("recovery", "%v after the faults, the decisions of instance %d for node %d come from the %s: %v; want the store", maxRecovery, i.id,
							n, sourceNames[source], err)
						return
					}
				}
			})
		}
	}
	probes.Wait()
}

// checkLiveness checks that used units become free again, and that no unit stays leased.
func (sim *simulation) checkLiveness() {
	last := sim.fleet[0] // the only instance that does not leave
	for _, i := range slices.Clone(sim.fleet[1:]) {
		sim.leave(i)
	}
	sim.calls.Wait()
	quiet := time.Minute // time without requests, in which every limit refills
	for i := range sim.scenario.guardedLimits {
		l := sim.scenario.guardedLimits[i].limit.Limit()
		refill := 2 * l.Period // a sliding window depends on the window before it
		if l.Burst > l.Count { // a bucket that refills for several periods
			refill = time.Duration(2 * float64(l.Burst+l.Count) / float64(l.Count) * float64(l.Period))
		}
		quiet = max(quiet, refill+time.Minute)
	}
	time.Sleep(quiet)
	for key, used := range sim.limitsUsed {
		for n := range sim.scenario.guardedLimits {
			if used&(1<<n) == 0 || key == wildKey {
				continue
			}
			c := penstock.Charge{Key: key, Plan: sim.scenario.guardedLimits[n].limit, Cost: 1}
			if c.Plan.Algorithm().NeedsHolder() {
				c.Holder = "last"
			}
			d, err := sim.decide(context.Background(), last, []penstock.Charge{c})
			if err != nil || !d.Allowed || d.Source != penstock.FromStore && d.Source != penstock.FromLease {
				sim.history.addProblem("liveness", "%v after the last request, the store did not grant a unit of %v for key %q: %v from the %s, %v", quiet, c.Plan, key, d,
					sourceNames[d.Source], err)
			}
		}
	}
	last.store.Close()
	sim.checkLeases(last)
}

// checkLeases checks that a closed instance has accounted for all units that it drew.
func (sim *simulation) checkLeases(i *instance) {
	s := i.store.Stats().Lease
	i.link.mu.Lock()
	drawn := i.link.drawn
	i.link.mu.Unlock()
	if s.Drawn != s.Spent+s.Returned+s.Expired+s.Lost+s.Live || s.Live != 0 {
		sim.history.addProblem("leases", "instance %d: Drawn is not the sum of the other units, or Live is not 0: %+v", i.id, s)
	}
	if spent := i.spent.Load(); spent != s.Spent && !i.isDead.Load() || s.Spent+s.Returned > drawn {
		sim.history.addProblem("leases", "instance %d: decisions spent %d leased units, and replies granted %d; the lease reports %+v", i.id, spent, drawn, s)
	}
}
