package suggest

import (
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/burst"
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
