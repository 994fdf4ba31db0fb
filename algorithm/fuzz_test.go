package algorithm

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// The fuzz targets read a trace from bytes, with any clocks, limits, costs and modes in any order.
// They check the laws that hold for every trace. A broken law prints the requests of its trace.

// universal are the laws that hold for any trace.
var universal = []law{
	numbersStayInRange, remainingStaysWithinTheLimit, peekChangesNothing, peekAnswersWhatSpendWould, whatCannotFitIsDeniedForever,
	cheaperRequestsAreGrantedToo, outcomeIsKept, resetForgetsEverything, stepsArePure, retryAfterIsTight, resetAfterIsTight,
	availabilityNeverFallsByItself, stateEqualsFreshAfterKeep, spendThenRefundIsNothing, farStepBackIsRepaired,
}

// byteDice are dice that read 1, 2 or 7 bytes of data, depending on the range. After the last byte,
// they return the lowest number.
func byteDice(data []byte) dice {
	return func(low, high int64) int64 {
		span, size := uint64(high-low), 1
		switch {
		case span == 0 || len(data) == 0:
			return low
		case span >= 1<<16:
			size = 7
		case span >= 1<<8:
			size = 2
		}
		var word [8]byte
		data = data[copy(word[:size], data):]
		return low + int64(binary.LittleEndian.Uint64(word[:])%(span+1))
	}
}

func fuzz(f *testing.F, subjects ...subject) {
	for i := range universal {
		seed := []byte{byte(i), byte(i)} // the first byte picks the law, and the second the subject
		roll := seeded(uint64(i), 1)
		for range 200 {
			seed = append(seed, byte(roll(0, 255)))
		}
		f.Add(seed)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		roll := byteDice(data)
		l, a := pick(roll, universal...), pick(roll, subjects...)
		if err := l.check(a, roll); err != nil {
			t.Fatalf("%s: %s: %v", a.name, l.name, err)
		}
	})
}

func FuzzTokenBucket(f *testing.F) { fuzz(f, bucketSubject()) }

func FuzzLeakyBucket(f *testing.F) { fuzz(f, queueSubject()) }

func FuzzFixedWindow(f *testing.F) {
	fuzz(f, append(calendarSubjects(), windowSubject(), anchoredSubject())...)
}

func FuzzSlidingWindow(f *testing.F) { fuzz(f, slidingSubject()) }

func FuzzSubWindow(f *testing.F) {
	fuzz(f, subSubject(1), subSubject(2), subSubject(7), subSubject(10), subSubject(MaxParts))
}

func FuzzSlidingLog(f *testing.F) { fuzz(f, logSubject()) }

func FuzzConcurrency(f *testing.F) { fuzz(f, slotSubject()) }

// Each limit is either invalid with a reason, or valid. If it is valid, its parameters are numbers
// that a twin can compute with, and outcomes of the largest requests are in range.
func FuzzPrepare(f *testing.F) {
	for _, l := range corners {
		f.Add(l.Count, l.Period, l.Burst, uint8(10))
	}
	f.Add(int64(10), int64(1_000_000), int64(0), uint8(0))
	f.Add(int64(10), int64(1_000_000), int64(0), uint8(MaxParts+1))
	f.Add(int64(0), int64(0), int64(0), uint8(0))
	f.Add(int64(-1), int64(-1), int64(-1), uint8(MaxParts+1))
	f.Add(int64(Max/2+1), int64(MaxPeriod+1), int64(Max/2+1), uint8(1))
	f.Fuzz(func(t *testing.T, count, period, burst int64, n uint8) {
		l := Limit{Count: count, Period: period, Burst: burst}
		sub := subSubject(int(n)%MaxParts + 1) // its model needs a valid number of parts
		sub.prepare = SubWindow(int(n)).Prepare
		for _, a := range append(allSubjects(), sub) {
			p, err := a.prepare(l)
			if err != nil {
				mustBeZero := l.check() == nil && a.calendarAt == nil
				if err.Error() == "" || mustBeZero && p != (Params{}) {
					t.Fatalf("%s rejects %+v with %q and the parameters %v; want a reason and no parameters", a.name, l, err, p)
				}
				continue
			}
			if l.check() != nil && a.calendarAt == nil {
				t.Fatalf("%s accepts %+v; want an error", a.name, l)
			}
			for i, n := range p {
				if n < 0 || n > Max {
					t.Fatalf("%s of %+v: parameter %d is %d; want 0 to %d", a.name, l, i, n, int64(Max))
				}
			}
			if err := tryLargestCost(a, l); err != nil {
				t.Fatalf("%s of %+v: %v", a.name, l, err)
			}
		}
	})
}

// tryLargestCost makes requests of the largest cost, and returns an error if an outcome is out of
// range.
func tryLargestCost(a subject, l Limit) error {
	r := &run{subject: a, now: epoch}
	r.change(l)
	if r.peek(r.now).Remaining != a.capacity(l) {
		return fmt.Errorf("a fresh state has %d units; want %d", r.peek(r.now).Remaining, a.capacity(l))
	}
	for _, mode := range []Mode{Force, Force, Spend, Draw, Peek, Refund, Force, Reset, Spend} {
		request := Request{Mode: mode, Cost: Max / 2, Holder: "ann"}
		if a.canBook {
			request.Patience = Max / 2 / r.params[0] // the first parameter is the rate
		}
		out := r.decide(request)
		if err := checkRange(request, out, r.state); err != nil {
			return r.lawError("%v", err)
		}
		r.now++
	}
	return nil
}
