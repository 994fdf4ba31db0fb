package split

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
)

// The limits of the tests of calls. Each of them has 14 units, in three parts of 5, 5 and 4. Only
// whole is not split.
var (
	window   = penstock.PerHour(14).With(penstock.FixedWindow).MustCompile()
	bucket   = penstock.PerHour(14).MustCompile()
	slots    = penstock.InFlight(14, time.Minute).MustCompile()
	whole    = penstock.PerDay(14).WithName("whole").MustCompile()
	counting = penstock.Limit{Name: "counting", Count: 14, Period: time.Hour, ShouldCountDenied: true}.MustCompile()
)

func inThree(plan *penstock.Plan) int {
	if plan == whole {
		return 1
	}
	return 3
}

// A reply is what a scriptedStore replies to one call.
type reply struct {
	statuses []penstock.Status
	err      error
}

func replies(all ...reply) []reply { return all }

func gets(statuses ...penstock.Status) reply { return reply{statuses: statuses} }
func fails(err error) reply                  { return reply{err: err} }

// grants and denies return statuses of a shard that has the given units left. A denial has no units
// left or too few.
func grants(units, left int64) penstock.Status {
	return penstock.Status{Granted: units, Remaining: left}
}

func denies(retryAfter time.Duration, left int64) penstock.Status {
	return penstock.Status{RetryAfter: retryAfter, Remaining: left}
}

const ms = time.Millisecond

var (
	errStore         = errors.New("for the test")
	errOpen    error = penstock.NewStoreError(penstock.ReasonBreakerOpen, nil)
	noStatuses []penstock.Status
)

// A scriptedStore replies to its calls one after the other, and records them.
type scriptedStore struct {
	t       *testing.T
	replies []reply
	takes   time.Duration // for each call
	calls   []string
}

func (s *scriptedStore) Decide(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	time.Sleep(s.takes)
	var texts []string
	for i := range charges {
		c := &charges[i]
		text := fmt.Sprintf("%s %s %d", c.Key, c.Mode, c.Cost)
		if c.Patience > 0 {
			text += fmt.Sprintf(", patient for %v", c.Patience)
		}
		if c.Receipt > 0 {
			text += fmt.Sprintf(", receipt %d", c.Receipt)
		}
		if c.IsFreeIfDenied {
			text += ", free if denied"
		}
		texts = append(texts, text)
		capacity := int64(14)
		if _, shard, isSplit := strings.Cut(c.Key, "~"); isSplit {
			capacity = map[string]int64{"00": 5, "01": 5, "02": 4}[shard]
		}
		if c.Plan.Capacity() != capacity {
			s.t.Errorf("%q is for a limit of %d units; want %d", text, c.Plan.Capacity(), capacity)
		}
	}
	s.calls = append(s.calls, strings.Join(texts, "; "))
	if len(s.replies) < len(s.calls) {
		return penstock.Decision{}, errors.New("the script has ended")
	}
	r := s.replies[len(s.calls)-1]
	if r.err != nil {
		return penstock.Decision{}, r.err
	}
	if len(r.statuses) != len(charges) {
		s.t.Errorf("the call %q has %d charges; the script replies with %d statuses", s.calls[len(s.calls)-1], len(charges), len(r.statuses))
		return penstock.Decision{}, errors.New("the script does not fit")
	}
	d := penstock.NewDecision(r.statuses)
	d.Source = penstock.FromLease
	return d, nil
}

// decideFromShard1 decides charges of limits in three parts. The order of the shards is 1, 2, 0:
// the holder "h" has this order, and the test sets it for the other limits. The memory of the batch
// is full of what a batch before could have left there.
func decideFromShard1(ctx context.Context, next penstock.Store, charges []penstock.Charge) (penstock.Decision, error) {
	s := &store{shardsOf: inThree, next: batches.Of(next)}
	b := &splitBatch{source: penstock.FromFallback, isLastTry: true}
	for range charges {
		p := chargeState{
			parts: PartsOf(bucket.Limit(), 2), status: penstock.Status{Granted: 9, Remaining: 9, RetryAfter: 9, ResetAfter: 9, Wait: 9, Receipt: 9},
			strategy: byRemaining, firstIndex: 2, tried: 2, shortestRetry: 1, soonestShard: 2, isConfirmed: true, receipt: 99, grantingShard: 2,
		}
		for shard := range maxParts {
			p.remaining[shard], p.shardCosts[shard] = 99, 99
		}
		b.states = append(b.states, p)
	}
	first, parts := s.firstSplit(charges)
	b.begin(s, charges, first, parts)
	for i := range charges {
		namesShard := charges[i].Receipt != 0 && charges[i].Receipt&63 != allShards
		if p := &b.states[i]; p.parts != nil && !p.parts.hasHolds && !namesShard {
			p.firstIndex = 1
		}
	}
	d, err := b.decide(ctx)
	b.end()
	for i := range b.states {
		if b.states[i].parts != nil {
			return d, errors.New("after its end, the batch refers to parts")
		}
	}
	if len(b.outgoing)+len(b.chargeIndex)+len(b.shardIndex) > 0 || slices.ContainsFunc(b.outgoing[:cap(b.outgoing)], func(c penstock.Charge) bool { return c.Plan != nil }) {
		return d, errors.New("after its end, the batch refers to charges")
	}
	return d, err
}

// A callsTest says which calls of the store decide a batch, and what they lead to.
type callsTest struct {
	name    string
	charges []penstock.Charge
	replies []reply
	calls   []string
	want    []penstock.Status // nil: the error of the last call
}

func charge(key string, plan *penstock.Plan, mode penstock.Mode, cost int64) penstock.Charge {
	c := penstock.Charge{Key: key, Plan: plan, Mode: mode, Cost: cost}
	if plan == slots {
		c.Holder = "h"
	}
	return c
}

func patient(c penstock.Charge) penstock.Charge {
	c.Patience = time.Second
	return c
}

