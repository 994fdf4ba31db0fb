package faults

// The server does not answer, or late.
var slow = []row{
	{
		id: "F4", name: "stopped",
		begin: func(l *lab) { l.to.primary().Pause() },
		end:   func(l *lab) { l.to.primary().Resume() },
	},
}
