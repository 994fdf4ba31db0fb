// Package simulate shows what a limit does with requests: it decides them with the real algorithms
// and the store in memory, on a simulated clock.
package simulate

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simclock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/lease"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/memstore"
)

// MaxRequests is the largest number of requests of a simulation, with retries.
const MaxRequests = 10_000_000

// MaxInstances is the largest number of instances.
const MaxInstances = 1000

// A Denied says what a client does after a denial.
type Denied string

// What clients do after a denial.
const (
	Drop  Denied = "drop"  // the request is gone
	Wait  Denied = "wait"  // the request is sent again after RetryAfter
	Retry Denied = "retry" // the request is sent again after retryGap, whatever RetryAfter says
)

const (
	retryGap   = 100 * time.Millisecond
	maxRetries = 3 // of one request
)

// Options configure Run.
type Options struct {
	Limit    *penstock.Plan
	Arrivals *Arrivals
	Cost     int64         // units of each request
	Patience time.Duration // how long a request may wait for its turn
	PerKey   bool          // each client has a counter of its own. Otherwise all requests share one
	OnDenied Denied
	Seed     uint64

	Instances        int   // that share the limit. They take turns
	Lease            int64 // that an instance draws in advance at most, as in guard.Settings
	OnFailure        guard.FailureMode
	DownFrom, DownTo time.Duration // the store gives no answer in this time. DownTo is 0 if it always does

	Regions Regions // if there are several, they have no Instances, and their stores never fail

	// Observe is called for each decision, in order. Default: none.
	Observe func(Decision)
}

// A Decision is the answer to one request. Its durations are in seconds in JSON.
type Decision struct {
	At         Seconds         `json:"at"`     // since the start
	Client     int64           `json:"client"` // 0 for all streams; the clients of each item are 1, 2, 3
	Try        int             `json:"try"`    // 1 is the first one
	IsAllowed  bool            `json:"allowed"`
	Remaining  int64           `json:"remaining"`
	RetryAfter Seconds         `json:"retry_after"`
	Wait       Seconds         `json:"wait"`
	Source     penstock.Source `json:"-"`
	Region     int             `json:"region,omitempty"` // from 1; 0 if there is only one
}

// Seconds is a duration that JSON has in seconds.
type Seconds time.Duration

// MarshalJSON writes the seconds as a number, or null for a time that never comes.
func (s Seconds) MarshalJSON() ([]byte, error) {
	if time.Duration(s) == penstock.Never {
		return []byte("null"), nil
	}
	return fmt.Appendf(nil, "%.6f", time.Duration(s).Seconds()), nil
}

// A Result counts what a limit did.
type Result struct {
	Requests  int64 `json:"requests"` // with retries
	Retries   int64 `json:"retries"`
	Allowed   int64 `json:"allowed"`
	Denied    int64 `json:"denied"`
	GivenUp   int64 `json:"given_up"`   // requests that were denied and not sent again
	InOutage  int64 `json:"in_outage"`  // decisions while the store was down
	MostUnits int64 `json:"most_units"` // that one counter admitted in any interval of one Period

	Leased     int64 `json:"leased,omitempty"`      // decisions that needed no call to the store
	StoreCalls int64 `json:"store_calls,omitempty"` // that the store has answered; not counted with regions

	// Bound is how many units of MostUnits the instances or regions can admit together. It is missing
	// if they can admit any number, or if there are neither regions nor leases nor an outage.
	Bound     int64   `json:"bound,omitempty"`
	ByRegion  []int64 `json:"allowed_by_region,omitempty"`
	Exchanged int64   `json:"messages,omitempty"` // between regions, in both directions

	LongestWait Seconds `json:"longest_wait"`
	Duration    Seconds `json:"duration"` // until the last decision
}

// A Report has what penstock simulate -o json prints.
type Report struct {
	Seed        uint64       `json:"seed"`
	Simulations []Simulation `json:"simulations"` // of each algorithm
}

// A Simulation is what one algorithm did.
type Simulation struct {
	Limit     string   `json:"limit"`
	Algorithm string   `json:"algorithm"`
	Regions   int      `json:"regions,omitempty"`
	Across    string   `json:"across,omitempty"`
	Bounds    []string `json:"bounds"` // how much is admitted at most
	Note      string   `json:"note,omitempty"`
	Arrivals  string   `json:"arrivals"`
	Result
	Timeline  []Row      `json:"timeline"`
	Decisions []Decision `json:"decisions,omitempty"`

	Period time.Duration `json:"-"` // of the limit
}

// A request is one try of a request.
type request struct {
	client int64
	try    int
	item   int
	next   func() (time.Duration, bool) // of a stream's request. nil for clients and retries
}

