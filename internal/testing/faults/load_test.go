package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// A phase is a part of an experiment, as seen from the fault.
type phase int

const (
	before phase = iota
	during
	after
	phases
)

var phaseNames = [phases]string{"before", "during", "after"}

const sources = int(penstock.FromClosed) + 1 // number of values of penstock.Source

// A load sends requests to all instances all the time. For every key it sends more requests than
// the limit admits.
//
// The keys change. Each limit has several current keys at any time, so that a fault meets unused,
// half used and exhausted keys. A quarter of the keys is used by the first instance alone before
// the fault, and by the other instances alone during the fault. This order is the worst case for
// shares.
type load struct {
	instances  []*instance
	isStopping atomic.Bool
	callers    sync.WaitGroup

	mu         sync.Mutex
	picked     [len(guardedLimits)]int64 // requests so far, by limit
	phase      phase
	begun      int                  // number of faults that have begun
	ended      int                  // number of faults that have ended
	sincePhase map[answerSource]int // decisions of requests that began in this phase
	grants     map[limitKey]*grants
	answers    [phases][sources]int // decisions of requests that ended in their phase
	latencies  [phases][]time.Duration
	violations []string // errors to report at the end
}

// An answerSource identifies the source of decisions of a limit on an instance.
type answerSource struct {
	instance, limit int
	source          penstock.Source
}

// grants are the units of a key that were admitted.
type grants struct {
	store       [instances]int // by the store or a lease
	byFallback  [instances]int
	endedBefore int // faults that had ended before the first request for the key
	begunBefore int // faults that had begun before the last decision for the key
}

const (
	pace     = 4 * time.Millisecond // average pause of a caller between two requests
	overload = 3                    // ratio of requests for a key to its units
)

// startLoad starts this number of callers on each instance.
func startLoad(all []*instance, callers int, seed uint64) *load {
	l := &load{instances: all, sincePhase: map[answerSource]int{}, grants: map[limitKey]*grants{}}
	for i := range all {
		for c := range callers {
			rng := rand.New(rand.NewPCG(seed, uint64(i*callers+c)))
			l.callers.Go(func() {
				for !l.isStopping.Load() {
					l.send(i, rng)
					time.Sleep(time.Duration(rng.Int64N(int64(2 * pace))))
				}
			})
		}
	}
	return l
}

// stop returns when all callers have ended.
func (l *load) stop() {
	l.isStopping.Store(true)
	l.callers.Wait()
}

// enterPhase starts a phase, and forgets the decisions of the phase before.
func (l *load) enterPhase(p phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = p
	clear(l.sincePhase)
}

// faultBegan and faultEnded count faults.
func (l *load) faultBegan() { l.mu.Lock(); defer l.mu.Unlock(); l.begun++ }
func (l *load) faultEnded() { l.mu.Lock(); defer l.mu.Unlock(); l.ended++ }

// decisionsInPhase returns how many decisions of requests that began in this phase are by the
// source.
func (l *load) decisionsInPhase(instance, limit int, source penstock.Source) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sincePhase[answerSource{instance: instance, limit: limit, source: source}]
}

// pickLocked picks the key of the next request on instance i. Each time that a limit has had
// overload·units requests, its oldest key is replaced; units is the number of units of a key. Every
// fourth key is for the first instance alone before the fault, and for the others alone during and
// after it.
func (l *load) pickLocked(i int, rng *rand.Rand) limitKey {
	limit := rng.IntN(len(guardedLimits))
	l.picked[limit]++
	n := l.firstKeyLocked(limit) + rng.Int64N(guardedLimits[limit].keys)
	isReserved := n%4 == 3
	isReservedForFirst := l.phase == before
	if isReserved && isReservedForFirst != (i == 0) {
		n--
	}
	return limitKey{limit: limit, key: fmt.Sprint("k", n)}
}

// firstKeyLocked returns the number of the first of the keys that a limit uses now.
func (l *load) firstKeyLocked(limit int) int64 {
	requestsPerKey := overload * guardedLimits[limit].units()
	return l.picked[limit] / int64(requestsPerKey)
}

// nextRequest picks the key k of the next request on instance i. earlier has the units that were
// granted to k before.
func (l *load) nextRequest(i int, rng *rand.Rand) (p phase, earlier grants, k limitKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k = l.pickLocked(i, rng)
	if l.grants[k] == nil {
		l.grants[k] = &grants{endedBefore: l.ended}
	}
	return l.phase, *l.grants[k], k
}

// send sends a request to instance i, and records the decision.
func (l *load) send(i int, rng *rand.Rand) {
	startPhase, earlier, k := l.nextRequest(i, rng)
	charge := [1]penstock.Charge{{Key: k.key, Plan: guardedLimits[k.limit].plan, Cost: 1}}
	var storeCalls atomic.Int64
	start := time.Now()
	d, err := l.instances[i].store.Decide(context.WithValue(context.Background(), callCount{}, &storeCalls), charge[:])
	took := time.Since(start)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies[startPhase] = append(l.latencies[startPhase], took)
	if n := storeCalls.Load(); n > 1 {
		l.violations = append(l.violations, fmt.Sprintf("instance %d called the store %d times for one unit of %q; want at most one call", i, n, k.key))
	}
	if err != nil {
		l.violations = append(l.violations, fmt.Sprintf("instance %d, limit %q: %v; want a decision", i, guardedLimits[k.limit].name, err))
		return
	}
	if startPhase == l.phase {
		l.answers[startPhase][d.Source]++
		l.sincePhase[answerSource{instance: i, limit: k.limit, source: d.Source}]++
	}
	g := l.grants[k]
	g.begunBefore = l.begun
	switch {
	case !d.Allowed:
	case d.Source == penstock.FromStore || d.Source == penstock.FromLease:
		g.store[i]++
	default:
		g.byFallback[i]++
		// Units that the store has granted to this instance count as used in its share.
		limit := &guardedLimits[k.limit]
		had := earlier.store[i] + earlier.byFallback[i]
		hasShare := limit.settings.OnFailure == guard.FailLocal && limit.leaseReturns() == 0
		if hasShare && had >= limit.fallbackBound {
			l.violations = append(l.violations, fmt.Sprintf("limit %q: instance %d admitted a unit of %q without the store after %d units; want at most its share of %d",
				limit.name, i, k.key, had, limit.fallbackBound))
		}
	}
}

// requests returns how many requests were decided.
func (l *load) requests() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range phases {
		n += len(l.latencies[p])
	}
	return n
}

// String shows the sources and latencies of decisions, by phase.
func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := ""
	for p := range phases {
		text += fmt.Sprintf("%s: ", phaseNames[p])
		for s, n := range l.answers[p] {
			if n > 0 {
				text += fmt.Sprintf("%d from %v, ", n, penstock.Source(s))
			}
		}
		text += fmt.Sprintf("p99 %v; ", p99(l.latencies[p]).Round(10*time.Microsecond))
	}
	return text
}

// p99 returns the time that 99 % of the latencies do not exceed.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)*99/100]
}
