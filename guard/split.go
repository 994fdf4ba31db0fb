package guard

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard/internal/split"
)

// SplitOptions configure Split.
type SplitOptions struct {
	// Limits are the Settings of each limit. Split uses SplitInto. It is called for every charge,
	// so it must be fast. It must return the same for all limits that share Name and Group.
	// Default: none is split.
	Limits func(*penstock.Plan) Settings
}

// Split keeps a limit with Settings.SplitInto = S in S counters under S keys, the shards. So
// several servers can share the work of one hot key. Each shard has an S-th of the limit. If the
// units cannot be divided evenly, the first shards have one unit more. Together they are the limit,
// so no more than the limit is ever admitted. S is at most 32, and at most the units of the limit.
//
// A Spend is sent to a random shard. If that denies it, it is sent to the next, until all have
// denied it. So every unit can be granted. That takes one call while much is left, and S calls for
// a denial. If the context's deadline leaves no time for another call, the denials so far decide,
// although another shard may have units. A cost that only several shards together have is taken
// from them in one batch. If others spend meanwhile, it may be denied although the units are there.
// Put a Deny outside Split, as Standard does. Inside, its old denials of single shards could deny a
// cost that several shards together have.
//
// What else differs from a limit that is not split:
//
//   - Remaining of a granted Spend or Draw is an estimate: S times that of the shard that granted
//     it. Remaining of a Peek and of a denial is the sum of all shards. ResetAfter is that of the
//     shards that were called last.
//   - RetryAfter is when the first shard will have the cost, if no other request comes. Units
//     return to a shard S times as slowly. So RetryAfter may be up to S times as long. A
//     TokenBucket that is never idle uses up to S-1 units less.
//   - A patient Spend is admitted at once if any shard has room. Otherwise it waits at the shard
//     that will have room first. If it needs several shards, it waits for the last of them, and
//     the units of the others are used later than they could be.
//   - Patient callers wait at several shards, so they are not served in order.
//   - Draw takes what one shard has.
//   - Peek, Refund, Reset and a Force that does not fit one shard use all S counters. They are not
//     atomic with the rest of their batch: a Peek is made before it, the others after it was
//     allowed.
//   - Units forced beyond the limit are debts of the shards that took them. The other shards still
//     grant.
//   - Concurrency: the hash of its Holder names the first shard of a hold. Later calls start there
//     to find it. If another shard lent the hold, and it is renewed when its first shard has room
//     again, it takes slots of both until Period later. A hold must not change its cost. A hold of
//     more slots than a shard has takes equal parts of all, or is denied.
//   - An AnchoredWindow begins at the first charge of each shard.
//   - A limit whose SplitInto changes is a new limit, in part or whole. So up to the whole limit is
//     admitted once more.
//   - A limit that is lowered from A to B units, or that alternates with a smaller one, denies at
//     each shard until that shard has drained below its part. A shard that has used less grants
//     the rest of its part, even if all together have used B. The units granted at once beyond
//     those of an unsplit limit are about √(B·S(1-1/S)/2π) (7 if 150 become 50 in 8 shards), and at
//     most B - ⌊B/S⌋. Together with the units used before, they never exceed A.
//   - Limits that use one counter must have the same SplitInto. A limit of fewer units than
//     SplitInto has fewer shards. Then the rates of both limits add up.
//
// In a batch of several charges, each split charge is replaced by one of its shards. The batch is
// still all or nothing. It is sent again, with other shards, while no other limit denies it. A
// batch may need at most 64 shards at once. Otherwise the error wraps penstock.ErrInvalid.
//
// A charge that is alone skips a shard whose breaker is open. If all other shards deny it, the
// error is the breaker's.
//
// LeakyBucket is not split, because it admits one request at a time.
func Split(o SplitOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if o.Limits == nil {
			return next
		}
		return split.New(next, func(plan *penstock.Plan) int { return o.Limits(plan).SplitInto })
	}
}
