// Package storetest is the law of a penstock.Store: Run checks that a store obeys it, and explains
// what a failure breaks.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// Run checks a store, law by law. open makes the store of one law; it may return the same store
// each time, since every law names a group of limits that nobody else uses. The store's clock must
// show the time and go on.
//
// The limits are such that the passing of time does not move an answer: their units come back in
// years. Only the laws that are about waiting wait, for some tens of milliseconds, and only lower
// bounds are asserted there.
func Run(t *testing.T, open func(t *testing.T) penstock.Store) {
	t.Helper()
	for _, l := range laws {
		t.Run(strings.ReplaceAll(l.name, " ", "_"), func(t *testing.T) {
			l.check(&bench{T: t, store: open(t), group: "t" + strings.ToLower(rand.Text()), law: l.text})
		})
	}
	t.Logf("counted: %d laws of a store", len(laws))
}

// A law is what every store must do. Its text is what a failure shows next to what happened.
type law struct {
	name  string
	text  string
	check func(*bench)
}

var laws = []law{
	{"a denied batch spends nothing", "A batch is all or nothing. If one charge is denied, no level is charged, wherever in the batch " +
		"the denial stands. The charges that did not stand in the way have RetryAfter 0, Granted 0, and say what is left.", deniedBatch},
	{"a granted batch spends on every level", "Every charge of an allowed batch is made, and status i answers charge i.", grantedBatch},
	{"a charge alone is answered as in company", "What else is in an allowed batch does not change a charge's status.", aloneOrNot},
	{"two charges of one limit under one key are refused", "Charging a counter twice in one batch is ErrInvalid and changes nothing. " +
		"The same limit under another key, or in another group, is another counter.", duplicates},
	{"what is wrong in itself is refused and changes nothing", "Invalid limits, costs, keys, holders and batches are ErrInvalid, " +
		"whatever the rest of the batch is; nothing is charged.", refusals},
	{"asking changes nothing", "Peek answers what Spend would, and a cost of 0 asks only: no answer afterwards differs.", asking},
	{"a cost beyond the limit is answered with Never", "No waiting makes a cost fit that is larger than the limit. It is denied with " +
		"Never, and spends nothing.", neverFits},
	{"a denial says when to come back", "A denial's RetryAfter is above 0 and no longer than the units need to come back; ResetAfter " +
		"is above 0 while anything is used.", comeBack},
	{"refund gives back at most what is used", "A Refund returns units to whoever asks next, and never more than were used.", refunds},
	{"reset forgets what was used", "After a Reset, the counter is as fresh as one never used; other counters are not touched.", resets},
	{"force spends what does not fit", "A Force is never denied. What it spends beyond the limit is owed: nothing remains until it " +
		"has come back or was given back.", forces},
	{"draw takes what is left", "A Draw is granted as much of its cost as fits, and is denied when not one unit is left.", draws},
	{"patience books the future", "TokenBucket and LeakyBucket answer a patient Spend with the Wait until its turn, later comers with longer " +
		"Waits; who is not patient enough is denied and books nothing.", patience},
	{"only the last in the queue can leave it", "A place in a LeakyBucket can be given back by the last in the queue only, since those " +
		"behind others have been told when to go.", leaving},
	{"keys do not influence each other", "Keys are any bytes. Whatever they are, what one has used does not count for another.", keys},
	{"limits of one group and key are independent", "Limits that are stored together count apart: spending, exhausting or resetting one " +
		"leaves the others as they were.", neighbours},
	{"a changed algorithm starts clean", "State belongs to an algorithm. A limit that keeps its name and changes its algorithm is fresh, " +
		"whatever the old one has left behind.", changedAlgorithm},
	{"a changed limit keeps what was used", "Raising a limit frees the difference and no more; lowering it below what was used leaves " +
		"nothing.", changedLimit},
	{"limits in turn forgive nothing", "Limits of one name that take turns over one key, as tiers do, admit together what the largest admits: what one has " +
		"used counts for all, and a smaller one is full until what was used has come back.", limitsInTurn},
	{"a hold is acquired, renewed and released", "A holder has its slots once, however often it spends; its own Refund gives them " +
		"back, once; nobody else's does.", holds},
	{"a hold ends when its holder dies", "A hold that is neither renewed nor released ends Period after its last Spend, and not earlier.", dyingHolds},
	{"rate, slots per user and slots in all are one batch", "Limits of any algorithms and keys are decided together: when the user's slots " +
		"are taken, neither the rate nor the total is charged.", mixed},
	{"a context that has ended gives its error", "A caller that went away gets its context's own error and charges nothing.", endedContext},
	{"many spenders get exactly the limit", "Charges are atomic: however many spend at once, the grants add up to the limit.", spenders},
	{"batches in opposite orders neither block nor leak", "Batches that share keys in opposite orders all come to an end; never is more " +
		"admitted than fits, and what the denied took is back when they have been answered.", opposite},
	{"what is passed in belongs to the caller again", "A store keeps neither the slice nor the charges once it has answered, and its answer " +
		"does not change afterwards.", reuse},
	{"wait blocks until it is let in", "Limiter.Wait returns nil once the units are charged and the turn has come, not earlier.", waiting},
	{"wait does not wait in vain", "If the turn comes after the deadline, or never, Wait and Reserve return a DeniedError at once and book " +
		"nothing.", waitingInVain},
	{"a wait that is given up gives its booking back", "When the context of a Wait ends, its turn is given back and the context's error " +
		"returned.", givenUp},
	{"a reservation is settled once", "Settle corrects the cost to what it turned out to be, Cancel gives it back; only the first counts.", reservations},
	{"acquire, renew and release", "Acquire takes slots and charges the other limits; Renew takes nothing more; Release gives the slots " +
		"back once and leaves the other charges.", acquiring},
}

const (
	age   = 8 * 365 * 24 * time.Hour // in which a limit's units come back: no test sees one
	units = 10                       // of a counter that says nothing else
)

// A kind is an algorithm as the laws use it.
type kind struct {
	name  string
	limit func(units int64) penstock.Limit
}

