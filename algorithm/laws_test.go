package algorithm

import (
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	_ "time/tzdata" // the laws of calendars hold on machines without zones, too

	"github.com/penstock/penstock/internal/testing/effort"
	"pgregory.net/rapid"
)

// The laws are properties that every algorithm must have. Each is written once for all algorithms,
// as a function of a subject and dice that returns an error. So a law can be tested with our
// algorithms here, and broken_test.go can show that it fails for broken ones.

func TestMain(m *testing.M) {
	flag.Parse()
	checks := effort.Of(60, 8000) // cases per law and subject
	isChosen := false             // whether the command line sets the number of cases
	flag.Visit(func(f *flag.Flag) { isChosen = isChosen || f.Name == "rapid.checks" })
	if !isChosen {
		if err := flag.Set("rapid.checks", strconv.Itoa(checks)); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// A law is a claim about every subject. check makes a random case with the dice, and returns an
// error if the claim is false in it.
type law struct {
	name  string
	check func(a subject, roll dice) error
}

// prove tries to break the law for every subject. A failure prints how to replay it.
func prove(t *testing.T, l law, subjects []subject) {
	t.Helper()
	var cases atomic.Int64
	for _, a := range subjects {
		t.Run(a.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				cases.Add(1)
				if err := l.check(a, rapidDice(rt)); err != nil {
					rt.Fatalf("%s: %s: %v", a.name, l.name, err)
				}
			})
		})
	}
	t.Logf("counted: %d cases of laws (%s, %d subjects)", cases.Load(), l.name, len(subjects))
}

// dice return random whole numbers from low to high.
type dice func(low, high int64) int64

// rapidDice are dice of rapid, which looks for the shortest failing case. Rapid prefers small
// numbers. In a small range, all numbers must be equally likely, or runs would stay short and
// simple.
func rapidDice(t *rapid.T) dice {
	return func(low, high int64) int64 {
		if high == low {
			return low
		}
		if high-low < int64(len(fair)) {
			return low + fair[high-low].Draw(t, "die")
		}
		return rapid.Int64Range(low, high).Draw(t, "die")
	}
}

// fair are generators of equally likely numbers. The generator at index most returns 0 to most.
var fair = func() (gens [64]*rapid.Generator[int64]) {
	bit := rapid.Bool()
	for most := range gens {
		gens[most] = rapid.Custom(func(t *rapid.T) int64 {
			n := 0 // has so many random bits that the remainder below is nearly uniform
			for covered := 1; covered <= 4*most; covered *= 2 {
				n *= 2
				if bit.Draw(t, "") {
					n++
				}
			}
			return int64(n % (most + 1))
		})
	}
	return gens
}()

// seeded returns dice that favor the ends of a range, as rapid's do.
func seeded(seed, stream uint64) dice {
	rng := rand.New(rand.NewPCG(seed, stream))
	return func(low, high int64) int64 {
		span := high - low
		switch {
		case span == 0:
			return low
		case rng.IntN(8) == 0:
			return low + min(rng.Int64N(4), span)
		case rng.IntN(16) == 0:
			return high - min(rng.Int64N(2), span)
		}
		return low + rng.Int64N(span+1)
	}
}

// oneIn is true in one of n cases.
func (roll dice) oneIn(n int64) bool { return roll(1, n) == n }

func pick[T any](roll dice, from ...T) T { return from[roll(0, int64(len(from)-1))] }

// A subject is an algorithm, or a broken one, with the properties that the laws need.
type subject struct {
	name       string
	prepare    func(Limit) (Params, error)
	calendarAt func(Params, int64) Params // adapts parameters to a time; nil unless it has a calendar
	step       func(s any, p Params, r Request, now int64) (Outcome, any)

	capacity        func(Limit) int64                           // units that a fresh state has
	refillTime      func(Limit) int64                           // µs after which a state that is not used beyond its capacity equals a fresh one
	bound           func(l Limit, apart int64) int64            // the most cost that is admitted within apart, in µs; nil: another law checks it
	boundOfVariants func(variants []variant, apart int64) int64 // the most cost that is admitted within apart, if the limit changes from variant to variant
	shortestWindow  int64                                       // the shortest window of a calendar, in µs
	grain           func(Limit) int64                           // a shift of all times by a multiple of this, in µs, changes no outcome; 0: there is no such shift

	limits []Limit // limits that the laws use; nil: any

	canBook, needsHolder, isQueue, isAdditive, countsDenied bool
	retryAfterGrant                                         func(p *Params, cost, remaining, reset int64) int64 // nil if the algorithm has none
	kin                                                     []*Algorithm                                        // algorithms that share its stored states
}

// byValue makes a Step, whose parameters are values, from a stepper, whose parameters are pointers.
func byValue[S any](step stepper[S]) Step[S] {
	return func(s S, p Params, r Request, now int64) (out Outcome, next S) {
		next = step(s, &p, &r, now, &out)
		return out, next
	}
}

// unmarked is the step of a token bucket whose charges are never refunded exactly.
func unmarked(s bucket, p *Params, r *Request, now int64, out *Outcome) bucket {
	next, _ := tokenBucket(s, nil, new(marks), p, r, now, out)
	return next
}

// A markedBucket is the whole state of a token bucket.
type markedBucket struct {
	bucket
	marks *marks
}

func markedStep(s markedBucket, p Params, r Request, now int64) (out Outcome, next markedBucket) {
	next.bucket, next.marks = tokenBucket(s.bucket, s.marks, new(marks), &p, &r, now, &out)
	return out, next
}

// hideState hides the type of a step's state. A nil state means a fresh one.
func hideState[S any](step Step[S]) func(any, Params, Request, int64) (Outcome, any) {
	return func(s any, p Params, r Request, now int64) (Outcome, any) {
		var state S
		if s != nil {
			state = s.(S)
		}
		return step(state, p, r, now)
	}
}

func count(l Limit) int64  { return l.Count }
func period(l Limit) int64 { return l.Period }

// muldiv is a·b/c rounded down, at most MaxInt64.
func muldiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}

// times is n·count, at most MaxInt64.
func times(n, count int64) int64 { return muldiv(n, count, 1) }

// windowBound is the bound of windows: a Count in each window that an interval can touch.
func windowBound(shortest func(Limit) int64) func(Limit, int64) int64 {
	return func(l Limit, apart int64) int64 { return times(cdiv(apart+1, shortest(l))+1, l.Count) }
}

// strictBound is the bound of exact sliding windows.
func strictBound(l Limit, apart int64) int64 { return times(cdiv(apart+1, l.Period), l.Count) }

func bucketSubject() subject {
	a := subject{
		name: "tokenbucket", prepare: TokenBucket.Prepare, step: hideState(markedStep), canBook: true, grain: func(Limit) int64 { return 1 },
		isAdditive: TokenBucket.isAdditive, countsDenied: TokenBucket.countsDenied, retryAfterGrant: TokenBucket.retryAfterGrant,
	}
	a.capacity = func(l Limit) int64 {
		if l.Burst == 0 {
			return l.Count
		}
		return l.Burst
	}
	a.refillTime = func(l Limit) int64 { return muldiv(a.capacity(l), l.Period, l.Count) + 1 }
	a.bound = func(l Limit, apart int64) int64 {
		return a.capacity(l) + min(muldiv(apart, l.Count, l.Period), math.MaxInt64/2)
	}
	a.boundOfVariants = boundByRates(a.capacity)
	return a
}

func queueSubject() subject {
	a := subject{
		name: "leakybucket", prepare: LeakyBucket.Prepare, step: hideState(leakyBucket), canBook: true, isQueue: true,
		capacity: func(l Limit) int64 { return l.Burst + 1 }, grain: func(Limit) int64 { return 1 },
		isAdditive: LeakyBucket.isAdditive, countsDenied: LeakyBucket.countsDenied,
	}
	a.refillTime = func(l Limit) int64 { return muldiv(a.capacity(l), l.Period, l.Count) + 1 }
	a.boundOfVariants = func(variants []variant, apart int64) int64 { // moments are rounded up to whole µs
		return boundByRates(func(Limit) int64 { return 1 })(variants, apart+1)
	}
	return a
}

func windowSubject() subject {
	return subject{
		name: "fixedwindow", prepare: FixedWindow.Prepare, step: hideState(fixedWindow), capacity: count, refillTime: func(l Limit) int64 { return 2 * l.Period }, bound: windowBound(period),
		boundOfVariants: boundByWindows, grain: period, kin: []*Algorithm{FixedWindow, AnchoredWindow}, isAdditive: FixedWindow.isAdditive, countsDenied: FixedWindow.countsDenied,
	}
}

func anchoredSubject() subject {
	a := windowSubject()
	a.name, a.prepare, a.grain = "fixedwindow/anchored", AnchoredWindow.Prepare, func(Limit) int64 { return 1 }
	a.refillTime, a.isAdditive = period, AnchoredWindow.isAdditive
	return a
}

const hour = int64(time.Hour / time.Microsecond)

func calendarSubject(unit CalendarUnit, zone string) subject {
	where, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	name := [...]string{"day", "week", "month"}[unit]
	// A window with a change to daylight saving time is an hour shorter.
	shortest := [...]int64{23, 7*24 - 1, 28*24 - 1}[unit] * hour
	calendar := CalendarWindow(unit, where)
	a := windowSubject()
	a.name, a.prepare, a.calendarAt = "fixedwindow/"+name+"/"+zone, calendar.Prepare, calendar.paramsAt
	a.refillTime = func(Limit) int64 { return 2 * unit.Period().Microseconds() }
	a.bound = windowBound(func(Limit) int64 { return shortest })
	a.shortestWindow = shortest
	a.grain = func(Limit) int64 { return 0 }
	a.isAdditive = calendar.isAdditive
	a.kin = []*Algorithm{calendar, CalendarWindow(Day, time.UTC), CalendarWindow(Month, where), FixedWindow}
	return a
}

func slidingSubject() subject {
	return subject{
		name: "slidingwindow", prepare: SlidingWindow.Prepare, step: hideState(slidingWindow), capacity: count, grain: period, isAdditive: SlidingWindow.isAdditive, countsDenied: SlidingWindow.countsDenied,
		refillTime: func(l Limit) int64 { return 2 * l.Period }, boundOfVariants: boundByRates(count),
		bound: func(l Limit, apart int64) int64 {
			if apart < l.Period {
				return 2*l.Count - 1
			}
			return windowBound(period)(l, apart)
		},
	}
}

func subSubject(n int) subject {
	width := func(l Limit) int64 { return cdiv(l.Period, int64(n)) }
	a := subject{
		name: fmt.Sprintf("subwindow/%d", n), prepare: SubWindow(n).Prepare, step: hideState(subWindow), capacity: count, grain: width,
		refillTime: func(l Limit) int64 { return int64(n+1) * width(l) }, bound: strictBound, boundOfVariants: boundByStrictWindows, isAdditive: SubWindow(n).isAdditive, countsDenied: SubWindow(n).countsDenied,
	}
	for _, n := range []int{1, 2, 7, 10, MaxParts} {
		a.kin = append(a.kin, SubWindow(n))
	}
	return a
}

