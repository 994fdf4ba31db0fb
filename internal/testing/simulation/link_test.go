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

// A link is the network between an instance and the store. It sends no request twice.
type link struct {
	sim *simulation
	id  int

	mu             sync.Mutex
	rng            *rand.Rand
	oneWay         time.Duration // average latency of a request, and of a reply
	loss           [ways]float64 // probability that a request or reply is lost
	isCut          [ways]bool    // all requests or replies are lost
	frozenUntil    time.Time     // the instance does nothing before this time
	isDead         bool
	knownInstances int                 // result of the last heartbeat
	drawn          int64               // units that the instance has drawn for leases
	draws          map[drawName]moment // the last draw of each name
}

// A way is a direction of a link.
type way int

const (
	toStore way = iota
	fromStore
	ways
)

// A drawName identifies draws by their key and the first of their limits.
type drawName struct{ key, limit string }

func drawNameOf(c *penstock.Charge) drawName { return drawName{baseKey(c.Key), c.Plan.Name()} }

// A moment is the time of a decision of the store.
type moment struct {
	at    time.Duration
	clock int64 // by the store's clock, in µs
}

// lastDraw returns the time of the last draw for the charge's key and limit whose reply arrived.
func (l *link) lastDraw(c *penstock.Charge) (m moment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.draws[drawNameOf(c)]
}

var (
	errRefused = fmt.Errorf("%w: connection refused", penstock.ErrUnavailable)
	errBroken  = fmt.Errorf("%w: connection reset", penstock.ErrUnavailable)
)

// contextError returns the error of a request whose context has ended.
func contextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fmt.Errorf("%w: no answer: %w", penstock.ErrUnavailable, ctx.Err())
}

// Node implements guard.Server.
func (l *link) Node(charges []penstock.Charge) string { return l.sim.server.nodeName(charges) }

// Decide implements penstock.Store.
func (l *link) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if len(charges) == 0 {
		return penstock.Decision{}, penstock.ErrInvalid
	}
	c, _ := ctx.Value(callKey{}).(*call)
	charges = slices.Clone(charges) // the request may arrive after its caller has left
	var d penstock.Decision
	var decided moment
	do := func() (err error) {
		d, err = l.sim.server.decide(c, charges)
		decided = moment{at: l.sim.history.now(), clock: l.sim.server.clock().UnixMicro()}
		if ctx.Err() != nil && err == nil && d.Allowed {
			l.sim.history.creditLateRefunds(charges)
		}
		return err
	}
	err := l.roundTrip(ctx, charges, do)
	if l.sim.broken.shouldReplay && errors.Is(err, errBroken) {
		err = l.roundTrip(ctx, charges, do)
	}
	if err != nil {
		return penstock.Decision{}, err
	}
	l.sim.history.creditRefunds(l.id, charges)
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
		l.draws[drawNameOf(&charges[0])] = decided
		l.mu.Unlock()
	}
	return l.sim.broken.falsifyDecision(charges, d), nil
}

// Heartbeat implements guard.Server. The first node stores it.
func (l *link) Heartbeat(ctx context.Context, instance string, life time.Duration) (int, error) {
	n := 0
	first := []penstock.Charge{{Key: l.sim.server.keyOf(0)}}
	err := l.roundTrip(ctx, first, func() error {
		n = l.sim.server.heartbeat(instance, life)
		return nil
	})
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.knownInstances = n
	l.mu.Unlock()
	if l.sim.broken.isUndivided {
		return 1, nil
	}
	return n, nil
}

// roundTrip sends a request to the nodes of the charges. do runs when the request arrives, and the
// error of do is the reply.
func (l *link) roundTrip(ctx context.Context, charges []penstock.Charge, do func() error) error {
	if !l.awaitThaw(ctx) {
		return contextError(ctx)
	}
	delay, isLost, isDead := l.travel(toStore)
	if isDead {
		return errRefused
	}
	var err error
	hasReply := false
	arrive := func() {
		if !isLost {
			hasReply, err = l.sim.server.handle(charges, do)
		}
	}
	if !l.runAfter(ctx, delay, arrive) {
		return contextError(ctx)
	}
	replyDelay, isLost, isDead := l.travel(fromStore)
	switch {
	case isDead:
		return errRefused
	case hasReply && isLost && l.chance(0.5): // half of the lost replies break the connection, others time out
		err = errBroken
	case !hasReply || isLost:
		<-ctx.Done()
		return contextError(ctx)
	}
	if !l.runAfter(ctx, replyDelay, func() {}) || !l.awaitThaw(ctx) {
		return contextError(ctx)
	}
	return err
}

// travel returns the latency of a request or a reply: 0.4 to 2.8 times the average. isLost is true
// if it does not arrive, and isDead if the instance has crashed.
func (l *link) travel(w way) (latency time.Duration, isLost, isDead bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isLost = l.isCut[w] || l.loss[w] > 0 && l.rng.Float64() < l.loss[w]
	return time.Duration(float64(l.oneWay) * (0.4 + 0.6*min(l.rng.ExpFloat64(), 4))), isLost, l.isDead
}

// chance returns true with this probability.
func (l *link) chance(probability float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.Float64() < probability
}

// runAfter runs do after a delay. If the context ends first, runAfter returns false immediately,
// and do still runs after the delay.
func (l *link) runAfter(ctx context.Context, delay time.Duration, do func()) bool {
	due := time.Now().Add(delay)
	timer := time.NewTimer(delay)
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

// awaitThaw waits until the instance is not frozen. It returns false if the context ends earlier.
func (l *link) awaitThaw(ctx context.Context) bool {
	for {
		l.mu.Lock()
		left := time.Until(l.frozenUntil)
		l.mu.Unlock()
		if left <= 0 {
			return true
		}
		if !l.runAfter(ctx, left, func() {}) {
			return false
		}
	}
}

func (l *link) update(do func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(l)
}