// LeakyBucket lets one leave at a time, so that its units come back within minutes and its spenders
// need patience.
var kinds = []kind{
	{"token", slow(penstock.TokenBucket)},
	{"leaky", func(n int64) penstock.Limit {
		return penstock.Limit{Algorithm: penstock.LeakyBucket, Count: 10, Period: time.Hour, Burst: n - 1}
	}},
	{"fixed", slow(penstock.FixedWindow)},
	{"anchored", slow(penstock.AnchoredWindow)},
	{"calendar", slow(penstock.CalendarWindow(algorithm.Day, noon()))},
	{"sliding", slow(penstock.SlidingWindow)},
	{"log", slow(penstock.SlidingLog)},
	{"sub", slow(penstock.SubWindow(6))},
	{"slots", slow(penstock.Concurrency)},
}

func slow(a *algorithm.Algorithm) func(int64) penstock.Limit {
	return func(n int64) penstock.Limit { return penstock.Limit{Algorithm: a, Count: n, Period: age} }
}

// noon is a time zone in which it is about noon, so that no day ends while the laws are checked.
func noon() *time.Location {
	now := time.Now().UTC()
	return time.FixedZone("noon", int((12*time.Hour - now.Sub(now.Truncate(24*time.Hour))).Seconds()))
}

func (k kind) holds() bool { return k.name == "slots" }

// A counter is one limit under one key, and who charges it.
type counter struct {
	key    string
	limit  penstock.Limit
	holder string
}

func (c counter) as(holder string) counter { c.holder = holder; return c }
func (c counter) at(key string) counter    { c.key = key; return c }

func (c counter) named(name string) counter { c.limit = c.limit.WithName(name); return c }

func (c counter) charge(mode penstock.Mode, cost int64) penstock.Charge {
	charge := penstock.Charge{Key: c.key, Limit: c.limit, Mode: mode, Cost: cost, Holder: c.holder}
	if c.limit.Algorithm == penstock.LeakyBucket {
		charge.Patience = 24 * time.Hour
	}
	return charge
}

func (c counter) spend(cost int64) penstock.Charge { return c.charge(penstock.Spend, cost) }

// A bench is where one law is checked.
type bench struct {
	*testing.T
	store penstock.Store
	group string
	law   string
}

// counter is a counter of a kind with so many units, under the key "k".
func (b *bench) counter(k kind, n int64) counter {
	limit := k.limit(n)
	limit.Name, limit.Group = k.name, b.group
	return counter{key: "k", limit: limit, holder: "holder"}
}

// token is a counter of the plainest kind.
func (b *bench) token() counter { return b.counter(kinds[0], units) }

func (b *bench) broken(format string, args ...any) {
	b.Helper()
	b.Errorf("%s\nThe law: %s", fmt.Sprintf(format, args...), b.law)
}

func (b *bench) fatal(format string, args ...any) {
	b.Helper()
	b.Fatalf("%s\nThe law: %s", fmt.Sprintf(format, args...), b.law)
}

// decide asks the store, which must answer every charge.
func (b *bench) decide(charges ...penstock.Charge) penstock.Decision {
	b.Helper()
	d, err := b.store.Decide(b.Context(), charges)
	if err != nil {
		b.fatal("%s failed: %v", show(charges), err)
	}
	if d.Len() != len(charges) {
		b.fatal("%s has %d statuses", show(charges), d.Len())
	}
	return d
}

// allow is decide where a denial breaks the law. It returns the first status.
func (b *bench) allow(charges ...penstock.Charge) penstock.Status {
	b.Helper()
	d := b.decide(charges...)
	if !d.Allowed {
		b.fatal("%s was denied: %s", show(charges), showDecision(d))
	}
	return d.Status(0)
}

// deny is decide where a grant breaks the law. It returns the first status.
func (b *bench) deny(charges ...penstock.Charge) penstock.Status {
	b.Helper()
	d := b.decide(charges...)
	if d.Allowed {
		b.fatal("%s was allowed: %s", show(charges), showDecision(d))
	}
	return d.Status(0)
}

// refuse is decide where anything but ErrInvalid breaks the law.
func (b *bench) refuse(what string, charges ...penstock.Charge) {
	b.Helper()
	if d, err := b.store.Decide(b.Context(), charges); !errors.Is(err, penstock.ErrInvalid) {
		b.broken("%s: got %s, %v; want ErrInvalid", what, showDecision(d), err)
	}
}

// remains asks what is left.
func (b *bench) remains(c counter, want int64) {
	b.Helper()
	if s := b.allow(c.charge(penstock.Peek, 0)); s.Remaining != want {
		b.broken("%d units of %s under %.40q remain, want %d", s.Remaining, c.limit.Name, c.key, want)
	}
}

func (b *bench) granted(what string, s penstock.Status, granted, remaining int64) {
	b.Helper()
	if s.Granted != granted || s.Remaining != remaining {
		b.broken("%s: granted %d with %d remaining; want %d with %d: %+v", what, s.Granted, s.Remaining, granted, remaining, s)
	}
}

// each runs a check for every kind.
func (b *bench) each(check func(b *bench, k kind)) {
	for _, k := range kinds {
		b.Run(k.name, func(t *testing.T) {
			check(&bench{T: t, store: b.store, group: b.group + "." + k.name, law: b.law}, k)
		})
	}
}

