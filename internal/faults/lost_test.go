package faults

import (
	"sync"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// The server decides, and something is lost. The judge sees that nothing is charged twice.
var lost = []row{
	{
		id: "F11", name: "all keys evicted",
		deadline: patient,
		begin:    do("FLUSHALL"), end: nothing,
		answered: byStore, forgets: 1,
		also: withoutError,
	},
	{
		id: "F12", name: "scripts forgotten", onMore: groups,
		deadline: patient,
		begin:    forgetScripts, lasts: asks(500), end: undo,
		answered: byStore,
		also:     withoutError,
	},
	{
		id: "F15", name: "answers lost",
		way:   lossy,
		begin: lose((*redistest.Proxy).Lose, true), end: lose((*redistest.Proxy).Lose, false),
		sees: unknown, charges: true,
	},
	{
		id: "F15", name: "connections lost with their answers",
		way:   lossy,
		begin: lose((*redistest.Proxy).Cut, true), end: lose((*redistest.Proxy).Cut, false),
		sees: unknown, charges: true,
	},
}

// patient is the deadline where nobody should wait long, however slow the machine.
const patient = 10 * time.Second

// forgetScripts has the server forget all scripts every few milliseconds.
func forgetScripts(l *lab) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			for _, s := range l.to.servers {
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

func lose(how func(*redistest.Proxy, bool), on bool) func(*lab) {
	return func(l *lab) {
		l.to.lossy.Only("EVALSHA")
		how(l.to.lossy, on)
	}
}

func withoutError(l *lab) {
	if seen := l.classes(); len(seen) > 0 {
		l.Errorf("instances saw errors:\n%s", l.errors())
	}
}
