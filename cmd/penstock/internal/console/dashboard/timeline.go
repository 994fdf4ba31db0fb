package dashboard

import (
	"context"
	"net/url"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

// A timeline has all events, or those around a time, with the charts of that time.
type timeline struct {
	At       string // as the viewer has written it; "": all times
	From, To time.Time
	Span     string // of the charts: seconds or minutes
	Charts   []chart
	adminapi.Timeline
}

// around is how much time the charts show before and after a moment. They have a point for each
// minute, or for each 10 seconds if the moment is in the last 10 minutes.
const around = chartPoints / 2 * time.Minute

func (h *Handler) timeline(ctx context.Context, v adminapi.Viewer, q url.Values) (any, error) {
	t := &timeline{At: q.Get("at")}
	events := url.Values{}
	if t.At != "" {
		if err := h.showMoment(ctx, v, t); err != nil {
			return t, err
		}
		events = url.Values{"from": {t.From.Format(time.RFC3339)}, "to": {t.To.Format(time.RFC3339)}}
	}
	var err error
	if t.Timeline, err = adminapi.Read[adminapi.Timeline](ctx, h.API, v, "timeline", events); err != nil {
		return nil, err
	}
	for i := range t.Charts {
		t.Charts[i].events = t.Events
	}
	return t, nil
}

// showMoment sets the period that is shown. It makes the charts if the history goes back so far.
func (h *Handler) showMoment(ctx context.Context, v adminapi.Viewer, t *timeline) error {
	at, err := adminapi.ParseTime(t.At)
	if err != nil {
		return err
	}
	t.From, t.To, t.Span = at.Add(-around), at.Add(around), "minutes"
	switch age := time.Since(at); {
	case age > maxMinutes*time.Minute, age < -around:
		return nil // there are no charts
	case age < maxSeconds*time.Second:
		t.Span = "seconds"
	}
	history, timings, err := h.readHistory(ctx, v, t.Span)
	if err != nil {
		return err
	}
	if t.Span == "minutes" {
		after := int(history.End.Sub(at.Add(around)) / time.Minute)
		keepHour(&history, &timings, min(max(after, 0), maxMinutes-chartPoints))
	}
	t.To = history.End
	t.From = t.To.Add(-time.Duration(len(timings.Store.Calls)) * unitOf(t.Span))
	t.Charts = makeCharts("", history, timings, nil)
	return nil
}

// keepHour shortens a day to an hour. It drops as many of the latest minutes as latest says, and
// all that is older than the hour.
func keepHour(history *adminapi.History, timings *adminapi.Timings, latest int) {
	from, to := maxMinutes-latest-chartPoints, maxMinutes-latest
	history.End = history.End.Add(-time.Duration(latest) * time.Minute)
	for i := range history.Lines {
		history.Lines[i].Counts = history.Lines[i].Counts[from:to]
	}
	for _, t := range []*adminapi.Times{&timings.Store, timings.Upstream} {
		if t != nil {
			*t = adminapi.Times{Calls: t.Calls[from:to], Failed: t.Failed[from:to], P50: t.P50[from:to], P95: t.P95[from:to], P99: t.P99[from:to]}
		}
	}
}
