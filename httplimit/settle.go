package httplimit

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// A grant is a charge that was made, of a limit that may have to be corrected.
type grant struct {
	charge penstock.Charge
	limit  *policy.Limit
	source penstock.Source
	until  time.Time // by then nothing of it counts any more, so nothing can be given back
}

// note keeps those charges that may have to be corrected. They were made after start.
func (a *Admission) note(charges []penstock.Charge, limits []*policy.Limit, d *penstock.Decision, start time.Time) {
	for i, l := range limits {
		c := &charges[i]
		if uncounted(l, d.Source) {
			a.noteHolds(charges[i:i+1], limits[i:i+1])
			continue
		}
		if l.Status != nil || l.Settled || c.Limit.Algorithm.Holds || l.Body > 0 && a.Request.ContentLength < 0 {
			a.granted = append(a.granted, grant{*c, l, d.Source, start.Add(counts(c, d.Status(i)))})
		}
	}
}

// counts is how long a charge counts at least. What is given back later would come out of what
// others have used since.
func counts(c *penstock.Charge, s penstock.Status) time.Duration {
	if c.Limit.Algorithm.Is(penstock.TokenBucket) {
		return s.Wait + atRate(c.Cost, &c.Limit)
	}
	if c.Limit.Algorithm.At != nil {
		return s.ResetAfter
	}
	return min(s.ResetAfter, c.Limit.Period)
}

// atRate is how long units take at a limit's rate.
func atRate(units int64, l *penstock.Limit) time.Duration {
	t := float64(units) / float64(l.Count) * float64(l.Period)
	if t >= math.MaxInt64/2 {
		return math.MaxInt64 / 2
	}
	return time.Duration(t)
}

// noteHolds keeps the slots that the store may have lent although it gave no answer: they are given
// back when the request ends, or at once.
func (a *Admission) noteHolds(charges []penstock.Charge, limits []*policy.Limit) {
	for i, l := range limits {
		if c := &charges[i]; c.Limit.Algorithm.Holds {
			a.granted = append(a.granted, grant{charge: *c, limit: l})
		}
	}
}

// Done ends the Admission; whoever calls it before the response leaves has the client's next
// request find what is given back. The status is that of the response, or 0 if there was none or it
// is not known: then nothing that is charged by status is given back. Slots are given back; costs
// are corrected to what was told by Settle or the response's header.
func (a *Admission) Done(status int) {
	if a.unknown.Load() {
		status = 0
	}
	a.renewal.stop()
	if len(a.granted) > 0 {
		a.settle(status)
	}
	a.free()
}

// answers gives back at once what is charged by status and not for this one.
func (a *Admission) answers(status int) {
	if a.unknown.Load() {
		return
	}
	var all corrections
	a.granted = slices.DeleteFunc(a.granted, func(g grant) bool {
		if g.limit.Status == nil || g.limit.Status.Has(status) {
			return false
		}
		if c, ok := a.correction(&g, status); ok {
			all.add(c, g.source)
		}
		return true
	})
	a.correct(all)
}

// settleTimeout bounds how long the corrections may take.
const settleTimeout = time.Second

func (a *Admission) settle(status int) { a.correct(a.corrections(status)) }

// corrections are those of all that was granted, which is done with.
func (a *Admission) corrections(status int) (all corrections) {
	for i := range a.granted {
		if c, ok := a.correction(&a.granted[i], status); ok {
			all.add(c, a.granted[i].source)
		}
	}
	a.granted = nil
	return all
}

// maxReturns is how many requests may be answered while what they hold is given back. Those beyond
// it are answered afterwards.
const maxReturns = 1000

// returnHolds gives back the slots of a request that is turned away, and what is charged by status
// but not for this status (0: it is not known). The answer to the request does not wait for that.
func (a *Admission) returnHolds(status int) {
	all := a.corrections(status)
	if all.empty() {
		return
	}
	g := a.gate
	if g.returns.Add(1) > maxReturns {
		defer g.returns.Add(-1)
		a.correct(all)
		return
	}
	go func() {
		defer g.returns.Add(-1)
		a.correct(all)
	}()
}

// giveBack returns all that was charged for a request that is not served after all.
func (a *Admission) giveBack() {
	a.renewal.stop()
	a.granted = nil
	var all corrections
	for i, c := range a.verdict.Charges {
		if !uncounted(a.verdict.Limits[i], a.Decision.Source) || c.Limit.Algorithm.Holds {
			c.Mode, c.Patience = penstock.Refund, 0
			all.add(c, a.Decision.Source)
		}
	}
	a.correct(all)
}

// corrections are charges that make others right.
type corrections struct {
	charges []penstock.Charge
	local   []penstock.Charge // of what this process has counted, and the store has not
}

// add adds the correction of what that source granted. The store may have any slot: it was asked
// for it, or to renew it.
func (s *corrections) add(c penstock.Charge, granted penstock.Source) {
	if granted == penstock.FromFallback && !c.Limit.Algorithm.Holds {
		s.local = append(s.local, c)
	} else {
		s.charges = append(s.charges, c)
	}
}

func (s *corrections) empty() bool { return len(s.charges)+len(s.local) == 0 }

