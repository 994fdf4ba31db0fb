package activity

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
)

// An Event is a log line that may explain a change in the charts, such as a reload of the policy.
type Event struct {
	Time    time.Time         `json:"t"`
	Kind    EventKind         `json:"k"`
	Text    string            `json:"m"`           // message of the line
	Details map[string]string `json:"d,omitempty"` // other attributes of the line by name, such as actor.address
}

type EventKind string

// The kinds of events. A log line with the attribute EventAttribute is an event of this kind.
const (
	Started       EventKind = "started"
	Reloaded      EventKind = "reloaded"
	Weakened      EventKind = "weakened" // a reload whose rules may admit requests that the old rules denied
	ReloadFailed  EventKind = "reload_failed"
	KeyReset      EventKind = "key_reset"
	BreakerOpen   EventKind = "breaker_open"
	BreakerClosed EventKind = "breaker_closed"
	StoreFails    EventKind = "store_fails"
	StoreWorks    EventKind = "store_works"
	Unlimited     EventKind = "unlimited"      // requests pass although the store does not decide
	LimitedAgain  EventKind = "limited_again"  // no more requests pass unlimited
	ServerChanged EventKind = "server_changed" // a failover or a restart
	KeysLost      EventKind = "keys_lost"
	ChargedTwice  EventKind = "charged_twice" // another instance had already charged the requests
	RegionFails   EventKind = "region_fails"  // there is no contact with another region
	RegionWorks   EventKind = "region_works"
)

// IsBad reports whether the event is a sign of trouble.
func (k EventKind) IsBad() bool {
	switch k {
	case Weakened, ReloadFailed, BreakerOpen, StoreFails, Unlimited, ServerChanged, KeysLost, ChargedTwice, RegionFails:
		return true
	}
	return false
}

// EventAttribute is the attribute that makes a log line an event. Its value is the kind.
const EventAttribute = "event"

const (
	MaxEvents    = 256 // of one instance
	maxDetails   = 16  // of one event
	maxEventText = 500 // bytes of a text or of a detail
)

// Events keeps the latest MaxEvents events of an instance. Its zero value is ready for use.
type Events struct {
	mu    sync.Mutex
	kept  [MaxEvents]Event
	count int // of all events since the start
}

// Latest returns the events, the oldest first. They must not be changed. A nil Events has none.
func (e *Events) Latest() (all []Event) {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := max(e.count-MaxEvents, 0); i < e.count; i++ {
		all = append(all, e.kept[i%MaxEvents])
	}
	return all
}

// Logger returns a logger that writes to log, and keeps the lines that are events.
func (e *Events) Logger(log *slog.Logger) *slog.Logger {
	return slog.New(eventHandler{log.Handler(), e})
}

// An eventHandler passes log lines on. It looks for EventAttribute only in the line itself, not in
// attributes that a logger adds.
type eventHandler struct {
	slog.Handler
	events *Events
}

// Enabled returns true from the level INFO on, so that events are kept at every log level.
func (h eventHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.Handler.Enabled(ctx, level)
}

func (h eventHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return eventHandler{h.Handler.WithAttrs(attrs), h.events}
}

func (h eventHandler) WithGroup(name string) slog.Handler {
	return eventHandler{h.Handler.WithGroup(name), h.events}
}

func (h eventHandler) Handle(ctx context.Context, line slog.Record) error {
	line.Attrs(func(a slog.Attr) bool {
		if a.Key == EventAttribute {
			h.events.add(line, EventKind(a.Value.String()))
		}
		return a.Key != EventAttribute
	})
	if !h.Handler.Enabled(ctx, line.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, line)
}

func (e *Events) add(line slog.Record, kind EventKind) {
	event := Event{Time: line.Time.UTC().Truncate(time.Millisecond), Kind: kind, Text: eventText(line.Message), Details: make(map[string]string)}
	line.Attrs(func(a slog.Attr) bool { event.addDetail("", a); return true })
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept[e.count%MaxEvents] = event
	e.count++
}

func (e *Event) addDetail(prefix string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		for _, inner := range value.Group() {
			e.addDetail(prefix+a.Key+".", inner)
		}
		return
	}
	name, text := prefix+a.Key, eventText(value.String())
	if name != EventAttribute && name != "audit" && text != "" && len(e.Details) < maxDetails {
		e.Details[name] = text
	}
}

// eventText returns the first maxEventText bytes of a text. None can control a terminal.
func eventText(text string) string {
	text = printable.Line(text)
	return strings.ToValidUTF8(text[:min(len(text), maxEventText)], "")
}

// isValid reports whether an instance may have written the event.
func (e *Event) isValid() bool {
	isText := func(text string) bool { return text == eventText(text) }
	if e.Kind == "" || !isLabel(string(e.Kind)) || e.Text == "" || !isText(e.Text) || len(e.Details) > maxDetails {
		return false
	}
	for name, text := range e.Details {
		if !isLabel(name) || !isText(text) {
			return false
		}
	}
	return true
}
