// Package regions exchanges between several regions what each has granted, for limits across
// regions (algorithm.Across), or lends shares (algorithm.ShareAcross). Each region decides alone,
// in a store of its own. One instance of a region runs its Exchange: it asks the other regions for
// their totals, and merges these into its own store. docs/decisions/0033 and 0034 have the bounds
// of this and their proofs.
package regions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/panicked"
)

// The modes by which totals are exchanged (see algorithm/across.go) and shares lent.
const (
	report = algorithm.Attempt + 1 + iota
	merge
	rejoin

	takeLoan, giveLoan = merge, rejoin // see algorithm/share.go

	rejoinFactors = 32
)

// MaxRegions is the largest number of regions. A counter has room for the totals of all but one.
const MaxRegions = 15

// Options configure an Exchange.
type Options struct {
	Self  string         // the name of this region
	Peers []string       // the names of the others
	Store penstock.Store // of this region

	Every     time.Duration    // how often each other region is asked, ± 10 %. Default: 1 s
	Silence   time.Duration    // after this long without contact, a region enforces its share only. Default: 3 × Every
	MaxTotals int              // of one answer. Default: 1000
	Now       func() time.Time // Default: time.Now
	Seed      uint64           // of the jitter

	// Exchanged is called after each exchange with a region. The error is nil if it succeeded. With
	// several instances, it is also called for this region itself. Default: nothing is reported.
	Exchanged func(region string, err error)

	// ContactChanged is called by an Instance if contact with a region is made or lost, and ten times
	// Every after the start if there is none. Default: nothing is reported.
	ContactChanged func(region string, isInContact bool)
}

// Lag returns how long a region may not know what another one has granted, if a message takes at
// most this delay: while all is well, and at most.
func (o Options) Lag(delay time.Duration) (usual, most time.Duration) {
	o.setDefaults()
	usual = o.Every + o.Every/jitterPart + delay
	return usual, o.Silence + usual
}

// flushInterval returns how often an instance writes what it has granted to the region's store, and
// reads what the other instances have written.
func (o Options) flushInterval() time.Duration { return o.Every / flushPart }

// flushPart is how often an instance flushes in the time Every.
const flushPart = 5

// jitterPart is the part of Every by which the time between two questions may differ from it: a
// tenth.
const jitterPart = 10

