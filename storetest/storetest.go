// Package storetest has the laws of a penstock.Store. Run checks a store against them, and explains
// what a failure breaks.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// Run checks a store against every law. open returns the store for one law. open may return the
// same store each time, because every law has its own groups of limits. The store's clock must show
// the current time.
//
// Most limits refill over years, so the passing of time does not change a result. Only the laws
// about waiting wait, for some tens of milliseconds. These laws check only lower bounds of their
// waits.
func Run(t *testing.T, open func(t *testing.T) penstock.Store) {
	t.Helper()
	for _, l := range laws {
		t.Run(strings.ReplaceAll(l.name, " ", "_"), func(t *testing.T) {
			l.check(&lawTest{T: t, store: open(t), group: "t" + strings.ToLower(rand.Text()), law: l.text})
		})
	}
	t.Logf("counted: %d laws of a store", len(laws))
}

// A law is a rule for all stores. A failure prints its text.
type law struct {
	name  string
	text  string
	check func(*lawTest)
}

var laws = []law{
	{"a denied batch spends nothing",
		"A batch is all or nothing. If one charge is denied, no charge is made, wherever the denied charge is " +
			"in the batch. Charges that are not denied have RetryAfter 0 and Granted 0, and report what remains.", checkDeniedBatch},
	{"denied requests count if a limit asks for it",
		"A Spend of a denied batch charges a limit with ShouldCountDenied, whichever limit denied it, until twice " +
			"the limit's units are used. Its RetryAfter is that of the state after the counting. So the same batch is " +
			"granted at the RetryAfter of the decision. A cost that never fits is not counted.", checkCountedDenials},
	{"a granted batch makes every charge",
		"Every charge of an allowed batch is made. Status i is that of charge i.", checkGrantedBatch},
	{"a charge has the same status in every batch",
		"The other charges of an allowed batch do not change a charge's status.", checkSameStatusInEveryBatch},
	{"two charges of one limit and key are invalid",
		"A batch that charges a counter twice is ErrInvalid and changes nothing. The same limit with another " +
			"key, or in another group, is another counter.", checkDuplicates},
	{"invalid arguments change nothing",
		"Invalid limits, costs, keys, holders and batches are ErrInvalid, whatever else is in the batch. " +
			"Nothing is charged.", checkInvalidArguments},
	{"peek changes nothing",
		"Peek reports what Spend would do, and so does a cost of 0. Neither changes a later result.", checkPeek},
	{"a cost above the limit is denied with Never",
		"Waiting cannot help a cost that is larger than the limit. It is denied with RetryAfter Never, and " +
			"spends nothing.", checkCostTooLarge},
	{"a denial has a RetryAfter",
		"The RetryAfter of a denial is above 0, and not longer than the units need to refill. ResetAfter is " +
			"above 0 while units are used.", checkRetryAfter},
	{"refund returns at most what is used",
		"A Refund returns units for later charges, and never more than were used.", checkRefund},
	{"a refund with a receipt is exact",
		"A charge with IsRefundable has a Receipt. The Refund with this Receipt returns its units, and no units " +
			"of other charges.", checkReceipts},
	{"reset clears the counter",
		"After a Reset, the counter is like a new one. Other counters do not change.", checkReset},
	{"force is never denied",
		"A Force may exceed the limit. Then nothing remains until the excess has refilled or is refunded.", checkForce},
	{"draw takes what is left",
		"A Draw is granted as much of its cost as fits. It is denied if not even one unit is left.", checkDraw},
	{"patience books units in advance",
		"TokenBucket and LeakyBucket grant a patient Spend with a Wait until its turn. Later charges have " +
			"longer Waits. A charge without enough patience is denied and books nothing.", checkPatience},
	{"only the last can leave the queue",
		"Only the last place in the queue of a LeakyBucket can be refunded: the others already know when they " +
			"may go.", checkLeavingTheQueue},
	{"keys are independent",
		"A key is any bytes. What one key has used does not count for another.", checkKeys},
	{"limits of one group and key are independent",
		"Limits that are stored together are counted separately. A spend or a reset of one does not change the " +
			"others, even if it takes all units.", checkNeighbors},
	{"a changed algorithm starts with a new state",
		"State belongs to an algorithm. A limit that keeps its name and changes its algorithm starts with a new state, " +
			"whatever state the old algorithm has left.", checkChangedAlgorithm},
	{"a changed limit keeps what was used",
		"A raised limit frees exactly the difference. A limit that is lowered below what was used has nothing " +
			"left.", checkChangedLimit},
	{"limits in turn lose no charge",
		"Limits of one name that are used in turn for one key, such as tiers, together admit what the largest " +
			"admits. What one has used counts for all. A smaller one denies until enough units have refilled.", checkLimitsInTurn},
	{"regions exchange what they have granted",
		"The total of a region is what it has granted. A total of another region is charged once, however often it comes, " +
			"also beyond the limit. Then a token bucket admits the own share of its region. Other limits refuse these modes.", checkExchange},
	{"a hold is acquired, renewed and released",
		"A holder has its slots once, however often it spends. Its own Refund releases them, once. A Refund " +
			"of another holder does not.", checkHolds},
	{"a hold expires",
		"A hold that is neither renewed nor released ends Period after its last Spend, and not earlier.", checkExpiringHolds},
	{"limits of all kinds can be one batch",
		"Limits of any algorithms and keys are decided together. If one of them has no room, no other is " +
			"charged.", checkMixedBatch},
	{"an ended context gives its error",
		"A call with an ended context returns the context's error and charges nothing.", checkEndedContext},
	{"concurrent charges get exactly the limit",
		"Charges are atomic: however many are made at the same time, the grants add up to the limit.", checkConcurrentSpends},
	{"batches in opposite orders do not block",
		"Batches that share keys in opposite orders all end. They never admit more than the limit. What " +
			"denied batches took is returned when all have ended.", checkOppositeOrders},
	{"arguments belong to the caller afterwards",
		"A store does not keep the slice or the charges after it has returned, and its decision does not " +
			"change later.", checkReusedArguments},
	{"wait blocks until it is admitted",
		"Limiter.Wait returns nil when the units are charged and the turn has come, not earlier.", checkWait},
	{"a wait that cannot succeed returns immediately",
		"If the turn comes after the deadline, or never, Wait and Reserve return a DeniedError immediately and " +
			"book nothing.", checkUselessWaits},
	{"an abandoned wait returns its booking",
		"If the context of a Wait ends, the booking is refunded, and the context's error is returned.", checkAbandonedWaits},
	{"a reservation is settled once",
		"Settle corrects the cost to the true one. Cancel refunds it. Only the first of these calls counts.", checkReservations},
	{"acquire, renew and release",
		"Acquire takes slots and charges the other limits. Renew takes nothing more. Release returns the " +
			"slots once and keeps the other charges.", checkAcquire},
	{"AllowAtMost charges several limits equally",
		"AllowAtMost grants what fits every limit, and refunds what the others were charged beyond that.", checkAllowAtMost},
	{"limits that a call brings share counters by name",
		"AllowWith charges the limits of the call, in the Limiter's group.", checkLimitsOfCalls},
}

const (
	refillTime = 8 * 365 * 24 * time.Hour // so long that nothing refills during a test
	units      = 10                       // the units of a counter, unless a law needs another number
)

// A kind is an algorithm with which the laws are checked.
type kind struct {
	name  string
	limit func(units int64) penstock.Limit
}

// Some laws use one of these kinds.
var (
	tokenKind = kind{"token", slowLimit(penstock.TokenBucket)}
	fixedKind = kind{"fixed", slowLimit(penstock.FixedWindow)}
	logKind   = kind{"log", slowLimit(penstock.SlidingLog)}
	slotKind  = kind{"slots", slowLimit(penstock.Concurrency)}

	// LeakyBucket admits one unit at a time. So its units refill within minutes, and its charges need
	// patience.
	leakyKind = kind{"leaky", func(n int64) penstock.Limit {
		return penstock.Limit{Algorithm: penstock.LeakyBucket, Count: 10, Period: time.Hour, Burst: n - 1}
	}}
)

