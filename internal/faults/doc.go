// Package faults has tests for the faults of the failure catalog. Whatever happens to Redis, to
// the network or to the program itself, limits stay within their stated bounds, every call ends in
// time, and the store decides again when the fault is over.
//
// TestLimitsHoldThroughEveryFault runs all faults of the catalog. A fault defines how it begins
// and ends. An experiment does what all faults have in common. Several instances
// (guard.Standard over redisstore) share a target (target_test.go: one server, Sentinel or a
// Cluster). Callers send them requests all the time (load_test.go), for limits of every policy
// (policy_test.go). In the end the results are checked (checks_test.go). Each family of faults has
// a file: down_test.go, slow_test.go, refusing_test.go and so on.
//
//	go test ./...                      every fault once, briefly
//	PENSTOCK_SOAK=1 go test ./...      every fault several times, default deadline, p99 checked
//
// A failure prints the command that runs its fault again, with its seed.
package faults