// correct makes corrections. If the store cannot be asked, what was charged stays charged, and
// slots end by themselves. The local ones are for who answers without the store: once that is back,
// they are dropped.
func (a *Admission) correct(all corrections) {
	if all.empty() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.Request.Context()), settleTimeout)
	defer cancel()
	for some := range slices.Chunk(all.charges, penstock.MaxCharges) {
		panicked.Decide(ctx, a.gate.store, some)
	}
	for i := range all.local { // one at a time: each may have a server of its own
		if one := all.local[i : i+1]; a.storeIsAway(ctx, one[0]) {
			panicked.Decide(ctx, a.gate.store, one)
		}
	}
}

// storeIsAway tells whether a charge would be decided without the store now.
func (a *Admission) storeIsAway(ctx context.Context, c penstock.Charge) bool {
	c.Mode, c.Cost = penstock.Peek, 0
	d, err := panicked.Decide(ctx, a.gate.store, []penstock.Charge{c})
	return err == nil && d.Source == penstock.FromFallback
}

// correction is what makes a grant right.
func (a *Admission) correction(g *grant, status int) (penstock.Charge, bool) {
	c := g.charge
	c.Patience = 0
	if c.Limit.Algorithm.Holds {
		c.Mode = penstock.Refund
		return c, true
	}
	cost := a.trueCost(g)
	if g.limit.Status != nil && status != 0 && !g.limit.Status.Has(status) {
		cost = 0
	}
	switch {
	case cost < c.Cost && !time.Now().Before(g.until):
		return c, false
	case cost < c.Cost:
		c.Mode, c.Cost = penstock.Refund, c.Cost-cost
	case cost > c.Cost:
		c.Mode, c.Cost = penstock.Force, cost-c.Cost
	default:
		return c, false
	}
	return c, true
}

// trueCost is what the request cost, as far as it is known.
func (a *Admission) trueCost(g *grant) int64 {
	if g.limit.Settled {
		if told := a.actual.Load(); told > 0 {
			return told - 1
		}
		if values := a.header[g.limit.Actual]; len(values) == 1 {
			if n, err := strconv.ParseInt(values[0], 10, 64); err == nil && n >= 0 {
				return min(n, penstock.MaxCost)
			}
		}
	}
	if g.limit.Body > 0 && a.body != nil {
		n := a.body.read()
		return max(g.charge.Cost, n/g.limit.Body+min(n%g.limit.Body, 1))
	}
	return g.charge.Cost
}

// Settle tells what a request really cost: those of its limits whose cost is settled afterwards are
// corrected to it once it has been served: in a policy those that say cost.actual, of limits in
// code all. The last call counts. It fails if the request has no such limit.
func Settle(r *http.Request, actual int64) error { return SettleContext(r.Context(), actual) }

// SettleContext is Settle for handlers that have the request's context only.
func SettleContext(ctx context.Context, actual int64) error {
	a, ok := ctx.Value(admissionKey{}).(*Admission)
	if !ok {
		return fmt.Errorf("%w: httplimit: no limit applies to the request; settle only those that came through a Gate", penstock.ErrInvalid)
	}
	if actual < 0 || actual > penstock.MaxCost {
		return fmt.Errorf("%w: httplimit: settle %d units; a cost is 0 to %d", penstock.ErrInvalid, actual, int64(penstock.MaxCost))
	}
	if a.settles {
		a.actual.Store(actual + 1)
		return nil
	}
	return fmt.Errorf("%w: httplimit: no limit of the request is settled afterwards; write cost: {actual: HEADER} into one", penstock.ErrInvalid)
}

// Unanswered says that it is unknown how a request ended, whatever its handler answers: what is
// charged by status stays charged. A proxy calls it when the upstream has the request, or may have
// it, and gives no answer.
func Unanswered(r *http.Request) {
	if a, ok := r.Context().Value(admissionKey{}).(*Admission); ok {
		a.unknown.Store(true)
	}
}

// A countedBody counts what is read of a body whose size nobody told.
type countedBody struct {
	io.ReadCloser
	mu sync.Mutex
	n  int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	b.n += int64(n)
	b.mu.Unlock()
	return n, err
}

func (b *countedBody) read() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func (a *Admission) countBody() {
	a.body = &countedBody{ReadCloser: a.Request.Body}
	r := *a.Request
	r.Body = a.body
	a.Request = &r
}

// A renewal renews the slots of a request while it is served.
type renewal struct {
	gate  *Gate
	holds []penstock.Charge
	every time.Duration
	timer *time.Timer

	mu    sync.Mutex // held while slots are renewed, so that none is renewed after it was given back
	ended bool
	lost  bool // a slot is somebody else's
}

func (n *renewal) hasLost() bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost
}

// renewHolds has what the request holds renewed three times in the life of a hold, from now on.
func (a *Admission) renewHolds() {
	a.renewal.stop()
	n := &renewal{gate: a.gate}
	for i := range a.granted {
		c := &a.granted[i].charge
		if !c.Limit.Algorithm.Holds {
			continue
		}
		n.holds = append(n.holds, *c)
		if every := c.Limit.Period / 3; n.every == 0 || every < n.every {
			n.every = every
		}
	}
	if n.holds == nil {
		return
	}
	a.renewal = n
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timer = time.AfterFunc(n.every, n.renew)
}

func (n *renewal) renew() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	for i := range n.holds {
		// A slot that cannot be renewed may be lent to others; a request that is being served is not cut
		// off for that.
		if d, err := panicked.Decide(ctx, n.gate.store, n.holds[i:i+1]); err == nil && !d.Allowed {
			n.lost = true
		}
	}
	n.timer.Reset(n.every)
}

func (n *renewal) stop() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	n.timer.Stop()
}
