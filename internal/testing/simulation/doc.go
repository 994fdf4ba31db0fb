// Package simulation runs fleets of guarded stores for hours of virtual time, with every kind of
// fault, and checks what the stores admit. The package has tests only.
//
// A seed determines a scenario: one to eight instances, each with all of guard.Standard; limits of
// every algorithm with all kinds of settings; a store of one to three servers with their own clock;
// a network with latency; the load; and the faults. Servers refuse connections, hang, lose their
// data, or return to an older state. Clocks jump, requests and replies are lost, links are cut, and
// instances crash, freeze, join and leave.
//
// The following is checked for every seed:
//
//   - bound: in every interval, the store and the leases admit for a key at most the algorithm's
//     bound. For a bucket, its leases may add the size of a lease for each instance. Without the
//     store, an instance admits at most the bound of its share of the limit, or of the Ceiling. A
//     closed limit then admits nothing. A fault may free spent units (lost data, a jump of the
//     clock). Then as many units more may be admitted.
//   - once: no call is charged more than its cost.
//   - deadline: no decision ends after its deadline. Time is virtual, so no tolerance is needed.
//   - denial: if a deny cache denies a request, the store would deny it too.
//   - recovery: a second after the last fault, every server decides for every instance again.
//   - leases: all drawn units are spent, returned, expired, lost or still leased, and nothing else
//     is spent.
//   - liveness: after a time without requests, the store grants a unit of every limit and key.
//   - the end: after the run, no goroutine is left.
//
// In a second test, the store fails for all instances together, and each instance knows how many
// instances there are. The units that all of them admit together must stay within
// guard.Options.Bounds, even when an outage begins or ends.
//
// A third test has no faults, and traffic below a leased limit. The fleet must admit at least
// guard.LeaseUtilization of the units that the store alone admits.
//
// The checks are tested too: they must find guards that are broken on purpose.
//
// A failing seed prints a command that replays its scenario, and the trace of the key that failed.
// Guards make some random choices that no seed determines (how long a breaker pauses, which shard
// is called first). So a replay has the same faults at the same times, but may fail differently, or
// not at all.
package simulation
