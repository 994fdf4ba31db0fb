package faults

import (
	"github.com/Shopify/toxiproxy/v2"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
)

// The server is down.
var down = []fault{
	{
		id: "F1", name: "down at start",
		prepare: kill, startsAbsent: true,
		begin: kill, end: restart,
		wantErrors: []penstock.Reason{penstock.ReasonUnreachable}, dataLosses: 1,
	},
	{
		id: "F2", name: "killed",
		args:  []string{"--appendonly", "yes", "--appendfsync", "always"}, // it keeps its data
		begin: kill, end: restart,
		wantErrors: []penstock.Reason{penstock.ReasonUnreachable}, mayHaveErrors: []penstock.Reason{penstock.ReasonNotReady}, // loading
	},
	{
		id: "F28", name: "restarted without its data",
		begin: kill, meanwhile: restart, end: noop,
		answeredBy: byAnySource, dataLosses: 1,
	},
	{
		id: "F30", name: "moved to another server",
		route: toxic,
		begin: noop, meanwhile: move, end: noop,
		answeredBy: byAnySource, dataLosses: 1, // the new server has no data
	},
}

func kill(l *experiment) { l.target.primary().Kill() }

func restart(l *experiment) {
	if err := l.target.primary().Restart(); err != nil {
		l.Fatal(err)
	}
}

// move makes another server listen at the same address.
func move(l *experiment) {
	s := redistest.Start(l.T)
	kill(l)
	l.target.servers[0], l.target.direct = s, s.URL()
	l.await("the address to be free", func() bool { // it is released only after a moment
		return l.target.toxics.Update(&toxiproxy.Proxy{Listen: l.target.toxics.Listen, Upstream: s.Addr, Enabled: true}) == nil
	})
}