func withReceipt(c penstock.Charge, receipt int64) penstock.Charge {
	c.Receipt = receipt
	return c
}

func charges(all ...penstock.Charge) []penstock.Charge { return all }
func want(all ...penstock.Status) []penstock.Status    { return all }
func calls(all ...string) []string                     { return all }

func (row *callsTest) run(t *testing.T) {
	next := &scriptedStore{t: t, replies: row.replies}
	d, err := decideFromShard1(t.Context(), next, row.charges)
	if !slices.Equal(next.calls, row.calls) {
		t.Errorf("the calls are\n%s\nwant\n%s", strings.Join(next.calls, "\n"), strings.Join(row.calls, "\n"))
	}
	if row.want == nil {
		if last := row.replies[len(row.replies)-1].err; err != last || d.Allowed {
			t.Errorf("%+v, %v; want the error %v", d, err, last)
		}
		return
	}
	var got []penstock.Status
	for i := range d.Len() {
		got = append(got, d.Status(i))
	}
	isAllowed := !slices.ContainsFunc(row.want, func(s penstock.Status) bool { return s.RetryAfter > 0 })
	if err != nil || !slices.Equal(got, row.want) || d.Allowed != isAllowed || d.Source != penstock.FromLease {
		t.Errorf("the statuses are %+v, allowed: %v, by %v, %v; want %+v", got, d.Allowed, d.Source, err, row.want)
	}
}

func runAll(t *testing.T, rows []callsTest) {
	for _, row := range rows {
		t.Run(row.name, row.run)
	}
}

// A Spend goes from shard to shard. If all shards deny it, it takes what each has, if that is
// enough. A Spend that is larger than a part takes a part of each at once.
func TestCallsOfASpend(t *testing.T) {
	spend := func(cost int64) []penstock.Charge { return charges(charge("k", window, penstock.Spend, cost)) }
	eachDenies := func(first, second, third int64) []reply {
		return replies(gets(denies(30*ms, first)), gets(denies(10*ms, second)), gets(denies(20*ms, third)))
	}
	eachIsCalled := func(cost int64) []string {
		return calls(fmt.Sprint("k~01 spend ", cost), fmt.Sprint("k~02 spend ", cost), fmt.Sprint("k~00 spend ", cost))
	}
	runAll(t, []callsTest{
		{
			"the first shard grants it, and the others are thought to have as much left",
			spend(1), replies(gets(penstock.Status{Granted: 1, Remaining: 4, ResetAfter: ms, Wait: 2 * ms})), calls("k~01 spend 1"),
			want(penstock.Status{Granted: 1, Remaining: 12, ResetAfter: ms, Wait: 2 * ms}),
		},
		{
			"not more is left than the limit has",
			spend(1), replies(gets(grants(1, 5))), calls("k~01 spend 1"), want(grants(1, 13)),
		},
		{
			"the second shard grants it",
			spend(1), replies(gets(denies(30*ms, 0)), gets(grants(1, 3))), calls("k~01 spend 1", "k~02 spend 1"), want(grants(1, 9)),
		},
		{
			"the last shard grants it",
			spend(2), replies(gets(denies(30*ms, 1)), gets(denies(20*ms, 1)), gets(grants(2, 3))), eachIsCalled(2), want(grants(2, 9)),
		},
		{
			"all shards deny it",
			spend(1), eachDenies(0, 0, 0), eachIsCalled(1), want(denies(10*ms, 0)),
		},
		{
			"all shards together have too little",
			spend(3), eachDenies(1, 0, 1), eachIsCalled(3), want(denies(10*ms, 2)),
		},
		{
			"all shards together have enough",
			spend(3), append(eachDenies(2, 1, 1), gets(grants(0, 1), grants(2, 0), grants(1, 0))),
			append(eachIsCalled(3), "k~00 spend 0; k~01 spend 2; k~02 spend 1"), want(grants(3, 1)),
		},
		{
			"all shards together have just enough",
			spend(2), append(eachDenies(1, 1, 0), gets(grants(0, 0), grants(1, 0), grants(1, 0))),
			append(eachIsCalled(2), "k~00 spend 0; k~01 spend 1; k~02 spend 1"), want(grants(2, 0)),
		},
		{
			"all shards together had enough, until another caller came",
			spend(3), append(eachDenies(2, 1, 1), gets(grants(0, 1), denies(70*ms, 1), grants(0, 1))),
			append(eachIsCalled(3), "k~00 spend 0; k~01 spend 2; k~02 spend 1"), want(denies(10*ms, 3)),
		},
		{
			"one unit is not divided: all shards are asked once more",
			spend(1), append(eachDenies(1, 0, 0), gets(denies(9*ms, 0), denies(8*ms, 0), denies(7*ms, 0))),
			append(eachIsCalled(1), "k~00 peek 1; k~01 peek 1; k~02 peek 1"), want(denies(7*ms, 0)),
		},
		{
			"a cost of the smallest part",
			spend(4), replies(gets(grants(4, 1))), calls("k~01 spend 4"), want(grants(4, 3)),
		},
		{
			"more than the smallest part",
			spend(5),
			replies(gets(
				penstock.Status{Granted: 2, Remaining: 3, ResetAfter: 1 * ms, Wait: 6 * ms, Receipt: 7},
				penstock.Status{Granted: 2, Remaining: 1, ResetAfter: 3 * ms, Wait: 5 * ms, Receipt: 9},
				penstock.Status{Granted: 1, Remaining: 2, ResetAfter: 2 * ms, Wait: 4 * ms, Receipt: 8},
			)),
			calls("k~00 spend 2; k~01 spend 2; k~02 spend 1"),
			want(penstock.Status{Granted: 5, Remaining: 6, ResetAfter: 3 * ms, Wait: 6 * ms, Receipt: 1<<59 | 9<<6 | 63}),
		},
		{
			"more than the smallest part, and one shard has too little",
			spend(5), replies(gets(grants(0, 4), denies(40*ms, 1), grants(0, 0)), gets(grants(4, 0), grants(1, 0), grants(0, 0))),
			calls("k~00 spend 2; k~01 spend 2; k~02 spend 1", "k~00 spend 4; k~01 spend 1; k~02 spend 0"), want(grants(5, 0)),
		},
		{
			"more than the smallest part, and all have too little",
			spend(5), replies(gets(grants(0, 3), denies(40*ms, 1), denies(60*ms, 0))),
			calls("k~00 spend 2; k~01 spend 2; k~02 spend 1"), want(denies(60*ms, 4)),
		},
		{
			"more than the smallest part, and another caller comes",
			spend(5), replies(gets(grants(0, 4), denies(40*ms, 1), denies(60*ms, 0)), gets(denies(70*ms, 3), grants(0, 1), grants(0, 0))),
			calls("k~00 spend 2; k~01 spend 2; k~02 spend 1", "k~00 spend 4; k~01 spend 1; k~02 spend 0"), want(denies(60*ms, 4)),
		},
		{
			"the receipt names the shard",
			spend(1), replies(gets(denies(ms, 0)), gets(penstock.Status{Granted: 1, Receipt: 7})), calls("k~01 spend 1", "k~02 spend 1"),
			want(penstock.Status{Granted: 1, Receipt: 1<<59 | 7<<6 | 2}),
		},
		{"the first call fails", spend(1), replies(fails(errStore)), calls("k~01 spend 1"), noStatuses},
		{"the second call fails", spend(1), replies(gets(denies(ms, 0)), fails(errStore)), calls("k~01 spend 1", "k~02 spend 1"), noStatuses},
		{
			"the call of all shards fails",
			spend(3), append(eachDenies(2, 1, 1), fails(errStore)), append(eachIsCalled(3), "k~00 spend 0; k~01 spend 2; k~02 spend 1"), noStatuses,
		},
		{
			"the last question fails",
			spend(1), append(eachDenies(1, 0, 0), fails(errStore)), append(eachIsCalled(1), "k~00 peek 1; k~01 peek 1; k~02 peek 1"), noStatuses,
		},
	})
}

