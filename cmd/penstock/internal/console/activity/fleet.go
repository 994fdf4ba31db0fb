package activity

import "time"

// A Fleet is the activity of all instances that share a store, from their summaries.
type Fleet struct {
	Instances  []Instance  // this one first
	Registered int         // instances with a current heartbeat
	Ignored    Ignored     // summaries that could not be used
	Problem    string      // why the summaries of other instances could not be read; "" if they were
	Activity   []*Activity // activity of all instances, by window, in the order of Windows
	At         time.Time   // when the summaries were read
}

// Ignored counts summaries that could not be used, since the start.
type Ignored struct{ OtherVersion, Corrupt, OtherSecret int64 }

// An Instance is one instance of a fleet, with its summary.
type Instance struct {
	Name   string
	IsSelf bool
	*Summary
}
