package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// A link is an instance's network: all that it asks the store goes through it. It sends nothing
// twice.
type link struct {
	w  *world
	id int

	mu      sync.Mutex
	rng     *rand.Rand
	oneWay  time.Duration // on average
	loss    float64       // the chance that a request does not arrive
	silence float64       // the chance that an answer does not
	cut     [2]bool       // there and back
	frozen  time.Time     // until when the instance stands still
	dead    bool
	counted int   // what Live was last told
	drawn   int64 // units that the instance was told it drew
	draws   map[drawName]moment
}

// A drawName is of what draws are for, by the first of their limits.
type drawName struct{ key, limit string }

func nameOf(c *penstock.Charge) drawName { return drawName{base(c.Key), c.Limit.Name} }

// A moment is when the store decided.
type moment struct {
	at    time.Duration
	clock int64 // by its clock, in µs
}

// lastDraw is when the store decided on the last draw that came back, for what the charge is for.
func (l *link) lastDraw(c *penstock.Charge) (m moment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.draws[nameOf(c)]
}

var (
	errRefused = fmt.Errorf("%w: connection refused", penstock.ErrUnavailable)
	errBroken  = fmt.Errorf("%w: connection reset", penstock.ErrUnavailable)
)

// gone is the error of a request whose context has ended.
func gone(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fmt.Errorf("%w: no answer: %w", penstock.ErrUnavailable, ctx.Err())
}

// Node names a batch's node.
func (l *link) Node(charges []penstock.Charge) string { return l.w.server.shard(charges) }

// Decide implements penstock.Store.
func (l *link) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if len(charges) == 0 {
		return penstock.Decision{}, penstock.ErrInvalid
	}
	c, _ := ctx.Value(callKey{}).(*call)
	charges = slices.Clone(charges) // the request may arrive when its caller has gone
	var d penstock.Decision
	var decided moment
	do := func() (err error) {
		d, err = l.w.server.decide(c, charges)
		decided = moment{l.w.book.now(), l.w.server.clock().UnixMicro()}
		if ctx.Err() != nil && err == nil && d.Allowed {
			l.w.book.late(charges)
		}
		return err
	}
	err := l.ask(ctx, charges, do)
	if l.w.breaks.replays && errors.Is(err, errBroken) {
		err = l.ask(ctx, charges, do)
	}
	if err != nil {
		return penstock.Decision{}, err
	}
	l.w.book.gaveBack(l.id, charges)
	if charges[0].Mode == penstock.Draw && d.Allowed {
		units := d.Status(0).Granted
		for i := range charges {
			units = min(units, d.Status(i).Granted)
		}
		l.mu.Lock()
		l.drawn += units
		if l.draws == nil {
			l.draws = make(map[drawName]moment)
		}
		l.draws[nameOf(&charges[0])] = decided
		l.mu.Unlock()
	}
	return l.w.breaks.falsify(charges, d), nil
}

// Heartbeat implements guard.Server. It is kept by the first node.
func (l *link) Heartbeat(ctx context.Context, instance string, life time.Duration) (int, error) {
	n := 0
	first := []penstock.Charge{{Key: l.w.server.keyOf(0)}}
	err := l.ask(ctx, first, func() error {
		n = l.w.server.note(instance, life)
		return nil
	})
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.counted = n
	l.mu.Unlock()
	if l.w.breaks.undivided {
		return 1, nil
	}
	return n, nil
}

// ask takes a request to the nodes of the charges, where do is done, and its answer back.
func (l *link) ask(ctx context.Context, charges []penstock.Charge, do func() error) error {
	if !l.thaw(ctx) {
		return gone(ctx)
	}
	there, lost, dead := l.travel(0)
	if dead {
		return errRefused
	}
	var err error
	answered := false
	if !l.after(ctx, there, func() {
		if !lost {
			answered, err = l.w.server.arrive(charges, do)
		}
	}) {
		return gone(ctx)
	}
	back, lost, dead := l.travel(1)
	switch {
	case dead:
		return errRefused
	case answered && lost && l.chance(0.5):
		err = errBroken
	case !answered || lost:
		<-ctx.Done()
		return gone(ctx)
	}
	if !l.after(ctx, back, func() {}) || !l.thaw(ctx) {
		return gone(ctx)
	}
	return err
}

// travel is how long a request (0) or an answer (1) is under way, or that it is lost.
func (l *link) travel(way int) (long time.Duration, lost, dead bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	chance := []float64{l.loss, l.silence}[way]
	lost = l.cut[way] || chance > 0 && l.rng.Float64() < chance
	return time.Duration(float64(l.oneWay) * (0.4 + 0.6*min(l.rng.ExpFloat64(), 4))), lost, l.dead
}

func (l *link) chance(p float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.Float64() < p
}

// after does something in so long, and tells whether the context has lasted until then. It is done
// in any case.
func (l *link) after(ctx context.Context, long time.Duration, do func()) bool {
	due := time.Now().Add(long)
	timer := time.NewTimer(long)
	select {
	case <-timer.C:
		do()
		return true
	case <-ctx.Done():
		timer.Stop()
		time.AfterFunc(time.Until(due), do)
		return false
	}
}

// thaw waits until the instance does not stand still.
func (l *link) thaw(ctx context.Context) bool {
	for {
		l.mu.Lock()
		long := time.Until(l.frozen)
		l.mu.Unlock()
		if long <= 0 {
			return true
		}
		if !l.after(ctx, long, func() {}) {
			return false
		}
	}
}

func (l *link) change(do func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(l)
}
