package guard

// Types that tests outside the package use.
type (
	DenyCache              = denyCache
	InstanceCounter        = instanceCounter
	InstanceCounterOptions = instanceCounterOptions
)

var (
	NewDenyCache       = newDenyCache
	NewInstanceCounter = newInstanceCounter
)
