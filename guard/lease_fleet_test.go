package guard_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A leaseFleet is instances with leases over one store. It records when units were admitted. Units
// from the store count when they are charged, units from a lease when they are spent.
type leaseFleet struct {
	t       *testing.T
	seed    uint64
	store   penstock.Store
	limit   *penstock.Plan
	start   time.Time
	options guard.LeaseSetup

	mu        sync.Mutex
	admitted  []admission
	drawn     int64 // units that the store granted to draws
	lostUnits int64 // drawn units whose answers did not arrive
	crashes   int
	pauses    int
}

type admission struct {
	at    time.Duration
	units int64
}

// newLeaseFleet returns a fleet whose n instances count each other. It starts no instance.
func newLeaseFleet(t *testing.T, seed uint64, limit *penstock.Plan, n int, o guard.LeaseSetup) *leaseFleet {
	o.Instances = func() int { return n }
	return &leaseFleet{t: t, seed: seed, store: memstore.New(memstore.Options{}), limit: limit, start: time.Now(), options: o}
}

func (f *leaseFleet) admit(at time.Time, units int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admitted = append(f.admitted, admission{at: at.Sub(f.start), units: units})
}

// A member is one instance, and its link to the store. A crash cuts the link. A pause stops the
// whole instance.
type member struct {
	fleet *leaseFleet
	lease *guard.Lease

	mu          sync.Mutex
	rng         *rand.Rand
	isDead      bool
	pausedUntil time.Time
	decidedAt   time.Time // when the store decided the last draw that was answered
	drawn       int64     // granted by the store, in answers that the lease received
	returned    int64     // refunded by the store, in answers that the lease received
	spent       int64     // by decisions from the lease
}

// newMember returns an instance. The stream of random numbers must be its own.
func (f *leaseFleet) newMember(stream uint64) *member {
	m := &member{fleet: f, rng: rand.New(rand.NewPCG(f.seed, stream))}
	m.lease = guard.NewLease(penstock.StoreFunc(m.roundTrip), f.options)
	return m
}

// waitUntilAwake waits until the instance is not paused, and returns whether it has not crashed.
func (m *member) waitUntilAwake() (isAlive bool) {
	for {
		m.mu.Lock()
		wait := time.Until(m.pausedUntil)
		isDead := m.isDead
		m.mu.Unlock()
		if wait <= 0 {
			return !isDead
		}
		time.Sleep(wait)
	}
}

// roundTrip sends charges to the store and waits for the answer. A client whose context has ended
// sends nothing more, but what it has sent arrives.
func (m *member) roundTrip(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	there, back := m.delay(), m.delay()
	if !m.waitUntilAwake() {
		return penstock.Decision{}, errDown
	}
	if ctx.Err() != nil {
		return penstock.Decision{}, ctx.Err()
	}
	time.Sleep(there)
	d, err := m.fleet.store.Decide(context.WithoutCancel(ctx), charges)
	if err != nil {
		return d, err
	}
	mode, granted := charges[0].Mode, d.Status(0).Granted
	m.fleet.mu.Lock()
	if mode == penstock.Draw {
		m.fleet.drawn += granted
	}
	m.fleet.mu.Unlock()
	if mode == penstock.Spend && d.Allowed {
		m.fleet.admit(time.Now(), granted)
	}
	decidedAt := time.Now()
	isLost := m.oneIn(200)
	if isLost {
		time.Sleep(30 * time.Millisecond)
	} else {
		time.Sleep(back)
	}
	isAlive := m.waitUntilAwake()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case isLost || !isAlive:
		if mode == penstock.Draw {
			m.fleet.mu.Lock()
			m.fleet.lostUnits += granted
			m.fleet.mu.Unlock()
		}
		return penstock.Decision{}, errDown
	case mode == penstock.Draw:
		m.drawn += granted
		m.decidedAt = decidedAt
	case mode == penstock.Refund:
		m.returned += granted
	}
	return d, nil
}

// oneIn returns true in one of n cases.
func (m *member) oneIn(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rng.IntN(n) == 0
}

