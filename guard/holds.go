package guard

import (
	"container/heap"
	"container/list"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/internal/lazy"
	"github.com/penstock/penstock/internal/panicked"
)

const (
	maxHolds = 1 << 16 // holds that are known; beyond that, the one charged longest ago is forgotten

	// The store gets at most triesPerPass returns and retakes in passPause. That is 6,400 a second.
	triesPerPass = 64
	passPause    = 10 * time.Millisecond

	idlePause  = 100 * time.Millisecond // the pause after a pass with fewer tries
	retryPause = 500 * time.Millisecond // the time until a return or a retake that failed is tried again

	// A charge of unknown outcome may be made as late as this: as long as Linux sends the bytes of a
	// connection again.
	maxChargeDelay = 15 * time.Minute

	// The bounds of the time after which a return is repeated, because a late charge may follow it.
	minRepeatPause = time.Second
	maxRepeatPause = 2 * time.Minute
)

// holds is a guard that corrects the holds of Concurrency limits in the store after an outage. It
// knows the holds that the store has granted or may have granted, and those that Fallback has
// granted. It forgets a hold that is refunded or has expired.
//
// holds returns a hold to the store if the store did not get its Refund. Otherwise its slots would
// be in use until its Period ends, long after the store answers again. A hold is returned in the
// background
//
//   - if its Refund has ended with an error;
//   - if its first charge has an unknown outcome, and its caller is denied or gets an error;
//   - if one of its charges has an unknown outcome, once more after its Refund, because the store
//     may make that charge after the Refund.
//
// holds retakes a hold in the background if its holder has it, but the store did not decide its
// last charge: the store gets a Force of its cost. Otherwise the store would forget the hold at the
// end of its Period, and lend its slots to others. If it already has lent them, the Force exceeds
// the limit. Then the store lends no more slots until enough holds have ended.
//
// A return or a retake is tried until it succeeds. If the store grants the holder a charge, neither
// is needed any more. Charges without holds take neither time nor memory.
type holds struct {
	next       batches.Func
	several    batches.Func // decides lists of several batches
	background batches.Func // next, with a deadline for each call
	report     func(returned int)

	unreturned   atomic.Int64 // holds with the task toReturn; written while mu is held
	returnedLate atomic.Int64

	work       context.Context // of the goroutine that returns and retakes holds; it ends when the guard is closed
	endWork    context.CancelFunc
	worker     sync.WaitGroup
	unreported int // holds that were returned and not reported; only that goroutine, and then close, use it

	mu        sync.Mutex
	byKey     map[holdKey]*hold
	byCharge  list.List // the holds; the one that was charged longest ago comes first
	due       dueHolds  // those with a task, except those that are being charged, returned or retaken
	tasks     int       // holds with a task
	isWorking bool      // the goroutine that returns and retakes holds runs
}

// A holdKey names a hold: the limit, its key and the holder.
type holdKey struct {
	limit       [2]uint64
	key, holder string
}

type hold struct {
	holdKey
	plan      *penstock.Plan
	cost      int64
	serial    int64         // the highest Serial of its charges
	heldUntil time.Time     // until when its holder has it, unless it is renewed; zero: its holder has given it up
	isStored  bool          // the store has granted it
	unknownAt time.Time     // when its last charge of unknown outcome ended; zero: there was none
	until     time.Time     // the store has ended the hold by then
	element   *list.Element // in byCharge

	charging   int           // charges of its holder that are in flight
	task       task          // to do in the background
	dueAt      time.Time     // when to do its task
	confirmAt  time.Time     // when a return is final, although a charge has an unknown outcome; zero: none has succeeded yet
	index      int           // in due; -1: it is not there
	done       chan struct{} // closed when the return or the retake in flight ends; nil: there is none
	isRetaking bool          // a retake is in flight
}

// A task is what is to be done with a hold in the background.
type task uint8

const (
	noTask task = iota
	toReturn
	toRetake
)

func newHolds(report func(returned int)) *holds {
	if report == nil {
		report = func(int) {}
	}
	s := &holds{report: report, byKey: make(map[holdKey]*hold)}
	s.work, s.endWork = context.WithCancel(context.Background())
	return s
}

func (s *holds) around(deadlines *deadline.Set) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		s.next, s.background = batches.Of(next), batches.Of(deadlines.Within(next))
		s.several = batches.Alone(hasHold, s.decide, s.next)
		return batches.Func(s.decide)
	}
}