// A breaker rejects calls of one shard. Then the next shard is called, if the batch has only one
// charge, and this charge goes to one shard.
func TestCallsWhenABreakerIsOpen(t *testing.T) {
	spend := func(cost int64) []penstock.Charge { return charges(charge("k", window, penstock.Spend, cost)) }
	runAll(t, []callsTest{
		{"the next shard grants", spend(1), replies(fails(errOpen), gets(grants(1, 3))), calls("k~01 spend 1", "k~02 spend 1"), want(grants(1, 9))},
		{
			"the last shard grants",
			spend(1), replies(fails(errOpen), fails(errOpen), gets(grants(1, 3))), calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1"), want(grants(1, 9)),
		},
		{
			"all are rejected",
			spend(1), replies(fails(errOpen), fails(errOpen), fails(errOpen)), calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1"), noStatuses,
		},
		{"two charges", append(spend(1), charge("k", whole, penstock.Spend, 1)), replies(fails(errOpen)), calls("k~01 spend 1; k spend 1, free if denied"), noStatuses},
		{"a charge of all shards", spend(5), replies(fails(errOpen)), calls("k~00 spend 2; k~01 spend 2; k~02 spend 1"), noStatuses},
	})
	t.Run("the others deny", func(t *testing.T) {
		next := &scriptedStore{t: t, replies: replies(fails(errOpen), gets(denies(ms, 0)), gets(denies(ms, 0)))}
		if d, err := decideFromShard1(t.Context(), next, spend(1)); err != errOpen || len(next.calls) != 3 {
			t.Errorf("%+v, %v after the calls %q; want the error of the breaker after three", d, err, next.calls)
		}
	})
}

// A Draw goes to one shard, and takes what it has.
func TestCallsOfADraw(t *testing.T) {
	draw := charges(charge("k", window, penstock.Draw, 9))
	runAll(t, []callsTest{
		{"the second shard has units", draw, replies(gets(denies(ms, 0)), gets(grants(4, 0))), calls("k~01 draw 9", "k~02 draw 9"), want(grants(4, 0))},
		{
			"all shards deny it",
			draw, replies(gets(denies(3*ms, 0)), gets(denies(2*ms, 0)), gets(denies(ms, 0))), calls("k~01 draw 9", "k~02 draw 9", "k~00 draw 9"), want(denies(ms, 0)),
		},
		{
			"it is not divided: a Peek of all shards finds when one unit fits",
			draw,
			replies(gets(denies(3*ms, 3)), gets(denies(2*ms, 3)), gets(denies(ms, 3)), gets(denies(9*ms, 0), denies(8*ms, 0), denies(7*ms, 0))),
			calls("k~01 draw 9", "k~02 draw 9", "k~00 draw 9", "k~00 peek 1; k~01 peek 1; k~02 peek 1"), want(denies(7*ms, 0)),
		},
	})
}

