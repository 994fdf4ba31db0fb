package guard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/cache"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/memstore"
)

// FallbackOptions configure Fallback. The zero value is useful.
type FallbackOptions struct {
	// OnFailure is the FailureMode of limits whose Settings have none. Default: FailLocal.
	OnFailure FailureMode

	// Limits returns the Settings of a limit. Fallback uses OnFailure and Ceiling. Limits is called
	// for every charge, also while the store answers, so it must be fast. Default: all limits have
	// the zero Settings.
	Limits func(*penstock.Plan) Settings

	// Instances returns the number of instances that share the limits now. While the store does not
	// answer, Instances returns the last known number. Instances is called for every decision.
	// Default: one.
	Instances func() int

	// MaxCounters is the largest number of counters in the local memory. When it is full, FailLocal
	// charges that need a new counter are denied. Default: 1 million, which use about 100 MB. Some
	// counters count as several, as in memstore.Options.
	MaxCounters int

	// Now is the clock of the local memory, for simulations. Default: the wall clock.
	Now func() time.Time
}

// Fallback decides the batches that end with penstock.ErrUnavailable, because the store gave no
// answer. Each limit has its own mode:
//
//   - FailClosed: the batch is denied, whatever the modes of its other limits are. RetryAfter is
//     one second, and the Source is FromClosed. A Force, Refund or Reset cannot be denied. If each
//     FailClosed charge has one of these modes, the batch ends with the store's error, and nothing
//     was done.
//   - FailLocal: the local memory of this process decides, by this instance's share of the limit.
//     This memory makes all FailLocal charges of a batch or none. The Source is FromFallback.
//   - FailOpen: the charge is granted. Remaining is the limit's Count, because nothing is counted.
//     The Source is FromOpen. With a Ceiling, the charge is decided as by FailLocal, but by the
//     whole Ceiling instead of a share.
//
// # The bound of FailLocal
//
// The share of a limit is its Count and Burst divided by n, rounded up, where n is Instances. The
// shares of n instances exceed the limit by at most n-1 units. (Of a bucket, only the Burst is
// rounded. The rate is divided exactly.) Suppose that m instances run while the store is down, and
// each counts n Instances. In any interval, all of them admit at most m/n of what the limit allows,
// plus fewer than m units (for a window: in each window).
//
// While the store answers, its grants are charged to the local memory too. So an instance enters an
// outage with its own recent use. A bucket remembers at most twice its share as used. So an
// instance that had most of the load does not deny for long. If the load was balanced, the start of
// an outage admits nothing extra. If all load went to one instance, the other instances together
// may admit (n-1)/n of the Burst more. For a window, that is (n-1)/n of the Count.
//
// The grants of an outage are never charged to the store. So an interval that contains the end of
// the outage may admit one more Burst or Count, and the units that were booked for later. The
// interval may also admit the shares of the instances that do not use the store again yet. With
// Standard, all instances use the store again within a second. While only some instances are cut
// off, their shares add to what the store grants to the others. The store does not know holds that
// were lent in the outage. So Concurrency may lend up to twice its slots until enough holds have
// ended.
//
// Windows aligned to the clock use the clock of this process. If it differs from the store's, one
// window more may be admitted at the start of an outage.
//
// A cost that fits the limit but not the share is denied with RetryAfter one second, not Never. In
// an outage, Refund and Reset change the local memory only. (Standard also returns holds to the
// store after the outage.) A Refund with a Receipt has an effect only where its charge was made. If
// n changes in an outage, the used units count against the new share.
//
// Limits that use one counter (tiers, or old and new limits during a reload) share one counter in
// the local memory too. The bound is that of the largest.
//
// Limits with other modes than FailLocal take neither time nor memory while the store answers.
func Fallback(o FallbackOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store { return batches.Func(newFallback(next, o, nil).decide) }
}

