package guard

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

// A process that was stopped wakes up with its lease, before any timer has run.
func TestStoppedInstanceSpendsNothingOld(t *testing.T) {
	limit, err := penstock.PerDay(1000).Ready()
	if err != nil {
		t.Fatal(err)
	}
	l := NewLease(memstore.New(memstore.Options{}), LeaseOptions{Limits: func(*penstock.Limit) Settings { return Settings{Lease: 100} }})
	plan, err := limit.Plan()
	if err != nil {
		t.Fatal(err)
	}
	plans := []*penstock.Plan{plan}
	k := l.find("k", plans)
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.poolLocked(l, plans, 0)
	reply := penstock.Single(penstock.Status{Granted: 50, ResetAfter: time.Hour})
	if refunds := l.receiveLocked(k, p, &flight{size: 50}, &reply, 0, time.Millisecond); refunds != nil {
		t.Fatalf("%+v", refunds)
	}
	p.timer.Stop()
	for _, row := range []struct {
		now  time.Duration
		take bool
	}{{time.Millisecond, true}, {l.life - 1, true}, {l.life, false}, {time.Hour, false}} {
		if took := k.takeLocked(p, row.now, 1, false); took != row.take {
			t.Errorf("%v after it was asked for, a unit was spent: %v; want %v", row.now, took, row.take)
		}
	}
}