var kinds = []kind{
	tokenKind,
	leakyKind,
	fixedKind,
	{"anchored", slowLimit(penstock.AnchoredWindow)},
	{"calendar", slowLimit(penstock.CalendarWindow(algorithm.Day, noonZone()))},
	{"sliding", slowLimit(penstock.SlidingWindow)},
	logKind,
	{"sub", slowLimit(penstock.SubWindow(6))},
	slotKind,
}

// slowLimit makes limits whose units do not refill during a test.
func slowLimit(a *algorithm.Algorithm) func(int64) penstock.Limit {
	return func(n int64) penstock.Limit { return penstock.Limit{Algorithm: a, Count: n, Period: refillTime} }
}

// noonZone is a time zone where it is about noon, so that no day ends during the tests.
func noonZone() *time.Location {
	now := time.Now().UTC()
	sinceMidnight := now.Sub(now.Truncate(24 * time.Hour))
	return time.FixedZone("noon", int((12*time.Hour - sinceMidnight).Seconds()))
}

// needsHolder reports whether charges need a holder. A second spend of a holder is a renewal.
func (k kind) needsHolder() bool { return k.name == "slots" }

// A counter is a limit with a key, and the holder that charges it.
type counter struct {
	key    string
	limit  penstock.Limit
	holder string
}

// The three methods below return the same counter with another holder, key or name of its limit.

func (c counter) withHolder(holder string) counter { c.holder = holder; return c }
func (c counter) withKey(key string) counter       { c.key = key; return c }
func (c counter) withName(name string) counter     { c.limit = c.limit.WithName(name); return c }

func (c counter) charge(mode penstock.Mode, cost int64) penstock.Charge {
	charge := penstock.Charge{Key: c.key, Plan: c.limit.MustCompile(), Mode: mode, Cost: cost, Holder: c.holder}
	if c.limit.Algorithm == penstock.LeakyBucket {
		charge.Patience = 24 * time.Hour
	}
	return charge
}

func (c counter) spend(cost int64) penstock.Charge { return c.charge(penstock.Spend, cost) }

// A lawTest checks one law.
type lawTest struct {
	*testing.T
	store penstock.Store
	group string
	law   string
}

// counter makes a counter of a kind with n units, for the key "k".
func (t *lawTest) counter(k kind, n int64) counter {
	limit := k.limit(n)
	limit.Name, limit.Group = k.name, t.group
	return counter{key: "k", limit: limit, holder: "holder"}
}

// token makes a counter of a token bucket.
func (t *lawTest) token() counter { return t.counter(tokenKind, units) }

// reportViolation reports that the store breaks the law, and fatal also ends the test.
func (t *lawTest) reportViolation(format string, args ...any) {
	t.Helper()
	t.Errorf("%s\nThe law: %s", fmt.Sprintf(format, args...), t.law)
}

func (t *lawTest) fatal(format string, args ...any) {
	t.Helper()
	t.Fatalf("%s\nThe law: %s", fmt.Sprintf(format, args...), t.law)
}

// decide decides charges, and fails the test unless the store returns a status for each.
func (t *lawTest) decide(charges ...penstock.Charge) penstock.Decision {
	t.Helper()
	d, err := t.store.Decide(t.Context(), charges)
	if err != nil {
		t.fatal("%s failed: %v", showCharges(charges), err)
	}
	if d.Len() != len(charges) {
		t.fatal("%s has %d statuses; want one for each charge", showCharges(charges), d.Len())
	}
	return d
}

// allow decides charges, and fails the test unless they are allowed. It returns the first status.
func (t *lawTest) allow(charges ...penstock.Charge) penstock.Status {
	t.Helper()
	d := t.decide(charges...)
	if !d.Allowed {
		t.fatal("%s was denied: %s; want allowed", showCharges(charges), showDecision(d))
	}
	return d.Status(0)
}

// deny decides charges, and fails the test unless they are denied. It returns the first status.
func (t *lawTest) deny(charges ...penstock.Charge) penstock.Status {
	t.Helper()
	d := t.decide(charges...)
	if d.Allowed {
		t.fatal("%s was allowed: %s; want denied", showCharges(charges), showDecision(d))
	}
	return d.Status(0)
}

// wantInvalid decides charges, and reports a violation unless the error is ErrInvalid.
func (t *lawTest) wantInvalid(what string, charges ...penstock.Charge) {
	t.Helper()
	if d, err := t.store.Decide(t.Context(), charges); !errors.Is(err, penstock.ErrInvalid) {
		t.reportViolation("%s: got %s, %v; want ErrInvalid", what, showDecision(d), err)
	}
}

// wantRemaining checks how many units a counter has left.
func (t *lawTest) wantRemaining(c counter, want int64) {
	t.Helper()
	if s := t.allow(c.charge(penstock.Peek, 0)); s.Remaining != want {
		t.reportViolation("%d units of limit %q remain for key %.40q; want %d", s.Remaining, c.limit.Name, c.key, want)
	}
}

func (t *lawTest) wantGranted(what string, s penstock.Status, granted, remaining int64) {
	t.Helper()
	if s.Granted != granted || s.Remaining != remaining {
		t.reportViolation("%s: %d granted and %d remaining; want %d and %d; the status is %+v", what, s.Granted, s.Remaining, granted, remaining, s)
	}
}

// each runs a check for every kind.
func (t *lawTest) each(check func(t *lawTest, k kind)) {
	for _, k := range kinds {
		t.Run(k.name, func(sub *testing.T) {
			check(&lawTest{T: sub, store: t.store, group: t.group + "." + k.name, law: t.law}, k)
		})
	}
}

func showCharges(charges []penstock.Charge) string {
	var s strings.Builder
	for i, c := range charges {
		if i == 4 {
			fmt.Fprintf(&s, "and %d more", len(charges)-i)
			break
		}
		fmt.Fprintf(&s, "[%v %d of %s.%s for key %.40q] ", c.Mode, c.Cost, c.Plan.Group(), c.Plan.Name(), c.Key)
	}
	return s.String()
}

func showDecision(d penstock.Decision) string {
	var s strings.Builder
	for i := range d.Len() {
		fmt.Fprintf(&s, "%+v ", d.Status(i))
	}
	return fmt.Sprintf("{allowed %t, %s}", d.Allowed, s.String())
}

func checkDeniedBatch(t *lawTest) {
	for _, place := range []struct{ free, full string }{{"one", "one"}, {"one", "two"}} {
		for _, first := range kinds {
			for _, second := range kinds {
				free := t.counter(first, units).withKey(place.free).withName("free-" + first.name + "-" + second.name)
				full := t.counter(second, units).withKey(place.full).withName("full-" + first.name + "-" + second.name)
				t.allow(full.withHolder("occupant").spend(units))
				for _, denied := range []penstock.Charge{full.spend(1), full.spend(units + 1)} {
					t.wantDeniedTogether(denied, free.spend(4))
					t.wantDeniedTogether(free.spend(4), denied, free.withName("other").spend(1))
				}
				t.wantRemaining(free, units)
			}
		}
	}
}

// wantDeniedTogether decides a batch in which exactly the charges of the full counter must be
// denied.
func (t *lawTest) wantDeniedTogether(charges ...penstock.Charge) {
	t.Helper()
	d := t.decide(charges...)
	if d.Allowed || d.RetryAfter() == 0 {
		t.reportViolation("%s: %s; want a denial with a RetryAfter", showCharges(charges), showDecision(d))
	}
	for i, c := range charges {
		s, isFull := d.Status(i), strings.HasPrefix(c.Plan.Name(), "full-")
		if s.Granted != 0 || s.Wait != 0 || (s.RetryAfter != 0) != isFull {
			t.reportViolation("%s: status %d is %+v; want Granted 0 and Wait 0; its counter is full: %v, so want a RetryAfter: %v",
				showCharges(charges), i, s, isFull, isFull)
		}
		if want := int64(units); !isFull && s.Remaining != want {
			t.reportViolation("%s: in status %d, %d units remain; want %d", showCharges(charges), i, s.Remaining, want)
		}
	}
}

