package activity

import "time"

// A Fleet is what all instances that share a store have shown of themselves.
type Fleet struct {
	Instances  []Instance  // this one first
	Registered int         // instances that have a heartbeat
	Ignored    Ignored     // summaries that were not used
	Problem    string      // why only this instance is shown; "" if the store was asked
	Activity   []*Activity // of all, by window, in the order of Windows
	At         time.Time
}

// Ignored counts summaries that could not be used, since the start.
type Ignored struct{ OtherVersion, Corrupt, OtherSecret int64 }

// An Instance is one of a fleet.
type Instance struct {
	Name   string
	IsSelf bool
	*Summary
}
