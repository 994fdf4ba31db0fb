package denials

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/memstore"
)

// denied returns the event of a denial by a limit of a rule.
func denied(t testing.TB, rule, key string) *admission.Event {
	t.Helper()
	limit := penstock.PerHour(1).WithName("hour")
	limit.Group = rule
	charges := []penstock.Charge{{Key: key, Plan: limit.MustCompile(), Cost: 1}}
	store := memstore.New(memstore.Options{})
	var d penstock.Decision
	for range 2 {
		var err error
		if d, err = store.Decide(context.Background(), charges); err != nil {
			t.Fatal(err)
		}
	}
	return &admission.Event{Rule: rule, Limit: "hour", Key: key, Outcome: admission.Denied, Decision: &d, Charges: charges}
}

// take returns the denials that wait for a reader.
func take(r *Reader) (all []Denial) {
	for len(r.C) > 0 {
		all = append(all, <-r.C)
	}
	return all
}

func TestReadersGetABoundedSampleInWhichNoLimitHidesOthers(t *testing.T) {
	r := New(Options{TraceID: func(*admission.Event) string { return "t" }})
	reader := r.Join(Filter{}, Rate{PerSecond: 5, PerLimit: 2})
	flood, other := denied(t, "flood", "key:a"), denied(t, "other", "key:b")
	for second := range 3 {
		for range 1000 {
			r.Observe(flood)
		}
		r.Observe(other)
		all := take(reader)
		if len(all) != 3 || all[0].Rule != "flood" || all[1].Rule != "flood" || all[2].Rule != "other" {
			t.Fatalf("second %d: the denials are %+v; want two of rule flood, then one of rule other", second, all)
		}
		if all[2].Skipped != 998 || all[0].Skipped != 0 || all[0].TraceID != "t" || all[0].Key != "key:a" || all[0].RetryAfter < 50*time.Minute {
			t.Errorf("second %d: the denials are %+v; want 998 skipped before the last, with the trace and the key of the first", second, all)
		}
		r.Tick()
	}
	for i := range 20 {
		r.Observe(denied(t, fmt.Sprint("rule", i), "key:a"))
	}
	if n := len(take(reader)); n != 5 {
		t.Errorf("of the denials by 20 limits, the reader gets %d; want 5", n)
	}
	r.Leave(reader)
	r.Tick()
	r.Observe(flood)
	if len(reader.C) != 0 {
		t.Error("a reader gets denials after it left")
	}
}

func TestReadersGetOnlyWhatTheyChoose(t *testing.T) {
	r := New(Options{})
	rate := Rate{PerSecond: 100}
	all, rule, key := r.Join(Filter{}, rate), r.Join(Filter{Rule: "a"}, rate), r.Join(Filter{Key: "key:2"}, rate)
	for _, e := range []*admission.Event{
		denied(t, "a", "key:1"), denied(t, "b", "key:2"),
		{Outcome: admission.Allowed, Rule: "a"}, {Outcome: admission.ShadowDenied, Rule: "a"}, {Outcome: admission.Refused},
		{Outcome: admission.DeniedNewIdentity, Rule: "a", Key: "ip:1"}, {Outcome: admission.FailedClosed, Rule: "b", Key: "key:2"},
	} {
		r.Observe(e)
	}
	if a, b, c := len(take(all)), len(take(rule)), len(take(key)); a != 4 || b != 2 || c != 2 {
		t.Errorf("the readers of all denials, of a rule and of a key get %d, %d and %d; want 4, 2 and 2", a, b, c)
	}
}

