// Package faults is the failure catalogue, as tests: whatever happens to Redis, to the way there,
// or to the program itself, limits hold within their stated bounds, every question is answered in
// time, and when the fault is over the store decides again.
//
// TestLimitsHoldThroughEveryFault runs the rows of the catalogue. A row says how a fault begins and
// ends; the lab does the rest, the same for all: several instances (guard.Standard over redisstore)
// share a target (target_test.go: one server, Sentinel or a Cluster), callers ask them all the time
// (load_test.go), for limits of every policy at once (policy_test.go), and in the end the judge
// counts (judge_test.go). Rows stand in a file for each family of faults: down_test.go,
// slow_test.go, refusing_test.go and so on.
//
//	go test ./...                      every row once, briefly
//	PENSTOCK_SOAK=1 go test ./...      every row several times, default deadline, p99 asserted
//
// A failure prints the line that runs its row again, with its seed.
package faults
