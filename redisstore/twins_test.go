package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// The Go steps and their Lua twins give equal answers, in every field. Batches are random, with few
// keys and limits that are chosen to be difficult. The clock stops, moves by a few µs, jumps and
// steps back. Limits change and keep their names.
func TestTwins(t *testing.T) {
	effort.SkipUnderRace(t)
	server := redistest.Shared(t)
	client := dialURL(t, server.URL())
	for i, subject := range twinSubjects() {
		t.Run(subject.name, func(t *testing.T) {
			t.Parallel()
			seed := effort.Seed()
			decided := 0
			for trace := uint64(0); decided < batchesPerSubject(); trace++ {
				n, err := runTwins(client, subject, rand.New(rand.NewPCG(seed, uint64(i)<<32|trace)))
				if err != nil {
					t.Fatalf("PENSTOCK_SEED=%d go test -run 'TestTwins/%s' (trace %d): %v", seed, subject.name, trace, err)
				}
				decided += n
			}
			t.Logf("counted: %d batches with equal answers of both twins", decided)
		})
	}
}

// batchesPerSubject returns how many batches are compared for each subject, in many traces.
func batchesPerSubject() int { return effort.Of(3_000, 1_000_000) }

// A twinSubject is what a trace charges: one algorithm in several variants, or a mixture.
type twinSubject struct {
	name       string
	algorithms []*algorithm.Algorithm
}

func twinSubjects() []twinSubject {
	newYork, err := time.LoadLocation("America/New_York")
	if err != nil {
		panic(err)
	}
	subjects := []twinSubject{
		{"tokenbucket", []*algorithm.Algorithm{algorithm.TokenBucket}},
		{"leakybucket", []*algorithm.Algorithm{algorithm.LeakyBucket}},
		{"fixedwindow", []*algorithm.Algorithm{
			algorithm.FixedWindow, algorithm.AnchoredWindow,
			algorithm.CalendarWindow(algorithm.Day, newYork), algorithm.CalendarWindow(algorithm.Week, time.UTC),
			algorithm.CalendarWindow(algorithm.Month, newYork),
		}},
		{"slidingwindow", []*algorithm.Algorithm{algorithm.SlidingWindow}},
		{"subwindow", []*algorithm.Algorithm{
			algorithm.SubWindow(1), algorithm.SubWindow(2), algorithm.SubWindow(7), algorithm.SubWindow(algorithm.MaxParts),
		}},
		{"slidinglog", []*algorithm.Algorithm{algorithm.SlidingLog}},
		{"concurrency", []*algorithm.Algorithm{algorithm.Concurrency}},
	}
	for _, s := range []twinSubject{
		{"tokenbucket_across", slices.Clone(subjects[0].algorithms)}, {"subwindow_across", slices.Clone(subjects[4].algorithms)},
		{"fixedwindow_across", slices.Delete(slices.Clone(subjects[2].algorithms), 1, 2)},
	} {
		for i, a := range s.algorithms {
			s.algorithms[i] = algorithm.Across(a)
		}
		shared := twinSubject{name: strings.Replace(s.name, "_", "_share_", 1)}
		for i, a := range s.algorithms {
			shared.algorithms = append(shared.algorithms, algorithm.ShareAcross(a, 1+i), algorithm.ShareAcross(a, 3))
		}
		subjects = append(subjects, s, shared)
	}
	mixed := twinSubject{name: "mixed"}
	for _, s := range subjects {
		mixed.algorithms = append(mixed.algorithms, s.algorithms...)
	}
	return append(subjects, mixed)
}

