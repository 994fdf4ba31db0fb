package faults

import "time"

// The server's clock steps.
var timed = []row{
	{
		id: "F19", name: "clock back a little",
		clocked: true, deadline: patient,
		begin: step(-2 * time.Second), end: step(0),
		answered: byStore, also: withoutError,
	},
	{
		id: "F19", name: "clock back an hour",
		clocked: true, deadline: patient,
		begin: step(-time.Hour), end: step(0),
		answered: byStore, also: withoutError,
	},
	{
		id: "F20", name: "clock forward ten minutes",
		clocked: true, deadline: patient,
		begin: step(10 * time.Minute), end: step(0),
		answered: byStore, also: withoutError,
	},
	{
		id: "F20", name: "clock forward by days",
		clocked: true, deadline: patient,
		begin: step(50 * time.Hour), end: step(0),
		answered: byStore, also: withoutError,
		forgets: 1, // all has been refilled
	},
}

// step has the server's clock go so much ahead.
func step(ahead time.Duration) func(*lab) {
	return func(l *lab) {
		l.Helper()
		if err := l.to.clock.Set(ahead); err != nil {
			l.Fatal(err)
		}
	}
}
