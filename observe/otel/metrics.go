// Package penstockotel exports to OpenTelemetry what package admission, the guards and the stores
// report: as metrics, and as spans within the traces of requests. It uses only the API of
// OpenTelemetry, so the program chooses the SDK and the exporters.
//
// No key is ever an attribute.
package penstockotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/observe"
)

// scope is the name of the meter and of the tracer.
const scope = "github.com/penstock/penstock/observe/otel"

// The attributes of metrics and spans. No semantic convention for rate limits exists.
const (
	ruleKey      = attribute.Key("ratelimit.rule")
	limitKey     = attribute.Key("ratelimit.limit")
	algorithmKey = attribute.Key("ratelimit.algorithm")
	outcomeKey   = attribute.Key("ratelimit.outcome")
	sourceKey    = attribute.Key("ratelimit.source")
	errorKey     = attribute.Key("error.type") // from the semantic conventions
)

// MetricsOptions configure NewMetrics. The zero value is useful.
type MetricsOptions struct {
	// Provider makes the meter. Default: the global provider.
	Provider metric.MeterProvider

	// NearPercent is the percentage of a limit that a request near the limit has used at least.
	// From 50 to 100; default: 80.
	NearPercent int
}

// Metrics export observe.Counts when their provider reads them. The methods of the Counts receive
// the reports. Many goroutines may use Metrics at the same time. Requests never create a series.
// The provider records the latency of each request, but the Counts keep all other numbers.
type Metrics struct {
	*observe.Counts
	instruments  instruments
	registration metric.Registration
}

type instruments struct {
	requests, nearLimit, shadowRequests, decisions, errors, unknownOutcomes, uncounted, tokensRejected metric.Int64ObservableCounter
	waiting                                                                                            metric.Int64ObservableUpDownCounter

	breakerState                                                                    metric.Int64ObservableGauge
	breakerChanges, leaseUnits, holdsReturnedLate, clockSteps, losses, scriptEvents metric.Int64ObservableCounter
	scriptsInFlight, scriptsQueued, denyCacheEntries, holdsUnreturned, instances    metric.Int64ObservableUpDownCounter
}

// NewMetrics makes Metrics and registers them with the provider until Close. It returns the error
// of the provider.
func NewMetrics(o MetricsOptions) (*Metrics, error) {
	if o.Provider == nil {
		o.Provider = otel.GetMeterProvider()
	}
	meter := o.Provider.Meter(scope)
	// The buckets, in seconds, reach from a decision in memory to ten times 250 ms, the default
	// timeout of a decision.
	latency, err := meter.Float64Histogram("ratelimit.decision.duration", metric.WithUnit("s"),
		metric.WithDescription("Time until a request was decided, or until its decision failed."),
		metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .3, .5, 1, 2.5))
	if err != nil {
		return nil, err
	}
	m := &Metrics{Counts: observe.New(observe.Options{NearPercent: o.NearPercent, Histogram: func(rule observe.Rule) observe.Histogram {
		return histogram{latency, []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributesOf(rule)...))}}
	}})}
	all, err := m.instruments.makeAll(meter)
	if err != nil {
		return nil, err
	}
	m.registration, err = meter.RegisterCallback(m.reportAll, all...)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Close ends the export. Counting continues.
func (m *Metrics) Close() error { return m.registration.Unregister() }

type histogram struct {
	metric.Float64Histogram
	options []metric.RecordOption
}

// Observe implements observe.Histogram.
func (h histogram) Observe(ctx context.Context, latency time.Duration) {
	h.Record(ctx, latency.Seconds(), h.options...)
}

func attributesOf(rule observe.Rule) []attribute.KeyValue {
	return []attribute.KeyValue{ruleKey.String(rule.Name), limitKey.String(rule.Limit), algorithmKey.String(rule.Algorithm)}
}

