package resplimit

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// An eventRecord keeps a line about each event.
type eventRecord struct {
	mu    sync.Mutex
	lines []string
}

func (r *eventRecord) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

func (r *eventRecord) observe(e *admission.Event) {
	line := fmt.Sprintf("%s/%s %s %s %s %s", e.Rule, e.Limit, e.Algorithm, e.Key, e.Outcome, e.Source)
	if e.Latency <= 0 {
		line += " without latency"
	}
	if (e.Decision == nil) != (e.Err != nil) || e.Decision != nil && (len(e.Charges) != 1 || e.Charges[0].Key != e.Key) {
		line += fmt.Sprintf(" with decision %v, charges %v and error %v", e.Decision, e.Charges, e.Err)
	}
	if e.Err != nil {
		line += " error"
	}
	r.add(line)
}

// take returns the lines since the last call.
func (r *eventRecord) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

// expect fails the test unless these are the lines since the last take. The text about describes
// what caused them.
func (r *eventRecord) expect(t *testing.T, about string, want ...string) {
	t.Helper()
	if got := r.take(); !slices.Equal(got, want) {
		t.Errorf("%s: the events are %q; want %q", about, got, want)
	}
}

func TestEachThrottleHasOneEvent(t *testing.T) {
	const (
		allowed = "cl.throttle/cl.throttle token-bucket a allowed store"
		denied  = "cl.throttle/cl.throttle token-bucket a denied store"
	)
	for _, parallel := range []int{1, 64} {
		var r eventRecord
		store := memstore.New(memstore.Options{Now: newClock().Now})
		_, addr := serve(t, store, controllerOf(t, store, guard.FailClosed, penstock.PerDay(1)), Options{Parallel: parallel, Observe: r.observe})
		client := connect(t, addr)
		client.expect("CL.THROTTLE a 1 1 60", "[0 2 1 -1 60]")
		r.expect(t, "allowed", allowed)
		client.expect("THROTTLE a 2 1 60", "[1 2 0 120 0]")
		client.expect("THROTTLE a 2 1 60", "[0 2 0 120 60]")
		r.expect(t, "allowed, then denied", allowed, denied)
		for _, line := range []string{"CL.THROTTLE a 1 1 60 0", "THROTTLE a 2 1 60 0", "DEL a", "PING", "CL.THROTTLE a 1 0 60", "CL.THROTTLE a", "PENSTOCK.CHECK search user:1"} {
			client.do(line)
			r.expect(t, line)
		}
		var pipeline strings.Builder
		for range 20 {
			pipeline.WriteString(encode("CL.THROTTLE", "a", "13", "1", "3600"))
		}
		client.send(pipeline.String())
		for range 20 {
			client.reply()
		}
		// In redis-cell, a max_burst of 13 admits a burst of 14 calls.
		r.expect(t, "a pipeline", append(slices.Repeat([]string{allowed}, 14), slices.Repeat([]string{denied}, 6)...)...)
	}
}

func TestEventsHaveTheirOwnName(t *testing.T) {
	var r eventRecord
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{LimitName: "calls", Observe: r.observe})
	connect(t, addr).do("CL.THROTTLE a 1 1 60")
	r.expect(t, "another LimitName", "calls/calls token-bucket a allowed store")
}

func TestAStoreThatFailsIsInTheEvent(t *testing.T) {
	fallback := func(mode guard.FailureMode) penstock.Store {
		return penstock.Wrap(newFailingStore(penstock.ReasonTimeout), guard.Fallback(guard.FallbackOptions{OnFailure: mode}))
	}
	for want, store := range map[string]penstock.Store{
		"failed_closed store error": newFailingStore(penstock.ReasonTimeout),
		"failed_closed closed":      fallback(guard.FailClosed),
		"failed_open open":          fallback(guard.FailOpen),
		"allowed fallback":          fallback(guard.FailLocal),
	} {
		var r eventRecord
		_, addr := serve(t, store, nil, Options{Observe: r.observe})
		connect(t, addr).do("CL.THROTTLE a 15 3 60")
		r.expect(t, want, "cl.throttle/cl.throttle token-bucket a "+want)
	}
}

func TestADecisionThatCloseEndsIsAbandoned(t *testing.T) {
	var r eventRecord
	started := make(chan struct{})
	store := penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
		close(started)
		<-ctx.Done()
		return penstock.Decision{}, ctx.Err()
	})
	s, addr := serve(t, store, nil, Options{Observe: r.observe})
	connect(t, addr).send(encode("CL.THROTTLE", "a", "1", "1", "60"))
	<-started
	s.Close()
	r.expect(t, "closed", "cl.throttle/cl.throttle token-bucket a abandoned store error")
}

// The commands are decided in several goroutines.
func TestPanicOfAnObserverIsContained(t *testing.T) {
	expectPanic(t, "a bug in an observer")
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{Observe: func(*admission.Event) { panic("a bug in an observer") }})
	client := connect(t, addr)
	client.send(encode("CL.THROTTLE", "a", "1", "1", "60") + encode("CL.THROTTLE", "b", "1", "1", "60") + encode("PING"))
	for _, want := range []string{"[0 2 1 -1 60]", "[0 2 1 -1 60]", "+PONG"} {
		if got := client.reply(); got != want {
			t.Errorf("the reply is %q; want %q although the observer panics", got, want)
		}
	}
}

func TestRefusedPasswordsAreReported(t *testing.T) {
	var r eventRecord
	failed := func(reason string, peer net.Addr) { r.add(reason + " " + peer.String()) }
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{Credentials: []Credential{{"ann", "secret"}}, AuthFailed: failed})
	client := connect(t, addr)
	wrong, none := "wrong_password "+client.LocalAddr().String(), "no_password "+client.LocalAddr().String()
	for _, c := range []struct {
		line string
		want []string
	}{
		{"AUTH secret", []string{wrong}},
		{"AUTH ann wrong", []string{wrong}},
		{"HELLO 3 AUTH ann wrong", []string{wrong}},
		{"PING", []string{none}},
		{"CL.THROTTLE a 1 1 60", []string{none}},
		{"HELLO 3", []string{none}},
		{"AUTH", nil},
		{"HELLO 4", nil},
		{"AUTH ann secret", nil},
		{"HELLO 3 AUTH ann secret", nil},
		{"PING", nil},
		{"NONESUCH", nil},
	} {
		client.do(c.line)
		r.expect(t, c.line, c.want...)
	}

	_, addr = serve(t, memstore.New(memstore.Options{}), nil, Options{AuthFailed: failed})
	client = connect(t, addr)
	wrong = "wrong_password " + client.LocalAddr().String()
	for _, line := range []string{"AUTH secret", "HELLO 3 AUTH default secret"} { // no password is configured
		client.do(line)
		r.expect(t, line, wrong)
	}
}