func (o *Options) setDefaults() {
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Silence == 0 {
		o.Silence = 3 * o.Every
	}
	if o.MaxTotals == 0 {
		o.MaxTotals = 1000
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Exchanged == nil {
		o.Exchanged = func(string, error) {}
	}
	if o.ContactChanged == nil {
		o.ContactChanged = func(string, bool) {}
	}
}

// An Exchange is one region's part in the exchange.
type Exchange struct {
	o      Options
	site   *Site
	ledger ledger
	decide batches.Func
	names  []string // of all regions, in alphabetical order

	mu     sync.Mutex
	rng    *rand.Rand
	peers  map[string]*peer
	shares map[shareID]*penstock.Plan
}

// A ledger keeps what all instances of a region know: what they have granted, and which answers
// were merged.
type ledger interface {
	// note records that units of a counter were granted. They may count for as long as counts.
	note(c Counter, units int64, counts time.Duration)

	// storeTime returns what the clock of this region's store showed at a time, or earlier, in µs. It
	// is 0 if that is not known.
	storeTime(t time.Time) int64

	// isLeader reports whether this instance is the one that asks the other regions.
	isLeader() bool

	// recordMerged records that an answer was merged. asked is when the region was asked for it.
	recordMerged(ctx context.Context, region string, asked time.Time, answer Answer) error
}

// A memory is the ledger of a region that has one instance.
type memory struct{ *Exchange }

func (m memory) note(c Counter, units int64, _ time.Duration) { m.site.note(c, units) }

func (memory) storeTime(t time.Time) int64 { return t.UnixMicro() }

func (memory) isLeader() bool { return true }

func (m memory) recordMerged(_ context.Context, region string, asked time.Time, answer Answer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[region]
	p.number = answer.Number
	if answer.IsFull {
		p.contactAt, p.countedAt = later(p.contactAt, asked), later(p.countedAt, m.o.Now())
	}
	return nil
}

// A peer is another region, as this one knows it from its answers.
type peer struct {
	number uint64 // of the last answer that was merged

	// contactAt is when this region asked for the last full answer that it has merged.
	contactAt time.Time

	// countedAt is until when merges have taken account of what the peer's share refills.
	countedAt time.Time
}

// New makes the Exchange of a region.
func New(o Options) (*Exchange, error) {
	o.setDefaults()
	names := append(slices.Clone(o.Peers), o.Self)
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) || len(names) < 2 || len(names) > MaxRegions || slices.Contains(names, "") {
		return nil, fmt.Errorf("%w: the regions are %q; write 2 to %d different names", penstock.ErrInvalid, names, MaxRegions)
	}
	decide := batches.Of(o.Store)
	e := &Exchange{
		o: o, decide: decide, names: names, rng: rand.New(rand.NewPCG(o.Seed, 0)), peers: make(map[string]*peer), shares: make(map[shareID]*penstock.Plan),
		site: &Site{decide: decide, now: o.Now, maxTotals: o.MaxTotals, consumers: make(map[string]*consumer)},
	}
	e.ledger, e.site.exchange = memory{e}, e
	for _, name := range o.Peers {
		e.peers[name] = &peer{countedAt: o.Now()}
		e.site.consumers[name] = &consumer{changed: make(map[id]*change)}
	}
	return e, nil
}

// Site returns what the region shows to others.
func (e *Exchange) Site() *Site { return e.site }

// Run asks the other regions until ctx ends. A region that hangs or panics delays no other.
func (e *Exchange) Run(ctx context.Context, peers map[string]Peer) {
	var running sync.WaitGroup
	for name, p := range peers {
		running.Go(func() {
			for ctx.Err() == nil {
				asked, pause := e.o.Now(), e.Pause()
				if !e.ledger.isLeader() {
					pause = e.o.flushInterval()
				} else {
					answer, err := e.askOnce(ctx, name, p)
					if ctx.Err() == nil {
						e.o.Exchanged(name, err)
					}
					if err == nil && answer.hasMore {
						continue
					}
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause - e.o.Now().Sub(asked)):
				}
			}
		})
	}
	running.Wait()
}

// askOnce asks a region and merges its answer.
func (e *Exchange) askOnce(ctx context.Context, name string, p Peer) (Answer, error) {
	return panicked.Try("ask region "+name, func() (Answer, error) {
		ctx, cancel := context.WithTimeout(ctx, e.o.Silence)
		defer cancel()
		asked := e.o.Now()
		answer, err := p.Answer(ctx, e.Ask(name))
		if err == nil {
			err = e.Merge(ctx, name, asked, answer)
		}
		return answer, err
	})
}

// Pause returns the time until the next question, with jitter.
func (e *Exchange) Pause() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	jitter := e.o.Every / jitterPart
	return e.o.Every - jitter + time.Duration(e.rng.Int64N(int64(2*jitter)+1))
}

// Ask returns what to ask a region now.
func (e *Exchange) Ask(region string) Ask {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[region]
	ask := Ask{From: e.o.Self, Merged: p.number, Contact: -1}
	if !p.contactAt.IsZero() {
		ask.Contact = e.o.Now().Sub(p.contactAt)
	}
	return ask
}