func (i *instruments) makeAll(meter metric.Meter) (all []metric.Observable, err error) {
	add := func(instrument metric.Observable, makeErr error) {
		all = append(all, instrument)
		if err == nil {
			err = makeErr
		}
	}
	makeCounter := func(to *metric.Int64ObservableCounter, name, unit, description string) {
		made, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		*to = made
		add(made, err)
	}
	makeUpDown := func(to *metric.Int64ObservableUpDownCounter, name, unit, description string) {
		made, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		*to = made
		add(made, err)
	}
	makeCounter(&i.requests, "ratelimit.requests", "{request}", "Requests by rule, limit and outcome. If several limits applied, the one that denied or was closest to denying is named.")
	makeCounter(&i.nearLimit, "ratelimit.near_limit", "{request}", "Requests that passed with little of their limit left: at least 80 % of it is used, or NearPercent.")
	makeCounter(&i.shadowRequests, "ratelimit.shadow.requests", "{request}", "Requests that shadows would have allowed or denied.")
	makeCounter(&i.decisions, "ratelimit.decisions", "{decision}", "Requests that limits applied to, by the source of the decision.")
	makeCounter(&i.errors, "ratelimit.store.errors", "{call}", "Store calls that failed, by reason.")
	makeCounter(&i.unknownOutcomes, "ratelimit.store.unknown_outcomes", "{call}", "Store calls that failed although their charges may have been made.")
	makeCounter(&i.uncounted, "ratelimit.uncounted_requests", "{request}", "Requests that passed although a limit that fails open did not count them.")
	makeCounter(&i.tokensRejected, "ratelimit.tokens.rejected", "{request}", "Requests whose token was rejected, by reason; they are limited like requests without a token.")
	makeUpDown(&i.waiting, "ratelimit.waiting_requests", "{request}", "Requests that wait until their limits allow them.")
	makeCounter(&i.breakerChanges, "ratelimit.breaker.changes", "{change}", "Changes of circuit breakers, by their new state.")
	makeCounter(&i.leaseUnits, "ratelimit.lease.units", "{unit}", "Leased units: drawn is the total from the store; spent, returned, expired and lost are what became of them.")
	makeUpDown(&i.holdsUnreturned, "ratelimit.holds.unreturned", "{hold}", "Slots of in_flight limits that are returned when the store answers again, or once more in case a late charge takes them.")
	makeCounter(&i.holdsReturnedLate, "ratelimit.holds.returned_late", "{hold}", "Slots of in_flight limits that were returned late, because the store did not answer when they ended.")
	makeCounter(&i.clockSteps, "ratelimit.store.clock_steps", "{step}", "Jumps of the store's clock by more than 100 ms.")
	makeCounter(&i.losses, "ratelimit.store.losses", "{loss}", "How often the store has lost its keys, and with them the counters.")
	makeCounter(&i.scriptEvents, "ratelimit.store.scripts", "{script}", "Lua scripts that the store did not have (noscript), that were loaded (load), or that were sent with a decision (eval).")
	makeUpDown(&i.scriptsInFlight, "ratelimit.store.scripts_in_flight", "{script}", "Lua scripts of decisions that the store has not answered yet.")
	makeUpDown(&i.scriptsQueued, "ratelimit.store.scripts_queued", "{script}", "Lua scripts of decisions that wait until scripts in flight have ended.")
	makeUpDown(&i.denyCacheEntries, "ratelimit.deny_cache.entries", "{entry}", "Entries in the denial cache.")
	makeUpDown(&i.instances, "ratelimit.instances", "{instance}", "Running instances that share this store.")
	made, makeErr := meter.Int64ObservableGauge("ratelimit.breaker.state", metric.WithUnit("1"), metric.WithDescription("State of the circuit breaker of a store node: 0 closed, 1 half open, 2 open."))
	i.breakerState = made
	add(made, makeErr)
	return all, err
}

