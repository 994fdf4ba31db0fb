package faults

import (
	"sync"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// The server makes decisions while keys, scripts or replies are lost. No call is charged twice.
var lost = []fault{
	{
		id: "F11", name: "all keys evicted",
		deadline: patient,
		begin:    runCommands("FLUSHALL"), end: noop,
		decidedBy: byStore, dataLosses: 1,
		finally: checkNoError,
	},
	{
		id: "F12", name: "scripts forgotten", onMore: groups,
		deadline: patient,
		begin:    forgetScripts, meanwhile: forRequests(500), end: undo,
		decidedBy: byStore,
		finally:   checkNoError,
	},
	{
		id: "F15", name: "replies lost",
		route: lossy,
		begin: lose((*redistest.Proxy).DropReplies, true), end: lose((*redistest.Proxy).DropReplies, false),
		wantErrors: unknown, hasUnseenCharges: true,
	},
	{
		id: "F15", name: "replies lost on connections that go on",
		route: lossy,
		begin: lose(skipReplies, true), end: lose(skipReplies, false),
		wantErrors: unknown, hasUnseenCharges: true,
	},
	{
		id: "F15", name: "connections lost with their replies",
		route: lossy,
		begin: lose((*redistest.Proxy).CutOnReply, true), end: lose((*redistest.Proxy).CutOnReply, false),
		wantErrors: unknown, hasUnseenCharges: true,
	},
}

// patient is a deadline that even a busy machine meets.
const patient = 10 * time.Second

// forgetScripts flushes the server's scripts every few milliseconds.
func forgetScripts(e *experiment) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			for _, s := range e.target.servers {
				if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
					e.Errorf("SCRIPT FLUSH: %v", err)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	e.undo = func() {
		close(stop)
		all.Wait()
	}
}

// lose makes the lossy proxy start or stop losing the replies to EVALSHA.
func lose(how func(*redistest.Proxy, bool), isOn bool) func(*experiment) {
	return func(e *experiment) {
		e.target.lossy.Only("EVALSHA")
		how(e.target.lossy, isOn)
	}
}

// skipReplies makes the proxy lose replies and then deliver later ones on the same connections.
func skipReplies(p *redistest.Proxy, isOn bool) {
	if isOn {
		p.MangleReplies(func([]byte) []byte { return nil })
		return
	}
	p.MangleReplies(nil)
}

func checkNoError(e *experiment) {
	if seen := e.reasons(); len(seen) > 0 {
		e.Errorf("instances saw errors; want none:\n%s", e.errors())
	}
}