// Merge merges the answer of a region. asked is when the region was asked for it.
func (e *Exchange) Merge(ctx context.Context, region string, asked time.Time, answer Answer) error {
	now := e.o.Now()
	inContact, regions := e.inContact(region, now), e.regionsInContact(now)
	e.mu.Lock()
	p := e.peers[region]
	silent := now.Sub(later(p.countedAt, e.lastContact(region).Add(e.o.Silence)))
	e.mu.Unlock()
	// A region in contact knows each total of this age, unless it has lost its own data.
	maxUnknownAge := 2 * e.o.Silence
	var charges []penstock.Charge
	for _, t := range answer.Totals {
		if IsShared(t.Plan) {
			continue
		}
		share, err := e.shareOf(shareID{t.Plan, regions})
		if err != nil {
			return err
		}
		c := penstock.Charge{Key: t.Key, Plan: share, Mode: merge, Holder: region, Receipt: t.Life, Cost: min(t.Granted, penstock.MaxCost)}
		if t.Plan.Algorithm().WindowsDiffer() { // the windows of a day, for example
			c.Patience = t.Left
		} else if !inContact || t.Age > maxUnknownAge {
			factor := (t.Plan.Capacity() + share.Capacity() - 1) / share.Capacity()
			c.Mode, c.Patience = rejoin, time.Duration(factor)*time.Microsecond
			if !inContact {
				c.Patience += rejoinFactors * time.Microsecond * time.Duration(e.refilled(t.Plan, region, silent))
			}
		}
		charges = append(charges, c)
	}
	if _, err := decideEach(ctx, e.decide, charges, mergedTogether); err != nil {
		return err
	}
	if err := e.lend(ctx, region, asked, answer.Totals, inContact); err != nil {
		return err
	}
	return e.ledger.recordMerged(ctx, region, asked, answer)
}

// offerTime returns for how long an offer of a share holds. It is renewed each Every.
func (o Options) offerTime() time.Duration { return 2 * o.Silence }

// lend offers a region shares of the limits that regions divide, and takes what it offers.
func (e *Exchange) lend(ctx context.Context, region string, asked time.Time, totals []Total, inContact bool) error {
	var charges []penstock.Charge
	var counters []Counter // of the charges
	askedAt := e.ledger.storeTime(asked)
	for _, t := range totals {
		if !IsShared(t.Plan) {
			continue
		}
		plan, err := e.shareOf(shareID{t.Plan, 0})
		if err != nil {
			return err
		}
		const versions, amounts = 1 << 20, 1 << 10 // see algorithm.ShareAcross
		if inContact {
			charges = append(charges, penstock.Charge{Key: t.Key, Plan: plan, Mode: giveLoan, Holder: region, Cost: t.Needed + t.Granted/amounts/versions*versions, Patience: e.o.offerTime()})
			counters = append(counters, t.Counter)
		}
		if askedAt > 0 && t.Left > 0 {
			charges = append(charges, penstock.Charge{Key: t.Key, Plan: plan, Mode: takeLoan, Holder: region, Cost: t.Granted % (amounts * versions), Receipt: askedAt + t.Left.Microseconds()})
			counters = append(counters, t.Counter)
		}
	}
	statuses, err := decideEach(ctx, e.decide, charges, mergedTogether)
	if err != nil {
		return err // the answer is not recorded as merged, so its counters come again
	}
	for i, status := range statuses {
		if status.Granted > 0 { // the other region has to know
			e.ledger.note(counters[i], 1, e.o.offerTime())
		}
	}
	return nil
}

// mergedTogether is how many totals are merged at once. Between two such lists, the store decides
// the requests that have arrived meanwhile.
const mergedTogether = 256

// lastContact returns the last time at which this region and the other had each merged all totals
// of the other one.
func (e *Exchange) lastContact(region string) time.Time {
	ours, theirs := e.peers[region].contactAt, e.site.contactAt(region)
	if theirs.Before(ours) {
		return theirs
	}
	return ours
}

// inContact reports whether a region is in contact. If not, it is assumed to use its whole share.
func (e *Exchange) inContact(region string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return now.Sub(e.lastContact(region)) <= e.o.Silence
}
