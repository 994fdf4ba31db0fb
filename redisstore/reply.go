package redisstore

import (
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
	"github.com/penstock/penstock/redisstore/internal/luagen"
)

const numberSize = 8 // bytes

// A replyReader reads the reply of uniform.lua, in the order of the batches. luagen.ReplyPlain and
// the constants after it describe the format.
type replyReader struct {
	text    string
	isShort bool // the reply ends too early

	repeats   int64 // further batches whose statuses differ from the last by the deltas
	isCorrupt bool
	statuses  [luagen.MaxCharges]penstock.Status
	deltas    [luagen.MaxCharges]struct {
		remaining int64
		reset     time.Duration
	}
}

// next reads the decision of the next batch.
func (r *replyReader) next(charges []penstock.Charge, w *coalesce.Waiter) {
	if r.repeats > 0 {
		r.repeats--
		for i := range charges {
			r.statuses[i].Remaining -= r.deltas[i].remaining
			r.statuses[i].ResetAfter += r.deltas[i].reset
		}
	} else {
		r.read(charges)
	}
	switch w.Err = nil; {
	case r.isCorrupt:
		w.Err = ReplyError("CORRUPT the state of this key is malformed")
	case len(charges) == 1:
		w.Decision = penstock.Single(r.statuses[0])
	default:
		w.Decision = penstock.NewDecision(append([]penstock.Status(nil), r.statuses[:len(charges)]...))
	}
}

func (r *replyReader) read(charges []penstock.Charge) {
	size := 0
	kind := r.number()
	switch kind {
	case luagen.ReplyPlain:
		size = plainSize
	case luagen.ReplyFull:
		size = statusSize
	case luagen.ReplyCorrupt:
	default:
		r.isShort = true
	}
	r.isCorrupt = kind == luagen.ReplyCorrupt
	for i := range charges {
		if text := r.take(size); size > 0 && !r.isShort {
			r.statuses[i] = status(text, &charges[i])
		}
	}
	if len(r.text) < numberSize || getNumber(r.text) != luagen.ReplyRepeat {
		return
	}
	r.number()
	r.repeats = r.number()
	for i := range charges {
		r.deltas[i].remaining = r.number()
		r.deltas[i].reset = time.Duration(r.number()) * time.Microsecond
	}
}

func (r *replyReader) number() int64 {
	if text := r.take(numberSize); !r.isShort {
		return getNumber(text)
	}
	return 0
}

func (r *replyReader) take(size int) string {
	if len(r.text) < size {
		r.isShort, r.text = true, ""
		return ""
	}
	text := r.text[:size]
	r.text = r.text[size:]
	return text
}
