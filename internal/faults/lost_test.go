package faults

import (
	"sync"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// The server makes decisions, and something is lost. The checks see that nothing is charged twice.
var lost = []fault{
	{
		id: "F11", name: "all keys evicted",
		deadline: patient,
		begin:    do("FLUSHALL"), end: noop,
		answeredBy: byStore, dataLosses: 1,
		finally: withoutError,
	},
	{
		id: "F12", name: "scripts forgotten", onMore: groups,
		deadline: patient,
		begin:    forgetScripts, meanwhile: forRequests(500), end: undo,
		answeredBy: byStore,
		finally:    withoutError,
	},
	{
		id: "F15", name: "replies lost",
		route: lossy,
		begin: lose((*redistest.Proxy).Lose, true), end: lose((*redistest.Proxy).Lose, false),
		wantErrors: unknown, charges: true,
	},
	{
		id: "F15", name: "connections lost with their replies",
		route: lossy,
		begin: lose((*redistest.Proxy).Cut, true), end: lose((*redistest.Proxy).Cut, false),
		wantErrors: unknown, charges: true,
	},
}

// patient is a deadline that even a slow machine meets.
const patient = 10 * time.Second

// forgetScripts flushes the server's scripts every few milliseconds.
func forgetScripts(l *experiment) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			for _, s := range l.target.servers {
				if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
					l.Errorf("SCRIPT FLUSH: %v", err)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	l.undo = func() {
		close(stop)
		all.Wait()
	}
}

func lose(how func(*redistest.Proxy, bool), on bool) func(*experiment) {
	return func(l *experiment) {
		l.target.lossy.Only("EVALSHA")
		how(l.target.lossy, on)
	}
}

func withoutError(l *experiment) {
	if seen := l.reasons(); len(seen) > 0 {
		l.Errorf("instances saw errors:\n%s", l.errors())
	}
}
