package core

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/observe"
)

// guard puts the guards around the store. The memory store needs none: it cannot fail or hang.
func (c *Core) guard(ctx context.Context) (penstock.Store, error) {
	if c.scripts == nil { // the store is memory
		return c.backend.Store, nil
	}
	g, err := guard.Standard(c.scripts.around(c.scripts.Store), guard.Options{
		Server:    &instanceReporter{Server: c.scripts.Store, losses: c.scripts.Losses, core: c, line: logthrottle.Line{Every: time.Minute}},
		Timeout:   guard.TimeoutOptions{After: c.Settings.StoreTimeout},
		Breaker:   guard.BreakerOptions{Changed: c.breakerChanged},
		Limits:    c.LimitSettings,
		Instances: int(c.Settings.MinInstances),
		OnStoreError: func(e guard.Event) {
			if e.Reason != "canceled" { // the caller of a canceled call has left; the store may work
				c.storeFailed(e.Err, c.attributesOfCorrupt(&e)...)
			}
		},
		OnLateReturns: c.returnedLate(),
	})
	if err != nil {
		return nil, err
	}
	c.guarded = g
	c.onClose(g.Close) // returns leased units, and removes this instance from the count
	c.fleet.breakers = func() map[string]guard.State { return g.Stats().Breakers }
	c.fleet.store = c.scripts.Store
	c.background.Go(func() { c.readMarkers(ctx) })
	c.background.Go(func() { background.Every(ctx, summaryEvery, func() { c.fleet.write(ctx) }) })
	c.Metrics.SetGuards(observe.Guards{Stats: g.Stats, Instances: g.Instances, ClockSteps: c.scripts.ClockSteps, Losses: c.scripts.Losses, Scripts: c.scripts.Scripts, ScriptsInFlight: c.scripts.ScriptsInFlight})
	return g, nil
}

// makeReads makes the store for what operators read, by Peeks only. It has no breaker and reports
// no failures, because only requests show an outage. If Redis gives no answer, the fallback
// decides. An error about a corrupt key is returned.
func (c *Core) makeReads() penstock.Store {
	if c.guarded == nil {
		return c.backend.Store
	}
	redis := penstock.Wrap(c.scripts.around(c.scripts.Store),
		guard.Split(c.LimitSettings),
		guard.Timeout(guard.TimeoutOptions{After: c.Settings.StoreTimeout}))
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := redis.Decide(ctx, charges)
		if !errors.Is(err, penstock.ErrUnavailable) || keylimits.IsCorrupt(err) {
			return d, err
		}
		return c.guarded.DecideWithoutStore(charges)
	})
}

// DecideWithoutStore decides Peeks as this instance does while the store gives no answer.
func (c *Core) DecideWithoutStore(charges []penstock.Charge) (penstock.Decision, error) {
	if c.guarded == nil { // the store in this process always answers
		return c.backend.Store.Decide(context.Background(), charges)
	}
	return c.guarded.DecideWithoutStore(charges)
}

// returnedLate returns a function that logs how many slots were returned late, at most every 10 s.
func (c *Core) returnedLate() func(holds int) {
	line := &logthrottle.Line{Every: 10 * time.Second}
	var unlogged atomic.Int64
	return func(holds int) {
		unlogged.Add(int64(holds))
		if _, isDue := line.Due(); isDue {
			c.Log.Info("slots of in_flight limits were returned late: the store had not answered when their requests ended", "slots", unlogged.Swap(0))
		}
	}
}

// attributesOfCorrupt returns the attributes of a log line about a call that a corrupt key has made
// fail: the rule, the limit, the masked key and the ref of its first charge. For other calls it
// returns none.
func (c *Core) attributesOfCorrupt(e *guard.Event) []any {
	if e.Plan == nil || e.Reason != penstock.ReasonCorrupt.String() {
		return nil
	}
	return append([]any{"rule", e.Plan.Group(), "limit", e.Plan.Name()}, c.Identities.Attributes(e.Key)...)
}

// storeFailed counts and logs a call for which the store made no decision. The log line gets the
// attributes too.
func (c *Core) storeFailed(err error, attributes ...any) {
	c.Metrics.CountError(err)
	c.noteFailure(err, attributes...)
}

// noteFailure does the same as storeFailed for a call that Metrics has counted already.
func (c *Core) noteFailure(err error, attributes ...any) {
	c.Activity.Store.Fail()
	c.health.recordFailure(err, attributes...)
}

func (c *Core) breakerChanged(node string, from, to guard.State) {
	c.Metrics.BreakerChanged(node, from, to)
	node = labels.Node(node)
	switch {
	case to == guard.StateClosed:
		c.Log.Info("circuit breaker closed: the store is used again", activity.EventAttribute, activity.BreakerClosed, "node", node)
	case from == guard.StateClosed:
		c.Log.Warn("circuit breaker open: the fallback decides, and the store is probed", activity.EventAttribute, activity.BreakerOpen, "node", node)
	}
}
