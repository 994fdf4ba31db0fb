package activity

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/burst"
	"github.com/penstock/penstock/internal/syntax"
)

// Needs are the bursts that clients of a limit needed in the last hours, at most a day. Clients are
// sampled anew in each hour. The hour with the largest need counts.
type Needs struct {
	Clients  int           // in the largest sample of an hour
	Length   time.Duration // in which there were enough clients
	P95, P99 burst.Bursts  // with which a token bucket denies nothing to 95 and 99 % of the clients
}

// The bounds of a clientSample. All together need about 11 MB at most.
const (
	maxClients   = 1 << 15 // of all samples together
	maxPerSample = 1 << 10
	minClients   = 20      // fewer show nothing
	maxEvents    = 1 << 12 // of a sample in a second; they take at most 0.1 % of a CPU
	sampleHours  = 24
)

// A clientSample follows those clients of one limit whose hashes are small. If there are too many
// clients or events, it halves the bound of the hashes.
type clientSample struct {
	bound atomic.Uint64 // hashes below it are followed
	most  atomic.Int64  // the largest number of clients

	mu             sync.Mutex
	curves         map[uint64]*burst.Curve // by hash, of this hour
	second, events int64                   // events in the second
	minutes        int                     // of this hour
	current        Needs                   // up to the last minute of this hour
	ended          []Needs                 // of the last hours
}

// observeNeeds adds the charges of a request to the samples of their limits.
func (r *Recorder) observeNeeds(charges []penstock.Charge) {
	for i := range charges {
		c := &charges[i]
		if c.Cost <= 0 || c.Mode > penstock.Draw || c.Plan.Algorithm().NeedsHolder() || c.Key == syntax.GlobalKey {
			continue
		}
		hash := maphash.String(r.seed, c.Key)
		if l := r.limitOf(c.Plan); l != &r.other && hash < l.clients.bound.Load() {
			l.clients.add(hash, c.Cost, r.start)
		}
	}
}

// add adds an event. It skips an event that comes while another one is added, in less than 1 µs, or
// once a minute while needs are computed.
func (s *clientSample) add(hash uint64, cost int64, start time.Time) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	now := time.Since(start).Microseconds()
	if second := now / 1e6; second != s.second {
		s.second, s.events = second, 0
	}
	if s.events++; s.events > maxEvents {
		s.events = 0
		s.halveLocked()
	}
	c := s.curves[hash]
	if c == nil && hash < s.bound.Load() {
		c = new(burst.Curve)
		s.curves[hash] = c
	}
	if c != nil {
		c.Add(now, cost)
	}
	for int64(len(s.curves)) > s.most.Load() {
		s.halveLocked()
	}
}

func (s *clientSample) halveLocked() {
	bound := s.bound.Load() / 2
	s.bound.Store(bound)
	for hash := range s.curves {
		if hash >= bound {
			delete(s.curves, hash)
		}
	}
}

func (s *clientSample) resetLocked() {
	s.bound.Store(^uint64(0))
	s.curves, s.minutes, s.current = make(map[uint64]*burst.Curve), 0, Needs{}
}

// endMinute computes the needs of this hour anew. After an hour, it begins the next sample.
func (s *clientSample) endMinute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minutes++
	if n := len(s.curves); n >= minClients {
		s.current = Needs{Clients: n, Length: time.Duration(s.minutes) * time.Minute}
		bursts := make([]int64, 0, n)
		for i := range burst.Rates {
			bursts = bursts[:0]
			for _, c := range s.curves {
				bursts = append(bursts, c.Burst(i))
			}
			slices.Sort(bursts)
			s.current.P95[i], s.current.P99[i] = bursts[n-1-n/20], bursts[n-1-n/100]
		}
	}
	if s.minutes == 60 {
		s.ended = append(s.ended, s.current)
		s.ended = slices.Clone(s.ended[max(0, len(s.ended)-sampleHours+1):])
		s.resetLocked()
	}
}

func (s *clientSample) needs() (all Needs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hour := range append(s.ended, s.current) {
		all.Clients = max(all.Clients, hour.Clients)
		all.Length += hour.Length
		for i := range burst.Rates {
			all.P95[i], all.P99[i] = max(all.P95[i], hour.P95[i]), max(all.P99[i], hour.P99[i])
		}
	}
	return all
}

// Needs returns the needs of the clients of each limit, by the limit's names. Limits that have had
// fewer than 20 clients in an hour are missing.
func (r *Recorder) Needs() map[Series]Needs {
	all := make(map[Series]Needs)
	for _, l := range *r.limits.Load() {
		if n := l.clients.needs(); n.Clients > 0 {
			all[Series{Rule: l.Rule, Limit: l.Name}] = n
		}
	}
	return all
}