// runTwins makes the same calls to redisstore and memstore. It returns how many batches got the
// same answers from both.
func runTwins(client Client, subject twinSubject, rng *rand.Rand) (int, error) {
	clock := time.UnixMicro(1_700_000_000_000_000 + rng.Int64N(200_000_000_000_000)) // from 2023 to 2030
	now := func() time.Time { return clock }
	redis, err := New(keptOpenClient{client}, Options{Now: now, Prefix: fmt.Sprintf("t%x", rng.Uint64())})
	if err != nil {
		return 0, err
	}
	defer redis.Close()
	memory := memstore.New(memstore.Options{Now: now, Locks: 1 << rng.IntN(3), Linger: 1e6 * time.Hour}) // keeps all states, because the clock may step back

	limits := make([]*penstock.Plan, 1+rng.IntN(4))
	for i := range limits {
		limits[i] = hostileLimit(rng, subject, i)
	}
	last := penstock.Single(penstock.Status{})
	var receipts []int64
	decided := 0
	for range 100 {
		if rng.IntN(20) == 0 {
			i := rng.IntN(len(limits))
			limits[i] = hostileLimit(rng, subject, i)
		}
		clock = hostileStep(rng, clock, limits[rng.IntN(len(limits))], &last)
		batches := make([][]penstock.Charge, 1)
		if rng.IntN(4) == 0 {
			batches = make([][]penstock.Charge, 2+rng.IntN(6)<<rng.IntN(4)) // 2 to 42
		}
		repeats := rng.IntN(3) // callers often make equal batches: a half to three quarters of them
		for i := range batches {
			batches[i] = hostileBatch(rng, limits, clock, &last, receipts)
			if i > 0 && rng.IntN(repeats+2) > 0 {
				batches[i] = batches[i-1]
			}
		}
		if len(batches) > 1 && rng.IntN(4) == 0 {
			batches = onEachKey(batches[0])
		}
		got, order, err := redis.decideList(context.Background(), batches)
		if err != nil {
			return decided, fmt.Errorf("redis could not decide the batches: %w: %v", err, batches)
		}
		for _, i := range order {
			batch := batches[i]
			want, err := memory.Decide(context.Background(), batch)
			if err != nil {
				return decided, err
			}
			for n := range batch {
				if got[i].Allowed != want.Allowed || got[i].Status(n) != want.Status(n) {
					return decided, fmt.Errorf("at %d µs, batch %d of %d, charge %d:\n%v\nredis  %v %+v\nmemory %v %+v", clock.UnixMicro(),
						i, len(batches), n, describe(batch), got[i].Allowed, got[i].Status(n), want.Allowed, want.Status(n))
				}
			}
			last = want
			receipts = appendReceipts(receipts, &last)
			decided++
		}
	}
	return decided, nil
}

// appendReceipts adds the receipts of a decision.
func appendReceipts(receipts []int64, d *penstock.Decision) []int64 {
	for i := range d.Len() {
		if receipt := d.Status(i).Receipt; receipt != 0 {
			receipts = append(receipts, receipt)
		}
	}
	return receipts
}

// decideList decides independent batches as a coalescer does for waiting callers. It also returns
// the order in which they were decided.
func (s *Store) decideList(ctx context.Context, batches [][]penstock.Charge) (decisions []penstock.Decision, order []int, err error) {
	if len(batches) == 1 {
		d, err := s.Decide(ctx, batches[0])
		return []penstock.Decision{d}, []int{0}, err
	}
	return s.decideTogether(ctx, batches, func(*penstock.Charge) penstock.Mode { return 0 })
}

// decideTogether does what decideList does for several batches. It adds to the mode of each charge
// what addedMode returns, such as dryRun.
func (s *Store) decideTogether(ctx context.Context, batches [][]penstock.Charge, addedMode func(*penstock.Charge) penstock.Mode) (decisions []penstock.Decision, order []int, err error) {
	serial := &serialDecider{decider: decider{s}}
	c := coalesce.New(serial)
	for range 2 { // while two scripts are in flight, all other batches wait
		if !c.Enter(ctx, []*coalesce.Waiter{new(coalesce.Waiter)}) {
			return nil, nil, errors.New("the coalescer is not idle")
		}
	}
	waiters := make([]coalesce.Waiter, len(batches))
	index := make(map[*coalesce.Waiter]int)
	for i, batch := range batches {
		if err := penstock.Check(batch); err != nil {
			return nil, nil, err
		}
		waiters[i].Charges = slices.Clone(batch)
		for j := range batch {
			waiters[i].Charges[j].Mode += addedMode(&batch[j])
		}
		c.Enter(ctx, []*coalesce.Waiter{&waiters[i]})
		index[&waiters[i]] = i
	}
	c.Exit()
	c.Exit()
	for i := range waiters { // also after an error, since the others are still in flight
		_, waitErr := c.Wait(ctx, &waiters[i])
		if err == nil {
			err = cmp.Or(waitErr, waiters[i].Err)
		}
		decisions = append(decisions, waiters[i].Decision)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, w := range serial.order {
		order = append(order, index[w])
	}
	return decisions, order, nil
}

// A serialDecider decides one flight after another, until one fails. It records the order of the
// waiters.
type serialDecider struct {
	decider
	mu    sync.Mutex
	order []*coalesce.Waiter
	err   error
}

func (d *serialDecider) DecideFlight(ctx context.Context, f *coalesce.Flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = d.decideFlight(ctx, new(call), f)
	}
	for _, r := range f.Requests {
		d.order = append(d.order, r.Waiters...)
		for _, w := range r.Waiters {
			w.Err = cmp.Or(d.err, w.Err)
		}
	}
}

