package guard

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard/internal/split"
)

// Split keeps a limit with Settings.SplitInto = S in S counters under S keys, the shards. So
// several servers can share the work of one hot key. Each shard has an S-th of the limit. If the
// units cannot be divided evenly, the first shards have one unit more. Together the shards have
// exactly the units of the limit, so Split never admits more than the limit. S is at most 32, and
// at most the number of the limit's units.
//
// A Spend is sent to a random shard. If this shard denies it, the next one is tried, until all have
// denied it. So every unit can be granted. A Spend takes one call while many units are left, and S
// calls if it is denied. If the context's deadline leaves no time for another call, the denials so
// far decide, although another shard may have units. A cost that only several shards together have
// is taken from them in one batch. If other callers spend at the same time, this cost may be denied
// although the units are there. Put a Deny outside Split, as Standard does. A Deny inside Split
// would cache denials of single shards. They could deny a cost that several shards together have.
//
// What else differs from a limit that is not split:
//
//   - Remaining of a granted Spend or Draw is an estimate: S times the Remaining of the shard that
//     granted it. Remaining of a Peek and of a denial is the sum of all shards. ResetAfter is that
//     of the shards that were called last.
//   - RetryAfter is the time until some shard has the cost, if no other request comes. Units
//     return to a shard S times as slowly. So RetryAfter may be up to S times as long. A
//     TokenBucket that is never idle admits up to S-1 units less.
//   - A Spend with Patience is admitted without a wait if any shard has room. If none has, the
//     Spend waits at the shard that will have room first. A Spend that needs several shards waits
//     for the last of them. So the units of the other shards are used later than they could be.
//   - Callers with Patience wait at several shards, so they are not served in order.
//   - Draw takes what one shard has.
//   - Peek, Refund, Reset and a Force that does not fit one shard use all S counters. These four
//     are not atomic with the rest of their batch. A Peek is made before the rest, and the other
//     three after the rest was allowed.
//   - An exact Refund of a cost that several shards have granted is divided equally among all
//     shards, even if they have granted different parts. So a TokenBucket may return less.
//   - Units forced beyond the limit are debts of the shards that took them. The other shards still
//     grant.
//   - Concurrency: the hash of the Holder selects the first shard of a hold. Later calls look for
//     the hold there first. Suppose that this shard had no room, so another shard lent the hold.
//     If the first shard has room at a renewal, the hold has slots in both shards for one Period.
//     A hold must not change its cost. A hold of more slots than a shard has takes equal parts of
//     all shards, or is denied.
//   - An AnchoredWindow begins at the first charge of each shard.
//   - After a change of SplitInto, some or all counters start anew. So up to the whole limit is
//     admitted once more.
//   - If a limit is lowered from A to B units, or alternates with a limit of B units, each shard
//     denies until it has drained below its part of B. A shard that has used less grants the rest
//     of its part, even if all shards together have used B. In that moment, the shards grant more
//     than an unsplit limit: about √(B·S(1-1/S)/2π) units, and at most B - ⌊B/S⌋. For example, they
//     grant about 7 units more if 150 units become 50 in 8 shards. These units and the units used
//     before never exceed A together.
//   - Limits that use one counter must have the same SplitInto. If one of them has fewer units than
//     SplitInto, it has fewer shards than the others. Then all of them together admit up to the sum
//     of their rates.
//
// In a batch of several charges, each split charge is replaced by one of its shards. The batch is
// still all or nothing. As long as only split limits deny it, it is sent again with other shards.
// One batch may need at most 64 shards. If it needs more, the error wraps penstock.ErrInvalid.
//
// A batch of one charge skips a shard whose breaker is open. If all other shards deny it, the error
// is the breaker's.
//
// LeakyBucket is not split, because it admits one request at a time. A limit that counts denied
// requests is not split either, because several shards would count one request. In a batch with
// split limits, it counts a denial with one more call. If the deadline leaves no time for this
// call, the denial is not counted.
//
// limits is called for every charge, so it must be fast. It must return the same SplitInto for all
// limits that share Name and Group. If it is nil, no limit is split.
func Split(limits func(*penstock.Plan) Settings) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if limits == nil {
			return next
		}
		return split.New(next, func(plan *penstock.Plan) int { return limits(plan).SplitInto })
	}
}
