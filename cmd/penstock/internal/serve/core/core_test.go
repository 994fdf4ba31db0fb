package core

import (
	"cmp"
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func TestEventsAreCounted(t *testing.T) {
	full := penstock.NewStoreError(penstock.ReasonOutOfMemory, errors.New("memory is full"))
	log := new(logbuffer.Buffer)
	core := newCore(complete(Options{Metrics: metrics.New("", nil, 80), Log: log.Logger()}))
	compiled := func(rule string) *policyfile.Policy {
		p, err := policyfile.Parse("rules.yaml", []byte("rules: [{name: "+rule+", per: global, limits: [{rate: 1/s}]}]"), nil, policyfile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	core.rules = &rules{metrics: core.Metrics, log: core.Log, inForce: compiled("a").Rules}
	core.Metrics.SetRules([]metrics.Rule{{Name: "a", Algorithm: "x"}})
	readMetrics := func() string {
		w := httptest.NewRecorder()
		core.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	for _, c := range []struct {
		event admission.Event
		want  string
	}{
		{admission.Event{Outcome: admission.Allowed, Latency: 1}, `outcome="allowed",rule="a"} 1`},
		{admission.Event{Outcome: admission.Denied}, `outcome="denied",rule="a"} 1`},
		{admission.Event{Outcome: admission.ShadowDenied}, `rate_limiter_shadow_rejected_total{algorithm="x",limit="",rule="a"} 1`},
		{admission.Event{Outcome: admission.ShadowAllowed}, `rate_limiter_shadow_allowed_total{algorithm="x",limit="",rule="a"} 1`},
		{admission.Event{Outcome: admission.Refused}, `rate_limiter_rejected_total{algorithm="x",limit="",rule="a"} 2`},
		{admission.Event{Outcome: admission.Exempt}, `rate_limiter_allowed_total{algorithm="x",limit="",rule="a"} 2`},
		{admission.Event{Outcome: admission.Allowed, Source: penstock.FromLease}, `rate_limiter_decisions_total{source="lease"} 1`},
		{admission.Event{Outcome: admission.FailedOpen, Source: penstock.FromOpen, Err: full}, `outcome="failed_open",rule="a"} 1`},
		{admission.Event{Outcome: admission.FailedClosed, Source: penstock.FromClosed, Err: full}, `rate_limiter_decisions_total{source="closed"} 1`},
		{admission.Event{Outcome: admission.FailedClosed, Err: full}, `outcome="failed_closed",rule="a"} 2`},
		{admission.Event{Outcome: admission.FailedClosed, Err: penstock.ErrInvalid}, `rate_limiter_errors_total{reason="invalid"} 1`},
		{admission.Event{Outcome: admission.Abandoned, Err: context.Canceled}, `rate_limiter_decisions_total{source="store"} 4`},
	} {
		c.event.Rule, c.event.Algorithm = "a", "x"
		core.Observe(&c.event)
		if page := readMetrics(); !strings.Contains(page, c.want) {
			t.Errorf("after the event %+v, the metrics lack %s", c.event, c.want)
		}
	}
	if state, _ := core.Checks()[0].Run(t.Context()); state != admin.Degraded {
		t.Errorf("the store fails, but its check returns %v; want %v", state, admin.Degraded)
	}
	if want := `rate_limiter_errors_total{reason="out_of_memory"} 3`; !strings.Contains(readMetrics(), want) {
		t.Errorf("after three store errors, the metrics lack %s", want)
	}
	core.rules.reloadFailed(errors.New("line 3: no"))
	core.rules.reloadSucceeded(compiled("b"))
	after := readMetrics()
	if !strings.Contains(after, `outcome="allowed",rule="b"} 0`) || strings.Contains(after, `rule="a"`) {
		t.Errorf("after a reload, the metrics have not replaced rule a by b:\n%s", after)
	}
	if !strings.Contains(after, `reloads_total{outcome="failure"} 1`) {
		t.Errorf("the metrics do not count one failed reload:\n%s", after)
	}
}

// complete sets the options that a Core needs and o lacks.
func complete(o Options) Options {
	if o.SettingsOutsidePolicy == nil {
		o.SettingsOutsidePolicy = func(*penstock.Plan) guard.Settings { return guard.Settings{} }
	}
	if o.Check == nil {
		o.Check = func(*policy.Rules) error { return nil }
	}
	o.Denials = cmp.Or(o.Denials, denials.New(denials.Options{}))
	o.Identities = cmp.Or(o.Identities, &redact.Identities{Show: redact.ShowOff})
	return o
}