// newFallback makes a fallback that tells holds which charges its callers do not get. holds may be
// nil.
func newFallback(next penstock.Store, o FallbackOptions, h *holds) *fallback {
	if o.OnFailure == FailDefault {
		o.OnFailure = FailLocal
	}
	if o.MaxCounters <= 0 {
		o.MaxCounters = 1_000_000
	}
	return &fallback{
		options:    o,
		next:       batches.Of(next),
		holds:      h,
		local:      memstore.New(memstore.Options{MaxCounters: o.MaxCounters, Now: o.Now}),
		emptyStore: memstore.New(memstore.Options{Locks: 1}),
		shares:     cache.Cache[share, *penstock.Plan]{Max: maxShares},
	}
}

type fallback struct {
	options    FallbackOptions
	next       batches.Func
	holds      *holds // nil without Standard
	local      *memstore.Store
	emptyStore *memstore.Store // has no counters; only fits uses it
	shares     cache.Cache[share, *penstock.Plan]
}

// defaultRetryAfter is the RetryAfter of denials for which no other is known.
const defaultRetryAfter = time.Second

func (f *fallback) decide(ctx context.Context, list []*batches.Batch) {
	if err := deadline.CallerErr(ctx); err != nil {
		batches.Fail(list, err) // checked first: after the call, a passed deadline may be the store's fault
		return
	}
	f.next(ctx, list)
	for _, b := range list {
		f.finish(ctx, b)
	}
}

func (f *fallback) finish(ctx context.Context, b *batches.Batch) {
	switch {
	case b.Err == nil && b.Decision.Allowed:
		f.mirrorToLocal(b.Charges, &b.Decision)
		return
	case b.Err == nil:
		return
	case !errors.Is(b.Err, penstock.ErrUnavailable):
	case deadline.CallerErr(ctx) == context.Canceled:
		b.Err = context.Canceled
	default:
		b.Decision, b.Err = f.answer(b.Charges, b.Err)
	}
	f.holds.noteUndecided(b.Charges, b.Err == nil && b.Decision.Allowed)
}

// mirrorToLocal makes what the store has granted count in the local memory too.
func (f *fallback) mirrorToLocal(charges []penstock.Charge, d *penstock.Decision) {
	if f.options.Limits == nil && f.options.OnFailure != FailLocal {
		return
	}
	n := f.instances()
	for i := range charges {
		c := &charges[i]
		mode, cost := mirrorMode(c, d, i)
		if mode == penstock.Peek || f.settings(c).OnFailure != FailLocal {
			continue
		}
		if share := f.shareOf(c.Plan, n); share != nil {
			one := [1]penstock.Charge{{Key: c.Key, Plan: share, Cost: cost, Mode: mode, Holder: cmp.Or(c.Holder, anonymous)}}
			local, err := f.local.Decide(context.Background(), one[:]) // a charge is not counted if the memory is full
			if err == nil && mode == penstock.Force && n > 1 && share.Algorithm().CanBook() {
				f.capDebt(&one[0], local.Status(0))
			}
		}
	}
}

// capDebt refunds what is used of a bucket beyond twice its share. Without this, an instance that
// had most of the load would deny for longer. Windows and holds need no cap, because they end by
// themselves. A single instance needs no cap, because it answers as the store would.
func (f *fallback) capDebt(forced *penstock.Charge, s penstock.Status) {
	l := forced.Plan.Limit()
	used := float64(s.ResetAfter) / float64(l.Period) * float64(l.Count)
	if over := int64(used) - 2*forced.Plan.Capacity(); over > 0 {
		refund := [1]penstock.Charge{*forced}
		refund[0].Mode, refund[0].Cost = penstock.Refund, min(over, forced.Cost)
		f.local.Decide(context.Background(), refund[:])
	}
}

// anonymous is the Holder of charges that have none. Without a Holder, a LeakyBucket would not make
// the refunds of capDebt.
const anonymous = "\x00anonymous"

