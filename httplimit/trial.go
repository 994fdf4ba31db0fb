package httplimit

import (
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/internal/trial"
	"github.com/penstock/penstock/policy"
)

// tried is the outcome of a trial. It changes nothing for the request, and a failure is not
// reported.
type tried struct {
	trial.Batch
	start time.Time
	alone bool // it is decided by a call of its own
}

// trials are being decided, each as a batch that is independent of the others.
type trials struct {
	running sync.WaitGroup
	tried   []tried       // in the order of the verdict's
	offered trial.Batches // of them, those that the store may decide in the call of the enforced batch
}

// beginTrials starts to decide the trials of the verdict, at the same time as the enforced limits,
// also for requests that these deny. Those of the same algorithms as the enforced batch are offered
// to the store along with it; the others are calls of their own, which begin at once.
func (a *Admission) beginTrials() *trials {
	list := a.verdict.Trials
	if len(list) == 0 {
		return nil
	}
	t := &trials{tried: make([]tried, len(list))}
	t.offered.Enforced = a.verdict.Charges
	ctx := a.Request.Context()
	for i := range list {
		one := &t.tried[i]
		one.start = time.Now()
		one.Charges = list[i].Charges
		one.Alone = func() {
			one.alone = true
			t.running.Go(func() {
				defer panicked.Recover("a trial is observed")
				one.Decision, one.Err = panicked.Decide(ctx, a.gate.store, one.Charges)
				a.observeTrial(&list[i], one)
			})
		}
		if sameAlgorithms(one.Charges, a.verdict.Charges) {
			t.offered.Trials = append(t.offered.Trials, &one.Batch)
		} else {
			one.Alone()
		}
	}
	a.question.trials.Store(&t.offered)
	return t
}

// sameAlgorithms tells whether two batches are of one sequence of algorithms.
func sameAlgorithms(a, b []penstock.Charge) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Limit.Algorithm.Is(b[i].Limit.Algorithm) {
			return false
		}
	}
	return true
}

// endOffered reports the trials that the store has decided with the enforced batch. It starts a
// call for each one that was not taken, because a guard has answered the enforced batch or the
// store decides only one batch in a call.
func (a *Admission) endOffered(t *trials) {
	if t == nil {
		return
	}
	a.question.trials.Store(nil)
	for i := range t.tried {
		one := &t.tried[i]
		switch {
		case one.alone:
		case one.Take():
			one.Alone()
		default:
			a.observeTrial(&a.verdict.Trials[i], one)
		}
	}
}

// endTrials waits until the trials are decided, and notes what they have charged.
func (a *Admission) endTrials(t *trials) {
	if t == nil {
		return
	}
	t.running.Wait()
	for i := range t.tried {
		one, trial := &t.tried[i], &a.verdict.Trials[i]
		if unansweredTrial(one) {
			a.noteHolds(trial.Charges, trial.Limits)
		} else if one.Decision.Allowed {
			a.note(trial.Charges, trial.Limits, &one.Decision, one.start)
		}
	}
}

// unansweredTrial tells whether a trial got no decision.
func unansweredTrial(one *tried) bool {
	return one.Err != nil || one.Decision.Source == penstock.FromOpen || one.Decision.Source == penstock.FromClosed
}

func (a *Admission) observeTrial(t *policy.Trial, one *tried) {
	d := &one.Decision
	if unansweredTrial(one) {
		return
	}
	l, outcome := t.Limits[d.Strictest()], ShadowAllowed
	if !d.Allowed {
		outcome = ShadowDenied
	}
	a.gate.observe(Event{Rule: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm, Outcome: outcome, Source: d.Source, Latency: time.Since(one.start)})
}