// reportAll reports all numbers. It omits a number that has attributes and is 0.
func (m *Metrics) reportAll(_ context.Context, to metric.Observer) error {
	report := func(counter metric.Int64Observable, n uint64, attributes ...attribute.KeyValue) {
		if n > 0 || len(attributes) == 0 {
			to.ObserveInt64(counter, int64(n), metric.WithAttributes(attributes...))
		}
	}
	m.Requests(func(rule observe.Rule, byOutcome []uint64) {
		for o, n := range byOutcome {
			if n == 0 {
				continue
			}
			outcome, counter := admission.Outcome(o), m.instruments.requests
			if outcome == admission.ShadowAllowed || outcome == admission.ShadowDenied {
				counter = m.instruments.shadowRequests
			}
			report(counter, n, append(attributesOf(rule), outcomeKey.String(outcome.String()))...)
		}
	})
	m.NearLimit(func(rule observe.Rule, n uint64) { report(m.instruments.nearLimit, n, attributesOf(rule)...) })
	m.Decisions(func(source penstock.Source, n uint64) {
		report(m.instruments.decisions, n, sourceKey.String(source.String()))
	})
	m.Errors(func(reason string, n uint64) { report(m.instruments.errors, n, errorKey.String(reason)) })
	report(m.instruments.unknownOutcomes, m.UnknownOutcomes())
	report(m.instruments.uncounted, m.Uncounted())
	m.TokensRejected(func(reason string, n uint64) { report(m.instruments.tokensRejected, n, errorKey.String(reason)) })
	report(m.instruments.waiting, uint64(m.Waiting()))
	if g := m.Guards(); g != nil {
		m.BreakerChanges(func(state guard.State, n uint64) {
			report(m.instruments.breakerChanges, n, attribute.String("ratelimit.breaker.state", state.String()))
		})
		m.reportGuards(to, g, report)
	}
	return nil
}

func (m *Metrics) reportGuards(to metric.Observer, g *observe.Guards, report func(metric.Int64Observable, uint64, ...attribute.KeyValue)) {
	if g.Stats != nil {
		stats := g.Stats()
		for node, severity := range observe.Breakers(stats.Breakers) {
			to.ObserveInt64(m.instruments.breakerState, int64(severity), metric.WithAttributes(attribute.String("ratelimit.node", node)))
		}
		report(m.instruments.denyCacheEntries, uint64(stats.DenyCacheEntries))
		for fate, n := range map[string]int64{
			"drawn": stats.Lease.Drawn, "spent": stats.Lease.Spent, "returned": stats.Lease.Returned, "expired": stats.Lease.Expired, "lost": stats.Lease.Lost,
		} {
			report(m.instruments.leaseUnits, uint64(n), attribute.String("ratelimit.lease.fate", fate))
		}
		report(m.instruments.holdsUnreturned, uint64(stats.HoldsUnreturned))
		report(m.instruments.holdsReturnedLate, uint64(stats.HoldsReturnedLate))
	}
	if g.Instances != nil {
		report(m.instruments.instances, uint64(g.Instances()))
	}
	if g.ClockSteps != nil {
		back, forward := g.ClockSteps()
		report(m.instruments.clockSteps, uint64(back), attribute.String("ratelimit.direction", "back"))
		report(m.instruments.clockSteps, uint64(forward), attribute.String("ratelimit.direction", "forward"))
	}
	if g.Losses != nil {
		report(m.instruments.losses, uint64(g.Losses()))
	}
	if g.Scripts != nil {
		missing, loaded, evals := g.Scripts()
		report(m.instruments.scriptEvents, uint64(missing), attribute.String("ratelimit.script.event", "noscript"))
		report(m.instruments.scriptEvents, uint64(loaded), attribute.String("ratelimit.script.event", "load"))
		report(m.instruments.scriptEvents, uint64(evals), attribute.String("ratelimit.script.event", "eval"))
	}
	if g.ScriptsInFlight != nil {
		inFlight, queued := g.ScriptsInFlight()
		report(m.instruments.scriptsInFlight, uint64(inFlight))
		report(m.instruments.scriptsQueued, uint64(queued))
	}
}