// A run is the state of a simulation.
type run struct {
	options   Options
	rng       *rand.Rand
	clock     *simclock.Clock
	start     time.Time
	instances []penstock.Store
	admitted  map[int64]*window // by counter
	open      int               // how many requests are due, or wait for their turn
	regions   []*region
	result    Result
	err       error // ends the simulation
}

// Run decides all requests of the arrivals.
func Run(ctx context.Context, o Options) (*Result, error) {
	return newRun(o).run(ctx)
}

func newRun(o Options) *run {
	start := startFor(o.Limit)
	return &run{options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), start: start, clock: simclock.New(start), admitted: make(map[int64]*window)}
}

func (r *run) run(ctx context.Context) (*Result, error) {
	if r.options.Regions.Count > 1 {
		r.err = r.makeRegions()
	} else {
		r.makeInstances()
	}
	for i := range r.options.Arrivals.Items {
		r.begin(i, &r.options.Arrivals.Items[i])
	}
	for r.open > 0 && r.err == nil {
		if r.result.Requests%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if r.result.Requests == MaxRequests {
			return nil, fmt.Errorf("there are more than %d requests; write fewer arrivals, or a shorter time", MaxRequests)
		}
		r.clock.Next()
	}
	if r.err != nil {
		return nil, fmt.Errorf("request %d, at %s: %w", r.result.Requests+1, wording.Period(r.now()), r.err)
	}
	r.result.Duration = Seconds(r.now())
	r.addBound()
	return &r.result, nil
}

// now returns the time since the start.
func (r *run) now() time.Duration { return r.clock.Now().Sub(r.start) }

// schedule lets something happen that the simulation waits for.
func (r *run) schedule(at time.Duration, do func()) {
	if at > maxDuration {
		return
	}
	r.open++
	r.clock.Schedule(r.start.Add(at), func() {
		r.open--
		do()
	})
}

// startFor returns the time at which a simulation begins: when a window of the limit begins.
func startFor(limit *penstock.Plan) time.Time {
	period := limit.Limit().Period
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Sub(time.Unix(0, 0))
	return time.Unix(0, 0).Add((since + period - 1) / period * period)
}

// makeInstances makes the store that all instances share, and the instances.
func (r *run) makeInstances() {
	const counters = MaxRequests // there is at most one for each request
	shared := memstore.New(memstore.Options{Now: r.clock.Now, Locks: 1, MaxCounters: counters})
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if r.isDown() {
			return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonUnreachable, nil)
		}
		r.result.StoreCalls++
		return shared.Decide(ctx, charges)
	})
	guards := r.options.guards()
	for range guards.Instances {
		instance := penstock.Wrap(store, guard.Fallback(guard.FallbackOptions{
			OnFailure: guards.OnFailure, MaxCounters: counters, Now: r.clock.Now, Instances: func() int { return guards.Instances },
		}))
		if r.options.Lease > 0 {
			instance = r.withLease(instance, guards)
		}
		r.instances = append(r.instances, instance)
	}
}

// guards are the options of the guards around each instance.
func (o *Options) guards() guard.Options {
	return guard.Options{OnFailure: o.OnFailure, Instances: max(o.Instances, 1), DenyCacheTTL: -1,
		Limits: func(*penstock.Plan) guard.Settings { return guard.Settings{Lease: o.Lease} }}
}

// withLease puts leases around an instance. Their calls of the store take no time, so a decision
// includes all draws and refunds that it causes.
func (r *run) withLease(instance penstock.Store, guards guard.Options) penstock.Store {
	l := lease.New(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return instance.Decide(context.WithoutCancel(ctx), charges) // deadlines are those of the wall clock
	}), lease.Options{
		Block:     func(plan *penstock.Plan) int64 { return guards.Limits(plan).Lease },
		Counters:  func(*penstock.Plan) int { return 1 },
		Instances: func() int { return guards.Instances },
		Clock:     r.clock,
	})
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		defer l.Wait()
		return l.Decide(ctx, charges)
	})
}

// Bounds returns what all instances together guarantee for the limit: the limit itself, leases, and
// the outage.
func (o *Options) Bounds() []guard.Bound {
	return slices.DeleteFunc(o.guards().Bounds(o.Limit), func(b guard.Bound) bool {
		isOfOutage := b.When == "store fails" || b.When == "store returns"
		return b.When != "always" && b.When != "leased" && (!isOfOutage || o.DownTo == 0)
	})
}

