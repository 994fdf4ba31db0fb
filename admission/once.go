package admission

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// OnceFor is how long a repeat of a Request with an ID is free, at least.
const OnceFor = 10 * time.Minute

// MaxID is the length of the longest Request.ID, in bytes.
const MaxID = 512

var (
	errTooManyCharges = errors.New("the request has so many limits that none can be added, as its id needs; send it without an id")
	errLongID         = errors.New("the id of the request is longer than 512 bytes")
)

// onceLimit is the limit of the charge that makes repeats of a request free. Clients do not see it.
var onceLimit = &policy.Limit{Rule: &policy.Rule{}, Guard: policy.OnceSettings, Key: policy.Global()}

// addOnce adds a charge that only the first call with these charges and this ID can make. All are
// one batch: the charge is made if and only if the others are.
func (a *Admission) addOnce() error {
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
		v.Charges[i].Patience = 0 // a repeat could not distinguish a turn that has come from one that was abandoned
	}
	a.onceName = digest(a.request.ID, v.Charges)
	limit := penstock.Limit{Group: policy.OnceGroup + a.onceName, Name: "once", Count: 1, Period: OnceFor, Burst: 1}
	plan, err := limit.Compile()
	if err != nil {
		return err
	}
	a.hasOnce = true
	v.Charges = append(v.Charges, penstock.Charge{Key: v.Charges[0].Key, Plan: plan, Cost: 1})
	v.Limits = append(v.Limits, onceLimit)
	return nil
}

// digest is a name for an ID together with charges.
func digest(id string, charges []penstock.Charge) string {
	h := sha256.New()
	write := func(text string) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
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

// nameOf makes a name of 26 characters, 130 bits, of a hash.
func nameOf(sum []byte) string {
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum))[:26]
}

// endOnce removes the charge that addOnce has added, and its status from the decision. If the call
// is a repeat of one that was granted, the decision becomes a grant of nothing.
func (a *Admission) endOnce(d *penstock.Decision) {
	v := &a.evaluation
	last := len(v.Charges) - 1
	if d != nil {
		once := d.Status(last)
		if a.isRepeat = once.RetryAfter > 0 && !isWithoutStore(d.Source); a.isRepeat {
			a.age = OnceFor - once.RetryAfter // the unit returns when the period is over
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
	a.hasOnce = false
}

// OnceName returns a name that the request shares with its repeats, and with no other request. It
// is empty if the request has no ID, or if no limit applied.
func (a *Admission) OnceName() string { return a.onceName }

// Age returns how long ago the request was granted. It is 0 unless the request is a repeat.
func (a *Admission) Age() time.Duration { return a.age }

// IsRepeat tells whether the request has the ID of one that was granted before, so that it has
// charged nothing.
func (a *Admission) IsRepeat() bool { return a.isRepeat }
