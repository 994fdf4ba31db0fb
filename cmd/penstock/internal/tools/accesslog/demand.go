package accesslog

import "time"

// A Demand counts requests over time, in at most 120 intervals of equal length. Its zero value is
// empty.
type Demand struct {
	Step  time.Duration `json:"step_ns"`
	Spans []Span        `json:"spans"`
}

// A Span is one interval.
type Span struct {
	From     time.Time `json:"from"`
	Requests int64     `json:"requests"`
	Denied   int64     `json:"denied"` // of the requests
}

const maxSpans = 120

// steps are the lengths of intervals that people like. Longer ones are multiples of the last.
var steps = []time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour}

// Add counts a request. Its time must not be earlier than the one before.
func (d *Demand) Add(at time.Time, isDenied bool) {
	if len(d.Spans) == 0 {
		d.Step = steps[0]
		d.Spans = append(d.Spans, Span{From: at.UTC().Truncate(d.Step)})
	}
	for at.Sub(d.Spans[0].From) >= maxSpans*d.Step {
		d.coarsen()
	}
	last := &d.Spans[len(d.Spans)-1]
	for !at.Before(last.From.Add(d.Step)) { // also for times without requests
		d.Spans = append(d.Spans, Span{From: last.From.Add(d.Step)})
		last = &d.Spans[len(d.Spans)-1]
	}
	last.Requests++
	if isDenied {
		last.Denied++
	}
}

// coarsen makes the intervals longer.
func (d *Demand) coarsen() {
	longer := 2 * d.Step
	for _, s := range steps {
		if s > d.Step {
			longer = s
			break
		}
	}
	d.Step = longer
	var merged []Span
	for _, s := range d.Spans {
		s.From = s.From.Truncate(d.Step)
		if last := len(merged) - 1; last >= 0 && merged[last].From.Equal(s.From) {
			merged[last].Requests += s.Requests
			merged[last].Denied += s.Denied
		} else {
			merged = append(merged, s)
		}
	}
	d.Spans = merged
}