// A charge with patience first goes to all shards without it. Then it waits at the shard that will
// have room first.
func TestCallsWithPatience(t *testing.T) {
	spend := func(plan *penstock.Plan, cost int64) []penstock.Charge {
		return charges(patient(charge("k", plan, penstock.Spend, cost)))
	}
	granted := penstock.Status{Granted: 1, Wait: 10 * ms}
	runAll(t, []callsTest{
		{
			"it waits at the soonest shard",
			spend(bucket, 1), replies(gets(denies(30*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0)), gets(granted)),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1", "k~02 spend 1, patient for 1s"), want(granted),
		},
		{
			"two shards have room at one time",
			spend(bucket, 1), replies(gets(denies(10*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0)), gets(granted)),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1", "k~01 spend 1, patient for 1s"), want(granted),
		},
		{
			"the soonest shard denies it too",
			spend(bucket, 2), replies(gets(denies(30*ms, 1)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0)), gets(denies(8*ms, 0))),
			calls("k~01 spend 2", "k~02 spend 2", "k~00 spend 2", "k~02 spend 2, patient for 1s"), want(denies(8*ms, 1)),
		},
		{
			"it can never be granted",
			spend(bucket, 1), replies(gets(denies(penstock.Never, 0)), gets(denies(penstock.Never, 0)), gets(denies(penstock.Never, 0))),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1"), want(denies(penstock.Never, 0)),
		},
		{
			"without patience",
			charges(charge("k", bucket, penstock.Spend, 1)), replies(gets(denies(30*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0))),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1"), want(denies(10*ms, 0)),
		},
		{
			"the shortest patience",
			charges(penstock.Charge{Key: "k", Plan: bucket, Cost: 1, Patience: 1}), replies(gets(denies(30*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0)), gets(denies(10*ms, 0))),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1", "k~02 spend 1, patient for 1ns"), want(denies(10*ms, 0)),
		},
		{
			"a window has no patience",
			spend(window, 1), replies(gets(denies(30*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0))),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1"), want(denies(10*ms, 0)),
		},
		{
			"a cost of the smallest part",
			spend(bucket, 4), replies(gets(denies(30*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0)), gets(granted)),
			calls("k~01 spend 4", "k~02 spend 4", "k~00 spend 4", "k~02 spend 4, patient for 1s"), want(granted),
		},
		{
			"more than the smallest part waits at all shards",
			spend(bucket, 5), replies(gets(denies(40*ms, 1), denies(60*ms, 1), denies(50*ms, 1)), gets(granted, granted, granted)),
			calls("k~00 spend 2; k~01 spend 2; k~02 spend 1", "k~00 spend 2, patient for 1s; k~01 spend 2, patient for 1s; k~02 spend 1, patient for 1s"),
			want(penstock.Status{Granted: 3, Wait: 10 * ms}),
		},
		{
			"more than the smallest part, and all shards deny it again",
			spend(bucket, 5), replies(gets(denies(40*ms, 1), denies(60*ms, 1), denies(50*ms, 1)), gets(denies(40*ms, 2), denies(50*ms, 2), denies(45*ms, 2))),
			calls("k~00 spend 2; k~01 spend 2; k~02 spend 1", "k~00 spend 2, patient for 1s; k~01 spend 2, patient for 1s; k~02 spend 1, patient for 1s"),
			want(denies(50*ms, 6)),
		},
		{
			"more than the smallest part, and what all shards have is tried before",
			spend(bucket, 5),
			replies(gets(grants(0, 5), denies(60*ms, 0), denies(50*ms, 0)), gets(denies(30*ms, 0), grants(0, 0), grants(0, 0)), gets(granted, granted, granted)),
			calls(
				"k~00 spend 2; k~01 spend 2; k~02 spend 1", "k~00 spend 5; k~01 spend 0; k~02 spend 0",
				"k~00 spend 2, patient for 1s; k~01 spend 2, patient for 1s; k~02 spend 1, patient for 1s",
			),
			want(penstock.Status{Granted: 3, Wait: 10 * ms}),
		},
		{
			"what all shards have is tried before",
			spend(bucket, 2),
			replies(gets(denies(30*ms, 1)), gets(denies(10*ms, 1)), gets(denies(20*ms, 0)), gets(denies(20*ms, 0), denies(20*ms, 0), denies(20*ms, 0)), gets(granted)),
			calls("k~01 spend 2", "k~02 spend 2", "k~00 spend 2", "k~00 spend 0; k~01 spend 1; k~02 spend 1", "k~02 spend 2, patient for 1s"), want(granted),
		},
		{
			"a Draw waits at one shard",
			charges(patient(charge("k", bucket, penstock.Draw, 9))), replies(gets(denies(30*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0)), gets(granted)),
			calls("k~01 draw 9", "k~02 draw 9", "k~00 draw 9", "k~02 draw 9, patient for 1s"), want(granted),
		},
	})
}

// The parts of a limit may allow less patience than the limit.
func TestPatienceIsAtMostThatOfThePart(t *testing.T) {
	long := penstock.Limit{Name: "long", Count: 10_000_000, Period: 8 * 365 * 24 * time.Hour, Burst: 12}.MustCompile()
	calls := 0
	s := New(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		calls++
		c := &charges[0]
		longest := c.Plan.MaxPatience()
		if isLast := calls == 4; isLast && (longest >= long.MaxPatience() || c.Patience != longest) || !isLast && c.Patience != 0 {
			t.Errorf("call %d has a patience of %v; want the longest that the part allows, %v, in call 4 only", calls, c.Patience, longest)
		}
		return penstock.Single(denies(ms, 0)), nil
	}), func(*penstock.Plan) int { return 3 })
	if _, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: long, Cost: 1, Patience: long.MaxPatience()}}); err != nil || calls != 4 {
		t.Errorf("%v after %d calls; want 4", err, calls)
	}
}