func show(charges []penstock.Charge) string {
	var s strings.Builder
	for i, c := range charges {
		if i == 4 {
			fmt.Fprintf(&s, "and %d more", len(charges)-i)
			break
		}
		fmt.Fprintf(&s, "[%v %d of %s.%s under %.40q] ", c.Mode, c.Cost, c.Limit.Group, c.Limit.Name, c.Key)
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

func deniedBatch(b *bench) {
	for _, place := range []struct{ free, full string }{{"one", "one"}, {"one", "two"}} {
		for _, first := range kinds {
			for _, second := range kinds {
				free := b.counter(first, units).at(place.free).named("free-" + first.name + "-" + second.name)
				full := b.counter(second, units).at(place.full).named("full-" + first.name + "-" + second.name)
				b.allow(full.as("occupant").charge(penstock.Reset, 0))
				b.allow(full.as("occupant").spend(units))
				for _, full := range []penstock.Charge{full.spend(1), full.spend(units + 1)} {
					b.deniedTogether(free, free.spend(4), full)
					b.deniedTogether(free, full, free.spend(4))
					b.deniedTogether(free, free.spend(4), full, free.named("other").spend(1))
				}
			}
		}
	}
}

// deniedTogether asks a batch of which the charges of the full counter stand in the way, and no
// others.
func (b *bench) deniedTogether(free counter, charges ...penstock.Charge) {
	b.Helper()
	d := b.decide(charges...)
	if d.Allowed || d.RetryAfter() == 0 {
		b.broken("%s: %s, want a denial", show(charges), showDecision(d))
	}
	for i, c := range charges {
		s, full := d.Status(i), strings.HasPrefix(c.Limit.Name, "full-")
		if s.Granted != 0 || s.Wait != 0 || (s.RetryAfter != 0) != full {
			b.broken("%s: status %d is %+v", show(charges), i, s)
		}
		if want := int64(units); !full && s.Remaining != want {
			b.broken("%s: status %d says that %d units remain, want %d", show(charges), i, s.Remaining, want)
		}
	}
	b.remains(free, units)
}

func grantedBatch(b *bench) {
	for _, key := range []func(i int) string{
		func(int) string { return "k" },
		func(i int) string { return fmt.Sprint("k", i%3) },
	} {
		var counters []counter
		var charges []penstock.Charge
		for i, k := range kinds {
			c := b.counter(k, units).at("batch-" + key(i)).named(k.name + fmt.Sprint(len(key(i))))
			counters = append(counters, c)
			charges = append(charges, c.spend(int64(i+1)))
		}
		slices.Reverse(charges)
		d := b.decide(charges...)
		if !d.Allowed || d.RetryAfter() != 0 {
			b.broken("%s: %s, want a grant", show(charges), showDecision(d))
		}
		for i, c := range charges {
			b.granted(show(charges[i:i+1]), d.Status(i), c.Cost, units-c.Cost)
		}
		for i, c := range counters {
			b.remains(c, units-int64(i+1))
		}
	}
}

func aloneOrNot(b *bench) {
	b.each(func(b *bench, k kind) {
		alone := b.counter(k, units).at("alone")
		company := alone.at("company")
		for _, cost := range []int64{3, 0, 2, 5} {
			one := b.allow(alone.spend(cost))
			both := b.allow(company.spend(cost), company.named("other").as("other").spend(1))
			if one.Granted != both.Granted || one.Remaining != both.Remaining || (one.ResetAfter > 0) != (both.ResetAfter > 0) {
				b.broken("cost %d: alone %+v, in company %+v", cost, one, both)
			}
			if k.holds() {
				break // spending again is a renewal
			}
		}
	})
}

func duplicates(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		b.refuse("one limit twice", c.spend(1), c.as("other").spend(1))
		b.refuse("one limit twice, apart", c.spend(1), b.token().named("between").spend(1), c.charge(penstock.Peek, 1))
		raised := c
		raised.limit.Count++
		b.refuse("one limit twice, with different counts", c.spend(1), raised.spend(1))
		b.remains(c, units)

		elsewhere := c
		elsewhere.limit.Group += "-2"
		d := b.decide(c.spend(1), c.at("other").spend(2), elsewhere.spend(3))
		for i, left := range []int64{9, 8, 7} {
			b.granted("three counters", d.Status(i), int64(i+1), left)
		}
	})
}

func refusals(b *bench) {
	good := b.token()
	bad := func(change func(*penstock.Charge)) penstock.Charge {
		c := good.named("bad").spend(1)
		change(&c)
		return c
	}
	for _, wrong := range []struct {
		what   string
		charge penstock.Charge
	}{
		{"no limit", bad(func(c *penstock.Charge) { c.Limit = penstock.Limit{} })},
		{"a count of 0", bad(func(c *penstock.Charge) { c.Limit.Count = 0 })},
		{"a negative count", bad(func(c *penstock.Charge) { c.Limit.Count = -1 })},
		{"a huge count", bad(func(c *penstock.Charge) { c.Limit.Count = penstock.MaxCost + 1 })},
		{"a period of 0", bad(func(c *penstock.Charge) { c.Limit.Period = 0 })},
		{"a negative period", bad(func(c *penstock.Charge) { c.Limit.Period = -time.Second })},
		{"a period of half a microsecond", bad(func(c *penstock.Charge) { c.Limit.Period = 500 })},
		{"a period of nine years", bad(func(c *penstock.Charge) { c.Limit.Period = 9 * 365 * 24 * time.Hour })},
		{"a negative burst", bad(func(c *penstock.Charge) { c.Limit.Burst = -1 })},
		{"a limit too fine to count", bad(func(c *penstock.Charge) { c.Limit.Count, c.Limit.Burst = 7, penstock.MaxCost })},
		{"an empty name", bad(func(c *penstock.Charge) { c.Limit.Name = "" })},
		{"a long name", bad(func(c *penstock.Charge) { c.Limit.Name = strings.Repeat("n", 65) })},
		{"a name with a brace", bad(func(c *penstock.Charge) { c.Limit.Name = "{x}" })},
		{"a name with a colon", bad(func(c *penstock.Charge) { c.Limit.Name = "a:b" })},
		{"a name in capitals", bad(func(c *penstock.Charge) { c.Limit.Name = "Search" })},
		{"a group with a line break", bad(func(c *penstock.Charge) { c.Limit.Group = "a\nb" })},
		{"a long group", bad(func(c *penstock.Charge) { c.Limit.Group = strings.Repeat("g", 65) })},
		{"61 parts", bad(func(c *penstock.Charge) { c.Limit.Algorithm = penstock.SubWindow(61) })},
		{"a negative cost", bad(func(c *penstock.Charge) { c.Cost = -1 })},
		{"a negative refund", bad(func(c *penstock.Charge) { c.Cost, c.Mode = -1, penstock.Refund })},
		{"a huge cost", bad(func(c *penstock.Charge) { c.Cost = penstock.MaxCost + 1 })},
		{"an unknown mode", bad(func(c *penstock.Charge) { c.Mode = penstock.Reset + 1 })},
		{"a key of more than 64 KiB", bad(func(c *penstock.Charge) { c.Key = strings.Repeat("k", penstock.MaxKey+1) })},
		{"a holder of more than 512 bytes", bad(func(c *penstock.Charge) { c.Holder = strings.Repeat("h", penstock.MaxHolder+1) })},
		{"negative patience", bad(func(c *penstock.Charge) { c.Patience = -1 })},
		{"patience of more than a day", bad(func(c *penstock.Charge) { c.Patience = 25 * time.Hour })},
		{"a hold without a holder", bad(func(c *penstock.Charge) { c.Limit.Algorithm, c.Holder = penstock.Concurrency, "" })},
	} {
		b.refuse(wrong.what, wrong.charge)
		b.refuse(wrong.what+", first", wrong.charge, good.spend(1))
		b.refuse(wrong.what+", last", good.spend(1), wrong.charge)
	}
	b.refuse("an empty batch")
	var many []penstock.Charge
	for i := range penstock.MaxCharges + 1 {
		many = append(many, good.named(fmt.Sprint("many", i)).spend(1))
	}
	b.refuse("a batch of 65", many...)
	b.remains(good, units)
	b.remains(good.named("many0"), units)
	b.allow(many[:penstock.MaxCharges]...)
	b.remains(good.named("many63"), units-1)
}

