package penstockotel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/observe"
	"github.com/penstock/penstock/policy"
)

var search = observe.Rule{Name: "search", Limit: "second", Algorithm: "token-bucket"}

// readMetrics are Metrics with the reader that reads them.
type readMetrics struct {
	*Metrics
	reader *sdkmetric.ManualReader
}

// newReadMetrics makes Metrics and a reader for them.
func newReadMetrics(t *testing.T) readMetrics {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	m, err := NewMetrics(MetricsOptions{Provider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return readMetrics{m, reader}
}

// series returns all numbers that the reader collects, in the form "name{attribute=value,…}
// number". The number of a histogram is how many latencies it has.
func (r readMetrics) series(t *testing.T) (all []string) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := r.reader.Collect(context.Background(), &data); err != nil {
		t.Fatal(err)
	}
	add := func(name string, set attribute.Set, n any) {
		var pairs []string
		for _, a := range set.ToSlice() {
			pairs = append(pairs, strings.TrimPrefix(string(a.Key), "ratelimit.")+"="+a.Value.String())
		}
		all = append(all, fmt.Sprintf("%s{%s} %v", name, strings.Join(pairs, ","), n))
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, p.Count)
					for _, e := range p.Exemplars {
						add("exemplar", *attribute.EmptySet(), fmt.Sprintf("%x", e.TraceID))
					}
				}
			default:
				t.Errorf("the metric %s is a %T; want a sum, a gauge or a histogram", m.Name, d)
			}
		}
	}
	slices.SortFunc(all, cmp.Compare[string])
	return all
}

// count counts a request with this outcome.
func (r readMetrics) count(ctx context.Context, outcome admission.Outcome) {
	r.ObserveRequest(&admission.Event{Context: ctx, Rule: search.Name, Limit: search.Limit, Algorithm: search.Algorithm, Outcome: outcome, Latency: time.Millisecond})
}

// sampledContext returns a context within a sampled trace.
func sampledContext(t testing.TB) context.Context {
	t.Helper()
	id, err := trace.TraceIDFromHex("4bf92f3577b34da6a3ce929d0e0e4736")
	if err != nil {
		t.Fatal(err)
	}
	return trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
}

