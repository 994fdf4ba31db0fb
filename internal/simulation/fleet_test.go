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
	t            *testing.T
	plan         *plan
	broken       breakage
	history      *history
	server       *server
	rng          *rand.Rand // of the goroutine that runs the plan
	fleet        []*instance
	started      int
	calls        sync.WaitGroup // calls in flight, and instances that are closing
	policiesUsed map[string]int // key to a bit for each policy that was used with it
	probe        *penstock.Plan
}

// An instance is a process with all guards.
type instance struct {
	id     int
	link   *link
	g      *guard.Guarded
	isDead atomic.Bool

	spent atomic.Int64 // units decided by leases
}

// timeout is the default of guard.Timeout.
const timeout = 250 * time.Millisecond

// simulate runs a plan to its end, and checks it. It must be called in a synctest bubble.
func simulate(t *testing.T, p *plan, broken breakage) *history {
	b := newHistory(p.clockAhead)
	w := &simulation{t: t, plan: p, broken: broken, history: b, server: newServer(p.nodes, p.clockAhead, b), rng: rand.New(rand.NewPCG(p.seed, 2)),
		policiesUsed: make(map[string]int)}
	var err error
	if w.probe, err = (penstock.Limit{Name: "probe", Count: 1_000_000, Period: time.Second}).Compile(); err != nil {
		t.Fatal(err)
	}
	for range p.instances {
		w.join()
		time.Sleep(time.Duration(w.rng.Int64N(int64(time.Second))))
	}
	if !p.startsEarly {
		time.Sleep(6 * time.Second)
	}
	w.run()
	w.checkRecovery()
	w.calls.Wait()
	time.Sleep(3 * time.Second) // leased units return
	w.checkLiveness()
	b.check(p)
	return b
}

func (w *simulation) join() *instance {
	i := &instance{id: w.started}
	w.started++
	i.link = &link{w: w, id: i.id, rng: rand.New(rand.NewPCG(w.plan.seed, 1000+uint64(i.id))), oneWay: w.plan.oneWay}
	breaker := guard.BreakerOptions{Changed: func(nodeName string, from, to guard.State) {
		w.history.incident("breaker of instance %d for node %s: %v", i.id, nodeName, to)
	}}
	if w.broken.breakerStaysOpen {
		breaker.Pause = time.Hour
	}
	denyFor := w.plan.denyFor
	if w.broken.denyFor > 0 {
		denyFor = w.broken.denyFor
	}
	var err error
	i.g, err = guard.Standard(i.link, guard.Options{
		Server: i.link,
		Limits: w.plan.settingsOf, Instances: w.plan.floor, DenyFor: denyFor, Breaker: breaker,
		Timeout: guard.TimeoutOptions{After: w.broken.timeout},
	})
	if err != nil {
		panic(err)
	}
	w.fleet = append(w.fleet, i)
	return i
}

// instanceAt returns one of the instances, or nil if there is none.
func (w *simulation) instanceAt(n int) *instance {
	if len(w.fleet) == 0 {
		return nil
	}
	return w.fleet[n%len(w.fleet)]
}

func (w *simulation) crash(i *instance) {
	i.isDead.Store(true)
	i.link.update(func(l *link) { l.isDead = true })
	w.leave(i)
}

func (w *simulation) leave(i *instance) {
	w.fleet = slices.DeleteFunc(w.fleet, func(other *instance) bool { return other == i })
	w.calls.Go(func() {
		i.g.Close()
		w.checkLeases(i)
	})
}

// run sends the load, with its faults.
func (w *simulation) run() {
	type moment struct {
		at time.Duration
		do func()
	}
	var due []moment
	later := func(at time.Duration, do func()) {
		due = append(due, moment{at, do})
		slices.SortStableFunc(due, func(a, b moment) int { return int(a.at - b.at) })
	}
	began := w.history.now()
	for i := range w.plan.faults {
		f := &w.plan.faults[i]
		later(began+f.at, func() {
			if end := w.startFault(f); end != nil {
				later(w.history.now()+f.duration, func() {
					w.history.incident("end of: %s", faultNames[f.kind])
					end()
				})
			}
		})
	}
	until := func(at time.Duration) {
		for len(due) > 0 && due[0].at <= at {
			first := due[0]
			due = due[1:]
			time.Sleep(first.at - w.history.now())
			first.do()
		}
		time.Sleep(at - w.history.now())
	}
	at := began
	for i := range w.plan.phases {
		h := &w.plan.phases[i]
		at += h.after
		for left := h.requests; left > 0; {
			until(at)
			together := 1
			if h.pattern == bursts && w.rng.IntN(20) == 0 {
				together = min(left, 1+w.rng.IntN(60))
			}
			for range together {
				w.sendRequest(h)
			}
			left -= together
			at += time.Duration(w.rng.ExpFloat64() * float64(h.gap) * float64(together))
		}
	}
	for len(due) > 0 {
		until(due[0].at)
	}
}