func asking(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		for _, used := range []int64{0, 4, units} {
			if used > 0 {
				b.allow(c.as(fmt.Sprint("holder", used)).spend(used - (units - b.left(c))))
			}
			left := units - used
			for range 2 {
				for _, cost := range []int64{1, left, left + 1, units} {
					d := b.decide(c.as("asker").charge(penstock.Peek, cost))
					if s := d.Status(0); d.Allowed != (cost <= left) || s.Granted != 0 || s.Remaining != left {
						b.broken("peek at %d of %d: %s", cost, left, showDecision(d))
					}
				}
				for _, mode := range []penstock.Mode{penstock.Spend, penstock.Draw, penstock.Peek, penstock.Force, penstock.Refund} {
					b.granted(fmt.Sprint(mode, " of 0"), b.allow(c.as("asker").charge(mode, 0)), 0, left)
				}
			}
		}
	})
}

// left is what a counter has left.
func (b *bench) left(c counter) int64 {
	b.Helper()
	return b.allow(c.charge(penstock.Peek, 0)).Remaining
}

func neverFits(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		for _, mode := range []penstock.Mode{penstock.Spend, penstock.Peek} {
			for _, cost := range []int64{units + 1, penstock.MaxCost} {
				if s := b.deny(c.charge(mode, cost)); s.RetryAfter != penstock.Never || s.Granted != 0 {
					b.broken("%v of %d units: %+v", mode, cost, s)
				}
			}
		}
		d := b.decide(c.spend(1), c.named("other").spend(units+1))
		if d.RetryAfter() != penstock.Never || d.Strictest() != 1 {
			b.broken("a batch with a cost that never fits: %s", showDecision(d))
		}
		b.remains(c, units)
	})
}

func comeBack(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		if s := b.allow(c.charge(penstock.Peek, 1)); s.ResetAfter != 0 {
			b.broken("a fresh counter: %+v", s)
		}
		if s := b.allow(c.spend(units)); s.RetryAfter != 0 || s.ResetAfter <= 0 {
			b.broken("a grant: %+v", s)
		}
		longest := 2 * age // the slowest to come back is a sliding window
		for _, mode := range []penstock.Mode{penstock.Spend, penstock.Draw, penstock.Peek} {
			s := b.deny(c.as("other").charge(mode, 1))
			if s.RetryAfter <= 0 || s.RetryAfter > longest || s.ResetAfter < s.RetryAfter || s.ResetAfter > longest {
				b.broken("%v on an empty counter: %+v", mode, s)
			}
		}
	})
}

func refunds(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		if s := b.allow(c.charge(penstock.Refund, 3)); s.Granted != 0 || s.Remaining != units {
			b.broken("a refund where nothing is used: %+v", s)
		}
		b.allow(c.spend(6))
		// A unit of which a little has come back may count as not given back, so Granted is only bounded
		// here.
		if s := b.allow(c.charge(penstock.Refund, 2)); s.Remaining != 6 || s.Granted > 2 {
			b.broken("a refund of 2 of 6: %+v", s)
		}
		if k.name == "leaky" {
			return // the next in the queue cannot leave: see the law of leaving
		}
		if s := b.allow(c.charge(penstock.Refund, penstock.MaxCost)); s.Remaining != units || s.Granted > 4 || s.ResetAfter != 0 {
			b.broken("a refund of more than is used: %+v", s)
		}
		b.allow(c.spend(units))
		b.deny(c.as("other").spend(1))
	})
}

func resets(b *bench) {
	b.each(func(b *bench, k kind) {
		c, other := b.counter(k, units), b.counter(k, units).named("other")
		b.allow(c.spend(units), other.spend(3))
		reset := c.as("")
		if s := b.allow(reset.charge(penstock.Reset, 0)); s.Remaining != units || s.ResetAfter != 0 {
			b.broken("reset: %+v", s)
		}
		b.remains(c, units)
		b.remains(other, units-3)
		b.allow(reset.charge(penstock.Reset, 0))
		b.allow(c.spend(units))
		b.remains(c, 0)
	})
}

func forces(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		b.allow(c.as("first").spend(7))
		b.granted("force 5 on 7 of 10", b.allow(c.charge(penstock.Force, 5)), 5, 0)
		b.deny(c.as("third").spend(1))
		if s := b.allow(c.charge(penstock.Refund, 5)); s.Remaining != 3 {
			b.broken("a refund of what was forced: %+v", s)
		}
		b.granted("force in a batch", b.allow(c.as("fourth").charge(penstock.Force, 4), b.token().named("other").spend(1)), 4, 0)
	})
}

