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

// A world is a fleet and its store, in a bubble of virtual time.
type world struct {
	t      *testing.T
	plan   *plan
	breaks breakage
	book   *book
	server *server
	rng    *rand.Rand // of whoever drives the run
	fleet  []*instance
	born   int
	calls  sync.WaitGroup // under way, and what ends by itself
	asked  map[string]int // keys under which a policy was asked
	probe  penstock.Limit
}

// An instance is a process with all guards.
type instance struct {
	id   int
	link *link
	g    *guard.Guarded
	dead atomic.Bool

	spent atomic.Int64 // answered by leases
}

// timeout is how long the store may take, as guard.Timeout has it by default.
const timeout = 250 * time.Millisecond

// simulate runs a plan to its end, and judges it. It must be called in a bubble.
func simulate(t *testing.T, p *plan, breaks breakage) *book {
	b := newBook(p.ahead)
	w := &world{t: t, plan: p, breaks: breaks, book: b, server: newServer(p.nodes, p.ahead, b), rng: rand.New(rand.NewPCG(p.seed, 2)),
		asked: make(map[string]int)}
	var err error
	if w.probe, err = (penstock.Limit{Name: "probe", Count: 1_000_000, Period: time.Second}).Ready(); err != nil {
		t.Fatal(err)
	}
	for range p.instances {
		w.join()
		time.Sleep(time.Duration(w.rng.Int64N(int64(time.Second))))
	}
	if !p.early {
		time.Sleep(6 * time.Second)
	}
	w.play()
	w.recover()
	w.calls.Wait()
	time.Sleep(3 * time.Second) // what is leased comes back
	w.settle()
	b.judge(p)
	return b
}

func (w *world) join() *instance {
	i := &instance{id: w.born}
	w.born++
	i.link = &link{w: w, id: i.id, rng: rand.New(rand.NewPCG(w.plan.seed, 1000+uint64(i.id))), oneWay: w.plan.oneWay}
	breaker := guard.BreakerOptions{Changed: func(shard string, from, to guard.State) {
		w.book.incident("breaker of instance %d for node %s: %v", i.id, shard, to)
	}}
	if w.breaks.staysOpen {
		breaker.Pause = time.Hour
	}
	denyFor := w.plan.denyFor
	if w.breaks.denyFor > 0 {
		denyFor = w.breaks.denyFor
	}
	var err error
	i.g, err = guard.Standard(i.link, guard.Options{
		Server: i.link,
		Limits: w.plan.settingsOf, Instances: w.plan.floor, DenyFor: denyFor, Breaker: breaker,
		Timeout: guard.TimeoutOptions{After: w.breaks.timeout}, Lease: guard.LeaseOptions{Exact: w.plan.exact},
	})
	if err != nil {
		panic(err)
	}
	w.fleet = append(w.fleet, i)
	return i
}

// some is one of the instances, or nil if there is none.
func (w *world) some(n int) *instance {
	if len(w.fleet) == 0 {
		return nil
	}
	return w.fleet[n%len(w.fleet)]
}

func (w *world) crash(i *instance) {
	i.dead.Store(true)
	i.link.change(func(l *link) { l.dead = true })
	w.leave(i)
}

func (w *world) leave(i *instance) {
	w.fleet = slices.DeleteFunc(w.fleet, func(other *instance) bool { return other == i })
	w.calls.Go(func() {
		i.g.Close()
		w.account(i)
	})
}

// play is the load, with its faults.
func (w *world) play() {
	type moment struct {
		at time.Duration
		do func()
	}
	var due []moment
	later := func(at time.Duration, do func()) {
		due = append(due, moment{at, do})
		slices.SortStableFunc(due, func(a, b moment) int { return int(a.at - b.at) })
	}
	began := w.book.now()
	for i := range w.plan.faults {
		f := &w.plan.faults[i]
		later(began+f.at, func() {
			if end := w.begin(f); end != nil {
				later(w.book.now()+f.long, func() {
					w.book.incident("it ends: %s", faultNames[f.kind])
					end()
				})
			}
		})
	}
	until := func(at time.Duration) {
		for len(due) > 0 && due[0].at <= at {
			first := due[0]
			due = due[1:]
			time.Sleep(first.at - w.book.now())
			first.do()
		}
		time.Sleep(at - w.book.now())
	}
	at := began
	for i := range w.plan.phases {
		h := &w.plan.phases[i]
		at += h.after
		for left := h.asks; left > 0; {
			until(at)
			together := 1
			if h.pattern == bursts && w.rng.IntN(20) == 0 {
				together = min(left, 1+w.rng.IntN(60))
			}
			for range together {
				w.arrive(h)
			}
			left -= together
			at += time.Duration(w.rng.ExpFloat64() * float64(h.gap) * float64(together))
		}
	}
	for len(due) > 0 {
		until(due[0].at)
	}
}

