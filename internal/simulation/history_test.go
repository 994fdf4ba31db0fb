package simulation

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// A history is what happened in a run. All times are since its start, by a clock that is never set.
type history struct {
	start time.Time

	mu          sync.Mutex
	clockAhead  time.Duration // the server's clock
	admitted    []admission
	released    []release
	credits     []credit
	situations  []situation
	incidents   []string
	problems    []string
	decisions   int
	faults      int
	sources     [6]int
	utilization map[string]float64 // by kind of bound: the part of it that was reached
}

// A call is one decision of an instance.
type call struct {
	inst           *instance
	knownInstances int // number of instances that this one knew when the call began
	charges        []penstock.Charge
	began          time.Duration

	// Guarded by the history's mutex.
	spent map[string]int64 // by limit: units that the server has charged
	draws int
	at    time.Duration // time of the last charge
	clock int64         // that time by the server's clock, in µs
}

type callKey struct{}

// An admission is what a call was granted. It begins at the charge, plus the wait.
type admission struct {
	at             time.Duration
	charged        time.Duration // at without the wait
	clock          int64         // by the clock of the store or instance that decided, in µs
	policy         *policy
	key            string
	units          int64
	holder         string
	inst           int
	source         penstock.Source
	knownInstances int
}

// A release ends a hold.
type release struct {
	at     time.Duration
	holder string
}

// A credit is the effect of a fault: units that were charged and no longer are.
type credit struct {
	at    time.Duration
	inst  int               // an instance, or storeUnits
	keys  func(string) bool // nil: all
	limit string            // "": all
	units int64             // number; 0: all
	step  time.Duration     // or the jump of the clock
	until time.Duration     // it counts fully from then on, and before only if units were admitted; 0: at once
}

func newHistory(clockAhead time.Duration) *history {
	return &history{start: time.Now(), clockAhead: clockAhead, utilization: make(map[string]float64)}
}

func (b *history) now() time.Duration { return time.Since(b.start) }

// incident records a fault, or the end of one.
func (b *history) incident(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.incidents = append(b.incidents, fmt.Sprintf("%12v  ", b.now())+fmt.Sprintf(format, args...))
}

// problem records what a check has found.
func (b *history) problem(check, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problemLocked(check, format, args...)
}

func (b *history) problemLocked(check, format string, args ...any) {
	if len(b.problems) < 20 {
		b.problems = append(b.problems, fmt.Sprintf("%s, at %v: ", check, b.now())+fmt.Sprintf(format, args...))
	}
}