// Only the charges that caused a denial are sent elsewhere.
func TestCallsOfABatch(t *testing.T) {
	one, two := charge("k", whole, penstock.Spend, 1), charge("k", window, penstock.Spend, 1)
	large := charge("l", window, penstock.Spend, 5)
	free := charge("f", counting, penstock.Spend, 1)
	free.IsFreeIfDenied = true
	runAll(t, []callsTest{
		{"both are granted", charges(one, two), replies(gets(grants(1, 7), grants(1, 3))), calls("k spend 1, free if denied; k~01 spend 1"), want(grants(1, 7), grants(1, 9))},
		{
			"the split one is denied by a shard",
			charges(one, two), replies(gets(grants(0, 8), denies(ms, 0)), gets(grants(1, 7), grants(1, 3))),
			calls("k spend 1, free if denied; k~01 spend 1", "k spend 1, free if denied; k~02 spend 1"), want(grants(1, 7), grants(1, 9)),
		},
		{
			"the other is denied",
			charges(one, two), replies(gets(denies(ms, 0), grants(0, 3))), calls("k spend 1, free if denied; k~01 spend 1"), want(denies(ms, 0), grants(0, 9)),
		},
		{
			"both are denied: all shards are asked",
			charges(two, one), replies(gets(denies(2*ms, 0), denies(ms, 0)), gets(denies(9*ms, 0), denies(8*ms, 0), denies(7*ms, 0))),
			calls("k~01 spend 1; k spend 1, free if denied", "k~00 peek 1; k~01 peek 1; k~02 peek 1"), want(denies(7*ms, 0), denies(ms, 0)),
		},
		{
			"both are denied, and all shards are asked: one has room",
			charges(two, one), replies(gets(denies(2*ms, 0), denies(ms, 0)), gets(denies(9*ms, 0), grants(0, 1), denies(7*ms, 0))),
			calls("k~01 spend 1; k spend 1, free if denied", "k~00 peek 1; k~01 peek 1; k~02 peek 1"), want(grants(0, 1), denies(ms, 0)),
		},
		{
			"both are denied: the question fails",
			charges(two, one), replies(gets(denies(2*ms, 0), denies(ms, 0)), fails(errStore)),
			calls("k~01 spend 1; k spend 1, free if denied", "k~00 peek 1; k~01 peek 1; k~02 peek 1"), noStatuses,
		},
		{
			"a small and a large charge",
			charges(two, large), replies(gets(denies(ms, 0), grants(2, 3), grants(2, 3), grants(1, 3)), gets(grants(1, 3), grants(2, 2), grants(2, 2), grants(1, 2))),
			calls("k~01 spend 1; l~00 spend 2; l~01 spend 2; l~02 spend 1", "k~02 spend 1; l~00 spend 2; l~01 spend 2; l~02 spend 1"), want(grants(1, 9), grants(5, 6)),
		},
		{
			"the large charge takes what each shard has, and then the small one is denied",
			charges(two, large),
			replies(
				gets(grants(0, 1), denies(5*ms, 1), grants(0, 4), grants(0, 0)),
				gets(denies(3*ms, 0), grants(0, 1), grants(0, 4), grants(0, 0)),
				gets(denies(4*ms, 0), grants(0, 1), grants(0, 4), grants(0, 0)),
				gets(denies(6*ms, 0), grants(0, 1), grants(0, 4), grants(0, 0)),
			),
			calls(
				"k~01 spend 1; l~00 spend 2; l~01 spend 2; l~02 spend 1",
				"k~01 spend 1; l~00 spend 1; l~01 spend 4; l~02 spend 0",
				"k~02 spend 1; l~00 spend 1; l~01 spend 4; l~02 spend 0",
				"k~00 spend 1; l~00 spend 1; l~01 spend 4; l~02 spend 0",
			),
			want(denies(3*ms, 0), grants(0, 5)),
		},
		{
			"a denied large charge, which may still be granted, is asked for once more",
			charges(large, one),
			replies(gets(denies(5*ms, 1), grants(0, 4), grants(0, 0), denies(ms, 0)), gets(denies(9*ms, 1), denies(8*ms, 2), denies(7*ms, 0))),
			calls("l~00 spend 2; l~01 spend 2; l~02 spend 1; k spend 1, free if denied", "l~00 peek 2; l~01 peek 2; l~02 peek 1"), want(denies(9*ms, 3), denies(ms, 0)),
		},
		{
			"two that are split",
			charges(two, charge("b", bucket, penstock.Spend, 1)), replies(gets(denies(2*ms, 0), denies(ms, 0)), gets(grants(1, 1), grants(1, 1))),
			calls("k~01 spend 1; b~01 spend 1", "k~02 spend 1; b~02 spend 1"), want(grants(1, 3), grants(1, 3)),
		},
		{
			"the denial counts once, in the last call",
			charges(charge("c", counting, penstock.Spend, 1), free, two),
			replies(gets(grants(0, 7), grants(0, 7), denies(3*ms, 0)), gets(grants(0, 7), grants(0, 7), denies(2*ms, 0)), gets(grants(0, 7), grants(0, 7), denies(4*ms, 0)),
				gets(denies(ms, 6), grants(0, 7), denies(5*ms, 0))),
			calls(
				"c spend 1, free if denied; f spend 1, free if denied; k~01 spend 1", "c spend 1, free if denied; f spend 1, free if denied; k~02 spend 1",
				"c spend 1, free if denied; f spend 1, free if denied; k~00 spend 1", "c spend 1; f spend 1, free if denied; k~00 spend 1",
			),
			want(denies(ms, 6), grants(0, 7), denies(2*ms, 0)),
		},
		{
			"no denial counts",
			charges(free, two), replies(gets(grants(0, 7), denies(3*ms, 0)), gets(grants(0, 7), denies(2*ms, 0)), gets(grants(0, 7), denies(4*ms, 0))),
			calls("f spend 1, free if denied; k~01 spend 1", "f spend 1, free if denied; k~02 spend 1", "f spend 1, free if denied; k~00 spend 1"), want(grants(0, 7), denies(2*ms, 0)),
		},
		{
			"a Refund comes after the Spend",
			charges(charge("r", slots, penstock.Refund, 1), two), replies(gets(grants(1, 3)), gets(grants(1, 2))),
			calls("k~01 spend 1", "r~01 refund 1"), want(grants(1, 6), grants(1, 9)),
		},
		{
			"nothing is refunded if the Spend is denied",
			charges(charge("r", slots, penstock.Refund, 1), two),
			replies(gets(denies(3*ms, 0)), gets(denies(2*ms, 0)), gets(denies(4*ms, 0)), gets(grants(0, 1), grants(0, 2), grants(0, 3))),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1", "r~00 peek 0; r~01 peek 0; r~02 peek 0"), want(grants(0, 6), denies(2*ms, 0)),
		},
		{
			"the question for what would be refunded fails",
			charges(charge("r", slots, penstock.Refund, 1), two), replies(gets(denies(3*ms, 0)), gets(denies(2*ms, 0)), gets(denies(4*ms, 0)), fails(errStore)),
			calls("k~01 spend 1", "k~02 spend 1", "k~00 spend 1", "r~00 peek 0; r~01 peek 0; r~02 peek 0"), noStatuses,
		},
	})
}

