package jwt

import (
	"crypto/sha256"
	"sync"
)

// seenTokens is a cache of tokens whose signature was checked. Clients send the same token many
// times, and a signature check takes 30 to 100 times as long as a look-up. The dates in a token's
// claims are not a part of the result: they are checked at each use. The cache has two generations
// of at most 4 MiB of tokens each. When the younger one is full, it replaces the older one. The
// zero value is ready for use.
type seenTokens struct {
	mu         sync.Mutex
	young, old map[[sha256.Size]byte]seenToken
	youngBytes int // the size of the young tokens
}

type seenToken struct {
	claims claims
	bytes  int // the size of the token
}

const maxGenerationBytes = 4 << 20 // bytes of all tokens of one generation

// get returns the claims of a token. get also moves the token to the younger generation.
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

// addLocked adds a token to the younger generation. A full generation becomes the older one first.
func (s *seenTokens) addLocked(sum [sha256.Size]byte, t seenToken) {
	if _, ok := s.young[sum]; ok {
		return
	}
	if s.young == nil || s.youngBytes+t.bytes > maxGenerationBytes {
		s.young, s.old, s.youngBytes = make(map[[sha256.Size]byte]seenToken), s.young, 0
	}
	s.young[sum] = t
	s.youngBytes += t.bytes
}
