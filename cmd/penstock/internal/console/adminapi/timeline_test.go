package adminapi

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
)

// withEvents returns options of two instances with events. The event of n is n minutes after 14:00.
func withEvents(o *Options) {
	next := o.Fleet
	o.Fleet = func(ctx context.Context) *activity.Fleet {
		at := func(n int) time.Time { return time.Date(2026, 1, 31, 14, n, 0, 0, time.UTC) }
		f := next(ctx)
		f.Instances[0].Events = []activity.Event{
			{Time: at(1), Kind: activity.Started, Text: "listening", Details: map[string]string{"store": "redis://a", "digest": "d1"}},
			{Time: at(5), Kind: activity.KeyReset, Text: "a key was reset", Details: map[string]string{"key": "key:\u2026", "ref": "r1", "reason": "ticket", "actor.address": "192.0.2.1:5"}},
		}
		other := *f.Instances[0].Summary
		other.Host, other.PID, other.Events = "b", 7, []activity.Event{{Time: at(3), Kind: activity.BreakerOpen, Text: "breaker open"}}
		f.Instances = append(f.Instances, activity.Instance{Name: "b1", Summary: &other})
		f.Problem = "a problem"
		return f
	}
}

func TestTimelineHasTheEventsOfAllInstances(t *testing.T) {
	f := newFixture(t, withEvents)
	for query, want := range map[string]string{
		"":                                "key_reset a true false, breaker_open b pid 7 false true, started a true false",
		"?from=2026-01-31T14:03:00Z":      "key_reset a true false, breaker_open b pid 7 false true",
		"?to=2026-01-31T15:03:00%2B01:00": "breaker_open b pid 7 false true, started a true false",
		"?from=2026-01-31T14:02&to=2026-01-31%2014:04:59": "breaker_open b pid 7 false true",
		"?to=2026-01-31T14:00:59Z":                        "",
	} {
		found := read[Timeline](f, "timeline"+query)
		var got []string
		for _, e := range found.Events {
			got = append(got, fmt.Sprint(e.Kind, " ", e.Instance, " ", e.IsSelf, " ", e.IsBad))
		}
		if strings.Join(got, ", ") != want || found.Problem != "a problem" {
			t.Errorf("timeline%s has %q and the problem %q; want %q", query, got, found.Problem, want)
		}
	}
	if w := f.get("timeline?from=yesterday"); w.Code != 400 || !strings.Contains(w.Body.String(), `\"yesterday\" is not a time; write 14:05`) {
		t.Errorf("a wrong time returns %d %s; want 400, and how to write a time", w.Code, w.Body)
	}
}

// Who has reset a key, and why, is shown to operators. No viewer sees keys if identities are off.
func TestDetailsOfEventsNeedTheToken(t *testing.T) {
	for _, c := range []struct{ identities, header, reset, started string }{
		{ShowMasked, "", "key ref", "digest"},
		{ShowFull, "", "key ref", "digest"},
		{ShowMasked, operatorHeader, "actor.address key reason ref", "digest store"},
		{ShowOff, "", "", "digest"},
		{ShowOff, operatorHeader, "actor.address reason", "digest store"},
	} {
		f := newFixture(t, func(o *Options) { withEvents(o); o.Identities = c.identities })
		events := read[Timeline](f, "timeline", c.header).Events
		names := func(e TimelineEvent) string { return strings.Join(slices.Sorted(maps.Keys(e.Details)), " ") }
		if reset, started := names(events[0]), names(events[2]); reset != c.reset || started != c.started {
			t.Errorf("%s with %q: the details are %q and %q; want %q and %q", c.identities, c.header, reset, started, c.reset, c.started)
		}
	}
}

func TestTimesWithoutADateAreTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at 2000-01-01T00:00:00Z
		time.Sleep(14*time.Hour + 5*time.Minute)
		for text, want := range map[string]string{
			"14:05": "2000-01-01T14:05:00Z", "14:05:01": "1999-12-31T14:05:01Z", "00:00": "2000-01-01T00:00:00Z", "23:59": "1999-12-31T23:59:00Z",
			"2026-01-31T14:05:00+01:00": "2026-01-31T13:05:00Z", "2026-01-31 14:05": "2026-01-31T14:05:00Z",
		} {
			if got, err := ParseTime(text); err != nil || got.Format(time.RFC3339) != want {
				t.Errorf("%q is read as %v, %v; want %s", text, got, err, want)
			}
		}
		for _, text := range []string{"", "2 pm", "24:00", "2026-02-30 14:05", strings.Repeat("1", 5000)} {
			if got, err := ParseTime(text); err == nil || len(err.Error()) > 200 {
				t.Errorf("%.40q is read as %v, %v; want a short error", text, got, err)
			}
		}
	})
}

// A period ends after it begins, also if its end is later than now, or on the next day.
func TestEndWithoutADateFollowsTheBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at 2000-01-01T00:00:00Z
		time.Sleep(19*time.Hour + 32*time.Minute)
		for _, c := range []struct{ from, to, want string }{
			{"19:10", "19:59", "2000-01-01T19:10:00Z 2000-01-01T19:59:00Z"},
			{"19:10", "19:30", "2000-01-01T19:10:00Z 2000-01-01T19:30:00Z"},
			{"19:10", "19:10", "2000-01-01T19:10:00Z 2000-01-01T19:10:00Z"},
			{"23:50", "00:10", "1999-12-31T23:50:00Z 2000-01-01T00:10:00Z"},
			{"1999-12-30 12:00", "11:59:59", "1999-12-30T12:00:00Z 1999-12-31T11:59:59Z"},
			{"1999-12-30T23:30:00-01:00", "00:45", "1999-12-31T00:30:00Z 1999-12-31T00:45:00Z"},
			{"", "19:59", "0001-01-01T00:00:00Z 1999-12-31T19:59:00Z"},
			{"19:10", "", "2000-01-01T19:10:00Z 0001-01-01T00:00:00Z"},
		} {
			from, to, err := periodOf(url.Values{"from": {c.from}, "to": {c.to}})
			if got := from.Format(time.RFC3339) + " " + to.Format(time.RFC3339); err != nil || got != c.want {
				t.Errorf("from %q to %q is %s, %v; want %s", c.from, c.to, got, err, c.want)
			}
		}
	})
}