// charged records what the server has granted.
func (b *history) charged(c *call, charges []penstock.Charge, d *penstock.Decision, clock time.Time) {
	if c == nil || !d.Allowed {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if charges[0].Mode == penstock.Draw && c.charges[0].Mode == penstock.Spend { // by a lease
		if c.draws++; c.draws > 1 {
			b.problemLocked("once", "%v: a call drew %d times", c, c.draws)
		}
		return
	}
	for i := range charges {
		if charges[i].Mode != penstock.Spend || charges[i].Cost == 0 {
			continue
		}
		name := charges[i].Plan.Name()
		if c.spent == nil {
			c.spent = make(map[string]int64)
		}
		c.spent[name] += charges[i].Cost
		c.at, c.clock = b.now(), clock.UnixMicro()
		for _, policiesUsed := range c.charges {
			if policiesUsed.Plan.Name() == name && c.spent[name] > policiesUsed.Cost {
				b.problemLocked("once", "%v: %d units of %s were charged", c, c.spent[name], name)
			}
		}
	}
}

// admit records what a call was granted. If it waited for a draw, the store decided at the time of
// the draw.
func (b *history) admit(c *call, d *penstock.Decision, p *plan) {
	drew := c.inst.link.lastDraw(&c.charges[0])
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range c.charges {
		charge := &c.charges[i]
		policy := p.policyOf(charge.Plan)
		if policy == nil || charge.Mode != penstock.Spend || charge.Cost == 0 {
			continue
		}
		now := time.Now()
		a := admission{at: b.now(), clock: now.UnixMicro(), policy: policy, key: charge.Key, units: charge.Cost, holder: charge.Holder,
			inst: c.inst.id, source: d.Source, knownInstances: c.knownInstances}
		switch d.Source {
		case penstock.FromStore:
			if c.spent[charge.Plan.Name()] == 0 {
				b.problemLocked("once", "%v was granted by the store, which has charged nothing", c)
			}
			a.at, a.clock = c.at, c.clock
		case penstock.FromLease:
			a.clock += b.clockAhead.Microseconds()
			if drew.at > c.began {
				a.at, a.clock = drew.at, drew.clock
			}
		}
		a.charged = a.at
		wait := d.Status(i).Wait
		a.at, a.clock = a.at+wait, a.clock+wait.Microseconds()
		b.admitted = append(b.admitted, a)
	}
}

func (b *history) release(holder string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = append(b.released, release{b.now(), holder})
}

func (b *history) credit(p credit) { b.addCreditOf(storeUnits, p) }

func (b *history) addCreditOf(inst int, p credit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.at, p.inst = b.now(), inst
	b.credits = append(b.credits, p)
}

// creditRefunds records refunds that an instance knows: its share may admit these units again.
func (b *history) creditRefunds(inst int, charges []penstock.Charge) {
	for _, c := range charges {
		if c.Mode == penstock.Refund && c.Cost > 0 {
			b.addCreditOf(inst, credit{keys: func(key string) bool { return key == base(c.Key) }, limit: c.Plan.Name(), units: c.Cost})
		}
	}
}

func (b *history) clockStepped(by time.Duration) {
	b.credit(credit{step: by})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clockAhead += by
}

func (b *history) creditAll(keys func(string) bool) { b.credit(credit{keys: keys}) }

func (b *history) creditUndone(charges []penstock.Charge) {
	for _, c := range charges {
		switch c.Mode {
		case penstock.Spend, penstock.Draw, penstock.Force:
			b.credit(credit{keys: func(key string) bool { return key == base(c.Key) }, limit: c.Plan.Name(), units: c.Cost})
		}
	}
}

// creditLateRefunds records refunds that the server decided after the caller had left.
func (b *history) creditLateRefunds(charges []penstock.Charge) {
	for _, c := range charges {
		if c.Mode == penstock.Refund {
			b.credit(credit{keys: func(key string) bool { return key == base(c.Key) }, limit: c.Plan.Name(), units: c.Cost})
		}
	}
}

// lastCredit is the time of the last credit, or a time long ago.
func (b *history) lastCredit() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range slices.Backward(b.credits) {
		if p.inst == storeUnits {
			return p.at
		}
	}
	return -time.Hour
}

func (c *call) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "call at instance %d, %v:", c.inst.id, c.began)
	for _, charge := range c.charges {
		fmt.Fprintf(&s, " %v %d of %s under %q", charge.Mode, charge.Cost, charge.Plan.Name(), charge.Key)
	}
	return s.String()
}

func (a *admission) String() string {
	return fmt.Sprintf("%12v  %d of %s under %q at instance %d by %v (counted %d)", a.at, a.units, a.policy.limit.Name(), a.key, a.inst,
		sourceNames[a.source], a.knownInstances)
}

var sourceNames = [...]string{"store", "deny cache", "lease", "fallback", "open", "closed"}

// trace lists the admissions of a key and a limit until a time.
func (b *history) trace(policy *policy, key string, until time.Duration, most int) string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for i := range b.admitted {
		if a := &b.admitted[i]; a.policy == policy && a.key == key && a.at <= until {
			lines = append(lines, line{a.at, a.String()})
		}
	}
	slices.SortStableFunc(lines, func(x, y line) int { return int(x.at - y.at) })
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	var s strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&s, l.text)
	}
	return s.String()
}