func TestRequestsAreExportedAsMetrics(t *testing.T) {
	r := newReadMetrics(t)
	r.SetRules([]observe.Rule{search})
	for range 3 {
		r.count(t.Context(), admission.Allowed)
	}
	r.count(sampledContext(t), admission.Denied)
	r.count(t.Context(), admission.ShadowDenied)
	r.ObserveRequest(&admission.Event{Outcome: admission.Unlimited, SkippedRule: "flood"})
	r.AddWaiting(func() int { return 7 })
	r.CountError(penstock.NewStoreError(penstock.ReasonTimeout, nil))
	r.TokenRejected(&policy.TokenError{Reason: "expired"})
	want := []string{
		"exemplar{} 4bf92f3577b34da6a3ce929d0e0e4736",
		"ratelimit.decision.duration{algorithm=token-bucket,limit=second,rule=search} 5",
		"ratelimit.decisions{source=store} 4",
		"ratelimit.requests{algorithm=other,limit=other,outcome=unlimited,rule=other} 1",
		"ratelimit.requests{algorithm=token-bucket,limit=second,outcome=allowed,rule=search} 3",
		"ratelimit.requests{algorithm=token-bucket,limit=second,outcome=denied,rule=search} 1",
		"ratelimit.shadow.requests{algorithm=token-bucket,limit=second,outcome=shadow_denied,rule=search} 1",
		"ratelimit.store.errors{error.type=timeout} 1",
		"ratelimit.store.unknown_outcomes{} 1",
		"ratelimit.tokens.rejected{error.type=expired} 1",
		"ratelimit.uncounted_requests{} 1",
		"ratelimit.waiting_requests{} 7",
	}
	if got := r.series(t); !slices.Equal(got, want) {
		t.Errorf("the series are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestGuardsAreExportedAsMetrics(t *testing.T) {
	r := newReadMetrics(t)
	r.BreakerChanged("", guard.StateClosed, guard.StateOpen)
	r.SetGuards(observe.Guards{
		Stats: func() guard.Stats {
			return guard.Stats{
				DenyCacheEntries: 12, Lease: guard.LeaseStats{Drawn: 100, Spent: 60}, HoldsUnreturned: 8, HoldsReturnedLate: 9,
				Breakers: map[string]guard.State{"": guard.StateClosed, "10.0.0.1:6379": guard.StateOpen},
			}
		},
		Instances:  func() int { return 4 },
		ClockSteps: func() (back, forward int64) { return 2, 1 },
		Losses:     func() int64 { return 8 },
		Scripts:    func() (missing, loaded, evals int64) { return 3, 4, 5 },

		ScriptsInFlight: func() (inFlight, queued int) { return 6, 7 },
	})
	want := []string{
		"ratelimit.breaker.changes{breaker.state=open} 1",
		"ratelimit.breaker.state{node=10.0.0.1:6379} 2",
		"ratelimit.breaker.state{node=default} 0",
		"ratelimit.deny_cache.entries{} 12",
		"ratelimit.holds.returned_late{} 9",
		"ratelimit.holds.unreturned{} 8",
		"ratelimit.instances{} 4",
		"ratelimit.lease.units{lease.fate=drawn} 100",
		"ratelimit.lease.units{lease.fate=spent} 60",
		"ratelimit.store.clock_steps{direction=back} 2",
		"ratelimit.store.clock_steps{direction=forward} 1",
		"ratelimit.store.losses{} 8",
		"ratelimit.store.scripts_in_flight{} 6",
		"ratelimit.store.scripts_queued{} 7",
		"ratelimit.store.scripts{script.event=eval} 5",
		"ratelimit.store.scripts{script.event=load} 4",
		"ratelimit.store.scripts{script.event=noscript} 3",
		"ratelimit.store.unknown_outcomes{} 0",
		"ratelimit.uncounted_requests{} 0",
		"ratelimit.waiting_requests{} 0",
	}
	if got := r.series(t); !slices.Equal(got, want) {
		t.Errorf("the series are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.series(t); len(got) > 0 {
		t.Errorf("after Close, the reader collects %v; want nothing", got)
	}
}

func TestRequestsCreateNoSeries(t *testing.T) {
	r := newReadMetrics(t)
	r.SetRules([]observe.Rule{search})
	r.ObserveRequest(&admission.Event{Rule: "unknown", Outcome: admission.Denied, Latency: time.Millisecond})
	before := len(r.series(t))
	unknownNames := effort.Of(10_000, 1_000_000)
	for i := range unknownNames {
		r.ObserveRequest(&admission.Event{Rule: fmt.Sprint("r", i), Key: fmt.Sprint("k", i), Outcome: admission.Denied, Latency: time.Millisecond})
	}
	if after := len(r.series(t)); after != before {
		t.Errorf("there are %d series after the requests; want %d, as before", after, before)
	}
	t.Logf("counted: %d unknown names that made no series", unknownNames)
}

// spansOf returns the spans that f makes, as text.
func spansOf(t *testing.T, f func(*Spans)) (all []string) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	f(NewSpans(SpansOptions{Provider: provider}))
	for _, s := range exporter.GetSpans() {
		text := fmt.Sprintf("%s %s %s %s", s.Name, s.SpanKind, s.EndTime.Sub(s.StartTime), s.Status.Code)
		if s.Parent.TraceID() != s.SpanContext.TraceID() || !s.Parent.IsRemote() {
			t.Errorf("the span %s has the parent %v; want the remote span of the request", text, s.Parent)
		}
		for _, a := range s.Attributes {
			text += fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(a.Key), "ratelimit."), a.Value.String())
		}
		for _, e := range s.Events {
			text += " event:" + e.Name
			for _, a := range e.Attributes {
				text += fmt.Sprintf(":%s=%s", a.Key, a.Value.String())
			}
		}
		all = append(all, text)
	}
	return all
}

const secret = "user:secret-4711"

func TestRequestsHaveSpans(t *testing.T) {
	plan := penstock.PerSecond(5).WithName("second").MustCompile()
	charges := []penstock.Charge{{Key: secret, Plan: plan, Cost: 3}}
	decision := func(s penstock.Status, source penstock.Source) *penstock.Decision {
		d := penstock.Single(s)
		d.Source = source
		return &d
	}
	event := func(o admission.Outcome, d *penstock.Decision, err error) *admission.Event {
		e := &admission.Event{
			Context: sampledContext(t), Rule: search.Name, Limit: search.Limit, Algorithm: search.Algorithm, Key: secret,
			Outcome: o, Charges: charges, Decision: d, Latency: 5 * time.Millisecond, Err: err,
		}
		if d != nil {
			e.Source = d.Source
		}
		return e
	}
	lost := penstock.NewStoreError(penstock.ReasonTimeout, errors.New(secret))
	rows := []struct {
		event *admission.Event
		want  string
	}{
		{event(admission.Allowed, decision(penstock.Status{Granted: 3}, penstock.FromLease), nil),
			"5ms Unset outcome=allowed rule=search limit=second algorithm=token-bucket source=lease cost=3"},
		{event(admission.Allowed, decision(penstock.Status{Granted: 3, Wait: 20 * time.Millisecond}, penstock.FromStore), nil),
			"25ms Unset outcome=allowed rule=search limit=second algorithm=token-bucket source=store cost=3 wait_ms=20"},
		{event(admission.Denied, decision(penstock.Status{RetryAfter: 1500 * time.Millisecond}, penstock.FromDenyCache), nil),
			"5ms Unset outcome=denied rule=search limit=second algorithm=token-bucket source=deny_cache cost=3 retry_after_ms=1500"},
		{event(admission.Denied, decision(penstock.Status{RetryAfter: penstock.Never}, penstock.FromStore), nil),
			"5ms Unset outcome=denied rule=search limit=second algorithm=token-bucket source=store cost=3"},
		{event(admission.FailedOpen, decision(penstock.Status{Granted: 3}, penstock.FromOpen), nil),
			"5ms Unset outcome=failed_open rule=search limit=second algorithm=token-bucket source=open cost=3 event:ratelimit.store_failed"},
		{event(admission.FailedClosed, nil, lost),
			"5ms Unset outcome=failed_closed rule=search limit=second algorithm=token-bucket source=store event:ratelimit.store_failed:error.type=timeout"},
		{event(admission.Abandoned, nil, context.Canceled), "5ms Unset outcome=abandoned rule=search limit=second algorithm=token-bucket source=store"},
		{&admission.Event{Context: sampledContext(t), Outcome: admission.Unlimited}, "0s Unset outcome=unlimited"},
	}
	for _, row := range rows {
		got := spansOf(t, func(s *Spans) { s.ObserveRequest(row.event) })
		if want := "ratelimit.decide internal " + row.want; len(got) != 1 || got[0] != want {
			t.Errorf("the spans are %q\nwant only %q", got, want)
		}
		if strings.Contains(fmt.Sprint(got), "4711") {
			t.Errorf("the span is %q; want no key in it", got)
		}
	}
}

