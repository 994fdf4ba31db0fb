package suggest

import (
	"cmp"
	"errors"
	"sort"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/burst"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/priority"
)

// A curve has what one identity needs.
type curve struct {
	*burst.Curve // nil if the limit is no token bucket
	requests     int64
	inMinute     windowCount
	peak         peak // nil for a token bucket
}

// A windowCount counts the requests of fixed windows.
type windowCount struct {
	index       int64 // windows since 1970
	count, most int64
}

func (w *windowCount) add(index int64) {
	if index != w.index {
		w.index, w.count = index, 0
	}
	w.count++
	w.most = max(w.most, w.count)
}

func newCurve(p peak) *curve {
	c := &curve{peak: p}
	if p == nil {
		c.Curve = new(burst.Curve)
	}
	return c
}

// add adds a request. Requests are added in the order of their times. held counts what all peaks
// keep.
func (c *curve) add(at time.Time, duration time.Duration, held *int) {
	now := at.UnixMicro()
	c.inMinute.add(now / time.Minute.Microseconds())
	if c.peak != nil {
		c.peak.add(now, at.Add(duration).UnixMicro(), held)
	} else {
		c.Add(now, 1)
	}
	c.requests++
}

// size returns by how much an identity is compared with others: its largest count for the limit, or
// in a minute for a token bucket.
func (c *curve) size() int64 {
	if c.peak != nil {
		return c.peak.most()
	}
	return c.inMinute.most
}

// A peak finds the smallest limit of one kind that denies nothing to one identity.
type peak interface {
	// add adds a request, in the order of their starts. Its times are in µs since 1970. held counts
	// what all peaks keep.
	add(start, end int64, held *int)
	most() int64

	// shrink keeps less, and returns how much it keeps.
	shrink(now int64, shouldMerge bool) int
}

// newPeak returns the peak of an algorithm, or nil for a token bucket.
func newPeak(algorithm string, window time.Duration) peak {
	switch algorithm {
	case penstock.FixedWindow.Title():
		return &fixedPeak{length: window.Microseconds()}
	case penstock.SlidingLog.Title():
		return &slidingPeak{length: window.Microseconds()}
	case penstock.Concurrency.Title():
		return &flightPeak{ends: priority.NewQueue(cmp.Less[int64])}
	}
	return nil
}

// A fixedPeak counts the requests of each window that begins with a multiple of its length.
type fixedPeak struct {
	length int64
	windowCount
}

func (p *fixedPeak) add(start, _ int64, _ *int) { p.windowCount.add(start / p.length) }
func (p *fixedPeak) most() int64                { return p.windowCount.most }
func (p *fixedPeak) shrink(int64, bool) int     { return 0 }

// A slidingPeak counts the requests of each interval of one length.
type slidingPeak struct {
	length  int64
	recent  []moment // those of the last length, the oldest first
	count   int64    // of their requests
	largest int64
}

// A moment is a time at which requests came.
type moment struct{ at, count int64 }

func (p *slidingPeak) add(start, _ int64, held *int) {
	p.expire(start, held)
	if last := len(p.recent) - 1; last >= 0 && p.recent[last].at == start {
		p.recent[last].count++
	} else {
		p.recent = append(p.recent, moment{start, 1})
		*held++
	}
	p.count++
	p.largest = max(p.largest, p.count)
}

// expire drops what a sliding log no longer counts.
func (p *slidingPeak) expire(now int64, held *int) {
	n := sort.Search(len(p.recent), func(i int) bool { return p.recent[i].at > now-p.length })
	for _, m := range p.recent[:n] {
		p.count -= m.count
	}
	p.recent = p.recent[n:]
	*held -= n
}

func (p *slidingPeak) most() int64 { return p.largest }

// shrink may merge each two moments into one at the later time. So requests count for longer, and
// the count may become too high, but never too low.
func (p *slidingPeak) shrink(now int64, shouldMerge bool) int {
	p.expire(now, new(int))
	var kept []moment
	for i, m := range p.recent {
		if shouldMerge && i%2 == 1 {
			kept[len(kept)-1] = moment{m.at, kept[len(kept)-1].count + m.count}
		} else {
			kept = append(kept, m)
		}
	}
	p.recent = kept
	return len(kept)
}

// A flightPeak counts the requests in flight.
type flightPeak struct {
	ends    *priority.Queue[int64]
	largest int64
}

func (p *flightPeak) add(start, end int64, held *int) {
	p.expire(start, held)
	p.largest = max(p.largest, int64(p.ends.Len())+1)
	if end > start {
		p.ends.Push(end)
		*held++
	}
}

func (p *flightPeak) expire(now int64, held *int) {
	for p.ends.Len() > 0 && p.ends.First() <= now {
		p.ends.Pop()
		*held--
	}
}

func (p *flightPeak) most() int64 { return p.largest }

func (p *flightPeak) shrink(now int64, _ bool) int {
	p.expire(now, new(int))
	p.ends.Shrink()
	return p.ends.Len()
}

// maxHeld is how much all peaks may keep. It takes at most 128 MB: twice 16 bytes each.
const maxHeld = 4 << 20

// shrink makes all peaks keep at most half of maxHeld. It reports whether it had to merge requests,
// and fails if there are too many in flight.
func shrink(byKey map[string]*curve, all *curve, now int64, held *int) (isMerged bool, err error) {
	for _, shouldMerge := range []bool{false, true} {
		*held = all.peak.shrink(now, shouldMerge)
		for _, c := range byKey {
			*held += c.peak.shrink(now, shouldMerge)
		}
		if *held <= maxHeld/2+len(byKey) {
			return shouldMerge, nil
		}
	}
	if _, isFlight := all.peak.(*flightPeak); isFlight {
		return false, errors.New("more than two million requests of the log are in flight at once; check that its durations have the unit that --format says")
	}
	return true, nil
}
