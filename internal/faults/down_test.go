package faults

import (
	"github.com/Shopify/toxiproxy/v2"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
)

// The server is not there.
var down = []row{
	{
		id: "F1", name: "down at start",
		prepare: kill, absent: true,
		begin: kill, end: restart,
		sees: []penstock.Reason{penstock.ReasonUnreachable}, forgets: 1,
	},
	{
		id: "F2", name: "killed",
		args:  []string{"--appendonly", "yes", "--appendfsync", "always"}, // it remembers
		begin: kill, end: restart,
		sees: []penstock.Reason{penstock.ReasonUnreachable}, may: []penstock.Reason{penstock.ReasonNotReady}, // loading
	},
	{
		id: "F28", name: "restarted without its memory",
		begin: kill, lasts: restart, end: nothing,
		answered: byAnybody, forgets: 1,
	},
	{
		id: "F30", name: "moved elsewhere",
		way:   toxic,
		begin: nothing, lasts: move, end: nothing,
		answered: byAnybody, forgets: 1, // the new one knows nothing
	},
}

func kill(l *lab) { l.to.primary().Kill() }

func restart(l *lab) {
	if err := l.to.primary().Restart(); err != nil {
		l.Fatal(err)
	}
}

// move has another server answer under the same address.
func move(l *lab) {
	s := redistest.Start(l.T)
	kill(l)
	l.to.servers[0], l.to.direct = s, s.URL()
	l.await("the address is free", func() bool { // it is let go for a moment
		return l.to.toxics.Update(&toxiproxy.Proxy{Listen: l.to.toxics.Listen, Upstream: s.Addr, Enabled: true}) == nil
	})
}