func checkCountedDenials(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c, plain := t.counter(k, units), t.counter(k, units).withName("plain")
		if !c.limit.MustCompile().Algorithm().CountsDenied() {
			return
		}
		c.limit.ShouldCountDenied = true
		for i, key := range []string{"k", "l"} {
			full := t.token().withName("full").withKey(key)
			t.allow(full.spend(units))
			d := t.decide(c.spend(2), plain.spend(2), full.spend(1))
			left := units - 2*int64(i+1)
			if s := d.Status(0); d.Allowed || s.Granted != 0 || s.RetryAfter != 0 || s.Remaining != left {
				t.reportViolation("another limit, under the key %q, denied the request: %s; want %d units left, and RetryAfter 0", key, showDecision(d), left)
			}
			t.wantRemaining(c, left)
			t.wantRemaining(plain, units)
		}
		full := t.token().withName("full")
		if d := t.decide(c.spend(units-4), full.spend(1)); d.Status(0).RetryAfter <= 0 || d.Status(0).Wait != 0 {
			t.reportViolation("another limit denied the request, which took all units: %s; want a RetryAfter, and no Wait", showDecision(d))
		}
		for range 3 {
			denied := t.deny(c.spend(units))
			if peek := t.deny(c.charge(penstock.Peek, units)); denied.Remaining != 0 || denied.RetryAfter < peek.RetryAfter {
				t.reportViolation("a denied request has the status %+v, and a Peek right after it has %+v; want nothing left, and no longer RetryAfter", denied, peek)
			}
		}
		if s := t.deny(c.spend(units + 1)); s.RetryAfter != penstock.Never {
			t.reportViolation("a cost that never fits has the status %+v; want RetryAfter Never", s)
		}
		t.deny(c.charge(penstock.Draw, 1))
		t.allow(c.charge(penstock.Refund, 2*units-1)) // 2*units are used
		t.wantRemaining(c, units-1)
		t.deny(c.spend(units + 1))
		t.wantRemaining(c, units-1)
	})
}

func checkGrantedBatch(t *lawTest) {
	for round, key := range []func(i int) string{ // the key of charge i in each round
		func(int) string { return "k" },
		func(i int) string { return fmt.Sprint("k", i%3) },
	} {
		var counters []counter
		var charges []penstock.Charge
		for i, k := range kinds {
			c := t.counter(k, units).withKey("batch-" + key(i)).withName(fmt.Sprint(k.name, round))
			counters = append(counters, c)
			charges = append(charges, c.spend(int64(i+1)))
		}
		slices.Reverse(charges)
		d := t.decide(charges...)
		if !d.Allowed || d.RetryAfter() != 0 {
			t.reportViolation("%s: %s; want a grant", showCharges(charges), showDecision(d))
		}
		for i, c := range charges {
			t.wantGranted(showCharges(charges[i:i+1]), d.Status(i), c.Cost, units-c.Cost)
		}
		for i, c := range counters {
			t.wantRemaining(c, units-int64(i+1))
		}
	}
}

func checkSameStatusInEveryBatch(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		alone := t.counter(k, units).withKey("alone")
		together := alone.withKey("together")
		for _, cost := range []int64{3, 0, 2, 5} {
			one := t.allow(alone.spend(cost))
			both := t.allow(together.spend(cost), together.withName("other").withHolder("other").spend(1))
			if one.Granted != both.Granted || one.Remaining != both.Remaining || (one.ResetAfter > 0) != (both.ResetAfter > 0) {
				t.reportViolation("cost %d: the status is %+v alone, and %+v in a batch; want the same", cost, one, both)
			}
			if k.needsHolder() {
				break // a second spend is a renewal
			}
		}
	})
}

func checkDuplicates(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		t.wantInvalid("one limit twice", c.spend(1), c.withHolder("other").spend(1))
		t.wantInvalid("one limit twice, with another between", c.spend(1), t.token().withName("between").spend(1), c.charge(penstock.Peek, 1))
		raised := c
		raised.limit.Count *= 2
		t.wantInvalid("one limit twice, with different counts", c.spend(1), raised.spend(1))
		t.wantRemaining(c, units)

		elsewhere := c
		elsewhere.limit.Group += "-2"
		d := t.decide(c.spend(1), c.withKey("other").spend(2), elsewhere.spend(3))
		for i, left := range []int64{9, 8, 7} {
			t.wantGranted("three counters", d.Status(i), int64(i+1), left)
		}
	})
}

func checkInvalidArguments(t *lawTest) {
	good := t.token()
	bad := func(change func(*penstock.Charge)) penstock.Charge {
		c := good.withName("bad").spend(1)
		change(&c)
		return c
	}
	for _, row := range []struct {
		what   string
		charge penstock.Charge
	}{
		{"no plan", bad(func(c *penstock.Charge) { c.Plan = nil })},
		{"a negative cost", bad(func(c *penstock.Charge) { c.Cost = -1 })},
		{"a negative receipt", bad(func(c *penstock.Charge) { c.Receipt, c.Mode = -1, penstock.Refund })},
		{"a negative refund", bad(func(c *penstock.Charge) { c.Cost, c.Mode = -1, penstock.Refund })},
		{"a cost above MaxCost", bad(func(c *penstock.Charge) { c.Cost = penstock.MaxCost + 1 })},
		{"an unknown mode", bad(func(c *penstock.Charge) { c.Mode = penstock.Reset + 1 })},
		{"a key of more than 64 KiB", bad(func(c *penstock.Charge) { c.Key = strings.Repeat("k", penstock.MaxKey+1) })},
		{"a holder of more than 512 bytes", bad(func(c *penstock.Charge) { c.Holder = strings.Repeat("h", penstock.MaxHolder+1) })},
		{"negative patience", bad(func(c *penstock.Charge) { c.Patience = -1 })},
		{"patience of more than a day", bad(func(c *penstock.Charge) { c.Patience = 25 * time.Hour })},
		{"a hold without a holder", bad(func(c *penstock.Charge) {
			c.Plan, c.Holder = t.counter(slotKind, units).limit.MustCompile(), ""
		})},
	} {
		t.wantInvalid(row.what, row.charge)
		t.wantInvalid(row.what+", first", row.charge, good.spend(1))
		t.wantInvalid(row.what+", last", good.spend(1), row.charge)
	}
	t.wantInvalid("an empty batch")
	var many []penstock.Charge
	for i := range penstock.MaxCharges + 1 {
		many = append(many, good.withName(fmt.Sprint("many", i)).spend(1))
	}
	t.wantInvalid("a batch of 65", many...)
	t.wantRemaining(good, units)
	t.wantRemaining(good.withName("many0"), units)
	t.allow(many[:penstock.MaxCharges]...)
	t.wantRemaining(good.withName("many63"), units-1)
}

func checkPeek(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		for _, used := range []int64{0, 4, units} {
			if used > 0 {
				alreadyUsed := units - t.unitsLeft(c)
				t.allow(c.withHolder(fmt.Sprint("holder", used)).spend(used - alreadyUsed))
			}
			left := units - used
			for range 2 {
				for _, cost := range []int64{1, left, left + 1, units} {
					d := t.decide(c.withHolder("observer").charge(penstock.Peek, cost))
					if s := d.Status(0); d.Allowed != (cost <= left) || s.Granted != 0 || s.Remaining != left {
						t.reportViolation("peek at a cost of %d with %d left: %s; want allowed exactly if it fits", cost, left, showDecision(d))
					}
				}
				for _, mode := range []penstock.Mode{penstock.Spend, penstock.Draw, penstock.Peek, penstock.Force, penstock.Refund} {
					t.wantGranted(fmt.Sprint(mode, " of 0"), t.allow(c.withHolder("another").charge(mode, 0)), 0, left)
				}
			}
		}
	})
}

// unitsLeft returns how many units a counter has left.
func (t *lawTest) unitsLeft(c counter) int64 {
	t.Helper()
	return t.allow(c.charge(penstock.Peek, 0)).Remaining
}

