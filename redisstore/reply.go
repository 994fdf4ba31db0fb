package redisstore

import (
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

const numberSize = 8 // bytes

// replyPlain stands for a batch without a kind; see luagen.ReplyFull.
const replyPlain = 0

// A replyReader reads the reply of uniform.lua, in the order of the batches. luagen.ReplyFull and
// the constants after it describe the format.
type replyReader struct {
	text        string
	isTruncated bool // the reply ends too early

	isCorrupt bool                               // the state of the last batch is malformed
	statuses  [luagen.MaxCharges]penstock.Status // of the last batch
	repeats   int64                              // further batches; each differs by deltas from the one before
	deltas    [luagen.MaxCharges]struct {
		remaining int64         // subtracted from Remaining
		reset     time.Duration // added to ResetAfter
	}
}

// next reads the decision of the next batch into w.
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
		w.Err = errCorrupt
	case len(charges) == 1:
		w.Decision = penstock.Single(r.statuses[0])
	default:
		w.Decision = penstock.NewDecision(append([]penstock.Status(nil), r.statuses[:len(charges)]...))
	}
}

// read reads the statuses of a batch, and how those of further batches differ from them.
func (r *replyReader) read(charges []penstock.Charge) {
	size := plainSize
	var kind int64
	if len(r.text) >= numberSize && getNumber(r.text) >= 0 {
		kind = replyPlain
	} else {
		kind = r.takeNumber()
	}
	switch kind {
	case replyPlain:
	case luagen.ReplyDenied:
		size = deniedSize
	case luagen.ReplyReceipts:
		size = plainSize + receiptSize
	case luagen.ReplyFull:
		size = statusSize + receiptSize
	case luagen.ReplyCorrupt:
		size = 0
	default:
		size, r.isTruncated = 0, true
	}
	r.isCorrupt = kind == luagen.ReplyCorrupt
	for i := range charges {
		if text := r.take(size); size > 0 && !r.isTruncated {
			r.isCorrupt = r.isCorrupt || !isPossible(text)
			if kind == luagen.ReplyDenied {
				r.statuses[i] = deniedStatus(text)
			} else {
				r.statuses[i] = status(text, &charges[i])
			}
		}
	}
	if len(r.text) < numberSize || getNumber(r.text) != luagen.ReplyRepeat {
		return
	}
	r.takeNumber() // ReplyRepeat
	r.repeats = r.takeNumber()
	for i := range charges {
		r.deltas[i].remaining = r.takeNumber()
		r.deltas[i].reset = time.Duration(r.takeNumber()) * time.Microsecond
	}
}

func (r *replyReader) takeNumber() int64 {
	if text := r.take(numberSize); !r.isTruncated {
		return getNumber(text)
	}
	return 0
}

// take returns the next size bytes of the reply. If it has fewer, take sets isTruncated.
func (r *replyReader) take(size int) string {
	if len(r.text) < size {
		r.isTruncated, r.text = true, ""
		return ""
	}
	text := r.text[:size]
	r.text = r.text[size:]
	return text
}
