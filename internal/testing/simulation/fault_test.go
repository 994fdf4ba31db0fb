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
	instance int // the index of an instance, modulo the number of running instances
	node     int
	size     float64 // strength of the fault, from 0 to 1
}

type faultKind uint8

const (
	nodeRefuses     faultKind = iota // a node refuses connections
	nodeHangs                        // a node sends no replies
	nodeLosesData                    // a node restarts without its data
	nodeKilled                       // a node refuses connections, then restarts without its data
	nodeFailsOver                    // a node returns to the state of a replica that lags
	clockJumps                       // the store's clock jumps
	networkSlow                      // the latency of all instances grows
	networkLossy                     // requests and replies of all instances are lost at random
	requestsCut                      // the requests of an instance are lost
	repliesCut                       // the replies to an instance are lost
	instanceCut                      // requests and replies of an instance are lost
	allCut                           // requests and replies of all instances are lost
	instanceCrashes                  // another instance joins
	instanceFreezes
	instanceJoins
	instanceLeaves
	faultKinds = 16
)

var faultNames = [...]string{
	"a node refuses", "a node hangs", "a node loses its data", "a node is killed", "a node fails over", "the clock jumps", "the network is slow",
	"the network loses packets", "requests are cut off", "replies are cut off", "an instance is cut off", "all are cut off", "an instance crashes",
	"an instance freezes", "an instance joins", "an instance leaves",
}

func randomFault(rng *rand.Rand, sc *scenario, length time.Duration) fault {
	f := fault{kind: faultKind(rng.IntN(faultKinds)), at: time.Duration(rng.Int64N(int64(length)))}
	f.duration = logTime(rng, 30*time.Millisecond, max(min(length, time.Minute), time.Second))
	f.instance, f.node, f.size = rng.IntN(100), rng.IntN(sc.nodes), rng.Float64()
	return f
}

// startFault starts a fault. It returns a function that ends the fault, or nil if the fault ends by
// itself.
func (sim *simulation) startFault(f *fault) (end func()) {
	sim.history.faults++
	end = sim.applyFault(f)
	switch f.kind {
	case nodeRefuses, nodeHangs, nodeKilled, allCut:
		sim.history.addSituation("store fails", 0)
		endFault := end
		end = func() {
			endFault()
			sim.history.addSituation("store returns", maxRecovery)
			if f.kind == nodeKilled {
				sim.history.addSituation("store forgets", 0)
			}
		}
	case nodeLosesData, nodeFailsOver:
		sim.history.addSituation("store forgets", 0)
	case clockJumps:
		sim.history.addSituation("clock forward", 0)
	}
	return end
}

func (sim *simulation) applyFault(f *fault) (end func()) {
	kind := faultNames[f.kind]
	changeLink := func(change, undo func(*link)) func() {
		i := sim.instanceAt(f.instance)
		if i == nil {
			return nil
		}
		sim.history.addIncident("%s: instance %d, for %v", kind, i.id, f.duration)
		i.link.update(change)
		return func() { i.link.update(undo) }
	}
	changeAllLinks := func(change, undo func(*link)) func() {
		sim.history.addIncident("%s, for %v, with strength %.2f", kind, f.duration, f.size)
		for _, i := range sim.fleet {
			i.link.update(change)
		}
		return func() {
			for _, i := range sim.fleet {
				i.link.update(undo)
			}
		}
	}
	changeNode := func(h health) func() {
		sim.history.addIncident("%s: node %d, for %v", kind, f.node, f.duration)
		sim.server.setHealth(f.node, h)
		return func() { sim.server.setHealth(f.node, healthy) }
	}
	switch f.kind {
	case nodeRefuses:
		return changeNode(refusing)
	case nodeHangs:
		return changeNode(hanging)
	case nodeKilled:
		end := changeNode(refusing)
		return func() {
			sim.server.loseData(f.node)
			end()
		}
	case nodeLosesData:
		sim.history.addIncident("%s: node %d", kind, f.node)
		sim.server.loseData(f.node)
	case nodeFailsOver:
		const maxLag = 2 * time.Second
		lag := time.Duration(f.size * f.size * float64(maxLag)) // more often short than long
		sim.history.addIncident("%s: node %d, to its state %v ago", kind, f.node, lag)
		sim.server.failOver(f.node, lag)
	case clockJumps:
		const maxJump = 20 * time.Second
		by := time.Duration((f.size - 0.5) * 2 * float64(maxJump)) // forward from a size of 0.5, else back
		sim.history.addIncident("%s by %v", kind, by)
		sim.server.stepClock(by)
	case networkSlow:
		const minFactor, maxFactor = 2, 62 // of the latency
		factor := minFactor + (maxFactor-minFactor)*f.size
		return changeAllLinks(func(l *link) { l.oneWay = time.Duration(float64(sim.scenario.oneWay) * factor) }, func(l *link) { l.oneWay = sim.scenario.oneWay })
	case networkLossy:
		const maxLoss = 0.3 // probability
		loss := maxLoss * f.size
		return changeAllLinks(func(l *link) { l.loss = [ways]float64{loss, loss} }, func(l *link) { l.loss = [ways]float64{} })
	case requestsCut:
		return changeLink(func(l *link) { l.isCut[toStore] = true }, func(l *link) { l.isCut[toStore] = false })
	case repliesCut:
		return changeLink(func(l *link) { l.isCut[fromStore] = true }, func(l *link) { l.isCut[fromStore] = false })
	case instanceCut:
		return changeLink(func(l *link) { l.isCut = [ways]bool{true, true} }, func(l *link) { l.isCut = [ways]bool{} })
	case allCut:
		return changeAllLinks(func(l *link) { l.isCut = [ways]bool{true, true} }, func(l *link) { l.isCut = [ways]bool{} })
	case instanceCrashes:
		if i := sim.instanceAt(f.instance); i != nil {
			sim.history.addIncident("%s: instance %d", kind, i.id)
			sim.crash(i)
			sim.join()
		}
	case instanceFreezes:
		duration := min(f.duration, 5*time.Second)
		until := time.Now().Add(duration)
		return changeLink(func(l *link) { l.frozenUntil = until }, func(*link) {})
	case instanceJoins:
		sim.history.addIncident("%s", kind)
		sim.join()
	case instanceLeaves:
		if i := sim.instanceAt(f.instance); i != nil && len(sim.fleet) > 1 {
			sim.history.addIncident("%s: instance %d", kind, i.id)
			sim.leave(i)
		}
	default:
		panic(fmt.Sprint("no such fault: ", f.kind))
	}
	return nil
}