func checkCostTooLarge(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		for _, mode := range []penstock.Mode{penstock.Spend, penstock.Peek} {
			for _, cost := range []int64{units + 1, penstock.MaxCost} {
				if s := t.deny(c.charge(mode, cost)); s.RetryAfter != penstock.Never || s.Granted != 0 {
					t.reportViolation("%v of %d units: %+v; want RetryAfter Never", mode, cost, s)
				}
			}
		}
		d := t.decide(c.spend(1), c.withName("other").spend(units+1))
		if d.RetryAfter() != penstock.Never || d.Strictest() != 1 {
			t.reportViolation("a batch with a cost that never fits: %s; want RetryAfter Never", showDecision(d))
		}
		t.wantRemaining(c, units)
	})
}

func checkRetryAfter(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		if s := t.allow(c.charge(penstock.Peek, 1)); s.ResetAfter != 0 {
			t.reportViolation("a fresh counter: %+v; want ResetAfter 0", s)
		}
		if s := t.allow(c.spend(units)); s.RetryAfter != 0 || s.ResetAfter <= 0 {
			t.reportViolation("a grant: %+v; want RetryAfter 0, and ResetAfter above 0", s)
		}
		longest := 2 * refillTime // a sliding window is the slowest to refill
		// A Draw takes as many units as are left, so it is denied only because there are none.
		for _, mode := range []penstock.Mode{penstock.Spend, penstock.Draw, penstock.Peek} {
			s := t.deny(c.withHolder("other").charge(mode, 1))
			if s.RetryAfter <= 0 || s.RetryAfter > longest || s.ResetAfter < s.RetryAfter || s.ResetAfter > longest {
				t.reportViolation("%v on an exhausted counter: %+v; want a RetryAfter up to the refill time", mode, s)
			}
		}
	})
}

func checkRefund(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		if s := t.allow(c.charge(penstock.Refund, 3)); s.Granted != 0 || s.Remaining != units {
			t.reportViolation("a refund of an unused counter: %+v; want 0 granted", s)
		}
		t.allow(c.spend(6))
		// A partly refilled unit may count as unused, so only the bounds of Granted are checked.
		if s := t.allow(c.charge(penstock.Refund, 2)); s.Remaining != 6 || s.Granted > 2 {
			t.reportViolation("a refund of 2 units: %+v; want 6 left, and at most 2 granted", s)
		}
		if k.name == "leaky" {
			return // only the last in the queue can be refunded: see checkLeavingTheQueue
		}
		if s := t.allow(c.charge(penstock.Refund, penstock.MaxCost)); s.Remaining != units || s.Granted > 4 || s.ResetAfter != 0 {
			t.reportViolation("a refund of more than is used: %+v; want all units left, and ResetAfter 0", s)
		}
		t.allow(c.spend(units))
		t.deny(c.withHolder("other").spend(1))
	})
}

func checkReceipts(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		if !c.limit.MustCompile().Algorithm().HasExactRefunds() {
			return
		}
		plain := t.allow(c.spend(1))
		refundable := c.spend(1)
		refundable.IsRefundable = true
		granted := t.allow(refundable)
		if plain.Receipt != 0 || granted.Receipt == 0 {
			t.reportViolation("a charge has the receipt %d, and one that is refundable has %d; want one only for the second", plain.Receipt, granted.Receipt)
		}
		t.allow(c.spend(2))
		const ofNoCharge = 1
		for _, step := range []struct{ receipt, cost, remaining int64 }{
			{ofNoCharge, 1, units - 4}, {granted.Receipt, 1, units - 3},
		} {
			refund := c.charge(penstock.Refund, step.cost)
			refund.Receipt = step.receipt
			if s := t.allow(refund); s.Remaining != step.remaining || s.Granted > step.cost {
				t.reportViolation("a refund of %d units with the receipt %d: %+v; want %d left", step.cost, step.receipt, s, step.remaining)
			}
		}
	})
}

func checkReset(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c, other := t.counter(k, units), t.counter(k, units).withName("other")
		t.allow(c.spend(units), other.spend(3))
		reset := c.withHolder("")
		if s := t.allow(reset.charge(penstock.Reset, 0)); s.Remaining != units || s.ResetAfter != 0 {
			t.reportViolation("after a reset: %+v; want %d left and ResetAfter 0", s, units)
		}
		t.wantRemaining(c, units)
		t.wantRemaining(other, units-3)
		t.allow(reset.charge(penstock.Reset, 0))
		t.allow(c.spend(units))
		t.wantRemaining(c, 0)
	})
}

func checkForce(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		t.allow(c.withHolder("first").spend(7))
		t.wantGranted("a Force of 5 units with 3 left", t.allow(c.charge(penstock.Force, 5)), 5, 0)
		t.deny(c.withHolder("third").spend(1))
		if s := t.allow(c.charge(penstock.Refund, 5)); s.Remaining != 3 {
			t.reportViolation("a refund of 5 forced units: %+v; want 3 left", s)
		}
		t.wantGranted("a Force in a batch", t.allow(c.withHolder("fourth").charge(penstock.Force, 4), t.token().withName("other").spend(1)), 4, 0)
	})
}

func checkExchange(t *lawTest) {
	const report, merge, rejoin = algorithm.Attempt + 1, algorithm.Attempt + 2, algorithm.Attempt + 3 // see algorithm/across.go
	for _, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.SubWindow(6), penstock.CalendarWindow(algorithm.Day, noonZone())} {
		c := t.counter(kind{"across-" + a.Title(), slowLimit(algorithm.Across(a))}, units)
		t.allow(c.spend(3))
		t.deny(c.spend(units + 1))
		own := t.allow(c.charge(report, 0))
		if own.Granted != 3 || own.Wait <= 0 || own.ResetAfter <= 0 {
			t.reportViolation("%s: the report of a region that has granted 3 units: %+v; want 3 granted, and a life", a.Title(), own)
		}
		total := c.withHolder("another region").charge(merge, 4)
		total.Receipt, total.Patience = 7, own.ResetAfter
		share := int64(0) // what is left of this region's own share
		if a == penstock.TokenBucket {
			share = 3 // of 5 units; 3/10 of it were used while no other region was known
		}
		for _, step := range []struct{ cost, granted, remaining int64 }{{4, 4, 3}, {4, 0, 3}, {2, 0, 3}, {9, 5, share}} {
			total.Cost = step.cost
			t.wantGranted("a total of "+fmt.Sprint(step.cost)+" units of another region", t.allow(total), step.granted, step.remaining)
		}
		t.deny(c.spend(share + 1))
		if share > 0 {
			t.wantGranted("a Draw out of the own share", t.allow(c.charge(penstock.Draw, units)), share, 0)
			t.deny(c.spend(1))
		}
		if again := t.allow(c.charge(report, 0)); again.Granted != 3+share || again.Wait != own.Wait {
			t.reportViolation("%s: after a merge the report is %+v; want %d granted in the life of %+v", a.Title(), again, 3+share, own)
		}
		if a == penstock.TokenBucket {
			total.Mode, total.Cost = rejoin, 1009
			total.Patience = (900*32 + 1) * time.Microsecond // 900 units, and the factor 1: see rejoin
			t.wantGranted("a total of 1000 new units, of which 900 are refilled", t.allow(total), 100, 0)
		}
	}
	many := t.counter(kind{"across-many", slowLimit(algorithm.Across(penstock.TokenBucket))}, 100*units)
	for i := range int64(16) { // there is room for 14 other regions
		total := many.withHolder(fmt.Sprint("region ", i)).charge(merge, 1)
		total.Receipt = 1
		t.wantGranted("a total of region "+fmt.Sprint(i), t.allow(total), max(0, min(1, 14-i)), 100*units-min(i+1, 14))
	}
	plain := t.token()
	t.allow(plain.spend(1))
	for _, mode := range []penstock.Mode{report, merge, rejoin, rejoin + 1} {
		t.wantInvalid("mode "+mode.String()+" for a limit of one region", plain.charge(mode, 1))
	}
	t.wantRemaining(plain, units-1)
}

