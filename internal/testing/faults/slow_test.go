package faults

import (
	"context"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

var unknown = []penstock.Reason{penstock.ReasonUnknown}

// The server or the route to it is slow, or stops.
var slow = []fault{
	{
		id: "F3", name: "slow, within the deadline",
		route: toxic, deadline: patient,
		begin: addToxic(`{"type": "latency", "attributes": {"latency": 5, "jitter": 4}}`), end: removeToxics,
		decidedBy: byStore, finally: checkNoError,
	},
	{
		id: "F3", name: "slow, around the deadline",
		route: toxic,
		begin: func(e *experiment) {
			addToxic(`{"type": "latency", "attributes": {"latency": ` + ms(e.deadline/2) + `, "jitter": ` + ms(e.deadline/2) + `}}`)(e)
		},
		end:       removeToxics,
		decidedBy: byAnySource,
	},
	{
		id: "F3", name: "far slower than the deadline",
		route: toxic,
		begin: addToxic(`{"type": "latency", "attributes": {"latency": 3000}}`), end: removeToxics,
		wantErrors: unknown,
	},
	{
		id: "F3", name: "a route with low bandwidth",
		route: toxic,
		begin: addToxic(`{"type": "bandwidth", "stream": "upstream", "attributes": {"rate": 1}}`), end: removeToxics, // the rate is in KB/s
		isPartial: true, wantErrors: unknown, cycles: 8,
	},
	{
		id: "F3", name: "replies in pieces",
		route: toxic, deadline: patient,
		begin: addToxic(`{"type": "slicer", "attributes": {"average_size": 8, "size_variation": 4, "delay": 100}}`), end: removeToxics,
		decidedBy: byStore, finally: checkNoError,
	},
	{
		id: "F4", name: "stopped",
		begin:      func(e *experiment) { e.target.primary().Pause() },
		end:        func(e *experiment) { e.target.primary().Resume() },
		wantErrors: unknown,
	},
	{
		id: "F4", name: "asleep",
		begin: func(e *experiment) {
			go e.target.primary().Do("DEBUG", "SLEEP", "2")
			e.await("the server to sleep", func() bool { return !e.isAnswering() })
		},
		end:       func(e *experiment) { e.await("the server to wake up", e.isAnswering) },
		isPartial: true, wantErrors: unknown,
	},
	{
		id: "F4", name: "clients paused",
		begin:     runCommands("CLIENT PAUSE 2000 ALL"),
		end:       func(e *experiment) { e.await("the server to continue", e.isAnswering) },
		isPartial: true, wantErrors: unknown,
	},
	{
		id: "F4", name: "writes paused", onMore: groups,
		prepare: func(e *experiment) {
			if e.target.sentinel != nil {
				e.must(e.target.sentinel.Tolerate(time.Minute)) // otherwise a long pause causes a failover
			}
		},
		begin: runCommands("CLIENT PAUSE 60000 WRITE"), end: runCommands("CLIENT UNPAUSE"),
		wantErrors: unknown,
	},
	{
		id: "F4", name: "a route that holds everything",
		route: toxic,
		begin: addToxic(`{"type": "timeout", "attributes": {"timeout": 0}}`), end: removeToxics,
		wantErrors: unknown,
	},
	{
		id: "F4", name: "a route that resets connections",
		route: toxic,
		begin: addToxic(`{"type": "reset_peer", "attributes": {"timeout": 0}}`), end: removeToxics,
		wantErrors: unknown,
	},
}

// ms formats a duration in whole milliseconds, without a unit.
func ms(d time.Duration) string {
	return strings.TrimSuffix(d.Truncate(time.Millisecond).String(), "ms")
}

// addToxic adds a toxic to the route: a fault of toxiproxy, in its JSON format. Latencies and
// timeouts are in ms, and the delay of a slicer is in µs.
func addToxic(toxic string) func(*experiment) {
	return func(e *experiment) {
		e.Helper()
		if _, err := e.target.toxics.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			e.Fatalf("add the toxic %s: %v; want no error", toxic, err)
		}
	}
}

func removeToxics(e *experiment) { e.target.toxics.Toxics.ResetToxics(context.Background()) }

// isAnswering returns true if the server replies within 50 ms.
func (e *experiment) isAnswering() bool {
	replied := make(chan bool, 1)
	go func() {
		_, err := e.target.primary().Do("PING")
		replied <- err == nil
	}()
	select {
	case ok := <-replied:
		return ok
	case <-time.After(50 * time.Millisecond):
		return false
	}
}
