package simulate

import "time"

// A Row is what a limit did at one time, or in one interval.
type Row struct {
	From       Seconds `json:"from"`
	To         Seconds `json:"to"` // equal to From for a single moment
	Requests   int64   `json:"requests"`
	Allowed    int64   `json:"allowed"`
	Denied     int64   `json:"denied"`
	Remaining  int64   `json:"remaining"`   // of the last decision
	RetryAfter Seconds `json:"retry_after"` // of the last denial, or 0
}

// A Timeline collects decisions into at most 40 rows. Its zero value is empty.
type Timeline struct {
	fine []Row         // one for each unit that has decisions
	unit time.Duration // a power of ten, in microseconds
}

const (
	maxRows = 40
	maxFine = 10 * maxRows
)

// Add adds a decision. It must not be earlier than the one before.
func (t *Timeline) Add(d Decision) {
	row := Row{From: d.At, To: d.At, Requests: 1, Remaining: d.Remaining}
	if d.IsAllowed {
		row.Allowed = 1
	} else {
		row.Denied, row.RetryAfter = 1, d.RetryAfter
	}
	t.unit = max(t.unit, time.Microsecond)
	t.fine = merge(t.fine, row.within(t.unit))
	for len(t.fine) > maxFine {
		t.unit *= 10
		t.fine = coarser(t.fine, t.unit)
	}
}

// Rows returns the rows: one for each moment, or else intervals of equal length.
func (t *Timeline) Rows() []Row {
	if t.unit == time.Microsecond && len(t.fine) <= maxRows {
		return coarser(t.fine, 0)
	}
	for unit := t.unit; ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if rows := coarser(t.fine, n*unit); len(rows) <= maxRows {
				return rows
			}
		}
	}
}

// within returns the row as one of the whole interval of this length around it. A moment has the
// length 0.
func (r Row) within(length time.Duration) Row {
	r.From -= r.From % Seconds(max(length, 1))
	r.To = r.From + Seconds(length)
	return r
}

func coarser(rows []Row, length time.Duration) (longer []Row) {
	for _, r := range rows {
		longer = merge(longer, r.within(length))
	}
	return longer
}

// merge adds a row to the last one if both are about the same time. Otherwise it appends the row.
func merge(rows []Row, r Row) []Row {
	last := len(rows) - 1
	if last < 0 || rows[last].From != r.From {
		return append(rows, r)
	}
	to := &rows[last]
	to.Requests += r.Requests
	to.Allowed += r.Allowed
	to.Denied += r.Denied
	to.Remaining = r.Remaining
	if r.Denied > 0 {
		to.RetryAfter = r.RetryAfter
	}
	return rows
}