// delay returns a random time below 3 ms: how long a message takes.
func (m *member) delay() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.rng.IntN(3000)) * time.Microsecond
}

// run makes calls at changing rates. Some of its pauses are longer than LeaseOptions.Life.
func (m *member) run(length time.Duration) {
	gaps := []time.Duration{300 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond}
	end := time.Now().Add(length)
	for time.Now().Before(end) {
		m.mu.Lock()
		gap, phase := gaps[m.rng.IntN(len(gaps))], time.Duration(100+m.rng.IntN(1900))*time.Millisecond
		cost := int64(1 + m.rng.IntN(3)/2) // 1, or sometimes 2
		if m.rng.IntN(4) == 0 {
			m.pausedUntil = time.Now().Add(time.Duration(m.rng.IntN(2500)) * time.Millisecond)
			m.fleet.mu.Lock()
			m.fleet.pauses++
			m.fleet.mu.Unlock()
		}
		m.mu.Unlock()
		for stop := time.Now().Add(phase); time.Now().Before(stop) && time.Now().Before(end); time.Sleep(gap) {
			if !m.waitUntilAwake() {
				return
			}
			m.spend(cost)
		}
	}
}

// spend spends units. If it waits for a draw, the units count from when the store decided the draw,
// as without a lease.
func (m *member) spend(cost int64) (d penstock.Decision, err error) {
	calledAt := time.Now()
	d, err = m.lease.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: m.fleet.limit, Cost: cost}})
	if err == nil && d.Source == penstock.FromLease {
		at := time.Now()
		m.mu.Lock()
		m.spent += cost
		if at.After(calledAt) && m.decidedAt.After(calledAt) {
			at = m.decidedAt
		}
		m.mu.Unlock()
		m.fleet.admit(at, cost)
	}
	return d, err
}

// crash cuts the link, and checks that all units are accounted for.
func (m *member) crash() {
	m.mu.Lock()
	m.isDead = true
	m.mu.Unlock()
	m.checkUnits()
}

// checkUnits checks that the counts of the lease add up.
func (m *member) checkUnits() {
	s := m.lease.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Drawn != s.Spent+s.Returned+s.Expired+s.Lost+s.Live || s.Spent != m.spent {
		m.fleet.t.Errorf("seed %d: the stats are %+v; want Drawn = Spent+Returned+Expired+Lost+Live, and %d spent", m.fleet.seed, s, m.spent)
	}
	if s.Drawn > m.drawn || s.Returned > m.returned { // the lease may not have received the answer yet
		m.fleet.t.Errorf("seed %d: the stats are %+v; want at most %d drawn and %d returned, as the store granted", m.fleet.seed, s, m.drawn, m.returned)
	}
}