func draws(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		b.granted("draw 7 of 10", b.allow(c.as("first").charge(penstock.Draw, 7)), 7, 3)
		b.granted("draw 5 of 3", b.allow(c.as("second").charge(penstock.Draw, 5)), 3, 0)
		if s := b.deny(c.as("third").charge(penstock.Draw, 5)); s.Granted != 0 || s.RetryAfter <= 0 {
			b.broken("draw 5 of 0: %+v", s)
		}
		whole := c.named("whole")
		b.granted("draw more than the limit", b.allow(whole.charge(penstock.Draw, penstock.MaxCost)), units, 0)
	})
}

func patience(b *bench) {
	const each = 6 * time.Minute
	near := func(what string, got, want time.Duration) {
		b.Helper()
		if got > want || got < want-time.Minute {
			b.broken("%s is %v, want %v less the moment that has passed", what, got, want)
		}
	}
	c := b.token()
	c.limit.Period = time.Hour // ten, one every six minutes
	patient := func(c counter, patience time.Duration) penstock.Charge {
		charge := c.spend(1)
		charge.Patience = patience
		return charge
	}
	b.allow(c.spend(units))
	near("RetryAfter without patience", b.deny(c.spend(2)).RetryAfter, 2*each)
	near("RetryAfter with too little patience", b.deny(patient(c, 2*time.Minute)).RetryAfter, each-2*time.Minute)
	near("the first wait", b.allow(patient(c, time.Hour)).Wait, each)
	near("the second wait", b.allow(patient(c, time.Hour)).Wait, 2*each)
	d := b.decide(patient(c, time.Hour), patient(c.named("idle"), time.Hour))
	near("the wait of a batch", d.Wait(), 3*each)
	b.deny(patient(c, time.Hour), c.named("idle").spend(units))
	near("a wait after a denied batch", b.allow(patient(c, time.Hour)).Wait, 4*each)

	q := b.counter(kinds[1], 3)
	if s := b.allow(patient(q, 0)); s.Wait != 0 || s.Remaining != 2 {
		b.broken("the first in an empty queue: %+v", s)
	}
	near("the queue's RetryAfter without patience", b.deny(patient(q, 0)).RetryAfter, each)
	near("the second in the queue waits", b.allow(patient(q, time.Hour)).Wait, each)
	near("the third in the queue waits", b.allow(patient(q, time.Hour)).Wait, 2*each)
	near("RetryAfter of a full queue", b.deny(patient(q, time.Hour)).RetryAfter, each)

	w := b.counter(kinds[2], 1)
	b.allow(w.spend(1))
	if s := b.deny(patient(w, 24*time.Hour)); s.Wait != 0 {
		b.broken("a window cannot book the future: %+v", s)
	}
}

func leaving(b *bench) {
	q := b.counter(kinds[1], units)
	for i, who := range []string{"first", "second", "third"} {
		b.granted(who, b.allow(q.as(who).spend(1)), 1, units-1-int64(i))
	}
	b.granted("the first leaves", b.allow(q.as("first").charge(penstock.Refund, 1)), 0, 7)
	b.granted("somebody leaves", b.allow(q.as("").charge(penstock.Refund, 1)), 0, 7)
	b.granted("the third leaves", b.allow(q.as("third").charge(penstock.Refund, 1)), 1, 8)
	b.granted("the third leaves again", b.allow(q.as("third").charge(penstock.Refund, 1)), 0, 8)
}

// hostile are keys that a careless store would mix up.
var hostile = func() []string {
	long := strings.Repeat("long", 2560)
	return []string{
		"", " ", "k", "K", "k ", "k\x00", "k\x00k", "\x00", "\n", "\r\n", "k\nk", "\t", "\xff", "\xfe\xff", "é", "e\u0301",
		"{", "}", "{}", "{k}", "}{", "k}", "{k", "{user}:1", "%", "%%", "%7B", "%7b", "%7D", "%257B", "%_", "%#", "%25", "%00", "%0A",
		":", "::", "k:", ":k", "k:log", "k:log:slidinglog", "*", "?", "[k]", "\\", "\"", "'", "$1\r\nk\r\n", "*1\r\n$4\r\nPING\r\n",
		long, long[1:], long + "%", strings.Repeat("\x00", 10<<10), strings.Repeat("{", 10<<10), strings.Repeat("k", penstock.MaxKey),
		"%#" + strings.Repeat("0", 64), "%#" + strings.Repeat("0", 32), "ps1{k}", "user:42", "user:43", "0", "-1", "nil",
	}
}()

func keys(b *bench) {
	for _, k := range []kind{kinds[0], kinds[6], kinds[8]} { // numbers, and both kinds of sorted sets
		var batch []penstock.Charge
		for i, key := range hostile {
			c := b.counter(k, 200).at(key)
			b.granted(fmt.Sprintf("key %.40q", key), b.allow(c.spend(int64(i+1))), int64(i+1), int64(200-i-1))
			batch = append(batch, c.as("other").spend(100))
		}
		for i, key := range hostile {
			b.remains(b.counter(k, 200).at(key), int64(200-i-1))
		}
		batch = batch[:min(len(batch), penstock.MaxCharges)]
		d := b.decide(batch...)
		for i := range batch {
			b.granted(fmt.Sprintf("key %.40q in a batch", hostile[i]), d.Status(i), 100, int64(100-i-1))
		}
	}
}

func neighbours(b *bench) {
	var all []counter
	for _, k := range kinds {
		all = append(all, b.counter(k, units), b.counter(k, units).named(k.name+"-2"), b.counter(k, units).named("2."+k.name))
	}
	check := func(what string, used []int64) {
		b.Helper()
		for i, c := range all {
			if left := b.left(c); left != units-used[i] {
				b.broken("after %s, %s has %d left, want %d", what, c.limit.Name, left, units-used[i])
			}
		}
	}
	used := make([]int64, len(all))
	for i, c := range all {
		cost := int64(i%7 + 1)
		b.allow(c.spend(cost))
		used[i] = cost
	}
	check("spending on each", used)
	for i, c := range all {
		b.allow(c.as("").charge(penstock.Reset, 0))
		used[i] = 0
		check("resetting "+c.limit.Name, used)
		b.allow(c.spend(units))
		b.deny(c.as("other").spend(1))
		used[i] = units
		check("exhausting "+c.limit.Name, used)
	}
}