// describe returns a line for each charge of a batch, for messages.
func describe(batch []penstock.Charge) string {
	text := ""
	for _, c := range batch {
		text += fmt.Sprintf("  %v %d of %v under %q, patience %v, holder %q, refundable %v, receipt %d, serial %d\n",
			c.Mode, c.Cost, c.Plan, c.Key, c.Patience, c.Holder, c.IsRefundable, c.Receipt, c.Serial)
	}
	return text
}

// hostileLimit draws a limit with extreme values. Few names and groups are drawn, so that limits
// change while they are in use, and share strings.
func hostileLimit(rng *rand.Rand, subject twinSubject, i int) *penstock.Plan {
	for {
		a := subject.algorithms[rng.IntN(len(subject.algorithms))]
		l := penstock.Limit{Name: fmt.Sprintf("l%d", i), Algorithm: a}
		if rng.IntN(2) == 0 {
			l.Group = "g"
		}
		l.Count = pick(rng, 1, 2, 3, 5, 7, 10, 97, 100, 997, 1000, 1_000_003, 1_000_000_000, algorithm.Max/2, 1+rng.Int64N(1000))
		l.Period = time.Microsecond * time.Duration(pick(rng, 1, 7, 60, 1000, 999_983, 1_000_000, 1_000_000, 60_000_000,
			3_600_000_000, 86_400_000_000, 30*86_400_000_000, algorithm.MaxPeriod, 1+rng.Int64N(10_000_000)))
		switch rng.IntN(4) {
		case 0:
			l.Burst = pick(rng, 1, 2, 3, 10, 100, 1000)
		case 1:
			l.Burst = 1 + rng.Int64N(50)
		case 2:
			l.Burst = algorithm.Max / 2 / max(l.Period.Microseconds(), 1)
		}
		l.ShouldCountDenied = a.CountsDenied() && rng.IntN(3) == 0
		if l.Validate() == nil {
			return l.MustCompile()
		}
	}
}

// hostileStep moves the clock by nothing, by a part of a period, by several periods, or back. Or it
// moves the clock to a time that the last answer named, or to just before that time.
func hostileStep(rng *rand.Rand, clock time.Time, limit *penstock.Plan, last *penstock.Decision) time.Time {
	period := max(limit.Limit().Period.Microseconds(), 1)
	status := last.Status(rng.IntN(last.Len()))
	step := int64(0)
	switch rng.IntN(20) {
	case 0, 1, 2:
		step = 1 + rng.Int64N(10) // µs
	case 3, 4:
		step = rng.Int64N(period/limit.Limit().Count + 2) // about the time of one unit
	case 5, 6:
		step = rng.Int64N(period + 1)
	case 7:
		step = period
	case 8:
		step = rng.Int64N(3 * period)
	case 9, 10:
		step = status.RetryAfter.Microseconds()
	case 11:
		step = status.RetryAfter.Microseconds() - 1
	case 12:
		step = status.ResetAfter.Microseconds() - rng.Int64N(2)
	case 13:
		step = -rng.Int64N(algorithm.MaxStall + 1)
	case 14:
		if rng.IntN(4) == 0 {
			step = -(algorithm.MaxStall + 1) - rng.Int64N(3_600_000_000) // so far back that the state is repaired
		}
	}
	step = min(step, 3_000_000_000_000)                                       // 35 days
	return time.UnixMicro(max(clock.UnixMicro()+step, 1_000_000_000_000_000)) // not before 2001
}

var twinKeys = [...]string{"", "a", "b{c}\x00\n:"}

