package admission

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/policy"
)

// idempotencyWindow is the least time for which repeats of a request with an IdempotencyKey are
// free. For a reservation, it is RequestOptions.Settleable if that is longer.
const idempotencyWindow = 10 * time.Minute

// maxIdempotencyKey is the length of the longest IdempotencyKey, in bytes.
const maxIdempotencyKey = 512

var (
	errTooManyCharges = fmt.Errorf("the request has an id, which needs charges of its own, and then more than %d charges; send it without an id", penstock.MaxCharges)
	errSettled        = errors.New("this reservation was settled; reserve with a new id")
	errLongKey        = fmt.Errorf("the id of the request is longer than %d bytes", maxIdempotencyKey)
)

// onceLimit is the limit of the charges that an IdempotencyKey adds to a batch. Clients do not see
// it. It fails as policy.Rules.Settings says of its group.
var onceLimit = &policy.Limit{Rule: &policy.Rule{}, Guard: guard.Settings{OnFailure: guard.FailOpen}, Key: policy.Global()}

// Names of the charges that an IdempotencyKey adds. They are charged under the key of the request's
// first charge.
const (
	onceName    = "once"    // made by the first request
	settledName = "settled" // made by the first settlement of a reservation
)

// idempotencyCharge returns one of the charges of an IdempotencyKey. The charge can be made only
// once in the period.
func idempotencyCharge(sharedName, name, key string, period time.Duration) (penstock.Charge, error) {
	plan, err := penstock.Limit{Group: reserved.Once + sharedName, Name: name, Count: 1, Period: period, Burst: 1}.Compile()
	return penstock.Charge{Key: key, Plan: plan, Cost: 1}, err
}

// SettledCharge returns the charge that records that a reservation was settled. Put it into the
// settlement batch for key, which is the key of the reservation's first charge. From then on, a
// request with the IdempotencyKey of the reservation is not admitted. The name is the SharedName of
// the reservation, and settleable is its RequestOptions.Settleable.
func SettledCharge(name, key string, settleable time.Duration) (penstock.Charge, error) {
	c, err := idempotencyCharge(name, settledName, key, settleable)
	c.Mode = penstock.Force
	return c, err
}

// An idempotency finds out whether a request with an IdempotencyKey repeats one that was granted.
// The zero value is for requests without a key.
type idempotency struct {
	addedCharges int    // how many charges at the end of the batch are those of addIdempotencyCharges
	sharedName   string // see SharedName
	window       time.Duration
	isRepeat     bool
	isSettled    bool          // the request is a reservation that was settled
	age          time.Duration // if isRepeat: the time since the first request was granted
}

// SharedName returns a name that the request shares with its repeats, and with no other request. It
// is empty if the request has no IdempotencyKey, no limit applied, or the store gave no answer.
func (r *idempotency) SharedName() string { return r.sharedName }

// Age returns how long ago the request was granted. It is 0 unless the request is a repeat.
func (r *idempotency) Age() time.Duration { return r.age }

// IsRepeat reports whether the request has the IdempotencyKey of a request that was granted before.
// Such a repeat has charged nothing.
func (r *idempotency) IsRepeat() bool { return r.isRepeat }

// addIdempotencyCharges adds charges to the batch of a request with an IdempotencyKey. Only the
// first request with this key and the same charges can make the charge "once". So the whole batch
// of a repeat is denied. A Peek of "settled" also denies the batch of a reservation that was
// settled.
func (r *idempotency) addIdempotencyCharges(v *policy.Evaluation, o *RequestOptions) error {
	isReservation := o.Settleable > 0
	n := 1
	if isReservation {
		n = 2
	}
	switch {
	case o.IdempotencyKey == "" || o.Peek || len(v.Charges) == 0:
		return nil
	case len(o.IdempotencyKey) > maxIdempotencyKey:
		return errLongKey
	case len(v.Charges)+n > penstock.MaxCharges:
		return errTooManyCharges
	}
	for i := range v.Charges {
		// If the first request could wait, a repeat could not know whether that request was served in the
		// end, or left and got its units back.
		v.Charges[i].Patience = 0
		// The charge "once" denies repeats, which must be free.
		v.Charges[i].IsFreeIfDenied = true
	}
	r.sharedName, r.window = digest(o.IdempotencyKey, v.Charges), max(idempotencyWindow, o.Settleable)
	key := v.Charges[0].Key
	once, err := r.onceCharge(key)
	if err != nil {
		return err
	}
	v.Charges, v.Limits = append(v.Charges, once), append(v.Limits, onceLimit)
	if isReservation {
		settled, err := idempotencyCharge(r.sharedName, settledName, key, o.Settleable)
		if err != nil {
			return err
		}
		settled.Mode = penstock.Peek
		v.Charges, v.Limits = append(v.Charges, settled), append(v.Limits, onceLimit)
	}
	r.addedCharges = n
	return nil
}

