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

// A phase of a run.
type phase int

const (
	before phase = iota
	during
	after
	phases
)

var phaseNames = [phases]string{"before", "during", "after"}

const sources = int(penstock.FromClosed) + 1

// A load asks all instances all the time, more of every key than its limit.
//
// The keys come and go: of each policy some are asked for at any time, so that a fault finds fresh
// keys, half used ones and exhausted ones. A fourth of them is asked for on one instance before the
// fault and on the others during it: the worst for shares.
type load struct {
	instances []*instance
	stopping  atomic.Bool
	ended     sync.WaitGroup

	mu        sync.Mutex
	picked    [len(policies)]int64 // how often
	phase     phase
	begun     int              // faults
	over      int              // of them
	fresh     map[answerer]int // answers to questions since the phase began
	grants    map[account]*grants
	answers   [phases][sources]int // to questions whose phase had not ended yet
	latencies [phases][]time.Duration
	wrong     []string
}

// An answerer is who answered for a policy on an instance.
type answerer struct {
	instance, policy int
	source           penstock.Source
}

// grants are the units of a key that were admitted.
type grants struct {
	store, minted [instances]int // by the store or from what it has lent, and without it
	first, last   int            // faults that were over when it was first asked for, and that had begun when it was last answered
}

const (
	pace   = 4 * time.Millisecond
	thirst = 3 // how much more of a key is asked for than there is
)

func startLoad(all []*instance, callers int, seed uint64) *load {
	l := &load{instances: all, fresh: map[answerer]int{}, grants: map[account]*grants{}}
	for i := range all {
		for c := range callers {
			rng := rand.New(rand.NewPCG(seed, uint64(i*callers+c)))
			l.ended.Go(func() {
				for !l.stopping.Load() {
					l.ask(i, rng)
					time.Sleep(time.Duration(rng.Int64N(int64(2 * pace))))
				}
			})
		}
	}
	return l
}

// stop returns when all callers have their answers.
func (l *load) stop() {
	l.stopping.Store(true)
	l.ended.Wait()
}

// begin begins a phase.
func (l *load) begin(p phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = p
	clear(l.fresh)
}

// breaks says that a fault begins, and mended that it is over.
func (l *load) breaks() { l.mu.Lock(); defer l.mu.Unlock(); l.begun++ }
func (l *load) mended() { l.mu.Lock(); defer l.mu.Unlock(); l.over++ }

// since counts the answers of a source to questions since the phase began.
func (l *load) since(instance, policy int, source penstock.Source) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fresh[answerer{instance, policy, source}]
}

// pickLocked picks who pays next, on instance i.
func (l *load) pickLocked(i int, rng *rand.Rand) account {
	policy := rng.IntN(len(policies))
	l.picked[policy]++
	p := &policies[policy]
	n := l.picked[policy]/int64(thirst*p.units()) + rng.Int64N(p.keys)
	if n%4 == 3 && (l.phase == before) != (i == 0) {
		n--
	}
	return account{policy, fmt.Sprint("k", n)}
}

// begins begins a question on instance i: in which phase, under which account, and what of that was
// granted until now.
func (l *load) begins(i int, rng *rand.Rand) (phase, grants, account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.pickLocked(i, rng)
	if l.grants[a] == nil {
		l.grants[a] = &grants{first: l.over}
	}
	return l.phase, *l.grants[a], a
}

func (l *load) ask(i int, rng *rand.Rand) {
	asked, known, a := l.begins(i, rng)
	charge := [1]penstock.Charge{{Key: a.key, Limit: policies[a.policy].limit, Cost: 1}}
	var times atomic.Int64
	start := time.Now()
	d, err := l.instances[i].store.Decide(context.WithValue(context.Background(), timesAsked{}, &times), charge[:])
	took := time.Since(start)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies[asked] = append(l.latencies[asked], took)
	if n := times.Load(); n > 1 {
		l.wrong = append(l.wrong, fmt.Sprintf("instance %d asked the store %d times for one unit of %s", i, n, a.key))
	}
	if err != nil {
		l.wrong = append(l.wrong, fmt.Sprintf("instance %d, policy %s: no decision: %v", i, policies[a.policy].name, err))
		return
	}
	if asked == l.phase {
		l.answers[asked][d.Source]++
		l.fresh[answerer{i, a.policy, d.Source}]++
	}
	g := l.grants[a]
	g.last = l.begun
	switch {
	case !d.Allowed:
	case d.Source == penstock.FromStore || d.Source == penstock.FromLease:
		g.store[i]++
	default:
		g.minted[i]++
		// What the store had granted to this instance counts in its share.
		p := &policies[a.policy]
		if had := known.store[i] + known.minted[i]; p.settings.OnFailure == guard.Local && p.returns() == 0 && had >= p.mints {
			l.wrong = append(l.wrong, fmt.Sprintf("policy %s: instance %d had admitted %d of %s, its share is %d, and admitted one more by itself",
				p.name, i, had, a.key, p.mints))
		}
	}
}

// asks is how many questions were answered.
func (l *load) asks() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range phases {
		n += len(l.latencies[p])
	}
	return n
}

// String says who answered, and how fast, by phase.
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

func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)*99/100]
}
