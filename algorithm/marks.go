package algorithm

import "slices"

// A mark is the lowest level of a bucket since a time, in parts. A refund of what was charged at
// that time returns at most this level. Without that charge, the bucket would have been full when
// it was at this level, and what is refilled into a full bucket is lost.
type mark struct{ since, lowest int64 }

// marks are the marks of a token bucket. Each charge that may be refunded makes one. A mark with a
// later time has a higher level. Of two marks with one level, the earlier is enough. So each level
// is that of all charges from its time until the time of the next mark.
//
// marks never change. bucket.Low is the level of the newest mark, which each step lowers. The
// levels of the older marks are not lowered at once: a level above Low means Low.
type marks struct {
	since int64  // of the newest mark
	older []mark // in the order of their times
}

// maxMarks is how many marks a bucket has at most. If there are more, the mark is dropped whose
// charges lose least: their refunds then use the lower level of the mark before it.
const maxMarks = 32

// lowestSince returns the lowest level since a charge. It is 0 if the marks do not go back so far.
func (m *marks) lowestSince(receipt, low int64) int64 {
	if m == nil {
		return 0
	}
	if m.since <= receipt {
		return low
	}
	for _, o := range slices.Backward(m.older) {
		if o.since <= receipt {
			return min(o.lowest, low)
		}
	}
	return 0
}

// lower returns the newest level and the marks after a refund. lowest was the level of the mark
// from which parts were returned. The later levels are lower now by these parts. The earlier levels
// are at most what is left at that mark.
func (m *marks) lower(low, lowest, returned int64) (int64, *marks) {
	next, last := marks{since: m.since}, int64(0)
	for _, o := range m.older {
		o.lowest = min(o.lowest, low)
		o.lowest = min(o.lowest, max(o.lowest, lowest)-returned)
		if o.lowest > last {
			next.older, last = append(next.older, o), o.lowest
		}
	}
	low -= returned
	if low == last && last > 0 {
		end := len(next.older) - 1
		next.since, next.older = next.older[end].since, next.older[:end]
	}
	return low, &next
}

// add returns the newest level and the marks after a charge at a time, which raised the level.
// Charges at one time are one charge: what is refunded of one or the other makes no difference. add
// writes the marks to *into, whose memory it reuses.
func (m *marks) add(low, at, level int64, into *marks) (int64, *marks) {
	into.since, into.older = at, into.older[:0]
	if m == nil || low == 0 {
		return level, into
	}
	since, older := m.since, m.older
	for len(older) > 0 && older[len(older)-1].lowest >= low {
		since, older = older[len(older)-1].since, older[:len(older)-1]
	}
	into.older = append(into.older, older...)
	if since == at {
		return level, into
	}
	into.older = append(into.older, mark{since, low})
	if len(into.older) < maxMarks {
		return level, into
	}
	dropped, least, last := 0, int64(Max), int64(0)
	for i, o := range into.older {
		if o.lowest-last < least {
			dropped, least = i, o.lowest-last
		}
		last = o.lowest
	}
	if level-last < least { // the new mark
		into.since, into.older = since, into.older[:len(into.older)-1]
		return last, into
	}
	into.older = slices.Delete(into.older, dropped, dropped+1)
	return level, into
}

// convert returns the newest level and the marks in parts of another size. convert of package
// algorithm rounds up by less than 3, so 3 are subtracted.
func (m *marks) convert(low, old, parts int64) (int64, *marks) {
	next := marks{since: m.since, older: slices.Clone(m.older)}
	for i := range next.older {
		next.older[i].lowest = max(convert(next.older[i].lowest, old, parts)-3, 0)
	}
	return max(convert(low, old, parts)-3, 0), &next
}