func checkDraw(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		t.wantGranted("a Draw of 7 units with 10 left", t.allow(c.withHolder("first").charge(penstock.Draw, 7)), 7, 3)
		t.wantGranted("a Draw of 5 units with 3 left", t.allow(c.withHolder("second").charge(penstock.Draw, 5)), 3, 0)
		if s := t.deny(c.withHolder("third").charge(penstock.Draw, 5)); s.Granted != 0 || s.RetryAfter <= 0 {
			t.reportViolation("a Draw of 5 units with none left: %+v; want a denial with a RetryAfter and nothing granted", s)
		}
		whole := c.withName("whole")
		t.wantGranted("a Draw of more than the limit", t.allow(whole.charge(penstock.Draw, penstock.MaxCost)), units, 0)
	})
}

func checkPatience(t *lawTest) {
	const interval = 6 * time.Minute // between two units
	wantNear := func(what string, got, want time.Duration) {
		t.Helper()
		if got > want || got < want-time.Minute {
			t.reportViolation("%s is %v; want slightly less than %v", what, got, want)
		}
	}
	c := t.token()
	c.limit.Period = time.Hour // 10 units, one every 6 minutes
	patient := func(c counter, patience time.Duration) penstock.Charge {
		charge := c.spend(1)
		charge.Patience = patience
		return charge
	}
	t.allow(c.spend(units))
	wantNear("RetryAfter without patience", t.deny(c.spend(2)).RetryAfter, 2*interval)
	wantNear("RetryAfter with too little patience", t.deny(patient(c, 2*time.Minute)).RetryAfter, interval-2*time.Minute)
	wantNear("the first wait", t.allow(patient(c, time.Hour)).Wait, interval)
	wantNear("the second wait", t.allow(patient(c, time.Hour)).Wait, 2*interval)
	d := t.decide(patient(c, time.Hour), patient(c.withName("idle"), time.Hour))
	wantNear("the wait of a batch", d.Wait(), 3*interval)
	t.deny(patient(c, time.Hour), c.withName("idle").spend(units))
	wantNear("a wait after a denied batch", t.allow(patient(c, time.Hour)).Wait, 4*interval)

	queue := t.counter(leakyKind, 3)
	if s := t.allow(patient(queue, 0)); s.Wait != 0 || s.Remaining != 2 {
		t.reportViolation("the first in an empty queue: %+v; want no wait", s)
	}
	wantNear("the queue's RetryAfter without patience", t.deny(patient(queue, 0)).RetryAfter, interval)
	wantNear("the wait of the second in the queue", t.allow(patient(queue, time.Hour)).Wait, interval)
	wantNear("the wait of the third in the queue", t.allow(patient(queue, time.Hour)).Wait, 2*interval)
	wantNear("RetryAfter of a full queue", t.deny(patient(queue, time.Hour)).RetryAfter, interval)

	window := t.counter(fixedKind, 1)
	t.allow(window.spend(1))
	if s := t.deny(patient(window, 24*time.Hour)); s.Wait != 0 {
		t.reportViolation("a denial by a fixed window: %+v; want no Wait", s)
	}
}

func checkLeavingTheQueue(t *lawTest) {
	q := t.counter(leakyKind, units)
	for i, holder := range []string{"first", "second", "third"} {
		t.wantGranted("the "+holder+" enters", t.allow(q.withHolder(holder).spend(1)), 1, units-1-int64(i))
	}
	t.wantGranted("a refund by the first", t.allow(q.withHolder("first").charge(penstock.Refund, 1)), 0, 7)
	t.wantGranted("a refund without a holder", t.allow(q.withHolder("").charge(penstock.Refund, 1)), 0, 7)
	t.wantGranted("a refund by the third", t.allow(q.withHolder("third").charge(penstock.Refund, 1)), 1, 8)
	t.wantGranted("a second refund by the third", t.allow(q.withHolder("third").charge(penstock.Refund, 1)), 0, 8)
}

// oddKeys are keys that a store without proper encoding would confuse.
var oddKeys = func() []string {
	long := strings.Repeat("long", 2560)
	return []string{
		"", " ", "k", "K", "k ", "k\x00", "k\x00k", "\x00", "\n", "\r\n", "k\nk", "\t", "\xff", "\xfe\xff", "é", "e\u0301",
		"{", "}", "{}", "{k}", "}{", "k}", "{k", "{user}:1", "%", "%%", "%7B", "%7b", "%7D", "%257B", "%_", "%#", "%25", "%00", "%0A",
		":", "::", "k:", ":k", "k:log", "k:log:slidinglog", "*", "?", "[k]", "\\", "\"", "'", "$1\r\nk\r\n", "*1\r\n$4\r\nPING\r\n",
		long, long[1:], long + "%", strings.Repeat("\x00", 10<<10), strings.Repeat("{", 10<<10), strings.Repeat("k", penstock.MaxKey),
		"%#" + strings.Repeat("0", 64), "%#" + strings.Repeat("0", 32), "ps1{k}", "user:42", "user:43", "0", "-1", "nil",
	}
}()

func checkKeys(t *lawTest) {
	const capacity = 200                                     // the units of each counter; more than all charges of one counter
	for _, k := range []kind{tokenKind, logKind, slotKind} { // one whose state is numbers, and the two with sorted sets
		var batch []penstock.Charge
		for i, key := range oddKeys {
			c := t.counter(k, capacity).withKey(key)
			cost := int64(i + 1)
			t.wantGranted(fmt.Sprintf("key %.40q", key), t.allow(c.spend(cost)), cost, capacity-cost)
			batch = append(batch, c.withHolder("other").spend(100))
		}
		for i, key := range oddKeys {
			t.wantRemaining(t.counter(k, capacity).withKey(key), int64(capacity-i-1))
		}
		batch = batch[:min(len(batch), penstock.MaxCharges)]
		d := t.decide(batch...)
		for i := range batch {
			t.wantGranted(fmt.Sprintf("key %.40q in a batch", oddKeys[i]), d.Status(i), 100, int64(capacity-100-i-1))
		}
	}
}

func checkNeighbors(t *lawTest) {
	var all []counter
	for _, k := range kinds {
		all = append(all, t.counter(k, units), t.counter(k, units).withName(k.name+"-2"), t.counter(k, units).withName("2."+k.name))
	}
	check := func(what string, used []int64) {
		t.Helper()
		for i, c := range all {
			if left := t.unitsLeft(c); left != units-used[i] {
				t.reportViolation("after %s, limit %q has %d units left; want %d", what, c.limit.Name, left, units-used[i])
			}
		}
	}
	used := make([]int64, len(all))
	for i, c := range all {
		cost := int64(i%7 + 1)
		t.allow(c.spend(cost))
		used[i] = cost
	}
	check("spending on each", used)
	for i, c := range all {
		t.allow(c.withHolder("").charge(penstock.Reset, 0))
		t.allow(c.spend(units))
		t.deny(c.withHolder("other").spend(1))
		used[i] = units
		check("resetting and exhausting "+c.limit.Name, used)
	}
}

func checkChangedAlgorithm(t *lawTest) {
	for _, before := range kinds {
		for _, after := range kinds {
			old := t.counter(before, units).withName("limit").withKey(before.name + after.name)
			changed := t.counter(after, units).withName("limit").withKey(old.key)
			if old.limit.Algorithm.Name() == changed.limit.Algorithm.Name() {
				continue // fixed windows differ only in where they begin
			}
			t.allow(old.spend(units))
			t.wantRemaining(changed, units)
			t.allow(changed.spend(3))
			t.wantRemaining(changed, units-3)
		}
	}
}

func checkChangedLimit(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		c := t.counter(k, units)
		t.allow(c.spend(4))
		resized := func(n int64) counter { return t.counter(k, n) }
		t.wantRemaining(resized(20), 16)
		t.wantRemaining(resized(6), 2)
		t.wantRemaining(resized(3), 0)
		t.wantGranted("spend after raising", t.allow(resized(20).withHolder("other").spend(16)), 16, 0)
		t.deny(resized(6).withHolder("third").spend(1))
	})
}

