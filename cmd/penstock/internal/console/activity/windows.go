package activity

import "time"

// A Window is the span of time of an Activity, up to now.
type Window struct {
	Name   string
	Length time.Duration // the most that it covers; FiveMinutes may cover 1 min less, Hour 10 min less
}

var (
	FiveMinutes = Window{"5m", recentMinutes * time.Minute}
	Hour        = Window{"1h", time.Hour}
)

func Windows() []Window { return []Window{FiveMinutes, Hour} }

const (
	recentMinutes = 5
	partMinutes   = 10               // minutes of a part of an hour
	hourParts     = 60 / partMinutes // parts of an hour
)

// An Activity has the most active keys of a window.
type Activity struct {
	Tops   [kindCount]*Top
	Denied *Distinct
}

// MergeActivities merges the activities of several instances or minutes. It keeps the size heaviest
// items of each Top.
func MergeActivities(size int, parts ...*Activity) *Activity {
	merged, distinct := new(Activity), make([]*Distinct, 0, len(parts))
	for k := range merged.Tops {
		tops := make([]*Top, 0, len(parts))
		for _, p := range parts {
			tops = append(tops, p.Tops[k])
		}
		merged.Tops[k] = MergeTops(size, tops...)
	}
	for _, p := range parts {
		distinct = append(distinct, p.Denied)
	}
	merged.Denied = MergeDistinct(distinct...)
	return merged
}

// windows keep the activity of complete minutes: each of the last minutes by itself, and the last
// hour in parts of ten minutes.
type windows struct {
	minute int64           // the current one
	recent []datedActivity // of a minute each
	parts  []datedActivity // of ten minutes each
}

// A datedActivity is the activity of a minute, or of a part of ten minutes.
type datedActivity struct {
	number int64 // of the minute or part, since the start
	*Activity
}

// end records the activity a of the current minute, and begins the minute next.
func (w *windows) end(next int64, a *Activity) {
	minute, part := w.minute, w.minute/partMinutes
	w.recent = append(w.recent, datedActivity{minute, a})
	if n := len(w.parts); n > 0 && w.parts[n-1].number == part {
		w.parts[n-1].Activity = MergeActivities(sketchSize, w.parts[n-1].Activity, a)
	} else {
		w.parts = append(w.parts, datedActivity{part, a})
	}
	w.minute = next
	w.recent = since(w.recent, next-recentMinutes+1)
	w.parts = since(w.parts, next/partMinutes-hourParts+1)
}

// since returns the activities whose number is at least first.
func since(all []datedActivity, first int64) []datedActivity {
	for len(all) > 0 && all[0].number < first {
		all[0] = datedActivity{}
		all = all[1:]
	}
	return append([]datedActivity(nil), all...)
}

// Activity returns the activity of a window up to now.
func (r *Recorder) Activity(w Window) *Activity {
	r.mu.Lock()
	defer r.mu.Unlock()
	const isLast = false // the current minute goes on
	parts := []*Activity{r.readLocked(isLast)}
	ended := r.windows.recent
	if w == Hour {
		ended = r.windows.parts
	}
	for _, d := range ended {
		parts = append(parts, d.Activity)
	}
	return MergeActivities(sketchSize, parts...)
}

// readLocked returns the activity of the current minute. If isLast is true, the minute is over, and
// the next one begins.
func (r *Recorder) readLocked(isLast bool) *Activity {
	a := new(Activity)
	for i := range r.streams {
		s := &r.streams[i]
		s.mu.Lock()
		now, missed := s.sketch.clone(), s.missed.Load()
		if isLast {
			s.sketch.reset()
			s.missed.Store(0)
		}
		s.mu.Unlock()
		a.Tops[i] = now.top()
		a.Tops[i].Missed = missed
	}
	a.Denied = r.denied.read(isLast)
	return a
}
