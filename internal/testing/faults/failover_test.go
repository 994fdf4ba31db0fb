package faults

import "github.com/penstock/penstock"

// duringTakeover are the reasons of errors while a replica becomes the primary: a server is not a
// primary, or lacks replicas.
var duringTakeover = []penstock.Reason{penstock.ReasonNotReady}

// A replica becomes the primary, or the primary moves.
var failovers = []fault{
	{
		id: "F2", name: "the primary killed", on: groups, cycles: 1, rounds: inSoak,
		begin: func(e *experiment) { e.chooseVictim().victim.Kill() }, meanwhile: awaitFallback, end: awaitSuccessor,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
		dataLosses: 1, finally: func(e *experiment) { checkOnlyInFlightLost(e); checkBreakersFollow(e) },
	},
	{
		id: "F4", name: "the primary stopped", on: groups, cycles: 1, rounds: inSoak,
		begin: func(e *experiment) { e.chooseVictim().victim.Pause() }, meanwhile: awaitFallback, end: awaitSuccessor,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
		dataLosses: 1, finally: func(e *experiment) { checkOnlyInFlightLost(e); checkBreakersFollow(e) },
	},
	{
		id: "F6", name: "the primary demoted under its clients", on: []kind{sentinel}, cycles: 1, rounds: inSoak,
		begin: func(e *experiment) { e.chooseVictim(); e.recordReplicated(); e.must(e.target.sentinel.Demote()) }, end: (*experiment).recordUnreplicated,
		decidedBy: byAnySource, wantErrors: duringTakeover,
		dataLosses: 1, finally: checkOnlyUnreplicatedLost,
	},
	{
		id: "F13", name: "a failover by hand that loses nothing", on: []kind{cluster}, cycles: 1, rounds: inSoak,
		begin: noop, meanwhile: func(e *experiment) { e.chooseVictim(); e.must(e.target.cluster.Promote(e.group.successor)) }, end: noop,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
	},
	{
		id: "F13", name: "a failover by hand", on: []kind{sentinel}, cycles: 1, rounds: inSoak,
		begin: noop, meanwhile: func(e *experiment) {
			e.chooseVictim()
			e.recordReplicated()
			e.must(e.target.sentinel.Failover())
			// The old primary decides until it is demoted. The Sentinels demote it only after 8 s.
			e.must(e.target.sentinel.Rejoin())
		}, end: noop,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
		dataLosses: 1, finally: func(e *experiment) { e.recordUnreplicated(); checkOnlyUnreplicatedLost(e) },
	},
	{
		id: "F13", name: "a failover that loses grants", on: groups, canPartition: true, cycles: 1, rounds: inSoak,
		begin: noop, meanwhile: func(e *experiment) {
			pauseReplication(e)
			e.awaitRequests(300)
			e.group.victim.Kill()
			awaitSuccessor(e)
			e.recordUnreplicated()
			resumeReplication(e)
		}, end: noop,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
		dataLosses: 1, finally: checkSomeLost,
	},
	{
		id: "F30", name: "the primary moves to another address", on: groups, canPartition: true, cycles: 1, rounds: inSoak,
		begin: noop, meanwhile: moveAddress, end: noop,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
	},
}

// moveAddress moves the primary to another address. The primary keeps its data, so no units may be
// lost.
func moveAddress(e *experiment) {
	g := e.chooseVictim()
	if e.target.sentinel != nil {
		e.must(e.target.sentinel.Readdress())
	} else {
		e.must(e.target.cluster.Readdress(g.victim))
	}
}
