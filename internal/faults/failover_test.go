package faults

import "github.com/penstock/penstock"

// What a server of a group says while another takes over: that it is no primary, or that too many
// are missing.
var inBetween = []penstock.Reason{penstock.ReasonNotReady}

// Another server takes over.
var failovers = []row{
	{
		id: "F2", name: "the primary killed", on: groups, cycles: 1, rounds: inSoak,
		begin: func(l *lab) { l.choose().victim.Kill() }, lasts: fallenBack, end: takenOver,
		answered: byAnybody, may: inBetween,
		forgets: 1, also: func(l *lab) { losesWhatWasUnderWay(l); shardsFollow(l) },
	},
	{
		id: "F4", name: "the primary stopped", on: groups, cycles: 1, rounds: inSoak,
		begin: func(l *lab) { l.choose().victim.Pause() }, lasts: fallenBack, end: takenOver,
		answered: byAnybody, may: inBetween,
		forgets: 1, also: func(l *lab) { losesWhatWasUnderWay(l); shardsFollow(l) },
	},
	{
		id: "F6", name: "the primary demoted under its clients", on: []kind{sentinel}, cycles: 1, rounds: inSoak,
		begin: func(l *lab) { l.fork(); l.check(l.to.sentinel.Demote()) }, end: (*lab).mayLose,
		answered: byAnybody, sees: inBetween,
		forgets: 1, also: losesNoMoreThanMayBe,
	},
	{
		id: "F13", name: "a failover by hand that loses nothing", on: []kind{cluster}, cycles: 1, rounds: inSoak,
		begin: nothing, lasts: func(l *lab) { l.choose(); l.check(l.to.cluster.Promote(l.group.heir)) }, end: nothing,
		answered: byAnybody, may: inBetween,
	},
	{
		id: "F13", name: "a failover by hand", on: []kind{sentinel}, cycles: 1, rounds: inSoak,
		begin: nothing, lasts: func(l *lab) {
			l.fork()
			l.check(l.to.sentinel.Failover()) // the old primary grants on until it is told, which is later
		}, end: nothing,
		answered: byAnybody, may: inBetween,
		forgets: 1, also: func(l *lab) { l.mayLose(); losesNoMoreThanMayBe(l) },
	},
	{
		id: "F13", name: "a failover that loses what was granted", on: groups, parted: true, cycles: 1, rounds: inSoak,
		begin: nothing, lasts: func(l *lab) {
			deaf(l)
			l.asksFor(300)
			l.group.victim.Kill()
			takenOver(l)
			l.mayLose()
			hearing(l)
		}, end: nothing,
		answered: byAnybody, may: inBetween,
		forgets: 1, also: losesSome,
	},
	{
		id: "F30", name: "the primary moves to another address", on: groups, parted: true, cycles: 1, rounds: inSoak,
		begin: nothing, lasts: moveAddress, end: nothing,
		answered: byAnybody, may: inBetween,
	},
}

// moveAddress has the primary answer at another address and no longer at the one before. It keeps
// its memory, so nothing may be lost.
func moveAddress(l *lab) {
	g := l.choose()
	if l.to.sentinel != nil {
		l.check(l.to.sentinel.Readdress())
	} else {
		l.check(l.to.cluster.Readdress(g.victim))
	}
}
