// Package activity records the activity of this instance: how many requests each limit allowed and
// denied, by the second and by the minute, and which keys were denied, were near their limit, or
// used most. Recording delays no request, and its memory is bounded.
package activity

import (
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/internal/syntax"
)

// A Kind is what a list of the most active keys counts.
type Kind uint8

const (
	Denied       Kind = iota // denied requests
	Near                     // requests that were allowed near the limit
	Units                    // units that were spent
	ShadowDenied             // requests that a shadow or a candidate would have denied
	kindCount
)

var kindNames = [kindCount]string{"denied", "near_limit", "units", "shadow_denied"}

func (k Kind) String() string {
	if k >= kindCount {
		return "unknown"
	}
	return kindNames[k]
}

func Kinds() []Kind { return []Kind{Denied, Near, Units, ShadowDenied} }

// NearLimit names the series that count requests that were allowed near their limit. Waited names
// the series that count requests that were admitted after a wait.
const (
	NearLimit = "near_limit"
	Waited    = "waited"
)

type Options struct {
	// NearPercent defines "near the limit": after the request, at least this percentage of the limit
	// is used. From 50 to 100. Default: 80.
	NearPercent int

	// Names returns a function that appends to b the name that a key has in the store, at most MaxName
	// bytes. It returns a new function for each caller, because a function serves one goroutine at a
	// time. The function must not allocate memory if b has room for the name and 16 bytes more.
	// Default: no keys are recorded.
	Names func() func(b []byte, key string) []byte

	// Seed is the seed of the hashes by which different keys are counted. Counts of instances with
	// equal seeds can be merged. A client that knows the seed can choose identities that are not
	// counted as different.
	Seed uint64

	// MeasuresNeeds samples clients for Needs.
	MeasuresNeeds bool
}

// A limit has the names of one limit, and counts its requests.
type limit struct {
	Rule, Name string
	near       atomic.Uint64 // requests that were allowed near the limit
	waited     atomic.Uint64 // requests that were admitted after a wait
	clients    clientSample  // for Needs
}

func newLimit(plan *penstock.Plan) *limit {
	l := &limit{Rule: plan.Group(), Name: plan.Name()}
	l.clients.resetLocked()
	return l
}

// A Recorder records the events of one instance. Many goroutines may call Observe at the same time.
//
// Observe costs less than 50 ns for nearly all events, and waits for nothing. It allocates memory
// only for new clients of a sample of Needs. If a kind has more than maxSamples events in a second,
// the Recorder samples their keys.
type Recorder struct {
	options Options
	seed    maphash.Seed
	start   time.Time
	limits  atomic.Pointer[map[uint64]*limit] // by the ID of their plan
	other   limit                             // all limits that are not in limits
	kept    []*penstock.Plan                  // plans of the limits that SetLimits does not remove
	streams [kindCount]stream                 // by Kind
	denied  *distinctCounter                  // the different keys that were denied

	limitsMu sync.Mutex // held while limits and kept change

	Store    Timing // decisions of the store
	Upstream Timing // responses of the upstream, up to their headers

	mu      sync.Mutex // held by readers and by Tick; not by Observe
	history *History
	windows windows
}

// A stream finds the heaviest keys of one kind.
type stream struct {
	gap     atomic.Uint32 // how many events one sample stands for; a power of 2
	samples atomic.Int32  // in this second
	missed  atomic.Uint64 // weight that was not added, because another sample was being added

	mu         sync.Mutex
	sketch     *sketch // of the current minute
	appendName func(b []byte, key string) []byte
	nameBuffer [MaxName + 16]byte // for appendName
}

const (
	sketchSize = 256     // items of a sketch, 200 bytes each
	maxSamples = 1 << 11 // samples of a kind in a second; they take at most 0.1 % of a CPU
	maxGap     = 1 << 20 // with maxSamples, enough for 2^31 events in a second
)

func New(o Options) *Recorder {
	if o.NearPercent <= 0 {
		o.NearPercent = 80
	}
	r := &Recorder{options: o, seed: maphash.MakeSeed(), start: time.Now(), denied: newDistinctCounter(), history: NewHistory()}
	r.Store.history, r.Upstream.history = NewHistory(), NewHistory()
	r.other.Rule, r.other.Name = Overflow, Overflow
	for i := range r.streams {
		r.streams[i].sketch = newSketch(sketchSize)
		r.streams[i].gap.Store(1)
		if o.Names != nil {
			r.streams[i].appendName = o.Names()
		}
	}
	r.SetLimits(nil)
	return r
}