func logSubject() subject {
	return subject{
		name: "slidinglog", prepare: SlidingLog.Prepare, step: hideState(slidingLog), capacity: count, refillTime: period, bound: strictBound,
		boundOfVariants: boundByStrictWindows, grain: func(Limit) int64 { return 1 }, countsDenied: SlidingLog.countsDenied,
	}
}

func slotSubject() subject {
	return subject{
		name: "concurrency", prepare: Concurrency.Prepare, step: hideState(concurrency), capacity: bucketSubject().capacity, refillTime: period, needsHolder: true,
		grain: func(Limit) int64 { return 1 },
	}
}

func allSubjects() []subject {
	all := []subject{bucketSubject(), queueSubject(), windowSubject(), anchoredSubject()}
	all = append(all, calendarSubjects()...)
	all = append(all, slidingSubject())
	for _, n := range []int{1, 2, 10, MaxParts} {
		all = append(all, subSubject(n))
	}
	return append(all, logSubject(), slotSubject())
}

func calendarSubjects() []subject {
	var all []subject
	for _, zone := range []string{"America/New_York", "Asia/Kolkata"} {
		all = append(all, calendarSubject(Day, zone), calendarSubject(Month, zone))
	}
	return append(all, calendarSubject(Week, "America/New_York"))
}

// subjectsWhere are the subjects for which a condition holds.
func subjectsWhere(where func(subject) bool) []subject {
	var some []subject
	for _, a := range allSubjects() {
		if where(a) {
			some = append(some, a)
		}
	}
	return some
}

// hasInterchangeableUnits returns true if the used units of a subject have no holder and no turns.
func hasInterchangeableUnits(a subject) bool { return !a.needsHolder && !a.isQueue }

func isAdditive(a subject) bool { return a.isAdditive }

// Stores decide the spends of many callers together only for these algorithms.
func TestTheseAlgorithmsAreAdditive(t *testing.T) {
	for _, row := range []struct {
		algorithm *Algorithm
		want      bool
	}{
		{algorithm: TokenBucket, want: true},
		{algorithm: FixedWindow, want: true},
		{algorithm: AnchoredWindow, want: true},
		{algorithm: CalendarWindow(Day, time.UTC), want: true},
		{algorithm: SlidingWindow, want: true},
		{algorithm: LeakyBucket, want: false},
		{algorithm: SlidingLog, want: false},
		{algorithm: SubWindow(6), want: false},
		{algorithm: Concurrency, want: false},
	} {
		if got := row.algorithm.IsAdditive(); got != row.want {
			t.Errorf("IsAdditive of %s is %t; want %t", row.algorithm.Name(), got, row.want)
		}
	}
}

func isBounded(a subject) bool { return a.bound != nil }

const day = 24 * hour

// corners are limits with extreme numbers, at which arithmetic may fail.
var corners = []Limit{
	{Count: 1, Period: 1}, {Count: 5, Period: 1}, {Count: 3, Period: 1_000_000}, {Count: 3, Period: 1_000_000, Burst: 1},
	{Count: 7919, Period: 1_000_000}, {Count: 999_983, Period: 1_000_000, Burst: 7}, {Count: 1_000_000_000, Period: 1_000_000},
	{Count: 1, Period: 30 * day}, {Count: 10_000, Period: day}, {Count: 1_000_000, Period: day}, {Count: 1, Period: MaxPeriod},
	{Count: Max / 2, Period: 1}, {Count: Max / 2, Period: MaxPeriod}, {Count: Max/4 + 1, Period: MaxPeriod - 1},
	{Count: 1, Period: 1, Burst: Max / 2}, {Count: 1_000_003, Period: 999_999_937}, {Count: 70, Period: 1_000_000, Burst: 19},
	{Count: 2, Period: 3}, {Count: 10, Period: 60_000_000}, {Count: 60, Period: 60}, {Count: 1, Period: 100_000, Burst: 1000},
}

// anyLimit is a limit that the subject accepts, often one that makes arithmetic hard.
func (a subject) anyLimit(roll dice) Limit {
	if len(a.limits) > 0 {
		return pick(roll, a.limits...)
	}
	var l Limit
	switch roll(0, 5) {
	case 0, 1:
		l = Limit{Count: roll(1, 12), Period: roll(1, 5000), Burst: roll(0, 20)}
	case 2:
		l = Limit{Count: roll(1, 1000), Period: pick(roll, int64(1000), 1_000_000, 60_000_000, hour), Burst: roll(0, 100)}
	case 3: // the largest burst that can be counted exactly
		l = Limit{Count: roll(1, 1_000_000), Period: roll(1, hour)}
		partsPerUnit := l.Period / gcd(l.Count, l.Period) // algorithms count in these parts of a unit
		l.Burst = min(Max/2/partsPerUnit, Max/2-1) - 1    // 1 less, because a queue has Burst+1 places
	case 4:
		l = Limit{Count: roll(1, Max/2), Period: roll(1, MaxPeriod), Burst: roll(0, Max/2)}
	default:
		l = corners[roll(0, int64(len(corners)-1))]
	}
	if _, err := a.prepare(l); err != nil { // then a limit that every algorithm accepts
		l = Limit{Count: l.Count%1000 + 1, Period: l.Period%hour + 1000, Burst: l.Burst % 100}
	}
	return l
}

// A run is the life of one state, with the history of its requests.
type run struct {
	subject
	roll    dice
	limit   Limit
	params  Params
	state   any     // nil: fresh
	now     int64   // µs since the epoch
	last    Outcome // of the latest request
	holders int     // how many new holders there were
	history []historyEntry
}

type historyEntry struct {
	now     int64
	request Request
	out     Outcome
}

// epoch is when runs begin: a time of this century, in µs.
const epoch int64 = 1_700_000_000_000_000

// startRun starts a run with a limit and a fresh state.
func startRun(a subject, roll dice) *run { return startRunWith(a, roll, a.anyLimit(roll)) }

func startRunWith(a subject, roll dice, l Limit) *run {
	r := &run{subject: a, roll: roll, now: epoch + roll(0, 100*day)}
	r.change(l)
	return r
}

func (r *run) change(l Limit) {
	params, err := r.prepare(l)
	if err != nil {
		panic(fmt.Sprintf("%s rejects %+v: %v", r.name, l, err))
	}
	r.limit, r.params = l, params
}

func (r *run) paramsAt(now int64) Params {
	if r.calendarAt != nil {
		return r.calendarAt(r.params, now)
	}
	return r.params
}

// decideAt decides a request at a time, but does not change the state.
func (r *run) decideAt(request Request, now int64) Outcome {
	out, _ := r.step(r.state, r.paramsAt(now), request, now)
	return out
}

// decide decides a request now, and saves the state as a store does.
func (r *run) decide(request Request) Outcome {
	out, next := r.step(r.state, r.paramsAt(r.now), request, r.now)
	switch {
	case out.Keep == 0:
		r.state = nil
	case out.Keep != Unchanged:
		r.state = next
	}
	r.last = out
	r.history = append(r.history, historyEntry{r.now, request, out})
	return out
}

// peek returns the outcome of a Peek at a time. It does not change the state.
func (r *run) peek(now int64) Outcome { return r.decideAt(Request{Mode: Peek}, now) }

// clone is another run from the same state.
func (r *run) clone() *run {
	clone := *r
	clone.history = append([]historyEntry(nil), r.history...)
	return &clone
}

// lawError is the error of a broken law, with the history of the run.
func (r *run) lawError(format string, args ...any) error {
	var b strings.Builder
	fmt.Fprintf(&b, format, args...)
	fmt.Fprintf(&b, "\nlimit %+v, params %v, at %d, state %+v\n", r.limit, r.params, r.now, r.state)
	from := max(len(r.history)-40, 0)
	if from > 0 {
		fmt.Fprintf(&b, "  (%d earlier requests are not shown)\n", from)
	}
	for _, entry := range r.history[from:] {
		fmt.Fprintf(&b, "  %d: %v %d", entry.now, entry.request.Mode, entry.request.Cost)
		if entry.request.Patience > 0 {
			fmt.Fprintf(&b, " with patience %d", entry.request.Patience)
		}
		if entry.request.Holder != "" {
			fmt.Fprintf(&b, " by %s", entry.request.Holder)
		}
		fmt.Fprintf(&b, " -> %+v\n", entry.out)
	}
	return fmt.Errorf("%s", b.String())
}

// anyCost is a random cost, often one at a boundary.
func (r *run) anyCost() int64 {
	room := r.capacity(r.limit)
	switch r.roll(0, 8) {
	case 0, 1, 2:
		return 1
	case 3:
		return r.roll(0, 3)
	case 4, 5:
		return r.roll(1, room)
	case 6:
		return room
	case 7:
		return room + 1
	default:
		return Max / 2
	}
}

// fittingCost is a cost that fits a fresh state.
func (r *run) fittingCost() int64 { return max(min(r.anyCost(), r.capacity(r.limit)), 1) }

// newHolder is a holder that no earlier request of the run has.
func (r *run) newHolder() string {
	r.holders++
	return "s" + strconv.Itoa(r.holders)
}

func (r *run) anyHolder() string {
	if r.isQueue || r.roll.oneIn(4) {
		return r.newHolder()
	}
	return pick(r.roll, "ann", "bob", "cyd")
}

// longestPatience is the longest patience that stores accept. It is only for algorithms that book,
// because the first parameter of these is the rate.
func (r *run) longestPatience() int64 {
	rate := r.params[0]
	return min(Max/2/rate, day)
}

// anyRequest is a random request of one of the modes, with patience if the algorithm uses it.
func (r *run) anyRequest(modes ...Mode) Request {
	request := Request{Mode: pick(r.roll, modes...), Cost: r.anyCost(), Holder: r.anyHolder()}
	if r.canBook && r.roll.oneIn(3) {
		request.Patience = min(r.roll(0, 3*r.refillTime(r.limit)), r.longestPatience())
	}
	return request
}

// late is the time from which pauses are short, so that times stay below Max.
const late = Max - Max/4

// pass lets time pass, often up to a moment at which something changes.
func (r *run) pass() {
	by := int64(0)
	switch r.roll(0, 11) {
	case 0, 1, 2:
	case 3:
		by = r.roll(0, 3)
	case 4:
		by = r.roll(0, r.limit.Period/r.limit.Count+1)
	case 5:
		by = r.roll(0, r.refillTime(r.limit))
	case 6:
		by = r.limit.Period - r.roll(0, 1)
	case 7:
		by = r.last.RetryAfter - r.roll(0, 1)
	case 8:
		by = r.last.ResetAfter - r.roll(0, 1)
	case 9:
		by = r.currentWindowEnd() - r.now - r.roll(0, 1)
	case 10:
		by = muldiv(r.limit.Period, r.roll(1, 60), 60)
	default:
		by = 2*r.refillTime(r.limit) + r.roll(0, 1)
	}
	if by = max(by, 0); by > late-r.now {
		by = r.roll(0, 1000)
	}
	r.now += by
}

