package activity

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
)

// An event is a log line with the attribute event. The log has the same line.
func TestLogLinesWithTheAttributeAreEvents(t *testing.T) {
	var events Events
	out := new(logbuffer.Buffer)
	log := events.Logger(out.Logger())
	log.Info("no event", "node", "a")
	log.With("node", "a").Info("breaker open", EventAttribute, BreakerOpen, "calls", 7, "err", errors.New("no\x1b[2Janswer"), slog.Group("actor", "kind", "api", "name", ""), "audit", true)
	quiet := events.Logger(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelError})))
	quiet.Info("the store decides again", EventAttribute, StoreWorks)
	quiet.Debug("too low", EventAttribute, StoreWorks)
	all := events.Latest()
	if len(all) != 2 || all[0].Kind != BreakerOpen || all[1].Kind != StoreWorks || all[1].Text != "the store decides again" || all[0].Time.IsZero() {
		t.Fatalf("the events are %+v; want breaker_open, then store_works", all)
	}
	if want := map[string]string{"calls": "7", "err": "no\ufffd[2Janswer", "actor.kind": "api"}; !maps.Equal(all[0].Details, want) {
		t.Errorf("the details are %q; want %q", all[0].Details, want)
	}
	if len(out.Lines("no event")) != 1 || len(out.Lines("breaker open", "node=a", "event=breaker_open")) != 1 || len(out.Lines("decides again")) != 0 {
		t.Errorf("the log is %s; want the lines of its level, as without events", out)
	}
}

func TestEventsAreBounded(t *testing.T) {
	var events Events
	log := events.Logger(slog.New(slog.DiscardHandler))
	var many []any
	for i := range 2 * maxDetails {
		many = append(many, fmt.Sprint("name", i), strings.Repeat("é", maxEventText))
	}
	for i := range MaxEvents + 3 {
		log.Info(fmt.Sprint("line ", i), append(many, EventAttribute, Reloaded)...)
	}
	all := events.Latest()
	if len(all) != MaxEvents || all[0].Text != "line 3" || all[MaxEvents-1].Text != fmt.Sprint("line ", MaxEvents+2) {
		t.Fatalf("%d events are kept, from %q to %q; want the latest %d", len(all), all[0].Text, all[len(all)-1].Text, MaxEvents)
	}
	if d := all[0].Details; len(d) != maxDetails || d["name0"] != strings.Repeat("é", maxEventText/2) {
		t.Errorf("an event has %d details, the first of %d bytes; want %d of %d", len(d), len(d["name0"]), maxDetails, maxEventText)
	}
	if got := (*Events)(nil).Latest(); got != nil {
		t.Errorf("nil has the events %v; want none", got)
	}
}

// The summary has the latest events, as many as fit into its size.
func TestSummaryHasTheLatestEvents(t *testing.T) {
	var events Events
	log := events.Logger(slog.New(slog.DiscardHandler))
	for i := range MaxEvents {
		log.Info("policy reloaded", EventAttribute, Reloaded, "n", i, "changed", strings.Repeat("rule ", 20))
	}
	for name, s := range map[string]*Summary{"quiet": New(Options{}).Summary(), "busy": busySummary(t)} {
		s.Events = events.Latest()
		text, err := s.Text()
		if err != nil || len(text) > MaxSummary {
			t.Fatalf("%s: the summary has %d bytes and the error %v; want at most %d and no error", name, len(text), err, MaxSummary)
		}
		read, err := ParseSummary(text)
		if err != nil {
			t.Fatalf("%s: the summary cannot be parsed: %v", name, err)
		}
		n := len(read.Events)
		if n < 5 || n > 40 || !reflect.DeepEqual(read.Events, s.Events[len(s.Events)-n:]) {
			t.Errorf("%s: the summary has %d events, %+v; want the latest 5 to 40", name, n, read.Events)
		}
		t.Logf("counted: %s: %d of %d events in a summary", name, n, MaxEvents)
	}
}

func TestBadEventsAreRejected(t *testing.T) {
	none := `{"size":16,"hashes":"","of":[],"names":[]}`
	window := `{"tops":[` + strings.Join(slices.Repeat([]string{`{"items":[]}`}, int(kindCount)), ",") + `],"denied":` + none + `}`
	summaryWith := func(events string) string {
		return forge(`{"events":[` + events + `],"windows":[` + window + `,` + window + `]}`)
	}
	const good = `{"t":"2026-01-31T14:05:00Z","k":"reloaded","m":"policy reloaded","d":{"rules":"3"}}`
	if s, err := ParseSummary(summaryWith(good)); err != nil || len(s.Events) != 1 {
		t.Fatalf("a good event is read as %+v, %v; want it", s, err)
	}
	for name, bad := range map[string]string{
		"no kind": strings.Replace(good, `"k":"reloaded",`, "", 1), "a kind with a space": strings.Replace(good, "reloaded", "re loaded", 1), "no text": strings.Replace(good, "policy reloaded", "", 1),
		"a text that controls a terminal": strings.Replace(good, "policy reloaded", `\u001b[2J`, 1),
		"a text that changes directions":  strings.Replace(good, "policy reloaded", `a\u202eb`, 1),
		"a long text":                     strings.Replace(good, "policy reloaded", strings.Repeat("x", maxEventText+1), 1),
		"a long detail":                   strings.Replace(good, `"3"`, `"`+strings.Repeat("x", maxEventText+1)+`"`, 1), "a detail with markup in its name": strings.Replace(good, `"rules"`, `"<b> x"`, 1),
		"no time": strings.Replace(good, "2026-01-31T14:05:00Z", "14:05", 1), "too many": strings.Repeat(good+",", MaxEvents) + good,
	} {
		if s, err := ParseSummary(summaryWith(bad)); err == nil {
			t.Errorf("%s: parsed as %+v; want an error", name, s.Events)
		}
	}
}