// mirrorMode returns what to charge to the local memory for a granted charge. If it returns the
// mode Peek, there is nothing to charge.
func mirrorMode(c *penstock.Charge, d *penstock.Decision, i int) (mode penstock.Mode, cost int64) {
	switch c.Mode {
	case penstock.Spend, penstock.Force:
		mode, cost = penstock.Force, c.Cost // Granted is 0 for a renewed hold
	case penstock.Draw:
		mode, cost = penstock.Force, d.Status(i).Granted
	case penstock.Refund:
		mode, cost = penstock.Refund, d.Status(i).Granted
		if isOfHold(c) {
			cost = c.Cost // the local memory may have the hold alone, from an outage
		}
	case penstock.Reset:
		return penstock.Reset, 0
	}
	if cost == 0 {
		mode = penstock.Peek
	}
	return mode, cost
}

func (f *fallback) answer(charges []penstock.Charge, cause error) (penstock.Decision, error) {
	if err := penstock.Check(charges); err != nil {
		return penstock.Decision{}, err // the store may not have checked the batch
	}
	var few [4]penstock.Charge // saves an allocation for small batches
	b := failedBatch{charges: charges}
	b.locals = f.assignModes(charges, &b.modes, few[:0])
	if len(b.locals) > 0 {
		if b.has(FailClosed) {
			b.turnLocalsIntoPeeks()
		}
		var err error
		b.local, err = f.local.Decide(context.Background(), b.locals)
		if errors.Is(err, penstock.ErrUnavailable) { // the memory is full
			for i := range charges {
				if b.modes[i] == FailLocal {
					b.modes[i] = FailClosed
				}
			}
		} else if err != nil {
			return penstock.Decision{}, err
		}
	}
	if b.has(FailClosed) && !b.isDeniable() {
		return penstock.Decision{}, cause
	}
	return f.compose(&b), nil
}

// A failedBatch is a batch that the store did not decide.
type failedBatch struct {
	charges []penstock.Charge
	modes   [penstock.MaxCharges]FailureMode // of each charge: FailOpen, FailClosed or FailLocal
	locals  []penstock.Charge                // the FailLocal charges, with this instance's shares as their limits
	local   penstock.Decision                // the local memory's decision on locals
}

func (b *failedBatch) has(mode FailureMode) bool {
	return slices.Contains(b.modes[:len(b.charges)], mode)
}

// turnLocalsIntoPeeks turns the FailLocal charges into Peeks, because the batch is denied anyway. A
// charge that is a Peek keeps its cost, because its caller asks whether that cost fits.
func (b *failedBatch) turnLocalsIntoPeeks() {
	for i := range b.locals {
		if l := &b.locals[i]; l.Mode != penstock.Peek {
			l.Mode, l.Cost, l.Patience = penstock.Peek, 0, 0
		}
	}
}

// isDeniable reports whether any FailClosed charge can be denied. A Force, Refund or Reset cannot.
func (b *failedBatch) isDeniable() bool {
	for i := range b.charges {
		switch b.charges[i].Mode {
		case penstock.Spend, penstock.Draw, penstock.Peek:
			if b.modes[i] == FailClosed {
				return true
			}
		}
	}
	return false
}

// assignModes sets the mode of each charge. It appends to locals the charges that are decided
// locally, with this instance's shares as their limits.
func (f *fallback) assignModes(charges []penstock.Charge, modes *[penstock.MaxCharges]FailureMode, locals []penstock.Charge) []penstock.Charge {
	n := f.instances()
	for i := range charges {
		c := &charges[i]
		s := f.settings(c)
		modes[i] = s.OnFailure
		var localPlan *penstock.Plan
		switch {
		case s.OnFailure == FailLocal:
			localPlan = f.shareOf(c.Plan, n)
		case s.OnFailure == FailOpen && s.Ceiling == (penstock.Limit{}):
			continue
		case s.OnFailure == FailOpen:
			s.Ceiling.Name, s.Ceiling.Group = c.Plan.Name(), c.Plan.Group()
			localPlan = f.cachedShare(s.Ceiling, 1)
		}
		if localPlan == nil {
			modes[i] = FailClosed
			continue
		}
		modes[i] = FailLocal
		local := *c
		local.Plan = localPlan
		local.Patience = min(c.Patience, localPlan.MaxPatience())
		if c.Receipt != 0 {
			local.Receipt = ofLocal(c.Receipt)
		}
		locals = append(locals, local)
	}
	return locals
}

