// Package simulate shows what a limit does with requests: it decides them with the real algorithms
// and the store in memory, on a simulated clock.
package simulate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
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

	Instances        int // that share the limit. They take turns
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

	// Bound is how many units of MostUnits the regions can admit together. 0: there is one region.
	Bound     int64   `json:"bound,omitempty"`
	ByRegion  []int64 `json:"allowed_by_region,omitempty"`
	Exchanged int64   `json:"messages,omitempty"` // between regions, in both directions

	LongestWait Seconds `json:"longest_wait"`
	Duration    Seconds `json:"duration"` // until the last decision
}

// An event is a request that is due.
type event struct {
	at     time.Duration
	order  int64 // of events at one time
	client int64
	try    int
	item   int
	next   func() (time.Duration, bool) // of a stream's request. nil for clients and retries

	act        func() error // not a request, but something else that happens now
	isExchange bool         // a message between regions, after the last of which nothing ends
}

// events is a heap; the first is the next one that is due.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].order, e[j].order)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// A run is the state of a simulation.
type run struct {
	options   Options
	rng       *rand.Rand
	due       events
	scheduled int64 // events so far
	start     time.Time
	now       time.Duration // since start
	instances []penstock.Store
	admitted  map[int64]*window // by counter
	open      int               // how many events are due that are no messages between regions
	regions   []*region
	result    Result
}

// Run decides all requests of the arrivals.
func Run(ctx context.Context, o Options) (*Result, error) {
	return newRun(o).run(ctx)
}

func newRun(o Options) *run {
	return &run{options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), start: startFor(o.Limit), admitted: make(map[int64]*window)}
}

func (r *run) run(ctx context.Context) (*Result, error) {
	if r.options.Regions.Count > 1 {
		if err := r.makeRegions(); err != nil {
			return nil, err
		}
	} else {
		r.makeInstances()
	}
	for i := range r.options.Arrivals.Items {
		r.begin(i, &r.options.Arrivals.Items[i])
	}
	for r.open > 0 {
		if r.result.Requests%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if r.result.Requests == MaxRequests {
			return nil, fmt.Errorf("there are more than %d requests; write fewer arrivals, or a shorter time", MaxRequests)
		}
		e := heap.Pop(&r.due).(event)
		r.now = e.at
		if !e.isExchange {
			r.open--
		}
		act := e.act
		if act == nil {
			act = func() error { return r.decide(e) }
		}
		if err := act(); err != nil {
			return nil, fmt.Errorf("request %d, at %s: %w", r.result.Requests+1, wording.Period(r.now), err)
		}
	}
	r.result.Duration = Seconds(r.now)
	r.addBound()
	return &r.result, nil
}

// startFor returns the time at which a simulation begins: when a window of the limit begins.
func startFor(limit *penstock.Plan) time.Time {
	period := limit.Limit().Period
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Sub(time.Unix(0, 0))
	return time.Unix(0, 0).Add((since + period - 1) / period * period)
}

// makeInstances makes the store that all instances share, and the instances.
func (r *run) makeInstances() {
	clock := func() time.Time { return r.start.Add(r.now) }
	counters := MaxRequests // there is at most one for each request
	shared := memstore.New(memstore.Options{Now: clock, Locks: 1, MaxCounters: counters})
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if r.isDown() {
			return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonUnreachable, nil)
		}
		return shared.Decide(ctx, charges)
	})
	for range max(r.options.Instances, 1) {
		r.instances = append(r.instances, penstock.Wrap(store, guard.Fallback(guard.FallbackOptions{
			OnFailure: r.options.OnFailure, MaxCounters: counters, Now: clock,
			Instances: func() int { return max(r.options.Instances, 1) },
		})))
	}
}

func (r *run) isDown() bool { return r.now >= r.options.DownFrom && r.now < r.options.DownTo }

// begin schedules the first request of a stream, or of each client of an item.
func (r *run) begin(i int, it *Item) {
	if !it.IsClients {
		next := it.Stream(rand.New(rand.NewPCG(r.options.Seed, uint64(i)+1)))
		if at, ok := next(); ok {
			r.schedule(event{at: at, try: 1, item: i, next: next})
		}
		return
	}
	for n := range it.Count {
		if at := it.From + it.Join(n); at < it.To {
			r.schedule(event{at: at, client: n + 1, try: 1, item: i})
		}
	}
}

func (r *run) schedule(e event) {
	e.order = r.scheduled
	r.scheduled++
	if e.at <= maxDuration {
		heap.Push(&r.due, e)
		if !e.isExchange {
			r.open++
		}
	}
}

// decide decides a request, and schedules what follows it.
func (r *run) decide(e event) error {
	counter := int64(0)
	if r.options.PerKey {
		counter = e.client
	}
	at := int(r.result.Requests % int64(len(r.instances)))
	if where := r.options.Arrivals.Items[e.item].region; where > 0 {
		at = where - 1
	}
	instance := r.instances[at]
	d, err := instance.Decide(context.Background(), []penstock.Charge{{
		Key: fmt.Sprintf("client %d", counter), Plan: r.options.Limit, Cost: r.options.Cost, Patience: r.options.Patience,
		Holder: fmt.Sprint(r.scheduled),
	}})
	if err != nil {
		return err
	}
	status := d.Status(0)
	retryAfter := d.RetryAfter()
	r.count(e, &d, counter)
	number := 0 // of the region
	if len(r.regions) > 0 {
		number = at + 1
		r.regions[at].count(r.now, r.options.Cost, counter, d.Allowed)
	}
	if r.options.Observe != nil {
		r.options.Observe(Decision{Seconds(r.now), e.client, e.try, d.Allowed, status.Remaining, Seconds(retryAfter), Seconds(status.Wait), d.Source, number})
	}
	if e.next != nil {
		if at, ok := e.next(); ok {
			r.schedule(event{at: at, try: 1, item: e.item, next: e.next})
		}
	}
	if !d.Allowed && e.try <= maxRetries && r.options.OnDenied != Drop && retryAfter != penstock.Never {
		after := retryGap
		if r.options.OnDenied == Wait {
			after = max(retryAfter, time.Microsecond)
		}
		r.schedule(event{at: r.now + after, client: e.client, try: e.try + 1, item: e.item})
		return nil
	}
	if !d.Allowed {
		r.result.GivenUp++
	}
	if it := &r.options.Arrivals.Items[e.item]; it.IsClients {
		if at := r.now + status.Wait + it.Think(r.rng); at < it.To {
			r.schedule(event{at: at, client: e.client, try: 1, item: e.item})
		}
	}
	return nil
}

func (r *run) count(e event, d *penstock.Decision, counter int64) {
	result := &r.result
	result.Requests++
	if e.try > 1 {
		result.Retries++
	}
	if d.Source != penstock.FromStore {
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
	r.schedule(event{at: r.now + wait, act: func() error { r.admit(counter); return nil }})
}

// admit counts a request that is admitted now.
func (r *run) admit(counter int64) {
	w := r.admitted[counter]
	if w == nil {
		w = &window{}
		r.admitted[counter] = w
	}
	r.result.MostUnits = max(r.result.MostUnits, w.add(r.now, r.options.Cost, r.options.Limit.Limit().Period))
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
