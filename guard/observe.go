package guard

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock"
)

// An Event is one decision, as Observe reports it.
type Event struct {
	// Limit is the one that matters most: the strictest of the decision, or if there was none, that of
	// the first charge; nil for an empty batch. It must not be changed, and not be kept.
	Limit *penstock.Limit

	Charges int // in the batch
	Allowed bool
	Source  penstock.Source
	Latency time.Duration

	// Err is why there was no decision, or nil. Reason names its kind, for metrics: that of a
	// penstock.StoreError, or "canceled" (the caller went away), "invalid" or "other". It is ""
	// without an error.
	Err    error
	Reason string
}

// Observe reports every decision to f, which is called before the caller has its answer, by many
// goroutines at once: it must be quick. Put it outermost, so that it sees what the caller sees.
func Observe(f func(Event)) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if f == nil {
			return next
		}
		return &observer{next, f, time.Now()}
	}
}

// unanswered reports to f every question that ends with an error here.
func unanswered(f func(Event)) penstock.Decorator {
	if f == nil {
		return Observe(nil)
	}
	return Observe(func(e Event) {
		if e.Err != nil {
			f(e)
		}
	})
}

type observer struct {
	next penstock.Store
	f    func(Event)
	zero time.Time // since when the clock is read: half the price of what time it is
}

func (o *observer) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	start := time.Since(o.zero)
	d, err := o.next.Decide(ctx, charges)
	e := Event{Charges: len(charges), Latency: time.Since(o.zero) - start}
	if err != nil {
		e.Err, e.Reason = err, reasonOf(ctx, err)
	} else {
		e.Allowed, e.Source = d.Allowed, d.Source
	}
	if len(charges) == 1 {
		e.Limit = &charges[0].Limit
	} else if err == nil && len(charges) == d.Len() {
		e.Limit = &charges[d.Strictest()].Limit
	} else if len(charges) > 0 {
		e.Limit = &charges[0].Limit
	}
	o.f(e)
	return d, err
}

func reasonOf(ctx context.Context, err error) string {
	if errors.Is(err, penstock.ErrInvalid) {
		return "invalid"
	}
	if wentAway(ctx, err) {
		return "canceled"
	}
	if e := penstock.AsStoreError(err); e != nil {
		return e.Reason.String()
	}
	return "other"
}