func checkHolds(t *lawTest) {
	c := t.counter(slotKind, units)
	c.limit.Period = time.Hour
	anna, ben := c.withHolder("anna"), c.withHolder("ben")
	t.wantGranted("anna acquires", t.allow(anna.spend(3)), 3, 7)
	if s := t.allow(anna.spend(3)); s.Granted != 0 || s.Remaining != 7 || s.ResetAfter != time.Hour {
		t.reportViolation("anna renews: %+v; want 0 granted, and the slots as before", s)
	}
	t.wantGranted("ben acquires", t.allow(ben.spend(7)), 7, 0)
	t.deny(c.withHolder("carl").spend(1))
	t.wantGranted("anna renews when all slots are taken", t.allow(anna.spend(3)), 0, 0)
	t.wantGranted("carl releases slots that he does not have", t.allow(c.withHolder("carl").charge(penstock.Refund, 3)), 0, 0)
	t.wantGranted("anna releases", t.allow(anna.charge(penstock.Refund, 3)), 3, 3)
	t.wantGranted("anna releases again", t.allow(anna.charge(penstock.Refund, 3)), 0, 3)
	t.wantGranted("ben shrinks", t.allow(ben.spend(2)), 0, 8)
	t.wantGranted("ben grows", t.allow(ben.spend(4)), 2, 6)
	// Holders whose names look like those of other members of the sorted set.
	for _, holder := range []string{"anna\x00", "anna:", "h", "c", "s", "canna", "hanna", "\n", strings.Repeat("x", penstock.MaxHolder)} {
		t.wantGranted(fmt.Sprintf("holder %.20q", holder), t.allow(c.withHolder(holder).spend(2)), 2, 4)
		t.wantGranted(fmt.Sprintf("holder %.20q again", holder), t.allow(c.withHolder(holder).spend(2)), 0, 4)
		t.wantGranted(fmt.Sprintf("holder %.20q releases", holder), t.allow(c.withHolder(holder).charge(penstock.Refund, 2)), 2, 6)
	}
}

