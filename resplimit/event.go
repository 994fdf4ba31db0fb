package resplimit

import (
	"errors"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/panicked"
)

// eventPool reuses the memory of events.
var eventPool = sync.Pool{New: func() any { return new(admission.Event) }}

// isObserved reports whether this package emits an event for a job. A quantity of 0 has no event,
// because it spends nothing. The controller emits the event of a PENSTOCK.CHECK.
func (s *Server) isObserved(j *job) bool {
	isThrottle := j.kind == cellThrottle || j.kind == crabThrottle
	return isThrottle && j.single[0].Mode != penstock.Peek && s.options.Observe != nil
}

// observe emits the event of a job that has been decided.
func (s *Server) observe(j *job, latency time.Duration) {
	defer panicked.Recover("a decision is observed")
	e := eventPool.Get().(*admission.Event)
	*e = admission.Event{
		Context: s.ctx,
		Rule:    s.options.LimitName, Limit: s.options.LimitName, Algorithm: j.single[0].Plan.Algorithm().Title(), Key: j.key,
		Outcome: s.outcome(j), Latency: latency, Err: j.err,
	}
	if j.err == nil {
		e.Source, e.Decision, e.Charges = j.decision.Source, &j.decision, j.charges
	}
	if e.Outcome == admission.FailedOpen {
		e.SkippedRule = e.Rule
	}
	s.options.Observe(e)
	*e = admission.Event{} // so that the pooled event keeps no key
	eventPool.Put(e)
}

// outcome returns what became of a command. A client that gets an error is not admitted.
func (s *Server) outcome(j *job) admission.Outcome {
	switch {
	case j.err != nil && s.ctx.Err() != nil && errors.Is(j.err, s.ctx.Err()):
		return admission.Abandoned
	case j.err != nil, j.decision.Source == penstock.FromClosed && !j.decision.Allowed:
		return admission.FailedClosed
	case !j.decision.Allowed:
		return admission.Denied
	case j.decision.Source == penstock.FromOpen:
		return admission.FailedOpen
	}
	return admission.Allowed
}