// currentWindowEnd is the end of the window that contains now, for subjects with aligned windows.
func (r *run) currentWindowEnd() int64 {
	if r.calendarAt != nil {
		p := r.paramsAt(r.now)
		end, _, _, _ := windowEnd(p[1], p[2], p[3], r.now)
		return end
	}
	return r.now - r.now%r.limit.Period + r.limit.Period
}

// stepBack moves the clock back by at most MaxStall.
func (r *run) stepBack() { r.now -= pick(r.roll, r.roll(1, 3), r.roll(1, MaxStall), MaxStall) }

// use makes up to 12 requests of random modes. The clock only goes forward.
func (r *run) use(modes ...Mode) {
	for range r.roll(0, 12) {
		r.pass()
		r.decide(r.anyRequest(modes...))
	}
}

// useWithSteps is use with a clock that sometimes steps back by up to MaxStall.
func (r *run) useWithSteps(modes ...Mode) {
	for range r.roll(0, 12) {
		r.pass()
		if r.roll.oneIn(4) {
			r.stepBack()
		}
		r.decide(r.anyRequest(modes...))
	}
}

// useWithChanges is use with a clock that sometimes steps back by any amount, and a limit that
// sometimes changes to any other. It calls the function each after every request.
func (r *run) useWithChanges(each func(request Request, out Outcome) error) error {
	for range r.roll(1, 25) {
		r.pass()
		switch r.roll(0, 9) {
		case 0:
			r.stepBack()
		case 1:
			r.now = max(r.now-r.roll(1, 1000*day), epoch)
		case 2:
			if len(r.kin) > 0 {
				kin := r.kin[r.roll(0, int64(len(r.kin)-1))]
				r.prepare, r.calendarAt = kin.Prepare, kin.paramsAt
			}
			r.change(r.anyLimit(r.roll))
		}
		modes := []Mode{Spend, Spend, Draw, Peek, Force, Refund, Reset}
		if r.countsDenied {
			modes = append(modes, Attempt)
		}
		request := r.anyRequest(modes...)
		if err := each(request, r.decide(request)); err != nil {
			return err
		}
	}
	return nil
}

// compareAnswers returns an error if two runs of one subject decide the same requests differently
// from a time on.
func compareAnswers(r, other *run, from int64) error {
	r, other = r.clone(), other.clone()
	r.now = from
	for range 3 {
		request := r.anyRequest(Spend, Draw, Peek, Refund)
		other.now = r.now
		if got, want := r.decide(request), other.decide(request); answer(got) != answer(want) {
			return r.lawError("%v %d has the outcome %+v, and in the other run %+v; want the same", request.Mode, request.Cost, got, want)
		}
		r.pass()
	}
	return nil
}

// answer is the part of an outcome that the caller gets.
func answer(o Outcome) Outcome {
	o.Keep = 0
	return o
}

var denialChangesNothing = law{"denial changes nothing", func(a subject, roll dice) error {
	r := startRun(a, roll)
	without := r.clone() // gets only the granted requests
	for range roll(1, 20) {
		r.pass()
		request := r.anyRequest(Spend, Spend, Draw, Refund)
		before := r.state
		out := r.decide(request)
		if !out.OK() {
			if out.Keep != Unchanged || out.Granted != 0 || out.Wait != 0 || !reflect.DeepEqual(r.state, before) {
				return r.lawError("a denial has the outcome %+v and leaves %+v; want nothing granted, and the state %+v", out, r.state, before)
			}
			continue
		}
		without.now = r.now
		if got := without.decide(request); answer(got) != answer(out) {
			return r.lawError("the outcome is %+v, but %+v without the earlier denials; want the same", out, got)
		}
	}
	return nil
}}

func TestDenialChangesNothing(t *testing.T) { prove(t, denialChangesNothing, allSubjects()) }

var peekChangesNothing = law{"peek changes nothing", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(Request, Outcome) error {
		before := r.state
		out, after := r.step(r.state, r.paramsAt(r.now), r.anyRequest(Peek), r.now)
		if !out.OK() && out.Keep != Unchanged {
			return nil // the denial repaired the state
		}
		if out.Granted != 0 || out.Keep != Unchanged || !reflect.DeepEqual(before, orNil(after, before)) {
			return r.lawError("a peek has the outcome %+v and leaves %+v; want nothing granted, and the state unchanged", out, after)
		}
		return nil
	})
}}

// orNil is the state, or nil if it is the zero value and the state before was nil.
func orNil(state, before any) any {
	if before == nil && reflect.ValueOf(state).IsZero() {
		return nil
	}
	return state
}

func TestPeekChangesNothing(t *testing.T) { prove(t, peekChangesNothing, allSubjects()) }

var peekAnswersWhatSpendWould = law{"peek answers what spend would", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(Request, Outcome) error {
		request := r.anyRequest(Peek)
		peek := r.decideAt(request, r.now)
		request.Mode = Spend
		if spend := r.decideAt(request, r.now); peek.RetryAfter != spend.RetryAfter || peek.Wait != spend.Wait {
			return r.lawError("a peek of %d has the outcome %+v, and a spend %+v; want the same RetryAfter and Wait", request.Cost, peek, spend)
		}
		return nil
	})
}}

func TestPeekAnswersWhatSpendWould(t *testing.T) { prove(t, peekAnswersWhatSpendWould, allSubjects()) }

var spendThenRefundIsNothing = law{"spend then refund is nothing", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.useWithSteps(Spend, Draw, Force, Refund)
	r.pass()
	before := r.clone()
	spend := r.anyRequest(Spend, Draw)
	spend.Holder = r.newHolder()
	out := r.decide(spend)
	if !out.OK() || out.Granted == 0 {
		return nil
	}
	back := r.decide(Request{Mode: Refund, Cost: out.Granted, Holder: spend.Holder})
	if back.Granted != out.Granted {
		return r.lawError("%d units were granted, and %d were refunded; want all", out.Granted, back.Granted)
	}
	return compareAnswers(r, before, r.now+roll(0, 2*r.refillTime(r.limit)))
}}

func TestSpendThenRefundIsNothing(t *testing.T) { prove(t, spendThenRefundIsNothing, allSubjects()) }

var retryAfterIsTight = law{"retry after is tight", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.useWithSteps(Spend, Draw, Force, Refund)
	for range 4 {
		switch r.roll(0, 9) {
		case 0:
			r.stepBack()
		case 1: // the denial repairs the state
			r.now = max(r.now-roll(MaxStall, 1000*day), epoch)
		default:
			r.pass()
		}
		request := r.anyRequest(Spend, Spend, Draw)
		out := r.decide(request)
		if out.OK() {
			continue
		}
		if out.RetryAfter == Never {
			if later := r.decideAt(request, r.now+roll(0, 4*r.refillTime(r.limit))); later.RetryAfter != Never {
				return r.lawError("RetryAfter was Never, but later the outcome is %+v; want Never again", later)
			}
			continue
		}
		if at := r.decideAt(request, r.now+out.RetryAfter); !at.OK() {
			return r.lawError("at its RetryAfter, the request is denied: %+v; want granted", at)
		}
		for _, early := range []int64{1, roll(1, out.RetryAfter)} {
			if before := r.decideAt(request, r.now+out.RetryAfter-early); before.RetryAfter != early {
				return r.lawError("%d µs before its RetryAfter, the outcome is %+v; want a RetryAfter of that time", early, before)
			}
		}
	}
	return nil
}}

func TestRetryAfterIsTight(t *testing.T) { prove(t, retryAfterIsTight, allSubjects()) }

var whatCannotFitIsDeniedForever = law{"what cannot fit is denied forever", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(Request, Outcome) error {
		request := r.anyRequest(Spend, Peek)
		out := r.decideAt(request, r.now)
		if (out.RetryAfter == Never) != (request.Cost > r.capacity(r.limit)) {
			return r.lawError("%v %d, with room for %d in a fresh state, has the outcome %+v; want Never only for a cost above that", request.Mode, request.Cost, r.capacity(r.limit), out)
		}
		return nil
	})
}}

func TestWhatCannotFitIsDeniedForever(t *testing.T) {
	prove(t, whatCannotFitIsDeniedForever, allSubjects())
}

var cheaperRequestsAreGrantedToo = law{"cheaper requests are granted too", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(Request, Outcome) error {
		request := r.anyRequest(Spend, Peek)
		out := r.decideAt(request, r.now)
		cheaper := request
		cheaper.Cost = roll(0, request.Cost)
		cheaperOut := r.decideAt(cheaper, r.now)
		if out.OK() && (!cheaperOut.OK() || cheaperOut.Wait > out.Wait) {
			return r.lawError("a cost of %d has the outcome %+v, and a cost of %d has %+v; want the second granted too, with no longer Wait", request.Cost, out, cheaper.Cost, cheaperOut)
		}
		if out.RetryAfter > 0 && (cheaperOut.RetryAfter == Never || cheaperOut.RetryAfter > out.RetryAfter) {
			return r.lawError("a cost of %d has RetryAfter %d, and a cost of %d has %d; want the second no longer", request.Cost, out.RetryAfter, cheaper.Cost, cheaperOut.RetryAfter)
		}
		return nil
	})
}}

func TestCheaperRequestsAreGrantedToo(t *testing.T) {
	prove(t, cheaperRequestsAreGrantedToo, allSubjects())
}

var availabilityNeverFallsByItself = law{"availability never falls by itself", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.useWithSteps(Spend, Draw, Force, Refund)
	if roll.oneIn(3) {
		r.change(r.anyLimit(roll)) // the state was written under the limit before
	}
	request := r.anyRequest(Spend, Draw)
	request.Holder = r.newHolder()
	earlier, earlierLeft := r.decideAt(request, r.now), r.peek(r.now).Remaining
	for range 6 {
		r.pass()
		later, laterLeft := r.decideAt(request, r.now), r.peek(r.now).Remaining
		if laterLeft < earlierLeft || later.Granted < earlier.Granted || earlier.OK() && !later.OK() {
			return r.lawError("without a request between them, the outcome %+v became %+v, and %d units left became %d; want no fewer units", earlier, later, earlierLeft, laterLeft)
		}
		earlier, earlierLeft = later, laterLeft
	}
	return nil
}}

func TestAvailabilityNeverFallsByItself(t *testing.T) {
	prove(t, availabilityNeverFallsByItself, allSubjects())
}

var remainingStaysWithinTheLimit = law{"remaining stays within the limit", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(_ Request, out Outcome) error {
		if out.Remaining < 0 || out.Remaining > r.capacity(r.limit) {
			return r.lawError("Remaining is %d; want 0 to %d", out.Remaining, r.capacity(r.limit))
		}
		return nil
	})
}}

func TestRemainingStaysWithinTheLimit(t *testing.T) {
	prove(t, remainingStaysWithinTheLimit, allSubjects())
}

