package faults

// The server is not there.
var down = []row{
	{
		id: "F1", name: "down at start",
		prepare: kill, absent: true,
		begin: nothing, end: restart,
	},
	{
		id: "F2", name: "killed",
		args:  []string{"--appendonly", "yes", "--appendfsync", "always"}, // it remembers
		begin: kill, end: restart,
	},
	{
		id: "F28", name: "restarted without its memory",
		begin: func(l *lab) { kill(l); restart(l) }, end: nothing,
		answered: byAnybody, forgets: 1,
	},
}

func kill(l *lab) { l.to.primary().Kill() }

func restart(l *lab) {
	if err := l.to.primary().Restart(); err != nil {
		l.Fatal(err)
	}
}