func hasHold(b *batches.Batch) bool { return haveHolds(b.Charges) }

func (s *holds) decide(ctx context.Context, list []*batches.Batch) {
	if len(list) > 1 {
		s.several(ctx, list)
		return
	}
	b := list[0]
	if !hasHold(b) {
		s.next(ctx, list)
		return
	}
	begun := s.begin(ctx, b.Charges)
	err := errPanicked // if next panics
	defer func() { s.end(b.Charges, begun, &b.Decision, err) }()
	s.next(ctx, list)
	err = b.Err
}

func haveHolds(charges []penstock.Charge) bool {
	for i := range charges {
		if isOfHold(&charges[i]) {
			return true
		}
	}
	return false
}

func isOfHold(c *penstock.Charge) bool {
	return c.Holder != "" && c.Plan != nil && c.Plan.Algorithm().NeedsHolder()
}

// takesHold reports whether a charge takes or renews a hold if it is granted.
func takesHold(c *penstock.Charge) bool {
	switch c.Mode {
	case penstock.Spend, penstock.Draw, penstock.Force:
		return c.Cost > 0
	}
	return false
}

func holdKeyOf(c *penstock.Charge) holdKey {
	return holdKey{limit: c.Plan.ID(), key: c.Key, holder: c.Holder}
}

// begin stops the return of holds that are charged again. It waits for returns in flight, because
// the store might make such a return after the charge. begun has a bit for each charge whose hold
// must not be returned before end is called.
func (s *holds) begin(ctx context.Context, charges []penstock.Charge) (begun uint64) {
	if s.unreturned.Load() == 0 || len(charges) > penstock.MaxCharges {
		return 0
	}
	for i := range charges {
		c := &charges[i]
		if !isOfHold(c) || !takesHold(c) {
			continue
		}
		done, isBegun := s.beginCharge(holdKeyOf(c))
		if isBegun {
			begun |= 1 << i
		}
		if done != nil {
			_ = lazy.Await(ctx, done, nil)
		}
	}
	return begun
}

func (s *holds) beginCharge(key holdKey) (done <-chan struct{}, isBegun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.byKey[key]
	if h == nil {
		return nil, false
	}
	h.charging++
	s.scheduleLocked(h)
	return h.done, true
}

func (s *holds) end(charges []penstock.Charge, begun uint64, d *penstock.Decision, err error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		c := &charges[i]
		if !isOfHold(c) {
			continue
		}
		key := holdKeyOf(c)
		h := s.byKey[key]
		if h != nil && begun&(1<<i) != 0 {
			h.charging = max(h.charging-1, 0)
			s.scheduleLocked(h)
		}
		switch {
		case err == nil && !d.Allowed: // nothing was charged or refunded
		case takesHold(c) && err == nil:
			h := s.keepLocked(key, c, now)
			h.isStored, h.heldUntil = true, now.Add(c.Plan.Limit().Period)
			h.keepUntil(h.heldUntil)
		case takesHold(c) && isOutcomeUnknown(err):
			s.keepLocked(key, c, now).noteUnknown(now)
		case c.Mode != penstock.Refund || h == nil: // a hold that another process has taken is not known here
		case err == nil && c.Cost < h.cost:
			h.cost -= c.Cost
		case err == nil:
			s.refundLocked(h, now)
		case c.Cost < h.cost: // a Refund of a part must not be repeated, because it may have been made
		case h.isStored || !h.unknownAt.IsZero() || h.isRetaking: // the store has the hold, or may still get it
			s.returnLocked(h, now)
		default:
			s.forgetLocked(h)
		}
	}
}

// isOutcomeUnknown reports whether the store may have made the charges of a batch that ended with
// err.
func isOutcomeUnknown(err error) bool {
	if e := penstock.AsStoreError(err); e != nil {
		return e.MayBeCharged
	}
	return !errors.Is(err, penstock.ErrInvalid)
}

// noteUndecided records the result of a batch that the store did not decide. Holds that its caller
// has are retaken: those that it was granted now, and those that it had before, because it may
// still work. A Refund will return them. The other holds are returned.
func (s *holds) noteUndecided(charges []penstock.Charge, isGranted bool) {
	if s == nil || !haveHolds(charges) {
		return
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		c := &charges[i]
		if !isOfHold(c) || !takesHold(c) {
			continue
		}
		key := holdKeyOf(c)
		h := s.byKey[key]
		switch {
		case isGranted || h != nil && now.Before(h.heldUntil):
			h := s.keepLocked(key, c, now)
			h.heldUntil = now.Add(c.Plan.Limit().Period)
			h.keepUntil(h.heldUntil)
			s.setTaskLocked(h, toRetake, now.Add(retryPause)) // most requests end before
		case h != nil:
			s.returnLocked(h, now)
		}
	}
}

