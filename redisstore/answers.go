package redisstore

import (
	"time"

	"github.com/penstock/penstock"
)

// What rows.lua replies are numbers: a kind, and what it says of one batch after the other.
const (
	rowPlain    = 0 // per charge what remains and the reset: all of the cost was granted, and nobody waits
	rowFull     = 1 // a status per charge
	rowPoisoned = 2 // nothing
	rowMore     = 3 // how many more, and per charge how far each goes on from the one before: less remains, the reset is later

	numberSize = 8
)

// answers reads the reply of rows.lua, in the order in which the batches were asked.
type answers struct {
	text  string
	short bool // of what it should be

	more     int64 // how many are like the last, but for the steps
	poisoned bool
	statuses [maxRow]penstock.Status
	steps    [maxRow]struct {
		remaining int64
		reset     time.Duration
	}
}

// next reads the answer to a batch.
func (r *answers) next(charges []charge, w *waiting) {
	if r.more > 0 {
		r.more--
		for i := range charges {
			r.statuses[i].Remaining -= r.steps[i].remaining
			r.statuses[i].ResetAfter += r.steps[i].reset
		}
	} else {
		r.read(charges)
	}
	switch w.err = nil; {
	case r.poisoned:
		w.err = ReplyError("POISONED the state is malformed")
	case len(charges) == 1:
		w.decision = penstock.Single(r.statuses[0])
	default:
		w.decision = penstock.NewDecision(append([]penstock.Status(nil), r.statuses[:len(charges)]...))
	}
}

func (r *answers) read(charges []charge) {
	size := 0
	kind := r.number()
	switch kind {
	case rowPlain:
		size = plainSize
	case rowFull:
		size = statusSize
	case rowPoisoned:
	default:
		r.short = true
	}
	r.poisoned = kind == rowPoisoned
	for i := range charges {
		if text := r.take(size); size > 0 && !r.short {
			r.statuses[i] = status(text, &charges[i])
		}
	}
	if len(r.text) < numberSize || getNumber(r.text) != rowMore {
		return
	}
	r.number()
	r.more = r.number()
	for i := range charges {
		r.steps[i].remaining = r.number()
		r.steps[i].reset = time.Duration(r.number()) * time.Microsecond
	}
}

func (r *answers) number() int64 {
	if text := r.take(numberSize); !r.short {
		return getNumber(text)
	}
	return 0
}

func (r *answers) take(size int) string {
	if len(r.text) < size {
		r.short, r.text = true, ""
		return ""
	}
	text := r.text[:size]
	r.text = r.text[size:]
	return text
}