// arrive is one request, at an instance and for limits that the phase prefers.
func (w *world) arrive(h *phase) {
	i := w.some(w.rng.IntN(100))
	if h.pattern == alone || h.pattern == skewed && w.rng.IntN(5) > 0 {
		i = w.some(0)
	}
	if i == nil {
		return
	}
	key := "k0"
	if h.pattern != alone {
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
	case 1: // what is not judged by its bound
		for i := range charges {
			charges[i].Key = "wild"
			charges[i].Mode = penstock.Mode(w.rng.IntN(6))
		}
	}
	ctx, cancel := context.Background(), func() {}
	if w.rng.IntN(10) == 0 && !w.plan.patient {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(w.rng.Int64N(int64(2*timeout))))
	}
	linger := time.Duration(w.rng.ExpFloat64() * float64(time.Second))
	w.calls.Go(func() {
		defer cancel()
		d, err := w.ask(ctx, i, charges)
		if err != nil || !d.Allowed {
			return
		}
		for _, c := range charges {
			if c.Limit.Algorithm.Holds && c.Mode == penstock.Spend && linger < 3*time.Second { // some never release
				time.Sleep(linger)
				w.book.release(c.Holder)
				c.Mode = penstock.Refund
				_, _ = i.g.Decide(context.Background(), []penstock.Charge{c})
			}
		}
	})
}

func (w *world) charge(n int, key string) penstock.Charge {
	policy := &w.plan.policies[n]
	w.asked[key] |= 1 << n
	c := penstock.Charge{Key: key, Limit: policy.limit, Cost: 1}
	if w.rng.IntN(8) == 0 && !policy.limit.Algorithm.Is(penstock.LeakyBucket) {
		c.Cost = 1 + w.rng.Int64N(4)
	}
	if policy.limit.Algorithm.Holds {
		c.Holder = fmt.Sprint("holder", w.rng.Int64())
	}
	// What several shards book is used when the last of them has room, and not judged.
	if policy.limit.Algorithm.Bookable && (c.Cost == 1 || policy.settings.Shards < 2) && w.rng.IntN(3) == 0 {
		plan, _ := policy.limit.Plan()
		c.Patience = min(time.Duration(w.rng.Int64N(int64(time.Second))), plan.MaxPatience())
	}
	return c
}

// ask has an instance decide, and checks what can be checked at once.
func (w *world) ask(ctx context.Context, i *instance, charges []penstock.Charge) (penstock.Decision, error) {
	c := &call{inst: i, charges: charges, began: w.book.now()}
	i.link.change(func(l *link) { c.counted = max(l.counted, w.plan.floor, 1) })
	d, err := i.g.Decide(context.WithValue(ctx, callKey{}, c), slices.Clone(charges))
	if i.dead.Load() {
		return d, errRefused
	}
	w.inTime(ctx, c)
	if err != nil {
		if ctx.Err() == nil && !w.plan.mayFail(charges) || !errors.Is(err, penstock.ErrUnavailable) && ctx.Err() == nil {
			w.book.problem("answer", "%v: %v", c, err)
		}
		return d, err
	}
	w.book.mu.Lock()
	w.book.decisions++
	w.book.sources[d.Source]++
	w.book.mu.Unlock()
	if d.Allowed {
		if d.Source == penstock.FromLease {
			i.spent.Add(charges[0].Cost)
		}
		w.book.admit(c, &d, w.plan)
		if d.Source == penstock.FromClosed || d.Source == penstock.FromDenyCache {
			w.book.problem("bound", "%v was granted by what only denies", c)
		}
	}
	if d.Source == penstock.FromDenyCache {
		w.checkDenial(c)
	}
	return d, nil
}

// mayFail tells whether an error is what a batch may end with: nothing can deny it, and some limit
// is closed; or it unmakes what is leased.
func (p *plan) mayFail(charges []penstock.Charge) bool {
	for i := range charges {
		switch charges[i].Mode {
		case penstock.Force, penstock.Refund, penstock.Reset:
			return true
		}
	}
	return false
}

// inTime checks that a decision took no longer than its questions to the store may, and not longer
// than its context.
func (w *world) inTime(ctx context.Context, c *call) {
	questions, leased := 1, false
	for i := range c.charges {
		s := w.plan.settingsOf(&c.charges[i].Limit)
		if s.Shards > 1 {
			questions += s.Shards + 3
		}
		leased = leased || s.Lease > 1
	}
	if leased {
		questions *= 5 // a draw, two that give back, and its own; or who waits for what is under way
	}
	if w.plan.denyFor >= 0 {
		questions *= 2 // who waits for another's answer asks then
	}
	took := w.book.now() - c.began
	if most := time.Duration(questions) * timeout; took > most {
		w.book.problem("deadline", "%v took %v; at most it may take %v", c, took, most)
	}
	if deadline, ok := ctx.Deadline(); ok && time.Now().After(deadline) {
		w.book.problem("deadline", "%v ended %v after its context", c, time.Since(deadline))
	}
}