func changedAlgorithm(b *bench) {
	for _, before := range kinds {
		for _, after := range kinds {
			old := b.counter(before, units).named("limit").at(before.name + after.name)
			changed := b.counter(after, units).named("limit").at(old.key)
			if old.limit.Algorithm.Name == changed.limit.Algorithm.Name {
				continue // the fixed windows differ in where they begin only
			}
			b.allow(old.spend(units))
			b.remains(changed, units)
			b.allow(changed.spend(3))
			b.remains(changed, units-3)
		}
	}
}

func changedLimit(b *bench) {
	b.each(func(b *bench, k kind) {
		c := b.counter(k, units)
		b.allow(c.spend(4))
		resized := func(n int64) counter { return b.counter(k, n) }
		b.remains(resized(20), 16)
		b.remains(resized(6), 2)
		b.remains(resized(3), 0)
		b.granted("spend after raising", b.allow(resized(20).as("other").spend(16)), 16, 0)
		b.deny(resized(6).as("third").spend(1))
	})
}

func holds(b *bench) {
	c := b.counter(kinds[8], units)
	c.limit.Period = time.Hour
	anna, ben := c.as("anna"), c.as("ben")
	b.granted("anna acquires", b.allow(anna.spend(3)), 3, 7)
	if s := b.allow(anna.spend(3)); s.Granted != 0 || s.Remaining != 7 || s.ResetAfter != time.Hour {
		b.broken("anna renews: %+v", s)
	}
	b.granted("ben acquires", b.allow(ben.spend(7)), 7, 0)
	b.deny(c.as("carl").spend(1))
	b.granted("anna renews when all is taken", b.allow(anna.spend(3)), 0, 0)
	b.granted("carl releases what he does not have", b.allow(c.as("carl").charge(penstock.Refund, 3)), 0, 0)
	b.granted("anna releases", b.allow(anna.charge(penstock.Refund, 3)), 3, 3)
	b.granted("anna releases again", b.allow(anna.charge(penstock.Refund, 3)), 0, 3)
	b.granted("ben shrinks", b.allow(ben.spend(2)), 0, 8)
	b.granted("ben grows", b.allow(ben.spend(4)), 2, 6)
	for _, holder := range []string{"anna\x00", "anna:", "h", "c", "s", "canna", "hanna", "\n", strings.Repeat("x", penstock.MaxHolder)} {
		b.granted(fmt.Sprintf("holder %.20q", holder), b.allow(c.as(holder).spend(2)), 2, 4)
		b.granted(fmt.Sprintf("holder %.20q again", holder), b.allow(c.as(holder).spend(2)), 0, 4)
		b.granted(fmt.Sprintf("holder %.20q releases", holder), b.allow(c.as(holder).charge(penstock.Refund, 2)), 2, 6)
	}
}