func TestDecisionsHaveSpans(t *testing.T) {
	got := spansOf(t, func(s *Spans) {
		store := penstock.Wrap(memstore.New(memstore.Options{}), guard.Observe(func(e guard.Event) {
			e.Latency = time.Millisecond
			s.ObserveDecision(e)
		}))
		limiter, err := penstock.NewLimiter(store, "mail", penstock.PerHour(1).WithName("hour"))
		if err != nil {
			t.Fatal(err)
		}
		limiter.Allow(sampledContext(t), secret)
		limiter.Allow(sampledContext(t), secret)
		limiter.Allow(context.Background(), secret)
		s.ObserveDecision(guard.Event{Context: sampledContext(t), Err: penstock.ErrUnavailable, Reason: "unknown"})
	})
	want := []string{
		"ratelimit.decide internal 1ms Unset allowed=true charges=1 rule=mail limit=hour algorithm=token-bucket source=store",
		"ratelimit.decide internal 1ms Unset allowed=false charges=1 rule=mail limit=hour algorithm=token-bucket source=store",
		"ratelimit.decide internal 0s Unset allowed=false charges=0 event:ratelimit.store_failed:error.type=unknown",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the spans are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRequestsOutsideSampledTracesHaveNoSpan(t *testing.T) {
	unsampled := trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(sampledContext(t)).WithTraceFlags(0))
	got := spansOf(t, func(s *Spans) {
		for _, ctx := range []context.Context{nil, context.Background(), unsampled} {
			s.ObserveRequest(&admission.Event{Context: ctx})
			s.ObserveDecision(guard.Event{Context: ctx})
		}
	})
	if len(got) > 0 {
		t.Errorf("the spans are %q; want none", got)
	}
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, row := range []struct {
		ctx                context.Context
		traceID, sampledID string
	}{
		{ctx: nil, traceID: "", sampledID: ""},
		{ctx: context.Background(), traceID: "", sampledID: ""},
		{ctx: unsampled, traceID: id, sampledID: ""},
		{ctx: sampledContext(t), traceID: id, sampledID: id},
	} {
		if traceID, sampledID := TraceID(row.ctx), SampledTraceID(row.ctx); traceID != row.traceID || sampledID != row.sampledID {
			t.Errorf("TraceID returned %q, and SampledTraceID returned %q; want %q and %q", traceID, sampledID, row.traceID, row.sampledID)
		}
	}
}

// A decision makes as many allocations with metrics and spans as without, unless its trace is
// sampled.
func TestObservingAllocatesNothing(t *testing.T) {
	effort.SkipUnderRace(t)
	r := newReadMetrics(t)
	spans := NewSpans(SpansOptions{Provider: sdktrace.NewTracerProvider()})
	// callLimiter returns a function that calls a Limiter of the store.
	callLimiter := func(store penstock.Store) func() {
		l, err := penstock.NewLimiter(store, "mail", penstock.PerSecond(1_000_000).WithName("second"))
		if err != nil {
			t.Fatal(err)
		}
		r.SetRules(observe.RulesOfPlans(l.Plans()...))
		return func() { l.Allow(t.Context(), "user:42") }
	}
	store := memstore.New(memstore.Options{})
	without := testing.AllocsPerRun(1000, callLimiter(store))
	with := testing.AllocsPerRun(1000, callLimiter(guard.Observe(func(e guard.Event) {
		r.ObserveDecision(e)
		spans.ObserveDecision(e)
	})(store)))
	if with > without {
		t.Errorf("a decision makes %v allocations with metrics and spans; want at most %v, as without", with, without)
	}
	if got := strings.Join(r.series(t), "\n"); !strings.Contains(got, "ratelimit.decision.duration{algorithm=token-bucket,limit=second,rule=mail} 1001") {
		t.Errorf("the series are\n%s\nwant 1001 latencies of the rule \"mail\"", got)
	}
}
