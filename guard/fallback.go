package guard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

// FallbackOptions configure Fallback. The zero value is useful.
type FallbackOptions struct {
	// OnFailure is what happens to limits whose Settings do not say. Default: Local.
	OnFailure Failure

	// Limits are the Settings of each limit, of which OnFailure and Ceiling matter here. It is called
	// for every charge, also while the store answers, so it must be quick. Default: none has any.
	Limits func(*penstock.Limit) Settings

	// Instances is how many instances share the limits now; while the store gives no answer, the last
	// number known. It is called for every decision. Default: one.
	Instances func() int

	// Floor is the least number of instances that the limits are divided by. Default: 1.
	Floor int

	// MaxKeys is how many counters the memory may have. When it is full, Local charges that need a new
	// one are denied. Default: 1 million, which take up to 100 MB.
	MaxKeys int
}

// Fallback answers itself where the store gives no answer, that is, on penstock.ErrUnavailable;
// each limit in its own way:
//
//   - Closed: the batch is denied, with RetryAfter one second, whatever its other limits say; its
//     Source is FromClosed. A batch that no limit can deny (Force, Refund, Reset) ends with the
//     store's error instead: nothing was done.
//   - Local: decided by a memory of this process, by its share of the limit, all Local charges of a
//     batch or none. The Source is FromFallback.
//   - Open: granted as asked; Remaining is the limit's Count, since nobody counts. The Source is
//     FromOpen. With a Ceiling, as Local by the Ceiling, undivided.
//
// # The bound of Local
//
// The share of a limit is its Count and Burst divided by the n of Instances, at least Floor,
// rounded up: the shares of n instances exceed the limit by at most n-1 units. (The buckets are not
// rounded but in their Burst: the rate is divided exactly.) While the store is away, m instances
// that divide by n admit in any interval at most m/n of what the limit allows in it, and n-1 units.
//
// While the store is well, what it grants is charged to the memory too, so that each instance
// begins an outage with what it has let in itself. A bucket remembers at most twice its share as
// used, so that an instance that has had most of the load does not deny for long. If the load was
// balanced, the beginning mints nothing; if all of it went to one instance, the others together may
// admit (n-1)/n of the Burst (of the Count, where the limit is a window) more.
//
// At the end, nothing is charged to the store afterwards: an interval that contains it may see one
// more Burst or Count, what was booked for later, and until the last instance has found the store
// again (with Standard, within a second), the shares of those that have not. While only some
// instances are cut off, their shares come on top of what the store grants to the others. Holds
// lent in the outage are not known to the store, so until they are renewed there, Concurrency may
// lend up to twice its slots.
//
// Windows that begin by the clock begin by this process' own: where it differs from the store's,
// the beginning may see a window more.
//
// A cost above the share is denied with RetryAfter one second, not Never, if it fits the limit.
// Refund and Reset touch this process' memory alone. Where n changes in an outage, what was used
// stays used, within the new share.
//
// Limits that use one counter (tiers, or old and new limits during a reload) use one counter in
// this memory too. The bound is that of the largest.
//
// Limits that are not Local cost nothing while the store is well, and take no memory.
func Fallback(o FallbackOptions) penstock.Decorator {
	if o.OnFailure == ByDefault {
		o.OnFailure = Local
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = 1_000_000
	}
	return func(next penstock.Store) penstock.Store {
		return &fallback{
			options: o,
			next:    next,
			local:   memstore.New(memstore.Options{MaxKeys: o.MaxKeys}),
			blank:   memstore.New(memstore.Options{Shards: 1}),
		}
	}
}

type fallback struct {
	options FallbackOptions
	next    penstock.Store
	local   *memstore.Store
	blank   *memstore.Store // in which nothing is ever used
	shares  divided[share]
}

// comeBack is the RetryAfter where nobody knows better.
const comeBack = time.Second

func (f *fallback) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if err := callersErr(ctx); err != nil {
		return penstock.Decision{}, err // here, since afterwards a deadline that passed may be the store's fault
	}
	d, err := f.next.Decide(ctx, charges)
	if err == nil {
		if d.Allowed {
			f.shadow(charges, &d)
		}
		return d, nil
	}
	if !errors.Is(err, penstock.ErrUnavailable) {
		return d, err
	}
	if callersErr(ctx) == context.Canceled {
		return d, context.Canceled
	}
	return f.answer(charges, err)
}

