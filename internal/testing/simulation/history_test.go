package simulation

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// A history records the events of a run. All times count from its start, by a clock that never
// jumps.
type history struct {
	start time.Time

	mu          sync.Mutex
	clockAhead  time.Duration // how far the server's clock is ahead of true time
	admitted    []admission
	released    []release
	credits     []credit
	situations  []situation
	incidents   []string
	problems    []string
	decisions   int
	faults      int
	sources     [sources]int       // decisions, by penstock.Source
	utilization map[string]float64 // by kind of limit: the largest part of a bound that was reached
}

// A call is one decision of an instance.
type call struct {
	instance       *instance
	knownInstances int // number of instances that this instance counted when the call began
	charges        []penstock.Charge
	began          time.Duration

	// Guarded by the history's mutex.
	spent map[string]int64 // by limit: units that the server has charged
	draws int              // of leases, for this call
	at    time.Duration    // time of the last charge
	clock int64            // that time by the server's clock, in µs
}

type callKey struct{}

// An admission is a charge that was granted.
type admission struct {
	at             time.Duration // of the turn of a booking, or of the charge if there is no wait
	charged        time.Duration // of the charge
	clock          int64         // the same time as at, in µs, by the clock of the store or instance that decided
	guarded        *guardedLimit
	key            string
	units          int64
	holder         string
	instanceID     int
	source         penstock.Source
	knownInstances int
}

// A release ends a hold.
type release struct {
	at     time.Duration
	holder string
}

// A credit is a number of units that no longer count as charged, because of a fault or a refund.
type credit struct {
	at         time.Duration
	instanceID int               // an instance, or storeUnits
	keys       func(string) bool // nil: all keys
	limit      string            // "": all limits
	units      int64             // 0: all units
	step       time.Duration     // jump of the clock, instead of units
	until      time.Duration     // the units may be admitted at any time from at to until; 0: they are free from the time at on
}

func newHistory(clockAhead time.Duration) *history {
	return &history{start: time.Now(), clockAhead: clockAhead, utilization: make(map[string]float64)}
}

func (h *history) now() time.Duration { return time.Since(h.start) }

// addIncident records a fault, or the end of one.
func (h *history) addIncident(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.incidents = append(h.incidents, fmt.Sprintf("%12v  ", h.now())+fmt.Sprintf(format, args...))
}

// addProblem records a problem that a check has found.
func (h *history) addProblem(check, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addProblemLocked(check, format, args...)
}

func (h *history) addProblemLocked(check, format string, args ...any) {
	const maxProblems = 20
	if len(h.problems) < maxProblems {
		h.problems = append(h.problems, fmt.Sprintf("%s, at %v: ", check, h.now())+fmt.Sprintf(format, args...))
	}
}