func dyingHolds(b *bench) {
	const ttl = 40 * time.Millisecond
	c := b.counter(kinds[8], 1)
	c.limit.Period = ttl
	before := time.Now()
	b.allow(c.as("dead").spend(1))
	b.allow(c.as("dead").spend(1))
	for {
		d := b.decide(c.as("heir").spend(1))
		since := time.Since(before)
		if d.Allowed {
			if since < ttl-time.Millisecond {
				b.broken("a hold of %v ended after %v", ttl, since)
			}
			return
		}
		if s := d.Status(0); s.RetryAfter <= 0 || s.RetryAfter > ttl {
			b.broken("a hold of %v ends in %v", ttl, s.RetryAfter)
		}
		if since > patienceOfTests {
			b.fatal("a hold of %v has not ended after %v", ttl, since)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// patienceOfTests is how long a law may take that waits for something to happen.
const patienceOfTests = 20 * time.Second

func mixed(b *bench) {
	rate := b.token()
	rate.limit = penstock.Limit{Name: "rate", Group: b.group, Count: 10, Period: age}
	slots := b.counter(kinds[8], 5).named("in-flight")
	total := b.counter(kinds[8], 500).named("in-all").at("")
	ask := func(user string, n int, mode penstock.Mode) []penstock.Charge {
		holder := fmt.Sprint(user, n)
		batch := []penstock.Charge{slots.at(user).as(holder).charge(mode, 1), total.as(holder).charge(mode, 1)}
		if mode == penstock.Spend {
			batch = append([]penstock.Charge{rate.at(user).spend(1)}, batch...)
		}
		return batch
	}
	for i := range 5 {
		b.allow(ask("anna", i, penstock.Spend)...)
	}
	d := b.decide(ask("anna", 5, penstock.Spend)...)
	if d.Allowed || d.Status(0).RetryAfter != 0 || d.Status(1).RetryAfter == 0 || d.Status(2).RetryAfter != 0 || d.Strictest() != 1 {
		b.broken("a sixth in flight: %s", showDecision(d))
	}
	for i, want := range []int64{5, 0, 495} {
		if s := d.Status(i); s.Remaining != want {
			b.broken("a sixth in flight: level %d has %d left, want %d", i, s.Remaining, want)
		}
	}
	b.allow(ask("ben", 0, penstock.Spend)...)
	b.remains(total, 494)
	for i := range 5 {
		b.allow(ask("anna", i, penstock.Refund)...)
		b.allow(ask("anna", 10+i, penstock.Spend)...)
	}
	b.remains(rate.at("anna"), 0)
	b.allow(ask("anna", 10, penstock.Refund)...)
	b.deny(ask("anna", 20, penstock.Spend)...) // now the rate stands in the way
	b.remains(slots.at("anna"), 1)
	b.remains(total, 495)
}

func endedContext(b *bench) {
	cancelled, cancel := context.WithCancelCause(b.Context())
	cancel(errors.New("the caller has gone"))
	late, done := context.WithDeadline(b.Context(), time.Now().Add(-time.Second))
	defer done()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		c := b.token()
		for _, batch := range [][]penstock.Charge{{c.spend(1)}, {c.spend(1), c.named("other").at("other").spend(1)}} {
			if d, err := b.store.Decide(ctx, batch); !errors.Is(err, want) {
				b.broken("after the end of its context, %s is answered %s, %v; want %v", show(batch), showDecision(d), err, want)
			}
		}
		b.remains(c, units)
		b.remains(c.named("other").at("other"), units)
	}
}

const crowd = 50 // goroutines

// together runs f in a crowd and waits for all, but not forever.
func (b *bench) together(f func(who int)) {
	b.Helper()
	var all sync.WaitGroup
	for who := range crowd {
		all.Go(func() { f(who) })
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patienceOfTests):
		b.fatal("%d goroutines have not come to an end in %v: do they wait for each other?", crowd, patienceOfTests)
	}
}

func spenders(b *bench) {
	b.each(func(b *bench, k kind) {
		for _, cost := range []int64{1, 3} {
			c := b.counter(k, 100).at(fmt.Sprint("cost", cost))
			var granted atomic.Int64
			b.together(func(who int) {
				for i := range 4 {
					d, err := b.store.Decide(b.Context(), []penstock.Charge{c.as(fmt.Sprint(who, ".", i)).spend(cost)})
					if err != nil {
						b.broken("%d spenders: %v", crowd, err)
						return
					}
					granted.Add(d.Status(0).Granted)
				}
			})
			want := 100 / cost * cost
			if granted.Load() != want {
				b.broken("%d spenders of %d units were granted %d of 100", crowd, cost, granted.Load())
			}
			b.remains(c, 100-want)
		}
	})
}

func opposite(b *bench) {
	for i, place := range []struct{ first, second string }{{"one", "one"}, {"one", "two"}, {"two", "one"}} {
		first := b.counter(kinds[0], 100).at(place.first).named(fmt.Sprint("first", i))
		second := b.counter(kinds[2], 150).at(place.second).named(fmt.Sprint("second", i))
		var admitted atomic.Int64
		b.together(func(who int) {
			for range 4 {
				batch := []penstock.Charge{first.spend(1), second.spend(1)}
				if who%2 == 1 {
					slices.Reverse(batch)
				}
				d, err := b.store.Decide(b.Context(), batch)
				if err != nil {
					b.broken("%d spenders: %v", crowd, err)
					return
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
		n := admitted.Load()
		if n > 100 || place.first == place.second && n != 100 {
			b.broken("%d batches were admitted of 100", n)
		}
		b.remains(first, 100-n)
		b.remains(second, 150-n)
		for ; n < 100; n++ { // where several servers share the keys, a batch may have been in another's way
			b.allow(first.spend(1), second.spend(1))
		}
		b.deny(second.spend(1), first.spend(1))
		b.remains(second, 50)
	}
}

func reuse(b *bench) {
	c := b.token()
	charges := []penstock.Charge{c.spend(1), c.named("other").spend(2)}
	d := b.decide(charges...)
	want := showDecision(d)
	clear(charges)
	charges[0], charges[1] = c.at("elsewhere").spend(9), c.at("elsewhere").named("other").spend(9)
	one := []penstock.Charge{c.named("single").spend(3)}
	single := b.decide(one...)
	wantSingle := showDecision(single)
	clear(one)
	b.together(func(who int) {
		batch := []penstock.Charge{c.at(fmt.Sprint(who)).spend(1), c.at(fmt.Sprint(who)).named("other").spend(5)}
		for i := range 8 {
			if _, err := b.store.Decide(b.Context(), batch[:1+i%2]); err != nil {
				b.broken("a spender: %v", err)
			}
			batch[0].Key = fmt.Sprint(who, "-", i)
			batch[1].Key = batch[0].Key
		}
	})
	if got := showDecision(d); got != want {
		b.broken("a decision has changed from %s to %s", want, got)
	}
	if got := showDecision(single); got != wantSingle {
		b.broken("a decision has changed from %s to %s", wantSingle, got)
	}
	b.remains(c, 9)
	b.remains(c.named("other"), 8)
	b.remains(c.named("single"), 7)
	b.remains(c.at("elsewhere"), units)
}

func (b *bench) limiter(limits ...penstock.Limit) *penstock.Limiter {
	b.Helper()
	l, err := penstock.NewLimiter(b.store, b.group, limits...)
	if err != nil {
		b.fatal("NewLimiter: %v", err)
	}
	return l
}

// waitingLimits can be waited for, each in its way: two book the future, one asks again.
func waitingLimits(n int64, period time.Duration) []penstock.Limit {
	return []penstock.Limit{
		{Name: "token", Count: 1, Period: period},
		{Name: "leaky", Algorithm: penstock.LeakyBucket, Count: 1, Period: period, Burst: n},
		{Name: "log", Algorithm: penstock.SlidingLog, Count: 1, Period: period},
	}
}

func waiting(b *bench) {
	const period = 30 * time.Millisecond
	ctx, cancel := context.WithTimeout(b.Context(), patienceOfTests)
	defer cancel()
	for _, limit := range waitingLimits(5, period) {
		l := b.limiter(limit)
		before := time.Now()
		for i := range 3 {
			if err := l.Wait(ctx, "k"); err != nil {
				b.fatal("%s: wait %d: %v", limit.Name, i, err)
			}
			if since := time.Since(before); since < time.Duration(i)*period-time.Millisecond {
				b.broken("%s: %d units came after %v, at one per %v", limit.Name, i+1, since, period)
			}
		}
	}
}

func waitingInVain(b *bench) {
	ctx, cancel := context.WithTimeout(b.Context(), patienceOfTests)
	defer cancel()
	for _, limit := range waitingLimits(5, time.Hour) {
		l := b.limiter(limit)
		if err := l.Wait(ctx, "k"); err != nil {
			b.fatal("%s: the first wait: %v", limit.Name, err)
		}
		asleep := func(what string, err error) {
			b.Helper()
			var denied *penstock.DeniedError
			if !errors.As(err, &denied) || ctx.Err() != nil {
				b.broken("%s: %s: %v, want a DeniedError at once", limit.Name, what, err)
			}
		}
		asleep("a turn after the deadline", l.Wait(ctx, "k"))
		asleep("a cost that never fits", l.WaitN(b.Context(), "k", 1000))
		_, err := l.Reserve(ctx, "k")
		asleep("a reservation after the deadline", err)
		d, err := l.Peek(ctx, "k")
		if err != nil || d.Status(0).ResetAfter > time.Hour {
			b.broken("%s: waiting in vain has booked something: %s, %v", limit.Name, showDecision(d), err)
		}
	}
}

func givenUp(b *bench) {
	store := b.store
	for _, limit := range waitingLimits(5, time.Hour)[:2] {
		l := b.limiter(limit)
		if err := l.Wait(b.Context(), "k"); err != nil {
			b.fatal("%s: the first wait: %v", limit.Name, err)
		}
		// The caller goes away once it has its turn: before, it cannot know whether it has one.
		ctx, cancel := context.WithCancel(b.Context())
		b.store = penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			defer cancel()
			return store.Decide(ctx, charges)
		})
		err := b.limiter(limit).Wait(ctx, "k")
		b.store = store
		if !errors.Is(err, context.Canceled) {
			b.broken("%s: a wait that was given up returned %v", limit.Name, err)
		}
		if reset := b.resetAfter(l); reset > time.Hour {
			b.broken("%s: %v until nothing is used, so the booking was not given back", limit.Name, reset)
		}
	}
}

func (b *bench) resetAfter(l *penstock.Limiter) time.Duration {
	b.Helper()
	d, err := l.Peek(b.Context(), "k")
	if err != nil {
		b.fatal("peek: %v", err)
	}
	return d.Status(0).ResetAfter
}

func reservations(b *bench) {
	ctx := b.Context()
	limit := b.token().limit
	l := b.limiter(limit)
	remains := func(what string, want int64) {
		b.Helper()
		if d, err := l.Peek(ctx, "k"); err != nil || d.Status(0).Remaining != want {
			b.broken("%s: %d units remain, want %d (%v)", what, d.Status(0).Remaining, want, err)
		}
	}
	reserve := func(n int64) *penstock.Reservation {
		b.Helper()
		r, err := l.ReserveN(ctx, "k", n)
		if err != nil {
			b.fatal("reserve %d: %v", n, err)
		}
		if r.Delay() != 0 {
			b.broken("a reservation of units that are there waits for %v", r.Delay())
		}
		return r
	}
	settle := func(r *penstock.Reservation, n int64) {
		b.Helper()
		if err := r.Settle(ctx, n); err != nil {
			b.broken("settle %d: %v", n, err)
		}
	}
	r := reserve(6)
	remains("6 of 10 reserved", 4)
	settle(r, 2)
	remains("6 settled to 2", 8)
	settle(r, 0)
	remains("settled again", 8)
	r = reserve(3)
	settle(r, 7)
	remains("3 settled to 7", 1)
	r = reserve(1)
	if err := r.Cancel(ctx); err != nil {
		b.broken("cancel: %v", err)
	}
	remains("cancelled", 1)
	settle(r, 5)
	remains("settled after cancel", 1)
	r = reserve(1)
	if err := r.Settle(ctx, penstock.MaxCost+1); !errors.Is(err, penstock.ErrInvalid) {
		b.broken("settle more than a cost can be: %v, want ErrInvalid", err)
	}
	settle(r, 0)
	remains("settled after a refusal", 1)
	settle(reserve(1), 1)
	remains("settled as reserved", 0)
	if err := reserve(0).Settle(ctx, 4); err != nil {
		b.broken("settle more than fits: %v", err)
	}
	remains("settled to more than fits", 0)
	if _, err := b.limiter(penstock.InFlight(1, time.Hour)).Reserve(ctx, "k"); !errors.Is(err, penstock.ErrInvalid) {
		b.broken("reserve a slot: %v, want ErrInvalid", err)
	}
}

func acquiring(b *bench) {
	ctx := b.Context()
	l := b.limiter(penstock.InFlight(2, time.Hour), b.token().limit)
	left := func(what string, slots, rate int64) {
		b.Helper()
		d, err := l.Peek(ctx, "k")
		if err != nil || d.Status(0).Remaining != slots || d.Status(1).Remaining != rate {
			b.broken("%s: %s, %v; want %d slots and %d units left", what, showDecision(d), err, slots, rate)
		}
	}
	try := func(what string, err error) {
		b.Helper()
		if err != nil {
			b.fatal("%s: %v", what, err)
		}
	}
	first, err := l.Acquire(ctx, "k")
	try("acquire", err)
	if first.Lasts() != time.Hour {
		b.broken("a hold lasts %v, want 1h", first.Lasts())
	}
	second, err := l.Acquire(ctx, "k")
	try("acquire", err)
	left("two acquired", 0, 8)
	var denied *penstock.DeniedError
	if _, err := l.Acquire(ctx, "k"); !errors.As(err, &denied) {
		b.broken("a third acquire: %v, want a DeniedError", err)
	}
	left("a third denied", 0, 8)
	try("renew", first.Renew(ctx))
	left("renewed", 0, 8)
	try("release", first.Release(ctx))
	left("released", 1, 8)
	try("release again", first.Release(ctx))
	left("released again", 1, 8)
	if err := first.Renew(ctx); !errors.Is(err, penstock.ErrInvalid) {
		b.broken("renew after release: %v, want ErrInvalid", err)
	}
	try("release", second.Release(ctx))
	both, err := l.AcquireN(ctx, "k", 2)
	try("acquire 2", err)
	left("two at once", 0, 6)
	try("release 2", both.Release(ctx))
	left("all released", 2, 6)
	if _, err := b.limiter(b.token().limit).Acquire(ctx, "k"); !errors.Is(err, penstock.ErrInvalid) {
		b.broken("acquire of a limit that lends nothing: %v, want ErrInvalid", err)
	}
}
