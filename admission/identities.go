package admission

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// The bounds of identities, in each process.
const (
	maxIdentities = 128 << 10 // identities in one of the two generations
	maxAddresses  = 128 << 10 // addresses that have recently sent new identities
)

// identities bounds how many new identities an address may send to a rule.
//
// Known identities: it keeps at least the 131,072 admitted identities that were used last, and at
// most twice as many, in up to 8 MB. An identity that it has dropped is new again.
//
// Addresses: it counts new identities for up to 131,072 addresses, in up to 16 MB. New identities
// of further addresses are denied. Known ones are still admitted.
//
// The memory belongs to this process: after a start all identities are new, and n processes admit n
// times as many.
type identities struct {
	seed         maphash.Seed
	newByAddress *memstore.Store // counts the new identities of each address

	stripes    [64]identityStripe
	youngCount atomic.Int64 // how many identities are young, in all stripes
}

// An identityStripe keeps the identities whose hashes end with the same bits, in two generations.
type identityStripe struct {
	mu         sync.Mutex
	young, old map[uint64]struct{}
	_          [64]byte // so that stripes do not share a cache line
}

func newIdentities(now func() time.Time) *identities {
	return &identities{seed: maphash.MakeSeed(), newByAddress: memstore.New(memstore.Options{Now: now, Locks: 16, MaxCounters: maxAddresses})}
}

// admit reports whether an identity is known, or its address may send a new one now. If not,
// retryAfter is the time after which the client should retry.
func (s *identities) admit(u *policy.InventedIdentity) (isAdmitted bool, retryAfter time.Duration) {
	var h maphash.Hash
	h.SetSeed(s.seed)
	h.WriteString(u.Limit.Group())
	h.WriteByte(0)
	h.WriteString(u.Key)
	hash := h.Sum64()
	stripe := &s.stripes[hash%uint64(len(s.stripes))]
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	for {
		if _, isYoung := stripe.young[hash]; isYoung {
			return true, 0
		}
		if s.youngCount.Add(1) <= maxIdentities {
			break
		}
		s.youngCount.Add(-1)
		// startGeneration locks all stripes, so this stripe must be unlocked. Other goroutines may then
		// change the stripe, so the loop begins again.
		stripe.mu.Unlock()
		s.startGeneration()
		stripe.mu.Lock()
	}
	if _, isOld := stripe.old[hash]; !isOld {
		if isAllowed, retryAfter := s.count(u); !isAllowed {
			s.youngCount.Add(-1)
			return false, retryAfter
		}
	}
	if stripe.young == nil {
		stripe.young = make(map[uint64]struct{})
	}
	stripe.young[hash] = struct{}{}
	return true, 0
}

// count counts a new identity for its address. If the address may not send one now, retryAfter is
// the time after which the client should retry.
func (s *identities) count(u *policy.InventedIdentity) (isAllowed bool, retryAfter time.Duration) {
	charge := [1]penstock.Charge{chargeOf(u)}
	d, err := s.newByAddress.Decide(context.Background(), charge[:])
	if err != nil { // the store is full: there are too many addresses
		return false, fullRetryAfter
	}
	return d.Allowed, d.RetryAfter()
}

// fullRetryAfter is how soon a client should retry if there are too many addresses to count.
const fullRetryAfter = time.Second

// chargeOf returns the charge of a new identity, under its address.
func chargeOf(u *policy.InventedIdentity) penstock.Charge {
	return penstock.Charge{Key: u.Address, Plan: u.Limit, Cost: 1}
}

// startGeneration makes the young generation the old one if it is full. The caller holds no lock.
func (s *identities) startGeneration() {
	for i := range s.stripes {
		s.stripes[i].mu.Lock()
		defer s.stripes[i].mu.Unlock()
	}
	if s.youngCount.Load() < maxIdentities {
		return
	}
	for i := range s.stripes {
		s.stripes[i].young, s.stripes[i].old = nil, s.stripes[i].young
	}
	s.youngCount.Store(0)
}

// admitsIdentities reports whether each of the request's identities is known, or its address may
// send a new one now. If not, it rejects the request.
func (a *Admission) admitsIdentities() bool {
	for i := range a.evaluation.Invented {
		u := &a.evaluation.Invented[i]
		isAdmitted, retryAfter := a.controller.identities.admit(u)
		if isAdmitted {
			continue
		}
		a.rejection = Rejection{Rule: u.Rule.Name, Policies: []string{u.Rule.Name + "." + u.Limit.Name()}, RetryAfter: retryAfter}
		a.newIdentity[0] = chargeOf(u)
		a.event = Event{
			Rule: u.Rule.Name, Limit: u.Limit.Name(), Algorithm: u.Limit.Algorithm().Title(), Key: u.Address,
			Outcome: DeniedNewIdentity, Charges: a.newIdentity[:],
		}
		a.emit()
		return false
	}
	return true
}