var numbersStayInRange = law{"numbers stay in range", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(request Request, out Outcome) error {
		if err := checkRange(request, out, r.state); err != nil {
			return r.lawError("%v", err)
		}
		return nil
	})
}}

// checkRange checks an outcome and the new state against the contract of Outcome and of the
// package.
func checkRange(r Request, out Outcome, state any) error {
	const top = 1 << 53 // doubles count exactly up to here
	switch {
	case out.Granted < 0 || out.Granted > r.Cost:
		return fmt.Errorf("Granted is %d; want 0 to the cost, %d", out.Granted, r.Cost)
	case out.Remaining < 0 || out.Remaining >= top:
		return fmt.Errorf("Remaining is %d; want at least 0, and less than 2^53", out.Remaining)
	case out.RetryAfter < Never || out.RetryAfter >= top:
		return fmt.Errorf("RetryAfter is %d; want Never or at least 0, and less than 2^53", out.RetryAfter)
	case out.ResetAfter < 0 || out.ResetAfter >= top:
		return fmt.Errorf("ResetAfter is %d; want at least 0, and less than 2^53", out.ResetAfter)
	case out.Wait < 0 || out.Wait > r.Patience:
		return fmt.Errorf("Wait is %d; want 0 to the patience, %d", out.Wait, r.Patience)
	case !out.OK() && (out.Granted != 0 || out.Wait != 0):
		return fmt.Errorf("a denial has Granted %d and Wait %d; want 0 and 0", out.Granted, out.Wait)
	case out.Keep != Unchanged && (out.Keep < out.ResetAfter || out.Keep >= top):
		return fmt.Errorf("Keep is %d; want at least the ResetAfter, %d, and less than 2^53", out.Keep, out.ResetAfter)
	case r.Mode >= Force && !out.OK(): // Force, Refund or Reset
		return fmt.Errorf("%v was denied; want it always granted", r.Mode)
	}
	if state == nil {
		return nil
	}
	return checkNumbers(reflect.ValueOf(state), top)
}

// checkNumbers checks that all numbers of a state are at least 0 and less than top. The exception
// is the entry for the expired grants of a log: its time is -MaxPeriod.
func checkNumbers(v reflect.Value, top int64) error {
	switch v.Kind() {
	case reflect.Int64:
		if n := v.Int(); (n < 0 || n >= top) && n != -MaxPeriod {
			return fmt.Errorf("the state has the number %d; want at least 0, and less than %d", n, top)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if err := checkNumbers(v.Field(i), top); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := checkNumbers(v.Index(i), top); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestNumbersStayInRange(t *testing.T) { prove(t, numbersStayInRange, allSubjects()) }

var remainingIsWhatSpendFinds = law{"remaining is what spend finds", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.useWithSteps(Spend, Draw, Force, Refund)
	r.pass()
	if roll.oneIn(4) {
		r.stepBack()
	}
	left := r.peek(r.now).Remaining
	request := Request{Mode: Spend, Cost: left, Holder: r.newHolder()}
	if r.isQueue {
		request.Patience = Max
	}
	if out := r.decideAt(request, r.now); !out.OK() {
		return r.lawError("%d remain, and a spend of them has the outcome %+v; want granted", left, out)
	}
	request.Cost++
	if out := r.decideAt(request, r.now); out.OK() {
		return r.lawError("%d remain, and a spend of one more has the outcome %+v; want denied", left, out)
	}
	return nil
}}

func TestRemainingIsWhatSpendFinds(t *testing.T) { prove(t, remainingIsWhatSpendFinds, allSubjects()) }

var costZeroIsAPeek = law{"cost zero is a peek", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.useWithSteps(Spend, Draw, Force, Refund)
	r.pass()
	peek := r.peek(r.now)
	for _, mode := range []Mode{Spend, Draw, Peek, Force, Refund} {
		out := r.decideAt(Request{Mode: mode, Holder: r.anyHolder()}, r.now)
		if !out.OK() || out.Keep != Unchanged || out.Granted != 0 || out.Remaining != peek.Remaining || out.ResetAfter != peek.ResetAfter {
			return r.lawError("%v 0 has the outcome %+v, and a peek has %+v; want the same Remaining and ResetAfter, and no new state", mode, out, peek)
		}
	}
	return nil
}}

func TestCostZeroIsAPeek(t *testing.T) { prove(t, costZeroIsAPeek, allSubjects()) }

var refundNeverExceedsUse = law{"refund never exceeds use", func(a subject, roll dice) error {
	r := startRun(a, roll)
	if out := r.decide(Request{Mode: Refund, Cost: r.fittingCost(), Holder: "ann"}); out.Granted != 0 || out.Remaining != r.capacity(r.limit) {
		return r.lawError("nothing was used, and the refund has the outcome %+v; want 0 granted, and all units left", out)
	}
	granted, refunded := int64(0), int64(0)
	for range roll(1, 20) {
		r.pass()
		request := r.anyRequest(Spend, Draw, Refund, Refund)
		before := r.peek(r.now)
		out := r.decide(request)
		if request.Mode != Refund {
			granted += out.Granted
			continue
		}
		refunded += out.Granted
		if out.Remaining < before.Remaining || out.Remaining > before.Remaining+out.Granted+1 || out.Remaining > r.capacity(r.limit) {
			return r.lawError("a refund of %d made Remaining %d; before it was %d; want it to grow by the refund, and by 1 more at most", out.Granted, out.Remaining, before.Remaining)
		}
		if refunded > granted {
			return r.lawError("%d units were granted, but %d were refunded; want no more than granted", granted, refunded)
		}
	}
	if !hasInterchangeableUnits(a) {
		return nil
	}
	r.decide(Request{Mode: Refund, Cost: Max / 2})
	if out := r.decide(Request{Mode: Refund, Cost: Max / 2}); out.Remaining != r.capacity(r.limit) {
		return r.lawError("after a refund of all units, %d remain; want %d", out.Remaining, r.capacity(r.limit))
	}
	return nil
}}

func TestRefundNeverExceedsUse(t *testing.T) { prove(t, refundNeverExceedsUse, allSubjects()) }

var outcomeIsKept = law{"an outcome is kept", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(_ Request, out Outcome) error {
		if kept := r.peek(r.now); kept.Remaining != out.Remaining || kept.ResetAfter != out.ResetAfter {
			return r.lawError("the outcome was %+v, and a peek has %+v; want the same Remaining and ResetAfter", out, kept)
		}
		return nil
	})
}}

func TestOutcomeIsKept(t *testing.T) { prove(t, outcomeIsKept, allSubjects()) }

var stateEqualsFreshAfterKeep = law{"state equals fresh after keep", func(a subject, roll dice) error {
	r := startRun(a, roll)
	for range roll(1, 12) {
		r.pass()
		switch roll(0, 8) {
		case 0:
			r.stepBack()
		case 1:
			r.now -= roll(MaxStall, day)
		}
		out, next := r.step(r.state, r.paramsAt(r.now), r.anyRequest(Spend, Draw, Force, Refund, Reset), r.now)
		if out.Keep == Unchanged {
			continue
		}
		if out.Keep > out.ResetAfter {
			return r.lawError("the state is kept for %d µs, but is fresh after %d; want it kept no longer", out.Keep, out.ResetAfter)
		}
		r.state, r.last = next, out
		fresh := r.clone()
		fresh.state = nil
		if out.Keep == 0 { // stores drop it immediately
			if got, want := r.peek(r.now), fresh.peek(r.now); got != want {
				return r.lawError("Keep is 0, but a peek has %+v, and with a fresh state %+v; want the same", got, want)
			}
			r.state = nil
		} else if from := r.now + out.Keep + roll(0, 3); from <= late {
			if err := compareAnswers(r, fresh, from); err != nil {
				return fmt.Errorf("after its Keep of %d µs, compared with a fresh state: %w", out.Keep, err)
			}
		}
	}
	return nil
}}

func TestStateEqualsFreshAfterKeep(t *testing.T) { prove(t, stateEqualsFreshAfterKeep, allSubjects()) }

var resetAfterIsTight = law{"reset after is tight", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.useWithSteps(Spend, Draw, Force, Refund)
	r.pass()
	reset := r.peek(r.now).ResetAfter
	if at := r.peek(r.now + reset); at.Remaining != r.capacity(r.limit) || at.ResetAfter != 0 {
		return r.lawError("after its ResetAfter of %d µs, a peek has %+v; want all units left, and ResetAfter 0", reset, at)
	}
	if reset == 0 {
		return nil
	}
	early := roll(1, reset)
	if before := r.peek(r.now + reset - early); before.Remaining >= r.capacity(r.limit) || before.ResetAfter != early {
		return r.lawError("%d µs before its ResetAfter, a peek has %+v; want some units used, and a ResetAfter of that time", early, before)
	}
	return nil
}}

func TestResetAfterIsTight(t *testing.T) { prove(t, resetAfterIsTight, allSubjects()) }

var resetForgetsEverything = law{"reset forgets everything", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(Request, Outcome) error {
		out := r.decideAt(Request{Mode: Reset, Holder: r.anyHolder()}, r.now)
		if !out.OK() || out.Keep != 0 || out.ResetAfter != 0 || out.Granted != 0 || out.Remaining != r.capacity(r.limit) {
			return r.lawError("a reset has the outcome %+v; want all units left, Keep 0 and ResetAfter 0", out)
		}
		return nil
	})
}}

func TestResetForgetsEverything(t *testing.T) { prove(t, resetForgetsEverything, allSubjects()) }

var stepsArePure = law{"steps are pure", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(Request, Outcome) error {
		before := fmt.Sprint(r.state)
		request, other := r.anyRequest(Spend, Draw, Force, Refund, Reset), r.anyRequest(Spend, Draw, Force, Refund, Reset)
		out, next := r.step(r.state, r.paramsAt(r.now), request, r.now)
		nextBefore := fmt.Sprint(next)
		r.decideAt(other, r.now)
		if again, nextAgain := r.step(r.state, r.paramsAt(r.now), request, r.now); again != out || !reflect.DeepEqual(next, nextAgain) {
			return r.lawError("the same request gets %+v, and then %+v; want the same", out, again)
		}
		if fmt.Sprint(r.state) != before || fmt.Sprint(next) != nextBefore {
			return r.lawError("the state %v became %v, or the next state %v became %v; want that a step writes to neither", before, r.state, nextBefore, next)
		}
		return nil
	})
}}

func TestStepsArePure(t *testing.T) { prove(t, stepsArePure, allSubjects()) }

var onlyDifferencesOfTimeMatter = law{"only differences of time matter", func(a subject, roll dice) error {
	r := startRun(a, roll)
	grain := r.grain(r.limit)
	if grain == 0 {
		return nil
	}
	shift := grain * roll(0, 100*day/grain)
	shifted := r.clone()
	for range roll(1, 15) {
		r.pass()
		if roll.oneIn(6) {
			r.now -= roll(1, day)
		}
		shifted.now = r.now + shift
		request := r.anyRequest(Spend, Draw, Peek, Force, Refund)
		if out, other := r.decide(request), shifted.decide(request); out != other {
			return r.lawError("a request has the outcome %+v, and %+v after a shift of %d µs; want the same", out, other, shift)
		}
	}
	return nil
}}