// A Peek asks all shards.
func TestCallsOfAPeek(t *testing.T) {
	peek := func(plan *penstock.Plan, cost int64) []penstock.Charge {
		return charges(charge("k", plan, penstock.Peek, cost))
	}
	waits := func(wait time.Duration) penstock.Status { return penstock.Status{Wait: wait, ResetAfter: wait} }
	const asked, askedEqually = "k~00 peek 2; k~01 peek 2; k~02 peek 2", "k~00 peek 2; k~01 peek 2; k~02 peek 1"
	runAll(t, []callsTest{
		{"no shard has enough", peek(window, 2), replies(gets(denies(30*ms, 1), denies(10*ms, 0), denies(20*ms, 0))), calls(asked), want(denies(10*ms, 1))},
		{"the first is the soonest", peek(window, 2), replies(gets(denies(10*ms, 1), denies(30*ms, 0), denies(20*ms, 0))), calls(asked), want(denies(10*ms, 1))},
		{"all together have enough", peek(window, 2), replies(gets(denies(30*ms, 1), denies(10*ms, 1), penstock.Status{RetryAfter: 20 * ms, Wait: ms})), calls(asked), want(grants(0, 2))},
		{"one has enough", peek(slots, 2), replies(gets(denies(30*ms, 1), grants(0, 3), denies(20*ms, 0))), calls(asked), want(grants(0, 4))},
		{"a hold needs one shard", peek(slots, 2), replies(gets(denies(30*ms, 1), denies(10*ms, 1), denies(20*ms, 0))), calls(asked), want(denies(10*ms, 2))},
		{
			"with patience, the shortest wait counts",
			charges(patient(charge("k", bucket, penstock.Peek, 2))), replies(gets(waits(30*ms), waits(10*ms), waits(20*ms))),
			calls("k~00 peek 2, patient for 1s; k~01 peek 2, patient for 1s; k~02 peek 2, patient for 1s"), want(penstock.Status{Wait: 10 * ms, ResetAfter: 30 * ms}),
		},
		{"a cost of the smallest part", peek(window, 4), replies(gets(denies(30*ms, 1), denies(10*ms, 0), denies(20*ms, 0))), calls("k~00 peek 4; k~01 peek 4; k~02 peek 4"), want(denies(10*ms, 1))},
		{"more needs all shards", peek(window, 5), replies(gets(denies(30*ms, 1), denies(10*ms, 1), denies(20*ms, 0))), calls(askedEqually), want(denies(30*ms, 2))},
		{"more needs all shards, which have it", peek(window, 5), replies(gets(denies(30*ms, 1), grants(0, 4), denies(20*ms, 0))), calls(askedEqually), want(grants(0, 5))},
		{"a Spend of nothing", charges(charge("k", window, penstock.Spend, 0)), replies(gets(grants(0, 1), grants(0, 2), grants(0, 3))), calls("k~00 peek 0; k~01 peek 0; k~02 peek 0"), want(grants(0, 6))},
		{"it fails", peek(window, 2), replies(fails(errStore)), calls(asked), noStatuses},
		{
			"a granted Peek, and a Spend",
			charges(charge("p", window, penstock.Peek, 1), charge("k", window, penstock.Spend, 1)), replies(gets(grants(0, 1), grants(0, 2), grants(0, 3)), gets(grants(1, 3))),
			calls("p~00 peek 1; p~01 peek 1; p~02 peek 1", "k~01 spend 1"), want(grants(0, 6), grants(1, 9)),
		},
		{
			"a denied Peek makes all charges Peeks",
			charges(
				charge("p", window, penstock.Peek, 1), charge("k", window, penstock.Spend, 5), charge("w", whole, penstock.Spend, 5), charge("x", whole, penstock.Draw, 5),
				charge("y", whole, penstock.Peek, 5), charge("z", whole, penstock.Force, 5), charge("r", window, penstock.Refund, 5),
			),
			replies(
				gets(denies(3*ms, 0), denies(2*ms, 0), denies(ms, 0)), gets(grants(0, 1), grants(0, 2), grants(0, 3), grants(0, 4)),
				gets(grants(0, 4), grants(0, 4), grants(0, 4)), gets(grants(0, 1), grants(0, 1), grants(0, 1)),
			),
			calls(
				"p~00 peek 1; p~01 peek 1; p~02 peek 1", "w peek 5; x peek 1; y peek 5; z peek 0",
				"k~00 peek 2; k~01 peek 2; k~02 peek 1", "r~00 peek 0; r~01 peek 0; r~02 peek 0",
			),
			want(denies(ms, 0), grants(0, 12), grants(0, 1), grants(0, 2), grants(0, 3), grants(0, 4), grants(0, 3)),
		},
		{
			"a denied Peek, and the Peeks of the others fail",
			charges(charge("p", window, penstock.Peek, 1), charge("w", whole, penstock.Spend, 5)), replies(gets(denies(3*ms, 0), denies(2*ms, 0), denies(ms, 0)), fails(errStore)),
			calls("p~00 peek 1; p~01 peek 1; p~02 peek 1", "w peek 5"), noStatuses,
		},
		{
			"a denied Peek, and the Peek of another split charge fails",
			charges(charge("p", window, penstock.Peek, 1), charge("k", window, penstock.Spend, 1)), replies(gets(denies(3*ms, 0), denies(2*ms, 0), denies(ms, 0)), fails(errStore)),
			calls("p~00 peek 1; p~01 peek 1; p~02 peek 1", "k~00 peek 1; k~01 peek 1; k~02 peek 1"), noStatuses,
		},
	})
}