func (h *hold) noteUnknown(now time.Time) {
	h.unknownAt, h.confirmAt = now, time.Time{}
	h.keepUntil(now.Add(maxChargeDelay + h.plan.Limit().Period))
}

func (h *hold) keepUntil(at time.Time) {
	if at.After(h.until) {
		h.until = at
	}
}

// keepLocked returns the hold of a charge, which its holder has or may have from now on.
func (s *holds) keepLocked(key holdKey, c *penstock.Charge, now time.Time) *hold {
	h := s.byKey[key]
	if h != nil {
		s.byCharge.MoveToBack(h.element)
		s.setTaskLocked(h, noTask, time.Time{})
	} else {
		s.makeRoomLocked(now)
		key.key, key.holder = strings.Clone(key.key), strings.Clone(key.holder) // they may be parts of a large request
		h = &hold{holdKey: key, index: -1}
		h.element = s.byCharge.PushBack(h)
		s.byKey[key] = h
	}
	h.plan, h.cost, h.serial = c.Plan, c.Cost, max(h.serial, c.Serial)
	return h
}

// makeRoomLocked forgets up to two holds that have expired, and one more if there are too many.
func (s *holds) makeRoomLocked(now time.Time) {
	for range 2 {
		oldest := s.byCharge.Front()
		if oldest == nil {
			return
		}
		h := oldest.Value.(*hold)
		if len(s.byKey) < maxHolds && now.Before(h.until) {
			return
		}
		s.forgetLocked(h)
	}
}

func (s *holds) forgetLocked(h *hold) {
	s.setTaskLocked(h, noTask, time.Time{})
	s.byCharge.Remove(h.element)
	delete(s.byKey, h.holdKey)
}

// refundLocked records that the store has refunded a hold. If a charge of the hold has an unknown
// outcome, the store may make that charge later. Then the return is repeated when the charge is
// twice as old. By then a packet that was lost has been sent again, if the network works.
func (s *holds) refundLocked(h *hold, now time.Time) {
	if h.isRetaking { // the store may make the retake after the Refund
		s.returnLocked(h, now)
		return
	}
	if h.done != nil {
		return // the result of the return in flight decides
	}
	isConfirmed := !h.confirmAt.IsZero() && !now.Before(h.confirmAt)
	if h.unknownAt.IsZero() || isConfirmed {
		s.forgetLocked(h)
		return
	}
	if h.confirmAt.IsZero() {
		h.confirmAt = now.Add(min(max(now.Sub(h.unknownAt), minRepeatPause), maxRepeatPause))
	}
	s.returnLocked(h, h.confirmAt)
}

func (s *holds) returnLocked(h *hold, dueAt time.Time) {
	h.heldUntil = time.Time{}
	s.setTaskLocked(h, toReturn, dueAt)
}

func (s *holds) setTaskLocked(h *hold, to task, dueAt time.Time) {
	if h.index >= 0 { // while it is in due, its dueAt must not change
		heap.Remove(&s.due, h.index)
	}
	s.countLocked(h.task, -1)
	s.countLocked(to, 1)
	h.task, h.dueAt = to, dueAt
	s.scheduleLocked(h)
	if s.tasks > 0 && !s.isWorking && s.work.Err() == nil {
		s.isWorking = true
		s.worker.Go(s.doTasks)
	}
}

func (s *holds) countLocked(t task, n int) {
	if t != noTask {
		s.tasks += n
	}
	if t == toReturn {
		s.unreturned.Add(int64(n))
	}
}

// scheduleLocked adds h to due if its task can be done, and removes it otherwise.
func (s *holds) scheduleLocked(h *hold) {
	isDue := h.task != noTask && h.charging == 0 && h.done == nil
	if isDue && h.index < 0 {
		heap.Push(&s.due, h)
	} else if !isDue && h.index >= 0 {
		heap.Remove(&s.due, h.index)
	}
}