// A reader that takes nothing costs bounded memory, and learns how many denials it missed.
func TestSlowReadersSkip(t *testing.T) {
	r := New(Options{})
	slow := r.Join(Filter{}, Rate{PerSecond: 1000})
	e := denied(t, "a", "key:1")
	for range 500 {
		r.Observe(e)
	}
	if n := len(take(slow)); n != maxQueued {
		t.Errorf("%d denials wait for the slow reader; want %d", n, maxQueued)
	}
	r.Observe(e)
	if d := take(slow); len(d) != 1 || d[0].Skipped != 500-maxQueued {
		t.Errorf("after the slow reader caught up, it gets %+v; want one denial, with the number of skipped ones", d)
	}
	var joined []*Reader
	for range 2 * MaxReaders {
		if one := r.Join(Filter{}, Rate{PerSecond: 1}); one != nil {
			joined = append(joined, one)
		}
	}
	if len(joined) != MaxReaders-1 {
		t.Errorf("%d readers have joined; want %d", len(joined)+1, MaxReaders)
	}
}

func TestReadersComeAndGoDuringAFlood(t *testing.T) {
	r := New(Options{})
	e := denied(t, "a", "key:1")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2000 {
				r.Observe(e)
			}
		})
		all.Go(func() {
			for range 200 {
				one := r.Join(Filter{}, Rate{PerSecond: 10})
				r.Tick()
				r.Leave(one)
			}
		})
	}
	all.Wait()
}

func TestDenialsThatNobodyReadsAllocateNothing(t *testing.T) {
	r := New(Options{})
	full := r.Join(Filter{}, Rate{PerSecond: 1})
	e := denied(t, "a", "key:1")
	r.Observe(e)
	if n := testing.AllocsPerRun(100, func() { r.Observe(e) }); n != 0 || len(full.C) != 1 {
		t.Errorf("Observe makes %v allocations; want 0, with a full reader", n)
	}
}

func TestNewIdentitiesAreDeniedByTheInstance(t *testing.T) {
	for outcome, want := range map[admission.Outcome]string{admission.DeniedNewIdentity: "instance", admission.Denied: "store"} {
		if d := (Denial{Outcome: outcome}); d.DecidedBy() != want || !strings.Contains(fmt.Sprint(d.attributes(&redact.Identities{Show: redact.ShowOff, Name: func(key string) string { return key }})), "source "+want) {
			t.Errorf("%s was decided by %s; want %s", outcome, d.DecidedBy(), want)
		}
	}
}

func TestLinesOfTheLogMaskKeys(t *testing.T) {
	identities := func(show string) *redact.Identities {
		return &redact.Identities{Show: show, Secret: []byte("s"), Name: func(key string) string { return key }, Key: func(name string) (string, bool) { return name, true }}
	}
	for _, c := range []struct {
		mode, show string
		lines      int
		has        string
	}{
		{mode: LogOff, show: redact.ShowFull},
		{mode: LogSampled, show: redact.ShowOff, lines: 1, has: `rule=login limit=hour outcome=denied source=store retry_after=`},
		{mode: LogSampled, show: redact.ShowMasked, lines: 1, has: `key=key:cu…11#`},
		{mode: LogAll, show: redact.ShowFull, lines: 20, has: `key=key:cu…11#`},
	} {
		r, log := New(Options{}), new(logbuffer.Buffer)
		ctx, stop := context.WithCancel(t.Context())
		run := r.Log(c.mode, log.Logger(), identities(c.show))
		for range 20 { // before run, which starts late on a busy machine
			r.Observe(denied(t, "login", "key:customer-4711"))
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			run(ctx)
		}()
		eventually.True(t, "the log has its lines", func() bool { return len(log.Lines("request denied")) >= c.lines })
		stop()
		<-ended
		lines := log.Lines("request denied")
		if len(lines) != c.lines || strings.Contains(log.String(), "4711") || c.lines > 0 && !strings.Contains(lines[0], c.has) {
			t.Errorf("%s, identities %s: the log is %s; want %d lines with %s", c.mode, c.show, log, c.lines, c.has)
		}
		if c.show == redact.ShowOff && strings.Contains(log.String(), "key:") {
			t.Errorf("with identities off, the log is %s; want no key in it", log)
		}
	}
}
