package simulation

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A fault happens at a time after the load began, and most end.
type fault struct {
	kind faultKind
	at   time.Duration
	long time.Duration
	inst int
	node int
	size float64
}

type faultKind uint8

const (
	refuses   faultKind = iota // a node
	hangs                      // a node
	forgets                    // a node restarts without its state
	killed                     // a node refuses, and has forgotten when it is back
	failsOver                  // a node goes back to the state of a lagging replica
	clockSteps
	slow       // the network of all
	lossy      // the network of all
	cutThere   // an instance's requests
	cutBack    // an instance's answers
	cutBoth    // an instance
	cutAll     // all instances, from the store
	crashes    // an instance, and another comes
	stands     // an instance
	joins      // one more instance
	leaves     // one instance less
	faultKinds = 16
)

var faultNames = [...]string{
	"a node refuses", "a node hangs", "a node forgets", "a node is killed", "a node fails over", "the clock steps", "the network is slow",
	"the network loses", "requests are cut off", "answers are cut off", "an instance is cut off", "all are cut off", "an instance crashes",
	"an instance stands still", "an instance joins", "an instance leaves",
}

func someFault(rng *rand.Rand, p *plan, within time.Duration) fault {
	f := fault{kind: faultKind(rng.IntN(faultKinds)), at: time.Duration(rng.Int64N(int64(within)))}
	f.long = logTime(rng, 30*time.Millisecond, max(min(within, time.Minute), time.Second))
	f.inst, f.node, f.size = rng.IntN(100), rng.IntN(p.nodes), rng.Float64()
	return f
}

// begin has a fault happen, and returns how it ends; nil if that needs nothing.
func (w *world) begin(f *fault) (end func()) {
	w.book.faults++
	end = w.happen(f)
	switch f.kind {
	case refuses, hangs, killed, cutAll:
		w.book.situation("store fails", 0)
		mend := end
		end = func() {
			mend()
			w.book.situation("store returns", found)
			if f.kind == killed {
				w.book.situation("store forgets", 0)
			}
		}
	case forgets, failsOver:
		w.book.situation("store forgets", 0)
	case clockSteps:
		w.book.situation("clock forward", 0)
	}
	return end
}

func (w *world) happen(f *fault) (end func()) {
	kind := faultNames[f.kind]
	one := func(change, back func(*link)) func() {
		i := w.some(f.inst)
		if i == nil {
			return nil
		}
		w.book.incident("%s: %d, for %v", kind, i.id, f.long)
		i.link.change(change)
		return func() { i.link.change(back) }
	}
	all := func(change, back func(*link)) func() {
		w.book.incident("%s, for %v (%.2f)", kind, f.long, f.size)
		for _, i := range w.fleet {
			i.link.change(change)
		}
		return func() {
			for _, i := range w.fleet {
				i.link.change(back)
			}
		}
	}
	node := func(h health) func() {
		w.book.incident("%s: %d, for %v", kind, f.node, f.long)
		w.server.set(f.node, h)
		return func() { w.server.set(f.node, well) }
	}
	switch f.kind {
	case refuses:
		return node(refusing)
	case hangs:
		return node(hanging)
	case killed:
		end := node(refusing)
		return func() {
			w.server.forget(f.node)
			end()
		}
	case forgets:
		w.book.incident("%s: %d", kind, f.node)
		w.server.forget(f.node)
	case failsOver:
		lag := time.Duration(f.size * f.size * float64(2*time.Second))
		w.book.incident("%s: %d, to what it was %v ago", kind, f.node, lag)
		w.server.failOver(f.node, lag)
	case clockSteps:
		by := time.Duration((f.size - 0.5) * 2 * float64(20*time.Second))
		w.book.incident("%s by %v", kind, by)
		w.server.step(by)
	case slow:
		factor := 2 + 60*f.size
		return all(func(l *link) { l.oneWay = time.Duration(float64(w.plan.oneWay) * factor) }, func(l *link) { l.oneWay = w.plan.oneWay })
	case lossy:
		return all(func(l *link) { l.loss, l.silence = 0.3*f.size, 0.3*f.size }, func(l *link) { l.loss, l.silence = 0, 0 })
	case cutThere:
		return one(func(l *link) { l.cut[0] = true }, func(l *link) { l.cut[0] = false })
	case cutBack:
		return one(func(l *link) { l.cut[1] = true }, func(l *link) { l.cut[1] = false })
	case cutBoth:
		return one(func(l *link) { l.cut = [2]bool{true, true} }, func(l *link) { l.cut = [2]bool{} })
	case cutAll:
		return all(func(l *link) { l.cut = [2]bool{true, true} }, func(l *link) { l.cut = [2]bool{} })
	case crashes:
		if i := w.some(f.inst); i != nil {
			w.book.incident("%s: %d", kind, i.id)
			w.crash(i)
			w.join()
		}
	case stands:
		long := min(f.long, 5*time.Second)
		until := time.Now().Add(long)
		return one(func(l *link) { l.frozen = until }, func(*link) {})
	case joins:
		w.book.incident("%s", kind)
		w.join()
	case leaves:
		if i := w.some(f.inst); i != nil && len(w.fleet) > 1 {
			w.book.incident("%s: %d", kind, i.id)
			w.leave(i)
		}
	default:
		panic(fmt.Sprint("no such fault: ", f.kind))
	}
	return nil
}