// localReceipt marks the receipts of the local memory. They mean nothing to the store, and those of
// the store mean nothing to the local memory.
const localReceipt = 1 << 60

// ofLocal returns the local memory's own receipt, or one that no charge has had.
func ofLocal(receipt int64) int64 {
	const ofNoCharge = 1
	if receipt&localReceipt == 0 {
		return ofNoCharge
	}
	return receipt &^ localReceipt
}

// compose makes one decision of the answers of all modes.
func (f *fallback) compose(b *failedBatch) penstock.Decision {
	source, isAllowed := penstock.FromOpen, true
	switch {
	case b.has(FailClosed):
		source, isAllowed = penstock.FromClosed, false
	case b.has(FailLocal):
		source, isAllowed = penstock.FromFallback, b.local.Allowed
	}
	if len(b.charges) == 1 {
		d := penstock.Single(f.status(b, 0, 0, isAllowed))
		d.Source = source
		return d
	}
	statuses, nextLocal := make([]penstock.Status, len(b.charges)), 0
	for i := range statuses {
		statuses[i] = f.status(b, i, nextLocal, isAllowed)
		if b.modes[i] == FailLocal {
			nextLocal++
		}
	}
	d := penstock.NewDecision(statuses)
	d.Source = source
	return d
}

// status returns the status of charge i. If the charge is FailLocal, localIndex is its index in
// b.locals.
func (f *fallback) status(b *failedBatch, i, localIndex int, isAllowed bool) (s penstock.Status) {
	c := &b.charges[i]
	switch b.modes[i] {
	case FailClosed:
		s.RetryAfter = defaultRetryAfter
	case FailLocal:
		s = b.local.Status(localIndex)
		if s.Receipt != 0 {
			s.Receipt |= localReceipt
		}
		if s.RetryAfter == penstock.Never && f.fits(c) {
			s.RetryAfter = defaultRetryAfter
		}
	case FailOpen:
		s.Remaining = c.Plan.Limit().Count
		if isAllowed && c.Mode != penstock.Peek && c.Mode != penstock.Reset {
			s.Granted = c.Cost
		}
	}
	return s
}

// fits reports whether the cost fits the whole limit when nothing is used.
func (f *fallback) fits(c *penstock.Charge) bool {
	d, err := f.emptyStore.Decide(context.Background(), []penstock.Charge{{Plan: c.Plan, Cost: c.Cost, Mode: penstock.Peek}})
	return err == nil && d.RetryAfter() != penstock.Never
}

func (f *fallback) settings(c *penstock.Charge) (s Settings) {
	if f.options.Limits != nil {
		s = f.options.Limits(c.Plan)
	}
	if s.OnFailure == FailDefault {
		s.OnFailure = f.options.OnFailure
	}
	return s
}

func (f *fallback) instances() int {
	n := 1
	if f.options.Instances != nil {
		n = f.options.Instances()
	}
	return max(n, 1)
}

// shareOf returns the part of a plan's limit that one of n instances has, or nil.
func (f *fallback) shareOf(plan *penstock.Plan, n int) *penstock.Plan {
	if n == 1 && !strings.HasSuffix(plan.Algorithm().Name(), "_share_across") { // see algorithm.ShareAcross
		return plan
	}
	return f.cachedShare(plan.Limit(), n)
}

func (f *fallback) cachedShare(l penstock.Limit, n int) *penstock.Plan {
	plan, _ := f.shares.Get(share{l, n}, func(s share) (*penstock.Plan, error) { return makeShare(s.limit, s.n), nil })
	return plan
}

// A share is the part of a limit that one of n instances has.
type share struct {
	limit penstock.Limit
	n     int
}

const maxShares = 4096 // in the cache

// makeShare returns the plan of a share, or nil if the limit or the share is not valid.
func makeShare(l penstock.Limit, n int) *penstock.Plan {
	plan, err := l.Compile()
	if err != nil {
		return nil
	}
	return plan.Share(n)
}