// checkDenial asks the store itself what a deny cache has just denied. What gives units back is
// excepted, for as long as a denial lives.
func (w *world) checkDenial(c *call) {
	life := w.plan.denyFor
	if life <= 0 {
		life = time.Second
	}
	if w.book.now()-w.book.last() <= life+time.Second || c.charges[0].Key == "wild" {
		return
	}
	for i := range c.charges {
		s := w.plan.settingsOf(&c.charges[i].Limit)
		if s.Lease > 1 || s.Shards > 1 || c.charges[i].Limit.Algorithm.Holds || c.charges[i].Mode != penstock.Spend {
			return
		}
	}
	if d := w.server.would(c.charges); d.Allowed {
		w.book.problem("denial", "%v was denied by the cache; the store would grant it", c)
	}
}

// recover ends all faults, and sees that every instance is answered by every node soon after.
func (w *world) recover() {
	for n := range w.server.nodes {
		w.server.set(n, well)
	}
	for _, i := range w.fleet {
		i.link.change(func(l *link) {
			l.oneWay, l.loss, l.silence, l.cut, l.frozen = w.plan.oneWay, 0, 0, [2]bool{}, time.Time{}
		})
	}
	w.book.incident("all is well")
	const every, within, enough = 10 * time.Millisecond, time.Second, 16
	end := w.book.now() + within
	var probes sync.WaitGroup
	for _, i := range w.fleet {
		for n := range w.server.nodes {
			key := w.server.keyOf(n)
			probes.Go(func() {
				from := penstock.FromStore
				for row := 0; row < enough && w.book.now() < end; time.Sleep(every) {
					d, err := w.ask(context.Background(), i, []penstock.Charge{{Key: key, Limit: w.probe, Cost: 1}})
					if row++; err != nil || d.Source != penstock.FromStore {
						row = 0
					}
				}
				time.Sleep(end - w.book.now())
				for range enough {
					d, err := w.ask(context.Background(), i, []penstock.Charge{{Key: key, Limit: w.probe, Cost: 1}})
					if from = d.Source; err != nil || from != penstock.FromStore {
						w.book.problem("recovery", "%v after all was well, instance %d is answered by the %s about node %d: %v", within, i.id,
							sourceNames[from], n, err)
						return
					}
				}
			})
		}
	}
	probes.Wait()
}

// settle sees that whatever was used comes back, and that nothing is left.
func (w *world) settle() {
	keep := w.fleet[0]
	for _, i := range slices.Clone(w.fleet[1:]) {
		w.leave(i)
	}
	w.calls.Wait()
	quiet := time.Minute
	for i := range w.plan.policies {
		l := &w.plan.policies[i].limit
		refill := 2 * l.Period
		if l.Burst > l.Count {
			refill = time.Duration(2 * float64(l.Burst+l.Count) / float64(l.Count) * float64(l.Period))
		}
		quiet = max(quiet, refill+time.Minute)
	}
	time.Sleep(quiet)
	for key, policies := range w.asked {
		for n := range w.plan.policies {
			if policies&(1<<n) == 0 || key == "wild" {
				continue
			}
			c := penstock.Charge{Key: key, Limit: w.plan.policies[n].limit, Cost: 1}
			if c.Limit.Algorithm.Holds {
				c.Holder = "last"
			}
			d, err := w.ask(context.Background(), keep, []penstock.Charge{c})
			if err != nil || !d.Allowed || d.Source != penstock.FromStore && d.Source != penstock.FromLease {
				w.book.problem("liveness", "%v after the last ask, a unit of %v under %q: %v from the %s, %v", quiet, c.Limit, key, d,
					sourceNames[d.Source], err)
			}
		}
	}
	keep.g.Close()
	w.account(keep)
}

// account checks that no leased unit is unaccounted for, once an instance is closed.
func (w *world) account(i *instance) {
	s := i.g.Stats().Lease
	i.link.mu.Lock()
	drawn := i.link.drawn
	i.link.mu.Unlock()
	if s.Drawn != s.Spent+s.Returned+s.Expired+s.Lost+s.Live || s.Live != 0 {
		w.book.problem("leases", "instance %d: %+v does not add up", i.id, s)
	}
	if spent := i.spent.Load(); spent != s.Spent && !i.dead.Load() || s.Spent+s.Returned > drawn {
		w.book.problem("leases", "instance %d: %+v; %d units were answered from the lease, and %d drawn", i.id, s, spent, drawn)
	}
}