// Keep adds a limit that is not in the policy. SetLimits does not remove it. Every plan with the
// same names and the same algorithm counts as this limit.
func (r *Recorder) Keep(plan *penstock.Plan) {
	r.limitsMu.Lock()
	defer r.limitsMu.Unlock()
	r.kept = append(r.kept, plan)
	all := maps.Clone(*r.limits.Load())
	all[plan.ID()[0]] = newLimit(plan)
	r.storeLimits(all)
}

// SetLimits sets the limits whose activity is recorded separately, by their plans. Limits that stay
// keep their counts. The activity of all other limits is counted under Overflow.
func (r *Recorder) SetLimits(plans []*penstock.Plan) {
	r.limitsMu.Lock()
	defer r.limitsMu.Unlock()
	old := r.limits.Load()
	all := make(map[uint64]*limit, len(plans))
	for _, p := range slices.Concat(plans, r.kept) {
		id := p.ID()[0]
		switch {
		case all[id] != nil: // another plan of the same limit
		case old != nil && (*old)[id] != nil:
			all[id] = (*old)[id]
		default:
			all[id] = newLimit(p)
		}
	}
	r.storeLimits(all)
}

func (r *Recorder) storeLimits(all map[uint64]*limit) {
	for _, l := range all {
		l.clients.most.Store(int64(min(maxPerSample, maxClients/len(all))))
	}
	r.limits.Store(&all)
}

// limitOf returns the limit of a plan. The plan may be nil.
func (r *Recorder) limitOf(plan *penstock.Plan) *limit {
	if plan != nil {
		if l := (*r.limits.Load())[plan.ID()[0]]; l != nil {
			return l
		}
	}
	return &r.other
}

// Observe records the keys of an event. Tick counts the outcomes.
func (r *Recorder) Observe(e *admission.Event) {
	isDecided := e.Decision != nil && e.Decision.Len() == len(e.Charges)
	if isDecided && r.options.MeasuresNeeds {
		r.observeNeeds(e.Charges)
	}
	switch {
	case e.Outcome == admission.DeniedNewIdentity:
		var plan *penstock.Plan
		if len(e.Charges) == 1 {
			plan = e.Charges[0].Plan
		}
		r.observeDenied(plan, e.Key, rand.Uint32())
	case e.Outcome == admission.Allowed && isDecided:
		r.observeAllowed(e)
	case e.Outcome == admission.Denied && isDecided:
		r.observeDenied(e.Charges[e.Decision.Strictest()].Plan, e.Key, rand.Uint32())
	case e.Outcome == admission.ShadowDenied && isDecided:
		c := &e.Charges[e.Decision.Strictest()]
		r.sample(ShadowDenied, c.Plan, c.Key, rand.Uint32())
	}
}

// observeAllowed records which charges of an allowed request are near their limits.
func (r *Recorder) observeAllowed(e *admission.Event) {
	if e.Decision.Wait() > 0 {
		for i := range e.Charges {
			if e.Decision.Status(i).Wait > 0 {
				r.limitOf(e.Charges[i].Plan).waited.Add(1)
			}
		}
	}
	random := rand.Uint32()
	if e.Source == penstock.FromStore { // other sources know only a part of the limit
		for i := range e.Charges {
			if c := &e.Charges[i]; r.isNear(c, e.Decision.Status(i).Remaining) {
				r.limitOf(c.Plan).near.Add(1)
				r.sample(Near, c.Plan, c.Key, random)
			}
		}
	}
	if gap := r.streams[Units].gap.Load(); isSampled(gap, random) {
		r.observeUnits(e.Charges, gap)
	}
}

// observeUnits adds the units that a request has spent. Slots are returned, so they do not count.
func (r *Recorder) observeUnits(charges []penstock.Charge, gap uint32) {
	for i := range charges {
		if c := &charges[i]; c.Cost > 0 && !c.Plan.Algorithm().NeedsHolder() {
			r.add(Units, r.limitOf(c.Plan), r.localHash(c.Plan, c.Key), c.Key, uint64(c.Cost), gap)
		}
	}
}