// play runs n instances with crashes and pauses. After a crash, another lease takes the instance's
// place. play returns how many units were spent from leases, and how many were admitted in all.
func (f *leaseFleet) play(n int, length time.Duration) (leased, all int64) {
	rng := rand.New(rand.NewPCG(f.seed, 1<<40))
	var total guard.LeaseStats
	var instances sync.WaitGroup
	for instance := range n {
		stretches := make([]time.Duration, 0, 8) // times between crashes
		for rest := length; rest > 0; {
			stretch := time.Duration(1+rng.IntN(8)) * time.Second
			stretches = append(stretches, min(stretch, rest))
			rest -= stretch
		}
		instances.Go(func() {
			for i, stretch := range stretches {
				m := f.newMember(uint64(instance*1000 + i))
				m.run(stretch)
				isLast := i == len(stretches)-1
				if !isLast {
					m.crash()
				} else if m.waitUntilAwake(); m.lease.Close(context.Background()) != nil {
					f.t.Errorf("seed %d: Close returned an error; want nil", f.seed)
				}
				m.checkUnits()
				s := m.lease.Stats()
				if isLast && (s.Live != 0 || s.Drawn != m.drawn) {
					f.t.Errorf("seed %d: after Close, the stats are %+v; want 0 live units, and %d drawn", f.seed, s, m.drawn)
				}
				f.mu.Lock()
				total.Drawn, total.Spent = total.Drawn+m.drawn, total.Spent+s.Spent
				if !isLast {
					f.crashes++
				}
				f.mu.Unlock()
			}
		})
	}
	instances.Wait()
	time.Sleep(10 * time.Second) // until no call is in flight
	slices.SortStableFunc(f.admitted, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
	for _, a := range f.admitted {
		all += a.units
	}
	if total.Drawn+f.lostUnits > f.drawn {
		f.t.Errorf("seed %d: %d units were drawn or lost, and the store granted %d; want at most as many drawn or lost as granted", f.seed, total.Drawn+f.lostUnits, f.drawn)
	}
	return total.Spent, all
}

// excess returns the largest number of units by which the admissions of any interval exceeded a
// bucket with the limit's burst and rate.
func (f *leaseFleet) excess() int64 {
	rate := float64(f.limit.Limit().Count) / float64(f.limit.Limit().Period)
	burst := float64(f.limit.Limit().Count)
	if f.limit.Limit().Burst > 0 {
		burst = float64(f.limit.Limit().Burst)
	}
	most, level := -burst, 0.0 // the level of a bucket that gets every unit
	var last time.Duration
	for _, a := range f.admitted {
		level = max(level-rate*float64(a.at-last), 0) + float64(a.units)
		last = a.at
		most = max(most, level-burst)
	}
	// Round up, but ignore less than 0.01 units. Such a fraction can come from the rounding of times
	// to µs.
	return int64(most + 0.99)
}

// maxInWindow returns the most units that were admitted in a window. If isSliding is true, a window
// may begin at any time. If it is false, a window begins at a multiple of its length.
func (f *leaseFleet) maxInWindow(isSliding bool) (most int64) {
	period := f.limit.Limit().Period
	start := f.start.UnixNano() // admissions count from here
	var sum int64
	first := 0
	for i, a := range f.admitted {
		for {
			old := f.admitted[first].at
			isInWindow := a.at-old < period
			if !isSliding {
				isInWindow = (start+int64(old))/int64(period) == (start+int64(a.at))/int64(period)
			}
			if isInWindow {
				break
			}
			sum -= f.admitted[first].units
			if first++; first > i {
				break
			}
		}
		sum += a.units
		most = max(most, sum)
	}
	return most
}

func TestFleetOfLeasesStaysWithinItsBound(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	runs, crashes, pauses := 0, 0, 0
	var leased, all, most int64 // leased and all: units of the fleets with known seeds
	for round := range 2 {
		seed, isKnown := effort.Seed(), round == 0
		if isKnown {
			seed = 0
		}
		for n := 1; n <= 8; n++ {
			for range effort.Of(1, 60) {
				seed++
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 0))
					limit := penstock.PerSecond(50 + rng.Int64N(4000)).WithBurst(100 + rng.Int64N(4000))
					f := newLeaseFleet(t, seed, limit.MustCompile(), n, guard.LeaseSetup{Limits: leaseUpTo(2 + rng.Int64N(200))})
					spent, admitted := f.play(n, 12*time.Second)
					bound := f.options.Excess(f.limit)
					excess := f.excess()
					if excess > bound {
						t.Errorf("seed %d: %d instances admitted %d units beyond the limit %v; the bound is %d", seed, n, excess, limit, bound)
					}
					if bound > 0 {
						most = max(most, excess*100/bound)
					}
					runs++
					crashes += f.crashes
					pauses += f.pauses
					if isKnown {
						leased += spent
						all += admitted
					}
				})
			}
		}
	}
	if leased*5 < all {
		t.Errorf("%d of %d units were spent from leases; want at least a fifth", leased, all)
	}
	t.Logf("counted: %d runs of fleets with leases (%d crashes, %d pauses; %d of %d units leased; at most %d%% of a bound reached)",
		runs, crashes, pauses, leased, all, most)
}