func TestOnlyDifferencesOfTimeMatter(t *testing.T) {
	prove(t, onlyDifferencesOfTimeMatter, allSubjects())
}

var costIsItsUnits = law{"a cost is its units", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.use(Spend, Draw, Force, Refund)
	r.pass()
	cost := min(r.fittingCost(), 30)
	whole, single := r.clone(), r.clone() // spend the cost at once, and unit by unit
	left := r.peek(r.now).Remaining
	admitted := int64(0)
	for range cost {
		admitted += single.decide(Request{Mode: Spend, Cost: 1}).Granted
	}
	if admitted != min(left, cost) {
		return single.lawError("%d units remained, and %d of %d single units were admitted; want as many as remained", left, admitted, cost)
	}
	if out := whole.decide(Request{Mode: Spend, Cost: cost}); out.OK() != (admitted == cost) {
		return whole.lawError("%d of %d single units are admitted, and one spend of all has the outcome %+v; want it granted only if all single units are", admitted, cost, out)
	}
	if admitted < cost {
		return nil
	}
	return compareAnswers(single, whole, r.now+roll(0, 2*r.refillTime(r.limit)))
}}

// The contract of the option additive, in any state.
var spendsAddUp = law{"spends add up", func(a subject, roll dice) error {
	r := startRun(a, roll)
	if err := r.useWithChanges(func(Request, Outcome) error { return nil }); err != nil {
		return err
	}
	request, times := Request{Mode: Spend, Cost: r.fittingCost()}, roll(2, 30)
	if roll.oneIn(2) {
		request.Cost = max(min(request.Cost, r.peek(r.now).Remaining/times), 1)
	}
	one, sum := r.clone(), r.clone()
	total := sum.decide(Request{Mode: Spend, Cost: request.Cost * times})
	if !total.OK() {
		return nil
	}
	var last Outcome
	least, most := int64(math.MaxInt64), int64(0)
	for i := range times {
		out := one.decide(request)
		if out.Granted != request.Cost || out.Wait != 0 {
			return one.lawError("%d times the cost is granted in one spend, but one of the single spends has the outcome %+v; want it granted", times, out)
		}
		if i > 0 && out.Remaining != last.Remaining-request.Cost {
			return one.lawError("a spend of %d changed Remaining from %d to %d; want it to fall by the cost", request.Cost, last.Remaining, out.Remaining)
		}
		if i > 0 {
			least, most = min(least, out.ResetAfter-last.ResetAfter), max(most, out.ResetAfter-last.ResetAfter)
		}
		last = out
	}
	if most-least > 1 {
		return one.lawError("ResetAfter grows by %d to %d per spend; want a difference of 1 at most", least, most)
	}
	total.Granted = last.Granted
	if total != last || !reflect.DeepEqual(one.state, sum.state) {
		return sum.lawError("one by one, the last outcome is %+v and the state %+v; as a sum they are %+v and %+v; want the same", last, one.state, total, sum.state)
	}
	return nil
}}

// The contract of the option retryAfterGrant, in any state.
var answerPredictsRetryAfter = law{"an answer predicts the next RetryAfter", func(a subject, roll dice) error {
	r := startRun(a, roll)
	return r.useWithChanges(func(_ Request, out Outcome) error {
		params, cost := r.paramsAt(r.now), r.anyCost()
		predicted := a.retryAfterGrant(&params, cost, out.Remaining, out.ResetAfter)
		actual := r.decideAt(Request{Mode: Spend, Cost: cost}, r.now).RetryAfter
		if actual == Never {
			actual = 0 // RetryAfterGrant then returns 0
		}
		if predicted > actual || predicted < actual-1 {
			return r.lawError("RetryAfterGrant of a cost of %d is %d µs; want its RetryAfter, %d µs, or 1 less", cost, predicted, actual)
		}
		return nil
	})
}}

func TestRetryAfterGrant(t *testing.T) {
	prove(t, answerPredictsRetryAfter, subjectsWhere(func(a subject) bool { return a.retryAfterGrant != nil }))
}

func TestSpendsAddUp(t *testing.T) { prove(t, spendsAddUp, subjectsWhere(isAdditive)) }

func TestACostIsItsUnits(t *testing.T) {
	prove(t, costIsItsUnits, subjectsWhere(hasInterchangeableUnits))
}

// An event is a cost that was admitted or refunded at a time.
type event struct {
	at       int64
	admitted int64
	refunded int64
}

// checkBound checks all intervals that begin and end with an event.
func checkBound(events []event, bound func(apart int64) int64) error {
	for i := range events {
		sum := int64(0)
		for j := i; j < len(events); j++ {
			sum += events[j].admitted - events[j].refunded
			apart := events[j].at - events[i].at
			if most := bound(apart); sum > most {
				return fmt.Errorf("%d units were admitted within %d µs; the bound is %d", sum, apart, most)
			}
		}
	}
	return nil
}

// takeAll makes requests that take all units, often at the moment at which more are free. It calls
// the function each after every request.
func (r *run) takeAll(hasRefunds, isPatient bool, each func(Request, Outcome)) {
	expires := int64(math.MaxInt64)
	for range r.roll(1, 40) {
		r.pass()
		if r.now >= expires { // stores drop the state then
			r.state = nil
		}
		request := r.anyRequest(Draw, Draw, Spend, Peek)
		if !isPatient {
			request.Patience = 0
		}
		if hasRefunds && r.roll.oneIn(5) {
			request.Mode = Refund
		}
		out := r.decide(request)
		if out.Keep != Unchanged {
			expires = r.now + out.Keep
		}
		each(request, out)
	}
}

var admittedCostStaysWithinTheBound = law{"admitted cost stays within the bound", func(a subject, roll dice) error {
	r := startRun(a, roll)
	hasRefunds := roll.oneIn(3)
	isPatient := r.canBook && !hasRefunds && roll.oneIn(2)
	rounding := int64(0) // µs
	if isPatient {
		rounding = 1 // waits end at the next whole µs
	}
	var events []event
	r.takeAll(hasRefunds, isPatient, func(request Request, out Outcome) {
		if request.Mode == Refund {
			events = append(events, event{at: r.now, refunded: min(request.Cost, out.Granted+1)}) // a refund may return part of a unit beyond Granted
		} else if out.Granted > 0 {
			events = append(events, event{at: r.now + out.Wait, admitted: out.Granted})
		}
	})
	if err := checkBound(events, func(apart int64) int64 { return r.bound(r.limit, apart+rounding) }); err != nil {
		return r.lawError("%v", err)
	}
	return nil
}}

func TestAdmittedCostStaysWithinTheBound(t *testing.T) {
	prove(t, admittedCostStaysWithinTheBound, subjectsWhere(isBounded))
}

// When the fraction f of the current window is over, a sliding window has admitted at most
// Count·(1+f) in the latest Period.
var slidingWindowAdmitsOnePlusF = law{"a sliding window admits 1+f", func(a subject, roll dice) error {
	r := startRun(a, roll)
	var events []event
	for range roll(1, 40) {
		r.pass()
		if out := r.decide(r.anyRequest(Draw, Draw, Spend)); out.Granted > 0 {
			events = append(events, event{at: r.now, admitted: out.Granted})
		}
		sum, inWindow := int64(0), int64(0)
		begins := r.now - r.now%r.limit.Period
		for _, e := range events {
			if e.at > r.now-r.limit.Period {
				sum += e.admitted
			}
			if e.at >= begins {
				inWindow += e.admitted
			}
		}
		if most := r.limit.Count + muldiv(r.limit.Count, r.now-begins, r.limit.Period); sum > most || inWindow > r.limit.Count {
			return r.lawError("%d units were admitted in the latest period, and %d in the window; want at most %d and %d", sum, inWindow, most, r.limit.Count)
		}
	}
	return nil
}}

func TestSlidingWindowAdmitsOnePlusF(t *testing.T) {
	prove(t, slidingWindowAdmitsOnePlusF, []subject{slidingSubject()})
}

// docs/algorithms.md says by how much the estimate of a large limit may be above the exact one, and
// that a tick is 1 µs if count × period is at most 2^51 µs.
func TestSlidingWindowIsStricterByTwoTicks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	hasTicks := 0
	for range effort.Of(20_000, 200_000) {
		count, period := 1+rng.Int64N(1<<rng.IntN(51)), 1+rng.Int64N(1<<rng.IntN(47))
		p, err := SlidingWindow.Prepare(Limit{Count: count, Period: period})
		if err != nil {
			continue
		}
		tick := p[2]
		isSmall := whole(count).Cmp(fraction(1<<51, period)) <= 0
		if isSmall != (tick == 1) {
			t.Fatalf("%d per %d µs has ticks of %d µs; want 1 µs only if the product is at most 2^51", count, period, tick)
		}
		if tick > 1 {
			hasTicks++
		}
		start := epoch - epoch%period + period
		now, previous := start+rng.Int64N(period), 1+rng.Int64N(count)
		out, _ := slidingWindow(windowPair{Start: start, Width: period, Previous: previous}, p, Request{Mode: Peek, Cost: 1}, now)
		exact := new(big.Rat).Mul(whole(previous), fraction(start+period-now, period))
		most := new(big.Rat).Add(exact, whole(1)) // the estimate is rounded up to whole units
		if tick > 1 {
			most.Add(most, new(big.Rat).Mul(whole(previous), fraction(2*tick, period)))
		}
		if estimate := whole(count - out.Remaining); estimate.Cmp(exact) < 0 || estimate.Cmp(most) >= 0 {
			t.Fatalf("%d per %d µs, %d in the previous window, %d µs later: the estimate is %v; want %v to below %v",
				count, period, previous, now-start, estimate.FloatString(3), exact.FloatString(3), most.FloatString(3))
		}
	}
	if hasTicks < 1000 {
		t.Errorf("only %d limits have ticks above 1 µs", hasTicks)
	}
}

