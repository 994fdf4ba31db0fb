package jwt

import (
	"crypto/sha256"
	"sync"
)

// seenTokens remembers tokens whose signature was checked: clients send the same one again and
// again, and a signature costs 30 to 100 times what remembering does. Times are checked anew at
// each use. It holds tokens of at most 8 MiB in all: two generations, of which the older goes when
// the younger is full. The zero value is ready.
type seenTokens struct {
	mu         sync.Mutex
	young, old map[[sha256.Size]byte]seenToken
	size       int // of the young ones' text
}

type seenToken struct {
	claims claims
	size   int
}

const maxSeenSize = 4 << 20 // of a generation

func (s *seenTokens) get(sum [sha256.Size]byte) (claims, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.young[sum]; ok {
		return t.claims, true
	}
	t, ok := s.old[sum]
	if ok {
		s.addLocked(sum, t)
	}
	return t.claims, ok
}

func (s *seenTokens) add(sum [sha256.Size]byte, c claims, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addLocked(sum, seenToken{c, size})
}

func (s *seenTokens) addLocked(sum [sha256.Size]byte, t seenToken) {
	if _, ok := s.young[sum]; ok {
		return
	}
	if s.young == nil || s.size+t.size > maxSeenSize {
		s.young, s.old, s.size = make(map[[sha256.Size]byte]seenToken), s.young, 0
	}
	s.young[sum] = t
	s.size += t.size
}
