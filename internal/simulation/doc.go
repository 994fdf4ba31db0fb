// Package simulation lets a fleet of guarded stores live for hours of virtual time with everything
// going wrong that may, and judges what was admitted. It has tests only.
//
// A seed draws a plan: one to eight instances, each with all of guard.Standard; limits of every
// algorithm with settings of every kind; a store of one to three servers with a clock of their own;
// a network with latency; loads; and faults: servers that refuse, hang, forget, or go back to an
// older state, clocks that step, requests and answers that are lost, cut links, instances that
// crash, freeze, come and go.
//
// Judged is, for every seed:
//
//   - bound: what the store and the leases admitted under a key keeps the algorithm's bound in
//     every interval, and what a bucket's leases may add; what an instance admitted by itself keeps
//     the bound of its share; what was admitted under a Ceiling, that of the Ceiling; a closed
//     limit admits nothing. What a fault forgives (lost state, a leap of the clock) is counted as
//     such.
//   - once: no call was charged more than it asked for.
//   - deadline: every decision ended in time, to the nanosecond.
//   - denial: what a deny cache denied, the store would have denied too.
//   - recovery: a second after the last fault, every instance is answered by every server again.
//   - leases: what was drawn is spent, returned, expired, lost or there; and nothing is spent that
//     was not drawn.
//   - liveness: after a quiet time, a unit of every limit under every key is granted by the store.
//   - the end: no goroutine is left.
//
// Where all instances lose the store at once, and know how many they are, all that they admit
// together is held against what guard.Options.Bounds states, over the beginnings and the ends of
// the outages.
//
// Where nothing fails and the traffic is below a leased limit, what a fleet admits is compared with
// what the store alone would admit of the same requests: at least guard.LeaseUtilization of it.
//
// The judges are tested too: fleets with guards that are broken on purpose must be found out.
//
// A seed that fails prints what replays its plan, and the trace of the key that failed. Guards
// choose some things by chance of their own (how long a breaker pauses, which shard is asked
// first), so a replay has the same faults at the same times, but need not fail the same way, or
// each time.
package simulation