// Each bound is reached, so it could not be smaller. In the names, N is the Count, B the Burst, r
// the rate, w the length of an interval, and f the fraction of the window that is over.
func TestBoundsAreReached(t *testing.T) {
	const width = 60_000_000            // of a window, in µs
	edge := epoch - epoch%width + width // the end of a window
	limit := Limit{Count: 60, Period: width}
	// takeAllAt returns how many units a run admits that takes all units at each of these times.
	takeAllAt := func(a subject, times ...int64) int64 {
		r, sum := startRunWith(a, seeded(1, 1), limit), int64(0)
		for _, at := range times {
			r.now = at
			sum += r.decide(Request{Mode: Draw, Cost: Max / 2}).Granted
		}
		return sum
	}
	// timesFrom returns from, to, and the times between them at intervals of step.
	timesFrom := func(from, to, step int64) []int64 {
		at := []int64{from}
		for from += step; from < to; from += step {
			at = append(at, from)
		}
		return append(at, to)
	}
	for _, c := range []struct {
		name      string
		got, want int64
	}{
		{name: "a fixed window admits 2N across its edge", got: takeAllAt(windowSubject(), edge-1, edge), want: 120},
		{name: "a fixed window admits N(k+1) in k periods", got: takeAllAt(windowSubject(), edge-1, edge, edge+width, edge+2*width-2), want: 180},
		{name: "an anchored window admits 2N across its edge", got: takeAllAt(anchoredSubject(), edge, edge+width-1, edge+width), want: 120},
		{name: "a calendar window admits 2N across midnight", got: takeAllAt(calendarSubject(Day, "Asia/Kolkata"),
			time.Date(2026, 2, 28, 18, 29, 59, 0, time.UTC).UnixMicro(), time.Date(2026, 2, 28, 18, 30, 0, 0, time.UTC).UnixMicro()), want: 120},
		{name: "a sliding window admits N(1+f) by offset f", got: takeAllAt(slidingSubject(), timesFrom(edge-1, edge+width/2, width/120)...), want: 90},
		{name: "a sliding window admits 2N-1 in a period", got: takeAllAt(slidingSubject(), timesFrom(edge-1, edge+width-2, width/6000)...), want: 119},
		{name: "one sub-window admits N", got: takeAllAt(subSubject(1), timesFrom(edge-1, edge+width-2, width/60)...), want: 60},
		{name: "sub-windows admit N in a period, and no more", got: takeAllAt(subSubject(10), timesFrom(edge-1, edge+width-2, width/60)...), want: 60},
		{name: "sub-windows are free again after n+1 parts", got: takeAllAt(subSubject(10), edge-1, edge+width-1, edge+width), want: 120},
		{name: "a log admits N in a period, and no more", got: takeAllAt(logSubject(), timesFrom(edge-1, edge+width-2, width/60)...), want: 60},
		{name: "a log is free again after a period", got: takeAllAt(logSubject(), edge, edge+width-1, edge+width), want: 120},
		{name: "a bucket admits B+rw", got: takeAllAt(bucketSubject(), timesFrom(edge, edge+width/2, width/600)...), want: 90},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d units were admitted; want %d", c.name, c.got, c.want)
		}
	}
}

// Units leave a queue Period/Count apart, to the µs, whatever is refunded and even if the clock
// steps back by up to MaxStall. No caller waits longer than a full queue needs to empty.
var departuresAreSpaced = law{"departures are spaced", func(a subject, roll dice) error {
	type departure struct {
		holder   string
		at, cost int64
	}
	r := startRun(a, roll)
	var line []departure
	latest := r.now
	for range roll(1, 30) {
		r.pass()
		if roll.oneIn(5) {
			r.stepBack()
			r.now = max(r.now, latest-MaxStall)
		}
		latest = max(latest, r.now)
		if r.state == nil && r.now < latest { // the queue was empty before the clock stepped back
			line = nil
		}
		if len(line) > 0 && roll.oneIn(4) {
			tail := &line[len(line)-1]
			refund := Request{Mode: Refund, Cost: pick(roll, tail.cost, roll(1, tail.cost), tail.cost+1), Holder: tail.holder}
			isTail := true
			if len(line) > 1 && roll.oneIn(2) {
				isTail = false
				refund.Holder = line[roll(0, int64(len(line)-2))].holder
			}
			out := r.decide(refund)
			switch {
			case out.Granted == 0:
			case !isTail:
				return r.lawError("a holder with others behind it got a refund: %+v; want 0 granted", out)
			case out.Granted > tail.cost:
				return r.lawError("a holder of %d places refunded %d; want no more than its own", tail.cost, out.Granted)
			default:
				tail.cost -= out.Granted
				if tail.cost == 0 { // the holder has no place in the queue any more
					line = line[:len(line)-1]
				}
			}
			continue
		}
		request := r.anyRequest(Spend, Draw, Peek)
		out := r.decide(request)
		if request.Mode == Peek || out.Granted == 0 {
			continue
		}
		line = append(line, departure{request.Holder, r.now + out.Wait, out.Granted})
		if fullQueue := muldiv(r.limit.Burst, r.limit.Period, r.limit.Count) + 1; out.Wait > fullQueue+MaxStall {
			return r.lawError("Wait is %d µs; want at most that of a full queue, %d µs, and MaxStall", out.Wait, fullQueue)
		}
		if n := len(line); n > 1 {
			first, second := line[n-2], line[n-1]
			gap := second.at - first.at
			least := muldiv(first.cost, r.limit.Period, r.limit.Count) // rounded down, in µs
			// The exact gap may be 1 µs too short, because moments are rounded to whole µs.
			isSpaced := gap >= 0 && gap+1 > least-1 && isProductAbove(gap+1, r.limit.Count, first.cost, r.limit.Period)
			if !isSpaced {
				return r.lawError("%d units leave at %d, and the next at %d; want Period/Count between two units", first.cost, first.at, second.at)
			}
		}
	}
	return nil
}}

// isProductAbove returns true if a·b > c·d, without overflow.
func isProductAbove(a, b, c, d int64) bool {
	h1, l1 := bits.Mul64(uint64(a), uint64(b))
	h2, l2 := bits.Mul64(uint64(c), uint64(d))
	return h1 > h2 || h1 == h2 && l1 > l2
}

func TestDeparturesAreSpaced(t *testing.T) { prove(t, departuresAreSpaced, []subject{queueSubject()}) }

var raisedLimitFreesTheDifference = law{"a raised limit frees the difference", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.use(Spend, Draw, Refund)
	r.pass()
	if r.canBook { // bookings may use more units than the limit has
		r.decide(Request{Mode: Refund, Cost: Max / 2})
		r.use(Peek)
	}
	raised := r.limit
	raise := roll(0, 10)
	raised.Count += raise
	if a.needsHolder || a.canBook {
		raised = r.limit
		raised.Burst = r.capacity(r.limit) + raise
		if a.isQueue {
			raised.Burst--
		}
	}
	old, before := r.params, r.peek(r.now)
	if _, err := r.prepare(raised); err != nil {
		return nil
	}
	r.change(raised)
	const ticks = 3 // the index of this parameter
	if a.name == "slidingwindow" && old[ticks] != r.params[ticks] {
		return nil // the new limit counts time in other ticks
	}
	if after := r.peek(r.now); after.Remaining != before.Remaining+raise {
		return r.lawError("a raise of the limit by %d changed Remaining from %d to %d; want it to grow by as much", raise, before.Remaining, after.Remaining)
	}
	return nil
}}

func TestARaisedLimitFreesTheDifference(t *testing.T) {
	prove(t, raisedLimitFreesTheDifference, allSubjects())
}

// Whatever the new limit is, used units stay used. No caller waits longer than these units take to
// refill at the new rate.
var limitChangeKeepsWhatWasUsed = law{"a limit change keeps what was used", func(a subject, roll dice) error {
	r := startRun(a, roll)
	var events []event
	for range roll(1, 15) {
		r.pass()
		request := r.anyRequest(Spend, Draw)
		if !r.isQueue {
			request.Patience = 0
		}
		if out := r.decide(request); out.Granted > 0 {
			events = append(events, event{at: r.now, admitted: out.Granted})
		}
	}
	if r.state != nil && r.history[len(r.history)-1].out.Keep == Unchanged {
		return nil // the time since the state was written counts at the new rate
	}
	old, before := r.limit, r.peek(r.now)
	used := r.capacity(old) - before.Remaining
	if len(r.kin) > 0 && r.calendarAt == nil && roll.oneIn(2) && r.kin[0].name == "subwindow" {
		n := int(roll(1, MaxParts))
		kin := subSubject(n)
		r.prepare, r.refillTime = kin.prepare, kin.refillTime
	}
	limit := r.anyLimit(roll)
	switch roll(0, 3) {
	case 0:
		limit.Period = old.Period
	case 1:
		limit.Count = old.Count
	case 2:
		limit = old
		limit.Period = old.Period + roll(1, 10)
	}
	if _, err := r.prepare(limit); err != nil {
		return nil
	}
	if !r.canCount([]variant{{limit: old, prepare: r.prepare}, {limit: limit, prepare: r.prepare}}) {
		return nil
	}
	r.change(limit)
	capacity := r.capacity(limit)
	after := r.peek(r.now)
	usedNow := capacity - after.Remaining
	least, most := min(used, capacity), min(used, capacity)
	switch a.name {
	case "leakybucket": // callers that wait keep their turns, so the time until all have left stays
		least, most = 0, capacity
		if delay := after.ResetAfter - before.ResetAfter; delay < 0 || delay > 2 {
			return r.lawError("all would have left after %d µs under %+v, and now after %d; want at most 2 µs later", before.ResetAfter, old, after.ResetAfter)
		}
	case "slidingwindow": // times are rounded to ticks of the old limit and of the new one, against the caller
		least -= muldiv(old.Count, 2*(tickOf(old.Count, old.Period)-1), old.Period) + 1
		least = max(least-max(old.Count-Max/r.params[3], 0), 0) // the finer the ticks, the fewer units of a window can be counted
		most = min(capacity, used+min(muldiv(old.Count, 2*r.params[2]+1, limit.Period), Max)+2)
	case "slidinglog": // each grant counts if it is younger than the new period
		least, most = 0, 0
		for _, e := range events {
			if e.at > r.now-min(limit.Period, old.Period) {
				least += e.admitted
			}
			if e.at > r.now-limit.Period {
				most += e.admitted
			}
		}
		least, most = min(least, capacity), min(most, capacity)
	}
	if usedNow < least || usedNow > most {
		return r.lawError("%d units were used under %+v, and now %d of %d are used; want %d to %d", used, old, usedNow, capacity, least, most)
	}
	request := Request{Mode: Spend, Cost: r.fittingCost(), Holder: r.newHolder()}
	longest := min(times(max(used, usedNow)/capacity+2, r.refillTime(limit)), math.MaxInt64/2) + MaxStall
	if a.isQueue || a.needsHolder {
		longest = before.ResetAfter + r.refillTime(limit) + 2
	}
	if out := r.decide(request); out.RetryAfter == Never || out.RetryAfter > longest {
		return r.lawError("%d units of %d must wait %d µs; want at most %d µs, because %d were used and one refill takes %d µs", request.Cost, capacity,
			out.RetryAfter, longest, used, r.refillTime(limit))
	}
	return nil
}}

func TestALimitChangeKeepsWhatWasUsed(t *testing.T) {
	prove(t, limitChangeKeepsWhatWasUsed, allSubjects())
}