func TestLeasesOfWindowsAdmitNothingBeyondThem(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	runs := 0
	var leased, all int64 // units of the fleets with known seeds
	for _, row := range []struct {
		limit     penstock.Limit
		isSliding bool
	}{
		{limit: penstock.Limit{Name: "fixed", Algorithm: penstock.FixedWindow}},
		{limit: penstock.Limit{Name: "sliding", Algorithm: penstock.SlidingWindow}},
		{limit: penstock.Limit{Name: "sub", Algorithm: penstock.SubWindow(4)}, isSliding: true},
		{limit: penstock.Limit{Name: "short", Algorithm: penstock.SubWindow(60)}, isSliding: true},
	} {
		for i := range uint64(effort.Of(2, 160)) {
			seed, isKnown := effort.Seed()+i, i == 0
			if isKnown {
				seed = 0
			}
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 0))
				n := 1 + rng.IntN(8)
				limit := row.limit
				limit.Period = time.Duration(700+rng.IntN(5000)) * time.Millisecond
				limit.Count = 100 + rng.Int64N(10_000)
				f := newLeaseFleet(t, seed, limit.MustCompile(), n, guard.LeaseSetup{Limits: leaseUpTo(2 + rng.Int64N(200))})
				spent, admitted := f.play(n, 12*time.Second)
				if most := f.maxInWindow(row.isSliding); most > limit.Count {
					t.Errorf("seed %d: %d instances admitted %d units in a window of the limit %v; want at most %d", seed, n, most, limit, limit.Count)
				}
				runs++
				if isKnown {
					leased += spent
					all += admitted
				}
			})
		}
	}
	if leased*5 < all {
		t.Errorf("%d of %d units were spent from leases; want at least a fifth", leased, all)
	}
	t.Logf("counted: %d runs of fleets with leased windows (%d of %d units leased)", runs, leased, all)
}

// In the worst case, every instance holds a block when the bucket is full again. Then all blocks
// and the whole bucket are spent in one burst.
func TestBoundOfLeasesIsReached(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, burst = 8, 4000
		store := memstore.New(memstore.Options{})
		o := guard.LeaseSetup{Limits: leaseUpTo(1000), Instances: func() int { return n }}
		limit := compiled(t, penstock.PerSecond(burst))
		bound := int64(n * (burst / 4 / n)) // each instance holds its part of a quarter of the burst
		if got := o.Excess(limit); got != bound {
			t.Fatalf("Excess is %d; want %d", got, bound)
		}
		nearlyABlock := bound / n * 9 / 10
		const warmUp = 800 // rounds in which the keys become busy, so that leases draw whole blocks
		var leases []*guard.Lease
		for range n {
			leases = append(leases, newLease(t, store, o))
		}
		for round := range 2000 {
			for _, l := range leases {
				if round > warmUp && l.Stats().Live > nearlyABlock {
					continue
				}
				if _, err := l.Decide(t.Context(), one(limit, "k")); err != nil {
					t.Fatal(err)
				}
			}
			if round > warmUp && allHold(leases, nearlyABlock) {
				break
			}
			time.Sleep(2500 * time.Microsecond)
		}
		time.Sleep(300 * time.Millisecond) // the store's bucket refills the units that the leases hold
		admitted := int64(0)
		for _, l := range leases {
			for {
				d, err := l.Decide(t.Context(), one(limit, "k"))
				if err != nil {
					t.Fatal(err)
				}
				if !d.Allowed {
					break
				}
				admitted++
			}
		}
		excess := admitted - burst
		t.Logf("%d units beyond the burst of %d; the bound is %d", excess, burst, bound)
		if excess > bound || excess < bound/2 {
			t.Errorf("%d units were admitted beyond the burst; want %d to %d", excess, bound/2, bound)
		}
	})
}

// allHold returns true if each lease holds at least this many units.
func allHold(leases []*guard.Lease, units int64) bool {
	for _, l := range leases {
		if l.Stats().Live < units {
			return false
		}
	}
	return true
}
