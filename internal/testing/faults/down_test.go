package faults

import (
	"github.com/Shopify/toxiproxy/v2"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// The server is down.
var down = []fault{
	{
		id: "F1", name: "down at start",
		prepare: kill, isAbsentAtStart: true,
		begin: kill, end: restart,
		wantErrors: []penstock.Reason{penstock.ReasonUnreachable}, dataLosses: 1,
	},
	{
		id: "F2", name: "killed",
		args:  []string{"--appendonly", "yes", "--appendfsync", "always"}, // so that it keeps its data
		begin: kill, end: restart,
		wantErrors: []penstock.Reason{penstock.ReasonUnreachable}, mayHaveErrors: []penstock.Reason{penstock.ReasonNotReady}, // loading
	},
	{
		id: "F28", name: "restarted without its data",
		begin: kill, meanwhile: restart, end: noop,
		decidedBy: byAnySource, dataLosses: 1,
	},
	{
		id: "F30", name: "moved to another server",
		route: toxic,
		begin: noop, meanwhile: move, end: noop,
		decidedBy: byAnySource, dataLosses: 1, // the new server has no data
	},
}

func kill(e *experiment) { e.target.primary().Kill() }

func restart(e *experiment) {
	if err := e.target.primary().Restart(); err != nil {
		e.Fatal(err)
	}
}

// move makes another server listen at the same address.
func move(e *experiment) {
	s := redistest.Start(e.T)
	kill(e)
	e.target.servers[0], e.target.direct = s, s.URL()
	e.await("the address to be free", func() bool { // the killed server's address is busy for a moment
		return e.target.toxics.Update(&toxiproxy.Proxy{Listen: e.target.toxics.Listen, Upstream: s.Addr, Enabled: true}) == nil
	})
}