// After a step back of up to 5 s, no more units are left than before it. A denied request is
// granted at the same time of the clock as without the step, because nothing is refilled until
// the clock is again where it was.
var stepBackStallsTheState = law{"a step back stalls the state", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.use(Spend, Draw, Force, Refund)
	for range 4 {
		r.pass()
		r.decide(r.anyRequest(Draw))
		request := r.anyRequest(Spend, Draw, Peek)
		request.Holder = r.newHolder()
		then, now := r.now, r.now-pick(roll, roll(1, 10), roll(1, MaxStall), MaxStall)
		before, after := r.decideAt(request, then), r.decideAt(request, now)
		if after.Granted > before.Granted || r.peek(now).Remaining > r.peek(then).Remaining || (after.RetryAfter == Never) != (before.RetryAfter == Never) {
			return r.lawError("%v %d: a step back of %d µs changed the outcome from %+v to %+v; want no more units", request.Mode, request.Cost, then-now, before, after)
		}
		later := now + after.RetryAfter - then - before.RetryAfter
		if after.RetryAfter != Never && (later > 0 || later < 0 && !before.OK()) {
			return r.lawError("%v %d: a step back of %d µs changed the outcome from %+v to %+v: it is granted %d µs later (negative: earlier); want the same time", request.Mode, request.Cost, then-now, before, after, later)
		}
	}
	return nil
}}

func TestStepBackStallsTheState(t *testing.T) {
	prove(t, stepBackStallsTheState, allSubjects())
}

// After a step back by more than 5 s, no more units are left than before it. No caller waits longer
// than one refill. Retries do not make a denied client wait longer.
var farStepBackIsRepaired = law{"a far step back is repaired", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.use(Spend, Draw)
	if r.canBook && r.peek(r.now).Remaining == 0 {
		r.decide(Request{Mode: Refund, Cost: Max / 2}) // otherwise booked units would take longer to refill
	}
	r.decide(Request{Mode: Draw, Cost: r.fittingCost(), Holder: r.newHolder()})
	before := r.peek(r.now)
	r.now -= MaxStall + pick(roll, roll(1, 10), roll(1, day), roll(1, 1000*day))
	if after := r.peek(r.now); after.Remaining > before.Remaining {
		return r.lawError("the step back changed Remaining to %d; before it was %d; want no more", after.Remaining, before.Remaining)
	}
	request := Request{Mode: Spend, Cost: r.fittingCost(), Holder: r.newHolder()}
	out := r.decide(request)
	if out.RetryAfter == Never || out.RetryAfter > r.refillTime(r.limit)+MaxStall {
		return r.lawError("%d units must wait %d µs; want at most one refill, %d µs, and MaxStall", request.Cost, out.RetryAfter, r.refillTime(r.limit))
	}
	granted := r.now + out.RetryAfter
	for !out.OK() {
		r.now += max(roll(1, out.RetryAfter), out.RetryAfter/8)
		if out = r.decide(request); r.now+out.RetryAfter != granted {
			return r.lawError("a cost of %d would be granted at %d by the first RetryAfter, and at %d by a later one; want the same", request.Cost, granted, r.now+out.RetryAfter)
		}
	}
	return nil
}}

func TestFarStepBackIsRepaired(t *testing.T) { prove(t, farStepBackIsRepaired, allSubjects()) }

// Two clocks differ by up to 5 s. With both, a state admits no more than with one clock in a time
// that is longer by this difference.
var twoClocksAddNothing = law{"two clocks add nothing", func(a subject, roll dice) error {
	r := startRun(a, roll)
	behind := pick(roll, roll(1, 10), roll(1, MaxStall), MaxStall)
	var events []event
	for range roll(2, 40) {
		r.pass()
		now := r.now
		if roll.oneIn(2) {
			r.now -= behind
		}
		request := r.anyRequest(Draw, Draw, Spend)
		request.Patience = 0
		if out := r.decide(request); out.Granted > 0 {
			events = append(events, event{at: now, admitted: out.Granted})
		}
		r.now = now
	}
	if err := checkBound(events, func(apart int64) int64 { return r.bound(r.limit, apart+behind) }); err != nil {
		return r.lawError("two clocks, %d µs apart: %v", behind, err)
	}
	return nil
}}

func TestTwoClocksAddNothing(t *testing.T) { prove(t, twoClocksAddNothing, subjectsWhere(isBounded)) }

var forceIsAlwaysGranted = law{"force is always granted", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.useWithSteps(Spend, Draw, Refund)
	r.pass()
	left := r.peek(r.now).Remaining
	booked := int64(0) // units booked beyond the capacity; a queue books within it
	for _, entry := range r.history {
		if entry.out.Wait > 0 && !r.isQueue {
			booked += entry.out.Granted
		}
	}
	// A state counts at most this many units as used: twice the capacity, and at most Max/2.
	cost := max(min(r.fittingCost()-booked, Max/2-(r.capacity(r.limit)-left)), 0)
	out := r.decide(Request{Mode: Force, Cost: cost, Holder: r.newHolder()})
	if !out.OK() || out.Granted != cost || out.Remaining != max(left-cost, 0) {
		return r.lawError("%d units remained, and force %d has the outcome %+v; want all granted, and Remaining lower by them", left, cost, out)
	}
	return nil
}}

func TestForceIsAlwaysGranted(t *testing.T) { prove(t, forceIsAlwaysGranted, allSubjects()) }

var drawTakesWhatFits = law{"draw takes what fits", func(a subject, roll dice) error {
	r := startRun(a, roll)
	for range roll(1, 15) {
		r.pass()
		left := r.peek(r.now).Remaining
		request := Request{Mode: Draw, Cost: r.anyCost(), Holder: r.newHolder()}
		if r.isQueue {
			request.Patience = Max / 2
		}
		out := r.decide(request)
		if want := min(left, request.Cost); out.Granted != want || out.OK() != (want > 0 || request.Cost == 0) {
			return r.lawError("%d units remained, and draw %d has the outcome %+v; want as many granted as remained", left, request.Cost, out)
		}
	}
	return nil
}}

func TestDrawTakesWhatFits(t *testing.T) { prove(t, drawTakesWhatFits, allSubjects()) }

// At every moment the live holds take at most all slots. A request is denied only if it does not
// fit.
var slotsAreNeverExceeded = law{"slots are never exceeded", func(a subject, roll dice) error {
	type held struct{ cost, expires int64 }
	r := startRun(a, roll)
	holds := map[string]held{}
	latest, modes := int64(0), []Mode{Spend, Spend, Refund}
	hasSteps := roll.oneIn(2) // steps back of the clock
	if !hasSteps {            // after a step back, a Draw could find a hold that has ended alive again
		modes = append(modes, Draw)
	}
	for range roll(1, 40) {
		r.pass()
		if hasSteps && roll.oneIn(5) {
			r.stepBack()
			r.now = max(r.now, latest-MaxStall)
		}
		latest = max(latest, r.now)
		others, slots := int64(0), r.capacity(r.limit)
		request := r.anyRequest(modes...)
		for holder, h := range holds {
			if h.expires <= latest {
				delete(holds, holder)
			} else if holder != request.Holder {
				others += h.cost
			}
		}
		own := holds[request.Holder]
		out := r.decide(request)
		switch {
		case request.Mode == Refund:
			if own.cost -= out.Granted; own.cost <= 0 {
				delete(holds, request.Holder)
			} else {
				holds[request.Holder] = own
			}
		case out.OK() && request.Cost > 0:
			cost := request.Cost
			if request.Mode == Draw {
				cost = min(cost, max(slots-others, own.cost))
			}
			holds[request.Holder] = held{cost, r.now + r.limit.Period}
			if others+cost > slots {
				return r.lawError("%d slots are held by others, and %d by %s; want at most %d together", others, cost, request.Holder, slots)
			}
		}
		fits := request.Cost <= slots-others || request.Mode == Draw && others < slots
		if request.Mode == Refund || request.Cost == 0 {
			fits = true
		}
		if !hasSteps && out.OK() != fits {
			return r.lawError("others hold %d of %d slots, and %v %d has the outcome %+v; want it granted exactly if it fits", others, slots, request.Mode, request.Cost, out)
		}
	}
	return nil
}}

func TestConcurrencyNeverExceedsItsSlots(t *testing.T) {
	prove(t, slotsAreNeverExceeded, []subject{slotSubject()})
}

// A hold that is renewed in time lives, whatever other holders do. A hold that is not renewed ends
// exactly after Period.
var renewedHoldsLive = law{"renewed holds live", func(a subject, roll dice) error {
	r := startRun(a, roll)
	cost := r.fittingCost()
	mine := Request{Mode: Spend, Cost: cost, Holder: "mine"}
	if out := r.decide(mine); out.Granted != cost {
		return r.lawError("a spend of %d on a fresh state has the outcome %+v; want all granted", cost, out)
	}
	takeFree := func() int64 { return r.decide(Request{Mode: Draw, Cost: Max / 2, Holder: r.newHolder()}).Granted }
	takeFree()
	for range roll(1, 10) {
		r.now += roll(0, r.limit.Period-1)
		takeFree()
		if out := r.decide(mine); !out.OK() || out.Granted != 0 {
			return r.lawError("the renewal has the outcome %+v; want allowed, with 0 granted", out)
		}
	}
	r.decide(Request{Mode: Reset})
	r.decide(mine)
	takeFree()
	ends := r.now + r.limit.Period
	r.now = ends - 1
	r.decide(Request{Mode: Spend, Cost: 1, Holder: "late"})
	if left := r.peek(ends - 1).Remaining; left != 0 {
		return r.lawError("%d slots are free before the hold has ended; want 0", left)
	}
	r.now = ends
	if got := takeFree(); got != r.capacity(r.limit) {
		return r.lawError("%d slots are free when the holds have ended; want %d", got, r.capacity(r.limit))
	}
	return nil
}}

func TestRenewedHoldsLive(t *testing.T) { prove(t, renewedHoldsLive, []subject{slotSubject()}) }

// Only its holder can refund a hold, and only once.
var refundsAreTheHoldersOwn = law{"refunds are the holder's own", func(a subject, roll dice) error {
	r := startRun(a, roll)
	r.use(Spend, Draw)
	left := r.peek(r.now).Remaining
	if left == 0 {
		return nil
	}
	cost := roll(1, left)
	r.decide(Request{Mode: Spend, Cost: cost, Holder: "mine"})
	leftWithHold := r.decide(Request{Mode: Peek}).Remaining
	if out := r.decide(Request{Mode: Refund, Cost: cost, Holder: r.newHolder()}); out.Granted != 0 || out.Remaining != leftWithHold {
		return r.lawError("a refund by another holder has the outcome %+v; want 0 granted, and %d left as before", out, leftWithHold)
	}
	part := roll(0, cost)
	if out := r.decide(Request{Mode: Refund, Cost: part, Holder: "mine"}); out.Granted != part {
		return r.lawError("a refund of %d of %d slots has the outcome %+v; want that many granted", part, cost, out)
	}
	if out := r.decide(Request{Mode: Refund, Cost: cost, Holder: "mine"}); out.Granted != cost-part {
		return r.lawError("after a refund of %d of %d slots, a refund of %d has the outcome %+v; want the rest granted", part, cost, cost, out)
	}
	if out := r.decide(Request{Mode: Refund, Cost: cost, Holder: "mine"}); out.Granted != 0 {
		return r.lawError("a second refund has the outcome %+v; want 0 granted", out)
	}
	return nil
}}

