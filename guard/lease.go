package guard

import (
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/lease"
)

// LeaseOptions configure the leases of Standard. A lease draws units of a busy key from the store
// in blocks and spends them locally. So most decisions need no call to the store.
//
// A batch is leased if all its charges are Spends of the same cost, under one Key and Group,
// without Patience, Holder and IsRefundable. Their limits must have a Settings.Lease of 2 or more,
// and must not count denied requests. The algorithm must be TokenBucket, SlidingWindow, SubWindow,
// or a window that does not slide. All other batches go to the store unchanged. For these batches,
// leased units count as used, also in a Peek. A Refund or Reset of a key first returns what is
// leased under it. So leases gain nothing for keys that are often refunded. A decision of a lease
// has the Source FromLease. The Remaining of this decision is what is left of the block, plus what
// the store had left in its last answer.
//
// A block is what the key needs at this instance in half of the time for which units can be spent.
// This time is a Life, or the rest of the window if that is shorter, less the time that the store
// takes to answer. (For a SubWindow, it is the rest of a part.) A block is at most Settings.Lease.
// A block is also at most a quarter of the Burst (TokenBucket) or Count, divided by the number of
// instances. If this bound is below 2 units, nothing is leased. A key is measured once its requests
// have taken 16 units within one or two Lives, or twice the largest block if that is less. Its
// requests go to the store until its demand has been measured for a quarter of a Life.
//
// A draw costs more than a request that goes to the store. So nothing is drawn for a key whose
// block would be below 8 units and below the largest that the limit allows. Nothing is drawn for a
// request of more than half a block. If the store has fewer than 8 units left, nothing is drawn for
// half a Life, because a Deny cache then costs less.
//
// When 30 % of a block is left, the next draw starts. A caller waits for a draw only if not enough
// is left. A draw requests a block, plus the costs of the callers that wait when the draw is sent.
// Callers that come later wait for a part of the block, as long as the block is enough for all of
// them. At most one draw per key and combination of limits is in flight. A limit that is charged in
// several combinations under a key is leased for one of them at a time.
//
// Unspent units are returned after half a Life without requests, shortly before they expire, and by
// Guarded.Close. Units are returned only as far as they still count in the store. Units of a window
// count while the window lasts, and units of a bucket until they have drained. If a draw fails, the
// callers that wait for it get its error. Units are kept only if they came FromStore. An instance
// that dies loses at most a block per key.
//
// # The bound
//
// Let b be the largest block, and n the number of instances. The Life of a block begins before its
// draw is sent, by the monotonic clock. Each spend checks the clock. So after a pause (a stopped
// process, a slow reply) nothing is spent from an expired block. So the bounds are:
//
//   - FixedWindow, AnchoredWindow, CalendarWindow, SlidingWindow and SubWindow: the algorithm's
//     own bound, as without leases. Units that were drawn in a window, or in a part of a
//     SubWindow, are spent in this window or part, or not at all.
//   - TokenBucket with rate r: in any interval w at most Burst + r·w + n·b. If no units are
//     returned, also at most Burst + r·(w+Life). If Guarded.Instances is the right number, n·b is
//     at most a quarter of the Burst. Options.Bounds computes n·b.
//
// Several limits of one Name and Group may be used for a key: tiers, or old and new limits during a
// reload. Only one of them holds units at an instance at a time, and b is the largest block of any.
// If their rates or Periods differ, the windows too admit up to n·b more, because units drawn under
// one limit may drain sooner under another.
//
// # The utilization
//
// Units that are unspent at one instance are missing at another: at most n·b at a time, for at most
// Life. Of traffic below the limit, the instances together admit at least LeaseUtilization of what
// the store alone would admit of the same requests. This bound holds for each algorithm, while the
// store answers. (A SubWindow of n parts admits Count in n+1 parts in the long run, with and
// without leases.)
//
// The bounds above do not cover what others do to the store. A Reset elsewhere, or a Refund
// elsewhere of spent units, adds the units that it restores, and up to n·b that are returned later.
// A loss of the store's data and a jump of its clock add units in the same way. If the reply to a
// draw is lost, the units of the draw are lost. A return may reach the store after its sender has
// stopped waiting, for example when a server hangs. The return then adds the units that it
// restores: at most a block. Clocks that stop while the machine is suspended do not count that
// time.
type LeaseOptions struct {
	// Life is the longest time for which drawn units may be spent. Default: 1 s.
	Life time.Duration

	// MaxKeys is the largest number of keys that are leased or measured. Requests of other keys go to
	// the store. Default: 10,000, which use up to 10 MB. Keys with too few requests to be measured do
	// not count.
	MaxKeys int
}

// engine returns the options of the engine, for limits with these Settings. instances returns the
// number of instances that share the limits now, and is called for every draw; nil: one.
func (o LeaseOptions) engine(limits func(*penstock.Plan) Settings, instances func() int) lease.Options {
	e := lease.Options{Life: o.Life, Instances: instances, MaxKeys: o.MaxKeys}
	if limits != nil {
		e.Block = func(plan *penstock.Plan) int64 { return limits(plan).Lease }
		e.Counters = func(plan *penstock.Plan) int { return limits(plan).SplitInto }
	}
	return e
}

// LeaseUtilization is the smallest fraction of traffic below a limit that is admitted with leases,
// compared to what the store alone would admit. The constant holds for limits that are not split,
// or whose shards each have a burst of four requests or more. With seven shards of two units each,
// and requests of up to three units, 92 % was measured.
const LeaseUtilization = 0.97

// LeaseStats count units, of all keys since the start. Drawn = Spent + Returned + Expired + Lost +
// Live.
type LeaseStats struct {
	Drawn    int64 // units that draws have brought, the same number of each limit of a batch
	Spent    int64 // units that were spent locally
	Returned int64 // units that were returned to the store
	Expired  int64 // units that expired unspent; they count in the store until its limit frees them
	Lost     int64 // units returned without an answer, or granted by another source than the store
	Live     int64 // units held here now, or in flight back to the store
}
