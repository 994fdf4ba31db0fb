// Package simulation runs fleets of guarded stores for hours of virtual time, with every kind of
// fault, and checks what they admit. It has tests only.
//
// A seed determines a plan: one to eight instances, each with all of guard.Standard; limits of
// every algorithm with all kinds of settings; a store of one to three servers with their own clock;
// a network with latency; the load; and the faults. Servers refuse connections, hang, lose their
// data, or return to an older state. Clocks jump, requests and replies are lost, links are cut, and
// instances crash, freeze, join and leave.
//
// These are checked for every seed:
//
//   - bound: what the store and the leases admit for a key stays within the algorithm's bound in
//     every interval, plus what the leases of a bucket may add. What an instance admits by itself
//     stays within the bound of its share, or of the Ceiling. A closed limit admits nothing. Units
//     that a fault returns (lost data, a jump of the clock) are credited.
//   - once: no call is charged more than its cost.
//   - deadline: every decision ends in time, to the nanosecond.
//   - denial: the store would also deny what a deny cache denies.
//   - recovery: a second after the last fault, every server decides for every instance again.
//   - leases: all drawn units are spent, returned, expired, lost or still leased, and nothing else
//     is spent.
//   - liveness: after a time without requests, the store grants a unit of every limit and key.
//   - the end: no goroutine is left.
//
// A second test has outages of all instances at once, and the instances know how many they are.
// Everything that they admit together is checked against guard.Options.Bounds, including the
// beginning and the end of each outage.
//
// A third test has no faults, and traffic below a leased limit. The fleet must admit at least
// guard.LeaseUtilization of the units that the store alone admits.
//
// The checks are tested too: they must find guards that are broken on purpose.
//
// A failing seed prints a command that replays its plan, and the trace of the key that failed.
// Guards make some random choices of their own (how long a breaker pauses, which shard is called
// first). So a replay has the same faults at the same times, but may fail differently, or not at
// all.
package simulation