func checkExpiringHolds(t *lawTest) {
	const ttl = 40 * time.Millisecond
	c := t.counter(slotKind, 1)
	c.limit.Period = ttl
	before := time.Now()
	t.allow(c.withHolder("dead").spend(1))
	t.allow(c.withHolder("dead").spend(1))
	for {
		d := t.decide(c.withHolder("heir").spend(1))
		since := time.Since(before)
		if d.Allowed {
			if since < ttl-time.Millisecond {
				t.reportViolation("a hold of %v ended after %v; want %v", ttl, since, ttl)
			}
			return
		}
		if s := d.Status(0); s.RetryAfter <= 0 || s.RetryAfter > ttl {
			t.reportViolation("a hold of %v has RetryAfter %v; want above 0 and at most %v", ttl, s.RetryAfter, ttl)
		}
		if since > waitTimeout {
			t.fatal("a hold of %v has not ended after %v; want that it ends", ttl, since)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// waitTimeout is how long a law may wait for an event.
const waitTimeout = 20 * time.Second

func checkMixedBatch(t *lawTest) {
	rate := t.token()
	rate.limit = penstock.Limit{Name: "rate", Group: t.group, Count: 10, Period: refillTime}
	slots := t.counter(slotKind, 5).withName("in-flight")
	total := t.counter(slotKind, 500).withName("total").withKey("")
	// charges returns the batch of request n of a user. A Spend also charges the user's rate.
	charges := func(user string, n int, mode penstock.Mode) []penstock.Charge {
		holder := fmt.Sprint(user, n)
		batch := []penstock.Charge{slots.withKey(user).withHolder(holder).charge(mode, 1), total.withHolder(holder).charge(mode, 1)}
		if mode == penstock.Spend {
			batch = append([]penstock.Charge{rate.withKey(user).spend(1)}, batch...)
		}
		return batch
	}
	for i := range 5 {
		t.allow(charges("anna", i, penstock.Spend)...)
	}
	d := t.decide(charges("anna", 5, penstock.Spend)...)
	rateStatus, slotStatus, totalStatus := d.Status(0), d.Status(1), d.Status(2)
	areOthersFree := rateStatus.RetryAfter == 0 && totalStatus.RetryAfter == 0
	if d.Allowed || slotStatus.RetryAfter == 0 || !areOthersFree || d.Strictest() != 1 {
		t.reportViolation("a sixth request in flight: %s; want a denial by the slots only", showDecision(d))
	}
	for i, want := range []int64{5, 0, 495} {
		if s := d.Status(i); s.Remaining != want {
			t.reportViolation("a sixth request in flight: limit %d has %d units left; want %d", i, s.Remaining, want)
		}
	}
	t.allow(charges("ben", 0, penstock.Spend)...)
	t.wantRemaining(total, 494)
	for i := range 5 {
		t.allow(charges("anna", i, penstock.Refund)...)
		t.allow(charges("anna", 10+i, penstock.Spend)...)
	}
	t.wantRemaining(rate.withKey("anna"), 0)
	t.allow(charges("anna", 10, penstock.Refund)...)
	t.deny(charges("anna", 20, penstock.Spend)...) // now the rate is exhausted
	t.wantRemaining(slots.withKey("anna"), 1)
	t.wantRemaining(total, 495)
}

func checkEndedContext(t *lawTest) {
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller has left"))
	late, done := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer done()
	for ctx, want := range map[context.Context]error{canceled: context.Canceled, late: context.DeadlineExceeded} {
		c := t.token()
		for _, batch := range [][]penstock.Charge{{c.spend(1)}, {c.spend(1), c.withName("other").withKey("other").spend(1)}} {
			if d, err := t.store.Decide(ctx, batch); !errors.Is(err, want) {
				t.reportViolation("after the end of its context, %s returned %s, %v; want %v", showCharges(batch), showDecision(d), err, want)
			}
		}
		t.wantRemaining(c, units)
		t.wantRemaining(c.withName("other").withKey("other"), units)
	}
}

const goroutines = 25

// runTogether runs f in many goroutines and waits for all of them, up to waitTimeout.
func (t *lawTest) runTogether(f func(goroutine int)) {
	t.Helper()
	var all sync.WaitGroup
	for goroutine := range goroutines {
		all.Go(func() { f(goroutine) })
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(waitTimeout):
		t.fatal("%d goroutines have not ended in %v: do they wait for each other?", goroutines, waitTimeout)
	}
}

func checkConcurrentSpends(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		for _, cost := range []int64{1, 3} {
			c := t.counter(k, 50).withKey(fmt.Sprint("cost", cost))
			var granted atomic.Int64
			t.runTogether(func(goroutine int) {
				for i := range 4 {
					d, err := t.store.Decide(t.Context(), []penstock.Charge{c.withHolder(fmt.Sprint(goroutine, ".", i)).spend(cost)})
					if err != nil {
						t.reportViolation("%d goroutines: %v; want no error", goroutines, err)
						return
					}
					granted.Add(d.Status(0).Granted)
				}
			})
			want := 50 / cost * cost
			if granted.Load() != want {
				t.reportViolation("%d goroutines that spend %d units at a time were granted %d of 50; want %d", goroutines, cost, granted.Load(), want)
			}
			t.wantRemaining(c, 50-want)
		}
	})
}

func checkOppositeOrders(t *lawTest) {
	for i, place := range []struct{ first, second string }{{"one", "one"}, {"one", "two"}, {"two", "one"}} {
		first := t.counter(tokenKind, 50).withKey(place.first).withName(fmt.Sprint("first", i))
		second := t.counter(fixedKind, 75).withKey(place.second).withName(fmt.Sprint("second", i))
		var admitted atomic.Int64
		t.runTogether(func(goroutine int) {
			for range 4 {
				batch := []penstock.Charge{first.spend(1), second.spend(1)}
				if goroutine%2 == 1 {
					slices.Reverse(batch)
				}
				d, err := t.store.Decide(t.Context(), batch)
				if err != nil {
					t.reportViolation("%d goroutines: %v; want no error", goroutines, err)
					return
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
		n, isOneKey := admitted.Load(), place.first == place.second
		if n > 50 || isOneKey && n != 50 {
			t.reportViolation("%d batches were admitted; want at most 50, and exactly 50 under one key", n)
		}
		t.wantRemaining(first, 50-n)
		t.wantRemaining(second, 75-n)
		for ; n < 50; n++ { // if several servers share the keys, one batch may have caused the denial of another
			t.allow(first.spend(1), second.spend(1))
		}
		t.deny(second.spend(1), first.spend(1))
		t.wantRemaining(second, 25)
	}
}

func checkReusedArguments(t *lawTest) {
	c := t.token()
	charges := []penstock.Charge{c.spend(1), c.withName("other").spend(2)}
	d := t.decide(charges...)
	want := showDecision(d)
	clear(charges)
	charges[0], charges[1] = c.withKey("elsewhere").spend(9), c.withKey("elsewhere").withName("other").spend(9)
	one := []penstock.Charge{c.withName("single").spend(3)}
	single := t.decide(one...)
	wantSingle := showDecision(single)
	clear(one)
	t.runTogether(func(goroutine int) {
		batch := []penstock.Charge{c.withKey(fmt.Sprint(goroutine)).spend(1), c.withKey(fmt.Sprint(goroutine)).withName("other").spend(5)}
		for i := range 8 {
			if _, err := t.store.Decide(t.Context(), batch[:1+i%2]); err != nil {
				t.reportViolation("a goroutine: %v; want no error", err)
			}
			batch[0].Key = fmt.Sprint(goroutine, "-", i)
			batch[1].Key = batch[0].Key
		}
	})
	if got := showDecision(d); got != want {
		t.reportViolation("a decision of two charges has changed from %s to %s; want no change", want, got)
	}
	if got := showDecision(single); got != wantSingle {
		t.reportViolation("a decision of one charge has changed from %s to %s; want no change", wantSingle, got)
	}
	t.wantRemaining(c, 9)
	t.wantRemaining(c.withName("other"), 8)
	t.wantRemaining(c.withName("single"), 7)
	t.wantRemaining(c.withKey("elsewhere"), units)
}

func (t *lawTest) limiter(limits ...penstock.Limit) *penstock.Limiter {
	t.Helper()
	l, err := penstock.NewLimiter(t.store, t.group, limits...)
	if err != nil {
		t.fatal("NewLimiter: %v", err)
	}
	return l
}

// waitingLimits are limits for Wait. The first two book units in advance. The third cannot: Wait
// repeats its charge.
func waitingLimits(n int64, period time.Duration) []penstock.Limit {
	return []penstock.Limit{
		{Name: "token", Count: 1, Period: period},
		{Name: "leaky", Algorithm: penstock.LeakyBucket, Count: 1, Period: period, Burst: n},
		{Name: "log", Algorithm: penstock.SlidingLog, Count: 1, Period: period},
	}
}

func checkWait(t *lawTest) {
	const period = 30 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for _, limit := range waitingLimits(5, period) {
		l := t.limiter(limit)
		before := time.Now()
		for i := range 3 {
			if err := l.Wait(ctx, "k"); err != nil {
				t.fatal("%s: wait %d: %v", limit.Name, i, err)
			}
			if since := time.Since(before); since < time.Duration(i)*period-time.Millisecond {
				t.reportViolation("%s: %d units were granted after %v; want one per %v", limit.Name, i+1, since, period)
			}
		}
	}
}

func checkUselessWaits(t *lawTest) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for _, limit := range waitingLimits(5, time.Hour) {
		l := t.limiter(limit)
		if err := l.Wait(ctx, "k"); err != nil {
			t.fatal("%s: the first wait: %v", limit.Name, err)
		}
		wantDenial := func(what string, err error) {
			t.Helper()
			var denied *penstock.DeniedError
			if !errors.As(err, &denied) || ctx.Err() != nil {
				t.reportViolation("%s: %s: %v; want a DeniedError before the deadline", limit.Name, what, err)
			}
		}
		wantDenial("a turn after the deadline", l.Wait(ctx, "k"))
		wantDenial("a cost that never fits", l.WaitN(t.Context(), "k", 1000))
		_, err := l.Reserve(ctx, "k")
		wantDenial("a reservation after the deadline", err)
		if reset := t.resetAfter(l); reset > time.Hour {
			t.reportViolation("%s: after waits that cannot succeed, ResetAfter is %v; want at most 1h, since they book nothing", limit.Name, reset)
		}
	}
}

func checkAbandonedWaits(t *lawTest) {
	store := t.store
	for _, limit := range waitingLimits(5, time.Hour)[:2] { // those that book
		l := t.limiter(limit)
		if err := l.Wait(t.Context(), "k"); err != nil {
			t.fatal("%s: the first wait: %v", limit.Name, err)
		}
		// The caller leaves as soon as the store has booked. If it left earlier, the test could not know
		// whether there is a booking.
		ctx, cancel := context.WithCancel(t.Context())
		t.store = penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			defer cancel()
			return store.Decide(ctx, charges)
		})
		err := t.limiter(limit).Wait(ctx, "k")
		t.store = store
		if !errors.Is(err, context.Canceled) {
			t.reportViolation("%s: an abandoned wait returned %v; want the context's error", limit.Name, err)
		}
		if reset := t.resetAfter(l); reset > time.Hour {
			t.reportViolation("%s: ResetAfter is %v; want at most 1h, since the booking is refunded", limit.Name, reset)
		}
	}
}

func (t *lawTest) resetAfter(l *penstock.Limiter) time.Duration {
	t.Helper()
	d, err := l.Peek(t.Context(), "k")
	if err != nil {
		t.fatal("peek: %v", err)
	}
	return d.Status(0).ResetAfter
}

func checkReservations(t *lawTest) {
	ctx := t.Context()
	limit := t.token().limit
	l := t.limiter(limit)
	wantRemaining := func(what string, want int64) {
		t.Helper()
		if d, err := l.Peek(ctx, "k"); err != nil || d.Status(0).Remaining != want {
			t.reportViolation("%s: %d units remain; want %d (%v)", what, d.Status(0).Remaining, want, err)
		}
	}
	reserve := func(n int64) *penstock.Reservation {
		t.Helper()
		r, err := l.ReserveN(ctx, "k", n)
		if err != nil {
			t.fatal("reserve %d: %v", n, err)
		}
		if r.Delay() != 0 {
			t.reportViolation("a reservation of available units has a delay of %v; want 0", r.Delay())
		}
		return r
	}
	settle := func(r *penstock.Reservation, n int64) {
		t.Helper()
		if err := r.Settle(ctx, n); err != nil {
			t.reportViolation("settle %d: %v", n, err)
		}
	}
	r := reserve(6)
	wantRemaining("6 of 10 reserved", 4)
	settle(r, 2)
	wantRemaining("6 settled to 2", 8)
	settle(r, 0)
	wantRemaining("settled again", 8)
	r = reserve(3)
	settle(r, 7)
	wantRemaining("3 settled to 7", 1)
	r = reserve(1)
	if err := r.Cancel(ctx); err != nil {
		t.reportViolation("cancel: %v", err)
	}
	wantRemaining("canceled", 1)
	settle(r, 5)
	wantRemaining("settled after cancel", 1)
	r = reserve(1)
	if err := r.Settle(ctx, penstock.MaxCost+1); !errors.Is(err, penstock.ErrInvalid) {
		t.reportViolation("settle to more than MaxCost: %v; want ErrInvalid", err)
	}
	settle(r, 0)
	wantRemaining("settled after an invalid cost", 1)
	settle(reserve(1), 1)
	wantRemaining("settled as reserved", 0)
	if err := reserve(0).Settle(ctx, 4); err != nil {
		t.reportViolation("settle to more than fits: %v", err)
	}
	wantRemaining("settled to more than fits", 0)
	if _, err := t.limiter(penstock.InFlight(1, time.Hour)).Reserve(ctx, "k"); !errors.Is(err, penstock.ErrInvalid) {
		t.reportViolation("reserve a slot: %v; want ErrInvalid", err)
	}
}

func checkAcquire(t *lawTest) {
	ctx := t.Context()
	l := t.limiter(penstock.InFlight(2, time.Hour), t.token().limit)
	wantLeft := func(what string, slots, rate int64) {
		t.Helper()
		d, err := l.Peek(ctx, "k")
		if err != nil || d.Status(0).Remaining != slots || d.Status(1).Remaining != rate {
			t.reportViolation("%s: %s, %v; want %d slots and %d units left", what, showDecision(d), err, slots, rate)
		}
	}
	wantNoError := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.fatal("%s: %v", what, err)
		}
	}
	first, err := l.Acquire(ctx, "k")
	wantNoError("acquire", err)
	second, err := l.Acquire(ctx, "k")
	wantNoError("acquire", err)
	wantLeft("two acquired", 0, 8)
	var denied *penstock.DeniedError
	if _, err := l.Acquire(ctx, "k"); !errors.As(err, &denied) {
		t.reportViolation("a third acquire: %v; want a DeniedError", err)
	}
	wantLeft("a third denied", 0, 8)
	wantNoError("renew", first.Renew(ctx))
	wantLeft("renewed", 0, 8)
	wantNoError("release", first.Release(ctx))
	wantLeft("released", 1, 8)
	wantNoError("release again", first.Release(ctx))
	wantLeft("released again", 1, 8)
	if err := first.Renew(ctx); !errors.Is(err, penstock.ErrInvalid) {
		t.reportViolation("renew after release: %v; want ErrInvalid", err)
	}
	wantNoError("release", second.Release(ctx))
	both, err := l.AcquireN(ctx, "k", 2)
	wantNoError("acquire 2", err)
	wantLeft("two acquired by one call", 0, 6)
	wantNoError("release 2", both.Release(ctx))
	wantLeft("all released", 2, 6)
	if _, err := t.limiter(t.token().limit).Acquire(ctx, "k"); !errors.Is(err, penstock.ErrInvalid) {
		t.reportViolation("acquire of a limit without slots: %v; want ErrInvalid", err)
	}
}

