package admission

import (
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/panicked"
)

// A shadow is the decision about the batch of a shadow rule, a shadow limit or a candidate. It
// changes nothing for the request. If the shadow cannot be decided, that is not reported.
type shadow struct {
	batches.Batch
	event   Event
	sent    time.Time // for the latency, which is always real time
	isAlone bool      // decideAlone decides it
}

// shadows are decided independently of each other.
type shadows struct {
	admission *Admission
	running   sync.WaitGroup
	list      []shadow         // in the order of Evaluation.Shadows
	sharing   []*batches.Batch // those that the call of the enforced batch may decide
}

// beginShadows starts to decide the shadows, at the same time as the enforced limits. Shadows are
// also decided for requests that the enforced limits deny. The call of the enforced batch may
// decide the shadows in sharing. For each of the other shadows, beginShadows starts a call to the
// store.
func (a *Admission) beginShadows() *shadows {
	found := a.evaluation.Shadows
	if len(found) == 0 {
		return nil
	}
	s := &shadows{admission: a, list: make([]shadow, len(found))}
	for i := range found {
		item := &s.list[i]
		item.sent = time.Now()
		item.Charges, item.Err = found[i].Charges, batches.ErrUndecided
		a.options.markRefundable(item.Charges, found[i].Limits)
		if canShareScript(item.Charges, a.evaluation.Charges) {
			s.sharing = append(s.sharing, &item.Batch)
		} else {
			s.decideAlone(i)
		}
	}
	return s
}

// canShareScript reports whether a store may decide two batches in one script. Each of them has one
// key and one group, and both have the same sequence of algorithms, whose state is small. If the
// store decides only the enforced batch nevertheless, endSharing sends the shadow afterwards.
func canShareScript(a, b []penstock.Charge) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Plan.Algorithm().Name() != b[i].Plan.Algorithm().Name() || !isLike(&a[i], &a[0]) || !isLike(&b[i], &b[0]) {
			return false
		}
	}
	return true
}

// isLike reports whether a charge has the key and the group of the first of its batch. Its state
// must be no collection, and its limit must not count denied requests.
func isLike(c, first *penstock.Charge) bool {
	isSimple := !c.Plan.Algorithm().IsCollection() && !c.Plan.CountsDenied()
	return isSimple && c.Key == first.Key && c.Plan.Group() == first.Plan.Group()
}

// decideAlone starts a call to the store for shadow i.
func (s *shadows) decideAlone(i int) {
	a, item := s.admission, &s.list[i]
	ctx := a.ctx
	item.isAlone = true
	s.running.Go(func() {
		defer panicked.Recover("a shadow is observed")
		item.Decision, item.Err = panicked.Decide(ctx, a.controller.store, item.Charges)
		s.observe(i)
	})
}

// endSharing reports the shadows that the call of the enforced batch has decided. It starts a call
// for each shadow that this call left undecided. That happens if a guard decided the enforced
// batch, or if the store decides only one batch in a call.
func (s *shadows) endSharing() {
	if s == nil {
		return
	}
	for i := range s.list {
		item := &s.list[i]
		switch {
		case item.isAlone: // decideAlone reports it
		case item.Err == batches.ErrUndecided:
			s.decideAlone(i)
		default:
			s.observe(i)
		}
	}
}

// end waits until the shadows are decided, and records what they have charged.
func (s *shadows) end() {
	if s == nil {
		return
	}
	s.running.Wait()
	for i := range s.list {
		item, batch := &s.list[i], &s.admission.evaluation.Shadows[i]
		if item.isUndecided() {
			s.admission.noteHolds(batch.Charges, batch.Limits)
		} else if item.Decision.Allowed {
			s.admission.noteGrants(batch.Charges, batch.Limits, &item.Decision)
		}
	}
}

func (s *shadow) isUndecided() bool {
	return s.Err != nil || s.Decision.Source == penstock.FromOpen || s.Decision.Source == penstock.FromClosed
}

// observe emits the event of shadow i, if it was decided.
func (s *shadows) observe(i int) {
	a, item, batch := s.admission, &s.list[i], &s.admission.evaluation.Shadows[i]
	if item.isUndecided() {
		return
	}
	d := &item.Decision
	strictest := d.Strictest()
	item.event = eventOf(batch.Limits[strictest], &batch.Charges[strictest])
	e := &item.event
	e.Outcome = ShadowAllowed
	if !d.Allowed || a.denyIf != nil && a.denyIf(batch.Charges, d) {
		e.Outcome = ShadowDenied
	}
	e.Context = a.ctx
	e.Source, e.Latency, e.Decision, e.Charges = d.Source, time.Since(item.sent), d, batch.Charges
	a.controller.options.Observe(e)
}
