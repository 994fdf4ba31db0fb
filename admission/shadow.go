package admission

import (
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/internal/piggyback"
	"github.com/penstock/penstock/policy"
)

// A shadow is the decision about the batch of a shadow rule, a shadow limit or a candidate. It
// changes nothing for the request. If the shadow cannot be decided, that is not reported.
type shadow struct {
	piggyback.Batch
	event      Event
	sent       time.Time // for the latency, which is always real time
	hasOwnCall bool      // to the store; if false, the call of the enforced batch may decide the shadow
}

// shadows are decided independently of each other.
type shadows struct {
	running     sync.WaitGroup
	list        []shadow          // in the order of Evaluation.Shadows
	piggybacked piggyback.Batches // the shadows that the call of the enforced batch may decide
}

// beginShadows starts to decide the shadows, at the same time as the enforced limits. Shadows are
// also decided for requests that the enforced limits deny. A shadow with the enforced batch's
// sequence of algorithms is decided in the call of that batch, if the store can do that. For each
// of the other shadows, beginShadows starts a call to the store.
func (a *Admission) beginShadows() *shadows {
	batches := a.evaluation.Shadows
	if len(batches) == 0 {
		return nil
	}
	s := &shadows{list: make([]shadow, len(batches))}
	s.piggybacked.Enforced = a.evaluation.Charges
	ctx := a.call.Context
	for i := range batches {
		item := &s.list[i]
		item.sent = time.Now()
		item.Charges = batches[i].Charges
		a.request.markRefundable(item.Charges, batches[i].Limits)
		item.DecideAlone = func() {
			item.hasOwnCall = true
			s.running.Go(func() {
				defer panicked.Recover("a shadow is observed")
				item.Decision, item.Err = panicked.Decide(ctx, a.controller.store, item.Charges)
				a.observeShadow(&batches[i], item)
			})
		}
		if haveSameAlgorithms(item.Charges, a.evaluation.Charges) {
			s.piggybacked.Shadows = append(s.piggybacked.Shadows, &item.Batch)
		} else {
			item.DecideAlone()
		}
	}
	a.call.shadows.Store(&s.piggybacked)
	return s
}

// haveSameAlgorithms reports whether two batches have the same sequence of algorithms.
func haveSameAlgorithms(a, b []penstock.Charge) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Plan.Algorithm().Name() != b[i].Plan.Algorithm().Name() {
			return false
		}
	}
	return true
}

// endPiggybacked reports the shadows that the call of the enforced batch has decided. For each
// other shadow it starts a call of its own. A shadow needs one if a guard has decided the enforced
// batch, or if the store decides only one batch in a call.
func (a *Admission) endPiggybacked(s *shadows) {
	if s == nil {
		return
	}
	a.call.shadows.Store(nil)
	for i := range s.list {
		item := &s.list[i]
		switch {
		case item.hasOwnCall: // which reports the shadow
		case item.Take(): // the call of the enforced batch has not decided it
			item.DecideAlone()
		default:
			a.observeShadow(&a.evaluation.Shadows[i], item)
		}
	}
}

// endShadows waits until the shadows are decided, and records what they have charged.
func (a *Admission) endShadows(s *shadows) {
	if s == nil {
		return
	}
	s.running.Wait()
	for i := range s.list {
		item, batch := &s.list[i], &a.evaluation.Shadows[i]
		if item.isUndecided() {
			a.noteHolds(batch.Charges, batch.Limits)
		} else if item.Decision.Allowed {
			a.noteGrants(batch.Charges, batch.Limits, &item.Decision)
		}
	}
}

func (s *shadow) isUndecided() bool {
	return s.Err != nil || s.Decision.Source == penstock.FromOpen || s.Decision.Source == penstock.FromClosed
}

func (a *Admission) observeShadow(batch *policy.Shadow, s *shadow) {
	if s.isUndecided() {
		return
	}
	d := &s.Decision
	i := d.Strictest()
	s.event = eventOf(batch.Limits[i], &batch.Charges[i])
	e := &s.event
	e.Outcome = ShadowAllowed
	if isOver := a.request.IsOver; !d.Allowed || isOver != nil && isOver(batch.Charges, d) {
		e.Outcome = ShadowDenied
	}
	e.Context = a.call.Context
	e.Source, e.Latency, e.Decision, e.Charges = d.Source, time.Since(s.sent), d, batch.Charges
	a.controller.options.Observe(e)
}