// hostileBatch draws one to four charges of different limits or keys. receipts are those of earlier
// charges.
func hostileBatch(rng *rand.Rand, limits []*penstock.Plan, now time.Time, last *penstock.Decision, receipts []int64) []penstock.Charge {
	var batch []penstock.Charge
	n := 1
	if rng.IntN(3) == 0 {
		n = 1 + rng.IntN(4)
	}
	for range n {
		l := limits[rng.IntN(len(limits))]
		c := penstock.Charge{Key: twinKeys[rng.IntN(3)], Plan: l, Cost: 1}
		modes := []penstock.Mode{ // a mode that is listed more often is more frequent
			penstock.Spend, penstock.Spend, penstock.Spend, penstock.Spend, penstock.Spend, penstock.Spend,
			penstock.Draw, penstock.Draw, penstock.Peek, penstock.Force, penstock.Refund, penstock.Refund, penstock.Refund,
			penstock.Reset,
		}
		c.Mode = modes[rng.IntN(len(modes))]
		if c.Mode == penstock.Reset && rng.IntN(3) > 0 {
			c.Mode = penstock.Spend
		}
		most := max(l.Limit().Burst, l.Limit().Count)
		c.Cost = pick(rng, 0, 1, 1, 1, 1, 2, 3, l.Limit().Count, l.Limit().Count/2, l.Limit().Burst, most+1, 1+rng.Int64N(most),
			last.Status(0).Remaining, last.Status(0).Remaining+1, penstock.MaxCost)
		c.Cost = min(c.Cost, penstock.MaxCost)
		if rng.IntN(3) == 0 {
			c.Patience = min(time.Duration(pick(rng, 1, 1000, 1_000_000, l.Limit().Period.Microseconds(), 1<<40))*time.Microsecond, l.MaxPatience())
		}
		c.Holder = []string{"x", "y", "z", "holder\x00 with:{}"}[rng.IntN(4)]
		if !l.Algorithm().NeedsHolder() && rng.IntN(2) == 0 {
			c.Holder = ""
		}
		// Some charges may be refunded, and refunds have the receipts of earlier charges.
		c.IsRefundable = rng.IntN(3) == 0
		if c.Mode == penstock.Refund && len(receipts) > 0 && rng.IntN(4) > 0 {
			c.Receipt = receipts[len(receipts)-1-rng.IntN(min(len(receipts), 40))] + pick(rng, 0, 0, 0, 0, 0, 0, 0, 1)
		}
		c.Serial = pick(rng, 0, 0, 0, 1, 2, 3, algorithm.Max)                 // only Concurrency uses it
		if a := l.Algorithm(); algorithm.Across(a) == a && rng.IntN(2) == 0 { // regions exchange totals: see algorithm/across.go
			c = penstock.Charge{Key: c.Key, Plan: l, Cost: c.Cost, Mode: algorithm.Attempt + 1 + penstock.Mode(rng.IntN(3))}
			c.Holder = fmt.Sprint("region ", rng.IntN(3+rng.IntN(14)))
			c.Receipt = pick(rng, 1, 1, 1, 1, 2, algorithm.Max)
			c.Patience = time.Duration(pick(rng, 0, 1, 100, l.Limit().Period.Microseconds(), last.Status(0).ResetAfter.Microseconds())) * time.Microsecond
			if algorithm.ShareAcross(a, 1).Name() == a.Name() { // they lend each other shares: see algorithm/share.go
				share := func() int64 { return pick(rng, 0, 1, 20, 100, rng.Int64N(841)) }
				c.Cost = share() + share()<<10 + pick(rng, 0, 0, 1, 2)<<20
				c.Receipt = now.UnixMicro() + pick(rng, -1, 1, 1000, 1_000_000, 6_000_000, 60_000_000)
				c.Patience = time.Duration(pick(rng, 1, 1000, 1_000_000, 6_000_000, 1e10)) * time.Microsecond
				c.Holder = fmt.Sprint("region ", rng.IntN(2+rng.IntN(10)))
			}
		}
		batch = append(batch, c)
		if err := penstock.Check(batch); err != nil {
			batch = batch[:len(batch)-1] // the same limit twice
		}
	}
	return batch
}

// onEachKey returns a batch with other keys: one that differs from the others only in the key, for
// each key that hostileBatch draws.
func onEachKey(batch []penstock.Charge) (batches [][]penstock.Charge) {
	for _, key := range twinKeys {
		other := slices.Clone(batch)
		for i := range other {
			other[i].Key = key
		}
		if penstock.Check(other) == nil { // not the same limit twice
			batches = append(batches, other)
		}
	}
	if len(batches) == 0 {
		return [][]penstock.Charge{batch}
	}
	return batches
}

// pick returns one of the values.
func pick(rng *rand.Rand, values ...int64) int64 { return values[rng.IntN(len(values))] }
