package guard

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
)

// An Event is one decision, as Observe reports it.
type Event struct {
	// Context is the caller's, for observers that read its values, such as the span of a trace.
	Context context.Context

	// Plan is the strictest limit of the decision. Without a decision, Plan is that of the first
	// charge. Plan is nil for an empty batch and for a charge without a Plan. Key is the key of the
	// same charge. It may be a secret.
	Plan *penstock.Plan
	Key  string

	Charges int             // how many the batch has
	Allowed bool            // false if there is no decision
	Source  penstock.Source // if there is no decision: FromStore
	Latency time.Duration   // of the call of Decide

	// Err is why there was no decision, or nil. Reason is its kind, for metrics: the Reason of a
	// penstock.StoreError, "canceled" (by the caller), "invalid" or "other". Without an error it is
	// "".
	Err    error
	Reason string
}

// Observe calls report for every decision, before the caller gets it. Several goroutines may call
// report at the same time, and each call must be fast. Put Observe outermost, so that it sees what
// the caller sees.
func Observe(report func(Event)) penstock.Decorator { return observer{report: report}.around }

// onStoreError calls report for every batch that ends with an error.
func onStoreError(report func(Event)) penstock.Decorator {
	return observer{report: report, isOnlyForErrors: true}.around
}

type observer struct {
	report          func(Event)
	isOnlyForErrors bool
	next            batches.Func
	start           time.Time // time.Since(start) takes half as long as time.Now
}

func (o observer) around(next penstock.Store) penstock.Store {
	if o.report == nil {
		return next
	}
	o.next, o.start = batches.Of(next), time.Now()
	return batches.Func(o.decide)
}

func (o *observer) decide(ctx context.Context, list []*batches.Batch) {
	sent := time.Since(o.start)
	o.next(ctx, list)
	latency := time.Duration(-1) // the clock is read a second time only if it is needed
	for _, b := range list {
		if o.isOnlyForErrors && b.Err == nil {
			continue
		}
		if latency < 0 {
			latency = time.Since(o.start) - sent
		}
		o.observe(ctx, b, latency)
	}
}

func (o *observer) observe(ctx context.Context, b *batches.Batch, latency time.Duration) {
	charges, d, err := b.Charges, &b.Decision, b.Err
	e := Event{Context: ctx, Charges: len(charges), Latency: latency}
	if err != nil {
		e.Err, e.Reason = err, reasonOf(ctx, err)
	} else {
		e.Allowed, e.Source = d.Allowed, d.Source
	}
	if len(charges) > 0 {
		named := &charges[0]
		if len(charges) > 1 && err == nil && len(charges) == d.Len() {
			named = &charges[d.Strictest()]
		}
		e.Plan, e.Key = named.Plan, named.Key
	}
	o.report(e)
}

func reasonOf(ctx context.Context, err error) string {
	if errors.Is(err, penstock.ErrInvalid) {
		return "invalid"
	}
	if isCanceledByCaller(ctx, err) {
		return "canceled"
	}
	if e := penstock.AsStoreError(err); e != nil {
		return e.Reason.String()
	}
	return "other"
}
