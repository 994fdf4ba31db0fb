package regions

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
)

// A Counter is a limit under one key.
type Counter struct {
	Key  string
	Plan *penstock.Plan // the whole limit, and not a share of it
}

// An id identifies a Counter.
type id struct {
	key   string
	limit [2]uint64
}

// A Total is how many units a region has granted of a counter. Of a limit that regions divide, it
// is what the region offers, and needs.
type Total struct {
	Counter
	Life    int64         // see algorithm.Across
	Granted int64         // units in this life; of a divided limit: the offer, see the modes in algorithm/share.go
	Age     time.Duration // of the life
	Needed  int64         // of a divided limit: what the region needs and has, see the modes in algorithm/share.go
	Left    time.Duration // until its units are free again; of a window: until it ends; of an offer: until it ends
}

// An Ask is a question to a region: which of its totals have changed?
type Ask struct {
	From string // the region that asks

	// Merged is the number of the last answer that was merged.
	Merged uint64

	// Contact is how long ago the region asked for the last full answer that it has merged. It is
	// negative if there was none.
	Contact time.Duration
}

// An Answer has the totals that have changed since the last answer that was merged.
type Answer struct {
	Number  uint64
	Totals  []Total // those of the busiest counters first
	IsFull  bool    // no other total has changed, and none was dropped
	hasMore bool    // other totals have changed; a further question gets them
	isIdle  bool    // no counter has changed, so it was one question
}

// A Peer is another region, as far as it can be reached.
type Peer interface {
	Answer(ctx context.Context, ask Ask) (Answer, error)
}

// A Site is what a region shows to others: its store, and which of its counters have changed.
type Site struct {
	exchange  *Exchange
	decide    batches.Func
	now       func() time.Time
	maxTotals int

	mu        sync.Mutex
	consumers map[string]*consumer
}

// A consumer is another region, as this one knows it from its questions.
type consumer struct {
	changed   map[id]*change // since the last answer that was merged
	number    uint64         // of the last answer
	sent      []change       // the changes in the last answer
	contactAt time.Time      // the last time at which it had merged all that this region had granted
}

// A change is a counter and the units that were granted of it.
type change struct {
	counter Counter
	units   int64
}

// note records that units of a counter were granted.
func (s *Site) note(c Counter, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.consumers {
		if known := v.changed[idOf(c)]; known != nil {
			known.units += units
		} else {
			v.changed[idOf(c)] = &change{c, units}
		}
	}
}

func idOf(c Counter) id { return id{c.Key, c.Plan.ID()} }

// Answer returns the totals that have changed for a region.
func (s *Site) Answer(ctx context.Context, ask Ask) (Answer, error) {
	answer, changes, err := s.take(ask)
	if err != nil {
		return Answer{}, err
	}
	counters := make([]Counter, len(changes))
	for i, c := range changes {
		counters[i] = c.counter
	}
	answer.Totals, err = s.exchange.totals(ctx, s.decide, counters, ask.From)
	return answer, err
}

// setContact sets the time that contactAt returns for a region.
func (s *Site) setContact(region string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumers[region].contactAt = at
}

// totals returns the totals of counters in the region of the store, for another region. It leaves
// out those of which nothing is in use.
func (e *Exchange) totals(ctx context.Context, decide batches.Func, counters []Counter, region string) (all []Total, err error) {
	reports := make([]penstock.Charge, len(counters))
	for i, c := range counters {
		reports[i] = penstock.Charge{Key: c.Key, Plan: c.Plan, Mode: report}
		if IsShared(c.Plan) {
			reports[i].Holder = region
			if reports[i].Plan, err = e.shareOf(shareID{c.Plan, 0}); err != nil {
				return nil, err
			}
		}
	}
	statuses, err := decideEach(ctx, decide, reports, len(reports))
	if err != nil {
		return nil, err
	}
	for i, status := range statuses {
		t := Total{Counter: counters[i], Granted: status.Granted, Left: status.ResetAfter}
		isUsed := status.Granted > 0 && status.ResetAfter > 0
		if IsShared(t.Plan) {
			t.Needed, isUsed = status.Remaining, status.Remaining > 0
		} else {
			t.Life, t.Age = status.Wait.Microseconds(), time.Duration(status.Remaining)*time.Microsecond
		}
		if isUsed {
			all = append(all, t)
		}
	}
	return all, nil
}

// take returns the busiest of the changed counters. It first removes those that are merged.
func (s *Site) take(ask Ask) (answer Answer, changes []change, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.consumers[ask.From]
	if v == nil {
		return Answer{}, nil, fmt.Errorf("%w: region %.64q asks, and is not among the peers of this region; write it there, under the same name", penstock.ErrInvalid, ask.From)
	}
	if ask.Contact >= 0 {
		v.contactAt = later(v.contactAt, s.now().Add(-ask.Contact))
	}
	if ask.Merged == v.number {
		for _, c := range v.sent {
			known := v.changed[idOf(c.counter)]
			if known.units -= c.units; known.units == 0 {
				delete(v.changed, idOf(c.counter))
			}
		}
	}
	for _, c := range v.changed {
		changes = append(changes, *c)
	}
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(b.units, a.units), cmp.Compare(a.counter.Key, b.counter.Key))
	})
	v.number++
	v.sent = changes[:min(len(changes), s.maxTotals)]
	return Answer{Number: v.number, IsFull: len(v.sent) == len(changes), hasMore: len(v.sent) < len(changes)}, v.sent, nil
}

// contactAt returns when a region had merged all that this one had granted, as far as it is known.
func (s *Site) contactAt(region string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.consumers[region].contactAt
}

// decideEach decides charges that do not depend on each other, in lists of at most together
// charges.
func decideEach(ctx context.Context, decide batches.Func, charges []penstock.Charge, together int) ([]penstock.Status, error) {
	statuses := make([]penstock.Status, 0, len(charges))
	for part := range slices.Chunk(charges, max(together, 1)) {
		list := make([]*batches.Batch, len(part))
		for i := range part {
			list[i] = &batches.Batch{Charges: part[i : i+1]}
		}
		decide(ctx, list)
		for _, b := range list {
			if failed := penstock.AsStoreError(b.Err); failed != nil && failed.Reason == penstock.ReasonCorrupt {
				statuses = append(statuses, penstock.Status{}) // foreign data in one key must not end the exchange of all others
				continue
			}
			if b.Err != nil {
				return nil, b.Err
			}
			statuses = append(statuses, b.Decision.Status(0))
		}
	}
	return statuses, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
