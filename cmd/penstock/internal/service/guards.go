package service

import (
	"log/slog"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/guard"
)

// guarded is the store as gates have it. Memory needs no guards: it is here, and cannot hang.
func (s *service) guarded(limits func(*penstock.Limit) guard.Settings) (penstock.Store, error) {
	if s.scripts == nil {
		return s.store.Store, nil
	}
	g, err := guard.Standard(s.scripts, guard.Options{
		Server:    s.scripts.Store,
		Timeout:   guard.TimeoutOptions{After: s.Settings.StoreTimeout},
		Breaker:   guard.BreakerOptions{Changed: s.breakerChanged},
		Limits:    limits,
		Instances: int(s.Settings.Instances),
		Unanswered: func(e guard.Event) {
			if e.Reason != "canceled" { // otherwise nobody waits for the answer
				s.unanswered(e.Err)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.later(g.Close) // gives back what is leased, and leaves the fleet
	s.metrics.Guards(metrics.Guards{Stats: g.Stats, Instances: g.Instances, ClockSteps: s.scripts.ClockSteps, Scripts: s.scripts.counts})
	return g, nil
}

// unanswered counts and logs a call for which the store made no decision.
func (s *service) unanswered(err error) {
	e := penstock.AsStoreError(err)
	s.metrics.Error(reasonOf(err), e != nil && e.MayBeCharged)
	s.health.failed(err)
}

func (s *service) breakerChanged(node string, from, to guard.State) {
	s.metrics.BreakerChanged(to)
	node = metrics.Node(node)
	switch {
	case to == guard.StateClosed:
		s.Log.Info("the breaker is closed: the store is asked again", "node", node)
	case from == guard.StateClosed:
		s.Log.Warn("the breaker is open: the store is asked seldom until it answers", "node", node)
	}
}

// An alarm says that requests pass which nobody counts: at once, then with how many they were
// since, every interval; and when none has passed for as long, how many they were in all.
type alarm struct {
	log *slog.Logger

	mu         sync.Mutex
	since, all int64     // requests since the last line, and since the first
	latest     time.Time // request
	next       time.Time // line
}

func (a *alarm) passed(rule string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.since++
	a.all++
	a.latest = now
	if now.Before(a.next) {
		return
	}
	a.log.Error("requests pass without limits, since the store does not answer", "critical", true, "requests", a.since, "rule", rule)
	a.since, a.next = 0, now.Add(interval)
}

// quiet tells of the end, once it is certain.
func (a *alarm) quiet() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == 0 || time.Since(a.latest) < interval {
		return
	}
	a.log.Warn("requests passed without limits, and do no more", "requests", a.all, "until", a.latest.UTC().Format(time.RFC3339))
	a.since, a.all, a.next = 0, 0, time.Time{}
}