// sendRequest sends one request, to an instance and for limits that the phase prefers.
func (w *simulation) sendRequest(h *phase) {
	i := w.instanceAt(w.rng.IntN(100))
	if h.pattern == single || h.pattern == skewed && w.rng.IntN(5) > 0 {
		i = w.instanceAt(0)
	}
	if i == nil {
		return
	}
	key := "k0"
	if h.pattern != single {
		key = fmt.Sprint("k", w.rng.IntN(w.plan.keys))
	}
	n := h.policy
	if w.rng.IntN(5) == 0 {
		n = w.rng.IntN(len(w.plan.policies))
	}
	charges := []penstock.Charge{w.charge(n, key)}
	if w.rng.IntN(8) == 0 {
		for other := range w.plan.policies {
			if other != n {
				charges = append(charges, w.charge(other, key))
			}
		}
	}
	switch w.rng.IntN(40) {
	case 0:
		for i := range charges {
			charges[i].Mode = penstock.Peek
		}
	case 1: // a key that is not checked against bounds
		for i := range charges {
			charges[i].Key = "wild"
			charges[i].Mode = penstock.Mode(w.rng.IntN(6))
		}
	}
	ctx, cancel := context.Background(), func() {}
	if w.rng.IntN(10) == 0 && !w.plan.hasPatientCallers {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(w.rng.Int64N(int64(2*timeout))))
	}
	hold := time.Duration(w.rng.ExpFloat64() * float64(time.Second))
	w.calls.Go(func() {
		defer cancel()
		d, err := w.decide(ctx, i, charges)
		if err != nil || !d.Allowed {
			return
		}
		for _, c := range charges {
			if c.Plan.Algorithm().NeedsHolder() && c.Mode == penstock.Spend && hold < 3*time.Second { // some holds are never released
				time.Sleep(hold)
				w.history.release(c.Holder)
				c.Mode = penstock.Refund
				_, _ = i.g.Decide(context.Background(), []penstock.Charge{c})
			}
		}
	})
}

func (w *simulation) charge(n int, key string) penstock.Charge {
	policy := &w.plan.policies[n]
	w.policiesUsed[key] |= 1 << n
	c := penstock.Charge{Key: key, Plan: policy.limit, Cost: 1}
	if w.rng.IntN(8) == 0 && policy.limit.Algorithm().Name() != penstock.LeakyBucket.Name() {
		c.Cost = 1 + w.rng.Int64N(4)
	}
	if policy.limit.Algorithm().NeedsHolder() {
		c.Holder = fmt.Sprint("holder", w.rng.Int64())
	}
	// The bookings of several shards begin when the last of them has room, so they are not checked.
	if policy.limit.Algorithm().CanBook() && (c.Cost == 1 || policy.settings.SplitInto < 2) && w.rng.IntN(3) == 0 {
		c.Patience = min(time.Duration(w.rng.Int64N(int64(time.Second))), policy.limit.MaxPatience())
	}
	return c
}

// decide makes an instance decide, and checks what can be checked at once.
func (w *simulation) decide(ctx context.Context, i *instance, charges []penstock.Charge) (penstock.Decision, error) {
	c := &call{inst: i, charges: charges, began: w.history.now()}
	i.link.update(func(l *link) { c.knownInstances = max(l.knownInstances, w.plan.floor, 1) })
	d, err := i.g.Decide(context.WithValue(ctx, callKey{}, c), slices.Clone(charges))
	if i.isDead.Load() {
		return d, errRefused
	}
	w.checkDeadline(ctx, c)
	if err != nil {
		if ctx.Err() == nil && !w.plan.mayFail(charges) || !errors.Is(err, penstock.ErrUnavailable) && ctx.Err() == nil {
			w.history.problem("answer", "%v: %v", c, err)
		}
		return d, err
	}
	w.history.mu.Lock()
	w.history.decisions++
	w.history.sources[d.Source]++
	w.history.mu.Unlock()
	if d.Allowed {
		if d.Source == penstock.FromLease {
			i.spent.Add(charges[0].Cost)
		}
		w.history.admit(c, &d, w.plan)
		if d.Source == penstock.FromClosed || d.Source == penstock.FromDenyCache {
			w.history.problem("bound", "%v was granted by a source that only denies", c)
		}
	}
	if d.Source == penstock.FromDenyCache {
		w.checkDenial(c)
	}
	return d, nil
}

