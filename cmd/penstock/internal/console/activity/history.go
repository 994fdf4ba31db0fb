package activity

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// A Series names a counter that is sampled. It belongs to a limit. If Rule is "", it belongs to the
// whole instance. The names in JSON are short, because a Summary has many.
type Series struct {
	Rule  string `json:"r,omitempty"`
	Limit string `json:"l,omitempty"`
	Name  string `json:"n"`
}

// The series of the whole instance have the name Uncounted, or names with these prefixes.
const (
	Uncounted    = "uncounted" // requests that passed although a limit that fails open did not count them
	SourcePrefix = "source:"   // decisions, by their source
	ErrorPrefix  = "error:"    // errors of the store, by their reason
)

// Overflow is the rule, and the limit, of the series that add up all counters without a ring.
const Overflow = "other"

const (
	Seconds   = 600  // growth by the second is kept for 10 minutes
	Minutes   = 1440 // growth by the minute is kept for 24 hours
	MaxSeries = 1024 // series with a ring of their own, of 8 KB
)

// A History records the growth of counters, by the second and by the minute. It samples
// existing counters, so it adds no work to requests. Its time is the process' monotonic clock since
// the start, so steps of the wall clock do not matter.
//
// Memory: at most MaxSeries rings of 8 KB, and 100 bytes for each further counter that is not 0.
type History struct {
	mu     sync.Mutex
	rings  map[Series]*ring
	others map[Series]uint64 // latest values of the counters that have no ring
	second int64             // of the latest sample

	// The sums of a sample, and their series in the order of the sample. The memory is reused.
	values map[Series]uint64
	order  []Series
}

// A ring has the growth of one counter. Slot i is for the second or minute that is i modulo the
// number of slots.
type ring struct {
	value   uint64 // of the counter, at the latest sample
	second  int64  // the slots are current up to this second
	grownAt int64  // the second in which the counter grew last
	seconds [Seconds]uint32
	minutes [Minutes]uint32
}

func NewHistory() *History {
	return &History{rings: make(map[Series]*ring), others: make(map[Series]uint64), values: make(map[Series]uint64)}
}

// Sample reads all counters. at is the time since the start. each calls add for each counter. The
// values of one Series are added up: limits that differ only by their algorithm have one. The
// growth since the last sample counts for the current second, even if that sample is older than a
// second. A counter that has become smaller was restarted from zero.
func (h *History) Sample(at time.Duration, each func(add func(Series, uint64))) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.second = max(h.second, int64(at/time.Second))
	clear(h.values)
	h.order = h.order[:0]
	each(func(s Series, value uint64) {
		before, isKnown := h.values[s]
		if !isKnown {
			h.order = append(h.order, s)
		}
		h.values[s] = before + value
	})
	for _, s := range h.order {
		h.addLocked(s, h.values[s])
	}
}

func (h *History) addLocked(s Series, value uint64) {
	r := h.rings[s]
	if r == nil {
		if value == 0 && h.others[s] == 0 {
			return
		}
		if r = h.makeRingLocked(s, value); r == nil {
			return
		}
	}
	grown := growth(r.value, value)
	r.value = value
	h.countLocked(r, grown)
}

// countLocked adds growth to the current second and minute.
func (h *History) countLocked(r *ring, grown uint64) {
	if grown == 0 {
		return
	}
	r.advance(h.second)
	r.grownAt = h.second
	addTo(&r.seconds[h.second%Seconds], grown)
	addTo(&r.minutes[h.second/60%Minutes], grown)
}

