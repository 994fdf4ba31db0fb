package faults

import (
	"context"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

var unknown = []penstock.Reason{penstock.ReasonUnknown}

// The server, or the way to it, is slow, or holds everything.
var slow = []row{
	{
		id: "F3", name: "slow, within the deadline",
		way: toxic, deadline: patient,
		begin: poison(`{"type": "latency", "attributes": {"latency": 5, "jitter": 4}}`), end: cure,
		answered: byStore, also: withoutError,
	},
	{
		id: "F3", name: "slow, around the deadline",
		way: toxic,
		begin: func(l *lab) {
			poison(`{"type": "latency", "attributes": {"latency": ` + ms(l.deadline/2) + `, "jitter": ` + ms(l.deadline/2) + `}}`)(l)
		},
		end:      cure,
		answered: byAnybody,
	},
	{
		id: "F3", name: "far slower than the deadline",
		way:   toxic,
		begin: poison(`{"type": "latency", "attributes": {"latency": 3000}}`), end: cure,
		sees: unknown,
	},
	{
		id: "F3", name: "a narrow way",
		way:   toxic,
		begin: poison(`{"type": "bandwidth", "stream": "upstream", "attributes": {"rate": 1}}`), end: cure, // KB/s
		partial: true, sees: unknown, cycles: 8,
	},
	{
		id: "F3", name: "answers in pieces",
		way: toxic, deadline: patient,
		begin: poison(`{"type": "slicer", "attributes": {"average_size": 8, "size_variation": 4, "delay": 100}}`), end: cure,
		answered: byStore, also: withoutError,
	},
	{
		id: "F4", name: "stopped",
		begin: func(l *lab) { l.to.primary().Pause() },
		end:   func(l *lab) { l.to.primary().Resume() },
		sees:  unknown,
	},
	{
		id: "F4", name: "asleep",
		begin: func(l *lab) {
			go l.to.primary().Do("DEBUG", "SLEEP", "2")
			l.await("the server sleeps", func() bool { return !l.answers() })
		},
		end:     func(l *lab) { l.await("the server is awake", l.answers) },
		partial: true, sees: unknown,
	},
	{
		id: "F4", name: "its clients paused",
		begin:   do("CLIENT PAUSE 2000 ALL"),
		end:     func(l *lab) { l.await("the server goes on", l.answers) },
		partial: true, sees: unknown,
	},
	{
		id: "F4", name: "writes paused", onMore: groups,
		prepare: func(l *lab) {
			if l.to.sentinel != nil {
				l.check(l.to.sentinel.Tolerate(time.Minute)) // or else it fails over, if the pause is long
			}
		},
		begin: do("CLIENT PAUSE 60000 WRITE"), end: do("CLIENT UNPAUSE"),
		sees: unknown,
	},
	{
		id: "F4", name: "a way that holds everything",
		way:   toxic,
		begin: poison(`{"type": "timeout", "attributes": {"timeout": 0}}`), end: cure,
		sees: unknown,
	},
	{
		id: "F4", name: "a way that resets connections",
		way:   toxic,
		begin: poison(`{"type": "reset_peer", "attributes": {"timeout": 0}}`), end: cure,
		sees: unknown,
	},
}

func ms(d time.Duration) string {
	return strings.TrimSuffix(d.Truncate(time.Millisecond).String(), "ms")
}

// poison adds a toxic to the way.
func poison(toxic string) func(*lab) {
	return func(l *lab) {
		l.Helper()
		if _, err := l.to.toxics.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			l.Fatalf("%s: %v", toxic, err)
		}
	}
}

func cure(l *lab) { l.to.toxics.Toxics.ResetToxics(context.Background()) }

// answers tells whether the server answers at once.
func (l *lab) answers() bool {
	answered := make(chan bool, 1)
	go func() {
		_, err := l.to.primary().Do("PING")
		answered <- err == nil
	}()
	select {
	case ok := <-answered:
		return ok
	case <-time.After(50 * time.Millisecond):
		return false
	}
}
