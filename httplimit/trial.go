package httplimit

import (
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// tried is what became of a trial. It changes nothing for its request, and its failure is told to nobody.
type tried struct {
	decision penstock.Decision
	err      error
	start    time.Time
}

// trials are being decided, each in a batch of its own.
type trials struct {
	running sync.WaitGroup
	tried   []tried // in the order of the verdict's
}

// beginTrials has the trials of the verdict decided while the limits that are enforced are: for every request, also one that these deny.
func (a *Admission) beginTrials() *trials {
	list := a.verdict.Trials
	if len(list) == 0 {
		return nil
	}
	t := &trials{tried: make([]tried, len(list))}
	ctx := a.Request.Context()
	for i := range list {
		t.running.Go(func() {
			one := &t.tried[i]
			one.start = time.Now()
			one.decision, one.err = a.gate.store.Decide(ctx, list[i].Charges)
			a.observeTrial(&list[i], one)
		})
	}
	return t
}

func (a *Admission) observeTrial(t *policy.Trial, one *tried) {
	d := &one.decision
	if unansweredTrial(one) {
		return
	}
	l, outcome := t.Limits[d.Strictest()], ShadowAllowed
	if !d.Allowed {
		outcome = ShadowDenied
	}
	a.gate.observe(Event{Rule: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm, Outcome: outcome, Source: d.Source, Latency: time.Since(one.start)})
}

// unansweredTrial tells whether nobody has decided a trial.
func unansweredTrial(one *tried) bool {
	return one.err != nil || one.decision.Source == penstock.FromOpen || one.decision.Source == penstock.FromClosed
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
		} else if one.decision.Allowed {
			a.note(trial.Charges, trial.Limits, &one.decision, one.start)
		}
	}
}
