package adminapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
)

// publicDetails are the details of events that viewers without the token may see. The others may
// name operators, files and addresses. The reason of a reset is not public either, because it may
// name the client.
var publicDetails = []string{"added", "changed", "digest", "domains", "key", "limits", "mistakes", "node", "reason", "ref", "removed", "requests", "result", "rule", "rules", "servers", "weaker"}

func (h *Handler) makeTimeline(ctx context.Context, v Viewer, q url.Values) (any, error) {
	from, to, err := periodOf(q)
	if err != nil {
		return nil, err
	}
	fleet := h.Fleet(ctx)
	found := Timeline{Events: []TimelineEvent{}, Problem: fleet.Problem}
	for _, instance := range fleet.Instances {
		for _, e := range instance.Events {
			if e.Time.Before(from) || !to.IsZero() && e.Time.After(to) {
				continue
			}
			details := maps.Clone(e.Details)
			maps.DeleteFunc(details, func(name, _ string) bool {
				isKey := name == "key" || name == "ref"
				isPublic := slices.Contains(publicDetails, name) && (name != "reason" || e.Kind != activity.KeyReset)
				return isKey && h.Identities == ShowOff || !v.isOperator && !isPublic
			})
			if details == nil {
				details = map[string]string{}
			}
			found.Events = append(found.Events, TimelineEvent{Time: e.Time.UTC(), Instance: nameOf(&instance), IsSelf: instance.IsSelf,
				Kind: string(e.Kind), IsBad: e.Kind.IsBad(), Text: e.Text, Details: details})
		}
	}
	slices.SortStableFunc(found.Events, func(a, b TimelineEvent) int { return b.Time.Compare(a.Time) })
	return found, nil
}

func nameOf(i *activity.Instance) string {
	name := cmp.Or(i.Host, i.Name)
	if i.PID > 0 {
		name = strings.TrimSpace(fmt.Sprintf("%s pid %d", name, i.PID))
	}
	return name
}

// periodOf returns the times from and to of a query, or the zero time for one that is not given. A
// to without a date is the first such time at or after from, and may be later than now.
func periodOf(q url.Values) (from, to time.Time, err error) {
	if text := q.Get("from"); text != "" {
		if from, err = ParseTime(text); err != nil {
			return from, to, err
		}
	}
	text := q.Get("to")
	if text == "" {
		return from, to, nil
	}
	if clock, isClock := parseClock(text); isClock && !from.IsZero() {
		if to = clock.on(from); to.Before(from) {
			to = to.AddDate(0, 0, 1)
		}
		return from, to, nil
	}
	to, err = ParseTime(text)
	return from, to, err
}

// ParseTime reads a time that a person writes: in RFC 3339, or in UTC without a zone. A time
// without a date is today in UTC, or yesterday if it is later than now.
func ParseTime(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04"} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 {
			return t.UTC(), nil
		}
	}
	if clock, isClock := parseClock(text); isClock {
		now := time.Now().UTC()
		t := clock.on(now)
		if t.After(now) {
			t = t.AddDate(0, 0, -1)
		}
		return t, nil
	}
	return time.Time{}, refuse(http.StatusBadRequest, "%.40q is not a time; write 14:05, 2026-01-31 14:05 or 2026-01-31T14:05:00+01:00", text)
}

// A clockTime is a time of day in UTC, on any date.
type clockTime time.Time

// parseClock reads a time without a date.
func parseClock(text string) (c clockTime, isClock bool) {
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			return clockTime(t), true
		}
	}
	return c, false
}

func (c clockTime) on(t time.Time) time.Time {
	year, month, day := t.UTC().Date()
	hour, minute, second := time.Time(c).Clock()
	return time.Date(year, month, day, hour, minute, second, 0, time.UTC)
}
