// Package faults has tests for faults of Redis, of the network and of the program itself. During
// and after each fault, limits stay within their stated bounds, every call ends in time, and the
// store decides again when the fault is over.
//
// TestLimitsHoldThroughEveryFault runs all faults of the catalog (catalog_test.go). A fault defines
// how it begins and ends. An experiment does what all faults have in common. Several instances
// (guard.Standard over redisstore) share a target: one server, a Sentinel group or a Cluster
// (target_test.go). Callers send them requests all the time (load_test.go), for limits with various
// guard settings (limits_test.go). In the end the results are checked (checks_test.go). Each family
// of faults has a file: down_test.go, slow_test.go, refusing_test.go and so on.
//
//	go test ./...                      every fault once, briefly
//	PENSTOCK_SOAK=1 go test ./...      every fault several times; latencies are checked too
//
// A failure prints the command that runs its fault again, with its seed.
package faults
