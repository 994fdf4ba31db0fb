package admission

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// OnceFor is the least time for which repeats of a Request with an ID are free.
const OnceFor = 10 * time.Minute

// MaxID is the length of the longest Request.ID, in bytes.
const MaxID = 512

var (
	errTooManyCharges = errors.New("the request has as many charges as a batch may have, and its id needs one more; send it without an id")
	errLongID         = fmt.Errorf("the id of the request is longer than %d bytes", MaxID)
)

// onceLimit is the limit of the charge that makes repeats of a request free. Clients do not see it.
var onceLimit = &policy.Limit{Rule: &policy.Rule{}, Guard: policy.OnceSettings, Key: policy.Global()}

// addOnceCharge adds one more charge to the batch of a request with an ID. Only the first request
// with this ID and the same charges can make it, so the whole batch of a repeat is denied.
func (a *Admission) addOnceCharge() error {
	v := &a.evaluation
	switch {
	case a.request.ID == "" || a.request.Peek || len(v.Charges) == 0:
		return nil
	case len(a.request.ID) > MaxID:
		return errLongID
	case len(v.Charges) == penstock.MaxCharges:
		return errTooManyCharges
	}
	for i := range v.Charges {
		// If the first request could wait, a repeat could not know whether that request was served in the
		// end, or left and got its units back.
		v.Charges[i].Patience = 0
	}
	a.onceName = digest(a.request.ID, v.Charges)
	limit := penstock.Limit{Group: policy.OnceGroup + a.onceName, Name: "once", Count: 1, Period: OnceFor, Burst: 1}
	plan, err := limit.Compile()
	if err != nil {
		return err
	}
	a.hasOnceCharge = true
	v.Charges = append(v.Charges, penstock.Charge{Key: v.Charges[0].Key, Plan: plan, Cost: 1})
	v.Limits = append(v.Limits, onceLimit)
	return nil
}

// digest returns a name for the combination of an ID and charges.
func digest(id string, charges []penstock.Charge) string {
	h := sha256.New()
	write := func(text string) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) // so that two texts are not read as one
		h.Write([]byte(text))
	}
	write(id)
	for i := range charges {
		c := &charges[i]
		write(c.Plan.Group())
		write(c.Plan.Name())
		write(c.Key)
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(c.Cost)))
	}
	return nameOf(h.Sum(nil))
}

// nameOf makes a name of a hash. It keeps 130 bits: 26 characters of 5 bits.
func nameOf(hash []byte) string {
	return strings.ToLower(base32.StdEncoding.EncodeToString(hash))[:26]
}

// removeOnceCharge removes the charge that addOnceCharge has added, and its status from the
// decision. If the request repeats one that was granted, the decision becomes one that grants 0
// units. d is nil if there is no decision.
func (a *Admission) removeOnceCharge(d *penstock.Decision) {
	v := &a.evaluation
	last := len(v.Charges) - 1
	if d != nil {
		once := d.Status(last)
		a.isRepeat = once.RetryAfter > 0 && !isWithoutStore(d.Source)
		if a.isRepeat {
			a.age = OnceFor - once.RetryAfter // the first request's unit is refilled after OnceFor
		}
		statuses := make([]penstock.Status, last)
		for i := range statuses {
			statuses[i] = d.Status(i)
			if a.isRepeat {
				statuses[i].RetryAfter, statuses[i].Granted = 0, 0
			}
		}
		source := d.Source
		*d = penstock.NewDecision(statuses)
		d.Source = source
	}
	v.Charges[last] = penstock.Charge{}
	v.Charges, v.Limits = v.Charges[:last], v.Limits[:last]
	a.hasOnceCharge = false
}

// firstReceipts returns the receipts that the first request of a repeat has got. A batch that
// charges nothing but a clock tells the store's time, how old the charge "once" is, and when
// windows end. A receipt is 0 if its charge may have been made before the present window, or if the
// store gives no answer. Then the units stay charged.
func (a *Admission) firstReceipts() []int64 {
	v := &a.evaluation
	receipts := make([]int64, len(v.Charges))
	limit := penstock.Limit{Group: policy.OnceGroup + a.onceName, Name: "once", Count: 1, Period: OnceFor, Burst: 1}
	once, err := limit.Compile()
	limit.Name, limit.Period = "clock", time.Millisecond
	clock, clockErr := limit.Compile()
	if err != nil || clockErr != nil || len(v.Charges)+2 > penstock.MaxCharges {
		return receipts
	}
	key := v.Charges[0].Key
	batch := []penstock.Charge{
		{Key: key, Plan: clock, Cost: 1, Mode: penstock.Force, IsRefundable: true},
		{Key: key, Plan: once, Mode: penstock.Refund},
	}
	for _, c := range v.Charges {
		c.Mode, c.Cost, c.Patience = penstock.Refund, 0, 0
		batch = append(batch, c)
	}
	d, err := panicked.Decide(&a.call, a.controller.store, batch)
	if err != nil || isWithoutStore(d.Source) {
		return receipts
	}
	now, age := d.Status(0).Receipt, OnceFor-d.Status(1).ResetAfter
	for i := range receipts {
		receipts[i] = receiptAt(v.Charges[i].Plan, now, age, d.Status(i+2).ResetAfter)
	}
	return receipts
}

// receiptAt returns the receipt that a charge had which was made at the age before now, in µs since
// the epoch. reset is the ResetAfter of its limit now.
func receiptAt(plan *penstock.Plan, now int64, age, reset time.Duration) int64 {
	at, window := now-age.Microseconds(), plan.Window()
	switch plan.Algorithm().Decay() {
	case algorithm.DecayAtReset: // a receipt is the end of a window
		if plan.Algorithm().IsCalendar() {
			window = window * 9 / 10 // the shortest day, week and month are longer
		}
		if age+reset > window {
			return 0
		}
		return now + reset.Microseconds()
	case algorithm.DecayAfterPeriod: // the start of a window or sub-window
		return at - at%window.Microseconds()
	}
	return at
}

// OnceName returns a name that the request shares with its repeats, and with no other request. It
// is empty if the request has no ID, or if no limit applied.
func (a *Admission) OnceName() string { return a.onceName }

// Age returns how long ago the request was granted. It is 0 unless the request is a repeat.
func (a *Admission) Age() time.Duration { return a.age }

// IsRepeat tells whether the request has the ID of a request that was granted before. Such a repeat
// has charged nothing.
func (a *Admission) IsRepeat() bool { return a.isRepeat }