// isNear reports whether, after a charge, at least Options.NearPercent of the limit is used.
func (r *Recorder) isNear(c *penstock.Charge, remaining int64) bool {
	isNewRequest := c.Cost > 0 && c.Mode <= penstock.Draw // Spend and Draw
	return isNewRequest && labels.IsNear(c.Plan.Capacity(), remaining, r.options.NearPercent)
}

// isSampled reports whether a random number selects an event as a sample. It selects one in gap
// events. gap is a power of 2.
func isSampled(gap, random uint32) bool { return random&(gap-1) == 0 }

// observeDenied counts a denial. The plan is nil if the limit that denied the request is not known.
func (r *Recorder) observeDenied(plan *penstock.Plan, key string, random uint32) {
	if key == syntax.GlobalKey {
		return
	}
	hash := r.localHash(plan, key)
	if !r.denied.isRecent(hash) {
		l := r.limitOf(plan)
		r.denied.add(hash, DistinctHash{sharedHash(r.options.Seed, plan, key), l.Rule, l.Name})
	}
	r.sample(Denied, plan, key, random)
}

// sample adds an event to a stream if the random number selects it.
func (r *Recorder) sample(to Kind, plan *penstock.Plan, key string, random uint32) {
	if gap := r.streams[to].gap.Load(); isSampled(gap, random) {
		r.add(to, r.limitOf(plan), r.localHash(plan, key), key, 1, gap)
	}
}

// localHash returns a hash of a limit and a key. Other processes cannot predict the hash.
func (r *Recorder) localHash(plan *penstock.Plan, key string) uint64 {
	hash := maphash.String(r.seed, key)
	if plan != nil {
		hash ^= plan.ID()[0]
	}
	return hash
}

// sharedHash returns a hash of a limit and a key. Instances with one seed get one hash.
func sharedHash(seed uint64, plan *penstock.Plan, key string) uint64 {
	if plan != nil {
		seed ^= plan.ID()[0]
	}
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.WriteString(key)
	return d.Sum64()
}

// add adds a sample, which stands for gap events of this weight each.
func (r *Recorder) add(k Kind, l *limit, hash uint64, key string, weight uint64, gap uint32) {
	if r.options.Names == nil || key == syntax.GlobalKey {
		return
	}
	s := &r.streams[k]
	if s.samples.Add(1) > maxSamples && gap < maxGap {
		s.samples.Store(0)
		s.gap.CompareAndSwap(gap, 2*gap)
	}
	weight = times(weight, uint64(gap))
	if !s.mu.TryLock() {
		s.missed.Add(weight)
		return
	}
	defer s.mu.Unlock()
	if e := s.sketch.add(hash, weight, uint64(gap)); e != nil {
		e.limit = l
		e.length = uint8(copy(e.name[:], s.appendName(s.nameBuffer[:0], key)))
	}
}

// times multiplies a weight by a gap. A weight above 2^42 counts as 2^42, so the product is at most
// 2^62.
func times(weight, gap uint64) uint64 { return min(weight, 1<<42) * gap }

// Tick samples the counters and drops old minutes. It must be called about once a second with the
// time since the start. each calls add once for each counter of the instance.
func (r *Recorder) Tick(at time.Duration, each func(add func(Series, uint64))) {
	r.history.Sample(at, func(add func(Series, uint64)) {
		each(add)
		for _, l := range *r.limits.Load() {
			add(Series{l.Rule, l.Name, NearLimit}, l.near.Load())
			add(Series{l.Rule, l.Name, Waited}, l.waited.Load())
		}
		add(Series{Overflow, Overflow, NearLimit}, r.other.near.Load())
		add(Series{Overflow, Overflow, Waited}, r.other.waited.Load())
	})
	r.Store.tick(at)
	r.Upstream.tick(at)
	for i := range r.streams {
		s := &r.streams[i]
		hasRoom := s.samples.Swap(0) < maxSamples/4 // twice as many samples stay far below maxSamples
		if gap := s.gap.Load(); hasRoom && gap > 1 {
			s.gap.CompareAndSwap(gap, gap/2)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if minute := int64(at / time.Minute); minute > r.windows.minute {
		const isLast = true
		r.windows.end(minute, r.readLocked(isLast))
		for _, l := range *r.limits.Load() {
			l.clients.endMinute()
		}
	}
}

// History returns the counters by the second and by the minute.
func (r *Recorder) History() *History { return r.history }
