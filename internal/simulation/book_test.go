package simulation

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// A book is what happened in a run. All times are since its start, by a clock that nobody sets.
type book struct {
	start time.Time

	mu         sync.Mutex
	ahead      time.Duration // the server's clock
	admitted   []admission
	released   []release
	pardons    []pardon
	situations []situation
	incidents  []string
	problems   []string
	decisions  int
	faults     int
	sources    [6]int
	judged     map[string]float64 // by bound: how much of it was reached
}

// A call is one decision that somebody asked an instance for.
type call struct {
	inst    *instance
	counted int // instances, as this one was last told when the call began
	charges []penstock.Charge
	began   time.Duration

	// Guarded by the book.
	spent map[string]int64 // by limit: what the server has charged
	draws int
	at    time.Duration // when it last charged
	clock int64         // by its clock, in µs
}

type callKey struct{}

// An admission is what a caller was told it may do. It begins when it was charged, and its wait is
// over.
type admission struct {
	at      time.Duration
	charged time.Duration // at that time less the wait
	clock   int64         // by the clock of who decided, in µs
	policy  *policy
	key     string
	units   int64
	holder  string
	inst    int
	source  penstock.Source
	counted int
}

// A release ends a hold.
type release struct {
	at     time.Duration
	holder string
}

// A pardon is what a fault makes good: units that were charged and are not any more.
type pardon struct {
	at    time.Duration
	inst  int               // an instance's, or together
	keys  func(string) bool // nil: all
	limit string            // "": all
	units int64             // so many; 0: all
	step  time.Duration     // or what the clock leapt
	until time.Duration     // from when on it is forgiven, and before, only allowed; 0: at once
}

func newBook(ahead time.Duration) *book {
	return &book{start: time.Now(), ahead: ahead, judged: make(map[string]float64)}
}

func (b *book) now() time.Duration { return time.Since(b.start) }

// incident notes a fault, or the end of one.
func (b *book) incident(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.incidents = append(b.incidents, fmt.Sprintf("%12v  ", b.now())+fmt.Sprintf(format, args...))
}

// problem notes what a judge has found.
func (b *book) problem(judge, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problemLocked(judge, format, args...)
}

func (b *book) problemLocked(judge, format string, args ...any) {
	if len(b.problems) < 20 {
		b.problems = append(b.problems, fmt.Sprintf("%s, at %v: ", judge, b.now())+fmt.Sprintf(format, args...))
	}
}

// charged is told by the server what it has granted.
func (b *book) charged(c *call, charges []penstock.Charge, d *penstock.Decision, clock time.Time) {
	if c == nil || !d.Allowed {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if charges[0].Mode == penstock.Draw && c.charges[0].Mode == penstock.Spend { // of a lease
		if c.draws++; c.draws > 1 {
			b.problemLocked("once", "%v: a call drew %d times", c, c.draws)
		}
		return
	}
	for i := range charges {
		if charges[i].Mode != penstock.Spend || charges[i].Cost == 0 {
			continue
		}
		name := charges[i].Limit.Name
		if c.spent == nil {
			c.spent = make(map[string]int64)
		}
		c.spent[name] += charges[i].Cost
		c.at, c.clock = b.now(), clock.UnixMicro()
		for _, asked := range c.charges {
			if asked.Limit.Name == name && c.spent[name] > asked.Cost {
				b.problemLocked("once", "%v: %d units of %s were charged", c, c.spent[name], name)
			}
		}
	}
}

// admit notes what a call was granted. If it waited for a draw, that is when the store decided.
func (b *book) admit(c *call, d *penstock.Decision, p *plan) {
	drew := c.inst.link.lastDraw(&c.charges[0])
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range c.charges {
		charge := &c.charges[i]
		policy := p.policyOf(&charge.Limit)
		if policy == nil || charge.Mode != penstock.Spend || charge.Cost == 0 {
			continue
		}
		now := time.Now()
		a := admission{at: b.now(), clock: now.UnixMicro(), policy: policy, key: charge.Key, units: charge.Cost, holder: charge.Holder,
			inst: c.inst.id, source: d.Source, counted: c.counted}
		switch d.Source {
		case penstock.FromStore:
			if c.spent[charge.Limit.Name] == 0 {
				b.problemLocked("once", "%v was granted by the store, which has charged nothing", c)
			}
			a.at, a.clock = c.at, c.clock
		case penstock.FromLease:
			a.clock += b.ahead.Microseconds()
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

func (b *book) release(holder string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = append(b.released, release{b.now(), holder})
}

func (b *book) pardon(p pardon) { b.pardonOf(together, p) }

func (b *book) pardonOf(inst int, p pardon) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.at, p.inst = b.now(), inst
	b.pardons = append(b.pardons, p)
}

// gaveBack is told of refunds that an instance knows of: they are in its share again.
func (b *book) gaveBack(inst int, charges []penstock.Charge) {
	for _, c := range charges {
		if c.Mode == penstock.Refund && c.Cost > 0 {
			b.pardonOf(inst, pardon{keys: func(key string) bool { return key == base(c.Key) }, limit: c.Limit.Name, units: c.Cost})
		}
	}
}

func (b *book) stepped(by time.Duration) {
	b.pardon(pardon{step: by})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ahead += by
}

func (b *book) forgave(keys func(string) bool) { b.pardon(pardon{keys: keys}) }

func (b *book) undid(charges []penstock.Charge) {
	for _, c := range charges {
		switch c.Mode {
		case penstock.Spend, penstock.Draw, penstock.Force:
			b.pardon(pardon{keys: func(key string) bool { return key == base(c.Key) }, limit: c.Limit.Name, units: c.Cost})
		}
	}
}

// late is told of what a server did when its caller had gone: what is given back then is not any
// more what was taken.
func (b *book) late(charges []penstock.Charge) {
	for _, c := range charges {
		if c.Mode == penstock.Refund {
			b.pardon(pardon{keys: func(key string) bool { return key == base(c.Key) }, limit: c.Limit.Name, units: c.Cost})
		}
	}
}

// last is when the last pardon was, or a time long ago.
func (b *book) last() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range slices.Backward(b.pardons) {
		if p.inst == together {
			return p.at
		}
	}
	return -time.Hour
}

func (c *call) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "call at instance %d, %v:", c.inst.id, c.began)
	for _, charge := range c.charges {
		fmt.Fprintf(&s, " %v %d of %s under %q", charge.Mode, charge.Cost, charge.Limit.Name, charge.Key)
	}
	return s.String()
}

func (a *admission) String() string {
	return fmt.Sprintf("%12v  %d of %s under %q at instance %d by %v (counted %d)", a.at, a.units, a.policy.limit.Name, a.key, a.inst,
		sourceNames[a.source], a.counted)
}

var sourceNames = [...]string{"store", "deny cache", "lease", "fallback", "open", "closed"}

// trace is what happened to a key and a limit until a time, with all incidents.
func (b *book) trace(policy *policy, key string, until time.Duration, most int) string {
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