func checkAllowAtMost(t *lawTest) {
	ctx := t.Context()
	for _, k := range kinds {
		if k.needsHolder() || k.name == "leaky" { // AllowAtMost sends no Holder, so these refund nothing
			continue
		}
		wide, narrow := t.counter(k, 10).limit.WithName(k.name+"-wide"), t.counter(k, 5).limit.WithName(k.name+"-narrow")
		l := t.limiter(wide, narrow)
		for i, want := range []struct{ cost, granted, wideLeft, narrowLeft int64 }{
			{cost: 3, granted: 3, wideLeft: 7, narrowLeft: 2},
			{cost: 4, granted: 2, wideLeft: 5, narrowLeft: 0},
			{cost: 1, granted: 0, wideLeft: 5, narrowLeft: 0},
			{cost: 0, granted: 0, wideLeft: 5, narrowLeft: 0},
		} {
			d, err := l.AllowAtMost(ctx, "k", want.cost)
			if err != nil {
				t.fatal("%s: %v", k.name, err)
			}
			isAllowed := want.granted > 0 || want.cost == 0
			if d.Allowed != isAllowed || d.Granted() != want.granted || d.Status(0).Remaining != want.wideLeft || d.Status(1).Remaining != want.narrowLeft {
				t.reportViolation("%s: AllowAtMost number %d granted %d of %d: %s; want %d granted, and %d and %d left",
					k.name, i, d.Granted(), want.cost, showDecision(d), want.granted, want.wideLeft, want.narrowLeft)
			}
		}
		if d, err := l.Peek(ctx, "k"); err != nil || d.Status(0).Remaining != 5 || d.Status(1).Remaining != 0 {
			t.reportViolation("%s: in the end %s, %v; want 5 and 0 left", k.name, showDecision(d), err)
		}
		const cost = 6 // one more than fits
		if d, err := l.AllowAtMost(ctx, "k2", cost); err != nil || d.Granted() != 5 || d.Status(0).Remaining != 5 || d.Status(1).Remaining != 0 {
			t.reportViolation("%s: AllowAtMost of %d: %s, %v; want 5 granted, and 5 and 0 left", k.name, cost, showDecision(d), err)
		}
	}
}

func checkLimitsOfCalls(t *lawTest) {
	ctx := t.Context()
	own := t.token().limit
	l := t.limiter(own)
	wantLeft := func(what string, d penstock.Decision, err error, want ...int64) {
		t.Helper()
		if err != nil || d.Len() != len(want) {
			t.fatal("%s: %s, %v; want %d statuses and no error", what, showDecision(d), err, len(want))
		}
		for i := range want {
			if !d.Allowed || d.Status(i).Remaining != want[i] {
				t.reportViolation("%s: %s; want %d left of limit %d", what, showDecision(d), want[i], i)
			}
		}
	}
	d, err := l.AllowN(ctx, "k", 4)
	wantLeft("the limiter's own limit", d, err, 6)
	d, err = l.AllowWith(ctx, "k", own)
	wantLeft("a limit with its name", d, err, 5)
	other := own.WithName("other")
	d, err = l.AllowNWith(ctx, "k", 2, own, other)
	wantLeft("two limits", d, err, 3, 8)
	d, err = l.Allow(ctx, "k")
	wantLeft("the limiter's own limit again", d, err, 2)
	if _, err := l.AllowWith(ctx, "k"); !errors.Is(err, penstock.ErrInvalid) {
		t.reportViolation("no limits: %v; want ErrInvalid", err)
	}
	if _, err := l.AllowWith(ctx, "k", penstock.Limit{Name: "none"}); !errors.Is(err, penstock.ErrInvalid) {
		t.reportViolation("a limit without a rate: %v; want ErrInvalid", err)
	}
}

// checkLimitsInTurn checks limits that are used in turn. The units of these limits do not refill
// during the test.
func checkLimitsInTurn(t *lawTest) {
	t.each(func(t *lawTest, k kind) {
		for round := range 2 {
			rng := mathrand.New(mathrand.NewPCG(11, uint64(round)))
			small, middle, large := t.counter(k, 2), t.counter(k, 7), t.counter(k, 20)
			for _, c := range []*counter{&small, &middle, &large} {
				if k.name == "token" {
					// With a long period, the state of a small bucket cannot count the units of the large bucket.
					// This matters most if Split divides the small bucket into 32 parts.
					c.limit.Period = refillTime / 256
				}
			}
			if round%2 == 1 && k.name != "leaky" && k.name != "calendar" { // different periods
				small.limit.Period /= 2
				large.limit.Period -= time.Hour
			}
			granted := int64(0)
			for i := range 80 {
				key, holder := fmt.Sprint("turns", round), fmt.Sprint("holder", i)
				c := []counter{small, middle, large}[rng.IntN(3)].withKey(key).withHolder(holder)
				charge := c.spend(1 + rng.Int64N(3))
				if i%8 == 7 && k.name != "leaky" && k.name != "sliding" && !k.needsHolder() {
					charge.Mode, charge.Cost = penstock.Refund, 1
				}
				if charge.Mode == penstock.Refund { // Granted is 0 for a unit that has partly refilled
					before := t.unitsLeft(large.withKey(charge.Key))
					t.decide(charge)
					granted -= t.unitsLeft(large.withKey(charge.Key)) - before
					continue
				}
				d := t.decide(charge)
				granted += d.Status(0).Granted
				if granted > 20 {
					t.fatal("limits of 2, 7 and 20 units have admitted %d in turn; want at most 20", granted)
				}
			}
			rest := t.decide(large.withKey(fmt.Sprint("turns", round)).withHolder("last").charge(penstock.Draw, 20))
			granted += rest.Status(0).Granted
			if granted > 20 || granted < 19 { // 19, because a change of the rate may round the level up
				t.reportViolation("limits of 2, 7 and 20 units have admitted %d in turn; want 19 or 20", granted)
			}
			t.deny(small.withKey(fmt.Sprint("turns", round)).withHolder("late").spend(1))
		}
	})
}