// doTasks returns and retakes holds until there are no more tasks.
func (s *holds) doTasks() {
	defer panicked.Recover("holds are returned")
	for {
		pause, tried := passPause, s.tryDue(s.work, time.Now())
		if tried < triesPerPass {
			pause = idlePause
		}
		if tried == 0 || s.unreturned.Load() == 0 {
			s.reportReturned()
		}
		s.mu.Lock()
		s.isWorking = s.tasks > 0
		isIdle := !s.isWorking
		s.mu.Unlock()
		if isIdle {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.work.Done():
			timer.Stop()
			return
		}
	}
}

func (s *holds) reportReturned() {
	if s.unreported > 0 {
		s.report(s.unreported)
		s.unreported = 0
	}
}

// tryDue tries the returns and retakes that are due by a time, at most triesPerPass. It returns how
// many it tried.
func (s *holds) tryDue(ctx context.Context, by time.Time) int {
	due, list := s.takeDue(by)
	if len(due) == 0 {
		return 0
	}
	batches.Try(ctx, s.background, list)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range due {
		close(h.done)
		h.done = nil
		if h.isRetaking {
			s.noteRetakeLocked(h, list[i], now)
		} else {
			s.noteReturnLocked(h, list[i], now)
		}
	}
	return len(due)
}

// takeDue returns holds whose return or retake is now in flight, and the batches that make these.
func (s *holds) takeDue(by time.Time) (due []*hold, list []*batches.Batch) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.due) > 0 && len(due) < triesPerPass && !s.due[0].dueAt.After(by) {
		h := s.due[0]
		if now.After(h.until) {
			s.forgetLocked(h)
			continue
		}
		if h.task == toRetake && now.After(h.heldUntil) { // its holder has not renewed it
			s.setTaskLocked(h, noTask, time.Time{})
			continue
		}
		c := penstock.Charge{Key: h.key, Plan: h.plan, Cost: h.cost, Mode: penstock.Refund, Holder: h.holder, Serial: h.serial}
		if h.task == toRetake {
			c.Mode, h.isRetaking = penstock.Force, true
		}
		h.done = make(chan struct{})
		s.scheduleLocked(h)
		due, list = append(due, h), append(list, &batches.Batch{Charges: []penstock.Charge{c}})
	}
	return due, list
}

func (s *holds) noteReturnLocked(h *hold, b *batches.Batch, now time.Time) {
	if b.Err == nil && b.Decision.Status(0).Granted > 0 { // the store had the hold
		s.returnedLate.Add(1)
		s.unreported++
	}
	switch {
	case s.byKey[h.holdKey] != h: // it was forgotten
	case h.task != toReturn: // its holder has it again
		s.scheduleLocked(h)
	case b.Err != nil:
		s.returnLocked(h, now.Add(retryPause))
	default:
		s.refundLocked(h, now)
	}
}

// noteRetakeLocked records the result of a retake. If the hold was refunded meanwhile, it is
// returned now.
func (s *holds) noteRetakeLocked(h *hold, b *batches.Batch, now time.Time) {
	h.isRetaking = false
	switch {
	case s.byKey[h.holdKey] != h: // it was forgotten
		return
	case b.Err == nil:
		h.isStored = true
		h.keepUntil(now.Add(h.plan.Limit().Period))
	case isOutcomeUnknown(b.Err):
		h.noteUnknown(now)
	}
	switch {
	case h.task != toRetake:
		s.scheduleLocked(h)
	case b.Err == nil:
		s.setTaskLocked(h, noTask, time.Time{})
	default:
		s.setTaskLocked(h, toRetake, now.Add(retryPause))
	}
}

// close ends the work in the background. Then it tries once to do the tasks that are left.
func (s *holds) close(ctx context.Context) {
	s.endWork()
	s.worker.Wait()
	s.mu.Lock()
	left := len(s.due)
	s.mu.Unlock()
	forever := time.Now().Add(math.MaxInt64)
	for ; left > 0 && ctx.Err() == nil; left -= triesPerPass {
		s.tryDue(ctx, forever)
	}
	s.reportReturned()
}

type dueHolds []*hold

func (d dueHolds) Len() int           { return len(d) }
func (d dueHolds) Less(i, j int) bool { return d[i].dueAt.Before(d[j].dueAt) }

func (d dueHolds) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

func (d *dueHolds) Push(x any) {
	h := x.(*hold)
	h.index = len(*d)
	*d = append(*d, h)
}

func (d *dueHolds) Pop() any {
	last := len(*d) - 1
	h := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	h.index = -1
	return h
}
