package httplimit

import (
	"context"
	"hash/maphash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// What identities knows at most, in each process.
const (
	mostIdentities = 128 << 10 // of a generation; there are two
	mostAddresses  = 128 << 10 // that have brought new identities lately
)

// identities bounds how many new identities an address may bring to a rule. It remembers those that
// it has admitted: at least the last 131,072 that were used, and at most twice as many, in up to 8
// MB. One that it has forgotten is new again. It counts for up to 131,072 addresses, in up to 16
// MB. If there are more, known identities are admitted, and new ones are not.
//
// The memory is this process's own: after a start all identities are new, and each process admits
// as many.
type identities struct {
	seed   maphash.Seed
	counts *memstore.Store

	shards [64]identityShard
	young  atomic.Int64 // how many identities are young in all shards
}

// An identityShard is what is known of those identities whose hash ends alike, in two generations.
type identityShard struct {
	mu         sync.Mutex
	young, old map[uint64]struct{}
	_          [64]byte // so that shards do not share a cache line
}

func newIdentities() *identities {
	return &identities{seed: maphash.MakeSeed(), counts: memstore.New(memstore.Options{Shards: 16, MaxKeys: mostAddresses})}
}

// admit tells whether an identity is known, or may be from now on, and if not when to ask again.
func (s *identities) admit(u *policy.UncheckedIdentity) (ok bool, retryAfter time.Duration) {
	var h maphash.Hash
	h.SetSeed(s.seed)
	h.WriteString(u.Limit.Group)
	h.WriteByte(0)
	h.WriteString(u.Key)
	sum := h.Sum64()
	shard := &s.shards[sum%uint64(len(s.shards))]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for {
		if _, ok := shard.young[sum]; ok {
			return true, 0
		}
		if s.young.Add(1) <= mostIdentities {
			break
		}
		s.young.Add(-1)
		shard.mu.Unlock()
		s.age()
		shard.mu.Lock()
	}
	if _, ok := shard.old[sum]; !ok {
		if ok, retryAfter := s.count(u); !ok {
			s.young.Add(-1)
			return false, retryAfter
		}
	}
	if shard.young == nil {
		shard.young = make(map[uint64]struct{})
	}
	shard.young[sum] = struct{}{}
	return true, 0
}

// count counts a new identity for its address. It tells whether the address may bring it, and if
// not when to ask again.
func (s *identities) count(u *policy.UncheckedIdentity) (ok bool, retryAfter time.Duration) {
	charge := [1]penstock.Charge{{Key: u.Address, Limit: u.Limit, Cost: 1}}
	d, err := s.counts.Decide(context.Background(), charge[:])
	if err != nil { // there are too many addresses
		return false, time.Second
	}
	return d.Allowed, d.RetryAfter()
}

// age begins a new generation, if the young one is full. The caller holds no lock.
func (s *identities) age() {
	for i := range s.shards {
		s.shards[i].mu.Lock()
		defer s.shards[i].mu.Unlock()
	}
	if s.young.Load() < mostIdentities {
		return
	}
	for i := range s.shards {
		s.shards[i].young, s.shards[i].old = nil, s.shards[i].young
	}
	s.young.Store(0)
}

// known tells whether all of the request's identities are known, or are new and admitted. If not,
// it answers the request.
func (a *Admission) known(w http.ResponseWriter, s *setup) bool {
	for i := range a.verdict.Unchecked {
		u := &a.verdict.Unchecked[i]
		ok, retryAfter := a.gate.identities.admit(u)
		if ok {
			continue
		}
		a.gate.observe(Event{Rule: u.Rule.Name, Limit: u.Limit.Name, Algorithm: u.Limit.Algorithm.Title, Outcome: DeniedNew})
		seconds := s.headers.write(a.header, nil, true, retryAfter)
		a.gate.turnAway(w, a.Request, s, denial{reason: tooManyNew, status: s.status, rule: u.Rule.Name,
			policies: []string{u.Rule.Name + "." + u.Limit.Name}, retryAfter: retryAfter, retrySeconds: seconds})
		return false
	}
	return true
}
