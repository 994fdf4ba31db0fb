package activity

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/burst"
)

// A demand sends requests to a Recorder, which has one limit.
type demand struct {
	*Recorder
	plan   *penstock.Plan
	minute int
}

func newDemand(t *testing.T, o Options) *demand {
	d := &demand{New(o), rulesOf(t, testPolicy).Plans()[0], 0}
	d.SetLimits([]*penstock.Plan{d.plan})
	return d
}

// send sends a request of a client, with an outcome that counts as demand.
func (d *demand) send(client int, cost int64) {
	allowed, denied := penstock.Single(penstock.Status{Granted: 1}), penstock.Single(penstock.Status{RetryAfter: 1})
	e := admission.Event{Outcome: admission.Allowed, Decision: &allowed, Charges: []penstock.Charge{{Plan: d.plan, Key: fmt.Sprint("client-", client), Cost: cost}}}
	switch client % 4 {
	case 1:
		e.Outcome, e.Decision = admission.Denied, &denied
	case 2:
		e.Outcome = admission.ShadowAllowed
	case 3:
		e.Outcome, e.Decision = admission.ShadowDenied, &denied
	}
	d.Observe(&e)
}

// endMinutes lets minutes pass.
func (d *demand) endMinutes(n int) {
	for range n {
		d.minute++
		d.Tick(time.Duration(d.minute)*time.Minute, func(func(Series, uint64)) {})
	}
}

func (d *demand) needs() (Needs, bool) {
	n, ok := d.Needs()[Series{Rule: d.plan.Group(), Limit: d.plan.Name()}]
	return n, ok
}

// TestNeedsAreThoseOfTheClients: client i of 80 sends i+1 requests at once, and two units a
// second later. A bucket with 1/s has refilled one unit by then.
func TestNeedsAreThoseOfTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemand(t, Options{MeasuresNeeds: true})
		for i := range 80 {
			for range i + 1 {
				d.send(i, 1)
			}
		}
		time.Sleep(time.Second)
		for i := range 80 {
			d.send(i, 2)
		}
		d.endMinutes(1)
		n, _ := d.needs()
		at := 9 // 1/s
		if burst.Rates[at] != (burst.Rate{Count: 1, Period: time.Second}) {
			t.Fatalf("rate %d is %v; want 1/s", at, burst.Rates[at])
		}
		if n.Clients != 80 || n.Length != time.Minute || n.P95[at] != 77 || n.P99[at] != 81 || n.P95[0] != 78 {
			t.Errorf("the needs are %+v; want 77 and 81 at 1/s of 80 clients in a minute, and 78 at 1/h", n)
		}
	})
}

// TestNeedsAreOfManyClients: of 20,000 clients that send 1 to 100 requests, a sample is enough.
func TestNeedsAreOfManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemand(t, Options{MeasuresNeeds: true})
		for i := range 20000 {
			for range 1 + i%100 {
				d.send(i, 1)
			}
			time.Sleep(100 * time.Millisecond)
		}
		d.endMinutes(1)
		n, _ := d.needs()
		if n.Clients < maxPerSample/2 || n.Clients > maxPerSample {
			t.Errorf("%d clients are in the sample; want %d to %d", n.Clients, maxPerSample/2, maxPerSample)
		}
		if n.P95[0] < 92 || n.P95[0] > 98 || n.P99[0] < 97 {
			t.Errorf("the bursts are %d and %d; want about 95 and 99", n.P95[0], n.P99[0])
		}
	})
}

// TestBusyClientsAreSampledLess: the events of a second are bounded, also those of few clients.
func TestBusyClientsAreSampledLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemand(t, Options{MeasuresNeeds: true})
		for range 1000 {
			for i := range 64 {
				d.send(i, 1)
			}
		}
		s := &d.limitOf(d.plan).clients
		if n := len(s.curves); n > 16 {
			t.Errorf("%d of 64 clients are in the sample after 64,000 events in a second; want few", n)
		}
	})
}

// TestNeedsNeedClients: too few clients and an instance without a console show nothing.
func TestNeedsNeedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for clients, o := range map[int]Options{minClients - 1: {MeasuresNeeds: true}, 500: {}} {
			d := newDemand(t, o)
			for i := range clients {
				d.send(i, 1)
			}
			d.endMinutes(1)
			if n, ok := d.needs(); ok {
				t.Errorf("%d clients, %+v: the needs are %+v; want none", clients, o, n)
			}
		}
	})
}

// TestNeedsAreOfTheLastDay: each hour has its own sample, and the one with the largest need counts.
func TestNeedsAreOfTheLastDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDemand(t, Options{MeasuresNeeds: true})
		hour := func(clients, cost int) {
			for i := range clients {
				d.send(i, int64(cost))
			}
			d.endMinutes(60)
		}
		hour(30, 50)
		hour(40, 5)
		if n, _ := d.needs(); n.P99[0] != 50 || n.Clients != 40 || n.Length != 2*time.Hour {
			t.Errorf("after two hours the needs are %+v; want 50 of 40 clients in two hours", n)
		}
		for range sampleHours {
			hour(25, 5)
		}
		if n, _ := d.needs(); n.P99[0] != 5 || n.Length != (sampleHours-1)*time.Hour {
			t.Errorf("a day later the needs are %+v; want 5 in the last %d hours", n, sampleHours-1)
		}
	})
}

// TestManyLimitsShareTheSamples: more limits follow fewer clients each.
func TestManyLimitsShareTheSamples(t *testing.T) {
	r := New(Options{MeasuresNeeds: true})
	var plans []*penstock.Plan
	for i := range maxClients + 1 {
		limit := penstock.Per(10, time.Second)
		limit.Group, limit.Name = fmt.Sprint("g", i), "x"
		plan, err := limit.Compile()
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, plan)
	}
	for count, most := range map[int]int64{1: maxPerSample, 64: maxClients / 64, len(plans): 0} {
		r.SetLimits(plans[:count])
		s := &r.limitOf(plans[0]).clients
		if s.most.Load() != most {
			t.Errorf("with %d limits, a sample has up to %d clients; want %d", count, s.most.Load(), most)
		}
		if most == 0 {
			s.add(0, 1, r.start)
			if len(s.curves) != 0 {
				t.Errorf("a sample without room has %d clients", len(s.curves))
			}
		}
	}
}