// onceCharge returns the charge that only the first request with the IdempotencyKey can make.
func (r *idempotency) onceCharge(key string) (penstock.Charge, error) {
	return idempotencyCharge(r.sharedName, onceName, key, r.window)
}

// digest returns a name for the combination of an IdempotencyKey and charges.
func digest(idempotencyKey string, charges []penstock.Charge) string {
	h := sha256.New()
	write := func(text string) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) // so that two texts are not read as one
		h.Write([]byte(text))
	}
	write(idempotencyKey)
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

// removeIdempotencyCharges removes the charges that addIdempotencyCharges has added, and their
// statuses from the decision. If the request repeats one that was granted, the decision becomes one
// that grants 0 units. d is nil if there is no decision.
func (r *idempotency) removeIdempotencyCharges(v *policy.Evaluation, d *penstock.Decision) {
	n := len(v.Charges) - r.addedCharges
	isRecorded := d != nil && !isWithoutStore(d.Source)
	if isRecorded {
		once := d.Status(n)
		r.isRepeat = once.RetryAfter > 0
		if r.isRepeat {
			r.age = r.window - once.RetryAfter // the first request's unit is refilled after the window
		}
		r.isSettled = r.addedCharges > 1 && d.Status(n+1).RetryAfter > 0
	} else {
		r.sharedName = ""
	}
	if d != nil {
		statuses := make([]penstock.Status, n)
		for i := range statuses {
			statuses[i] = d.Status(i)
			if r.isRepeat {
				statuses[i].RetryAfter, statuses[i].Granted = 0, 0
			}
		}
		source := d.Source
		*d = penstock.NewDecision(statuses)
		d.Source = source
	}
	clear(v.Charges[n:])
	v.Charges, v.Limits = v.Charges[:n], v.Limits[:n]
	r.addedCharges = 0
}

// firstReceipts returns the receipts that the first request of a repeat has got for its charges. It
// computes them from the store's time, the age of the charge "once", and the ends of windows. The
// batch that reads these charges nothing but "clock", a limit for this purpose. A receipt is 0 if
// its charge may have been made before the present window, or if the store gives no answer. Then
// the units stay charged.
func (r *idempotency) firstReceipts(ctx context.Context, store penstock.Store, charges []penstock.Charge) []int64 {
	receipts := make([]int64, len(charges))
	key := charges[0].Key
	once, err := r.onceCharge(key)
	clock, clockErr := idempotencyCharge(r.sharedName, "clock", key, time.Millisecond)
	if err != nil || clockErr != nil || len(charges)+2 > penstock.MaxCharges {
		return receipts
	}
	clock.Mode, clock.IsRefundable = penstock.Force, true // its Receipt is the store's time
	once.Mode, once.Cost = penstock.Refund, 0
	batch := []penstock.Charge{clock, once}
	for _, c := range charges {
		c.Mode, c.Cost, c.Patience = penstock.Refund, 0, 0
		batch = append(batch, c)
	}
	d, err := panicked.Decide(ctx, store, batch)
	if err != nil || isWithoutStore(d.Source) {
		return receipts
	}
	now, age := d.Status(0).Receipt, r.window-d.Status(1).ResetAfter
	for i := range receipts {
		receipts[i] = receiptAt(charges[i].Plan, now, age, d.Status(i+2).ResetAfter)
	}
	return receipts
}

// receiptAt returns the receipt of a charge that was made age before now. now is in µs since the
// epoch. reset is the ResetAfter of the charge's limit at now.
func receiptAt(plan *penstock.Plan, now int64, age, reset time.Duration) int64 {
	at, window := now-age.Microseconds(), plan.Window()
	switch plan.Algorithm().Decay() {
	case algorithm.DecayAtReset: // a receipt is the end of a window
		if plan.Algorithm().IsCalendar() {
			window = window * 9 / 10 // no day, week or month is shorter than this
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