// shadow charges to the memory what the store has granted.
func (f *fallback) shadow(charges []penstock.Charge, d *penstock.Decision) {
	if f.options.Limits == nil && f.options.OnFailure != Local {
		return
	}
	n := f.instances()
	for i := range charges {
		c := &charges[i]
		mode, cost := echo(c, d, i)
		if mode == penstock.Peek || f.settings(c).OnFailure != Local {
			continue
		}
		if share := f.shares.by(n, &c.Limit, makeShare); share.ok {
			one := [1]penstock.Charge{{Key: c.Key, Limit: share.limit, Cost: cost, Mode: mode, Holder: cmp.Or(c.Holder, anonymous)}}
			if mode == penstock.Refund {
				one[0].Holder = c.Holder
			}
			d, err := f.local.Decide(context.Background(), one[:]) // if the memory is full, it does not know
			if err == nil && mode == penstock.Force && n > 1 && share.limit.Algorithm.Bookable {
				f.forgive(&one[0], d.Status(0))
			}
		}
	}
}

// forgive takes back what a bucket was forced beyond twice its share, or else an instance that has
// had most of the load would deny for as long. (Windows and holds end by themselves; and an
// instance that is alone answers as the store would.)
func (f *fallback) forgive(forced *penstock.Charge, s penstock.Status) {
	l := &forced.Limit
	used := float64(s.ResetAfter) / float64(l.Period) * float64(l.Count)
	if over := int64(used) - 2*(l.Burst+1); over > 0 {
		back := [1]penstock.Charge{*forced}
		back[0].Mode, back[0].Cost = penstock.Refund, min(over, forced.Cost)
		f.local.Decide(context.Background(), back[:])
	}
}

// anonymous holds the places of those who do not say who they are: only a holder can leave a queue.
const anonymous = "\x00anonymous"

// echo is what the memory is charged for a charge that the store has granted; Peek: nothing.
func echo(c *penstock.Charge, d *penstock.Decision, i int) (mode penstock.Mode, cost int64) {
	switch c.Mode {
	case penstock.Spend, penstock.Force:
		mode, cost = penstock.Force, c.Cost // not what was granted: that is 0 where a hold is renewed
	case penstock.Draw:
		mode, cost = penstock.Force, d.Status(i).Granted
	case penstock.Refund:
		mode, cost = penstock.Refund, d.Status(i).Granted
	case penstock.Reset:
		return penstock.Reset, 0
	}
	if cost == 0 {
		mode = penstock.Peek
	}
	return mode, cost
}

// answer decides a batch without the store.
func (f *fallback) answer(charges []penstock.Charge, cause error) (penstock.Decision, error) {
	var plans [4]*penstock.Plan
	if _, err := penstock.Prepare(charges, plans[:0]); err != nil {
		return penstock.Decision{}, err // the store may not have seen it
	}
	var few [4]penstock.Charge
	b := failed{charges: charges}
	b.locals = f.sort(charges, &b.ways, few[:0])
	if len(b.locals) > 0 {
		if b.has(Closed) {
			b.onlyAsk()
		}
		var err error
		b.local, err = f.local.Decide(context.Background(), b.locals)
		if errors.Is(err, penstock.ErrUnavailable) { // the memory is full
			b.close()
		} else if err != nil {
			return penstock.Decision{}, err
		}
	}
	if b.has(Closed) && !b.deniable() {
		return penstock.Decision{}, cause
	}
	return f.compose(&b), nil
}

// A failed batch is one that the store has not answered.
type failed struct {
	charges []penstock.Charge
	ways    [penstock.MaxCharges]Failure // of each charge: Open, Closed or Local
	locals  []penstock.Charge            // the Local ones, with the limits that hold here
	local   penstock.Decision            // on them
}

func (b *failed) has(way Failure) bool { return slices.Contains(b.ways[:len(b.charges)], way) }