// A Force goes to one shard if it fits there. Otherwise it takes what the shards have, and divides
// the rest.
func TestCallsOfAForce(t *testing.T) {
	force := func(plan *penstock.Plan, cost int64) []penstock.Charge {
		return charges(charge("k", plan, penstock.Force, cost))
	}
	const asked = "k~00 peek 0; k~01 peek 0; k~02 peek 0"
	runAll(t, []callsTest{
		{"it fits in one shard", force(window, 2), replies(gets(grants(2, 3))), calls("k~01 spend 2"), want(grants(2, 9))},
		{
			"it does not fit",
			force(window, 3), replies(gets(denies(ms, 1)), gets(grants(0, 0), grants(0, 1), grants(0, 0)), gets(grants(1, 0), grants(2, 0), grants(0, 0))),
			calls("k~01 spend 3", asked, "k~00 force 1; k~01 force 2; k~02 force 0"), want(grants(3, 0)),
		},
		{
			"more than the smallest part",
			force(window, 5), replies(gets(grants(0, 5), grants(0, 1), grants(0, 2)), gets(grants(2, 3), grants(1, 0), grants(2, 0))),
			calls(asked, "k~00 force 2; k~01 force 1; k~02 force 2"), want(grants(5, 3)),
		},
		{"a hold goes to one shard", force(slots, 4), replies(gets(grants(4, -3))), calls("k~01 force 4"), want(grants(4, -3))},
		{
			"more slots than the smallest part",
			force(slots, 5), replies(gets(grants(2, 1), grants(2, 1), grants(1, 1))), calls("k~00 force 2; k~01 force 2; k~02 force 1"), want(grants(5, 3)),
		},
		{"the first call fails", force(window, 2), replies(fails(errStore)), calls("k~01 spend 2"), noStatuses},
		{"the question fails", force(window, 2), replies(gets(denies(ms, 1)), fails(errStore)), calls("k~01 spend 2", asked), noStatuses},
		{"the call of a hold fails", force(slots, 2), replies(fails(errStore)), calls("k~01 force 2"), noStatuses},
	})
}

// A Refund without a receipt goes to shards that have units in use. One with a receipt goes to the
// shards that granted them.
func TestCallsOfARefund(t *testing.T) {
	refund := func(plan *penstock.Plan, cost, receipt int64) []penstock.Charge {
		return charges(withReceipt(charge("k", plan, penstock.Refund, cost), receipt))
	}
	const asked = "k~00 peek 0; k~01 peek 0; k~02 peek 0"
	const ofShard2, ofAll = 1<<59 | 7<<6 | 2, 1<<59 | 7<<6 | 63
	const parts = "k~00 refund 3, receipt 7; k~01 refund 2, receipt 7; k~02 refund 2, receipt 7"
	runAll(t, []callsTest{
		{
			"without a receipt",
			refund(window, 3, 0), replies(gets(grants(0, 5), grants(0, 3), grants(0, 2)), gets(grants(0, 5), grants(2, 5), grants(1, 3))),
			calls(asked, "k~00 refund 0; k~01 refund 2; k~02 refund 1"), want(grants(3, 13)),
		},
		{
			"without a receipt, and the first shard has nothing in use",
			refund(window, 3, 0), replies(gets(grants(0, 3), grants(0, 5), grants(0, 2)), gets(grants(1, 4), grants(0, 5), grants(2, 4))),
			calls(asked, "k~00 refund 1; k~01 refund 0; k~02 refund 2"), want(grants(3, 13)),
		},
		{
			"without a receipt, of more than is used",
			refund(window, 5, 0), replies(gets(grants(0, 6), grants(0, 3), grants(0, 2)), gets(grants(0, 5), grants(2, 5), grants(2, 4))),
			calls(asked, "k~00 refund 1; k~01 refund 2; k~02 refund 2"), want(grants(4, 14)),
		},
		{"of one shard", refund(window, 3, ofShard2), replies(gets(grants(2, 3))), calls("k~02 refund 3, receipt 7"), want(grants(2, 9))},
		{"of a large cost of one shard", refund(window, 5, ofShard2), replies(gets(grants(5, 4))), calls("k~02 refund 5, receipt 7"), want(grants(5, 9))},
		{"of all shards of a bucket", refund(bucket, 7, ofAll), replies(gets(grants(3, 4), grants(0, 0), grants(2, 4))), calls(parts), want(grants(5, 8))},
		{
			"of all shards, of fewer units than the smallest part",
			refund(window, 3, ofAll), replies(gets(grants(1, 4), grants(1, 1), grants(1, 4))),
			calls("k~00 refund 1, receipt 7; k~01 refund 1, receipt 7; k~02 refund 1, receipt 7"), want(grants(3, 9)),
		},
		{"of all shards of a window", refund(window, 7, ofAll), replies(gets(grants(3, 4), grants(2, 1), grants(2, 4))), calls(parts), want(grants(7, 9))},
		{
			"of all shards of a window, and one had fewer units",
			refund(window, 7, ofAll), replies(gets(grants(3, 4), grants(0, 0), grants(2, 4)), gets(grants(0, 1)), gets(grants(1, 5)), gets(grants(1, 5))),
			calls(parts, "k~01 refund 2, receipt 7", "k~02 refund 2, receipt 7", "k~00 refund 1, receipt 7"), want(grants(7, 10)),
		},
		{
			"of all shards of a window, and the others return the rest at once",
			refund(window, 7, ofAll), replies(gets(grants(3, 4), grants(0, 0), grants(2, 4)), gets(grants(2, 5))),
			calls(parts, "k~01 refund 2, receipt 7"), want(grants(7, 10)),
		},
		{
			"of all shards of a window, which has ended",
			refund(window, 7, ofAll), replies(gets(grants(0, 5), grants(0, 5), grants(0, 4)), gets(grants(0, 5)), gets(grants(0, 5)), gets(grants(0, 4))),
			calls(parts, "k~01 refund 7, receipt 7", "k~02 refund 7, receipt 7", "k~00 refund 7, receipt 7"), want(grants(0, 14)),
		},
		{"the question fails", refund(window, 3, 0), replies(fails(errStore)), calls(asked), noStatuses},
		{"the call of one shard fails", refund(window, 3, ofShard2), replies(fails(errStore)), calls("k~02 refund 3, receipt 7"), noStatuses},
		{"the call of all shards fails", refund(window, 7, ofAll), replies(fails(errStore)), calls(parts), noStatuses},
		{
			"the call for the rest fails",
			refund(window, 7, ofAll), replies(gets(grants(3, 4), grants(0, 0), grants(2, 4)), fails(errStore)), calls(parts, "k~01 refund 2, receipt 7"), noStatuses,
		},
		{"of a hold", refund(slots, 4, 0), replies(gets(grants(4, 4))), calls("k~01 refund 4"), want(grants(4, 10))},
		{
			"of a hold that is in no shard",
			refund(slots, 3, 0), replies(gets(grants(0, 4)), gets(grants(0, 4)), gets(grants(0, 4))),
			calls("k~01 refund 3", "k~02 refund 3", "k~00 refund 3"), want(grants(0, 12)),
		},
		{
			"of a hold of more than the smallest part",
			refund(slots, 5, 0), replies(gets(grants(2, 4), grants(2, 4), grants(1, 4))), calls("k~00 refund 2; k~01 refund 2; k~02 refund 1"), want(grants(5, 12)),
		},
		{"of a hold, and the call fails", refund(slots, 3, 0), replies(fails(errStore)), calls("k~01 refund 3"), noStatuses},
		{
			"Reset clears all shards",
			charges(charge("k", window, penstock.Reset, 0)), replies(gets(grants(0, 5), grants(0, 5), grants(0, 4))),
			calls("k~00 reset 0; k~01 reset 0; k~02 reset 0"), want(grants(0, 14)),
		},
		{
			"Reset clears all shards of slots",
			charges(charge("k", slots, penstock.Reset, 4)), replies(gets(grants(0, 5), grants(0, 5), grants(0, 4))),
			calls("k~00 reset 2; k~01 reset 1; k~02 reset 1"), want(grants(0, 14)),
		},
	})
}