// makeRingLocked makes a ring for a counter. If there are MaxSeries rings, it drops one whose
// counter has not grown for 24 hours. If there is no such ring, it counts the growth under Overflow
// and returns nil.
func (h *History) makeRingLocked(s Series, value uint64) *ring {
	if len(h.rings) >= MaxSeries && !h.dropIdleLocked() {
		overflow := Series{Overflow, Overflow, s.Name}
		if h.rings[overflow] == nil {
			h.rings[overflow] = &ring{second: h.second} // may exceed MaxSeries: there are only a few names
		}
		h.countLocked(h.rings[overflow], growth(h.others[s], value))
		h.others[s] = value
		return nil
	}
	r := &ring{second: h.second, value: h.others[s]}
	delete(h.others, s)
	h.rings[s] = r
	return r
}

// dropIdleLocked drops a ring whose counter has not grown for 24 hours. It returns false if there
// is none.
func (h *History) dropIdleLocked() bool {
	for s, r := range h.rings {
		if h.second-r.grownAt > 60*Minutes {
			delete(h.rings, s)
			h.others[s] = r.value // if the counter grows again, only the growth counts
			return true
		}
	}
	return false
}

// growth returns how much a counter has grown. A smaller value means that it restarted from zero.
func growth(from, to uint64) uint64 {
	if to < from {
		return to
	}
	return to - from
}

// addTo adds to a slot, up to the largest number that fits.
func addTo(slot *uint32, n uint64) { *slot = uint32(min(uint64(*slot)+n, math.MaxUint32)) }

// advance makes the slots current up to a second: it clears those of the time since r.second.
func (r *ring) advance(second int64) {
	clearSlots(r.seconds[:], r.second, second)
	clearSlots(r.minutes[:], r.second/60, second/60)
	r.second = max(r.second, second)
}

// clearSlots clears the slots of the seconds or minutes after old, up to now.
func clearSlots(slots []uint32, old, now int64) {
	n := int64(len(slots))
	for i := max(old+1, now-n+1); i <= now; i++ {
		slots[i%n] = 0
	}
}

// A Line is how much a counter has grown in each second or minute, the oldest first.
type Line struct {
	Series
	Counts []uint32
}

// Second returns the second of the latest sample, since the start.
func (h *History) Second() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.second
}

// BySecond returns how much series have grown in each of the last n seconds, up to the latest
// sample. It returns the series that isSelected selects; nil selects all. n is at most Seconds.
func (h *History) BySecond(n int, isSelected func(Series) bool) []Line {
	return h.read(isSelected, func(r *ring) []uint32 { return last(r.seconds[:], h.second, n) })
}

// ByMinute does what BySecond does, for minutes. The last number of a Line is for the current
// minute. n is at most Minutes.
func (h *History) ByMinute(n int, isSelected func(Series) bool) []Line {
	return h.read(isSelected, func(r *ring) []uint32 { return last(r.minutes[:], h.second/60, n) })
}

// Since returns the growth in the last n seconds of every series that has grown in them.
func (h *History) Since(n int) map[Series]uint64 {
	sums := make(map[Series]uint64)
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, r := range h.rings {
		if h.second-r.grownAt >= int64(n) {
			continue
		}
		r.advance(h.second)
		for i := max(0, h.second-int64(n)+1); i <= h.second; i++ {
			sums[s] += uint64(r.seconds[i%Seconds])
		}
	}
	return sums
}

func (h *History) read(isSelected func(Series) bool, counts func(*ring) []uint32) (lines []Line) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, r := range h.rings {
		if isSelected == nil || isSelected(s) {
			r.advance(h.second)
			lines = append(lines, Line{s, counts(r)})
		}
	}
	slices.SortFunc(lines, func(a, b Line) int { return compareSeries(a.Series, b.Series) })
	return lines
}

// last returns a copy of the slots of n seconds or minutes. The last one is now.
func last(slots []uint32, now int64, n int) []uint32 {
	n = min(n, len(slots))
	out := make([]uint32, n)
	for i := range out {
		if at := now - int64(n-1-i); at >= 0 {
			out[i] = slots[at%int64(len(slots))]
		}
	}
	return out
}

func compareSeries(a, b Series) int {
	return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Name, b.Name))
}