// onlyAsk has the Local charges ask what is left, since the batch is denied anyway.
func (b *failed) onlyAsk() {
	for i := range b.locals {
		b.locals[i].Mode, b.locals[i].Cost, b.locals[i].Patience = penstock.Peek, 0, 0
	}
}

// close denies what is Local.
func (b *failed) close() {
	for i := range b.charges {
		if b.ways[i] == Local {
			b.ways[i] = Closed
		}
	}
}

// deniable tells whether a Closed charge may be denied: some are made or end with an error.
func (b *failed) deniable() bool {
	for i := range b.charges {
		switch b.charges[i].Mode {
		case penstock.Spend, penstock.Draw, penstock.Peek:
			if b.ways[i] == Closed {
				return true
			}
		}
	}
	return false
}

// sort writes how each charge fails, and appends those that are decided here, with the limits that
// hold here.
func (f *fallback) sort(charges []penstock.Charge, ways *[penstock.MaxCharges]Failure, locals []penstock.Charge) []penstock.Charge {
	n := f.instances()
	for i := range charges {
		c := &charges[i]
		s := f.settings(c)
		ways[i] = s.OnFailure
		var mine share
		switch {
		case s.OnFailure == Local:
			mine = f.shares.by(n, &c.Limit, makeShare)
		case s.OnFailure == Open && s.Ceiling == (penstock.Limit{}):
			continue
		case s.OnFailure == Open:
			s.Ceiling.Group = c.Limit.Group
			s.Ceiling = s.Ceiling.WithName(c.Limit.Name)
			mine = f.shares.by(1, &s.Ceiling, makeShare)
		}
		if !mine.ok {
			ways[i] = Closed
			continue
		}
		ways[i] = Local
		local := *c
		local.Limit = mine.limit
		if plan, err := mine.limit.Plan(); err == nil {
			local.Patience = min(c.Patience, plan.MaxPatience())
		}
		locals = append(locals, local)
	}
	return locals
}

// compose makes one decision of what each way of failing says.
func (f *fallback) compose(b *failed) penstock.Decision {
	source, allowed := penstock.FromOpen, true
	switch {
	case b.has(Closed):
		source, allowed = penstock.FromClosed, false
	case b.has(Local):
		source, allowed = penstock.FromFallback, b.local.Allowed
	}
	if len(b.charges) == 1 {
		d := penstock.Single(f.status(b, 0, 0, allowed))
		d.Source = source
		return d
	}
	statuses, local := make([]penstock.Status, len(b.charges)), 0
	for i := range statuses {
		statuses[i] = f.status(b, i, local, allowed)
		if b.ways[i] == Local {
			local++
		}
	}
	d := penstock.NewDecision(statuses)
	d.Source = source
	return d
}

// status answers charge i, which is that one of the Local ones if it is one.
func (f *fallback) status(b *failed, i, local int, allowed bool) (s penstock.Status) {
	c := &b.charges[i]
	switch b.ways[i] {
	case Closed:
		s.RetryAfter = comeBack
	case Local:
		s = b.local.Status(local)
		if s.RetryAfter == penstock.Never && f.fits(c) {
			s.RetryAfter = comeBack
		}
	case Open:
		s.Remaining = c.Limit.Count
		if allowed && c.Mode != penstock.Peek && c.Mode != penstock.Reset {
			s.Granted = c.Cost
		}
	}
	return s
}

// fits tells whether the cost fits the whole limit at any time.
func (f *fallback) fits(c *penstock.Charge) bool {
	d, err := f.blank.Decide(context.Background(), []penstock.Charge{{Limit: c.Limit, Cost: c.Cost, Mode: penstock.Peek}})
	return err == nil && d.RetryAfter() != penstock.Never
}

func (f *fallback) settings(c *penstock.Charge) (s Settings) {
	if f.options.Limits != nil {
		s = f.options.Limits(&c.Limit)
	}
	if s.OnFailure == ByDefault {
		s.OnFailure = f.options.OnFailure
	}
	return s
}

func (f *fallback) instances() int {
	n := 1
	if f.options.Instances != nil {
		n = f.options.Instances()
	}
	return max(n, f.options.Floor, 1)
}