// addBound adds the bound of an interval of one Period.
func (r *run) addBound() {
	switch o := &r.options; {
	case len(r.regions) > 0:
		r.addBoundOfRegions()
	case o.Lease > 0 || o.DownTo > 0:
		r.result.Bound = regions.Within(o.Limit, o.Limit.Limit().Period)
		for _, b := range o.Bounds() {
			if b.MaxExcess == math.MaxInt64 {
				r.result.Bound = 0
				return
			}
			r.result.Bound += b.MaxExcess
		}
	}
}

func (r *run) isDown() bool { return r.now() >= r.options.DownFrom && r.now() < r.options.DownTo }

// begin schedules the first request of a stream, or of each client of an item.
func (r *run) begin(i int, it *Item) {
	if !it.IsClients {
		next := it.Stream(rand.New(rand.NewPCG(r.options.Seed, uint64(i)+1)))
		if at, ok := next(); ok {
			r.arrive(at, request{try: 1, item: i, next: next})
		}
		return
	}
	for n := range it.Count {
		if at := it.From + it.Join(n); at < it.To {
			r.arrive(at, request{client: n + 1, try: 1, item: i})
		}
	}
}

// arrive schedules a request.
func (r *run) arrive(at time.Duration, q request) { r.schedule(at, func() { r.decide(q) }) }

// decide decides a request, and schedules what follows it.
func (r *run) decide(q request) {
	counter := int64(0)
	if r.options.PerKey {
		counter = q.client
	}
	at := int(r.result.Requests % int64(len(r.instances)))
	if where := r.options.Arrivals.Items[q.item].region; where > 0 {
		at = where - 1
	}
	instance := r.instances[at]
	d, err := instance.Decide(context.Background(), []penstock.Charge{{
		Key: fmt.Sprintf("client %d", counter), Plan: r.options.Limit, Cost: r.options.Cost, Patience: r.options.Patience,
	}})
	if err != nil {
		r.err = err
		return
	}
	status := d.Status(0)
	retryAfter := d.RetryAfter()
	r.count(q, &d, counter)
	number := 0 // of the region
	if len(r.regions) > 0 {
		number = at + 1
		r.regions[at].count(r.now(), r.options.Cost, counter, d.Allowed)
	}
	if r.options.Observe != nil {
		r.options.Observe(Decision{Seconds(r.now()), q.client, q.try, d.Allowed, status.Remaining, Seconds(retryAfter), Seconds(status.Wait), d.Source, number})
	}
	if q.next != nil {
		if at, ok := q.next(); ok {
			r.arrive(at, request{try: 1, item: q.item, next: q.next})
		}
	}
	if !d.Allowed && q.try <= maxRetries && r.options.OnDenied != Drop && retryAfter != penstock.Never {
		after := retryGap
		if r.options.OnDenied == Wait {
			after = max(retryAfter, time.Microsecond)
		}
		r.arrive(r.now()+after, request{client: q.client, try: q.try + 1, item: q.item})
		return
	}
	if !d.Allowed {
		r.result.GivenUp++
	}
	if it := &r.options.Arrivals.Items[q.item]; it.IsClients {
		if at := r.now() + status.Wait + it.Think(r.rng); at < it.To {
			r.arrive(at, request{client: q.client, try: 1, item: q.item})
		}
	}
}

func (r *run) count(q request, d *penstock.Decision, counter int64) {
	result := &r.result
	result.Requests++
	if q.try > 1 {
		result.Retries++
	}
	if d.Source == penstock.FromLease {
		result.Leased++
	}
	if r.isDown() {
		result.InOutage++
	}
	if !d.Allowed {
		result.Denied++
		return
	}
	result.Allowed++
	wait := d.Status(0).Wait
	if wait == 0 {
		r.admit(counter)
		return
	}
	result.LongestWait = max(result.LongestWait, Seconds(wait))
	r.schedule(r.now()+wait, func() { r.admit(counter) })
}

// admit counts a request that is admitted now.
func (r *run) admit(counter int64) {
	w := r.admitted[counter]
	if w == nil {
		w = &window{}
		r.admitted[counter] = w
	}
	r.result.MostUnits = max(r.result.MostUnits, w.add(r.now(), r.options.Cost, r.options.Limit.Limit().Period))
}

// A window has the grants of the last Period, the oldest first.
type window struct {
	grants []grant
	units  int64
}

type grant struct {
	at    time.Duration
	units int64
}

// add adds a grant, and returns how many units the Period that ends with it has.
func (w *window) add(at time.Duration, units int64, period time.Duration) int64 {
	w.units += units
	if last := len(w.grants) - 1; last >= 0 && w.grants[last].at == at {
		w.grants[last].units += units
	} else {
		w.grants = append(w.grants, grant{at, units})
	}
	old := 0
	for ; w.grants[old].at <= at-period; old++ {
		w.units -= w.grants[old].units
	}
	w.grants = w.grants[old:]
	return w.units
}
