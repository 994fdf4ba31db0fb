package simulation

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A fault begins at a time after the start of the load. Most faults end.
type fault struct {
	kind     faultKind
	at       time.Duration
	duration time.Duration
	inst     int
	node     int
	size     float64
}

type faultKind uint8

const (
	nodeRefuses   faultKind = iota // a node
	nodeHangs                      // a node
	nodeLosesData                  // a node restarts without its data
	nodeKilled                     // a node refuses connections, then restarts without its data
	nodeFailsOver                  // a node returns to the state of a replica that lags
	clockJumps
	networkSlow     // the network of all instances
	networkLossy    // the network of all instances
	requestsCut     // an instance's requests
	repliesCut      // an instance's replies
	instanceCut     // an instance
	allCut          // all instances
	instanceCrashes // an instance crashes, and another one joins
	instanceFreezes // an instance
	instanceJoins   // an instance joins
	instanceLeaves  // an instance leaves
	faultKinds      = 16
)

var faultNames = [...]string{
	"a node refuses", "a node hangs", "a node loses its data", "a node is killed", "a node fails over", "the clock jumps", "the network is slow",
	"the network loses packets", "requests are cut off", "replies are cut off", "an instance is cut off", "all are cut off", "an instance crashes",
	"an instance freezes", "an instance joins", "an instance leaves",
}

func randomFault(rng *rand.Rand, p *plan, length time.Duration) fault {
	f := fault{kind: faultKind(rng.IntN(faultKinds)), at: time.Duration(rng.Int64N(int64(length)))}
	f.duration = logTime(rng, 30*time.Millisecond, max(min(length, time.Minute), time.Second))
	f.inst, f.node, f.size = rng.IntN(100), rng.IntN(p.nodes), rng.Float64()
	return f
}

// startFault starts a fault. It returns a function that ends it, or nil if it ends by itself.
func (w *simulation) startFault(f *fault) (end func()) {
	w.history.faults++
	end = w.applyFault(f)
	switch f.kind {
	case nodeRefuses, nodeHangs, nodeKilled, allCut:
		w.history.situation("store fails", 0)
		endFault := end
		end = func() {
			endFault()
			w.history.situation("store returns", found)
			if f.kind == nodeKilled {
				w.history.situation("store forgets", 0)
			}
		}
	case nodeLosesData, nodeFailsOver:
		w.history.situation("store forgets", 0)
	case clockJumps:
		w.history.situation("clock forward", 0)
	}
	return end
}

func (w *simulation) applyFault(f *fault) (end func()) {
	kind := faultNames[f.kind]
	one := func(change, back func(*link)) func() {
		i := w.instanceAt(f.inst)
		if i == nil {
			return nil
		}
		w.history.incident("%s: %d, for %v", kind, i.id, f.duration)
		i.link.update(change)
		return func() { i.link.update(back) }
	}
	all := func(change, back func(*link)) func() {
		w.history.incident("%s, for %v (%.2f)", kind, f.duration, f.size)
		for _, i := range w.fleet {
			i.link.update(change)
		}
		return func() {
			for _, i := range w.fleet {
				i.link.update(back)
			}
		}
	}
	node := func(h health) func() {
		w.history.incident("%s: %d, for %v", kind, f.node, f.duration)
		w.server.setHealth(f.node, h)
		return func() { w.server.setHealth(f.node, healthy) }
	}
	switch f.kind {
	case nodeRefuses:
		return node(refusing)
	case nodeHangs:
		return node(hanging)
	case nodeKilled:
		end := node(refusing)
		return func() {
			w.server.loseData(f.node)
			end()
		}
	case nodeLosesData:
		w.history.incident("%s: %d", kind, f.node)
		w.server.loseData(f.node)
	case nodeFailsOver:
		lag := time.Duration(f.size * f.size * float64(2*time.Second))
		w.history.incident("%s: %d, to its state %v ago", kind, f.node, lag)
		w.server.failOver(f.node, lag)
	case clockJumps:
		by := time.Duration((f.size - 0.5) * 2 * float64(20*time.Second))
		w.history.incident("%s by %v", kind, by)
		w.server.stepClock(by)
	case networkSlow:
		factor := 2 + 60*f.size
		return all(func(l *link) { l.oneWay = time.Duration(float64(w.plan.oneWay) * factor) }, func(l *link) { l.oneWay = w.plan.oneWay })
	case networkLossy:
		return all(func(l *link) { l.requestLoss, l.replyLoss = 0.3*f.size, 0.3*f.size }, func(l *link) { l.requestLoss, l.replyLoss = 0, 0 })
	case requestsCut:
		return one(func(l *link) { l.cut[0] = true }, func(l *link) { l.cut[0] = false })
	case repliesCut:
		return one(func(l *link) { l.cut[1] = true }, func(l *link) { l.cut[1] = false })
	case instanceCut:
		return one(func(l *link) { l.cut = [2]bool{true, true} }, func(l *link) { l.cut = [2]bool{} })
	case allCut:
		return all(func(l *link) { l.cut = [2]bool{true, true} }, func(l *link) { l.cut = [2]bool{} })
	case instanceCrashes:
		if i := w.instanceAt(f.inst); i != nil {
			w.history.incident("%s: %d", kind, i.id)
			w.crash(i)
			w.join()
		}
	case instanceFreezes:
		duration := min(f.duration, 5*time.Second)
		until := time.Now().Add(duration)
		return one(func(l *link) { l.frozen = until }, func(*link) {})
	case instanceJoins:
		w.history.incident("%s", kind)
		w.join()
	case instanceLeaves:
		if i := w.instanceAt(f.inst); i != nil && len(w.fleet) > 1 {
			w.history.incident("%s: %d", kind, i.id)
			w.leave(i)
		}
	default:
		panic(fmt.Sprint("no such fault: ", f.kind))
	}
	return nil
}