// mayFail returns true if a batch may end with an error: it has a mode that nothing denies, and
// such a batch fails if a limit is closed or leased.
func (p *plan) mayFail(charges []penstock.Charge) bool {
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
func (w *simulation) checkDeadline(ctx context.Context, c *call) {
	calls, leased := 1, false
	for i := range c.charges {
		s := w.plan.settingsOf(c.charges[i].Plan)
		if s.SplitInto > 1 {
			calls += s.SplitInto + 3
		}
		leased = leased || s.Lease > 1
	}
	if leased {
		calls *= 5 // a draw, two returns, and its own call; or a wait for calls in flight
	}
	if w.plan.denyFor >= 0 {
		calls *= 2 // a waiter may make its own call afterwards
	}
	took := w.history.now() - c.began
	if longest := time.Duration(calls) * timeout; took > longest {
		w.history.problem("deadline", "%v took %v; want at most %v", c, took, longest)
	}
	if deadline, ok := ctx.Deadline(); ok && time.Now().After(deadline) {
		w.history.problem("deadline", "%v ended %v after its context", c, time.Since(deadline))
	}
}

// checkDenial compares a denial of the deny cache with the store. It skips denials that are
// younger than the latest credit.
func (w *simulation) checkDenial(c *call) {
	life := w.plan.denyFor
	if life <= 0 {
		life = time.Second
	}
	if w.history.now()-w.history.lastCredit() <= life+time.Second || c.charges[0].Key == "wild" {
		return
	}
	for i := range c.charges {
		s := w.plan.settingsOf(c.charges[i].Plan)
		if s.Lease > 1 || s.SplitInto > 1 || c.charges[i].Plan.Algorithm().NeedsHolder() || c.charges[i].Mode != penstock.Spend {
			return
		}
	}
	if d := w.server.peek(c.charges); d.Allowed {
		w.history.problem("denial", "%v was denied by the cache; the store would grant it", c)
	}
}

// checkRecovery ends all faults, and checks that every node decides for every instance soon after.
func (w *simulation) checkRecovery() {
	for n := range w.server.nodes {
		w.server.setHealth(n, healthy)
	}
	for _, i := range w.fleet {
		i.link.update(func(l *link) {
			l.oneWay, l.requestLoss, l.replyLoss, l.cut, l.frozen = w.plan.oneWay, 0, 0, [2]bool{}, time.Time{}
		})
	}
	w.history.incident("all faults have ended")
	const every, patience, enough = 10 * time.Millisecond, time.Second, 16
	end := w.history.now() + patience
	var probes sync.WaitGroup
	for _, i := range w.fleet {
		for n := range w.server.nodes {
			key := w.server.keyOf(n)
			probes.Go(func() {
				from := penstock.FromStore
				for row := 0; row < enough && w.history.now() < end; time.Sleep(every) {
					d, err := w.decide(context.Background(), i, []penstock.Charge{{Key: key, Plan: w.probe, Cost: 1}})
					if row++; err != nil || d.Source != penstock.FromStore {
						row = 0
					}
				}
				time.Sleep(end - w.history.now())
				for range enough {
					d, err := w.decide(context.Background(), i, []penstock.Charge{{Key: key, Plan: w.probe, Cost: 1}})
					if from = d.Source; err != nil || from != penstock.FromStore {
						w.history.problem("recovery", "%v after the faults, the decisions of instance %d come from the %s for node %d: %v", patience, i.id,
							sourceNames[from], n, err)
						return
					}
				}
			})
		}
	}
	probes.Wait()
}

// checkLiveness checks that used units become free again, and that nothing is left.
func (w *simulation) checkLiveness() {
	keep := w.fleet[0]
	for _, i := range slices.Clone(w.fleet[1:]) {
		w.leave(i)
	}
	w.calls.Wait()
	quiet := time.Minute
	for i := range w.plan.policies {
		l := w.plan.policies[i].limit.Limit()
		refill := 2 * l.Period
		if l.Burst > l.Count {
			refill = time.Duration(2 * float64(l.Burst+l.Count) / float64(l.Count) * float64(l.Period))
		}
		quiet = max(quiet, refill+time.Minute)
	}
	time.Sleep(quiet)
	for key, policies := range w.policiesUsed {
		for n := range w.plan.policies {
			if policies&(1<<n) == 0 || key == "wild" {
				continue
			}
			c := penstock.Charge{Key: key, Plan: w.plan.policies[n].limit, Cost: 1}
			if c.Plan.Algorithm().NeedsHolder() {
				c.Holder = "last"
			}
			d, err := w.decide(context.Background(), keep, []penstock.Charge{c})
			if err != nil || !d.Allowed || d.Source != penstock.FromStore && d.Source != penstock.FromLease {
				w.history.problem("liveness", "%v after the last request, a unit of %v for key %q: %v from the %s, %v", quiet, c.Plan, key, d,
					sourceNames[d.Source], err)
			}
		}
	}
	keep.g.Close()
	w.checkLeases(keep)
}

// checkLeases checks the sums of leased units of a closed instance.
func (w *simulation) checkLeases(i *instance) {
	s := i.g.Stats().Lease
	i.link.mu.Lock()
	drawn := i.link.drawn
	i.link.mu.Unlock()
	if s.Drawn != s.Spent+s.Returned+s.Expired+s.Lost+s.Live || s.Live != 0 {
		w.history.problem("leases", "instance %d: the sums of %+v differ", i.id, s)
	}
	if spent := i.spent.Load(); spent != s.Spent && !i.isDead.Load() || s.Spent+s.Returned > drawn {
		w.history.problem("leases", "instance %d: %+v; the lease decided %d units, and %d were drawn", i.id, s, spent, drawn)
	}
}