// recordCharge records the charges that the server has granted, and checks that it grants no charge
// of a call twice.
func (h *history) recordCharge(c *call, charges []penstock.Charge, d *penstock.Decision, clock time.Time) {
	if c == nil || !d.Allowed {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if charges[0].Mode == penstock.Draw && c.charges[0].Mode == penstock.Spend { // by a lease
		if c.draws++; c.draws > 1 {
			h.addProblemLocked("once", "%v: this call drew %d times; want once", c, c.draws)
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
		c.at, c.clock = h.now(), clock.UnixMicro()
		for _, own := range c.charges {
			if own.Plan.Name() == name && c.spent[name] > own.Cost {
				h.addProblemLocked("once", "%v: %d units of %q were charged; want at most %d", c, c.spent[name], name, own.Cost)
			}
		}
	}
}

// recordAdmission records the charges of a call that was granted. If the call waited for the draw
// of a lease, its time is that of the store's decision on the draw.
func (h *history) recordAdmission(c *call, d *penstock.Decision, sc *scenario) {
	draw := c.instance.link.lastDraw(&c.charges[0])
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range c.charges {
		charge := &c.charges[i]
		guarded := sc.guardedLimitOf(charge.Plan)
		if guarded == nil || charge.Mode != penstock.Spend || charge.Cost == 0 {
			continue
		}
		now := time.Now()
		a := admission{at: h.now(), clock: now.UnixMicro(), guarded: guarded, key: charge.Key, units: charge.Cost, holder: charge.Holder,
			instanceID: c.instance.id, source: d.Source, knownInstances: c.knownInstances}
		switch d.Source {
		case penstock.FromStore:
			if c.spent[charge.Plan.Name()] == 0 {
				h.addProblemLocked("once", "%v: its decision is from the store, but the store charged nothing", c)
			}
			a.at, a.clock = c.at, c.clock
		case penstock.FromLease:
			a.clock += h.clockAhead.Microseconds()
			if draw.at > c.began {
				a.at, a.clock = draw.at, draw.clock
			}
		}
		a.charged = a.at
		wait := d.Status(i).Wait
		a.at, a.clock = a.at+wait, a.clock+wait.Microseconds()
		h.admitted = append(h.admitted, a)
	}
}

func (h *history) recordRelease(holder string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = append(h.released, release{h.now(), holder})
}

// addCredit records a credit of the store.
func (h *history) addCredit(c credit) { h.addCreditOf(storeUnits, c) }

// addCreditOf records a credit of an instance.
func (h *history) addCreditOf(instanceID int, c credit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.at, c.instanceID = h.now(), instanceID
	h.credits = append(h.credits, c)
}

// creditRefunds records refunds that an instance has made. The share of this instance may admit
// these units again.
func (h *history) creditRefunds(instanceID int, charges []penstock.Charge) {
	for _, c := range charges {
		if c.Mode == penstock.Refund && c.Cost > 0 {
			h.addCreditOf(instanceID, credit{keys: func(key string) bool { return key == baseKey(c.Key) }, limit: c.Plan.Name(), units: c.Cost})
		}
	}
}

func (h *history) recordClockStep(by time.Duration) {
	h.addCredit(credit{step: by})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clockAhead += by
}

// creditAll records that the store has lost the data of some keys.
func (h *history) creditAll(keys func(string) bool) { h.addCredit(credit{keys: keys}) }

// creditUndone records charges that a failover has undone.
func (h *history) creditUndone(charges []penstock.Charge) {
	for _, c := range charges {
		switch c.Mode {
		case penstock.Spend, penstock.Draw, penstock.Force:
			h.addCredit(credit{keys: func(key string) bool { return key == baseKey(c.Key) }, limit: c.Plan.Name(), units: c.Cost})
		}
	}
}

// creditLateRefunds records refunds that the server decided after the caller had left.
func (h *history) creditLateRefunds(charges []penstock.Charge) {
	for _, c := range charges {
		if c.Mode == penstock.Refund {
			h.addCredit(credit{keys: func(key string) bool { return key == baseKey(c.Key) }, limit: c.Plan.Name(), units: c.Cost})
		}
	}
}

// lastCredit returns the time of the store's last credit, or a time long before the run.
func (h *history) lastCredit() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range slices.Backward(h.credits) {
		if c.instanceID == storeUnits {
			return c.at
		}
	}
	return -time.Hour
}

func (c *call) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "call to instance %d at %v:", c.instance.id, c.began)
	for _, charge := range c.charges {
		fmt.Fprintf(&s, " %v %d of %s under %q", charge.Mode, charge.Cost, charge.Plan.Name(), charge.Key)
	}
	return s.String()
}

func (a *admission) String() string {
	return fmt.Sprintf("%12v  %d of %s under %q at instance %d by %v (it counted %d instances)", a.at, a.units, a.guarded.limit.Name(), a.key, a.instanceID,
		sourceNames[a.source], a.knownInstances)
}

const sources = int(penstock.FromClosed) + 1 // number of values of penstock.Source

var sourceNames = [sources]string{"store", "deny cache", "lease", "fallback", "open fallback", "closed fallback"}

// trace lists the last admissions of a key and a limit until a time.
func (h *history) trace(guarded *guardedLimit, key string, until time.Duration, maxLines int) string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for i := range h.admitted {
		if a := &h.admitted[i]; a.guarded == guarded && a.key == key && a.at <= until {
			lines = append(lines, line{a.at, a.String()})
		}
	}
	slices.SortStableFunc(lines, func(x, y line) int { return int(x.at - y.at) })
	if len(lines) > maxLines {
		lines = lines[len(lines)-maxLines:]
	}
	var s strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&s, l.text)
	}
	return s.String()
}
