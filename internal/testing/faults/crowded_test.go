package faults

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// Many clients connect together, or again and again.
var crowded = []fault{
	{
		id: "F24", name: "all connections closed, again and again",
		begin: noop, meanwhile: closeConnections, end: noop,
		decidedBy: byAnySource,
		finally:   checkDialedOnce,
	},
	{
		id: "F25", name: "many callers after an outage",
		callers: 8,
		begin:   kill, meanwhile: forRequests(2000),
		end: func(e *experiment) {
			e.oldCalls = e.storeCalls()
			restart(e)
		},
		dataLosses: 1,
		finally:    checkNothingOldRan,
	},
	{
		id: "F26", name: "a route that is cut again and again", // the network between instances and server
		route: toxic,
		begin: noop, meanwhile: interruptRepeatedly, end: noop,
		decidedBy: byAnySource,
	},
}

// maxConnections is the number of connections from one client to one server. rueidis distributes
// its commands over them.
const maxConnections = 4

// closeConnections closes all connections repeatedly, each time after the instances have
// reconnected.
func closeConnections(e *experiment) {
	closings := 10
	if isSoak {
		closings = 100
	}
	before := e.countAccepted()
	for range closings {
		e.do("CLIENT KILL TYPE normal")
		e.awaitRequests(20)
	}
	ownConnections := int64(closings) + 1 // one for each CLIENT KILL, and one for the last INFO
	e.dialed += e.countAccepted() - before - ownConnections
	e.kills += closings
}

// countAccepted returns how many connections the server has accepted.
func (e *experiment) countAccepted() int64 { e.Helper(); return e.countAcceptedBy(e.target.primary()) }

func (e *experiment) countAcceptedBy(s *redistest.Server) int64 {
	e.Helper()
	reply, err := s.Do("INFO", "stats")
	if err != nil {
		e.Fatal(err)
	}
	match := regexp.MustCompile(`total_connections_received:(\d+)`).FindStringSubmatch(fmt.Sprint(reply))
	n, err := strconv.ParseInt(match[1], 10, 64)
	if err != nil {
		e.Fatal(err)
	}
	return n
}

// checkDialedOnce checks that a closed connection is dialed again only once, although many calls
// wait for it. In each cycle an instance may also dial each connection for the first time, because
// rueidis dials when a connection is needed.
func checkDialedOnce(e *experiment) {
	if most := int64((e.kills + e.cycles) * instances * maxConnections); e.dialed > most {
		e.Errorf("%d connections were dialed, and all were closed %d times; want at most %d dialed, since at most %d are open at one time",
			e.dialed, e.kills, most, instances*maxConnections)
	}
	e.Logf("counted: %d times all connections closed (%d dialed)", e.kills, e.dialed)
}

// checkNothingOldRan checks that the server ran no script of calls from before its restart.
func checkNothingOldRan(e *experiment) {
	ran, _, err := e.target.primary().CommandStats("evalsha")
	if err != nil {
		e.Fatal(err)
	}
	if calls := e.storeCalls() - e.oldCalls; ran > calls {
		e.Errorf("%d scripts ran since the server restarted, for %d calls; want no more scripts than calls", ran, calls)
	}
	opened := int64(0)
	for _, i := range e.load.instances {
		opened += i.opened.Load()
	}
	e.Logf("breakers opened %d times", opened)
}

// interruptRepeatedly cuts the route and restores it, again and again.
func interruptRepeatedly(e *experiment) {
	interruptions := 4
	if isSoak {
		interruptions = 12
	}
	for range interruptions {
		addToxic(`{"type": "reset_peer", "attributes": {"timeout": 0}}`)(e)
		e.wait(300 * time.Millisecond)
		removeToxics(e)
		e.wait(300 * time.Millisecond)
	}
}

// wait waits for 0.5 to 1.5 times mean.
func (e *experiment) wait(mean time.Duration) {
	time.Sleep(mean/2 + time.Duration(e.rng.Int64N(int64(mean))))
}
