package faults

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// Everybody comes at once, or over and over.
var crowded = []row{
	{
		id: "F24", name: "all connections closed, again and again",
		begin: nothing, lasts: storm, end: nothing,
		answered: byAnybody,
		also:     dialledNoMoreThanOnce,
	},
	{
		id: "F25", name: "a herd after an outage",
		callers: 8,
		begin:   kill, lasts: asks(2000),
		end: func(l *lab) {
			l.mark = l.reaches()
			restart(l)
		},
		forgets: 1,
		also:    askedNothingOld,
	},
	{
		id: "F26", name: "a way that comes and goes",
		way:   toxic,
		begin: nothing, lasts: flap, end: nothing,
		answered: byAnybody,
	},
}

// connections that a client of one server may have: rueidis spreads its pipeline over so many.
const connections = 4

// storm closes all connections, waits until instances are back, and so on.
func storm(l *lab) {
	kills := 10
	if soaking {
		kills = 100
	}
	before := l.received()
	for range kills {
		l.do("CLIENT KILL TYPE normal")
		l.asksFor(20)
	}
	l.mark += l.received() - before - int64(kills) - 1 // those of this function
	l.kills += kills
}

// received is how many connections the server has accepted.
func (l *lab) received() int64 { l.Helper(); return l.receivedBy(l.to.primary()) }

func (l *lab) receivedBy(s *redistest.Server) int64 {
	l.Helper()
	reply, err := s.Do("INFO", "stats")
	if err != nil {
		l.Fatal(err)
	}
	m := regexp.MustCompile(`total_connections_received:(\d+)`).FindStringSubmatch(fmt.Sprint(reply))
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// A connection that was closed is dialled again once, when it is needed, whoever waits for it.
func dialledNoMoreThanOnce(l *lab) {
	if most := int64((l.kills + l.cycles) * instances * connections); l.mark > most {
		l.Errorf("%d connections were made after all had been closed %d times; there are %d at a time", l.mark, l.kills, instances*connections)
	}
	l.Logf("counted: %d times all connections closed (%d dialled)", l.kills, l.mark)
}

// askedNothingOld checks that the server, when it came back, ran no script that was asked for
// earlier.
func askedNothingOld(l *lab) {
	ran, _, err := l.to.primary().CommandStats("evalsha")
	if err != nil {
		l.Fatal(err)
	}
	if asked := l.reaches() - l.mark; ran > asked {
		l.Errorf("%d scripts ran since the server came back, and %d questions were asked", ran, asked)
	}
	opened := int64(0)
	for _, i := range l.load.instances {
		opened += i.opened.Load()
	}
	l.Logf("breakers opened %d times", opened)
}

// flap cuts the way and mends it, over and over.
func flap(l *lab) {
	flaps := 4
	if soaking {
		flaps = 12
	}
	for range flaps {
		poison(`{"type": "reset_peer", "attributes": {"timeout": 0}}`)(l)
		l.wait(300 * time.Millisecond)
		cure(l)
		l.wait(300 * time.Millisecond)
	}
}

// wait lets a fault last, for half as long as said up to one and a half times.
func (l *lab) wait(about time.Duration) {
	time.Sleep(about/2 + time.Duration(l.rng.Int64N(int64(about))))
}