func TestOnlyTheHolderCanRefundItsHold(t *testing.T) {
	prove(t, refundsAreTheHoldersOwn, []subject{slotSubject()})
}

// A calendar window is a day, a week or a month of its zone, whatever its length.
var windowsFollowTheCalendar = law{"windows follow the calendar", func(a subject, roll dice) error {
	parts := strings.SplitN(a.name, "/", 3)
	zone, err := time.LoadLocation(parts[2])
	if err != nil {
		return err
	}
	dated := func(at int64) string {
		local := time.UnixMicro(at).In(zone)
		switch parts[1] {
		case "day":
			return local.Format(time.DateOnly)
		case "week":
			year, week := local.ISOWeek()
			return fmt.Sprint(year, " week ", week)
		default:
			return local.Format("2006-01")
		}
	}
	r := startRun(a, roll)
	used := map[string]int64{}
	for range roll(1, 30) {
		r.pass()
		request := r.anyRequest(Spend, Draw)
		date := dated(r.now)
		left := r.limit.Count - used[date]
		out := r.decide(request)
		used[date] += out.Granted
		if out.Remaining != r.limit.Count-used[date] || !out.OK() && request.Cost <= left {
			return r.lawError("%d of %d units were left on %s, and a charge has the outcome %+v; want it granted if it fits, and the rest left", left, r.limit.Count, date, out)
		}
		if out.ResetAfter == 0 {
			continue
		}
		if ends := r.now + out.ResetAfter; dated(ends-1) != date || dated(ends) == date {
			return r.lawError("the window of %s ends at %v; want the first moment of the next date", date, time.UnixMicro(ends).In(zone))
		}
	}
	return nil
}}

func TestWindowsFollowTheCalendar(t *testing.T) {
	prove(t, windowsFollowTheCalendar, calendarSubjects())
}

// The caller computes the calendar. If the clocks of the caller and the store differ by at most
// half a window, the answer does not depend on the difference.
var callersClocksMayDiffer = law{"callers' clocks may differ by half a window", func(a subject, roll dice) error {
	r := startRun(a, roll)
	skewed := r.clone()
	half := 11 * hour // half of the shortest day, which has 23 hours, rounded down
	switch {
	case strings.Contains(a.name, "week"):
		half = 83 * hour // of 7*24-1 hours
	case strings.Contains(a.name, "month"):
		half = (14*24 - 1) * hour // of 28*24-1 hours
	}
	for range roll(1, 20) {
		r.pass()
		skew := pick(roll, 0, roll(-half, half), half, -half)
		skewed.now = r.now
		skewed.calendarAt = func(p Params, now int64) Params { return r.calendarAt(p, now+skew) }
		request := r.anyRequest(Spend, Draw, Refund)
		if out, other := r.decide(request), skewed.decide(request); answer(out) != answer(other) {
			return r.lawError("the outcome is %+v, and %+v for a caller whose clock is %d µs ahead; want the same", out, other, skew)
		}
	}
	return nil
}}

func TestCallersClocksMayDifferByHalfAWindow(t *testing.T) {
	prove(t, callersClocksMayDiffer, calendarSubjects())
}

// However far behind a caller's clock is, its parameters select a window that has not ended and is
// as long as a unit of the calendar.
var clocksBehindSelectAWindow = law{"clocks behind select a window", func(a subject, roll dice) error {
	r := startRun(a, roll)
	calendar := r.calendarAt
	for range roll(1, 10) {
		r.pass()
		behind := roll(0, 1000*day)
		r.calendarAt = func(p Params, now int64) Params { return calendar(p, now-behind) }
		out := r.decide(Request{Mode: Force, Cost: 1})
		if out.ResetAfter <= 0 || out.ResetAfter > r.refillTime(r.limit)+MaxStall {
			return r.lawError("by a clock that is %d µs behind, the window ends after %d µs; want more than 0, and at most two units of the calendar and MaxStall", behind, out.ResetAfter)
		}
		right := calendar(r.params, r.now)
		if end, _, _, _ := windowEnd(right[1], right[2], right[3], r.now); r.now+out.ResetAfter != end && a.name == "fixedwindow/day/Asia/Kolkata" {
			return r.lawError("by a clock that is %d µs behind, a day ends at %d; want %d, since all days have one length", behind, r.now+out.ResetAfter, end)
		}
	}
	return nil
}}

func TestClocksBehindSelectAWindow(t *testing.T) {
	prove(t, clocksBehindSelectAWindow, calendarSubjects())
}

// Converting a level to other parts never decreases the level. The level increases by less than one
// part if doubles are exact, and otherwise by at most slightly more than two parts.
func TestConversionIsRoundedAgainstTheCaller(t *testing.T) {
	const seed = 11
	roll := seeded(seed, 0)
	for i := range 50_000 {
		least := pick[int64](roll, 1, MaxPeriod/2) // all numbers, or only large ones, for which doubles are coarse
		old, parts := roll(least, MaxPeriod), roll(1, MaxPeriod)
		level := roll(0, Max)
		exact := new(big.Rat).Mul(big.NewRat(level, old), whole(parts))
		got := whole(convert(level, old, parts))
		slack := whole(1) // parts that the conversion may add
		if _, ok := product(old, parts, Max); !ok {
			slack = big.NewRat(33, 16) // slightly more than 2: doubles are not exact
		}
		if exact.Cmp(whole(Max)) >= 0 {
			exact = whole(Max)
		}
		most := new(big.Rat).Add(exact, slack)
		isTooSmall := got.Cmp(exact) < 0
		isTooLarge := got.Cmp(whole(Max)) > 0 || got.Cmp(most) > 0 && got.Cmp(whole(Max)) != 0
		if isTooSmall || isTooLarge {
			t.Fatalf("case %d of seed %d: %d in parts of 1/%d became %v in parts of 1/%d; want at least %v, and at most %v more", i, seed, level, old, got, parts, exact, slack)
		}
	}
}

// A limit that cannot be enforced is an error with the right reason.
func TestInvalidLimitsAreErrors(t *testing.T) {
	good := Limit{Count: 10, Period: 1_000_000}
	change := func(edit func(*Limit)) Limit {
		l := good
		edit(&l)
		return l
	}
	for _, c := range []struct {
		algorithm *Algorithm
		limit     Limit
		reason    string // part of the error; empty: the limit is valid
	}{
		{algorithm: TokenBucket, limit: good},
		{algorithm: TokenBucket, limit: change(func(l *Limit) { l.Count = 0 }), reason: "count is 0; it must be at least 1"},
		{algorithm: LeakyBucket, limit: change(func(l *Limit) { l.Count = -1 }), reason: "count is -1"},
		{algorithm: FixedWindow, limit: change(func(l *Limit) { l.Count = Max / 2 })},
		{algorithm: FixedWindow, limit: change(func(l *Limit) { l.Count = Max/2 + 1 }), reason: "the largest is 2251799813685248"},
		{algorithm: AnchoredWindow, limit: change(func(l *Limit) { l.Period = 0 }), reason: "the period must be at least 1µs"},
		{algorithm: SlidingLog, limit: change(func(l *Limit) { l.Period = MaxPeriod })},
		{algorithm: SlidingLog, limit: change(func(l *Limit) { l.Period = MaxPeriod + 1 }), reason: "8 years"},
		{algorithm: SlidingWindow, limit: change(func(l *Limit) { l.Burst = -1 }), reason: "burst is -1"},
		{algorithm: TokenBucket, limit: change(func(l *Limit) { l.Burst = Max/2 + 1 }), reason: "burst is 2251799813685249"},
		{algorithm: TokenBucket, limit: Limit{Count: 7, Period: 1_000_003, Burst: 2_251_793_058}},
		{algorithm: TokenBucket, limit: Limit{Count: 7, Period: 1_000_003, Burst: 2_251_793_059}, reason: "the largest is 2251793058"},
		{algorithm: LeakyBucket, limit: Limit{Count: 7, Period: 1_000_003, Burst: 2_251_793_057}},
		{algorithm: LeakyBucket, limit: Limit{Count: 7, Period: 1_000_003, Burst: 2_251_793_058}, reason: "the largest is 2251793057"},
		{algorithm: Concurrency, limit: change(func(l *Limit) { l.Period = 1000 })},
		{algorithm: Concurrency, limit: change(func(l *Limit) { l.Period = 999 }), reason: "a hold must last at least 1ms"},
		{algorithm: SubWindow(0), limit: good, reason: "0 parts; it must have 1 to 60"},
		{algorithm: SubWindow(1), limit: good},
		{algorithm: SubWindow(MaxParts), limit: good},
		{algorithm: SubWindow(MaxParts + 1), limit: good, reason: "61 parts; it must have 1 to 60"},
		{algorithm: SubWindow(10), limit: change(func(l *Limit) { l.Period = 10 })},
		{algorithm: SubWindow(10), limit: change(func(l *Limit) { l.Period = 9 }), reason: "cannot be split into 10 parts"},
		{algorithm: CalendarWindow(Week, time.UTC), limit: Limit{Count: 1}},
		{algorithm: CalendarWindow(Week, nil), limit: Limit{Count: 1}, reason: "needs a time zone"},
	} {
		_, err := c.algorithm.Prepare(c.limit)
		if (err == nil) != (c.reason == "") || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s with %+v has the error %v; want one that contains %q (none if that is empty)", c.algorithm.Name(), c.limit, err, c.reason)
		}
	}
}

// States decide as their step does, and keep only what is committed. A new state contains nothing
// of a removed state.
func TestStatesKeepOnlyWhatIsCommitted(t *testing.T) {
	for _, a := range []*Algorithm{TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SubWindow(10), SlidingLog, Concurrency} {
		t.Run(a.name, func(t *testing.T) {
			p, err := a.Prepare(Limit{Count: 3, Period: 1_000_000, Burst: 3})
			if err != nil {
				t.Fatal(err)
			}
			states := a.NewStates()
			// remainingAfter makes a step with a cost of 1, and returns the Remaining of its outcome.
			remainingAfter := func(state uint32, mode Mode, commit bool) int64 {
				var out Outcome
				states.Step(state, &p, &Request{Mode: mode, Cost: 1, Holder: "ann"}, epoch, commit, &out)
				return out.Remaining
			}
			first, second := states.Add(), states.Add()
			fresh := remainingAfter(first, Peek, true)
			for _, c := range []struct {
				state  uint32
				commit bool
				left   int64
			}{
				{state: first, commit: false, left: fresh},
				{state: first, commit: true, left: fresh - 1},
				{state: second, commit: false, left: fresh},
			} {
				remainingAfter(c.state, Spend, c.commit)
				if left := remainingAfter(c.state, Peek, true); left != c.left {
					t.Errorf("after a spend on state %d with commit %v, %d units remain; want %d", c.state, c.commit, left, c.left)
				}
			}
			states.Remove(first)
			if again := states.Add(); again != first || remainingAfter(again, Peek, true) != fresh {
				t.Errorf("after Remove(%d), Add returned %d; want the same index, with a fresh state", first, again)
			}
		})
	}
}