// A receipt that was made before the limit was split, or while it had more parts, returns nothing.
// The receipt 1 is of no charge.
func TestReceiptOfOtherPartsReturnsNothing(t *testing.T) {
	for _, receipt := range []int64{1, 5, 7<<6 | 2, 1<<59 | 7<<6 | 3, 1<<59 | 7<<6 | 62} {
		next := &scriptedStore{t: t, replies: replies(gets(grants(0, 4)))}
		_, err := decideFromShard1(t.Context(), next, charges(withReceipt(charge("k", window, penstock.Refund, 3), receipt)))
		if err != nil || len(next.calls) != 1 || !strings.HasSuffix(next.calls[0], " refund 3, receipt 1") {
			t.Errorf("the receipt %x leads to the calls %q, %v; want one call with the receipt 1", receipt, next.calls, err)
		}
	}
}

// Slots are never granted in parts by several shards, unless no shard is large enough.
func TestCallsOfSlots(t *testing.T) {
	spend := func(cost int64) []penstock.Charge { return charges(charge("k", slots, penstock.Spend, cost)) }
	runAll(t, []callsTest{
		{"the shard of the holder", spend(4), replies(gets(grants(4, 1))), calls("k~01 spend 4"), want(grants(4, 3))},
		{
			"no shard has enough, but all together have",
			spend(2), replies(gets(denies(30*ms, 1)), gets(denies(10*ms, 1)), gets(denies(20*ms, 1))), calls("k~01 spend 2", "k~02 spend 2", "k~00 spend 2"), want(denies(10*ms, 3)),
		},
		{"more than the smallest part", spend(5), replies(gets(grants(2, 1), grants(2, 1), grants(1, 1))), calls("k~00 spend 2; k~01 spend 2; k~02 spend 1"), want(grants(5, 3))},
	})
}

// With a deadline, the next shard is called only if there is time for more than two calls. Without
// that, the denials so far decide.
func TestDeadlineEndsTheSearch(t *testing.T) {
	for deadline, want := range map[time.Duration]int{30 * ms: 1, 30*ms + 1: 2, 40 * ms: 2, 40*ms + 1: 3, 0: 3} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if deadline > 0 {
				bounded, cancel := context.WithTimeout(ctx, deadline)
				defer cancel()
				ctx = bounded
			}
			next := &scriptedStore{t: t, takes: 10 * ms, replies: replies(gets(denies(30*ms, 0)), gets(denies(10*ms, 0)), gets(denies(20*ms, 0)))}
			d, err := decideFromShard1(ctx, next, charges(charge("k", window, penstock.Spend, 1)))
			if retryAfter := []time.Duration{30 * ms, 10 * ms, 10 * ms}[want-1]; err != nil || d.RetryAfter() != retryAfter || len(next.calls) != want {
				t.Errorf("with calls of 10 ms and a deadline of %v: %+v, %v after %d calls; want a denial with the RetryAfter %v after %d", deadline, d, err, len(next.calls), retryAfter, want)
			}
		})
	}
}

// If the deadline leaves no time and a breaker has rejected a shard, the answer is unknown.
func TestDeadlineAfterARejectedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 40*ms)
		defer cancel()
		next := &scriptedStore{t: t, takes: 10 * ms, replies: replies(fails(errOpen), gets(denies(10*ms, 0)))}
		if d, err := decideFromShard1(ctx, next, charges(charge("k", window, penstock.Spend, 1))); err != errOpen || len(next.calls) != 2 {
			t.Errorf("%+v, %v after %d calls; want the error of the breaker after 2", d, err, len(next.calls))
		}
	})
}
